package iscsi

import (
	"slices"

	"oneshot/internal/invariant"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
)

var _ scsi.Corker = (*Task)(nil)

// TaskReady implements scsi.Owner: the next holder of the connection's lock resumes the
// task, this goroutine if nobody holds it.
func (t *Task) TaskReady(*scsi.Task) { t.Conn.taskReady(t) }

// Cork implements scsi.Corker.
func (t *Task) Cork() scsi.Uncorker { return t.Conn.cork() }

// Lease implements scsi.Owner.
func (t *Task) Lease(_ *scsi.Task, n int) *mem.Lease { return t.Conn.lease(t, n) }

// Residual compares what the CDB asks for with what the initiator expects.
func (t *Task) Residual() Residual {
	// A command that moves data against the direction of its flags finds no buffer.
	edtl := uint64(t.EDTL)
	if t.Transfer > 0 && t.TransferOut != t.Write && t.TransferOut == t.Read {
		edtl = 0
	}
	switch {
	case t.Transfer > edtl:
		return Residual{Overflow: true, Count: clamp32(t.Transfer - edtl)}
	case t.Transfer < uint64(t.EDTL):
		return Residual{Underflow: true, Count: uint32(uint64(t.EDTL) - t.Transfer)}
	}
	return Residual{}
}

func clamp32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

// list puts t among the tasks that the connection waits for.
func (c *Conn) list(t *Task) {
	if t.slot >= 0 {
		return
	}
	t.slot, t.ticks = len(c.tasks), 0
	c.tasks = append(c.tasks, t)
}

func (c *Conn) unlist(t *Task) {
	if t.slot < 0 {
		return
	}
	last := c.tasks[len(c.tasks)-1]
	c.tasks[t.slot] = last
	last.slot = t.slot
	c.tasks = c.tasks[:len(c.tasks)-1]
	t.slot = -1
}

// Find returns the outstanding task with this Initiator Task Tag, or nil. At most one per
// place in the command window has to be looked at.
func (c *Conn) Find(itt uint32) *Task {
	for _, t := range c.tasks {
		if t.ITT == itt {
			return t
		}
	}
	return nil
}

// heldTask returns the task of the command with this CmdSN that waits for earlier ones, or nil.
func (c *Conn) heldTask(sn serial.SN) *Task {
	for _, t := range c.tasks {
		if t.state == taskHeld && t.cmdSN == sn {
			return t
		}
	}
	return nil
}

// find is Find in all connections of the session.
func (s *Session) find(itt uint32) *Task {
	for _, c := range s.circle.conns {
		if t := c.Find(itt); t != nil {
			return t
		}
	}
	return nil
}

// Outstanding reports whether the task has yet to be answered.
func (t *Task) Outstanding() bool { return t.state >= taskHeld && t.state <= taskPulling }

// begin starts a task whose turn has come.
func (c *Conn) begin(t *Task) {
	t.to(taskWaiting)
	if t.Immediate {
		c.sess.immediates++
	} else {
		c.sess.active++
	}
	if t.refused {
		c.answerFull(t)
		return
	}
	c.step(t, t.Start())
}

// step does what a task asks for next.
func (c *Conn) step(t *Task, next scsi.Next) {
	switch next {
	case scsi.Done:
		c.answer(t)
	case scsi.Pull:
		t.to(taskPulling)
		c.list(t)
		c.owed.Ask(&t.owed)
		c.mover.GetData(t)
	case scsi.Wait:
		t.to(taskWaiting)
		c.list(t)
	case scsi.Aborted:
		c.aborted(t)
	}
}

func (c *Conn) answer(t *Task) {
	if c.moves != nil && t.NotServed() {
		c.aborted(t) // its initiator sends it again, where the address is then
		return
	}
	c.leave(t)
	t.to(taskAnswered)
	c.mover.Answer(t)
	if t.leased > 0 { // the mover may have leased some, too
		if c.unsent == 0 {
			c.moved = c.node.clock.Load()
		}
		t.unsent = t.leased
		c.unsent += t.unsent
	}
}

