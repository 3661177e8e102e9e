package scsi

// BatchOps lets the tasks of n submit store operations that only Kick starts. The driver of the
// tasks promises to call Kick after each round of Start, Pulled and Resume, whatever they have
// returned. BatchOps is called before the first task.
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
		i.lu.v.Kick()
		i = next
	}
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
