package scsi

import (
	"slices"
	"sync/atomic"

	"oneshot/internal/invariant"
	"oneshot/volume"
	"oneshot/volume/access"
)

// TMF is a task management function (SAM-5 §7), numbered as in iSCSI (RFC 7143 §11.5.1, RFC
// 7144 §4.2).
type TMF uint8

// Task management functions.
const (
	AbortTask       TMF = 1
	AbortTaskSet    TMF = 2
	ClearACA        TMF = 3
	ClearTaskSet    TMF = 4
	LUNReset        TMF = 5
	TargetWarmReset TMF = 6
	TargetColdReset TMF = 7
	QueryTask       TMF = 9
	QueryTaskSet    TMF = 10
	ITNexusReset    TMF = 11
	QueryAsyncEvent TMF = 12
)

// TMFResponse is the service response of a task management function, numbered as in iSCSI
// (RFC 7143 §11.6.1, RFC 7144 §4.2).
type TMFResponse uint8

// Task management responses.
const (
	FunctionComplete  TMFResponse = 0
	TaskDoesNotExist  TMFResponse = 1
	LUNDoesNotExist   TMFResponse = 2
	NotSupported      TMFResponse = 5
	FunctionSucceeded TMFResponse = 7
	Rejected          TMFResponse = 255
)

// manager is a task management function that waits for the tasks it has aborted.
type manager struct {
	by       *Nexus       // who asks; nil: another one than those whose tasks are aborted
	deaf     bool         // it waits for no answers
	left     atomic.Int64 // tasks to be released, and one for the caller
	response TMFResponse
	failed   atomic.Bool // the mode parameters could not be reset: nobody has agreed to that
	done     func(TMFResponse)
	wake     []wakeUp // tasks marked aborted whose owners do not know yet
}

type wakeUp struct {
	owner Owner
	task  *Task
}

// finish is called when all tasks are marked: it tells their owners, without a lock, and counts the
// caller off.
func (m *manager) finish() {
	for _, w := range m.wake {
		w.owner.TaskReady(w.task)
	}
	m.wake = nil
	m.released()
}

// released counts one task off.
func (m *manager) released() {
	left := m.left.Add(-1)
	invariant.Check(left >= 0, "scsi: task management waits for each task once")
	if left == 0 {
		if m.failed.Load() {
			m.response = Rejected
		}
		m.done(m.response)
	}
}

// Manage does a task management function. lun is as on the wire. t is the task that AbortTask
// and QueryTask are about, between its Start and its Release, or nil if the transport knows of
// none. done is called exactly once, perhaps before Manage returns, from any goroutine, when
// every affected task has been released; it must not block. Aborted tasks of other nexuses
// are not answered either (TAS = 0), and if they have finished their answers are not waited for.
func (n *Nexus) Manage(fn TMF, lun uint64, t *Task, done func(TMFResponse)) {
	m := &manager{by: n, done: done}
	m.left.Store(1)
	m.response = n.manage(m, fn, lun, t)
	m.finish()
}

func (n *Nexus) manage(m *manager, fn TMF, lun uint64, t *Task) TMFResponse {
	switch fn {
	case TargetWarmReset:
		return n.target.reset(m, uaTargetReset)
	case TargetColdReset:
		return n.target.reset(m, uaPowerOn)
	case ITNexusReset:
		return n.reset(m)
	case ClearACA:
		return NotSupported // no ACA condition is ever established
	}
	former := n.former(lun)
	if fn == AbortTask {
		for _, x := range former {
			if r := x.abortOne(m, t); r != TaskDoesNotExist {
				return r
			}
		}
	}
	i := n.lookup(lun)
	if i == nil {
		return LUNDoesNotExist
	}
	switch fn {
	case AbortTask:
		return i.abortOne(m, t)
	case AbortTaskSet, ClearTaskSet, LUNReset:
		for _, x := range former {
			x.abortAll(m)
		}
	}
	switch fn {
	case AbortTaskSet:
		i.abortAll(m)
		return FunctionComplete
	case ClearTaskSet:
		i.lu.clearTaskSet(m, n)
		return FunctionComplete
	case LUNReset:
		i.lu.reset(m, uaLUReset)
		return FunctionComplete
	case QueryTask:
		return query(i.has(t))
	case QueryTaskSet:
		return query(i.busy())
	case QueryAsyncEvent:
		return query(i.ua.Load() != 0)
	}
	return NotSupported
}

func query(yes bool) TMFResponse {
	if yes {
		return FunctionSucceeded
	}
	return FunctionComplete
}

// abortOne aborts t. If t has finished already its answer is on the way, and the response
// waits until it has left.
func (i *itl) abortOne(m *manager, t *Task) TMFResponse {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.find(t) || !t.mark(m, i.answers(m)) {
		return TaskDoesNotExist
	}
	return FunctionComplete
}

// abortAll aborts all tasks of the nexus, and returns how many.
func (i *itl) abortAll(m *manager) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	answers := i.answers(m)
	for t := i.first; t != nil; t = t.next {
		if t.mark(m, answers) {
			n++
		}
	}
	return n
}

