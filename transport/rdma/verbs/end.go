//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"time"

	"oneshot/transport/rdma"
)

// ending says who or what has ended a connection.
type ending uint8

const (
	byUs    ending = iota // this end, orderly: all posted work is done
	byPeer                // the peer, perhaps orderly
	byError               // an offence, the device
	byOwner               // an abort: the owner has its reason
)

var (
	errClosed = errors.New("verbs: closed by its owner")
	errCut    = errors.New("verbs: the peer has ended the connection while work was under way")
	errLinger = errors.New("verbs: the peer does not take what was posted before the connection was ended")
)

// Disconnect implements rdma.QueuePair.
func (q *queuePair) Disconnect() {
	q.mu.Lock()
	if q.state != connected {
		q.mu.Unlock()
		return
	}
	q.become(closing)
	tail := q.tail.Load()
	if tail != q.head.Load() && q.sq[int(tail-1)&(len(q.sq)-1)].silent {
		if err := q.mark(0); err != nil {
			q.mu.Unlock()
			q.end(byError, err)
			return
		}
	}
	q.draining.Store(true)
	q.mu.Unlock()
	// The last completion may have been taken before draining was set.
	if q.head.Load() == q.tail.Load() {
		q.end(byUs, nil)
		return
	}
	q.dev.work.Go(func() {
		if !after(q.dev.cfg.LingerTime, q.done) {
			q.end(byError, errLinger)
		}
	})
}

