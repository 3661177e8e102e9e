//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
// #cgo noescape os_post_send
// #cgo nocallback os_post_send
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
)

// Post implements rdma.QueuePair.
func (q *queuePair) Post(ws []rdma.Work) (n int, err error) {
	q.mu.Lock()
	for n < len(ws) && err == nil {
		var k int
		k, err = q.postBatch(ws, n)
		n += k
	}
	q.mu.Unlock()
	q.n.posts.Add(1)
	q.n.works.Add(uint64(n))
	runtime.KeepAlive(ws)
	return n, err
}

// postBatch posts as many of ws[from:] as one doorbell takes, and returns how many were posted.
func (q *queuePair) postBatch(ws []rdma.Work, from int) (n int, err error) {
	sges := q.sges[:0]
	for i := from; i < len(ws) && n < batch && len(sges)+q.maxSGE <= batchSGE; i++ {
		alone, e := q.before(&ws[i], n)
		if err = e; err != nil || alone && n > 0 {
			break
		}
		before := len(sges)
		var what string
		if sges, what, err = q.prepare(&q.works[n], &ws[i], sges); what != "" {
			err = &rdma.WorkError{Index: i, Op: ws[i].Op, What: what}
		}
		if err != nil {
			break
		}
		q.works[n].sges = C.uint32_t(len(sges) - before)
		n++
	}
	if n == 0 {
		return 0, err
	}
	done, postErr := q.doorbell(n)
	for i := range done {
		q.count(&ws[from+i])
	}
	q.refused(ws[from+done : from+n])
	if postErr != nil {
		return done, postErr
	}
	return n, err
}

// refused undoes what prepare has noted of windows for work requests that the device has not taken.
func (q *queuePair) refused(ws []rdma.Work) {
	for i := range ws {
		switch p := &ws[i]; p.Op {
		case rdma.OpBind:
			p.Window.(*window).going = true // it may be bound
		case rdma.OpLocalInvalidate:
			q.windows[p.STag].going = false
		}
	}
}

// doorbell posts the first n of q.works and returns how many the device has taken. The libraries of siw and rxe put
// requests into a queue that the kernel reads, and then call it. If that call fails, all are taken: the kernel completes
// them, or retire does. The call fails when the queue pair has left the state in which it sends, so the connection
// ends.
func (q *queuePair) doorbell(n int) (int, error) {
	var done C.int
	rc := C.os_post_send(q.qp, &q.works[0], C.int(n), &q.sges[0], &done)
	q.n.doorbells.Add(1)
	if rc == 0 {
		return n, nil
	}
	err := errno(rc)
	if int(done) == n {
		if errors.Is(err, syscall.ENOTCONN) {
			q.endLater(byPeer, nil)
		} else {
			q.endLater(byError, fmt.Errorf("verbs: the device was not told of work requests: %w", err))
		}
		return n, nil
	}
	q.tail.Store(q.tail.Load() - uint32(n) + uint32(done))
	if !errors.Is(err, syscall.ENOMEM) {
		return int(done), fmt.Errorf("verbs: post: %w", err)
	}
	return int(done), rdma.ErrFull
}

// count counts a work request that the device has taken.
func (q *queuePair) count(p *rdma.Work) {
	n := uint64(0)
	for i := range p.SGL {
		n += uint64(len(p.SGL[i].Bytes))
	}
	switch p.Op {
	case rdma.OpRead:
		q.n.reads.Add(1)
		q.n.bytesIn.Add(n)
	case rdma.OpBind:
		q.n.binds.Add(1)
		return
	case rdma.OpLocalInvalidate:
		q.n.invalidations.Add(1)
		return
	default:
		q.n.bytesOut.Add(n)
		if p.Flags&rdma.Invalidate != 0 {
			q.n.invalidations.Add(1)
		}
	}
	q.n.messagesOut.Add(1)
}

const (
	sendOnly  = rdma.Invalidate | rdma.Advertise | rdma.Close | rdma.Solicited
	stagFlags = rdma.Invalidate | rdma.Advertise | rdma.Close
)

