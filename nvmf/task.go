package nvmf

import (
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/baton"
	"oneshot/internal/owed"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// Task is a command of a queue. The mover allocates it, mostly inside something larger of its own, and uses it for one command
// after the other.
type Task struct {
	// Set by the mover for good. Signals, which may be late, read Queue without a lock.
	Queue *Queue
	Mover any // the mover's own
	// NoLend asks, before each command, that In never be memory of a store that other commands can change while the
	// answer is on its way, and that Out never be memory of a store, so that a digest can be checked first.
	NoLend bool
	// Objection is what the mover has against a command that it hands over: the status that the command ends with. Success: nothing.
	Objection nvme.Status

	SQE       nvme.SQE
	Len       uint32 // bytes of the host's buffer
	InCapsule bool   // its data come with the command

	// Valid for GetData; see volume.Request.
	Out       [][]byte
	OutLen    int
	PlaceUnit int

	// Valid for Answer.
	In  [][]byte
	CQE nvme.CQE

	entry   [nvme.SQELen]byte
	state   taskState
	slot    int        // in Queue.tasks, or -1
	ticks   uint8      // seconds there; more than volume.OverdueTicks: many
	owed    owed.Item  // its data, as long as they are fetched
	arrived int64      // when it came, as Queue.times has it
	leased  int        // bytes of I/O memory, as the pool counts them
	unsent  int        // of these: counted in Queue.unsent
	wanted  int        // bytes of memory that it waits for; it is in Queue.hungry
	queued  baton.Mark // in Queue.ready
	aborted bool
	status  nvme.Status // of an aborted command

	parked    bool // an Asynchronous Event Request
	late      bool // it is not begun, for the queue was leaving when it came; or is the Disconnect that waits for the others
	elsewhere bool // somebody else works for it, and steps it when that is done
	// waits: a Connect waits until what its host has left in the subsystem is over.
	waits *Subsystem

	r       volume.Request
	path    *path       // nil: the command is about no namespace's blocks
	turn    volume.Turn // in which it runs
	ended   bool        // it does not run any more, as path.commands has it
	held    []heldPath  // that an admin command is about: their namespaces are not closed before it ends
	off     int64       // bytes of the volume
	n       int64
	own     func(*Task) volume.Next // goes on with data that the task has memory of its own for
	after   func(*Task) volume.Next // the step after the current one of r
	fua     bool                    // flush at the end
	copying *copying
	data    [1][]byte // backs In and Out
	zero    [1]volume.Range

	awaited  []*abortion    // what waits for the end of the command
	changing *access.Change // of who may do what
	others   []heldPath     // that are to be changed next

	// A fused pair is the request of its first command. Both have data in one half of its memory each.
	fused  bool // the first of a pair
	got    bool // its data are in
	second *Task
	pair   *Task // of the second: the first
}

// A task is what its request works for.
var _ volume.Client = (*Task)(nil)

// Signal implements volume.Client.
func (t *Task) Signal(flag *atomic.Bool) {
	q := t.Queue
	flag.Store(true)
	q.taskReady(t)
}

// Lease implements volume.Client.
func (t *Task) Lease(n int) *mem.Lease { return t.Queue.lease(t, n) }

// Begun implements volume.Client.
func (t *Task) Begun() {
	if p := t.path; !p.begun {
		p.begun = true
		t.Queue.begun = append(t.Queue.begun, p)
	}
}

// Cork implements volume.Client.
func (t *Task) Cork() backend.Uncorker { return t.Queue.cork() }

// BeginPlace lends the memory for the n bytes of data from at on; see volume.Request.
func (t *Task) BeginPlace(at, n int) volume.Placing { return t.r.BeginPlace(at, n) }

// Place copies b to where the data from at on belong.
func (t *Task) Place(at int, b []byte) { t.r.Place(at, b) }

// start begins a command.
func (t *Task) start() volume.Next {
	q := t.Queue
	if wrong := t.descriptor(); wrong != nvme.Success {
		return t.refuse(wrong)
	}
	switch {
	case t.SQE.Opcode() == nvme.Fabrics:
		return t.fabrics()
	case q.state == queueUnproven:
		return t.refuse(nvme.AuthenticationRequired)
	case q.ctrl == nil || !q.ctrl.ready.Load():
		return t.refuse(nvme.CommandSequence)
	case q.id == 0:
		return t.admin()
	}
	return t.io()
}

// descriptor says what is wrong with the description of the host's buffer.
func (t *Task) descriptor() nvme.Status {
	switch {
	case t.SQE.PSDT() != nvme.PSDTSGL && t.SQE.Opcode() != nvme.Fabrics: // where the byte is reserved (Base 2.0 §6)
		return nvme.InvalidField
	case t.Objection == nvme.Success && t.InCapsule && t.SQE.SGL().Address != 0:
		return nvme.SGLOffset
	}
	return t.Objection
}

// Placing is what Task.BeginPlace returns.
type Placing = volume.Placing

// end ends the command with a status.
func (t *Task) end(s nvme.Status) volume.Next {
	t.CQE.Status = s
	return volume.Done
}

// refuse ends the command with a status that a repetition would meet again.
func (t *Task) refuse(s nvme.Status) volume.Next { return t.end(s | nvme.DNR) }

// abortWith ends the command with a status as soon as nothing uses it any more.
func (t *Task) abortWith(s nvme.Status) {
	if t.pair != nil {
		t.pair.abortWith(s)
		return
	}
	if !t.aborted {
		t.aborted, t.status = true, s
		t.Queue.queue(t)
		t.Queue.awaken(false)
	}
}

// resume goes on after a signal; see volume.Request.
func (t *Task) resume() (volume.Next, bool) {
	switch {
	case t.pair != nil:
		return volume.Wait, false
	case t.late:
		return volume.Aborted, t.aborted
	case t.aborted && t.parked:
		t.Queue.ctrl.unpark(t)
		return volume.Aborted, true
	case t.aborted && t.waits != nil:
		t.waits.giveUp(t)
		return volume.Aborted, true
	case t.elsewhere, t.waits != nil:
		return volume.Wait, false
	case t.aborted && t.own != nil:
		return volume.Aborted, true
	}
	return t.r.Resume(t.aborted)
}

// pulled goes on when the data are in.
func (t *Task) pulled() volume.Next {
	if own := t.own; own != nil {
		t.own = nil
		return own(t)
	}
	next, _ := t.r.Pulled()
	return next
}

// tick lets a second pass for a command that is under way.
func (t *Task) tick() {
	if t.ticks <= volume.OverdueTicks {
		t.ticks++
	}
	if !t.isOverdue() {
		return
	}
	if t.copying != nil {
		t.copyIsLate()
	}
	t.r.Overdue()
}

// isOverdue reports whether the command has been under way for long: see volume.Request.Overdue.
func (t *Task) isOverdue() bool { return t.ticks > volume.OverdueTicks }

// release gives back what the command held, and clears the task for the next one.
func (t *Task) release() {
	t.r.Release()
	if t.path != nil {
		t.leavePath()
	}
	for _, p := range t.held {
		p.letGo()
	}
	t.held = nil
	t.In, t.Out, t.data[0] = nil, nil, nil
	t.own, t.after = nil, nil
	t.changing, t.others = nil, nil
	if t.copying != nil {
		t.leaveCopy()
	}
	t.parked, t.late, t.fused, t.got, t.fua = false, false, false, false, false
}

// before returns the step of the request that goes on with then.
func (t *Task) before(then func(*Task) volume.Next) volume.Step {
	t.after = then
	return taskStep
}

func taskStep(r *volume.Request) volume.Next {
	t := r.Client().(*Task)
	return t.after(t)
}

// pullOwn has n bytes of data fetched to b, and goes on with then.
func (t *Task) pullOwn(b []byte, then func(*Task) volume.Next) volume.Next {
	t.data[0] = b
	t.Out, t.OutLen, t.PlaceUnit, t.own = t.data[:], len(b), 0, then
	return volume.Pull
}

// replyWith ends the command with data.
func (t *Task) replyWith(b []byte) volume.Next {
	t.data[0] = b
	t.In = t.data[:]
	return t.end(nvme.Success)
}

// build gets n bytes of memory, has fill write them, and ends the command with them.
func (t *Task) build(n int, fill func(b []byte)) volume.Next {
	switch {
	case t.InCapsule: // the data go the other way
		return t.refuse(nvme.SGLType)
	case n > t.Queue.node.most:
		return t.refuse(nvme.InvalidField)
	}
	t.r.Begin(t, nil, 0, t.Queue.node.most, false, false)
	return t.r.Memory(n, 0, t.before(func(t *Task) volume.Next {
		fill(t.r.Data())
		return t.replyWith(t.r.Data())
	}))
}
