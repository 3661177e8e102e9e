package iser

import (
	"oneshot/iscsi"
	"oneshot/mem"
	"oneshot/transport/rdma/manager"
)

// GetData implements iscsi.Datamover: what came with the command is copied, the rest fetched.
func (m *Mover) GetData(it *iscsi.Task) {
	t := of(it)
	t.taken = true
	var immediate []byte
	switch {
	case t.came != nil:
		immediate = t.came
	case t.stash != nil:
		immediate = t.stash.Bytes()[:t.immediate]
	}
	// Out is never memory of a store here, so nobody has to be told of the copying.
	have := 0
	for _, seg := range it.Out {
		have += copy(seg, immediate[min(have, len(immediate)):])
	}
	if have = min(have, it.OutLen); have == it.OutLen {
		m.conn.GotData(it)
		return
	}
	remote := manager.Remote{STag: t.header.write, Offset: t.header.writeOffset, Len: uint64(it.OutLen - have)}
	if m.direct {
		remote.Offset = uint64(have)
	}
	if remote.STag == 0 {
		m.conn.DataFailed(it, iscsi.NotEnoughData)
		return
	}
	t.pulling = true
	m.pulls++
	m.conn.Fetching(m.pulls)
	m.Fetch(&t.pull, &t.transfer, it.Out, have, remote)
}

// pulled is the end of the RDMA Reads of t, good or bad.
func (m *Mover) pulled(t *task) {
	if !m.EndFetch(&t.pull, &t.transfer) {
		return
	}
	t.pulling = false
	m.pulls--
	m.conn.Fetching(m.pulls)
	switch {
	case t.forgotten:
		t.forgotten = false
		m.orphan(t)
		m.conn.Forgotten(&t.Task)
	case t.pull.Failed, m.Dead():
		// Unless all Reads ended well, Out holds what its memory held before: another session's bytes, perhaps.
		m.conn.DataLost(&t.Task)
	default:
		m.conn.GotData(&t.Task)
	}
}

// Forget implements iscsi.Datamover.
func (m *Mover) Forget(it *iscsi.Task) bool {
	t := of(it)
	if t.pulling {
		t.forgotten = true
		return false
	}
	m.orphan(t)
	return true
}

// orphan sees to the STag of an aborted task: the response to its ABORT TASK closes it, or the
// initiator revokes it after the response to another function.
func (m *Mover) orphan(t *task) {
	if !t.header.held || m.Dead() {
		return
	}
	s := t.header.write | t.header.read
	if itt, ok := t.AbortedBy(); ok {
		m.orphans[itt] = s
		return
	}
	_ = m.QueuePair().Revoke(s, func() {})
}

// dataIn prepares the RDMA Writes of t.In, n octets. False: there is no memory for them.
func (m *Mover) dataIn(t *task, n int) bool {
	remote := manager.Remote{STag: t.header.read, Offset: t.header.readOffset, Len: uint64(n)}
	if m.Deliver(&t.ans, &t.transfer, t.In, remote) {
		return true
	}
	// Commands have made them on the heap: they are copied to memory that the device knows.
	if n > mem.MaxLease {
		return false
	}
	if t.bounce = m.conn.TryLease(&t.Task, n); t.bounce == nil {
		return false
	}
	k := 0
	for _, s := range t.In {
		k += copy(t.bounce.Bytes()[k:], s)
	}
	t.copied[0] = t.bounce.Bytes()
	if !m.Deliver(&t.ans, &t.transfer, t.copied[:], remote) {
		m.Break(m.Unregistered())
		return false
	}
	return true
}
