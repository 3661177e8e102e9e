package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/mem"
	"oneshot/volume"
	"oneshot/volume/access"
)

// taskState is the part of a task that the transport does not see.
//
// The driving goroutine owns everything but the atomics and what is marked. Three things
// reach a task from elsewhere: completions of the store and grants of what it waits for, which are its
// request's (volume.Request), and an abort (state). Each leaves its mark and calls Owner.TaskReady;
// the marks are looked at when the driver resumes the task.
//
// Who finishes a task and who aborts it is decided by one compare-and-swap on state: from
// nothing to finished by the driver, or to aborted by anybody. Whoever comes second knows.
type taskState struct {
	itl   *itl
	lu    *LogicalUnit
	cmd   *command
	ended ending
	r     volume.Request
	then  func(*Task) Next // the step after the current one of r

	off, n  int64 // the bytes of the volume that the command is about
	fua     bool
	status  []byte   // GET LBA STATUS: the answer so far
	copying *copying // nil: the command is no copy

	changing *access.Change // of the volume's table
	finish   func(*Task, *access.Change) Next
	told     uint32          // attentions that the answer reports
	badList  Sense           // what is wrong with the TransportIDs of changing
	waiter   *sanitizeWaiter // of SANITIZE
	measured *usage          // of LOG SENSE, when its store is asked for its space
	data     [1][]byte       // backs In where it is made by the command
	asking   bool            // room asks for memory, and waits for no second call of Run
	sense    [maxSense]byte

	state atomic.Uint32 // stateFinished, stateAborted

	turn       volume.Turn // in which it runs
	gated      bool        // counted in LogicalUnit.gate
	outrun     bool        // when it was listed a reservation kept it from running
	late       bool        // it is overdue (Overdue), unless guardBlocks has been called
	listed     bool        // in itl's list; written by the driver with itl.mu held
	next, prev *Task       // itl's list, guarded by itl.mu
	managers   []*manager  // who waits for the release; guarded by itl.mu

	queueNext *Task // in taskOrder, guarded by its mutex
}

// ending is how the last step has ended the task.
type ending uint8

const (
	notEnded ending = iota
	endedDone
	endedAborted
)

// toldLUNs in Task.told: the initiator is told the logical units that there are, and so that they have changed.
const toldLUNs = 1 << 31

const (
	stateFinished = 1 << iota
	stateAborted
	stateOver // aborted, and does nothing any more; set with itl.mu held
)

// Start decodes, checks and begins the command.
func (t *Task) Start() Next {
	invariant.Check(t.itl == nil && t.ended == notEnded && !t.listed, "scsi: a task is started that was not released")
	t.itl = t.Nexus.lookup(t.LUN)
	if t.itl == nil {
		return t.settle(t.beginWithoutLU())
	}
	t.lu = t.itl.lu
	if t.Attr != Simple || t.itl.copies.Load() > 0 {
		t.answerByCopy()
	}
	t.r.Begin(t, t.lu.v, int(t.lu.blockSize), t.Nexus.most, t.Nexus.batching, t.NoLend)
	t.turn = t.itl.tasks.Enter()
	// The count comes before the look at the gate: an ORDERED task raises the gate before it
	// looks at the counts, so one of the two sees the other.
	if t.Attr != Simple || t.lu.gate.Load() != 0 {
		return t.settle(t.enterInOrder())
	}
	return t.settle(t.begin())
}

// begin runs the command on a logical unit that is there.
func (t *Task) begin() Next {
	t.cmd = lookupCommand(t.CDB)
	if t.itl.ua.Load() != 0 && (t.cmd == nil || t.cmd.Flags&ignoresUA == 0) {
		var s Sense
		if s, t.told = t.itl.takeUA(); t.told != 0 {
			return t.check(s)
		}
	}
	if !t.admissible() {
		return Done
	}
	if t.cmd.Flags&beginsAtOnce != 0 {
		t.list()
	}
	// After the unit attentions and before the command looks at its parameters (SPC-4 §5.12).
	if denied := t.itl.denied.Load() & t.cmd.denied; denied != 0 {
		return t.deny(denied)
	}
	if t.cmd.Flags&writesMedium != 0 && t.lu.writeProtected() {
		return t.check(senseWriteProtected)
	}
	if t.late && t.cmd.Flags&writesMedium != 0 { // it has waited for commands before it, and has not told what it writes
		return t.tooLate()
	}
	return t.cmd.Run(t)
}

