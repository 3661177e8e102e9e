// Package nvmetcp moves NVMe capsules and data over a TCP connection: framing, digests, in-capsule data, R2T, H2CData and
// C2HData (NVMe/TCP Transport Specification 1.0). It is the mover of package nvmf for byte streams.
//
//	recv.go   PDUs in:  header ─► queue, or data ─► where they are to end
//	data.go             data of one command: what has come, and what is to come
//	send.go   PDUs out: answers and control PDUs
//	serve.go            the goroutine that owns the socket
//
// The socket, its buffer, and the way of bytes are those of package bytestream.
//
// A connection costs one readv and one writev per batch of commands that its host has sent. Data go from the socket into
// the memory of the store, or into the lease of the command, and the other way round; they are copied once only when they
// have come in one piece with headers.
package nvmetcp

import (
	"net"

	"oneshot/internal/invariant"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/bytestream"
)

var _ nvmf.Mover = (*Mover)(nil)

// Mover is the mover of one TCP connection. Its fields belong to whoever holds the lock of queue, except those marked
// otherwise.
type Mover struct {
	bytestream.Link[task]
	queue *nvmf.Queue

	initialized  bool // ICReq has come
	params       nvmf.Params
	align        uint8 // HPDA: of the data that the host receives
	headerDigest bool
	dataDigest   bool
	flags        uint8 // of PDUs without data

	offender []byte // the header of the PDU that came last, for a termination request; in the buffer

	free      bytestream.Pool[task]
	capsule   pdu.Shape // of the one whose data are next, or under way: those of In.Task
	transfers []transfer
	idle      []uint64 // a bit for each of transfers that is not in use

	mute bool // no answer is sent any more: the host has broken the rules, and was told so
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
	m := new(Mover)
	if err := m.Open(tc, m, sizes); err != nil {
		return nil, err
	}
	m.params.CapsuleData, m.Small, m.Heavy = Transport.AdminCapsule, true, maxHeavy
	return m, nil
}

// Transport is NVMe over TCP. An admin queue takes data in capsules as NVMe/TCP 1.0 §3.5.1.3 has it.
var Transport = &nvmf.Transport{Name: "nvme-tcp", Type: nvme.TransportTCP, Capsule: 256 << 10, AdminCapsule: 8 << 10, Holds: true, SGLS: nvme.SGLSTransport}

// Transport implements nvmf.Mover.
func (m *Mover) Transport() *nvmf.Transport { return Transport }

// Digests implements nvmf.Mover.
func (m *Mover) Digests() (header, data bool) { return m.headerDigest, m.dataDigest }

// Connected implements nvmf.Mover. A host that has no I/O queue here sends little.
func (m *Mover) Connected(p nvmf.Params) { m.params, m.Small = p, p.QID == 0 }

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	t := m.free.Get()
	if t == nil {
		t = new(task)
		t.Queue, t.Mover = m.queue, t
	}
	return t
}

// FreeTask implements nvmf.Mover.
func (m *Mover) FreeTask(nt *nvmf.Task) {
	t := of(nt)
	invariant.Check(m.In.Task != t, "a task is given back that takes the data under way")
	t.in.reset()
	m.free.Put(t)
}

// Terminate implements nvmf.Mover.
func (m *Mover) Terminate(how nvmf.Termination) { m.Link.Terminate(how == nvmf.AtOnce) }
