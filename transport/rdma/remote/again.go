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
	if !q.over {
		q.refusedDirect(l)
	}
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
	q.become(ending)
	q.cancel()
	q.dev.work.Go(q.end)
}

var (
	errChanged = errors.New("remote: the partition is another one or smaller than before, or a right is no longer granted")
	errLess    = errors.New("remote: the service takes only shorter requests than before, and a longer one is to be repeated")
	errLong    = errors.New("remote: the connection is lost, and could not be restored in time")
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
	for _, e := range []error{rdma.ErrNoEndpoint, rdma.ErrReplaced, errChanged, errLess, errImpost, errOneShot, errBad, rdma.ErrDeviceLost} {
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
		rdma.Rights(m.Rights)&i.Rights != i.Rights || i.Direct && m.STag == 0:
		return errChanged
	case q.longest() > int64(m.MaxLength):
		return errLess
	case q.isReplaced(m):
		return errReplaced
	}
	if m.Sequence < q.highest || rdma.Generation(m.Sequence) != q.generation {
		if q.highest > q.durable || q.unnumbered > q.settled {
			return &LostError{From: q.durable + 1}
		}
		q.generation = rdma.Generation(m.Sequence)
		q.highest, q.durable = m.Durable, m.Durable
	}
	q.most = min(q.most, int64(m.MaxLength))
	q.use(l, m)
	q.repeat(m.Known)
	return nil
}

// longest is how many octets the longest request without a response has: it is repeated as it is.
func (q *queuePair) longest() (n int64) {
	for _, p := range q.pieces {
		if p.w != nil && p.w.opcode != rdma.OpDiscard {
			n = max(n, p.n)
		}
	}
	return n
}

// repeat sends what has had no response, in the order of posting. If the session is known to the service, what changes
// something is done once: if it was done before, the service answers with the result that it had then. With these
// exceptions, what had to come after a work that is repeated was not complete, for the service answers in the order in
// which works were complete:
//
//   - If the session is not known, it is not known of an atomic operation whether it was done, so it is not repeated. Nor is what
//     changes octets, if others may have been told that it is done (isToldOf): it would come on top of what they have written since. Nor
//     is a fence that may have been executed behind one of these, nor what has a fence behind that (O6).
//   - A Read may find what was changed by a work that had to come behind it (overtaken).
//
// These end with StatusTransport. If one of them had to wait for the Reads before it, the first work behind it that does not end waits for them.
func (q *queuePair) repeat(known bool) {
	clear(q.sends)
	clear(q.senders)
	q.sends, q.senders = q.sends[:0], q.senders[:0]
	for _, p := range q.pieces {
		if p.ack { // those behind which it was are written again
			p.ack = false
			q.freeTag(p)
		}
	}
	unknown := make(map[uint32]bool) // chains in which there is a work of which it is not known whether it was done
	var ps []*piece                  // collected before the list changes: a work that ends here takes those with it that have waited for it
	for w := q.first; w != nil; w = w.next {
		ps = append(ps, q.inOrder(w)...)
	}
	behind := false // a work was given up that had waited for Reads
	for _, p := range ps {
		w := p.w
		w.behind, behind = w.behind || behind, false
		seen := w.gate == gatePassed || w.gate == gateDoomed // its fence
		switch {
		case p.direct: // there was no request before it, and a fence behind it has waited
			q.resendDirect(p)
		case w.fence && !seen && unknown[w.chain-1]:
			unknown[w.chain], *q.isBroken(w.chain) = true, true
			q.doom(p, rdma.StatusTransport, errUnknown)
		case w.fence && !seen && *q.isBroken(w.chain - 1): // which the service knew, but does not any more
			switch {
			case p.forgotten || p.again && (!known || w.isAtomic()):
				unknown[w.chain], *q.isBroken(w.chain) = true, true
				q.doom(p, rdma.StatusTransport, errUnknown)
			default:
				q.doom(p, rdma.StatusFenced, nil)
			}
		case p.gate && p.again && !known: // doomed on a connection before this one
			unknown[w.chain], *q.isBroken(w.chain) = true, true
			q.doom(p, rdma.StatusTransport, errUnknown)
		case p.gate:
			q.resend(p)
		case known && w.changes():
			p.again = true
			q.resend(p)
		case w.isAtomic() || w.changes() && q.isToldOf(w):
			unknown[w.chain] = true
			behind = q.waitsForReads(w)
			w.status, w.err = rdma.StatusTransport, errUnknown
			q.answered(p)
		case w.opcode == rdma.OpRead && q.overtaken(w):
			if w.harmless = true; w.fence && !seen {
				q.doom(p, rdma.StatusTransport, errOvertaken)
				continue
			}
			behind = q.waitsForReads(w)
			w.status, w.err = rdma.StatusTransport, errOvertaken
			q.answered(p)
		default:
			if !p.forgotten && p.posted && w.changes() {
				p.forgotten = true
				q.forgotten++
			}
			q.resend(p)
		}
	}
	switch {
	case !behind:
	case q.unsent != nil:
		q.unsent.behind = true
	default:
		q.behind = true // the next one that is posted
	}
}