// prepare makes the next element of the send queue, and w, from p. what says what is wrong with p; err is
// one of the errors of Post.
func (q *queuePair) prepare(w *C.struct_os_work, p *rdma.Work, sges []C.struct_ibv_sge) (_ []C.struct_ibv_sge, what string, err error) {
	if q.state != connected {
		return sges, "", rdma.ErrDisconnected
	}
	pos := q.tail.Load()
	if pos-q.head.Load() >= uint32(q.cfg.MaxWork) {
		return sges, "", rdma.ErrFull
	}
	if p.Op != rdma.OpSend && p.Flags&sendOnly != 0 {
		return sges, "flag that only a Send may have", nil
	}
	if p.ForEndpoints() {
		return sges, "operation or flag that only an endpoint takes", nil
	}
	w.id, w.rkey, w.remote, w.flags = C.uint64_t(pos), C.uint32_t(p.RemoteSTag), C.uint64_t(p.RemoteOffset), sendFlags(p.Flags)
	need := rdma.Access(0)
	switch p.Op {
	case rdma.OpSend:
		if what = q.prepareSend(w, p); what != "" {
			return sges, what, nil
		}
	case rdma.OpWrite:
		w.opcode = C.IBV_WR_RDMA_WRITE
	case rdma.OpRead:
		if what = q.prepareRead(w, p); what != "" {
			return sges, what, nil
		}
		need = rdma.AccessLocalWrite
	case rdma.OpBind:
		if what, err = q.prepareBind(w, p); what != "" || err != nil {
			return sges, what, err
		}
		q.enqueue(w, p, pos, 0)
		return sges, "", nil
	case rdma.OpLocalInvalidate:
		win := q.windows[p.STag]
		if win == nil || win.going {
			return sges, "STag is neither of a window bound here nor of a region that may be invalidated", nil
		}
		win.going = true
		w.opcode, w.rkey = C.IBV_WR_LOCAL_INV, C.uint32_t(p.STag)
		q.enqueue(w, p, pos, 0)
		return sges, "", nil
	default:
		return sges, "operation that cannot be posted", nil
	}
	sges, n, what := q.gather(w, p, pos, sges, need)
	if what != "" {
		return sges, what, nil
	}
	if n == 0 && p.Op != rdma.OpSend {
		w.rkey, w.remote = 0, 0 // no memory is accessed, but devices check these fields nevertheless
	}
	if n == 0 && p.Op == rdma.OpRead && q.dev.siw {
		return sges, "a Read of no bytes, after which siw takes answers for those of other Reads", nil
	}
	q.enqueue(w, p, pos, n)
	return sges, "", nil
}

// enqueue makes p the next element of the send queue, n bytes long.
func (q *queuePair) enqueue(w *C.struct_os_work, p *rdma.Work, pos uint32, n int) {
	e := sent{id: p.ID, op: p.Op, silent: p.Flags&rdma.Signaled == 0}
	late := q.dev.limits.LateSource
	switch {
	case p.Op == rdma.OpRead:
		e.bytes = n
		if q.dev.siw {
			w.flags |= C.IBV_SEND_SIGNALED // later work may overtake it
		}
	case late > 0 && n >= late:
		w.flags |= C.IBV_SEND_SIGNALED // so that the device copies its bytes
	}
	e.told = w.flags&C.IBV_SEND_SIGNALED != 0
	q.sq[int(pos)&(len(q.sq)-1)] = e
	q.tail.Store(pos + 1)
}

func sendFlags(f rdma.Flags) (v C.uint32_t) {
	if f&rdma.Signaled != 0 {
		v |= C.IBV_SEND_SIGNALED
	}
	if f&rdma.Solicited != 0 {
		v |= C.IBV_SEND_SOLICITED
	}
	if f&rdma.Fence != 0 {
		v |= C.IBV_SEND_FENCE
	}
	return v
}

func (q *queuePair) prepareSend(w *C.struct_os_work, p *rdma.Work) (what string) {
	switch p.Flags & stagFlags {
	case 0:
		w.opcode = C.IBV_WR_SEND
	case rdma.Invalidate:
		switch {
		case p.STag == 0:
			return "STag 0"
		case !q.dev.limits.SendInvalidate:
			return "Send with Invalidate, which the device does not have (Limits.SendInvalidate)"
		}
		w.opcode, w.rkey = C.IBV_WR_SEND_WITH_INV, C.uint32_t(p.STag)
	default:
		if f := p.Flags & stagFlags; f&(f-1) != 0 {
			return "more than one of Invalidate, Advertise and Close"
		}
		return "one-shot RDMA, which was not agreed"
	}
	return ""
}

