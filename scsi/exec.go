package scsi

import (
	"errors"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/mem"
)

// taskState is the part of a task that the transport does not see.
//
// The driving goroutine owns everything but the atomics and what is marked. Three things
// reach a task from elsewhere: the store's completion (opDone), a grant of what it waits for
// (granted), and an abort (state). Each leaves its mark and calls Owner.TaskReady; the marks
// are looked at when the driver resumes the task.
//
// Who finishes a task and who aborts it is decided by one compare-and-swap on state: from
// nothing to finished by the driver, or to aborted by anybody. Whoever comes second knows.
type taskState struct {
	itl   *itl
	lu    *LogicalUnit
	cmd   *command
	phase phase
	then  func(*Task) Next // the step after the current wait

	off, n  int64  // the bytes of the store that the command is about
	lba     uint64 // as in the CDB
	fua     bool
	op      backend.Op
	segs    [][]byte  // backs In and Out; kept over Release
	one     [1][]byte // backs op.Segs where it is a part of a lease
	lease   *mem.Lease
	scratch []byte // memory to look at the store's bytes in
	want    [2]int // sizes of data and scratch in the lease that is being waited for
	work
	copying *copying // nil: the command is no copy
	sense   [maxSense]byte

	hold    holdKind // what the task holds of LogicalUnit.ranges
	holdOff int64
	holdLen int64

	opDone  atomic.Bool
	granted atomic.Bool
	state   atomic.Uint32 // stateFinished, stateAborted

	gated      bool       // counted in LogicalUnit.gate
	listed     bool       // in itl's list; written by the driver with itl.mu held
	next, prev *Task      // itl's list, guarded by itl.mu
	managers   []*manager // who waits for the release; guarded by itl.mu

	queueNext *Task // in taskOrder or rangeLock.queue, guarded by their mutexes
	queueKind holdKind
}

// phase is what a task waits for.
type phase uint8

const (
	phaseIdle     phase = iota
	phaseDormant        // its turn in the task set
	phaseMemory         // I/O memory
	phasePull           // data-out
	phaseOp             // the store
	phaseRange          // its turn on a range of blocks
	phaseYield          // others to have been served
	phaseSanitize       // the end of a sanitize operation
	phaseOthers         // other tasks, or a file, to be done with
	phaseDone
	phaseAborted
)

const (
	stateFinished = 1 << iota
	stateAborted
)

// Start decodes, checks and begins the command.
func (t *Task) Start() Next {
	t.itl = t.Nexus.lookup(t.LUN)
	if t.itl == nil {
		return t.settle(t.beginWithoutLU())
	}
	t.lu = t.itl.lu
	t.itl.running.Add(1)
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
		if s, ok := t.itl.takeUA(); ok {
			return t.check(s)
		}
	}
	if s, ok := t.admissible(); !ok {
		return t.check(s)
	}
	// After the unit attentions and before the command looks at its parameters (SPC-4 §5.12).
	if denied := t.itl.denied.Load() & t.cmd.denied; denied != 0 {
		return t.deny(denied)
	}
	if t.cmd.Flags&writesMedium != 0 && t.lu.writeProtected() {
		return t.check(senseWriteProtected)
	}
	return t.cmd.Run(t)
}

// beginWithoutLU runs the commands that answer for an incorrect LUN (SPC-4 §6.4.2, §6.33,
// §6.39), and refuses the rest.
func (t *Task) beginWithoutLU() Next {
	t.cmd = lookupCommand(t.CDB)
	if t.cmd == nil || t.cmd.Flags&anyLUN == 0 {
		return t.check(senseNoLUN)
	}
	if s, ok := t.admissible(); !ok {
		return t.check(s)
	}
	return t.cmd.Run(t)
}

// admissible makes the checks that are the same for all commands.
func (t *Task) admissible() (Sense, bool) {
	switch {
	case t.cmd == nil && oneCommand(t.CDB[0]):
		return invalidField(1), false
	case t.cmd == nil, t.cmd.When != nil && !t.cmd.When(t.lu):
		return senseInvalidOpcode, false
	case len(t.CDB) < len(t.cmd.Usage):
		return invalidField(len(t.CDB) - 1), false
	case t.CDB[len(t.cmd.Usage)-1]&controlNACA != 0:
		return invalidField(len(t.cmd.Usage) - 1), false
	case t.Attr == ACA:
		// SAM-5 §8.6.5: an ACA task without an ACA condition. The attribute is no field of the
		// CDB; the code is the one for it all the same.
		return Sense{Key: keyIllegalRequest, Code: 0x2400}, false
	}
	return Sense{}, true
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
	if t.phase != phasePull {
		return t.last()
	}
	if t.state.Load() != 0 {
		return t.settle(Aborted)
	}
	return t.settle(t.then(t))
}

