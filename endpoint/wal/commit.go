package wal

import (
	"bytes"
	"context"
	"errors"
	"time"

	"oneshot/endpoint"
	"oneshot/transport/rdma"
)

// commit writes a batch so that it is durable, on as many connections as it takes. The bytes stay the same, so nothing is
// wrong with writing them twice, if nobody else has written there since the connection was lost. Whoever has made another connection,
// the log writes on it when it has looked.
func (l *Log) commit(b *batch) error {
	looked, again := l.e.Connection() == l.on, false
	for tries := 0; ; tries++ {
		var err error
		if !looked {
			l.on = l.e.Connection()
			if err = l.isFree(b); errors.Is(err, ErrTaken) {
				return err
			}
			looked, again = err == nil, true
		}
		if looked {
			again, err = l.post(b)
		}
		if err == nil || !again || tries == maxTries {
			return err
		}
		if tries > 0 {
			if err := l.pause(tries); err != nil {
				return err
			}
		}
		if err := l.e.Reconnect(l.ctx); err != nil {
			return err
		}
		looked = false
	}
}

// readAt reads for Replay. If the service does not go on with what was before, as after its restart, another connection does: reading
// does no harm, and commit looks before it writes.
func (l *Log) readAt(ctx context.Context, b []byte, off int64) error {
	err := l.e.ReadAt(ctx, b, off)
	if !errors.Is(err, rdma.ErrReplaced) {
		return err
	}
	if err = l.e.ReadAt(ctx, b, off); errors.Is(err, rdma.ErrReplaced) { // commit has not made one meanwhile
		if err = l.e.Reconnect(ctx); err == nil {
			err = l.e.ReadAt(ctx, b, off)
		}
	}
	return err
}

// isFree returns ErrTaken if somebody else has written to the log where a batch belongs, or behind it. Parts of the batch may stand
// there. Nobody else has anything under way (endpoint.Options.Sole).
func (l *Log) isFree(b *batch) error {
	buf, err := l.e.Alloc(maxEntry)
	if err != nil {
		return err
	}
	r, c := reader{l: l, buf: buf}, b.at
	if b.at.pos > 0 {
		err = l.isEnd(&r, &c, b.buf[:b.n])
	} else {
		err = l.isNext(&r, b)
	}
	return errors.Join(err, l.e.Free(buf))
}

// isNext is isFree for a header.
func (l *Log) isNext(r *reader, b *batch) error {
	serial := b.at.segment.serial
	there, err := l.headerAt(r, serial)
	if err != nil {
		return err
	}
	if there == nil || there.serial < serial {
		if serial == 1 {
			return nil
		}
		c := b.behind
		return l.isEnd(r, &c, nil)
	}
	if mine, _ := parseHeader(b.buf); *there != mine {
		return ErrTaken
	}
	return l.isEnd(r, &cursor{segment{serial, there.first, there.epoch}, l.block, there.epoch, there.first}, nil)
}

// isEnd returns ErrTaken if other entries than mine stand at c, or behind these, or in another segment behind that of c, or if that is
// not there any more: another log may be.
func (l *Log) isEnd(r *reader, c *cursor, mine []byte) error {
	serial := c.segment.serial
	own, err := l.headerAt(r, serial)
	if err != nil {
		return err
	}
	next, err := l.headerAt(r, serial+1)
	if err != nil {
		return err
	}
	if own == nil || (segment{own.serial, own.first, own.epoch}) != c.segment || next != nil && next.serial > serial {
		return ErrTaken
	}
	for begin := c.pos; ; {
		at := *c
		e, err := r.entry(l.ctx, c)
		if err != nil || e == nil {
			return err
		}
		from, to := at.pos-begin, c.pos-begin
		if to > int64(len(mine)) {
			return ErrTaken
		}
		there, err := r.at(l.ctx, &at, to-from)
		if err != nil {
			return err
		}
		if !bytes.Equal(there, mine[from:to]) {
			return ErrTaken
		}
	}
}

// headerAt returns the header at the place of a segment; nil: there is none. One of another log, whose segments have other sizes, was
// written after this log was opened (ErrTaken).
func (l *Log) headerAt(r *reader, serial uint64) (*header, error) {
	r.n = 0
	b := r.buf[:l.block]
	if err := l.e.ReadAt(l.ctx, b, l.start(serial)); err != nil {
		return nil, err
	}
	h, err := parseHeader(b)
	switch {
	case err != nil:
		return nil, nil //nolint:nilerr,nilnil // anything may stand there
	case int64(h.block) != l.block, int64(h.segment) != l.segment, uint64(h.segments) != l.segments, h.place() != (serial-1)%l.segments:
		return nil, ErrTaken
	}
	return &h, nil
}

func (l *Log) pause(tries int) error {
	select {
	case <-time.After(min(firstPause<<min(tries, 10), lastPause)):
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

// post writes a batch once, in one durable Write: a flush behind a Write would be another operation, and over a wire
// another answer. again says that an error is one of the connection.
func (l *Log) post(b *batch) (again bool, err error) {
	if l.sgl[0], err = l.e.SGE(b.buf[:b.n]); err != nil {
		return false, err
	}
	l.ws[0] = rdma.Work{Op: rdma.OpWrite, Flags: rdma.Signaled | rdma.Durable, SGL: l.sgl[:], RemoteOffset: uint64(b.off)}
	if _, err := l.e.PostOn(l.on, l.ws[:]); err != nil {
		return errors.Is(err, rdma.ErrDisconnected), err
	}
	for l.e.Poll(l.cs[:]) == 0 {
		if err := l.e.Wait(l.ctx); err != nil {
			return false, err
		}
	}
	switch c := &l.cs[0]; c.Status {
	case rdma.StatusOK:
		return false, l.sameStore(c.Seq)
	case rdma.StatusFlushed, rdma.StatusTransport, rdma.StatusRemoteAccess:
		again = true
		fallthrough
	default:
		return again, &endpoint.Error{Op: c.Op, Off: b.off, N: int64(b.n), Status: c.Status, Err: c.Err}
	}
}

// sameStore looks whether the store that has taken a batch, with that number, is the one that has the last one, if it
// forgets.
func (l *Log) sameStore(seq uint64) error {
	g := rdma.Generation(seq)
	if l.gen != 0 && g != l.gen && l.e.Info().Durability == rdma.DurabilityNone {
		return errors.New("the store keeps nothing, and was opened again: the log is gone")
	}
	l.gen = g
	return nil
}
