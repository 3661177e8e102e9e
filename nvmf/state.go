package nvmf

import (
	"slices"

	"oneshot/internal/invariant"
)

// queueState is the state of a queue.
//
//	fresh ── Connect ──► connected, or unproven ── see proof ──► connected
//	  └────── lost ─────────┴──────────┴─────────────────────────────┴──► lost ── nothing is left ──► gone
type queueState uint8

const (
	queueFresh    queueState = iota
	queueUnproven            // its host has to authenticate itself
	queueConnected
	queueLost // the connection is gone, and tasks are still in stores
	queueGone
	queueStates
)

// nextQueue says which states of a queue follow which; the rest are mistakes of ours.
var nextQueue = [queueStates][]queueState{
	queueFresh:     {queueUnproven, queueConnected, queueLost},
	queueUnproven:  {queueConnected, queueLost},
	queueConnected: {queueLost},
	queueLost:      {queueGone},
}

// to changes the state of the queue.
func (q *Queue) to(s queueState) {
	if invariant.Enabled {
		invariant.Check(slices.Contains(nextQueue[q.state], s), "nvmf: a queue changes to a state that follows its own")
	}
	q.state = s
}

// taskState says who has the task.
type taskState uint8

const (
	taskPooled    taskState = iota // belongs to the mover's pool
	taskWaiting                    // for a store, memory, or its turn
	taskPulling                    // the mover fetches its data
	taskForgotten                  // it was aborted meanwhile, and has to wait until the mover stops
	taskAnswered                   // the mover sends its answer
	taskGone                       // released, but still in Queue.ready
	taskStates
)

// nextTask says which states of a task follow which; the rest are mistakes of ours. The second of a fused pair, whose data are
// fetched behind those of the first, is answered by the first.
var nextTask = [taskStates][]taskState{
	taskPooled:    {taskWaiting},
	taskWaiting:   {taskWaiting, taskPulling, taskForgotten, taskAnswered, taskGone},
	taskPulling:   {taskWaiting, taskPulling, taskForgotten, taskAnswered, taskGone},
	taskForgotten: {taskForgotten, taskAnswered, taskGone},
	taskAnswered:  {taskGone},
	taskGone:      {taskPooled},
}

// to changes the state of the task.
func (t *Task) to(s taskState) {
	if invariant.Enabled {
		invariant.Check(slices.Contains(nextTask[t.state], s), "nvmf: a task changes to a state that follows its own")
	}
	t.state = s
}
