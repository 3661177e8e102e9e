package remote

import (
	"context"
	"errors"
	"time"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// comeBack begins to make another connection in place of l. The lock is held.
func (q *queuePair) comeBack(l *link) {
	q.link = nil
	switch {
	case q.over:
		q.lostAll(l)
		return
	case q.dev.cfg.Patience < 0:
		q.stop(errors.Join(l.why, rdma.ErrDisconnected))
		q.lostAll(l)
		return
	}
	q.redials.Go(func() {
		l.close() // the service reaches no memory any more
		q.redial(l.why)
	})
}

// lostAll ends what is outstanding, for there will be no other connection. The lock is held.
func (q *queuePair) lostAll(l *link) {
	q.link = l // closed by end
	l.attached = false
	q.state = ending
	q.cancel()
	q.dev.work.Go(q.end)
}

var (
	errChanged = errors.New("remote: the partition is another one than it was, or other rights are granted")
	errLong    = errors.New("remote: the connection is lost, and does not come back")
)

// redial makes connections until there is one, or it makes no sense any more.
func (q *queuePair) redial(why error) {
	q.dev.log.Warn("connection to a partition lost", "service", q.addr, "partition", q.name, "reason", why)
	ctx, cancel := context.WithTimeout(q.ctx, q.dev.cfg.Patience)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		try, done := context.WithTimeout(ctx, q.dev.cfg.Timeout)
		l, m, err := q.dial(try)
		done()
		if err == nil {
			if err = q.resume(l, m); err == nil {
				return
			}
		}
		if l != nil {
			l.close()
		}
		if e, ok := errors.AsType[*Error](err); ok && e.Status != wire.Busy || isFinal(err) {
			q.give(err)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			q.give(errors.Join(errLong, err))
			return
		}
	}
}

// isFinal reports whether another try will end as this one has.
func isFinal(err error) bool {
	if _, lost := errors.AsType[*LostError](err); lost {
		return true
	}
	for _, e := range []error{rdma.ErrNoEndpoint, errChanged, errImpost, errOneShot, errBad} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// give ends the queue pair: there is no connection any more.
func (q *queuePair) give(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == connected {
		q.stop(err)
		q.finish()
	}
}

// resume goes on with what is outstanding on another connection.
func (q *queuePair) resume(l *link, m *wire.AttachedMessage) error {
	q.mu.Lock()
	defer q.unlock()
	i := &q.info
	switch {
	case q.state != connected || l.over():
		return rdma.ErrDisconnected
	case m.Name != i.Name && i.UUID == "" || uuidOf(m.UUID) != i.UUID || int64(m.Size) < i.Size || int(m.Unit) != i.Unit ||
		rdma.Rights(m.Rights)&i.Rights != i.Rights || int64(m.MaxLength) < q.most || int64(m.Inline) < q.inline || m.Credits < uint32(q.out):
		return errChanged
	}
	if m.Sequence < q.highest || rdma.Generation(m.Sequence) != q.generation {
		if q.highest > q.durable || q.atomics > q.settled {
			return &LostError{From: q.durable + 1}
		}
		q.generation = rdma.Generation(m.Sequence)
		q.highest, q.durable = m.Durable, m.Durable
	}
	q.use(l, m)
	q.repeat()
	return nil
}

// repeat sends what has had no response, in the order of posting. It is not known of atomic operations whether
// they were done: these are not repeated.
func (q *queuePair) repeat() {
	clear(q.sends)
	clear(q.senders)
	q.sends, q.senders = q.sends[:0], q.senders[:0]
	for w := q.first; w != nil; {
		next := w.next
		atomic := w.opcode == rdma.OpCompareSwap || w.opcode == rdma.OpFetchAdd
		for _, p := range q.inOrder(w) {
			switch {
			case p.gate || !atomic && !(w.fence && w.gate == noGate && *q.isBroken(w.chain - 1)):
				q.resend(p)
			case atomic:
				w.status, w.err = rdma.StatusTransport, errUnknown
				q.answered(p)
			default: // it failed before the connection was lost, and the service does not know that any more
				w.status, w.gate = rdma.StatusFenced, gateDoomed
				p.gate = true
				q.request(p, q.gateOp(), 0, 0)
			}
		}
		w = next
	}
}

var errUnknown = errors.New("remote: the connection was lost: it is not known whether the operation was done")

// inOrder returns the requests of w that have no response, by offset.
func (q *queuePair) inOrder(w *work) (ps []*piece) {
	for _, p := range q.pieces {
		if p.w != w {
			continue
		}
		i := len(ps)
		for i > 0 && ps[i-1].off > p.off {
			i--
		}
		ps = append(ps[:i], append([]*piece{p}, ps[i:]...)...)
	}
	return ps
}
