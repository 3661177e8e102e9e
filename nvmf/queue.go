package nvmf

import (
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/baton"
	"oneshot/internal/door"
	"oneshot/internal/invariant"
	"oneshot/internal/iostat"
	"oneshot/internal/owed"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/volume"
)

var _ mem.Waiter = (*Queue)(nil)

// Queue is a submission queue with its completion queue: one connection of a host. It is a step function that is fed with
// capsules and completions of stores, and answers through its Mover. It owns no socket, goroutine or timer.
//
// Whoever holds the lock drives the queue: the mover for each batch of input, and a store's goroutine if nobody else
// does. What others leave for the holder it does before it lets go.
type Queue struct {
	// Constant.
	node  *Node
	mover Mover
	log   *slog.Logger

	baton baton.Baton // taken before Node.mu, Subsystem.mu and Controller.mu; not held over blocking calls

	// Guarded by baton.
	state  queueState
	id     uint16
	group  uint16      // of the portal; constant
	ctrl   *Controller // nil until it is connected
	depth  int         // entries
	said   *Promised   // nil: nothing; constant
	noFlow bool        // SQHD is not looked at
	params Params      // that the mover was told last
	sqhd   uint16      // commands taken, modulo depth
	born   uint32      // Node.clock when it came, or its host was asked to authenticate itself
	live   int         // tasks that the mover's pool does not have
	told   int         // of live: answered, and the mover has not said yet that the answer has left
	tasks  []*Task     // outstanding: in a store, waiting, or fetching data
	first  *Task       // the first command of a fused pair, which waits for the second
	failed nvme.Status // of the second of a pair, if the last command was the first one, and has failed; else 0
	begun  []*path     // with operations that wait for Kick
	hungry []*Task     // of tasks, waiting for memory; besides held
	held   *Task       // of tasks: its data have come with it, and wait for memory; nothing behind them is read (Mover.Hold)
	behind bool        // there is such a task, or was, and what has come meanwhile is not read as a whole yet
	sent   uint64      // bytes that the host had sent when that was looked at last
	leased int         // bytes of I/O memory that tasks hold, as the pool counts them
	came   int         // of leased: for data that have come with their commands
	unsent int         // of leased: of commands whose answers have not left
	moved  uint32      // Node.clock when the last of these left, or the first came
	// over: the connection is about to end. Commands that have not begun do not begin any more: the host may have sent them again by another path, and
	// have written there what they would write over. They are not answered.
	over bool
	// leaving: the daemon ends. No command is begun any more, and the controller ends when those that were are answered.
	leaving bool
	left    bool // leaving, and without commands; guarded by Controller.mu
	// disconnects is the Disconnect that has come; nil: none has. No command is begun after it.
	disconnects *Task
	// fetching is for how many tasks the mover waits until the host has served its RDMA Reads, and fetched Node.clock when one
	// of these last came on.
	fetching int
	fetched  uint32
	owed     owed.List // data that the host was asked for
	proof    proof
	times    iostat.Clock

	paths   atomic.Pointer[[]*path] // sorted by NSID; replaced, never changed
	retired []*path                 // of namespaces that were taken away, until they are closed and others are; guarded by Subsystem.mu

	place door.Place // without a controller it may have to give way to others

	ready      baton.Ready[Task]
	memoryFree atomic.Bool // a lease may succeed that failed before
}

// Promise notes what the host has said of the queue. The mover calls it before it hands over any command.
func (q *Queue) Promise(p Promised) { q.said = &p }

// noSQHD is SQHD in the answer to the Connect that disables flow control (Base 2.0 figure 386). After that it is reserved.
const noSQHD = 0xffff

// freshDepth is how many commands a connection may have outstanding before it is connected.
const freshDepth = 4

// NewQueue returns the queue of a connection that mover has just established through a portal of that group, and that Admit
// has counted.
func (n *Node) NewQueue(mover Mover, group uint16) *Queue {
	q := &Queue{node: n, mover: mover, group: group, depth: freshDepth, born: n.clock.Load(), log: n.log.With("host_address", mover.Peer())}
	q.baton.Drive(driver{q})
	q.paths.Store(new([]*path))
	n.guests.Add(q, &q.place, func() { q.post(q.giveWay) })
	return q
}

// Lock makes the caller the driver of the queue.
func (q *Queue) Lock() {
	q.baton.Lock()
	q.times.Drive()
}

// Unlock does what was left for the driver, sends what is queued, and lets go.
func (q *Queue) Unlock() { q.baton.Unlock() }

// post has f run with the lock held, soon. The queue may be gone then.
func (q *Queue) post(f func()) { q.baton.Post(f) }

