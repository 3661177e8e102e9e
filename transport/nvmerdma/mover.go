package nvmerdma

import (
	"fmt"

	"oneshot/internal/invariant"
	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/transport/queuepair"
	"oneshot/transport/rdma"
)

var _ nvmf.Mover = (*Mover)(nil)

// Mover is the mover of one RDMA connection. Its fields belong to whoever holds the lock of queue.
type Mover struct {
	queuepair.Link
	queue *nvmf.Queue

	invalidate bool // completions may invalidate the host's keys
	capsule    int  // bytes of data that a capsule may have
	pulls      int  // tasks whose data are fetched
	free       []*task
}

// task is a command on an RDMA connection.
type task struct {
	nvmf.Task
	pull queuepair.Entry // the RDMA Reads of its data
	ans  queuepair.Entry // its answer

	sgl       nvme.SGL
	came      []byte // its data, while the queue takes the command
	pulling   bool   // RDMA Reads are under way
	forgotten bool   // the queue waits for their end

	fetch    queuepair.Transfer
	delivery queuepair.Transfer
	bounce   []byte           // where data are fetched to that are to end in memory which the device does not know
	memory   queuepair.Memory // of bounce, or of a copy of data from there

	entry  [nvme.CQELen]byte
	long   queuepair.Memory // of entry, if the device copies no memory
	pieces [1]rdma.SGE
}

func of(t *nvmf.Task) *task { return t.Mover.(*task) }

// Transport implements nvmf.Mover.
func (m *Mover) Transport() *nvmf.Transport { return Transport }

// Digests implements nvmf.Mover: the network has its own.
func (m *Mover) Digests() (header, data bool) { return false, false }

// Connected implements nvmf.Mover.
func (m *Mover) Connected(p nvmf.Params) {
	m.capsule = p.CapsuleData
	if p.Proved {
		m.Prove()
	}
}

// Terminate implements nvmf.Mover.
func (m *Mover) Terminate(how nvmf.Termination) {
	if how == nvmf.AtOnce {
		m.Link.Terminate(queuepair.AtOnce)
		return
	}
	m.Link.Terminate(queuepair.WhenSent)
}

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	if n := len(m.free); n > 0 {
		t := m.free[n-1]
		m.free = m.free[:n-1]
		return t
	}
	t := new(task)
	t.Queue, t.Mover = m.queue, t
	t.pull.Owner, t.ans.Owner = t, t
	m.Enter(&t.pull)
	m.Enter(&t.ans)
	return t
}

// FreeTask implements nvmf.Mover.
func (m *Mover) FreeTask(nt *nvmf.Task) {
	t := of(nt)
	invariant.Check(!t.pulling && t.bounce == nil, "a task is freed after its Reads")
	m.GiveBack(&t.long)
	m.GiveBack(&t.memory)
	t.fetch.Reset()
	t.delivery.Reset()
	t.came, t.forgotten = nil, false
	m.free = append(m.free, t)
}

// Receive implements queuepair.Mover: it takes a command capsule (RDMA 1.0 §3.3).
func (m *Mover) Receive(b []byte, _ *rdma.Completion) {
	if len(b) < nvme.SQELen {
		m.Blame(fmt.Errorf("a capsule of %d bytes, which is shorter than its command", len(b)))
		return
	}
	e, data := nvme.SQE(b[:nvme.SQELen]), b[nvme.SQELen:]
	t := m.newTask()
	t.sgl = e.SGL()
	t.Objection = m.objection(t.sgl, len(data))
	if t.sgl.Type == nvme.SGLInCapsule && t.Objection == nvme.Success {
		t.came = data[:t.sgl.Length]
	}
	// No memory of a store goes over the wire: what is sent again has to be the same bytes, and Reads place theirs at times of their
	// own. What has come is copied at once.
	t.NoLend = t.came == nil
	taken := m.queue.Command(&t.Task, e)
	t.came = nil
	if !taken {
		m.FreeTask(&t.Task)
		m.Blame(errTooMany)
	}
}

var errTooMany = fmt.Errorf("more commands than the queue has entries")

// objection is what is wrong with the descriptor of a command whose capsule has so many bytes of data.
func (m *Mover) objection(s nvme.SGL, data int) nvme.Status {
	switch {
	case s.Length == 0:
	case s.Type == nvme.SGLInCapsule:
		if int64(s.Length) > int64(min(m.capsule, data)) {
			return nvme.SGLOffset
		}
	case s.Type != nvme.SGLKeyed && s.Type != nvme.SGLKeyedInvalidate:
		return nvme.SGLType
	}
	return nvme.Success
}

// Answer implements nvmf.Mover: RDMA Writes of the data, and the response capsule, in one post.
func (m *Mover) Answer(nt *nvmf.Task) {
	t := of(nt)
	n := 0
	for _, s := range nt.In {
		n += len(s)
	}
	keyed := t.sgl.Length > 0 && t.sgl.Type != nvme.SGLInCapsule && nt.Objection == nvme.Success
	t.ans.Clear()
	if n > 0 {
		invariant.Check(keyed && n <= int(t.sgl.Length), "nvmerdma: more data than the host has room for")
		if !m.deliver(t, n) {
			nt.CQE.Status, nt.CQE.DW0, nt.CQE.DW1 = nt.Again(), 0, 0
		}
	}
	w := &t.ans.Message
	*w = rdma.Work{Op: rdma.OpSend}
	if keyed && t.sgl.Type == nvme.SGLKeyedInvalidate && m.invalidate {
		w.Flags, w.STag = rdma.Invalidate, rdma.STag(t.sgl.Key)
	}
	t.ans.HasMessage = true
	m.Attach(w, nt.CQE.AppendTo(t.entry[:0]), &t.long, &t.pieces)
	m.Push(&t.ans)
}

// Progress implements queuepair.Mover.
func (m *Mover) Progress() { m.queue.Fetching(m.pulls) }

// Ended implements queuepair.Mover.
func (m *Mover) Ended(e *queuepair.Entry) {
	t := e.Owner.(*task)
	switch {
	case e == &t.pull:
		m.pulled(t)
	case e.Failed:
		m.queue.AnswerLost(&t.Task)
	default:
		m.queue.Sent(&t.Task)
	}
}