// leave takes t out of the command window.
func (c *Conn) leave(t *Task) {
	c.unlist(t)
	if t.Immediate {
		c.sess.immediates--
	} else {
		c.sess.active--
	}
}

// aborted ends a task that task management, or the end of the connection, aborted. It gets
// no answer (RFC 7143 §11.5.1), unless it was refused for want of memory.
func (c *Conn) aborted(t *Task) {
	if t.refused && c.state == stateFullFeature {
		c.answerFull(t)
		return
	}
	t.AccountAborted()
	c.leave(t)
	if !c.mover.Forget(t) {
		t.to(taskForgetting)
		c.forgetting = append(c.forgetting, t)
		return
	}
	c.free(t)
}

// answerFull answers a task for whose data there is no memory.
func (c *Conn) answerFull(t *Task) {
	t.Status, t.Sense, t.In, t.Transfer = scsi.TaskSetFull, nil, nil, 0
	c.answer(t)
}

// AbortedBy returns the ITT of the ABORT TASK request that has ended t, if it was one, so that the
// response to that can end the initiator's buffer as well.
func (t *Task) AbortedBy() (itt uint32, ok bool) { return t.aborter, t.aborted == abortedByRequest }

// concerns notes that task management function fn, with ITT itt, begins. After the response to one
// that aborts many tasks their initiator may use their buffers again, so that no other response may
// be about these any more.
func (c *Conn) concerns(fn pdu.TaskFunction, itt uint32, lun uint64, ref *Task) {
	switch {
	case fn == pdu.TaskAbortTask:
		// With another LUN it aborts nothing but a command whose turn has not come.
		if ref.aborted == abortedByNone && ref.Conn == c && (ref.LUN == lun || ref.state == taskHeld) {
			ref.aborted, ref.aborter = abortedByRequest, itt
		}
		return
	case !aborts(fn):
		return
	}
	for _, o := range c.sess.circle.conns {
		for _, list := range [...][]*Task{o.tasks, o.forgetting} {
			for _, t := range list {
				if everywhere(fn) || t.LUN == lun {
					t.aborted = abortedByOther // even if an ABORT TASK was first: its response may be second
				}
			}
		}
	}
}

// aborts reports whether a function aborts tasks.
func aborts(fn pdu.TaskFunction) bool {
	switch fn {
	case pdu.TaskQueryTask, pdu.TaskQueryTaskSet, pdu.TaskQueryAsyncEvent, pdu.TaskClearACA:
		return false
	}
	return true
}

// everywhere reports whether a function that aborts tasks does so on all logical units.
func everywhere(fn pdu.TaskFunction) bool {
	return fn == pdu.TaskTargetWarmReset || fn == pdu.TaskTargetColdReset || fn == pdu.TaskITNexusReset
}

// Forgotten says that nothing is placed into t.Out any more, after Forget.
func (c *Conn) Forgotten(t *Task) {
	c.forgetting = slices.DeleteFunc(c.forgetting, func(f *Task) bool { return f == t })
	c.free(t)
}

func (c *Conn) free(t *Task) {
	t.to(taskGone)
	c.leased -= t.leased
	c.working -= t.working
	t.leased, t.working = 0, 0
	t.Release()
	c.sated(t)
	if t.queued.Queued() {
		return // still in c.ready: resume frees it
	}
	c.recycle(t)
}

func (c *Conn) recycle(t *Task) {
	t.to(taskPooled)
	c.live--
	c.mover.FreeTask(t)
	if len(c.hungry) > 0 {
		c.feed()
	}
}

// discard ends a task that has not begun, and what has come of its data.
func (c *Conn) discard(t *Task) {
	c.unlist(t)
	c.mover.Forget(t)
	c.free(t)
}