func (q *queuePair) prepareRead(w *C.struct_os_work, p *rdma.Work) (what string) {
	switch {
	case p.Flags&rdma.Inline != 0:
		return "a Read cannot be inline"
	case q.depth == 0:
		return "the peer serves no Reads"
	case len(p.SGL) > q.dev.limits.MaxReadSGE:
		return "too many elements in its list"
	}
	w.opcode = C.IBV_WR_RDMA_READ
	if q.dev.siw {
		w.flags &^= C.IBV_SEND_FENCE // the method before has taken care of it
	}
	return ""
}

// gather appends the memory of p to sges.
func (q *queuePair) gather(w *C.struct_os_work, p *rdma.Work, pos uint32, sges []C.struct_ibv_sge, need rdma.Access) (_ []C.struct_ibv_sge, n int, what string) {
	if p.Flags&rdma.Inline == 0 {
		sges, n, what = appendSGL(sges, p.SGL, q.domain, need, q.maxSGE)
		if int64(n) > q.dev.limits.MaxMessage {
			what = "longer than a message can be"
		}
		return sges, n, what
	}
	for i := range p.SGL {
		n += len(p.SGL[i].Bytes)
	}
	switch {
	case n > q.maxInline:
		return sges, n, "too long to be inline"
	case len(p.SGL) > q.maxSGE:
		return sges, n, "too many elements in its list"
	case n == 0:
		return sges, n, ""
	}
	if q.bounce != nil && p.Flags&rdma.Invalidate != 0 {
		return append(sges, q.bounce.put(pos, p.SGL)), n, ""
	}
	w.flags |= C.IBV_SEND_INLINE
	for i := range p.SGL {
		if b := p.SGL[i].Bytes; len(b) > 0 { // Post pins it until the device has copied it
			sges = append(sges, C.struct_ibv_sge{addr: C.uint64_t(address(b)), length: C.uint32_t(len(b))})
		}
	}
	return sges, n, ""
}

// before does what is necessary before p is posted as the n-th of a batch. True: p has to be the first of
// a batch. One reason is that the device has to complete an earlier request on the same window. Another is
// siw, which takes no Read with a fence: then before posts a request with a fence that nobody sees.
func (q *queuePair) before(p *rdma.Work, n int) (alone bool, err error) {
	switch {
	case p.Op == rdma.OpBind:
		return true, nil
	case p.Op != rdma.OpRead || p.Flags&rdma.Fence == 0 || !q.dev.siw:
		return false, nil
	case n == 0 && q.state == connected && q.tail.Load()-q.head.Load() < uint32(q.cfg.MaxWork):
		err = q.mark(C.IBV_SEND_FENCE)
	}
	return true, err
}

// mark posts a zero-length RDMA Write, which the peer does not see. Its completion means that all earlier
// work is complete. q.mu is held.
func (q *queuePair) mark(flags C.uint32_t) error {
	pos := q.tail.Load()
	q.sq[int(pos)&(len(q.sq)-1)] = sent{op: rdma.OpWrite, internal: true, told: true}
	q.works[0] = C.struct_os_work{id: C.uint64_t(pos), opcode: C.IBV_WR_RDMA_WRITE, flags: C.IBV_SEND_SIGNALED | flags}
	q.tail.Store(pos + 1)
	_, err := q.doorbell(1)
	return err
}

// bounce is registered memory for requests with inline data that the device does not take inline, such as
// siw's Send with Invalidate. It has a slot for each element of the send queue.
type bounce struct {
	memory []byte
	slot   int
	region *region
}

func newBounce(d *domain, slots int) (*bounce, error) {
	slot := max(d.dev.limits.MaxInline, 1)
	memory, err := unix.Mmap(-1, 0, slots*slot, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("verbs: memory for inline data: %w", err)
	}
	r, err := d.register(memory, rdma.AccessLocalWrite)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	return &bounce{memory, slot, r}, nil
}

// put copies l to the slot of pos, and returns the element for it.
func (b *bounce) put(pos uint32, l []rdma.SGE) C.struct_ibv_sge {
	at := int(pos) % (len(b.memory) / b.slot) * b.slot
	slot := b.memory[at : at : at+b.slot]
	for i := range l {
		slot = append(slot, l[i].Bytes...)
	}
	return C.struct_ibv_sge{addr: C.uint64_t(address(slot)), length: C.uint32_t(len(slot)), lkey: C.uint32_t(b.region.lkey)}
}

func (b *bounce) free() {
	if b != nil {
		_ = b.region.Deregister()
		_ = unix.Munmap(b.memory)
	}
}