// awaken has the driver look at what the caller has left; now says whether to drive here if nobody does.
func (q *Queue) awaken(now bool) { q.baton.Awaken(now) }

// driver is what the holder of the baton does with a queue.
type driver struct{ *Queue }

// Resume implements baton.Driven.
func (q driver) Resume() {
	if q.memoryFree.Load() && q.memoryFree.Swap(false) {
		q.feed()
	}
	q.ready.Take()
	for t := q.ready.Next(); t != nil; t = q.ready.Next() {
		switch t.state {
		case taskWaiting, taskPulling:
			if !t.aborted && q.over {
				t.aborted, t.status = true, nvme.AbortedByQueue
			}
			if next, due := t.resume(); due { // else the call was for a former life
				q.step(t, next)
			}
		case taskGone:
			q.recycle(t)
		}
	}
}

// Flush implements baton.Driven.
func (q driver) Flush() {
	q.times.Drive()
	q.kick()
	if q.leaving {
		q.leaveIfIdle()
	}
	if q.disconnects != nil {
		q.disconnectIfIdle()
	}
	q.mover.Flush()
	if q.state == queueLost {
		q.settleEnd()
	}
}

// kick starts the store operations of the steps that were made.
func (q *Queue) kick() {
	for i, p := range q.begun {
		q.begun[i] = nil
		p.begun = false
		p.ns.v.Kick()
	}
	q.begun = q.begun[:0]
}

// taskReady has t resumed.
func (q *Queue) taskReady(t *Task) {
	q.queue(t)
	q.awaken(!q.ready.Corked())
}

// queue puts t among the tasks that want resume.
func (q *Queue) queue(t *Task) { q.ready.Put(t, &t.queued) }

// Uncork implements backend.Uncorker.
func (q *Queue) Uncork() {
	if q.ready.Uncork() {
		q.awaken(true)
	}
}

// cork has tasks that become ready wait for Uncork, unless somebody drives the queue before.
func (q *Queue) cork() backend.Uncorker {
	q.ready.Cork()
	return q
}

// Command takes a command over, whose entry is copied to t.SQE. False: there are more than the queue has entries; the connection is
// to be ended. The host may have an answer before the mover knows that it has left, and send the next command at once: so as
// many again may be in that state.
func (q *Queue) Command(t *Task, e nvme.SQE) bool {
	if q.live-q.told >= q.depth || q.live >= 2*q.depth {
		return false
	}
	copy(t.entry[:], e)
	t.SQE = t.entry[:]
	t.CQE = nvme.CQE{CID: e.CID(), SQID: q.id}
	sgl := e.SGL()
	t.Len, t.InCapsule = sgl.Length, sgl.Type == nvme.SGLInCapsule && sgl.Length > 0
	t.slot, t.ticks, t.aborted, t.status, t.arrived = -1, 0, false, 0, q.times.Arrived()
	q.live++
	if q.sqhd++; int(q.sqhd) >= q.depth {
		q.sqhd = 0
	}
	t.to(taskWaiting)
	if q.leaving || q.disconnects != nil {
		t.late = true
		q.listTask(t)
		return true
	}
	q.fusion(t)
	return true
}

// step does what a task asks for next.
func (q *Queue) step(t *Task, next volume.Next) {
	switch next {
	case volume.Done:
		t.r.Settle()
		q.answer(t)
	case volume.Pull:
		t.to(taskPulling)
		q.listTask(t)
		switch {
		case t.fused:
			t.data[0] = t.r.Out[0][:t.n]
			t.Out, t.OutLen, t.PlaceUnit = t.data[:], int(t.n), 0
		case t.own == nil:
			t.Out, t.OutLen, t.PlaceUnit = t.r.Out, t.r.OutLen, t.r.PlaceUnit
		}
		q.owed.Ask(&t.owed)
		q.mover.GetData(t)
		if t.second != nil {
			q.pullSecond(t)
		}
	case volume.Wait:
		t.to(taskWaiting)
		q.listTask(t)
	case volume.Aborted:
		t.r.Settle()
		q.giveUp(t)
	}
}

// giveUp answers an aborted command as soon as nothing is placed into its memory any more: not into that half of it, either,
// that has the data of the second of a pair.
func (q *Queue) giveUp(t *Task) {
	if t.PlaceUnit == 0 { // what is placed goes to memory of the command's own
		t.over()
		t.overForOthers()
	}
	idle := q.mover.Forget(t)
	if t.second != nil {
		idle = q.mover.Forget(t.second) && idle
	}
	if idle {
		q.answer(t)
		return
	}
	t.to(taskForgotten)
}