// Refuse ends a task for whose unsolicited data there is no memory with TASK SET FULL:
// initiators send such a command again, with fewer outstanding. The mover throws the data
// away. It must be called before any data of the task was placed. A task that waits for earlier
// commands is answered when its turn comes.
func (c *Conn) Refuse(t *Task) {
	t.refused = true
	if t.state != taskHeld {
		t.Abort()
	}
}

// GotData says that t.Out has been filled.
func (c *Conn) GotData(t *Task) { c.step(t, t.Pulled()) }

// DataLost says that t.Out was not filled and never will be, because the connection has ended or
// is ending: Lost follows. The task is aborted; its command is not executed.
func (c *Conn) DataLost(t *Task) { t.Abort() }

// DataFault is why the data-out of a command cannot be had.
type DataFault uint8

// Faults of data-out, each with its sense data (RFC 7143 §11.4.7.2; SPC-4 annex F).
const (
	UnexpectedUnsolicitedData DataFault = iota + 1
	NotEnoughData
	DataDigestMismatch
	MissingData // a Data-Out PDU was lost on the way
)

const keyAbortedCommand = 0xb // SPC-4 §4.5.6

var faultSense = [...]scsi.Sense{
	UnexpectedUnsolicitedData: {Key: keyAbortedCommand, Code: 0x0c0c},
	NotEnoughData:             {Key: keyAbortedCommand, Code: 0x0c0d},
	DataDigestMismatch:        {Key: keyAbortedCommand, Code: 0x4705},
	MissingData:               {Key: keyAbortedCommand, Code: 0x4b00},
}

// DataFailed says that the data-out of t cannot be had, and why.
func (c *Conn) DataFailed(t *Task, f DataFault) { c.step(t, t.Fail(faultSense[f])) }

// Collapsible reports whether the status may ride in the last Data-In PDU (RFC 7143
// §11.7.3).
func (t *Task) Collapsible() bool {
	return len(t.Sense) == 0 && (t.Status == scsi.Good || t.Status == scsi.ConditionMet)
}

// Sent says that the answer of t has left, and gives the task back.
func (c *Conn) Sent(t *Task) {
	t.Account(c.times.Leaving() - t.arrived)
	c.answered(t)
}

// AnswerLost says that the answer of t will not leave, or not all of it, because the connection has ended or
// is ending, and gives the task back. The command counts as one without an answer.
func (c *Conn) AnswerLost(t *Task) {
	t.AccountAborted()
	c.answered(t)
}

// answered gives back a task whose answer the mover is done with.
func (c *Conn) answered(t *Task) {
	if t.unsent > 0 {
		c.unsent -= t.unsent
		t.unsent = 0
		c.moved = c.node.clock.Load()
	}
	c.free(t)
}

// mostLease is how many bytes one command can have at once of a pool and of a connection's share. The
// other half is for input buffers and for data that comes before its command asks for it: commands
// that wait for a lease may hold such data, and must not keep the lease from each other.
func mostLease(pool int64, share int) int {
	half := pool / 2
	for half&(half-1) != 0 { // a power of two, for the pool rounds leases up to such
		half &= half - 1
	}
	return int(min(int64(share)/2, half, mem.MaxLease) &^ (mem.PageSize - 1))
}

// lease hands out I/O memory within the connection's share. A task that has got it goes on without
// waiting for other memory, so that what is at work comes back. One that asks again has given back what it had.
func (c *Conn) lease(t *Task, n int) *mem.Lease {
	invariant.Check(n <= c.node.most, "iscsi: a command waits for memory that it can never have")
	again := t.working > 0
	c.leased -= t.working
	c.working -= t.working
	t.leased, t.working = t.leased-t.working, 0
	var l *mem.Lease
	if again || t.wanted > 0 || t.leased > 0 || len(c.hungry) == 0 { // else it waits behind those that have come before
		l = c.tryLease(t, n, c.mayWork(n))
		if l == nil && c.working == 0 {
			if t.leased > 0 { // its data is here, and keeps memory from others
				c.Refuse(t)
				return nil
			}
			// Nothing of its own comes back: it waits for what others give back.
			c.node.pool.Notify(c)
			l = c.tryLease(t, n, c.mayWork(n))
		}
	}
	if l != nil {
		t.working += mem.RoundUp(n)
		c.working += mem.RoundUp(n)
		c.sated(t)
	} else if t.wanted == 0 {
		c.hungry = append(c.hungry, t)
		t.wanted = n
	}
	return l
}

