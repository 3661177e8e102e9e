package wal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"oneshot/endpoint"
	"oneshot/transport/rdma"
)

// DamagedError says that records are missing that were acknowledged: something that was written after them is there.
type DamagedError struct {
	Segment uint64 // serial
	Off     int64  // bytes, in the partition: where the next entry should be
	LSN     uint64 // of the record that is missing
	Why     string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("wal: the log is damaged: record %d should stand at byte %d of the partition, in segment %d, and %s. Nothing was written; copy the partition before anything else, and make a new log with Options.Create", e.LSN, e.Off, e.Segment, e.Why)
}

// ErrShared: the endpoint was not opened with Options.Sole.
var ErrShared = errors.New("wal: open the endpoint with Options.Sole: otherwise what an earlier life of the program has sent may be written late, over records of this one")

// Open opens the log in the partition e, or makes one; ctx is for that alone. e was opened with Options.Sole (ErrShared). Until the
// log is closed only the log uses Post, Poll and Wait of e; others may use the rest, but must not write to the partition. Close does not close e.
//
// A log of which acknowledged records are missing is a *DamagedError, if they are not of the last batch (see Damage in the comment of the package).
func Open(ctx context.Context, e *endpoint.Endpoint, o Options) (*Log, error) {
	if !e.Sole() {
		return nil, ErrShared
	}
	l, err := find(ctx, e, o)
	if errors.Is(err, rdma.ErrReplaced) { // since the endpoint was opened; or the service does not remember, after a restart
		if err = e.Reconnect(ctx); err == nil {
			l, err = find(ctx, e, o)
		}
	}
	if _, restarted := errors.AsType[*endpoint.RestartedError](err); restarted { // perhaps while it read
		l, err = find(ctx, e, o)
	}
	return l, err
}