// tooLate ends a command that is overdue before it is known what it changes: its initiator may have given it up, and what has been done since, by
// whom, is not known.
func (t *Task) tooLate() Next { return t.check(Sense{Key: keyAbortedCommand}) }

// beginWithoutLU runs the commands that answer for an incorrect LUN (SPC-4 §6.4.2, §6.33,
// §6.39), and refuses the rest.
func (t *Task) beginWithoutLU() Next {
	t.cmd = lookupCommand(t.CDB)
	if t.cmd == nil || t.cmd.Flags&anyLUN == 0 {
		return t.check(senseNoLUN)
	}
	if !t.admissible() {
		return Done
	}
	return t.cmd.Run(t)
}

// admissible makes the checks that are the same for all commands. False: it has ended the command
// with CHECK CONDITION.
func (t *Task) admissible() bool {
	switch {
	case t.cmd == nil && oneCommand(t.CDB[0]):
		return t.refuse(invalidField(1))
	case t.cmd == nil, t.cmd.When != nil && !t.cmd.When(t.lu):
		return t.refuse(senseInvalidOpcode)
	case len(t.CDB) < len(t.cmd.Usage):
		return t.refuse(invalidField(len(t.CDB) - 1))
	case t.CDB[len(t.cmd.Usage)-1]&controlNACA != 0:
		return t.refuse(invalidField(len(t.cmd.Usage) - 1))
	case t.Attr == ACA:
		// SAM-5 §8.6.5: an ACA task without an ACA condition. The attribute is no field of the
		// CDB; the code is the one for it all the same.
		return t.refuse(Sense{Key: keyIllegalRequest, Code: 0x2400})
	}
	return true
}

// oneCommand reports whether the service actions under an operation code are fields of one
// command rather than commands of their own: PERSISTENT RESERVE IN and OUT, SANITIZE, and the
// third-party copy commands (SPC-4 §6.15, §6.16, §6.17, §6.18, SBC-3 §5.34).
func oneCommand(opcode byte) bool {
	switch opcode {
	case 0x5e, 0x5f, 0x48, 0x83, 0x84:
		return true
	}
	return false
}

// controlNACA is the NACA bit of the CONTROL byte (SAM-5 §5.2).
const controlNACA = 0x04

// Pulled says that Out has been filled.
func (t *Task) Pulled() Next {
	switch {
	case !t.r.Pulling():
		return t.last()
	case t.state.Load() != 0:
		return t.settle(Aborted)
	}
	next, _ := t.r.Pulled()
	return t.settle(next)
}

// Resume goes on after Owner.TaskReady, or after memory may be had. It may be called too
// often, and on a task that has been released: without a reason to go on it returns Wait, or
// Done or Aborted again.
func (t *Task) Resume() Next {
	aborted := t.state.Load()&stateAborted != 0
	next, due := t.r.Resume(aborted)
	if !due {
		if aborted && t.ended == notEnded && t.isBehindOthers() {
			t.itl.over(t)
		}
		return t.last()
	}
	return t.settle(next)
}

// isBehindOthers reports whether the task waits for its turn among changes of persistent reservations that nodes agree on. One of these may be that which has
// aborted it: nobody waits for the other then. To the medium it does nothing.
func (t *Task) isBehindOthers() bool {
	c := t.changing
	return c != nil && (c.Op <= access.RegisterAndMove || c.Op == access.Look) && t.lu.v.Access().Shared()
}

// last is the answer to a step that is not due.
func (t *Task) last() Next {
	switch t.ended {
	case endedDone:
		return Done
	case endedAborted:
		return Aborted
	}
	return Wait
}