// Resume goes on after Owner.TaskReady, or after memory may be had. It may be called too
// often, and on a task that has been released: without a reason to go on it returns Wait, or
// Done or Aborted again.
func (t *Task) Resume() Next {
	aborted := t.state.Load()&stateAborted != 0
	switch t.phase {
	case phaseOp:
		if !t.opDone.Load() {
			return Wait
		}
		t.opDone.Store(false)
	case phaseDormant, phaseRange, phaseSanitize:
		if !t.granted.Load() && !(aborted && t.withdraw()) {
			return Wait
		}
		if t.granted.Swap(false) && t.phase == phaseRange {
			t.hold = t.queueKind
		}
	case phaseMemory:
		if !aborted {
			return t.settle(t.getMemory())
		}
	case phaseOthers:
		if !t.granted.Load() {
			return Wait // even if aborted: who grants it knows the task
		}
		t.granted.Store(false)
	case phaseYield:
	case phasePull:
		if !aborted {
			return Wait
		}
	default:
		return t.last()
	}
	if aborted {
		return t.settle(Aborted)
	}
	if t.phase == phaseRange {
		return t.settle(t.haveRange(t.then))
	}
	return t.settle(t.then(t))
}

// withdraw gives up a place in a queue, and reports false if the turn has come meanwhile (and
// its TaskReady is on its way).
func (t *Task) withdraw() bool {
	switch t.phase {
	case phaseDormant:
		return t.lu.withdraw(t)
	case phaseSanitize:
		return t.lu.withdrawSanitize(t)
	}
	return t.lu.ranges.withdraw(t)
}

// last is the answer to a step that is not due.
func (t *Task) last() Next {
	switch t.phase {
	case phaseDone:
		return Done
	case phaseAborted:
		return Aborted
	}
	return Wait
}

// settle is the end of every step.
func (t *Task) settle(next Next) Next {
	switch next {
	case Done:
		if t.listed && !t.state.CompareAndSwap(0, stateFinished) {
			return t.settle(Aborted)
		}
		t.leaveRange()
		t.phase = phaseDone
	case Aborted:
		t.leaveRange()
		t.phase = phaseAborted
	default:
		if !t.listed {
			t.itl.list(t)
		}
	}
	return next
}

