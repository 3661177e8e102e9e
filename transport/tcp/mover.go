// Package tcp moves iSCSI PDUs over a TCP connection: framing, digests, Data-In, R2T and
// Data-Out (RFC 7143 §11). It is the datamover of package iscsi for byte streams.
//
//	recv.go   bytes in:  socket ─► header ─► session, or data segment ─► where it is to end
//	dataout.go           unsolicited data, R2Ts, and the checks on both
//	send.go   bytes out: answers and control PDUs gathered into one writev
//	serve.go             the goroutine that owns the socket
//
// A connection costs one readv and one writev per batch of commands that its initiator has
// sent. Data goes from the socket into the memory of the store, or into the lease of the
// task, and the other way round; it is copied once only when it has come in one piece with
// headers.
package tcp

import (
	"net"

	"golang.org/x/sys/unix"

	"oneshot/internal/invariant"
	"oneshot/internal/stream"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
)

var _ iscsi.Datamover = (*Mover)(nil)

// Mover is the datamover of one TCP connection. Its fields belong to whoever holds the lock
// of conn, except those marked otherwise.
type Mover struct {
	conn *iscsi.Conn
	tc   *net.TCPConn
	sock *stream.Socket // its descriptor is for use with the lock held and dead unset
	pool *mem.Pool
	peer string
	here string

	enabled      bool         // full feature phase
	p            login.Params // in force then
	maxIn        int          // the longest data segment that the initiator may send now
	headerDigest bool
	dataDigest   bool

	rx rx
	tx tx

	free []*task // to be used again

	ttt uint32 // Target Transfer Tag of the last R2T

	closing bool // the socket is to be closed once tx is empty
	half    bool // our half of it is closed
	dead    bool // the socket can no longer be used
	paused  bool // the reader waits, or is about to, until tx is short again
	pausing bool // tells the reader so; its own

	commands int  // in the batch of input under way
	withhold bool // a census is being taken: answers wait
	pace     moderator

	count struct{ writes, reads, pdusOut, pdusIn, bytesIn uint64 }
}

// task is a command on a TCP connection.
type task struct {
	iscsi.Task
	out dataOut
	ans answer
}

func of(t *iscsi.Task) *task { return t.Mover.(*task) }

// newMover returns a mover for tc, which it owns from now on.
func newMover(tc *net.TCPConn, pool *mem.Pool) (*Mover, error) {
	sock, err := stream.Open(tc) // Serve closes tc, after dead is set
	if err != nil {
		return nil, err
	}
	m := &Mover{
		tc: tc, sock: sock, pool: pool, maxIn: loginSegment,
		peer: tc.RemoteAddr().String(), here: tc.LocalAddr().String(),
	}
	sock.OnRoom(m.onWritable, m.written)
	m.p.MaxRecvDataSegmentLength, m.p.MaxBurstLength = loginSegment, loginSegment
	return m, nil
}

// Peer implements iscsi.Datamover.
func (m *Mover) Peer() string { return m.peer }

// Count implements iscsi.Datamover: system calls, PDUs, and bytes of them.
func (m *Mover) Count(tell func(string, uint64)) {
	tell("writes", m.count.writes)
	tell("reads", m.count.reads)
	tell("messages_out", m.count.pdusOut)
	tell("messages_in", m.count.pdusIn)
	tell("bytes_out", m.tx.out.Written)
	tell("bytes_in", m.count.bytesIn)
}

// Local implements iscsi.Datamover.
func (m *Mover) Local() string { return m.here }

// Transport implements iscsi.Datamover.
func (m *Mover) Transport() string { return "tcp" }

// HungUp implements iscsi.Datamover.
func (m *Mover) HungUp() bool {
	if m.dead {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(m.sock.FD), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	n := len(m.free)
	if n == 0 {
		t := new(task)
		t.Conn, t.Mover = m.conn, t
		return t
	}
	t := m.free[n-1]
	m.free[n-1] = nil
	m.free = m.free[:n-1]
	return t
}

// maxFree is how many tasks an idle connection keeps for the next burst.
const maxFree = 64

// FreeTask implements iscsi.Datamover.
func (m *Mover) FreeTask(it *iscsi.Task) {
	t := of(it)
	invariant.Check(m.rx.t != t, "a task is given back that takes the data segment under way")
	if it.Write {
		t.out.reset()
	}
	invariant.Check(!t.out.pulling && t.out.stash == nil && t.out.part == nil && t.out.recv == 0, "data-out is of commands with the W bit")
	if len(m.free) < maxFree {
		m.free = append(m.free, t)
	}
}

// Enable implements iscsi.Datamover.
func (m *Mover) Enable(p *login.Params, maxIn int) {
	m.enabled, m.p, m.maxIn = true, *p, maxIn
	m.headerDigest, m.dataDigest = p.HeaderDigest, p.DataDigest
}

// isSmall reports whether the initiator sends nothing but small PDUs: it is in its login, or in a
// discovery session. It may not have proved anything, and gets no I/O memory.
func (m *Mover) isSmall() bool { return m.maxIn <= loginSegment }

// Terminate implements iscsi.Datamover.
func (m *Mover) Terminate(how iscsi.Termination) {
	if m.dead || m.closing && how != iscsi.AtOnce {
		return
	}
	m.closing = true
	if how == iscsi.AtOnce {
		m.broken()
		return
	}
	m.linger()
}

const (
	digestLen = pdu.DigestLen
	// loginSegment is the longest data segment before the full feature phase (RFC 7143 §6.3).
	loginSegment = 8192
)