// settle is the end of every step.
func (t *Task) settle(next Next) Next {
	invariant.Check(t.ended == notEnded, "scsi: a task that has ended takes a step")
	switch next {
	case Done:
		if t.listed && !t.state.CompareAndSwap(0, stateFinished) {
			return t.settle(Aborted)
		}
		t.end(endedDone)
	case Aborted:
		t.end(endedAborted)
		t.Untold()
		if t.changing != nil {
			t.itl.lu.v.Access().TakeBack(t.changing)
		}
		if t.listed {
			t.itl.over(t)
		}
	case Pull:
		t.list()
		if t.preempted() {
			return t.settle(t.conflict())
		}
		t.Out, t.OutLen, t.PlaceUnit = t.r.Out, t.r.OutLen, t.r.PlaceUnit
	default:
		if !t.listed {
			t.list()
			t.outrun = t.cmd != nil && t.itl != nil && t.preempted()
		}
	}
	return next
}

// end is the end of the last step.
func (t *Task) end(how ending) {
	t.r.Settle()
	t.ended = how
	if t.copying != nil {
		t.leaveCopy()
	}
	if t.itl != nil && !t.keepsOrder() {
		t.leaveOrder(0)
	}
}

// list enters the task into its task set, unless it is there.
func (t *Task) list() {
	if !t.listed && t.itl != nil { // without a logical unit there is no task set
		t.itl.list(t)
	}
}

// preempted reports whether a reservation keeps the command, which has changed nothing yet, from running now. PREEMPT AND ABORT first
// denies and then aborts what is in the task set: a command that looked before the one and came into the set after the other has to see it here.
// One that fetches no data before it changes the medium (beginsAtOnce) comes into the set before it looks.
func (t *Task) preempted() bool {
	return t.itl.denied.Load()&t.cmd.denied&denyReserved != 0
}

// Fail ends a task that is being pulled with CHECK CONDITION: the transport could not fetch
// the data-out. It returns Done, or Aborted if task management was faster.
func (t *Task) Fail(s Sense) Next {
	if !t.r.Pulling() {
		return t.last()
	}
	return t.settle(t.check(s))
}

// Abort marks the task aborted, as task management does: its connection is going away, or
// nobody waits for its answer. A task that has finished is left alone. Otherwise the owner is
// told with TaskReady, and a Resume returns Aborted as soon as nothing uses the task any
// more. It may be called from any goroutine between Start and Release.
func (t *Task) Abort() {
	if t.state.Or(stateAborted) == 0 {
		t.Owner.TaskReady(t)
	}
}

// Untold says that the initiator does not get the answer of the task: the unit attentions that it reports are pending again. It is called
// between Done and Release.
func (t *Task) Untold() {
	if t.told == 0 {
		return
	}
	if t.told != toldLUNs {
		t.itl.ua.Or(t.told)
	} else {
		for _, i := range *t.Nexus.table.Load() {
			i.ua.Or(uaLUNsChanged)
		}
	}
	t.told = 0
}

// OverdueTicks is that of volume.
const OverdueTicks = volume.OverdueTicks

// Overdue says that the task has been under way for OverdueTicks seconds; see volume.Request. Its driver calls it.
func (t *Task) Overdue() {
	if t.isDormant() && t.guardBlocks() {
		return
	}
	t.late = true
	if t.copying != nil {
		t.copyIsLate()
	}
	t.r.Overdue()
}

// About names the command of a task whose data-out is pulled, and its logical unit, for people.
func (t *Task) About() string { return fmt.Sprintf("a %s to LUN %d", t.cmd.Name, t.itl.lun) }

// BeginPlace lends the memory for the n bytes of data-out from at on, both multiples of PlaceUnit,
// to the transport; see volume.Request.
func (t *Task) BeginPlace(at, n int) Placing { return t.r.BeginPlace(at, n) }

// Place copies b to where the data-out from at on belongs, with or without PlaceUnit.
func (t *Task) Place(at int, b []byte) { t.r.Place(at, b) }

// Placing is what BeginPlace has lent, and all that End gives back. The zero value is nothing.
type Placing = volume.Placing