// find is Open on the connection that e has.
func find(ctx context.Context, e *endpoint.Endpoint, o Options) (*Log, error) {
	l := &Log{e: e, on: e.Connection(), next: 1, oldest: 1, open: new(batch), spare: new(batch)}
	l.space.L, l.work.L, l.done.L = &l.mu, &l.mu, &l.mu
	err := l.allocate()
	if err == nil {
		err = l.prepare(ctx, o)
	}
	if err != nil {
		if ctx.Err() == nil { // otherwise something may be under way, and the memory is the endpoint's until that is closed
			err = errors.Join(err, l.release())
		}
		return nil, err
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.wg.Go(l.run)
	return l, nil
}

// allocate takes memory for batches and for reading.
func (l *Log) allocate() (err error) {
	for _, b := range []struct {
		buf *[]byte
		n   int
	}{{&l.open.buf, batchSize}, {&l.spare.buf, batchSize}} {
		if *b.buf, err = l.e.Alloc(b.n); err != nil {
			return err
		}
		l.memory = append(l.memory, *b.buf)
	}
	l.reader.buf, err = l.e.Alloc(maxEntry)
	return err
}

// release gives the memory back.
func (l *Log) release() (err error) {
	for _, b := range l.memory {
		err = errors.Join(err, l.e.Free(b))
	}
	if l.memory = nil; l.reader.buf != nil {
		err = errors.Join(err, l.e.Free(l.reader.buf))
		l.reader.buf = nil
	}
	return err
}

// prepare finds the log, or makes one.
func (l *Log) prepare(ctx context.Context, o Options) error {
	i := l.e.Info()
	l.block = max(int64(i.Unit), minBlock)
	if err := l.shape(i, o); err != nil {
		return err
	}
	l.reader.l = l
	headers, err := l.headers(ctx, i, o)
	if err != nil {
		return err
	}
	l.maxEntry = min(maxEntry, l.segment-3*l.block)
	if l.life = random(); len(headers) == 0 {
		l.batches = true
		l.epoch = random() >> 2 // there is room to count
	} else if err := l.recover(ctx, headers); err != nil {
		return err
	} else if err := l.rewrite(ctx); err != nil {
		return err
	}
	return l.e.Flush(ctx)
}

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// rewrite writes again what the last batch can have written. That may have failed, and its bytes are read from a cache all the same, as
// Linux keeps those of pages that it could not write: no flush makes them durable, and what is appended would stand behind a hole after
// the next power cut.
func (l *Log) rewrite(ctx context.Context) error {
	from := max(l.pos-batchSize, 0)
	b := l.open.buf[:l.pos-from]
	if err := l.e.ReadAt(ctx, b, l.start(l.serial)+from); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	return l.e.WriteAt(ctx, b, l.start(l.serial)+from)
}

// shape is that of a new log.
func (l *Log) shape(i rdma.Endpoint, o Options) error {
	l.segment = o.Segment
	if l.segment == 0 {
		l.segment = min(defaultSegment, i.Size/4) &^ (l.block - 1)
	}
	if l.segment%l.block != 0 || l.segment < minSegment*l.block || l.segment > i.Size/2 {
		return fmt.Errorf("wal: segments of %d bytes in a partition of %d: they have to be multiples of %d, at least %d, and there have to be two", l.segment, i.Size, l.block, minSegment*l.block)
	}
	l.segments = uint64(min(i.Size/l.segment, 1<<20))
	return nil
}

// headers reads the headers of all segments, by serial. If there are none, the partition is ready for a new log.
func (l *Log) headers(ctx context.Context, i rdma.Endpoint, o Options) (map[uint64]header, error) {
	if o.Create {
		return nil, l.erase(ctx)
	}
	// The first valid header says how the log is divided.
	b := l.reader.buf[:l.block]
	var found *header
	why := errBlank
	for n := int64(0); n < int64(l.segments) && found == nil; n++ {
		if err := l.e.ReadAt(ctx, b, n*l.segment); err != nil {
			return nil, err
		}
		if h, err := parseHeader(b); err == nil {
			found = &h
		} else if errors.Is(why, errBlank) && !errors.Is(err, errBlank) {
			why = fmt.Errorf("at byte %d stands %w", n*l.segment, err)
		}
	}
	if found == nil && errors.Is(why, errBlank) {
		return nil, nil
	}
	if found == nil {
		return nil, fmt.Errorf("wal: the partition holds no log: %w. If what it holds may go, use Options.Create; if it is a log with other segments, say how many bytes they have", why)
	}
	if o.Segment != 0 && o.Segment != int64(found.segment) {
		return nil, fmt.Errorf("wal: the log has segments of %d bytes, not of %d", found.segment, o.Segment)
	}
	if int64(found.block)%int64(i.Unit) != 0 || uint64(i.Size)/found.segment < uint64(found.segments) {
		return nil, fmt.Errorf("wal: the log needs %d segments of %d bytes in blocks of %d, and the partition has %d bytes in blocks of %d", found.segments, found.segment, found.block, i.Size, i.Unit)
	}
	l.block, l.segment, l.segments, l.batches = int64(found.block), int64(found.segment), uint64(found.segments), found.batches
	headers := make(map[uint64]header)
	for n := range l.segments {
		if err := l.e.ReadAt(ctx, l.reader.buf[:l.block], int64(n)*l.segment); err != nil {
			return nil, err
		}
		h, err := parseHeader(l.reader.buf[:l.block])
		if err == nil && h.place() == n && h.batches == found.batches && h.block == found.block && h.segments == found.segments && h.segment == found.segment {
			headers[h.serial] = h
		}
	}
	return headers, nil
}

// erase makes a partition hold no log.
func (l *Log) erase(ctx context.Context) error {
	b := l.reader.buf[:l.block]
	clear(b)
	for n := range l.segments {
		if err := l.e.WriteAt(ctx, b, int64(n)*l.segment); err != nil {
			return err
		}
	}
	return l.e.Flush(ctx)
}

// recover finds the end of the log.
func (l *Log) recover(ctx context.Context, headers map[uint64]header) error {
	var last uint64
	for s := range headers {
		last = max(last, s)
	}
	first := last
	for first > 1 && first > headers[last].oldest {
		if _, ok := headers[first-1]; !ok {
			break // it was given back, and is written again
		}
		first--
	}
	h := headers[first]
	c := cursor{segment: segment{h.serial, h.first, h.epoch}, pos: l.block, epoch: h.epoch, next: h.first}
	l.oldest, l.needed = h.oldest, h.needed
	for {
		l.kept = append(l.kept, c.segment)
		for {
			e, err := l.reader.entry(ctx, &c)
			if err != nil {
				return err
			}
			if e == nil {
				break
			}
			if e.mark {
				m := parseMark(e.payload)
				l.oldest, l.needed = max(l.oldest, m.oldest), max(l.needed, m.needed)
			}
		}
		h, ok := headers[c.segment.serial+1]
		if !ok {
			break
		}
		if h.first != c.next || h.epoch < c.epoch {
			return &DamagedError{c.segment.serial, l.start(c.segment.serial) + c.pos, c.next, fmt.Sprintf("something else stands there, though segment %d follows with record %d", h.serial, h.first)}
		}
		l.oldest, l.needed = max(l.oldest, h.oldest), max(l.needed, h.needed)
		c = cursor{segment: segment{h.serial, h.first, h.epoch}, pos: l.block, epoch: h.epoch, next: h.first}
	}
	if c.segment.serial < last || first > l.oldest {
		missing := c.segment.serial + 1
		if first > l.oldest {
			missing = first - 1
		}
		return &DamagedError{missing, l.start(missing), c.next, "the segment has no header"}
	}
	if at, err := l.reader.later(ctx, c); err != nil {
		return err
	} else if at != nil {
		return &DamagedError{c.segment.serial, l.start(c.segment.serial) + c.pos, c.next, fmt.Sprintf("something else stands there, though at byte %d stands what was written later", l.start(at.segment.serial)+at.pos)}
	}
	if l.oldest > last {
		return &DamagedError{last, l.start(last), c.next, fmt.Sprintf("a mark before it frees segments up to %d, which there never were", l.oldest-1)}
	}
	for l.kept[0].serial < l.oldest {
		l.kept = l.kept[1:]
	}
	l.serial, l.pos, l.next, l.durable = c.segment.serial, c.pos, c.next, c.next-1
	l.epoch = c.epoch + 1
	return nil
}

// cursor is a place in the log.
type cursor struct {
	segment segment
	pos     int64 // of the next entry, in the segment
	epoch   uint64
	next    uint64 // LSN
}

// reader reads entries through a buffer.
type reader struct {
	l   *Log
	buf []byte // maxEntry
	off int64  // of the buffer, in the partition
	n   int64  // octets in it
	// renews says that another connection may be made on the way. Who looks for the end of the log has to begin anew then.
	renews bool
}

// entry returns the entry at c, and moves c behind it. nil: there is none. It aliases the buffer.
func (r *reader) entry(ctx context.Context, c *cursor) (*entry, error) {
	l := r.l
	if c.pos+l.block > l.segment {
		return nil, nil
	}
	b, err := r.at(ctx, c, l.block)
	if err != nil {
		return nil, err
	}
	n, _ := entryLength(b)
	size := l.padded(n)
	if size > l.maxEntry || c.pos+size > l.segment || entrySequence(b) != c.next { // and nothing is read behind its first block
		return nil, nil
	}
	if b, err = r.at(ctx, c, size); err != nil {
		return nil, err
	}
	e, ok := parseEntry(b, c.epoch, c.next)
	if !ok {
		return nil, nil
	}
	if c.pos += size; e.mark {
		c.epoch = parseMark(e.payload).epoch
	} else {
		c.next++
	}
	return &e, nil
}

// later returns the place of an entry behind the end of the log, c, that was written when what is missing at c was durable; nil: there is
// none. A crash leaves nothing like it, for it tears only the last batch, which begins at c or before.
func (r *reader) later(ctx context.Context, c cursor) (*cursor, error) {
	l, at := r.l, c
	for ahead := int64(maxEntry); ; { // octets that are read at a time
		if at.pos += l.block; at.pos+l.block > l.segment {
			if at.segment != c.segment || c.pos+l.maxEntry+2*l.block <= l.segment { // there is room: the next one was not begun
				return nil, nil
			}
			at.segment.serial, at.pos = c.segment.serial+1, l.block
		}
		n := l.block
		if !r.holds(&at, n) {
			n = min(ahead, l.segment-at.pos)
		}
		b, err := r.at(ctx, &at, n)
		switch {
		case isUnreadable(err) && n > l.block: // again, with less, for the rest can be read
			ahead = max(n/2&^(l.block-1), l.block)
			at.pos -= l.block
			continue
		case isUnreadable(err):
			ahead = maxEntry
			continue
		case err != nil:
			return nil, err
		}
		seq := entrySequence(b)
		if seq < c.next || seq-c.next > uint64(2*l.segment/l.block) {
			continue
		}
		for _, epoch := range []uint64{c.epoch, c.epoch + 1} {
			behind := at
			behind.epoch, behind.next = epoch, seq
			e, err := r.entry(ctx, &behind)
			switch {
			case err != nil && !isUnreadable(err):
				return nil, err
			case e == nil:
			case e.first, at.segment != c.segment, behind.pos > c.pos+batchSize,
				behind.epoch != c.epoch: // it follows the mark that begins the epoch, or is that: such a mark is a batch
				return &at, nil
			}
		}
	}
}

// isUnreadable reports whether the medium cannot read.
func isUnreadable(err error) bool {
	e, ok := errors.AsType[*endpoint.Error](err)
	return ok && e.Status == rdma.StatusMedium
}

// holds reports whether n octets from c on are in the buffer.
func (r *reader) holds(c *cursor, n int64) bool {
	off := r.l.start(c.segment.serial) + c.pos
	return r.off <= off && off+n <= r.off+r.n
}

// at returns n octets from c on.
func (r *reader) at(ctx context.Context, c *cursor, n int64) ([]byte, error) {
	l := r.l
	off := l.start(c.segment.serial) + c.pos
	if !r.holds(c, n) {
		want := min(int64(len(r.buf)), l.segment-c.pos)
		read := l.e.ReadAt
		if r.renews {
			read = l.readAt
		}
		err := read(ctx, r.buf[:want], off)
		if isUnreadable(err) && want > n {
			want = n // what cannot be read may lie behind the end of the log
			err = read(ctx, r.buf[:want], off)
		}
		if err != nil {
			if r.n = 0; ctx.Err() != nil { // what is under way may come at any time: the buffer is the endpoint's until that is closed
				r.buf = nil
			}
			return nil, fmt.Errorf("wal: %w", err)
		}
		r.off, r.n = off, want
	}
	return r.buf[off-r.off:][:n], nil
}

// Replay calls f with the records from LSN from on that are durable when it begins, in order; below First there
// are none. p is f's during the call. An error of f ends Replay, and is returned. f does not call Replay.
func (l *Log) Replay(ctx context.Context, from uint64, f func(lsn uint64, p []byte) error) error {
	l.reading.Lock()
	defer l.reading.Unlock()
	if l.memory == nil {
		return ErrClosed
	}
	if l.reader.n, l.reader.renews = 0, true; l.reader.buf == nil {
		var err error
		if l.reader.buf, err = l.e.Alloc(maxEntry); err != nil {
			return fmt.Errorf("wal: %w", err)
		}
	}
	l.mu.Lock()
	from = max(from, l.needed, l.kept0())
	end := l.durable
	kept := append([]segment(nil), l.kept...)
	l.mu.Unlock()
	for i, s := range kept {
		if i+1 < len(kept) && kept[i+1].first <= from || s.first > end {
			continue
		}
		c := cursor{segment: s, pos: l.block, epoch: s.epoch, next: s.first}
		for c.next <= end {
			lsn := c.next
			e, err := l.reader.entry(ctx, &c)
			if err != nil {
				return err
			}
			if e == nil {
				break
			}
			if !e.mark && lsn >= from {
				if err := f(lsn, e.payload); err != nil {
					return err
				}
			}
		}
		if c.next <= end && (i+1 == len(kept) || kept[i+1].first != c.next) {
			return l.missing(ctx, &c)
		}
	}
	return nil
}

// missing says why there is no entry at c.
func (l *Log) missing(ctx context.Context, c *cursor) error {
	l.mu.Lock()
	truncated := len(l.kept) > 0 && l.kept[0].serial > c.segment.serial
	l.mu.Unlock()
	if truncated {
		return fmt.Errorf("wal: record %d was truncated meanwhile", c.next)
	}
	b := l.reader.buf[:l.block]
	l.reader.n = 0
	if err := l.readAt(ctx, b, l.start(c.segment.serial)); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	if h, err := parseHeader(b); err == nil && (segment{h.serial, h.first, h.epoch}) != c.segment {
		return ErrTaken // by who has truncated it
	}
	return &DamagedError{c.segment.serial, l.start(c.segment.serial) + c.pos, c.next, "something else stands there"}
}
