package wal

import (
	"errors"
	"fmt"
	"time"

	"oneshot/endpoint"
	"oneshot/transport/rdma"
)

// commit makes a batch durable: it writes and flushes it, on as many connections as it takes. The bytes stay the
// same, so nothing is wrong with writing them twice.
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

// post writes and flushes a batch once. again says that an error is one of the connection.
func (l *Log) post(b *batch) (again bool, err error) {
	if l.sgl[0], err = l.e.SGE(b.buf[:b.n]); err != nil {
		return false, err
	}
	l.ws = [works]rdma.Work{
		{ID: 0, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: l.sgl[:], RemoteOffset: uint64(b.off)},
		{ID: 1, Op: rdma.OpFlush, Flags: rdma.Signaled | rdma.Fence},
	}
	n, err := l.e.Post(l.ws[:])
	again = errors.Is(err, rdma.ErrDisconnected)
	for got := 0; got < n; {
		if err := l.e.Wait(l.ctx); err != nil {
			return false, err
		}
		got += l.e.Poll(l.cs[got:n])
	}
	if err != nil {
		return again, err
	}
	return l.judge(b)
}

// judge looks at the two completions of a batch.
func (l *Log) judge(b *batch) (again bool, err error) {
	var c [works]rdma.Completion
	for _, x := range l.cs {
		c[x.ID] = x
	}
	for i := range c {
		switch c[i].Status {
		case rdma.StatusOK:
			continue
		case rdma.StatusFlushed, rdma.StatusTransport, rdma.StatusRemoteAccess:
			again = true
		case rdma.StatusFenced:
			if i == 0 {
				continue
			}
		}
		return again, &endpoint.Error{Op: c[i].Op, Off: b.off, N: int64(b.n), Status: c[i].Status, Err: c[i].Err}
	}
	return l.sameStore(c[0].Seq, c[1].Durable)
}

// sameStore looks whether the store that has taken a write is the one that was flushed, and that of the last
// batch, if the store forgets.
func (l *Log) sameStore(written, flushed uint64) (again bool, err error) {
	g := rdma.Generation(flushed)
	switch {
	case written != 0 && flushed != 0 && rdma.Generation(written) != g:
		return true, &endpoint.RestartedError{}
	case l.gen != 0 && g != 0 && g != l.gen && l.e.Info().Durability == rdma.DurabilityNone:
		return false, fmt.Errorf("the store keeps nothing, and was opened again: the log is gone")
	case g != 0:
		l.gen = g
	}
	return false, nil
}
