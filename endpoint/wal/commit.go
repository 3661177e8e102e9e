package wal

import (
	"errors"
	"time"

	"oneshot/endpoint"
	"oneshot/transport/rdma"
)

// commit writes a batch so that it is durable, on as many connections as it takes. The bytes stay the same, so nothing is
// wrong with writing them twice.
func (l *Log) commit(b *batch) error {
	for tries := 0; ; tries++ {
		again, err := l.post(b)
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
	}
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
	if _, err := l.e.Post(l.ws[:]); err != nil {
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
