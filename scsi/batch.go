package scsi

import "oneshot/backend"

var _ backend.Corker = (*Task)(nil)

// BatchOps lets the tasks of n submit store operations that start with Kick only. Who drives
// the tasks promises to call it after each round of Start, Pulled and Resume, whatever they
// have returned. It is called before the first task.
func (n *Nexus) BatchOps() { n.batching = true }

// Kick starts the store operations that tasks have submitted since the last call. It may be
// called from any goroutine, and costs one load if there are none.
func (n *Nexus) Kick() {
	if n.begun.Load() == nil {
		return
	}
	for i := n.begun.Swap(nil); i != nil; {
		next := i.nextBegun
		i.nextBegun = nil
		i.begun.Store(false) // before Kick: what is submitted later begins anew
		i.lu.batcher.Kick()
		i = next
	}
}

// mayBatch says whether an operation of t may wait for Kick. Those of a copy on other logical
// units than the one that was asked may not: Kick does not know these.
func (t *Task) mayBatch() bool {
	return t.lu.batcher != nil && t.itl != nil && t.itl.lu == t.lu && t.itl.nexus.batching
}

// begin notes that the store of i has operations that wait for Kick.
func (i *itl) begin() {
	if i.begun.Load() || !i.begun.CompareAndSwap(false, true) {
		return
	}
	for n := i.nexus; ; {
		i.nextBegun = n.begun.Load()
		if n.begun.CompareAndSwap(i.nextBegun, i) {
			return
		}
	}
}

// submitOp submits t.op, and has Kick start it if that may be. It reports whether the operation
// has completed.
func (t *Task) submitOp() bool {
	if !t.mayBatch() {
		t.op.Flags &^= backend.More // of an earlier operation
		return t.lu.store.Submit(&t.op)
	}
	t.op.Flags |= backend.More
	i := t.itl // the operation may complete, and the task have another, before Submit returns
	if t.lu.store.Submit(&t.op) {
		return true
	}
	i.begin()
	return false
}

// Cork is for the store; see backend.Corker.
func (t *Task) Cork() backend.Uncorker {
	if c, ok := t.Owner.(Corker); ok {
		return c.Cork()
	}
	return nil
}