// after waits for d, or until c is closed. It reports whether c was closed.
func after(d time.Duration, c <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// Abort implements rdma.QueuePair. Devices have no way to tell the peer a reason.
func (q *queuePair) Abort(err error) {
	if err == nil {
		err = errors.New("verbs: aborted by its owner")
	}
	q.end(byOwner, err)
}

// endLater is end for callers who hold locks.
func (q *queuePair) endLater(how ending, err error) {
	if !q.ending.Swap(true) {
		q.dev.work.Go(func() { q.end(how, err) })
	}
}

// end starts the end of the connection; only the first call has an effect. It does not block. While the connection is being made, its
// identifier is in use, and made starts the end.
func (q *queuePair) end(how ending, err error) {
	finish := func() { q.finish(how, err) }
	q.mu.Lock()
	live := q.state == connected || q.state == closing
	if live {
		q.become(ended)
	}
	if q.making {
		if q.early == nil {
			q.early = finish
		}
		live = false
	}
	q.mu.Unlock()
	if live {
		q.dev.work.Go(finish)
	}
}

// finish ends the connection: it tells the peer, destroys the device's queue pair, flushes what is left,
// and calls Disconnected.
func (q *queuePair) finish(how ending, err error) {
	c := q.conn
	switch {
	case how == byUs:
		C.os_cm_disconnect(c.id)
		after(q.dev.cfg.LingerTime, c.gone)
	case how == byPeer && !q.dev.iwarp && C.os_qp_state(q.qp) == C.IBV_QPS_ERR:
		err = errQueuePair // not for iWARP, whose queue pair is in that state after every end of the stream
	}
	C.os_qp_error(q.qp)
	if how != byUs {
		C.os_cm_disconnect(c.id) // tells the peer, or answers its disconnection
	}
	q.awaitLast()
	q.retire()
	err = q.reason(how, err)
	q.dev.log.Debug("RDMA connection has ended", "peer", q.remote.String(), "reason", err)
	if q.cfg.Disconnected != nil {
		q.cfg.Disconnected(err)
	}
	close(q.done)
	after(q.dev.cfg.LingerTime, c.gone)
	c.destroy()
}

// reason returns why the connection has ended, when all work has completed; first is what the call of end has said that
// came first. The completion that says what was wrong, the device's event, the end of the peer and flushed work all
// report one fault, and come in any order. The completion says most.
func (q *queuePair) reason(how ending, first error) error {
	lost, failure := q.dev.lostFor(), q.failure.Load()
	switch {
	case how != byOwner && lost == nil && failure != nil:
		return *failure
	case first != nil:
		return first
	case q.cut.Load():
		return errCut
	}
	return lost // connections of a lost device end one after the other: the end of the peer may come before the reason
}

// awaitLast waits until the device has completed the last receive that the queue pair, which is in the error state, has
// taken from a shared queue. When a queue pair is destroyed, the libraries of some cards (mlx4, mlx5) remove its
// completions from the completion queue and put their receives into a free list of their own, so the owner would lose
// these receives. Therefore the completions have to be taken before, and no more may come after that:
// IBV_EVENT_QP_LAST_WQE_REACHED says so (man page of ibv_get_async_event). The libraries of rxe and siw do not remove
// completions, and rxe sends no event (Linux 6.1).
func (q *queuePair) awaitLast() {
	if q.last == nil || !q.dev.lastWQE || q.dev.lostFor() != nil {
		return
	}
	if !after(q.dev.cfg.LingerTime, q.last) {
		q.dev.log.Warn("the RDMA device has not said that a connection has taken its last receive; shared receives may be lost",
			"peer", q.remote.String())
	}
}

// retire destroys the device's queue pair, and completes as flushed what it has not completed.
func (q *queuePair) retire() {
	q.dev.numbers.Lock()
	defer q.dev.numbers.Unlock()
	own := q.recv.srq == nil
	if own {
		q.recv.stop()
	}
	q.unbind()
	q.sendCQ.drain() // the library may throw away what is in the completion queues
	if q.sendCQ != q.recvCQ {
		q.recvCQ.drain()
	}
	if err := errno(C.os_destroy_qp(q.qp)); err != nil {
		// Neither of the two known cases passes, so there is nothing to try again. A card was removed: EIO; the kernel has destroyed its queue pairs, and
		// libibverbs keeps the memory of each, unless RDMAV_ALLOW_DISASSOC_DESTROY is set for the process (verbs_is_destroy_err of rdma-core). Or it
		// is in a multicast group (ibv_destroy_qp(3)), in which none is here.
		q.dev.log.Error("a queue pair cannot be destroyed: its memory stays until the process ends, and, unless the RDMA device is gone, what it uses there until the device is closed",
			"number", uint32(q.number), "reason", err)
	}
	receives := func() {
		if own {
			q.recv.flush(q.recvCQ)
		}
	}
	q.sendCQ.flush(q, func() {
		q.flushSends()
		if q.sendCQ == q.recvCQ {
			receives()
		}
	})
	if q.sendCQ != q.recvCQ {
		q.recvCQ.flush(q, receives)
	}
}

func (q *queuePair) flushSends() {
	tail := q.tail.Load()
	for pos := q.head.Load(); pos != tail; pos++ {
		e := &q.sq[int(pos)&(len(q.sq)-1)]
		if e.done {
			continue
		}
		e.done, e.status = true, rdma.StatusFlushed
		if e.told { // the device does not report others if they were done
			q.cut.Store(true)
		}
	}
	q.advance(tail, q.sendCQ)
}

// Close implements rdma.QueuePair.
func (q *queuePair) Close() error {
	q.mu.Lock()
	switch q.state {
	case connecting:
		q.mu.Unlock()
		return errInUse
	case fresh, unconnected:
		q.become(ended)
		q.mu.Unlock()
		q.retire()
		close(q.done)
	default:
		q.mu.Unlock()
		q.end(byOwner, errClosed)
	}
	<-q.done
	q.closed.Do(q.free)
	return nil
}

// free gives back the resources of the queue pair.
func (q *queuePair) free() {
	q.sendCQ.release()
	if q.recvCQ != q.sendCQ {
		q.recvCQ.release()
	}
	if q.recv.srq != nil {
		q.recv.use(-1)
	}
	d := q.dev
	d.mu.Lock()
	delete(d.qps, q)
	q.n.addTo(&d.past)
	d.mu.Unlock()
	q.bounce.free()
}