// overForOthers tells who has aborted the command for another host that it does nothing any more. What its own host still places into its
// memory does not matter to them.
func (t *Task) overForOthers() {
	for _, w := range t.awaited {
		w.over()
	}
	t.awaited = nil
}

// Forgotten says that nothing is placed into t.Out any more, after Forget has returned false.
func (q *Queue) Forgotten(t *Task) {
	if t.pair != nil {
		t = t.pair
	}
	q.giveUp(t)
}

// GotData says that t.Out has been filled.
func (q *Queue) GotData(t *Task) {
	if t.state != taskPulling {
		return
	}
	if q.over {
		t.abortWith(nvme.AbortedByQueue)
		return
	}
	t.got = true
	switch {
	case t.pair != nil:
		if t = t.pair; !t.got {
			return
		}
	case t.fused && (t.second == nil || !t.second.got):
		return
	}
	q.step(t, t.pulled())
}

// DataCame says that some of the data of t have come, except by RDMA Reads, and perhaps all: GotData or DataFailed follows that.
func (q *Queue) DataCame(t *Task) {
	if t.state == taskPulling {
		q.owed.Came(&t.owed)
	}
}

// owing returns the command whose host has sent nothing of its data for the most seconds, nor of what it was asked for before. The first of a pair that
// has its data owes the second. It is called once a second. RDMA Reads are noticed by Fetching.
func (q *Queue) owing() (worst *Task, silent uint32) {
	return owed.Longest(&q.owed, q.tasks, func(t *Task) *owed.Item {
		if q.fetching > 0 || q.held != nil || t.state != taskPulling || t.got && t != q.first {
			return nil
		}
		return &t.owed
	})
}

// discard ends a command without an answer.
func (q *Queue) discard(t *Task) {
	q.unlistTask(t)
	q.mover.Forget(t)
	q.answered(t)
}

// DataFailed says that the data of t cannot be had. The command is not executed.
func (q *Queue) DataFailed(t *Task, why DataFault) {
	switch why {
	case DigestMismatch:
		q.node.counters.DigestErrors.Add(1)
		t.abortWith(nvme.TransientTransport)
	case NotFetched:
		t.abortWith(nvme.DataTransferError)
	case NoRoom:
		t.repeatLater()
	}
}

// answer ends a command: its status is final.
func (q *Queue) answer(t *Task) {
	q.unlistTask(t)
	if t.copying != nil {
		t.leaveCopy()
	}
	if t.aborted {
		t.CQE.Status, t.CQE.DW0, t.CQE.DW1, t.In = t.status, 0, 0, nil
	}
	t.over()
	t.overForOthers()
	second := t.second
	if second != nil {
		t.second, second.pair = nil, nil
		if t.CQE.Status != nvme.Success {
			second.CQE.Status = t.secondFails()
		}
	}
	if q.first == t {
		q.first, q.failed = nil, t.secondFails()
	}
	q.send(t)
	if second != nil {
		q.mover.Forget(second)
		q.unlistTask(second)
		q.send(second)
	}
}

// send has the mover send the answer of t, or gives t back if there is nobody to send to.
func (q *Queue) send(t *Task) {
	t.to(taskAnswered)
	q.told++
	if !q.noFlow {
		t.CQE.SQHD = q.sqhd
	}
	if q.state >= queueLost || q.over && t.aborted {
		q.AnswerLost(t)
		return
	}
	if t.leased > 0 {
		if q.unsent == 0 {
			q.moved = q.node.clock.Load()
		}
		t.unsent = t.leased
		q.unsent += t.unsent
	}
	q.mover.Answer(t)
}

// Sent says that the answer of t has left, and gives the task back.
func (q *Queue) Sent(t *Task) {
	t.account()
	q.answered(t)
}

// AnswerLost says that the answer of t will not leave, or not all of it, because the connection has ended or is ending. The command
// counts as one without an answer.
func (q *Queue) AnswerLost(t *Task) {
	if t.path != nil {
		t.path.counts.Get().Failed(iostat.AbortedCommand)
	}
	q.answered(t)
}

func (q *Queue) answered(t *Task) {
	if t.unsent > 0 {
		q.unsent -= t.unsent
		t.unsent = 0
		q.moved = q.node.clock.Load()
	}
	if t.state == taskAnswered {
		q.told--
	}
	t.to(taskGone)
	q.leased -= t.leased
	if t.InCapsule {
		q.came -= t.leased
	}
	t.leased = 0
	t.release()
	q.sated(t)
	if !t.queued.Queued() { // else it is still in q.ready: Resume gives it back
		q.recycle(t)
	}
}

