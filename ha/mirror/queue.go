package mirror

// queue has frames for one connection, in buffers that are used again: memory that grew with what waits would be copied each time.
// Each buffer has maxPart bytes of data, or one frame that is longer.
type queue struct {
	full  [][]byte // the oldest first
	last  []byte   // behind them: takes the next frame
	bytes int64    // in all of them
	spare [][]byte // to be used again
	kept  int      // bytes of memory that those have
}

// room returns the buffer that takes a frame with n bytes of data. add gives it back.
func (q *queue) room(n int) []byte {
	if len(q.last) > 0 && len(q.last)+n > maxPart {
		q.full, q.last = append(q.full, q.last), nil
	}
	if k := len(q.spare); q.last == nil && k > 0 {
		q.last, q.spare[k-1] = q.spare[k-1], nil
		q.spare = q.spare[:k-1]
		q.kept -= cap(q.last)
	}
	return q.last
}

// add is told of the buffer with a frame of n bytes, head and data, at its end.
func (q *queue) add(b []byte, n int) {
	q.last = b
	q.bytes += int64(n)
}

// pop returns the oldest buffer, which is empty if there is nothing. The caller has it until release.
func (q *queue) pop() (b []byte) {
	if len(q.full) > 0 {
		b = q.full[0]
		n := copy(q.full, q.full[1:])
		q.full[n] = nil
		q.full = q.full[:n]
	} else {
		b, q.last = q.last, nil
	}
	q.bytes -= int64(len(b))
	return b
}

// release: the bytes of a buffer are needed no more.
func (q *queue) release(b []byte) {
	if n := cap(b); n > 0 && n <= maxKept && q.kept+n <= 2*maxKept {
		q.spare = append(q.spare, b[:0])
		q.kept += n
	}
}
