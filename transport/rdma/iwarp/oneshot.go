package iwarp

import (
	"errors"
	"unsafe"

	"oneshot/ddp"
	"oneshot/internal/invariant"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// advert is the memory of an STag that this end, Host 1, has advertised.
type advert struct {
	tag     stag.STag
	segs    [][]byte
	regions []*soft.Region // pinned
	next    *advert        // in the list of free ones
	closing bool           // the reader waits for references to be released
	revoked func()         // called when the last reference is released
}

// maxFreeSegs is the largest list of segments that an unused advert keeps.
const maxFreeSegs = 64

var (
	errNotAdvertised = errors.New("iwarp: STag is not advertised on this connection, or closed already")
	errMemory        = "memory to advertise: "
)

// prepareAdvertise reserves an STag, binds it to the memory, and lets the post return it
// (one-shot.md §5.1, steps 1 to 4).
func (q *queuePair) prepareAdvertise(w *wqe, p *rdma.Work) (what string, err error) {
	if q.shot == nil || !q.shot.Advertise || q.format.Host != ddp.Host1 {
		return "the peer has not agreed to advertise", nil
	}
	if p.Access&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0 || p.Access == 0 {
		return "access to advertise is remote read, remote write or both", nil
	}
	var need rdma.Access
	if p.Access&rdma.AccessRemoteWrite != 0 {
		need = rdma.AccessLocalWrite
	}
	a := q.free
	if a == nil {
		a = new(advert)
	}
	empty, what := a.gather(p.Memory, &q.domain.Domain, need)
	switch {
	case what != "":
		return errMemory + what, nil
	case empty:
		return errMemory + "none", nil
	case !soft.PinAll(a.regions):
		return errMemory + soft.ErrGone.Error(), nil
	}
	s, err := q.bindAdvert(a, p)
	if err != nil {
		soft.UnpinAll(a.regions)
		return "", err
	}
	if q.free == a {
		q.free = a.next
	}
	a.next, a.tag, a.closing, a.revoked = nil, s, false, nil
	w.stag, p.STag = s, rdma.STag(s)
	q.n.Advertises.Add(1)
	return "", nil
}

// gather takes over a list of memory, of any length. Adjacent pieces of one region become one piece. For memory
// without a region it is enough that a refers to it, because here the processor copies the bytes.
func (a *advert) gather(list []rdma.SGE, d *soft.Domain, need rdma.Access) (empty bool, what string) {
	a.segs, a.regions = a.segs[:0], a.regions[:0]
	if len(list) > maxMemory {
		return false, "scatter/gather list is too long"
	}
	var last *soft.Region
	for i := range list {
		e := &list[i]
		if len(e.Bytes) == 0 {
			continue
		}
		var r *soft.Region
		if e.Region != nil {
			if r, what = soft.Registered(e, d, need); what != "" {
				return false, what
			}
		}
		k := len(a.segs) - 1
		if r != nil && r == last && soft.Address(a.segs[k])+uintptr(len(a.segs[k])) == soft.Address(e.Bytes) {
			a.segs[k] = unsafe.Slice(unsafe.SliceData(a.segs[k]), len(a.segs[k])+len(e.Bytes))
			continue
		}
		a.segs = append(a.segs, e.Bytes)
		if last = r; r != nil {
			a.regions = append(a.regions, r)
		}
	}
	return len(a.segs) == 0, ""
}

func (q *queuePair) bindAdvert(a *advert, p *rdma.Work) (s stag.STag, err error) {
	r := stag.Region{Segments: a.segs, Access: soft.TagAccess(p.Access), Owner: a}
	if s = stag.STag(p.STag); q.chooses {
		err = q.stream.GrantAs(s, r)
	} else {
		s, err = q.stream.Grant(r)
	}
	switch {
	case errors.Is(err, stag.ErrWindow):
		return 0, rdma.ErrWindow
	case errors.Is(err, stag.ErrEnded):
		return 0, rdma.ErrDisconnected
	case err != nil:
		return 0, err
	}
	if invariant.Enabled { // the same is checked when the first octet of the message leaves
		invariant.Check(q.dev.memory.Table.State(s) == stag.Bound, "iwarp: an STag is not bound after Grant")
	}
	return s, nil
}

// advertised notes that the last octet of an advertising Send has left.
func (q *queuePair) advertised(w *wqe) {
	_ = q.stream.Advertised(w.stag) // fails if the STag was revoked in the meantime, which is fine
}

// freeAdvert frees an STag that allows no access and has no references.
func (q *queuePair) freeAdvert(a *advert) {
	if err := q.stream.Consume(a.tag); err != nil {
		panic("iwarp: an STag that was closed cannot be freed: " + err.Error())
	}
	q.dropAdvert(a)
}

// advert returns the memory of the STag s, or nil if this end does not advertise s. The lock is held.
func (q *queuePair) advert(s stag.STag) *advert {
	a, _ := q.stream.Owner(s).(*advert)
	return a
}

// dropAdvert gives back the memory of an STag that is freed, or will be.
func (q *queuePair) dropAdvert(a *advert) {
	soft.UnpinAll(a.regions)
	if a.closing {
		q.rx.freed.Store(true)
		q.wakeReader()
	}
	if a.revoked != nil {
		q.after = append(q.after, a.revoked)
		a.revoked = nil
	}
	if cap(a.segs) <= maxFreeSegs {
		clear(a.segs)
		clear(a.regions)
		a.next, q.free = q.free, a
	}
}

// lastReference is called when the last reference to memory that allows no access is released.
// The lock is held.
func (q *queuePair) lastReference(s stag.STag) {
	switch o := q.stream.Owner(s).(type) {
	case *advert:
		q.freeAdvert(o)
	case *bound:
		q.after = append(q.after, o.quiet...)
		q.invalidated(s, o)
	case *exposure:
		q.hide(s, o)
	default:
		q.dev.quiet(s)
	}
}

// takeBack takes access away when a message that closes or invalidates s is to be delivered. If free is
// true, the message may be delivered; otherwise rx.freed will be set.
func (q *queuePair) takeBack(m ddp.Message, s stag.STag) (free bool, err error) {
	q.mu.Lock()
	defer q.unlock()
	// The peer may answer before the system call that advertised has returned.
	for q.inWrite && q.dev.memory.Table.State(s) == stag.Bound {
		q.settled.Wait()
	}
	q.rx.freed.Store(false)
	a := q.advert(s)
	switch {
	case m == ddp.SendClose:
		free, err = q.stream.Close(s)
	case a != nil:
		free, err = q.stream.Invalidate(s)
	default:
		return q.remoteInvalidate(s)
	}
	if err != nil {
		return false, err
	}
	if free {
		q.freeAdvert(a)
	} else {
		a.closing = true
	}
	return free, nil
}

// Revoke implements rdma.QueuePair.
func (q *queuePair) Revoke(t rdma.STag, done func()) error {
	s := stag.STag(t)
	if q.peer != nil {
		q.mu.Lock()
		err := q.peer.Forget(s)
		q.mu.Unlock()
		if err != nil {
			return err
		}
		done()
		return nil
	}
	q.mu.Lock()
	defer q.unlock()
	a := q.advert(s)
	if a == nil || a.revoked != nil {
		return errNotAdvertised
	}
	quiet, err := q.stream.Revoke(s)
	if err != nil {
		return errNotAdvertised
	}
	a.revoked = done
	if quiet {
		q.freeAdvert(a)
	}
	return nil
}

// bound returns the binding of the STag s of a window, or nil if s is not bound on this queue pair. The lock is held.
func (q *queuePair) bound(s stag.STag) *bound {
	b, _ := q.stream.Owner(s).(*bound)
	return b
}

// invalidatable reports whether s is a conventional STag that this end may invalidate.
func (q *queuePair) invalidatable(s stag.STag) bool {
	if q.bound(s) != nil {
		return true
	}
	return q.dev.memory.Invalidatable(s, &q.domain.Domain)
}

// invalidating notes that an invalidation of a window is posted, so that the window may be bound again.
func (q *queuePair) invalidating(s stag.STag) {
	if b := q.bound(s); b != nil {
		b.window.mu.Lock()
		if b.window.tag == s {
			b.window.going = true
		}
		b.window.mu.Unlock()
	}
}

// invalidate ends the access of a conventional STag. If quiet is true, nobody holds a reference. Otherwise
// done is called when the last reference is released: after mu is released, or by another goroutine. The lock is held.
func (q *queuePair) invalidate(s stag.STag, done func()) (quiet bool, err error) {
	return q.endConventional(s, q.dev.memory.Table.Invalidate, done)
}

// remoteInvalidate invalidates a conventional STag when a Send with Invalidate is to be delivered. The lock
// is held.
func (q *queuePair) remoteInvalidate(s stag.STag) (free bool, err error) {
	return q.endConventional(s, q.stream.Invalidate, q.onFreed)
}

// memoryFreed tells the reader, which waits for that, that memory has no references any more.
func (q *queuePair) memoryFreed() {
	q.rx.freed.Store(true)
	q.wakeReader()
}

func (q *queuePair) endConventional(s stag.STag, end func(stag.STag) (bool, error), done func(),
) (quiet bool, err error) {
	b := q.bound(s)
	if b == nil {
		return q.endRegion(s, end, done)
	}
	if quiet, err = end(s); err != nil {
		return false, err
	}
	q.n.Invalidations.Add(1)
	if quiet {
		q.invalidated(s, b)
	} else {
		// The last reference belongs to this connection, and its release needs mu. Both ends may wait for it.
		b.quiet = append(b.quiet, done)
	}
	return quiet, nil
}

// endRegion ends the access to a region, to which other connections may hold references.
func (q *queuePair) endRegion(s stag.STag, end func(stag.STag) (bool, error), done func()) (quiet bool, err error) {
	w := q.dev.whenQuiet(s, done)
	quiet, err = end(s)
	if err != nil {
		q.dev.forget(s, w)
		return false, err
	}
	q.n.Invalidations.Add(1)
	if quiet {
		q.dev.forget(s, w)
	}
	return quiet, nil
}

// invalidated frees the slot of a window's STag, to which no reference is held. The lock is held.
func (q *queuePair) invalidated(s stag.STag, b *bound) {
	q.stream.Disown(s)
	_ = q.dev.memory.Table.Deregister(s) // fails if the end of the stream has freed it already
	q.unbind(s, b)
}

// unbind notes that an STag of a window is freed, or will be. The lock is held.
func (q *queuePair) unbind(s stag.STag, b *bound) {
	b.region.Unpin()
	w := b.window
	w.mu.Lock()
	if w.tag == s && w.qp != nil {
		w.qp, w.base, w.going = nil, nil, false
	}
	w.mu.Unlock()
	clear(b.quiet)
	*b = bound{next: q.unbound, quiet: b.quiet[:0]}
	q.unbound = b
}