func (q *Queue) recycle(t *Task) {
	t.to(taskPooled)
	q.live--
	q.mover.FreeTask(t)
	if len(q.hungry) > 0 || q.held != nil {
		q.feed()
	}
}

// listTask puts t among the tasks that the queue waits for.
func (q *Queue) listTask(t *Task) {
	if t.slot < 0 {
		t.slot = len(q.tasks)
		q.tasks = append(q.tasks, t)
	}
}

func (q *Queue) unlistTask(t *Task) {
	if t.slot < 0 {
		return
	}
	last := q.tasks[len(q.tasks)-1]
	q.tasks[t.slot] = last
	last.slot = t.slot
	q.tasks[len(q.tasks)-1] = nil
	q.tasks = q.tasks[:len(q.tasks)-1]
	t.slot = -1
}

// path returns how the queue reaches a namespace, or nil.
func (q *Queue) path(nsid uint32) *path {
	list := *q.paths.Load()
	if i := int(nsid) - 1; i >= 0 && i < len(list) && list[i].nsid == nsid { // they are numbered without gaps
		return list[i]
	}
	if i, found := slices.BinarySearchFunc(list, nsid, func(p *path, nsid uint32) int { return int(p.nsid) - int(nsid) }); found {
		return list[i]
	}
	return nil
}

// setPaths follows the namespaces of the controller. Subsystem.mu is held.
func (q *Queue) setPaths(list []*attached) {
	old := *q.paths.Load()
	paths := make([]*path, 0, len(list))
	for _, a := range list {
		i := slices.IndexFunc(old, func(p *path) bool { return p.at == a })
		if i >= 0 {
			paths = append(paths, old[i])
		} else {
			paths = append(paths, a.ns.join(q, a))
		}
	}
	q.retired = slices.DeleteFunc(q.retired, func(p *path) bool {
		if !p.ns.closed.Load() {
			return false
		}
		q.ctrl.remember([]*path{p})
		return true
	})
	for _, p := range old {
		if !slices.Contains(paths, p) {
			q.retired = append(q.retired, p)
		}
	}
	q.paths.Store(&paths)
}

// Heard notes that the host is alive. The mover calls it for each batch of input.
func (q *Queue) Heard() {
	q.times.Arrive()
	if !q.behind { // else it may have come long ago: see look
		q.alive()
	}
}

// look notes whether the host has sent anything since the last look, though that may not be read. It ends a connection that the host has closed: what
// it has left there does not begin any more. It is called before a command goes on that was held, and once a second until nothing is unread.
func (q *Queue) look() {
	sent, read, open := q.mover.Arrived()
	if q.behind && sent != q.sent {
		q.alive()
	}
	q.sent, q.behind = sent, q.held != nil || sent != read
	if !open && q.state < queueLost && !q.over {
		q.log.Info("connection ended: the host has closed it while its commands waited for memory (limits.memory)")
		q.endNow(AtOnce)
	}
}

// alive notes that the host is alive.
func (q *Queue) alive() {
	if c := q.ctrl; c != nil && !c.heard.Load() {
		c.heard.Store(true)
	}
}

// Fetching tells for how many tasks the mover has RDMA Reads under way. It is called when that changes, and when some of the data have come. A host that is alive and
// answers no Reads would keep memory for ever.
func (q *Queue) Fetching(n int) {
	if q.fetching == 0 || n <= q.fetching {
		q.fetched = q.node.clock.Load()
	}
	q.fetching = n
}

// fail ends the connection because of what its host did, or failed to do.
func (q *Queue) fail(how Termination, format string, args ...any) {
	if q.state >= queueLost || q.over {
		return
	}
	q.over = true
	q.node.counters.ProtocolErrors.Add(1)
	q.log.Warn("connection dropped", "reason", fmt.Sprintf(format, args...))
	q.mover.Terminate(how)
}

// dismiss ends the connection, because the administrator asks for it.
func (q *Queue) dismiss(why string) {
	if q.state >= queueLost || q.over {
		return
	}
	q.over = true
	q.log.Info("controller ends", "reason", why)
	q.mover.Terminate(AtOnce)
}

// Violation says that the mover ends the connection because of what the host sent.
func (q *Queue) Violation(err error) {
	if q.state < queueLost && !q.over {
		q.over = true
		q.node.counters.ProtocolErrors.Add(1)
		q.log.Warn("connection dropped", "reason", err)
	}
}

// leave ends the connection, because the daemon ends, when what is under way is answered. The first command of a pair waits for the second, which may
// never come: neither is done.
func (q *Queue) leave() {
	q.leaving = true
	if q.first != nil {
		q.first.late = true
		q.first = nil
	}
}

