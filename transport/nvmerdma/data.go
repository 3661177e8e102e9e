package nvmerdma

import (
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/nvmf"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

// GetData implements nvmf.Mover: what has come in the capsule is copied, to the store's own memory if it lends that; the rest is
// fetched.
func (m *Mover) GetData(nt *nvmf.Task) {
	t := of(nt)
	if nt.InCapsule {
		invariant.Check(t.came != nil, "nvmerdma: the data of a capsule are asked for when they are gone")
		if nt.PlaceUnit != 0 {
			nt.Place(0, t.came[:nt.OutLen])
		} else {
			c := iov.At(nt.Out, 0)
			c.CopyIn(t.came)
		}
		m.queue.GotData(nt)
		return
	}
	segs := nt.Out
	if !m.Knows(nt.Out[0]) { // a few bytes of a command that keeps them
		if t.bounce = m.Lease(nt.OutLen, &t.memory); t.bounce == nil {
			m.queue.DataFailed(nt, nvmf.NoRoom)
			return
		}
		segs = [][]byte{t.bounce}
	}
	t.pulling = true
	m.pulls++
	m.queue.Fetching(m.pulls)
	m.Fetch(&t.pull, &t.fetch, segs, 0, m.remote(t, nt.OutLen))
}

// remote is the first n bytes of the host's memory of a command.
func (m *Mover) remote(t *task, n int) manager.Remote {
	return manager.Remote{STag: rdma.STag(t.sgl.Key), Offset: t.sgl.Address, Len: uint64(n)}
}

// deliver sends the n bytes of t.In. Those that a command has made in other memory are copied first. False: there is no memory for that.
func (m *Mover) deliver(t *task, n int) bool {
	if m.Deliver(&t.ans, &t.delivery, t.In, m.remote(t, n)) {
		return true
	}
	b := m.Lease(n, &t.memory)
	if b == nil {
		return false
	}
	k := 0
	for _, s := range t.In {
		k += copy(b[k:], s)
	}
	t.In[0] = b
	return m.Deliver(&t.ans, &t.delivery, t.In[:1], m.remote(t, n))
}

// pulled is the end of the RDMA Reads of t, good or bad.
func (m *Mover) pulled(t *task) {
	if !m.EndFetch(&t.pull, &t.fetch) {
		return
	}
	t.pulling = false
	m.pulls--
	m.queue.Fetching(m.pulls)
	good := !t.pull.Failed && !m.Dead()
	if t.bounce != nil {
		c := iov.At(t.Out, 0)
		c.CopyIn(t.bounce)
		t.bounce = nil
		m.GiveBack(&t.memory)
	}
	switch {
	case t.forgotten:
		t.forgotten = false
		m.queue.Forgotten(&t.Task)
	case !good:
		// Unless all Reads ended well, Out holds what its memory held before: another host's bytes, perhaps.
		m.queue.DataFailed(&t.Task, nvmf.NotFetched)
	default:
		m.queue.GotData(&t.Task)
	}
}

// Hold implements nvmf.Mover: what comes behind is in other receives, and each that is kept is one less for all queues.
func (m *Mover) Hold(*nvmf.Task) bool { return false }

// Arrived implements nvmf.Mover.
func (m *Mover) Arrived() (sent, read uint64, open bool) { return 0, 0, true }

// Forget implements nvmf.Mover.
func (m *Mover) Forget(nt *nvmf.Task) bool {
	t := of(nt)
	t.forgotten = t.pulling
	return !t.pulling
}
