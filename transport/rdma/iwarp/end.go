package iwarp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

var (
	errNotIdle = errors.New("iwarp: queue pair is, or was, connected already")
	errAborted = errors.New("iwarp: connection aborted")
	errLinger  = errors.New("iwarp: the peer does not end the connection")
	errCut     = errors.New("iwarp: the connection ends within a message")
)

// terminator is an error that knows layer, error type and code of the Terminate message that
// answers it, such as stag.Error.
type terminator interface {
	error
	Terminate() (layer, etype, code uint8)
}

// causeOf returns the cause that a Terminate states for err.
func causeOf(err error) ddp.Cause {
	if e, ok := errors.AsType[*ddp.Error](err); ok {
		return e.Cause
	}
	if e, ok := errors.AsType[terminator](err); ok {
		return ddp.MakeCause(e.Terminate())
	}
	return ddp.NoTerminate
}

// offence is called by the reader, in its batch, with an error that ends the stream. It returns nil
// if the rest of the stream has to be drained.
func (q *queuePair) offence(err error) error {
	q.mu.Lock()
	defer q.unlock()
	x := &q.rx
	switch {
	case x.drain: // the peer's FIN, or LingerTime is over
		return err
	case errors.Is(err, io.EOF):
		if x.partial || x.sending || x.tagged || x.pending || x.r != x.w {
			return errCut
		}
		return err
	}
	if _, ok := errors.AsType[*PeerError](err); ok {
		// RFC 5040 §5.4: the peer sends nothing after its Terminate, so there is nothing to wait for.
		q.blame(err)
		q.stop(err, nil)
		return err
	}
	c := causeOf(err)
	if c == ddp.NoTerminate {
		return err
	}
	var read *ddp.RDMARead
	if e, ok := errors.AsType[*readError](err); ok {
		read = &e.request
	}
	t := ddp.TerminateFor(c, x.seg, read)
	q.dev.log.LogAttrs(context.Background(), slog.LevelWarn, "iwarp: peer broke the protocol",
		slog.String("peer", q.tc.RemoteAddr().String()), slog.Any("reason", err))
	q.stop(err, &t)
	q.startDrain()
	return nil
}

// stop begins the end of the connection: from now on at most a Terminate is sent. The lock is
// held.
func (q *queuePair) stop(err error, t *ddp.TerminateMessage) {
	silent := q.state == left
	switch {
	case silent:
		q.become(told)
	case q.is().sends:
		q.become(terminating)
	default:
		return
	}
	if q.err == nil {
		q.err = err
	}
	if t != nil && !silent {
		q.opened = true // the peer has sent an FPDU, so it accepts FPDUs
		q.term = ddp.AppendFPDUTrailer(ddp.AppendTerminate(nil, t), 0)
	}
	q.linger()
}

// linger bounds how long the end of the connection takes. The lock is held.
func (q *queuePair) linger() {
	if q.timer == nil {
		q.timer = time.AfterFunc(q.dev.cfg.LingerTime, func() {
			q.mu.Lock()
			q.broken(errLinger)
			q.unlock()
		})
	}
}

// broken ends the use of the socket. The reader notices. The lock is held.
func (q *queuePair) broken(err error) {
	if !q.is().lives {
		return
	}
	q.useless(err)
	if q.err == nil {
		q.err = err
	}
	_ = q.tc.SetDeadline(time.Unix(1, 0))
	q.wakeReader()
}

// localError ends the connection because of an element of the send queue.
func (q *queuePair) localError(w *wqe, s rdma.Status, err error) {
	w.status, w.err = s, err
	q.dev.log.LogAttrs(context.Background(), slog.LevelError, "iwarp: work request fails",
		slog.String("peer", q.tc.RemoteAddr().String()), slog.String("op", w.op.String()), slog.Any("reason", err))
	q.broken(err)
}

// blame sets the status of the Read that the peer has refused, if it has refused one: the Read that its
// Terminate quotes, or else the oldest one.
func (q *queuePair) blame(err error) {
	e, _ := errors.AsType[*PeerError](err)
	if e.Cause.Layer() != 0 || e.Cause == ddp.LocalCatastrophic || len(q.sq.reads) == 0 {
		return
	}
	w := q.sq.At(q.sq.reads[0])
	for _, i := range q.sq.reads {
		if e.read != nil && q.asks(q.sq.At(i), e.read) {
			w = q.sq.At(i)
			break
		}
	}
	w.err = err
	if w.status = rdma.StatusRemoteOperation; e.Cause.Etype() == 1 {
		w.status = rdma.StatusRemoteAccess
	}
}

// asks reports whether r is the Read Request of w, or the rest of it after a part of the Response
// (RFC 5040 §4.8).
func (q *queuePair) asks(w *wqe, r *ddp.RDMARead) bool {
	own := q.readRequest(w)
	done := r.SrcTO - own.SrcTO
	return done <= uint64(own.Size) && *r == own.Advance(uint32(done))
}

