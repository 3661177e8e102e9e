//go:build invariants

package scsi

import "testing"

// broken reports whether f breaks an invariant.
func broken(f func()) (broke bool) {
	defer func() { broke = recover() != nil }()
	f()
	return false
}

// A driver that uses a task out of order is found at once, in builds that look.
func TestTaskOutOfOrder(t *testing.T) {
	b := newBench(t, false, nil)
	ready := []byte{0, 0, 0, 0, 0, 0}

	twice := b.task(ready, nil, 0)
	if twice.Start() != Done || !broken(func() { twice.Start() }) {
		t.Error("a task is started twice")
	}
	twice.Release()

	// A READ that waits for its store.
	b.store.hold = holdTasks
	early := b.task([]byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, nil, 512)
	if early.Start() != Wait || !broken(early.Release) {
		t.Error("a task is released that the store works for")
	}
	b.finish(early, Wait, nil)

	m := &manager{done: func(TMFResponse) {}}
	m.left.Store(1)
	m.released()
	if !broken(m.released) {
		t.Error("a task management function waits for nobody, and is told of a release")
	}
}
