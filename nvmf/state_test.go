package nvmf

import (
	"slices"
	"testing"

	"oneshot/internal/invariant"
)

// A queue goes forwards only, and from everywhere to the end; a task comes back to the pool from everywhere.
func TestStates(t *testing.T) {
	for s, next := range nextQueue {
		for _, to := range next {
			if to <= queueState(s) {
				t.Errorf("a queue goes from %d to %d", s, to)
			}
		}
		if queueState(s) < queueLost && !slices.Contains(next, queueLost) {
			t.Errorf("a queue in state %d does not notice that its connection is lost", s)
		}
	}
	for s, next := range nextTask {
		if n := taskState(s); n != taskPooled && n != taskGone && !slices.Contains(next, taskGone) || n != taskGone && slices.Contains(next, taskPooled) {
			t.Errorf("a task in state %d goes to %v", s, next)
		}
	}
}

// A state that does not follow is found in builds with assertions.
func TestImpossibleStates(t *testing.T) {
	for name, change := range map[string]func(){
		"a lost queue is connected":    func() { (&Queue{state: queueLost}).to(queueConnected) },
		"an answered task is answered": func() { (&Task{state: taskAnswered}).to(taskAnswered) },
		"a task is pooled unreleased":  func() { (&Task{state: taskAnswered}).to(taskPooled) },
	} {
		func() {
			defer func() {
				if r := recover(); (r != nil) != invariant.Enabled {
					t.Errorf("%s: %v", name, r)
				}
			}()
			change()
		}()
	}
}