// PeerEnded implements rdma.PeerEnder.
func (q *queuePair) PeerEnded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.is().lives {
		return q.state > connected
	}
	fds := []unix.PollFd{{Fd: int32(q.sock.FD), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Disconnect implements rdma.QueuePair.
func (q *queuePair) Disconnect() {
	q.mu.Lock()
	defer q.unlock()
	if q.state != connected {
		return
	}
	q.become(leaving)
	q.linger()
	q.send()
}

// Abort implements rdma.QueuePair.
func (q *queuePair) Abort(err error) {
	q.mu.Lock()
	defer q.unlock()
	c := causeOf(err)
	if err == nil {
		err = errAborted
	}
	switch {
	case !q.is().lives:
	case q.is().drains:
		// The Terminate is on its way. Responses of before may be, too, and a peer that takes none keeps their memory.
		if q.answers.Len() > 0 {
			q.broken(err)
		}
	case c == ddp.NoTerminate || !q.opened:
		q.broken(err)
	default:
		q.stop(err, &ddp.TerminateMessage{Cause: c})
		q.wakeReader()
		q.send()
	}
}

// Close implements rdma.QueuePair.
func (q *queuePair) Close() error {
	q.mu.Lock()
	switch q.state {
	case idle, connecting:
		q.become(ended)
		q.stream.End()
		q.mu.Unlock()
		close(q.done)
		q.flushReceives(nil)
		q.notify()
	default:
		q.mu.Unlock()
		q.Abort(nil)
	}
	<-q.done
	return q.release()
}

// release gives up the completion queues, receive queue and domain that the queue pair uses.
func (q *queuePair) release() error {
	q.freed.Do(func() { // whoever closes it as well returns behind this
		q.dev.qps.Remove(&q.n)
		q.recv.Use(-1)
		q.sendCQ.Use(-1)
		q.recvCQ.Use(-1)
	})
	return nil
}

// finish is the end of the connection, and of the reader.
func (q *queuePair) finish(err error) {
	err = q.verdict(err)
	q.mu.Lock()
	if q.is().lives {
		q.useless(err)
	}
	q.batching = false
	for q.sending {
		q.settled.Wait()
	}
	waits := q.sock.Awaits()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()
	if waits {
		_ = q.tc.SetDeadline(time.Unix(1, 0)) // wakes the writer, if it waits for room
		q.sock.Close()
	}

	q.mu.Lock()
	q.releaseAll()
	q.flushSends(err)
	reset := q.state == cut
	q.become(ended)
	q.unlock()
	q.flushReceives(err)
	if reset {
		if tc, ok := q.tc.(*net.TCPConn); ok {
			_ = tc.SetLinger(0) // a reset tells the peer that this is no orderly end
		}
	}
	_ = q.tc.Close()
	q.dev.log.LogAttrs(context.Background(), slog.LevelDebug, "iwarp: connection has ended",
		slog.String("peer", q.tc.RemoteAddr().String()), slog.Any("reason", err))
	q.fire()
	if q.cfg.Disconnected != nil {
		q.cfg.Disconnected(err)
	}
	close(q.done)
}

// verdict returns why the connection has ended; nil: orderly.
func (q *queuePair) verdict(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.err != nil:
		return q.err
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// releaseAll gives up all memory of the connection. Nobody sends any more.
func (q *queuePair) releaseAll() {
	x := &q.rx
	x.drain = true
	q.dropRx()
	q.stream.End()
	for a := &q.answers; a.Head != a.Tail; a.Head++ {
		r := &a.At(a.Head).ref
		tag := r.STag()
		if r.Release() {
			q.lastReference(tag)
		}
	}
	q.stream.TakeOwners(func(s stag.STag, owner any) {
		switch o := owner.(type) {
		case *bound:
			q.unbind(s, o)
		case *advert:
			o.closing = false
			q.dropAdvert(o)
		}
	})
	if err := q.stream.Free(); err != nil {
		q.dev.log.Error("iwarp: STags of a connection that has ended are still referenced", slog.Any("reason", err))
	}
	q.tx.giveBack()
	if x.in != nil {
		x.r = x.w
		x.dropIn()
	}
}

// flushSends completes everything in the send queue.
func (q *queuePair) flushSends(err error) {
	s := &q.sq
	q.sendCQ.Lock()
	for ; s.Head != s.Tail; s.Head++ {
		w := s.At(s.Head)
		if w.status == rdma.StatusOK {
			w.status, w.err = rdma.StatusFlushed, err
		}
		q.complete(w)
	}
	q.sendCQ.Unlock()
	s.sent, s.cur, s.reads = s.Tail, s.Tail, nil
}

// flushReceives completes the receives that belong to the queue pair, and the receive of the message
// that is under way.
func (q *queuePair) flushReceives(err error) {
	if q.rx.taken {
		q.closeReceive(rdma.StatusFlushed, err)
	}
	if q.shared {
		q.recv.leave(q)
		return
	}
	q.recv.Flush(q.recvCQ, q, err)
}

// sendTerminate tells the peer of an error during startup, when there is no reader yet.
func sendTerminate(w io.Writer, c ddp.Cause) {
	if c == ddp.NoTerminate {
		return
	}
	t := ddp.TerminateMessage{Cause: c}
	_, _ = w.Write(ddp.AppendFPDUTrailer(ddp.AppendTerminate(nil, &t), 0))
}
