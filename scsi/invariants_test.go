//go:build invariants

package scsi

import (
	"fmt"
	"strings"
	"testing"
)

// broken reports whether f breaks the invariant that says so.
func broken(says string, f func()) (broke bool) {
	defer func() { broke = strings.Contains(fmt.Sprint(recover()), says) }()
	f()
	return false
}

// A driver that uses a task out of order is found at once, in builds that look.
func TestTaskOutOfOrder(t *testing.T) {
	b := newBench(t, false, nil)
	ready := []byte{0, 0, 0, 0, 0, 0}

	const started = "a task is started that was not released"
	twice := b.task(ready, nil, 0)
	if twice.Start() != Done || !broken(started, func() { twice.Start() }) {
		t.Error("a task is started twice")
	}
	if !broken("a task that has ended takes a step", func() { twice.settle(Done) }) {
		t.Error("a task ends twice")
	}
	twice.Release()

	nowhere := b.task([]byte{0x12, 0, 0, 0, 96, 0}, nil, 96) // INQUIRY
	nowhere.LUN = 7 << 48
	if nowhere.Start() != Done || !broken(started, func() { nowhere.Start() }) {
		t.Error("a task without a logical unit is started twice")
	}
	nowhere.Release()

	gone := b.task(ready, nil, 0)
	if gone.Start() != Done {
		t.Fatal("TEST UNIT READY waits")
	}
	gone.leaveTaskSet()
	if !broken("more commands are released than have started", gone.leaveTaskSet) {
		t.Error("a task leaves the task set twice")
	}

	// A READ that waits for its store.
	b = newBench(t, false, nil)
	b.store.hold = holdTasks
	early := b.task([]byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, nil, 512)
	if early.Start() != Wait || !broken(started, func() { early.Start() }) || !broken("a task is released that has not ended", early.Release) {
		t.Error("a task that the store works for is started or released")
	}
	b.finish(early, Wait, nil)

	m := &manager{done: func(TMFResponse) {}}
	m.left.Store(1)
	m.released()
	if !broken("task management waits for each task once", m.released) {
		t.Error("a task management function waits for nobody, and is told of a release")
	}
}
