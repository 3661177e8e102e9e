package scsi

import (
	"slices"

	"oneshot/internal/invariant"
	"oneshot/volume"
)

// taskOrder is where tasks of a logical unit wait for their turn in the task set (SAM-5 §8):
//
//	SIMPLE         after all older ORDERED and HEAD OF QUEUE tasks have ended
//	ORDERED        after all older tasks have ended
//	HEAD OF QUEUE  at once
//
// There is one task set per logical unit (TST 000b). While LogicalUnit.gate is zero nobody
// comes here. All of it is guarded by LogicalUnit.mu.
type taskOrder struct {
	first       *Task // dormant tasks, oldest first
	ordered     int   // ORDERED tasks that run; more than one only if they were aborted
	headOfQueue int   // HEAD OF QUEUE tasks that run
}

// gateDraining in LogicalUnit.gate has every release look whether it was the last one.
const gateDraining = 1 << 30

// enterInOrder begins t, which Start has counted as running, or makes it dormant.
func (t *Task) enterInOrder() Next {
	lu := t.lu
	lu.mu.Lock()
	lu.gate.Add(1)
	t.gated = true
	if t.Attr == Ordered {
		lu.copyOthers(t.Nexus)
	}
	if t.mayRun(lu.order.first == nil, 1) {
		t.noteRuns()
		lu.mu.Unlock()
		return t.begin()
	}
	i := t.itl
	tell := i.tasks.Rest(t.turn)
	last := &lu.order.first
	for *last != nil {
		last = &(*last).queueNext
	}
	*last = t
	t.queueNext = nil
	next := t.r.Park(withdrawDormant, t.before((*Task).begin))
	// The task that was waited for may have ended between the look at the counts and
	// now, without seeing t in the queue.
	granted := lu.serveOrder()
	lu.checkDrained()
	lu.mu.Unlock()
	granted.Tell() // the task may be another one then
	if tell {
		i.tasks.Tell()
	}
	return next
}

// isDormant reports whether the task has entered the task set, and not begun.
func (t *Task) isDormant() bool { return t.itl != nil && t.cmd == nil }

// guardBlocks has a dormant task that is overdue leave the blocks alone that it is to write, if others come to change them before it does. False: its
// CDB does not tell which these are.
func (t *Task) guardBlocks() bool {
	c := lookupCommand(t.CDB)
	if c == nil || c.Flags&tellsBlocks == 0 || len(t.CDB) < len(c.Usage) {
		return false
	}
	lba, blocks := c.blockRange(t.CDB)
	capacity := t.lu.blocks()
	if lba >= capacity || blocks > capacity-lba {
		return false
	}
	if blocks == 0 { // of WRITE SAME: up to the last one
		blocks = capacity - lba
	}
	t.r.OverdueBefore(int64(lba)<<t.lu.blockShift, int64(blocks)<<t.lu.blockShift)
	return true
}

// mayRun reports whether t may begin. own is how many of the running tasks are t itself, and
// oldest that no dormant task is older. LogicalUnit.mu is held.
func (t *Task) mayRun(oldest bool, own int64) bool {
	order := &t.lu.order
	switch t.Attr {
	case HeadOfQueue, ACA:
		return true
	case Ordered:
		return oldest && t.lu.running() == own
	}
	return oldest && order.ordered == 0 && order.headOfQueue == 0
}

func (t *Task) noteRuns() {
	switch t.Attr {
	case Ordered:
		t.lu.order.ordered++
	case HeadOfQueue, ACA:
		t.lu.order.headOfQueue++
	}
}

// answersCopied is for how many commands of each nexus an ORDERED task of another one is remembered.
const answersCopied = 4096

// copyOthers has the next answers of other nexuses than n be copies, where the store lends its memory: there an ORDERED task waits for answers that
// are in it, and their initiators may take none. mu is held.
func (lu *LogicalUnit) copyOthers(n *Nexus) {
	for _, i := range lu.itls {
		if i.nexus != n && i.lends {
			i.copies.Store(answersCopied)
		}
	}
}

