package volume

import (
	"bytes"

	"oneshot/backend"
)

// The transfers in this file write much more than they are sent. They work in pieces, between
// which other requests of their driver get their turn.

const (
	// eraseBytes is how much is unmapped or zeroed in one piece.
	eraseBytes = 8 << 20
	// workBytes is what long transfers do between two chances for others: some hundred
	// microseconds of copying or page clearing.
	workBytes = 1 << 20
)

// Erase makes all ranges read as zeroes. With discard their space is given back where that goes.
func (r *Request) Erase(ranges []Range, discard bool, then Step) Next {
	r.use()
	r.after, r.writes, r.off, r.n, r.ranges = then, true, 0, 0, ranges
	r.kind = backend.WriteZeroes
	if discard {
		r.kind = backend.Discard
	}
	for _, x := range ranges {
		r.v.touch(x.Off, x.N, false, r)
	}
	return r.erase()
}

// WriteSame pulls a block of unit bytes, a power of two, and writes it over [off, off+n). If it is all
// zeroes, discard says that the space may be given back.
func (r *Request) WriteSame(off, n, unit int64, discard bool, then Step) Next {
	r.begins(off, n, false, then)
	r.unit, r.kind, r.ranges = unit, backend.WriteZeroes, nil
	if discard {
		r.kind = backend.Discard
	}
	return r.Memory(int(max(unit, min(n, workBytes, int64(r.most)))), 0, (*Request).writeSamePull)
}

func (r *Request) writeSamePull() Next { return r.pull(int(r.unit), (*Request).writeSameStart) }

func (r *Request) writeSameStart() Next {
	piece := r.lease.Bytes()
	block := piece[:r.unit]
	if allZero(block) {
		return r.erase()
	}
	// SBC-3 §4.7.3.4.3: what would not read back as zeroes is written, discarded or not.
	for n := len(block); n < len(piece); n *= 2 {
		copy(piece[n:], piece[:n])
	}
	r.kind = backend.Write
	return r.erase()
}

func allZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// erase does r.kind to [r.off, r.off+r.n) and to r.ranges.
func (r *Request) erase() Next {
	r.done, r.erasing = 0, true
	return r.eraseNext()
}

func (r *Request) eraseNext() Next {
	for r.done == r.n {
		if len(r.ranges) == 0 {
			return r.end(nil)
		}
		r.off, r.n, r.done = r.ranges[0].Off, r.ranges[0].N, 0
		r.ranges = r.ranges[1:]
	}
	off, n := r.erasePiece()
	return r.lockRange(holdShared, off, n, (*Request).eraseSubmit)
}

// erasePiece is the next piece. Pieces end at multiples of their size, so that what can be
// given back in whole units is not divided.
func (r *Request) erasePiece() (off, n int64) {
	piece := int64(eraseBytes)
	if r.kind == backend.Write {
		piece = workBytes
	}
	off = r.off + r.done
	n = min(r.n-r.done, piece-off%piece)
	if r.kind == backend.Write {
		n = min(n, int64(len(r.lease.Bytes())))
	}
	return off, n
}

func (r *Request) eraseSubmit() Next {
	off, n := r.erasePiece()
	var data []byte
	if r.kind == backend.Write {
		data = r.lease.Bytes()
	}
	r.op.Flags = 0
	return r.submit(r.kind, off, n, data, (*Request).eraseDone)
}

func (r *Request) eraseDone() Next {
	r.v.touched(r.op.Off, r.op.Len) // a token may have been made since the command began
	r.leaveRange()
	if r.op.Err != nil {
		return r.opEnd()
	}
	r.done += r.op.Len
	if r.done == r.n && len(r.ranges) == 0 {
		return r.end(nil)
	}
	return r.Yield((*Request).eraseNext)
}
