package queuepair

import (
	"errors"
	"fmt"

	"oneshot/internal/invariant"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

// Transfer is the data of one command on their way: what of the memory here they come from or go to, and what of the
// peer's.
type Transfer struct {
	locals  []rdma.SGE
	sinks   []rdma.Region // of Reads; see openSinks
	remotes [1]manager.Remote
}

// set makes x a transfer between remote and as many bytes of segs, from byte from on.
func (x *Transfer) set(segs [][]byte, from int, remote manager.Remote) {
	x.locals = x.locals[:0]
	n := int(remote.Len)
	for _, s := range segs {
		skip := min(from, len(s))
		from -= skip
		if k := min(len(s)-skip, n); k > 0 {
			x.locals = append(x.locals, rdma.SGE{Bytes: s[skip : skip+k]})
			n -= k
		}
	}
	x.remotes[0] = remote
}

// Reset lets go of the memory of a transfer that has ended.
func (x *Transfer) Reset() {
	invariant.Check(len(x.sinks) == 0, "queuepair: a transfer is reset after its Reads")
	clear(x.locals)
	x.locals = x.locals[:0]
}

// Fetch has e read the peer's memory into segs, which is I/O memory, from byte from on. What was fetched has ended when
// EndFetch is called.
func (l *Link) Fetch(e *Entry, x *Transfer, segs [][]byte, from int, remote manager.Remote) {
	x.set(segs, from, remote)
	if err := l.sinks(x); err != nil {
		l.Break(err)
	}
	e.HasMessage = false
	if err := e.Init(rdma.OpRead, l.target.read, x.locals, x.remotes[:]); err != nil {
		l.Blame(err)
	}
	l.Push(e)
}

// EndFetch ends the access of a Read to its memory, before anybody looks at the data, which the peer could still change. False: the
// device does not end it. Then the connection ends, and Ended is called once more when it has: until then the memory is nobody else's.
func (l *Link) EndFetch(e *Entry, x *Transfer) bool {
	err := l.closeSinks(x)
	if err == nil {
		return true
	}
	e.Failed = true
	l.Break(err)
	if l.gone { // nobody reaches it any more, registered or not
		x.sinks = x.sinks[:0]
		return true
	}
	l.held = append(l.held, e)
	return false
}

// Deliver has e write the first bytes of segs to the peer's memory. A message may follow. False: not all of segs is I/O memory, and
// nothing is done.
func (l *Link) Deliver(e *Entry, x *Transfer, segs [][]byte, remote manager.Remote) bool {
	x.set(segs, 0, remote)
	if !l.register(x.locals) {
		return false
	}
	if err := e.Init(rdma.OpWrite, l.target.write, x.locals, x.remotes[:]); err != nil {
		e.Clear()
		l.Blame(err)
	}
	return true
}

// Attach makes b what a message sends. The device copies it if it is short; otherwise it is copied to registered memory,
// which is kept in m. sgl has to stay until the message is posted.
func (l *Link) Attach(w *rdma.Work, b []byte, m *Memory, sgl *[1]rdma.SGE) {
	w.SGL = sgl[:]
	if len(b) <= l.target.limits.MaxInline {
		w.Flags |= rdma.Inline
		sgl[0] = rdma.SGE{Bytes: b}
		return
	}
	var err error
	if sgl[0], err = l.target.memory(l.domain, len(b), m); err != nil {
		l.Break(err)
		return
	}
	copy(sgl[0].Bytes, b)
}

// Lease returns I/O memory of n bytes, or nil: there is none.
func (l *Link) Lease(n int, m *Memory) []byte {
	s, err := l.target.memory(l.domain, n, m)
	if err != nil {
		l.target.giveBack(m)
		if err != errNoMemory { // the device does not take it
			l.Break(err)
		}
		return nil
	}
	return s.Bytes
}

// Unregistered says why there is I/O memory that the device does not know.
func (l *Link) Unregistered() error { return l.target.unregistered() }

// Knows reports whether b is I/O memory.
func (l *Link) Knows(b []byte) bool { return l.target.arena(b) != nil }

// GiveBack takes memory that is not needed any more.
func (l *Link) GiveBack(m *Memory) { l.target.giveBack(m) }

// sinks finds or makes the regions that Reads go to.
func (l *Link) sinks(x *Transfer) error {
	switch {
	case l.target.named:
		return l.openSinks(x)
	case !l.register(x.locals):
		return l.target.unregistered()
	}
	return nil
}

// register finds the regions of list. False: some of it is in none.
func (l *Link) register(list []rdma.SGE) bool {
	for i := range list {
		if list[i].Region = l.domain.region(list[i].Bytes); list[i].Region == nil {
			return false
		}
	}
	return true
}

// openSinks registers the sinks of Reads, each by itself, in the connection's own domain.
func (l *Link) openSinks(x *Transfer) error {
	access := rdma.AccessLocalWrite
	if l.target.limits.ReadSinkWrite {
		access |= rdma.AccessRemoteWrite
	}
	for i := range x.locals {
		s := &x.locals[i]
		if l.target.arena(s.Bytes) == nil {
			return l.target.unregistered()
		}
		if l.target.limits.UnguardedRead {
			clear(s.Bytes) // of what another connection has left there
		}
		r, err := l.domain.pd.Register(s.Bytes, access)
		if err != nil {
			return l.target.refused(s.Bytes, err)
		}
		s.Region = r
		x.sinks = append(x.sinks, r)
	}
	return nil
}

// closeSinks ends all access to what openSinks has registered. What the device refuses to end stays in x.sinks.
func (l *Link) closeSinks(x *Transfer) error {
	var errs []error
	left := x.sinks[:0]
	for _, r := range x.sinks {
		if err := r.Deregister(); err != nil {
			errs = append(errs, fmt.Errorf("%s: the sink of a Read stays registered: %w", l.target.cfg.Name, err))
			left = append(left, r)
		}
	}
	clear(x.sinks[len(left):])
	x.sinks = left
	return errors.Join(errs...)
}
