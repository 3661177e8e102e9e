package nvmf

import (
	"slices"

	"oneshot/internal/invariant"
	"oneshot/mem"
	"oneshot/nvme"
)

// lease hands out I/O memory within the queue's share. Behind the data of a command that come with it may be those that other commands wait for, and these
// hold memory. So such a command gets memory that others do not (may). If it has to wait all the same, it is held, and the connection with it. But
// where that could last for ever the host is told to try again later.
func (q *Queue) lease(t *Task, n int) *mem.Lease {
	invariant.Check(n <= q.node.most, "nvmf: a command waits for memory that it can never have")
	var l *mem.Lease
	if t.InCapsule || t.wanted > 0 || len(q.hungry) == 0 { // else it waits behind those that have come before
		l = q.tryLease(t, n)
		if l == nil && q.leased == 0 {
			// Nothing of its own comes back: it waits for what others give back.
			q.node.pool.Notify(q)
			l = q.tryLease(t, n)
		}
	}
	switch {
	case l != nil:
		q.sated(t)
	case t.InCapsule && q.mayHold(n) && q.mover.Hold(t):
		q.held = t
	case t.InCapsule:
		t.repeatLater()
	case t.wanted == 0:
		q.hungry = append(q.hungry, t)
		t.wanted = n
	}
	return l
}

// sated takes t out of those that wait for memory.
func (q *Queue) sated(t *Task) {
	switch {
	case t.wanted > 0:
		t.wanted = 0
		at := slices.Index(q.hungry, t)
		q.hungry = slices.Delete(q.hungry, at, at+1)
	case q.held == t:
		q.held = nil
	}
}

// mayHold reports whether n bytes come free though nothing more of the host's is read: commands give back memory that do not wait for data of the host, and if the
// queue has no memory others do. But not for long: they may be held, too, and have input that they cannot take.
func (q *Queue) mayHold(n int) bool {
	stuck := 0
	for _, t := range q.tasks {
		if t.state == taskPulling && !t.InCapsule {
			stuck += t.leased
		}
	}
	return stuck+mem.RoundUp(n) <= q.node.cfg.MemoryPerConnection && (stuck < q.leased || q.leased == 0)
}

// heldForLong has the host repeat the command that is held, if no other of the queue will give back the memory for it.
func (q *Queue) heldForLong() {
	if q.held != nil && q.held.isOverdue() && q.leased == 0 {
		q.held.repeatLater()
	}
}

// retryDelay is CRDT1, in 100 ms: how long a host waits before it repeats a command that found no memory. Linux repeats five times. That has to take
// longer than somebody may keep memory from others who takes no answers.
const retryDelay = 20

// repeatLater ends a command whose data have come with it, and for which there is no memory.
func (t *Task) repeatLater() { t.abortWith(t.Again()) }

// Again is the status of a command for which there is no memory: its host is to repeat it. Command Interrupted is only for hosts that let themselves
// be told when (ACRE, Base 2.0 figure 95). Others repeat at once.
func (t *Task) Again() nvme.Status {
	switch c := t.Queue.ctrl; {
	case c != nil && c.delays.Load():
		return nvme.Interrupted | nvme.RetryDelay1
	case t.path != nil || t.pair != nil:
		return nvme.NamespaceNotReady
	}
	return nvme.InternalError
}

func (q *Queue) tryLease(t *Task, n int) *mem.Lease {
	if !q.may(n, t.InCapsule) {
		return nil
	}
	l := q.node.pool.Lease(n)
	if l != nil {
		t.leased += mem.RoundUp(n)
		q.leased += mem.RoundUp(n)
		if t.InCapsule {
			q.came += mem.RoundUp(n)
		}
	}
	return l
}

// may reports whether n bytes more are within the queue's share; inCapsule: for data that have come. What is configured bounds it, except
// for a lease that is all there is: it could never be had otherwise. The last quarter of the memory is for queues
// that have none, for data that have come and cannot wait, and for commands that leave most of it to others.
func (q *Queue) may(n int, inCapsule bool) bool {
	share := q.node.cfg.MemoryPerConnection
	switch size := mem.RoundUp(n); {
	case inCapsule:
		return q.leased+size <= share && q.leavesWaiting(n)
	case q.leased == 0:
		return q.node.leaves(size) || int64(size) <= q.node.pool.Free()/16
	default:
		return q.leased+size <= share && q.leased-q.came+size <= share/2 && q.node.leaves(size)
	}
}

// leavesWaiting reports whether a lease of n bytes for data that have come leaves enough to others that wait. Half of the share is for such data, and half
// for the rest: while nothing else waits, they may have all of it.
func (q *Queue) leavesWaiting(n int) bool {
	size := mem.RoundUp(n)
	if len(q.hungry) > 0 {
		if q.came+size > q.node.cfg.MemoryPerConnection/2 {
			return false
		}
		size += mem.RoundUp(q.hungry[0].wanted)
	}
	return q.leased == 0 || q.node.leaves(size) || !q.mover.Transport().Holds || !q.mayHold(n)
}

// leaves reports whether a lease of size bytes leaves a quarter of the memory that there is besides it. An idle pool gives any
// lease.
func (n *Node) leaves(size int) bool {
	return n.pool.Free()-int64(size) >= (n.pool.Limit()-int64(size))/4
}

// hogTime is how long a host may take none of the answers that hold memory while that is scarce; seconds.
const hogTime = 5

// hogs reports whether the queue keeps memory from others: its host takes no answers, and a command of some size would have to
// do with the last quarter.
func (q *Queue) hogs(now uint32) bool {
	size := mem.RoundUp(min(q.node.most, int(q.node.pool.Limit()/16)))
	return q.unsent > 0 && now-q.moved > hogTime && !q.node.leaves(size)
}

// LeaseInput returns n bytes for the mover's input, or nil: when memory is scarce, it is there for the data of commands first.
func (q *Queue) LeaseInput(n int) *mem.Lease {
	if pool := q.node.pool; pool.Free() < pool.Limit()/8 {
		return nil
	}
	return q.node.pool.Lease(n)
}

// MemoryFree implements mem.Waiter.
func (q *Queue) MemoryFree() {
	q.memoryFree.Store(true)
	q.awaken(true)
}

// feed resumes the tasks that wait for memory, first come, first served, as far as it goes.
func (q *Queue) feed() {
	sum := 0
	for i, t := range q.hungry {
		if sum += t.wanted; !q.may(sum, false) && (i > 0 || q.leased > 0) {
			break
		}
		q.queue(t)
		q.awaken(false)
	}
	if q.held != nil { // it has come behind them, and what it may have is not only what they wait for
		q.look()
		q.queue(q.held)
		q.awaken(false)
	}
}
