package queuepair

import (
	"errors"
	"fmt"

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

// set makes x a transfer of the first n bytes of segs.
func (x *Transfer) set(segs [][]byte, n int, remote manager.Remote) {
	x.locals = x.locals[:0]
	for _, s := range segs {
		if k := min(len(s), n); k > 0 {
			x.locals = append(x.locals, rdma.SGE{Bytes: s[:k]})
			n -= k
		}
	}
	x.remotes[0] = remote
}

// Reset lets go of the memory of a transfer that has ended.
func (x *Transfer) Reset() {
	clear(x.locals)
	x.locals = x.locals[:0]
}

// Fetch has e read the peer's memory into the first bytes of segs, which is I/O memory. What was fetched has ended when
// EndFetch is called.
func (l *Link) Fetch(e *Entry, x *Transfer, segs [][]byte, remote manager.Remote) {
	x.set(segs, int(remote.Len), remote)
	if err := l.sinks(x); err != nil {
		l.Break(err)
	}
	e.HasMessage = false
	if err := e.Init(rdma.OpRead, l.target.read, x.locals, x.remotes[:]); err != nil {
		l.Blame(err)
	}
	l.Push(e)
}

// EndFetch ends the access of a Read to its memory, before anybody looks at the data, which the peer could still change.
func (l *Link) EndFetch(e *Entry, x *Transfer) {
	if err := l.closeSinks(x); err != nil {
		e.Failed = true
		l.Break(err)
	}
}

// Deliver has e write the first bytes of segs, which is I/O memory, to the peer's. A message may follow.
func (l *Link) Deliver(e *Entry, x *Transfer, segs [][]byte, remote manager.Remote) {
	x.set(segs, int(remote.Len), remote)
	if !l.register(x.locals) {
		l.Break(l.target.unregistered())
	}
	if err := e.Init(rdma.OpWrite, l.target.write, x.locals, x.remotes[:]); err != nil {
		l.Blame(err)
	}
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
		return nil
	}
	return s.Bytes
}

// Knows reports whether b is I/O memory.
func (l *Link) Knows(b []byte) bool { return l.target.arena(b) != nil }

// GiveBack takes memory that is not needed any more.
func (l *Link) GiveBack(m *Memory) { l.target.giveBack(m) }

// sinks finds or makes the regions that Reads go to.
func (l *Link) sinks(x *Transfer) error {
	switch {
	case l.target.limits.ReadSinkWrite:
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
	for i := range x.locals {
		s := &x.locals[i]
		if l.target.arena(s.Bytes) == nil {
			return l.target.unregistered()
		}
		r, err := l.domain.pd.Register(s.Bytes, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
		if err != nil {
			return l.target.refused(s.Bytes, err)
		}
		s.Region = r
		x.sinks = append(x.sinks, r)
	}
	return nil
}

// closeSinks ends all access to what openSinks has registered.
func (l *Link) closeSinks(x *Transfer) error {
	var errs []error
	for i, r := range x.sinks {
		if err := r.Deregister(); err != nil {
			errs = append(errs, fmt.Errorf("%s: the sink of a Read stays registered: %w", l.target.cfg.Name, err))
		}
		x.sinks[i] = nil
	}
	x.sinks = x.sinks[:0]
	return errors.Join(errs...)
}