// Release gives back what the task holds, takes it out of the task set, and clears it for the
// next command. The owner may still be told TaskReady for it by a goroutine that was late;
// Resume then has no effect.
func (t *Task) Release() {
	invariant.Check(t.itl == nil || t.ended != notEnded, "scsi: a task is released that has not ended")
	t.r.Release()
	if t.itl != nil {
		t.leaveTaskSet()
	}
	t.clear()
}

func (t *Task) leaveTaskSet() {
	i := t.itl
	var managers []*manager
	if t.listed {
		managers = i.unlist(t)
	}
	if t.keepsOrder() {
		t.leaveOrder(1)
	} else {
		i.tasks.Release()
	}
	for _, m := range managers {
		m.released()
	}
}

// clear is *t = Task{}, except for what the request keeps.
func (t *Task) clear() {
	t.Owner, t.Nexus, t.CDB = nil, nil, nil
	t.LUN, t.Attr, t.DataOutLen, t.DataInLen, t.NoLend = 0, 0, 0, 0, false
	t.Status, t.Sense, t.In, t.Transfer, t.TransferOut = 0, nil, nil, 0, false
	t.Out, t.OutLen, t.PlaceUnit = nil, 0, 0
	t.itl, t.lu, t.cmd, t.ended, t.then = nil, nil, nil, notEnded, nil
	t.off, t.n, t.fua, t.status, t.data[0] = 0, 0, false, nil, nil
	if t.changing != nil {
		t.changing, t.finish, t.badList = nil, nil, Sense{}
	}
	t.waiter, t.measured, t.told, t.late = nil, nil, 0, false
	t.state = atomic.Uint32{} // nobody else looks at it: a store of it would cost as much as the rest of this
	if t.listed {
		t.listed, t.outrun, t.next, t.prev, t.managers = false, false, nil, nil, nil
	}
	if t.gated {
		t.gated, t.queueNext = false, nil
	}
}

// ---- the client of the request ----

// Signal is for the request: it sets flag, after which the task may be gone.
func (t *Task) Signal(flag *atomic.Bool) {
	owner := t.Owner
	flag.Store(true)
	owner.TaskReady(t)
}

// Lease is for the request.
func (t *Task) Lease(n int) *mem.Lease { return t.Owner.Lease(t, n) }

// Begun is for the request.
func (t *Task) Begun() { t.itl.begin() }

// Cork is for the request; see backend.Corker.
func (t *Task) Cork() backend.Uncorker {
	if c, ok := t.Owner.(Corker); ok {
		return c.Cork()
	}
	return nil
}

// taskOf returns the task that a request works for.
func taskOf(r *volume.Request) *Task { return r.Client().(*Task) }

// taskStep goes on with the task of a request.
func taskStep(r *volume.Request) Next {
	t := taskOf(r)
	return t.then(t)
}

// before notes what follows the next step of the request.
func (t *Task) before(then func(*Task) Next) volume.Step {
	t.then = then
	return taskStep
}

// transferred ends the command as its transfer has ended.
func transferred(r *volume.Request) Next { return taskOf(r).transferred() }

func (t *Task) transferred() Next {
	switch {
	case t.r.Err != nil:
		return t.storeFailed()
	case t.r.Mismatch >= 0:
		return t.check(miscompare(t.r.Mismatch))
	}
	return t.good()
}

// ---- what commands are written with ----

// good ends the command with GOOD.
func (t *Task) good() Next {
	t.Status = Good
	return Done
}

// check ends the command with CHECK CONDITION. The transport sends no data-in with it.
func (t *Task) check(s Sense) Next {
	t.Status = CheckCondition
	t.In = nil
	t.Sense = s.AppendTo(t.sense[:0], t.lu != nil && t.lu.descriptorSense())
	return Done
}

// refuse is check for what reports whether the command goes on: it does not.
func (t *Task) refuse(s Sense) bool {
	t.check(s)
	return false
}

// maxHeapAnswer is how many bytes of an answer that a command builds may be heap memory until it has left. A
// longer one is in I/O memory, which the connection's share bounds: an initiator can ask for
// a full command window of answers of 64 KiB and take none of them.
const maxHeapAnswer = 512