var (
	errUnknown   = errors.New("remote: the connection was lost: it is not known whether the operation was done")
	errOvertaken = errors.New("remote: the connection was lost, and what was to be read may have been overwritten since")
)

// doom has the service see the fence of a work, but not the work. If that may have been done on a connection before the last one, the service
// is asked for its result: a Read before it that went well there may have failed on the last one.
func (q *queuePair) doom(p *piece, s rdma.Status, err error) {
	w, op := p.w, q.gateOp()
	p.gate = true
	if p.again = p.again && s == rdma.StatusFenced; p.again {
		op, s, err = opOf(w.opcode), rdma.StatusTransport, errUnknown // should there be no answer
	}
	w.status, w.err, w.gate, w.sent = s, err, gateDoomed, w.n
	q.request(p, op, 0, 0)
}

// changes reports whether a work changes octets.
func (w *work) changes() bool { return w.opcode != rdma.OpRead && w.opcode != rdma.OpFlush }

func (w *work) isAtomic() bool {
	return w.opcode == rdma.OpCompareSwap || w.opcode == rdma.OpFetchAdd
}

// overtaken reports whether a work that had to come behind w (O1, O5) may have changed what w reads. On a strict queue pair only a Write need not,
// unless there is an atomic operation between the two.
func (q *queuePair) overtaken(w *work) bool {
	behind := false
	for v := w.next; v != nil; v = v.next {
		behind = behind || v.behind || v.fence || v.opcode == rdma.OpFlush || v.isAtomic() && q.isStrict(v)
		follows := behind || v.opcode == rdma.OpDiscard && q.isStrict(v) && q.isStrict(w)
		if follows && v.changes() && v.began && w.off < v.off+v.n && v.off < w.off+w.n {
			return true
		}
	}
	return false
}

// isToldOf reports whether others may have seen that w is done: a work behind it that starts when w is complete may have changed what they
// look at. It may have released a lock. One with a gate has not: its requests wait for a response that comes behind that of w.
func (q *queuePair) isToldOf(w *work) bool {
	fenced := false
	for v := w.next; v != nil && v.began; v = v.next {
		fenced = fenced || v.fence || v.opcode == rdma.OpFlush && q.order&rdma.FreeStart == 0 // O8
		if v.gate == noGate && (fenced && v.changes() || v.isAtomic() && q.isStrict(v)) {
			return true
		}
	}
	return false
}

// inOrder returns the requests of w that have no response, by offset.
func (q *queuePair) inOrder(w *work) (ps []*piece) {
	for i := range len(q.pieces) + len(q.directs) {
		var p *piece
		if i < len(q.pieces) {
			p = q.pieces[i]
		} else {
			p = q.directs[i-len(q.pieces)]
		}
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
