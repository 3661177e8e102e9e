package iser

import (
	"errors"

	"oneshot/iscsi"
	"oneshot/mem"
	"oneshot/transport/rdma"
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
	t.locals = appendRest(t.locals[:0], it.Out, have, it.OutLen)
	if remote.STag == 0 {
		m.conn.DataFailed(it, iscsi.NotEnoughData)
		return
	}
	if m.target.limits.ReadSinkWrite {
		if err := m.openSinks(t); err != nil {
			m.broken(err)
			return
		}
	} else if !m.register(t.locals) {
		m.broken(m.target.unregistered())
		return
	}
	t.remotes[0] = remote
	t.pull.HasMessage = false
	if err := t.pull.Init(rdma.OpRead, m.target.read, t.locals, t.remotes[:]); err != nil {
		m.violation("%v", errors.Join(err, m.closeSinks(t)))
		return
	}
	t.pulling = true
	m.pulls++
	m.conn.Fetching(m.pulls)
	m.push(&t.pull)
}

// appendRest appends the octets [from, to) of segs.
func appendRest(list []rdma.SGE, segs [][]byte, from, to int) []rdma.SGE {
	at := 0
	for _, s := range segs {
		n := len(s)
		if end := min(n, to-at); from-at < end {
			list = append(list, rdma.SGE{Bytes: s[max(from-at, 0):end]})
		}
		at += n
	}
	return list
}

// register finds the regions of list. False: some of it is in none.
func (m *Mover) register(list []rdma.SGE) bool {
	for i := range list {
		if list[i].Region = m.domain.region(list[i].Bytes); list[i].Region == nil {
			return false
		}
	}
	return true
}

// pulled is the end of the RDMA Reads of t, good or bad.
func (m *Mover) pulled(t *task) {
	t.pulling = false
	m.pulls--
	m.conn.Fetching(m.pulls)
	if err := m.closeSinks(t); err != nil { // before anybody looks at the data, which the peer could still change
		t.pull.failed = true
		m.broken(err)
	}
	switch {
	case t.forgotten:
		t.forgotten = false
		m.orphan(t)
		m.conn.Forgotten(&t.Task)
	case t.pull.failed, m.dead:
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
	if !t.header.held || m.dead {
		return
	}
	s := t.header.write | t.header.read
	if itt, ok := t.AbortedBy(); ok {
		m.orphans[itt] = s
		return
	}
	_ = m.qp.Revoke(s, func() {})
}

// dataIn prepares the RDMA Writes of t.In, n octets. False: there is no memory for them.
func (m *Mover) dataIn(t *task, n int) bool {
	t.locals = appendRest(t.locals[:0], t.In, 0, n)
	if !m.register(t.locals) && !m.copyIn(t, n) {
		return false
	}
	t.remotes[0] = manager.Remote{STag: t.header.read, Offset: t.header.readOffset, Len: uint64(n)}
	if err := t.ans.Init(rdma.OpWrite, m.target.write, t.locals, t.remotes[:]); err != nil {
		m.violation("%v", err)
		return false
	}
	return true
}

// copyIn copies data-in that commands have made on the heap to memory that the device knows.
func (m *Mover) copyIn(t *task, n int) bool {
	if n > mem.MaxLease {
		return false
	}
	if t.bounce = m.conn.TryLease(&t.Task, n); t.bounce == nil {
		return false
	}
	s, err := m.domain.sge(t.bounce.Bytes())
	if err != nil {
		m.broken(err)
		return false
	}
	b := t.bounce.Bytes()[:0]
	for _, s := range t.In {
		b = append(b, s...)
	}
	t.locals = append(t.locals[:0], s)
	return true
}
