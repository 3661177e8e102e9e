// Package nvmetcp moves NVMe capsules and data over a TCP connection: framing, digests, in-capsule data, R2T, H2CData and
// C2HData (NVMe/TCP Transport Specification 1.0). It is the mover of package nvmf for byte streams.
//
//	recv.go   bytes in:  socket ─► header ─► queue, or data ─► where they are to end
//	data.go              data of one command: what has come, and what is to come
//	send.go   bytes out: answers and control PDUs gathered into one writev
//	serve.go             the goroutine that owns the socket
//
// A connection costs one readv and one writev per batch of commands that its host has sent. Data go from the socket into
// the memory of the store, or into the lease of the command, and the other way round; they are copied once only when they
// have come in one piece with headers.
package nvmetcp

import (
	"net"

	"oneshot/internal/invariant"
	"oneshot/internal/stream"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

var _ nvmf.Mover = (*Mover)(nil)

// Mover is the mover of one TCP connection. Its fields belong to whoever holds the lock of queue, except those marked
// otherwise.
type Mover struct {
	queue *nvmf.Queue
	tc    *net.TCPConn
	sock  *stream.Socket // its descriptor is for use with the lock held and dead unset
	peer  string
	here  string

	initialized  bool // ICReq has come
	params       nvmf.Params
	align        uint8 // HPDA: of the data that the host receives
	headerDigest bool
	dataDigest   bool
	flags        uint8 // of PDUs without data

	rx rx
	tx tx

	free      []*task // to be used again
	transfers []transfer
	idle      []uint64 // a bit for each of transfers that is not in use

	closing bool // the socket is to be closed once tx is empty
	mute    bool // no answer is sent any more: the host has broken the rules, and was told so
	half    bool // our half of it is closed
	dead    bool // the socket can no longer be used
	paused  bool // the reader waits, or is about to, until tx is short again
	pausing bool // tells the reader so; its own
}

// task is a command on a TCP connection.
type task struct {
	nvmf.Task
	in  data
	buf [answerLen]byte // of the headers of its answer
}

// answerLen is enough for the headers and digests of an answer: C2HData with its padding, a digest, and a response.
const answerLen = 4*(pdu.MaxAlign+1) + pdu.DigestLen + pdu.CapsuleRespLen + pdu.DigestLen

func of(t *nvmf.Task) *task { return t.Mover.(*task) }

// newMover returns a mover for tc, which it owns from now on.
func newMover(tc *net.TCPConn) (*Mover, error) {
	sock, err := stream.Open(tc) // serve closes tc, after dead is set
	if err != nil {
		return nil, err
	}
	m := &Mover{tc: tc, sock: sock, peer: tc.RemoteAddr().String(), here: tc.LocalAddr().String()}
	m.params.CapsuleData = freshCapsule
	sock.OnRoom(m.onWritable, m.written)
	return m, nil
}

// freshCapsule is how many bytes of data the capsules of a connection may have before it is connected.
const freshCapsule = 8 << 10

// Peer implements nvmf.Mover.
func (m *Mover) Peer() string { return m.peer }

// Local implements nvmf.Mover.
func (m *Mover) Local() string { return m.here }

// Transport implements nvmf.Mover.
func (m *Mover) Transport() string { return "nvme-tcp" }

// Connected implements nvmf.Mover.
func (m *Mover) Connected(p nvmf.Params) { m.params = p }

// isSmall reports whether the host sends little: it has no I/O queue here, and gets no I/O memory for input.
func (m *Mover) isSmall() bool { return m.params.QID == 0 }

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	n := len(m.free)
	if n == 0 {
		t := new(task)
		t.Queue, t.Mover = m.queue, t
		return t
	}
	t := m.free[n-1]
	m.free[n-1] = nil
	m.free = m.free[:n-1]
	return t
}

// maxFree is how many tasks an idle connection keeps for the next burst.
const maxFree = 64

// FreeTask implements nvmf.Mover.
func (m *Mover) FreeTask(nt *nvmf.Task) {
	t := of(nt)
	invariant.Check(m.rx.t != t, "a task is given back that takes the data under way")
	t.in.reset()
	if len(m.free) < maxFree {
		m.free = append(m.free, t)
	}
}

// Terminate implements nvmf.Mover.
func (m *Mover) Terminate(how nvmf.Termination) {
	if m.dead || m.closing && how != nvmf.AtOnce {
		return
	}
	m.closing = true
	if how == nvmf.AtOnce {
		m.broken()
		return
	}
	m.linger()
}