// leaveIfIdle ends a connection that leaves, if no command is under way. Those of a controller end together: a host that loses one gives up all.
func (q *Queue) leaveIfIdle() {
	switch {
	case q.state >= queueLost, q.isBusy():
	case q.ctrl == nil:
		q.endNow(WhenSent)
	default:
		q.ctrl.leave(q)
	}
}

// isBusy reports whether a command is under way, besides those that wait for something to tell, or for the end.
func (q *Queue) isBusy() bool {
	return slices.ContainsFunc(q.tasks, func(t *Task) bool { return !t.parked && !t.late })
}

// endNow ends the connection, because the daemon ends.
func (q *Queue) endNow(how Termination) {
	if q.state < queueLost {
		q.over = true
		q.mover.Terminate(how)
	}
}

// Lost says that the connection is gone. Nothing is sent any more, and its tasks are aborted. With the admin queue the controller
// goes. When the last task has come back from its store the queue is gone, too.
func (q *Queue) Lost(err error) {
	if q.state >= queueLost {
		return
	}
	if err != nil && !q.over {
		q.log.Info("connection lost", "reason", err.Error())
	}
	q.to(queueLost)
	q.place.Prove()
	if q.proof.lost != nil {
		close(q.proof.lost)
	}
	for i := len(q.tasks) - 1; i >= 0; i-- {
		q.tasks[i].abortWith(nvme.AbortedByQueue)
	}
	if q.ctrl != nil && q.id == 0 {
		q.ctrl.end()
	}
}

// settleEnd forgets a lost queue when all of its tasks have come back, and the flushes of a shutdown.
func (q *Queue) settleEnd() {
	switch {
	case q.live > 0:
		return
	case q.id == 0 && q.ctrl != nil && q.ctrl.flushes > 0:
		q.ctrl.onlyFlushes()
		return
	}
	invariant.Check(q.leased == 0 && q.came == 0 && len(q.tasks) == 0 && len(q.hungry) == 0 && q.held == nil, "nvmf: a queue without tasks holds something")
	q.to(queueGone)
	if q.ctrl != nil {
		q.ctrl.queueGone(q)
	}
	q.node.guests.Forget(q)
}

// tick lets a second pass.
func (q *Queue) tick(now uint32) {
	for _, t := range q.tasks {
		t.tick()
	}
	if q.behind {
		q.look()
	}
	q.heldForLong()
	if len(q.hungry) > 0 || q.held != nil { // a command that would bring memory back may hang in its store
		q.feed()
	}
	owing, silent := q.owing()
	switch {
	case q.state == queueFresh:
		limit := q.node.limits.Load().ConnectTimeout
		switch waits := slices.ContainsFunc(q.tasks, func(t *Task) bool { return t.waits != nil }); {
		case float64(now-q.born) <= limit.Seconds():
		case waits:
			q.fail(AtOnce, "commands of a former controller of the host have not come back from their stores within %v", limit)
		default:
			q.fail(AtOnce, "no Connect command within %v", limit)
		}
	case q.proof.now != nil && float64(now-q.proof.since) > q.node.limits.Load().ConnectTimeout.Seconds():
		q.fail(AtOnce, "the host has not ended its authentication within %v", q.node.limits.Load().ConnectTimeout)
	case q.state == queueUnproven:
		if limit := q.node.limits.Load().ConnectTimeout; float64(now-q.born) > limit.Seconds() {
			q.fail(AtOnce, "the host has not authenticated itself within %v", limit)
		}
	case q.state != queueConnected:
	case q.fetching > 0 && float64(now-q.fetched) > q.node.limits.Load().ReadTimeout.Seconds():
		q.fail(AtOnce, "the host has not answered an RDMA Read for %d s", now-q.fetched)
	case float64(silent) > q.node.limits.Load().ReadTimeout.Seconds() && owing.got: // a command that runs keeps others waiting: a sanitize operation, a reload
		q.first = nil
		owing.abortWith(nvme.FusedMissing | nvme.DNR)
	case float64(silent) > q.node.limits.Load().ReadTimeout.Seconds():
		q.fail(AtOnce, "the host has sent no data for a command to namespace %d (opcode %#02x), which it was asked for (R2T), in %d s (limits.read_timeout), though it may be alive otherwise; its own log should say why", owing.SQE.NSID(), uint8(owing.SQE.Opcode()), silent)
	case q.hogs(now):
		q.fail(AtOnce, "the host has taken no answers for %d s, which hold %d bytes of memory that others wait for (limits.memory)", now-q.moved, q.unsent)
	case q.id == 0:
		q.ctrl.tick(now)
	}
}