// answers reports whether m waits for the answers of tasks that have finished. Those to who asks have to be on their way before the response.
// Those to others may wait until the target notices that their initiator is dead, and change nothing; but where they are sent from the
// memory of the store they would tell what is written there next.
func (i *itl) answers(m *manager) bool { return !m.deaf && (i.nexus == m.by || i.lends) }

// await has m wait for the tasks that are aborted, and not over.
func (i *itl) await(m *manager) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for t := i.first; t != nil; t = t.next {
		if s := t.state.Load(); s&stateAborted != 0 && s&(stateFinished|stateOver) == 0 {
			m.left.Add(1)
			t.managers = append(t.managers, m)
		}
	}
}

// loseReserve ends a RESERVE of v, if r is one, as soon as the tasks that were aborted are over. m waits for that.
func (m *manager) loseReserve(v *volume.Volume, r *access.Reserved, places []*itl) {
	if r == nil {
		return
	}
	m.left.Add(1)
	lose := &manager{deaf: true, done: func(TMFResponse) {
		v.Access().Lose(r)
		m.released()
	}}
	lose.left.Store(1)
	for _, i := range places {
		if i.lu.v == v {
			i.await(lose)
		}
	}
	lose.released()
}

// loseNexus ends what does not outlive the nexus, when its tasks are aborted: each RESERVE, and what it prevents.
func (n *Nexus) loseNexus(m *manager, places []*itl) {
	for _, i := range places {
		m.loseReserve(i.lu.v, i.lu.v.Access().Reserved(n), places)
		i.lu.allowRemoval(n)
	}
}

// mark marks t aborted, has m wait for its release, unless answers is false and it is over, and reports whether t was not finished.
// itl.mu is held, so t is not released meanwhile.
func (t *Task) mark(m *manager, answers bool) bool {
	old := t.state.Or(stateAborted)
	if old&(stateFinished|stateOver) == 0 || answers {
		m.left.Add(1)
		t.managers = append(t.managers, m)
	}
	if old == 0 {
		m.wake = append(m.wake, wakeUp{t.Owner, t})
	}
	return old&stateFinished == 0
}

// find reports whether t is in the task set. mu is held.
func (i *itl) find(t *Task) bool {
	for x := i.first; x != nil; x = x.next {
		if x == t {
			return true
		}
	}
	return false
}

func (i *itl) has(t *Task) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.find(t) && t.state.Load() == 0
}

func (i *itl) busy() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for t := i.first; t != nil; t = t.next {
		if t.state.Load() == 0 {
			return true
		}
	}
	return false
}

// clearTaskSet aborts all tasks of the logical unit and tells the other nexuses that lost some.
func (lu *LogicalUnit) clearTaskSet(m *manager, by *Nexus) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for _, i := range lu.itls {
		if i.abortAll(m) > 0 && i.nexus != by {
			i.ua.Or(uaCommandsCleared)
		}
	}
}

// reset is a logical unit reset (SAM-5 §6.3.3): all tasks are aborted, the mode parameters
// are what they were at the start, and every nexus, the one that asked included, is told.
func (lu *LogicalUnit) reset(m *manager, ua uint32) {
	lu.resetModes(m)
	reserved := lu.v.Access().Reserved(nil)
	lu.allowRemoval(nil)
	lu.mu.Lock()
	places := slices.Clone(lu.itls)
	for _, i := range places {
		i.abortAll(m)
		i.ua.Or(ua)
	}
	lu.mu.Unlock()
	m.loseReserve(lu.v, reserved, places)
}

// reset resets all logical units of the target.
func (t *Target) reset(m *manager, ua uint32) TMFResponse {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.luns {
		e.lu.reset(m, ua)
	}
	return FunctionComplete
}

// reset is the I_T NEXUS RESET function: all tasks of the nexus are aborted.
func (n *Nexus) reset(m *manager) TMFResponse {
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	places := n.places()
	for _, i := range places {
		i.abortAll(m)
		i.ua.Or(uaNexusLoss)
	}
	n.loseNexus(m, places)
	return FunctionComplete
}

// former are the I_T_L nexuses with logical units that were at the LUN before: the commands that they
// have still are commands to the LUN, to the initiator.
func (n *Nexus) former(lun uint64) (list []*itl) {
	number, ok := decodeLUN(lun)
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	for _, i := range n.retired {
		if ok && i.lun == number {
			list = append(list, i)
		}
	}
	return list
}

// places are all I_T_L nexuses of n, those of logical units that went away included.
// Target.mu is held.
func (n *Nexus) places() []*itl {
	return append(append([]*itl{}, *n.table.Load()...), n.retired...)
}

// Close is the loss of the I_T nexus: the session has ended. No task is started any more. What
// is left of them is aborted; done is called when the last one has been released, exactly once,
// perhaps before Close returns.
func (n *Nexus) Close(done func()) {
	t := n.target
	t.mu.Lock()
	delete(t.nexuses, n)
	places := n.places()
	t.leave(n, places)
	t.keepTaken(n.taken)
	t.mu.Unlock()
	m := &manager{by: n, done: func(TMFResponse) {
		for _, i := range places {
			i.lu.dropITL(i)
		}
		t.remember(n)
		done()
	}}
	m.left.Store(1)
	for _, i := range places {
		i.abortAll(m)
	}
	n.loseNexus(m, places)
	m.finish()
}
