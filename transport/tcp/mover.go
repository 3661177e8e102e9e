// Package tcp moves iSCSI PDUs over a TCP connection: framing, digests, Data-In, R2T and
// Data-Out (RFC 7143 §11). It is the datamover of package iscsi for byte streams.
//
//	recv.go   PDUs in:  header ─► session, or data segment ─► where it is to end
//	dataout.go          unsolicited data, R2Ts, and the checks on both
//	send.go   PDUs out: answers and control PDUs
//	serve.go            the goroutine that owns the socket
//
// The socket, its buffer, and the way of bytes are those of package bytestream.
//
// A connection costs one readv and one writev per batch of commands that its initiator has
// sent. Data goes from the socket into the memory of the store, or into the lease of the
// task, and the other way round; it is copied once only when it has come in one piece with
// headers.
package tcp

import (
	"net"

	"oneshot/internal/invariant"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/transport/bytestream"
)

var _ iscsi.Datamover = (*Mover)(nil)

// Mover is the datamover of one TCP connection. Its fields belong to whoever holds the lock
// of conn, except those marked otherwise.
type Mover struct {
	bytestream.Link[task]
	conn *iscsi.Conn

	enabled      bool         // full feature phase
	p            login.Params // in force then
	maxIn        int          // the longest data segment that the initiator may send now
	headerDigest bool
	dataDigest   bool

	hdr  [pdu.BHSLen]byte // of the PDU whose data is under way, for a Reject
	last bool             // its F bit

	free bytestream.Pool[task]

	ttt uint32 // Target Transfer Tag of the last R2T

	commands int // in the batch of input under way
	pace     moderator

	pdusOut, pdusIn uint64 // counted; without control PDUs that have left
}

// task is a command on a TCP connection.
type task struct {
	iscsi.Task
	out dataOut
	ans answer
}

func of(t *iscsi.Task) *task { return t.Mover.(*task) }

// newMover returns a mover for tc, which it owns from now on.
func newMover(tc *net.TCPConn) (*Mover, error) {
	m := new(Mover)
	if err := m.Open(tc, m, sizes); err != nil {
		return nil, err
	}
	m.setMaxIn(loginSegment)
	m.p.MaxRecvDataSegmentLength, m.p.MaxBurstLength = loginSegment, loginSegment
	return m, nil
}

// setMaxIn says how long data segments may be. An initiator that sends nothing but small PDUs is in its login, or in a
// discovery session.
func (m *Mover) setMaxIn(n int) {
	m.maxIn, m.Small, m.Heavy = n, n <= loginSegment, maxHeavy
	if m.Small {
		m.Heavy = maxLight
	}
}

// Count implements iscsi.Datamover: system calls, PDUs, and bytes of them.
func (m *Mover) Count(tell func(string, uint64)) {
	tell("writes", m.Writes)
	tell("reads", m.Reads)
	tell("messages_out", m.pdusOut+m.Out.Controls)
	tell("messages_in", m.pdusIn)
	tell("bytes_out", m.Out.Written)
	tell("bytes_in", m.BytesIn)
}

// Transport implements iscsi.Datamover.
func (m *Mover) Transport() string { return "tcp" }

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	t := m.free.Get()
	if t == nil {
		t = new(task)
		t.Conn, t.Mover = m.conn, t
	}
	return t
}

// FreeTask implements iscsi.Datamover.
func (m *Mover) FreeTask(it *iscsi.Task) {
	t := of(it)
	invariant.Check(m.In.Task != t, "a task is given back that takes the data segment under way")
	if it.Write {
		t.out.reset()
	}
	invariant.Check(!t.out.pulling && t.out.stash == nil && t.out.IsReset() && t.out.recv == 0, "data-out is of commands with the W bit")
	m.free.Put(t)
}

// Enable implements iscsi.Datamover.
func (m *Mover) Enable(p *login.Params, maxIn int) {
	m.enabled, m.p = true, *p
	m.setMaxIn(maxIn)
	m.headerDigest, m.dataDigest = p.HeaderDigest, p.DataDigest
}

// Terminate implements iscsi.Datamover.
func (m *Mover) Terminate(how iscsi.Termination) { m.Link.Terminate(how == iscsi.AtOnce) }

const (
	digestLen = pdu.DigestLen
	// loginSegment is the longest data segment before the full feature phase (RFC 7143 §6.3).
	loginSegment = 8192
)