// reply ends the command with data-in of which the initiator has allocated space for alloc
// bytes. It takes data over. Answers that grow with what the target knows are written with room
// instead.
func (t *Task) reply(data []byte, alloc int) Next {
	if n := min(len(data), alloc, int(t.DataInLen)); n > maxHeapAnswer || cap(data) > maxHeapAnswer {
		out, next := t.room(len(data), alloc)
		out.put(data)
		return next
	}
	data = data[:min(len(data), alloc)]
	t.Transfer = uint64(len(data))
	return t.replyWith(data[:min(len(data), int(t.DataInLen))])
}

// replyWith ends the command with data.
func (t *Task) replyWith(data []byte) Next {
	if len(data) > 0 {
		t.data[0] = data
		t.In = t.data[:]
	}
	return t.good()
}

// room is where the command writes an answer of n bytes, of which the initiator has allocated space
// for alloc: straight into what leaves, so that answers of any length leave no garbage. The command
// returns next in any case, whatever out has taken. When there is no memory for the answer now, out
// takes nothing, and the command's Run is called again once there may be.
func (t *Task) room(n, alloc int) (out output, next Next) {
	n = min(n, alloc)
	t.Transfer = uint64(n)
	n = min(n, int(t.DataInLen))
	if n <= maxHeapAnswer {
		out = make(output, n)
		return out, t.replyWith(out)
	}
	if n > t.Nexus.most {
		return nil, t.check(senseNoResources)
	}
	if t.lu == nil { // REPORT LUNS, which a task without a logical unit may be, too
		t.r.Begin(t, nil, 0, t.Nexus.most, false, false)
	}
	if n > t.r.Leased() {
		t.r.DropMemory() // of the last attempt, before the answer grew
		t.asking = true
		next = t.r.Memory(n, 0, t.before((*Task).roomFound))
		t.asking = false
		if next != Done {
			return nil, next
		}
	}
	out = t.r.Data()[:n]
	return out, t.replyWith(out)
}

// roomFound goes on with the memory that room has asked for: in room, or from the start.
func (t *Task) roomFound() Next {
	if t.asking {
		return Done
	}
	return t.cmd.Run(t)
}

// output is what is left of the room for an answer. What it has no room for is dropped.
type output []byte

func (o *output) put(b []byte) { *o = (*o)[copy(*o, b):] }

// putUint64 puts v, big-endian.
func (o *output) putUint64(v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	o.put(b[:])
}

// takeParameters gets n bytes of data-out into t.r.Data, a parameter list. One that is late ends the command.
func (t *Task) takeParameters(n int64, then func(*Task) Next) Next {
	t.Transfer, t.TransferOut = uint64(n), true
	switch {
	case int64(t.DataOutLen) < n:
		return t.check(senseInvalidIU)
	case n == 0:
		return t.good()
	case n > t.maxTransfer():
		return t.check(senseNoResources)
	}
	t.n, t.then = n, then
	return t.r.Take(n, parametersTaken)
}

func parametersTaken(r *volume.Request) Next {
	if t := taskOf(r); t.late {
		return t.tooLate()
	}
	return taskStep(r)
}

// parameters is the parameter list.
func (t *Task) parameters() []byte { return t.r.Data()[:t.n] }

// storeFailed ends the command with the sense data for t.r.Err.
func (t *Task) storeFailed() Next {
	t.lu.log.storeError(t)
	return t.check(t.lu.senseOf(t.r.Err))
}

// senseOf translates an error of the store.
func (lu *LogicalUnit) senseOf(err error) Sense {
	if m, ok := errors.AsType[*backend.MediumError](err); ok {
		s := Sense{Key: keyMediumError, Code: 0x0c00, Info: uint64(m.Off) >> lu.blockShift, InfoValid: true}
		if m.Kind == backend.Read {
			s.Code = 0x1100
		}
		return s
	}
	if _, ok := errors.AsType[*backend.SpaceError](err); ok {
		return senseNoSpace
	}
	if _, ok := errors.AsType[*backend.MovedError](err); ok {
		return senseTransition
	}
	if err == volume.ErrOvertaken {
		return Sense{Key: keyAbortedCommand}
	}
	return senseInternal
}