// answerByCopy has the answer of t be a copy, for which nobody waits: that of an ORDERED or HEAD OF QUEUE task, behind which all others are, or of one
// behind which an ORDERED one may come soon.
func (t *Task) answerByCopy() {
	t.NoLend = true
	if t.Attr == Simple {
		t.itl.copies.Add(-1)
	}
}

// keepsOrder reports whether t is in the order until its release: its answer may be in the store's own memory, so it tells what those that
// come later write there. Other tasks end with their last step: the initiator may take no answers, and those of others do not wait for it.
func (t *Task) keepsOrder() bool { return !t.NoLend && t.itl.lends }

// leaveOrder is the end of t as far as the order goes, and also its release if released is 1.
func (t *Task) leaveOrder(released uint64) {
	lu := t.itl.lu
	idle := t.itl.tasks.End(t.turn, released)
	if gate := lu.gate.Load(); t.gated || gate != 0 && (idle || gate >= gateDraining) {
		lu.leaveInOrder(t)
	}
}

// leaveInOrder is leaveOrder where the order matters to anybody.
func (lu *LogicalUnit) leaveInOrder(t *Task) {
	lu.mu.Lock()
	if t.gated {
		lu.gate.Add(-1)
		switch t.Attr {
		case Ordered:
			lu.order.ordered--
		case HeadOfQueue, ACA:
			lu.order.headOfQueue--
		}
		invariant.Check(lu.order.ordered >= 0 && lu.order.headOfQueue >= 0, "scsi: a task ends that was not noted as running")
	}
	granted := lu.serveOrder()
	lu.checkDrained()
	lu.mu.Unlock()
	granted.Tell()
}

// serveOrder takes from the queue the tasks whose turn has come. mu is held.
func (lu *LogicalUnit) serveOrder() (granted volume.Granted) {
	for t := lu.order.first; t != nil && t.mayRun(true, 0); t = lu.order.first {
		lu.order.first = t.queueNext
		t.turn = t.itl.tasks.Run()
		t.noteRuns()
		granted.Add(&t.r)
	}
	return granted
}

// Drain is for the volume.
func (lu *LogicalUnit) Drain(drained func()) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	lu.drained = append(lu.drained, drained)
	lu.gate.Add(gateDraining)
	lu.checkDrained()
}

// checkDrained ends draining if the tasks that run wait for nothing else. mu is held.
func (lu *LogicalUnit) checkDrained() {
	if len(lu.drained) == 0 || lu.running() > lu.exempt {
		return
	}
	for _, drained := range lu.drained {
		lu.gate.Add(-gateDraining)
		drained()
	}
	lu.drained = nil
}

func withdrawDormant(r *volume.Request) bool {
	t := taskOf(r)
	return t.lu.withdraw(t)
}

// withdraw takes the dormant task t out of the queue, and reports false if it is not there
// any more. As every task it is counted as running until it ends.
func (lu *LogicalUnit) withdraw(t *Task) bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for p := &lu.order.first; *p != nil; p = &(*p).queueNext {
		if *p == t {
			*p = t.queueNext
			t.turn = t.itl.tasks.Run()
			t.noteRuns()
			return true
		}
	}
	return false
}

// list enters t into the tasks of the nexus.
func (i *itl) list(t *Task) {
	i.mu.Lock()
	t.listed = true
	t.next = i.first
	if t.next != nil {
		t.next.prev = t
	}
	i.first = t
	i.mu.Unlock()
}

// over tells those who have aborted t for another initiator that it does nothing any more. It may not be released yet: what its own
// initiator still places into its memory does not matter to them.
func (i *itl) over(t *Task) {
	var others []*manager
	i.mu.Lock()
	t.state.Or(stateOver)
	t.managers = slices.DeleteFunc(t.managers, func(m *manager) bool {
		if i.answers(m) {
			return false
		}
		others = append(others, m)
		return true
	})
	i.mu.Unlock()
	for _, m := range others {
		m.released()
	}
}

// unlist takes t out again, and returns who waits for that.
func (i *itl) unlist(t *Task) []*manager {
	i.mu.Lock()
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		i.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	managers := t.managers
	i.mu.Unlock()
	return managers
}