// Fail ends a task that is being pulled with CHECK CONDITION: the transport could not fetch
// the data-out. It returns Done, or Aborted if task management was faster.
func (t *Task) Fail(s Sense) Next {
	if t.phase != phasePull {
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

// BeginPlace lends the memory for the n bytes of data-out from at on, both multiples of PlaceUnit,
// to the transport, which calls End when it has filled it. In between lie a few microseconds of
// copying, no other call to this package, and no waiting: the pair keeps others who write away from
// these blocks, and commands that must be atomic, such as COMPARE AND WRITE. Of a task that does
// not wait for its data-out, or has no PlaceUnit, there is no such memory.
func (t *Task) BeginPlace(at, n int) Placing {
	if t.phase != phasePull || t.PlaceUnit == 0 || n == 0 {
		return Placing{}
	}
	invariant.Check(at%t.PlaceUnit == 0 && n%t.PlaceUnit == 0 && at+n <= t.OutLen, "whole blocks of the data-out are placed")
	p := Placing{lu: t.lu, off: t.off + int64(at), n: int64(n)}
	t.lu.ranges.enterSharedSpin(p.off, p.n)
	t.segs = t.lu.lender.Lend(t.segs[:0], p.off, p.n, true)
	p.Segs = t.segs
	return p
}

// Place copies b to where the data-out from at on belongs, with or without PlaceUnit.
func (t *Task) Place(at int, b []byte) {
	for _, seg := range t.Out {
		if at >= len(seg) {
			at -= len(seg)
			continue
		}
		b = b[copy(seg[at:], b):]
		at = 0
	}
	p := t.BeginPlace(at, len(b))
	for _, seg := range p.Segs {
		b = b[copy(seg, b):]
	}
	p.End()
}

// Placing is what BeginPlace has lent, and all that End gives back. The zero value is nothing.
type Placing struct {
	Segs   [][]byte // to be filled
	lu     *LogicalUnit
	off, n int64
}

// End ends what BeginPlace began. It is called once.
func (p Placing) End() {
	if p.lu != nil {
		p.lu.lender.Commit(p.off, p.n)
		p.lu.ranges.leaveShared(p.off, p.n)
	}
}

// Release gives back what the task holds, takes it out of the task set, and clears it for the
// next command. The owner may still be told TaskReady for it by a goroutine that was late;
// Resume then has no effect.
func (t *Task) Release() {
	t.leaveRange()
	if t.lease != nil {
		t.lease.Release()
	}
	if t.copying != nil {
		t.leaveCopy()
	}
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
	left := i.running.Add(-1)
	if gate := i.lu.gate.Load(); t.gated || gate != 0 && (left == 0 || gate >= gateDraining) {
		i.lu.leaveInOrder(t)
	}
	for _, m := range managers {
		m.released()
	}
}

// clear is *t = Task{}, except that it keeps the segment slice.
func (t *Task) clear() {
	segs := t.segs[:cap(t.segs)]
	clear(segs)
	t.Owner, t.Nexus, t.CDB = nil, nil, nil
	t.LUN, t.Attr, t.DataOutLen, t.DataInLen, t.NoLend = 0, 0, 0, 0, false
	t.Status, t.Sense, t.In, t.Transfer, t.TransferOut = 0, nil, nil, 0, false
	t.Out, t.OutLen, t.PlaceUnit = nil, 0, 0
	t.taskState = taskState{segs: segs[:0]}
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
	t.Sense = s.AppendTo(t.sense[:0], t.lu != nil && t.lu.mode.descriptorSense())
	return Done
}

// reply ends the command with data-in of which the initiator has allocated space for alloc
// bytes. It takes data over.
func (t *Task) reply(data []byte, alloc int) Next {
	data = data[:min(len(data), alloc)]
	t.Transfer = uint64(len(data))
	if data = data[:min(len(data), int(t.DataInLen))]; len(data) > 0 {
		t.segs = append(t.segs[:0], data)
		t.In = t.segs
	}
	return t.good()
}

// withMemory gets n bytes for the data of the command, at the start of t.lease, and extra ones
// for t.scratch (0: none), then goes on. A task that waits for memory holds none, lest two
// tasks wait for each other's.
func (t *Task) withMemory(n, extra int, then func(*Task) Next) Next {
	t.want = [2]int{n, extra}
	t.then = then
	return t.getMemory()
}

func (t *Task) getMemory() Next {
	n, extra := t.want[0], t.want[1]
	// Where direct I/O goes to the scratch memory, it has to be aligned.
	at := (n + mem.PageSize - 1) &^ (mem.PageSize - 1)
	total := n
	if extra != 0 && at+extra <= t.Nexus.most {
		total = at + extra
	}
	if total > t.Nexus.most { // it would wait for ever
		return t.check(senseNoResources)
	}
	if t.lease = t.Owner.Lease(t, total); t.lease == nil {
		t.phase = phaseMemory
		return Wait
	}
	switch {
	case extra == 0:
	case total > n:
		t.scratch = t.lease.Bytes()[at:]
	default:
		// The data has all of the largest lease there is. scratchBytes more on the heap keep
		// the memory of a connection bounded: there is one for each such lease.
		t.scratch = make([]byte, extra)
	}
	return t.then(t)
}

// pull asks for the first n bytes of data-out in t.lease.
func (t *Task) pull(n int, then func(*Task) Next) Next {
	t.segs = append(t.segs[:0], t.lease.Bytes()[:n])
	t.Out, t.OutLen = t.segs, n
	t.then = then
	t.phase = phasePull
	return Pull
}

// pullLent asks for the first n bytes of data-out in the store's own memory.
func (t *Task) pullLent(n int, then func(*Task) Next) Next {
	t.Out, t.OutLen, t.PlaceUnit = nil, n, int(t.lu.blockSize)
	t.then = then
	t.phase = phasePull
	return Pull
}

// submit gives an operation on [off, off+n) to the store, with the first n bytes of buf if it
// moves any, and goes on when it has completed, with its error in t.op.Err.
func (t *Task) submit(kind backend.Kind, off, n int64, buf []byte, then func(*Task) Next) Next {
	t.op.Kind, t.op.Off, t.op.Len, t.op.Segs = kind, off, n, nil
	if buf != nil {
		t.one[0] = buf[:n]
		t.op.Segs = t.one[:]
	}
	t.op.Done, t.op.Err = t, nil
	t.then = then
	t.phase = phaseOp
	if t.submitOp() {
		return then(t)
	}
	return Wait
}

// OpDone is for the store.
func (t *Task) OpDone(*backend.Op) {
	// Where ranges are waited for by spinning, a shared hold ends with the operation. Were it
	// kept until the driver comes round, a driver that spins would wait for itself.
	if t.hold == holdShared && t.lu.lender != nil {
		t.leaveRange()
	}
	owner := t.Owner // the driver may release the task as soon as it sees opDone
	t.opDone.Store(true)
	owner.TaskReady(t)
}

// yield lets the driver do something else before it goes on with the task.
func (t *Task) yield(then func(*Task) Next) Next {
	t.then = then
	t.phase = phaseYield
	t.Owner.TaskReady(t)
	return Wait
}

// storeFailed ends the command with the sense data for t.op.Err.
func (t *Task) storeFailed() Next {
	t.lu.log.storeError(t, &t.op)
	return t.check(t.lu.senseOf(t.op.Err))
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
	return senseInternal
}
