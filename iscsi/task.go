package iscsi

import (
	"slices"

	"oneshot/internal/invariant"
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
	t.slot = len(c.tasks)
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

// find is Find in all connections of the session.
func (s *Session) find(itt uint32) *Task {
	for _, c := range s.baton.conns {
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
	t.state = taskWaiting
	if t.Immediate {
		c.sess.immediates++
	} else {
		c.sess.active++
	}
	c.step(t, t.Start())
}

// step does what a task asks for next.
func (c *Conn) step(t *Task, next scsi.Next) {
	switch next {
	case scsi.Done:
		c.answer(t)
	case scsi.Pull:
		t.state = taskPulling
		c.list(t)
		c.mover.GetData(t)
	case scsi.Wait:
		t.state = taskWaiting
		c.list(t)
	case scsi.Aborted:
		c.aborted(t)
	}
}

func (c *Conn) answer(t *Task) {
	c.leave(t)
	t.state = taskAnswered
	c.mover.Answer(t)
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
		t.Status, t.Sense, t.In, t.Transfer = scsi.TaskSetFull, nil, nil, 0
		c.answer(t)
		return
	}
	t.AccountAborted()
	c.leave(t)
	if !c.mover.Forget(t) {
		t.state = taskForgetting
		return
	}
	c.free(t)
}

// Forgotten says that nothing is placed into t.Out any more, after Forget.
func (c *Conn) Forgotten(t *Task) { c.free(t) }

func (c *Conn) free(t *Task) {
	t.state = taskGone
	c.leased -= t.leased
	c.tried -= t.tried
	t.leased, t.tried = 0, 0
	t.Release()
	if t.hungry {
		t.hungry = false
		c.hungry = slices.DeleteFunc(c.hungry, func(h *Task) bool { return h == t })
	}
	if t.queued.Load() {
		return // still in c.ready: resumeReady frees it
	}
	c.recycle(t)
}

func (c *Conn) recycle(t *Task) {
	t.state = taskPooled
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
// away. It must be called before any data of the task was placed.
func (c *Conn) Refuse(t *Task) {
	t.refused = true
	t.Abort()
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
	t.Account(c.leaving() - t.arrived)
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

// lease hands out I/O memory within the connection's share.
func (c *Conn) lease(t *Task, n int) *mem.Lease {
	invariant.Check(n <= c.node.most, "iscsi: a command waits for memory that it can never have")
	if c.leased+n <= c.node.cfg.MemoryPerConnection {
		if l := c.node.pool.LeaseOrNotify(n, c); l != nil {
			t.leased += n
			c.leased += n
			return l
		}
	}
	if !t.hungry {
		t.hungry = true
		c.hungry = append(c.hungry, t)
	}
	return nil
}

// TryLease is Lease for the mover's own needs: nil means no, and nothing comes later.
func (c *Conn) TryLease(t *Task, n int) *mem.Lease {
	if c.leased+n > c.node.cfg.MemoryPerConnection || c.tried+n > c.node.cfg.MemoryPerConnection-c.node.most {
		return nil
	}
	l := c.node.pool.Lease(n)
	if l != nil {
		t.leased += n
		c.leased += n
		t.tried += n
		c.tried += n
	}
	return l
}

// MemoryFree implements mem.Waiter.
func (c *Conn) MemoryFree() {
	c.memoryFree.Store(true)
	c.awaken(true)
}

// feed resumes the tasks that wait for memory, first come, first served.
func (c *Conn) feed() {
	for i := range c.hungry {
		t := c.hungry[i]
		c.hungry[i] = nil
		t.hungry = false
		c.queue(t)
		c.awaken(false)
	}
	c.hungry = c.hungry[:0]
}