// sated takes t out of those that wait for memory.
func (c *Conn) sated(t *Task) {
	if t.wanted > 0 {
		t.wanted = 0
		at := slices.Index(c.hungry, t)
		c.hungry = slices.Delete(c.hungry, at, at+1)
	}
}

// TryLease is Lease for the mover's own needs: nil means no, and nothing comes later.
func (c *Conn) TryLease(t *Task, n int) *mem.Lease { return c.tryLease(t, n, c.mayKeep(n)) }

func (c *Conn) tryLease(t *Task, n int, may bool) *mem.Lease {
	if !may {
		return nil
	}
	l := c.node.pool.Lease(n)
	if l != nil {
		t.leased += mem.RoundUp(n)
		c.leased += mem.RoundUp(n)
	}
	return l
}

// mayWork reports whether n bytes more for a command are within the connection's share. What is
// configured bounds it, except for a lease that is all that is at work: it could never be had
// otherwise. The last quarter of the memory is for connections that have nothing at work, and for
// commands that leave most of it to others: so peers that take no answers come to a halt before
// everybody else does.
func (c *Conn) mayWork(n int) bool {
	size, free := int64(mem.RoundUp(n)), c.node.pool.Free()
	if c.working == 0 {
		return c.node.leaves(n) || size <= free/16
	}
	return c.leased+mem.RoundUp(n) <= c.node.cfg.MemoryPerConnection && c.node.leaves(n)
}

// mayKeep is mayWork for data that nobody has asked for yet. It leaves room for the command that is
// to take it.
func (c *Conn) mayKeep(n int) bool {
	size, share := mem.RoundUp(n), c.node.cfg.MemoryPerConnection
	return c.leased+size <= share && c.leased-c.working+size <= share-c.node.most && c.node.leaves(n)
}

// leaves reports whether a lease of n bytes leaves a quarter of the memory that there is besides it.
// An idle pool gives any lease.
func (n *Node) leaves(bytes int) bool {
	size := int64(mem.RoundUp(bytes))
	return n.pool.Free()-size >= (n.pool.Limit()-size)/4
}

// hogs reports whether the connection keeps memory from others: its initiator takes no answers, and
// a command of some size would have to do with the last quarter. A small one may still leave it, but whoever waits
// for more would wait for ever.
func (c *Conn) hogs(now uint32) bool {
	size := min(c.node.most, int(c.node.pool.Limit()/16))
	return c.unsent > 0 && now-c.moved > hogTime && !c.node.leaves(size)
}

// hogTime is how long an initiator may take none of the answers that hold memory while that is
// scarce; seconds.
const hogTime = 5

// LeaseInput returns n bytes for the mover's input, or nil: when memory is scarce, it is there for
// the data of commands first.
func (c *Conn) LeaseInput(n int) *mem.Lease {
	if pool := c.node.pool; pool.Free() < pool.Limit()/8 {
		return nil
	}
	return c.node.pool.Lease(n)
}

// MemoryFree implements mem.Waiter.
func (c *Conn) MemoryFree() {
	c.memoryFree.Store(true)
	c.awaken(true)
}

// feed resumes the tasks that wait for memory, first come, first served, as far as it goes.
func (c *Conn) feed() {
	sum := 0
	for i, t := range c.hungry {
		if sum += t.wanted; !c.mayWork(sum) && (i > 0 || c.working > 0) {
			break
		}
		c.queue(t)
		c.awaken(false)
	}
}
