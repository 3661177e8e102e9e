package nvmf

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/internal/iostat"
	"oneshot/nvme"
)

// Controller is a controller: an admin queue, and the I/O queues that its host has added. It ends with its admin queue.
//
//	disabled ── CC.EN=1 ──► ready ── CC.EN=0 ──► resetting: the I/O queues end ──► disabled
//	                          └──── CC.SHN ────► shutting down: these end, and stores are flushed ──► shut down
type Controller struct {
	// Constant.
	node    *Node
	sub     *Subsystem
	admin   *Queue
	hostNQN string
	hostID  [16]byte
	number  uint64 // names the controller while the node lives
	since   time.Time
	group   uint16 // of the portal that all queues come through

	id uint16 // constant once Subsystem.add has set it

	ready atomic.Bool // commands other than those of fabrics are taken
	heard atomic.Bool // a queue has had input since the last tick
	// delays: the host waits before it repeats a command, if the status says so (ACRE).
	delays atomic.Bool

	attached atomic.Pointer[[]*attached] // namespaces, sorted by NSID; replaced, never changed
	detached []*attached                 // that were taken away, until they are closed and others are; guarded by Subsystem.mu
	groups   map[uint32]*anaGroup        // by NSID, those of namespaces that were taken away among them; guarded by Subsystem.mu
	gone     bool                        // it attaches no namespace any more; guarded by Subsystem.mu
	reaches  bool                        // namespaces, or has: what comes now the host has not asked about; guarded by Subsystem.mu
	unproven bool                        // its host has yet to prove itself: it attaches none; guarded by Subsystem.mu
	barred   atomic.Bool                 // its host is not admitted any more: it attaches none, and ends; set with Subsystem.mu held

	mu       sync.Mutex // taken after Subsystem.mu; a leaf
	queues   map[uint16]*Queue
	claims   []*Queue // I/O queues whose hosts have to prove themselves: the first that does takes the number
	ended    bool
	flushing bool // it has ended, and nothing is left but flushes of its shutdown
	counted  bool // it is one of Node.controllers
	cc, csts uint32
	grant    int // I/O queues that the host may have

	past iostat.Stats // of queues that are gone; guarded by Subsystem.mu

	// Guarded by the lock of admin.
	kato     uint32 // milliseconds; 0: no timer
	last     uint32 // Node.clock when the host was heard
	features features
	events   events
	changed  []uint32 // namespaces, for the log; sorted
	retell   retell
	errors   errorLog
	notices  notices
	// shown is sumOf the entries of the discovery log that the host has seen last, or that there were when it connected, and generation theirs.
	shown, generation uint64
	// anaChanges counts changes of access states.
	anaChanges uint64
	aborts     int  // Abort commands that are under way
	flushes    int  // flushes of a shutdown that are under way; the end of the queue waits for them
	covers     bool // the last flushes have begun after the last shutdown
	unflushed  bool // one of them has failed
}

// startTimeout is how long the controller takes to become ready, 500 ms each.
const startTimeout = 15

func newController(q *Queue, sub *Subsystem, host string, hostID [16]byte, kato uint32) *Controller {
	c := &Controller{
		node: q.node, sub: sub, admin: q, hostNQN: host, hostID: hostID, group: q.group, number: q.node.lastNumber.Add(1), since: time.Now(),
		queues: make(map[uint16]*Queue), groups: make(map[uint32]*anaGroup),
		kato: kato, last: q.node.clock.Load(), features: newFeatures(), grant: maxIOQueues,
	}
	c.attached.Store(new([]*attached))
	return c
}

// attach enters a queue. False: there is one of that number, or the controller is going. Subsystem.mu is held.
func (c *Controller) attach(q *Queue, qid uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended || c.queues[qid] != nil || qid != 0 && !c.ready.Load(): // a reset that has begun has told the queues that it has found
		return false
	case qid != 0 && q.proof.wanted:
		c.claims = append(c.claims, q)
	default:
		c.queues[qid] = q
	}
	return true
}

// grantClaim enters a queue whose host has proved itself. False: another one of that number was faster, or the controller is going.
func (c *Controller) grantClaim(q *Queue) bool {
	c.sub.mu.Lock()
	defer c.sub.mu.Unlock()
	c.mu.Lock()
	ok := !c.ended && c.queues[q.id] == nil && c.ready.Load()
	if ok {
		c.dropClaim(q)
		c.queues[q.id] = q
	}
	c.mu.Unlock()
	if ok {
		q.setPaths(*c.attached.Load())
	}
	return ok
}

// proven has the controller reach the namespaces: its host has proved itself.
func (c *Controller) proven() {
	c.sub.mu.Lock()
	defer c.sub.mu.Unlock()
	c.unproven = false
	c.sub.attachTo(c)
}

// dropClaim forgets that a queue claims a number. mu is held.
func (c *Controller) dropClaim(q *Queue) {
	c.claims = slices.DeleteFunc(c.claims, func(o *Queue) bool { return o == q })
}

// allQueues lists the queues, the admin queue among them.
func (c *Controller) allQueues() []*Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Queue, 0, len(c.queues))
	for _, q := range c.queues {
		list = append(list, q)
	}
	return list
}

// count makes the controller one of those that the node has room for; false: there is none.
func (c *Controller) count() bool {
	ok := c.node.addController(c.sub.isDiscovery())
	c.mu.Lock()
	c.counted = ok
	c.mu.Unlock()
	return ok
}

// uncount takes it back.
func (c *Controller) uncount() {
	c.mu.Lock()
	counted := c.counted
	c.counted = false
	c.mu.Unlock()
	if counted {
		c.node.dropController(c.sub.isDiscovery())
	}
}

// hasEnded reports whether the admin queue is lost.
func (c *Controller) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// isFlushing reports whether it has ended, and no command is left.
func (c *Controller) isFlushing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushing
}

// onlyFlushes notes that no command of the admin queue is left, which is lost. The lock of the admin queue is held.
func (c *Controller) onlyFlushes() {
	c.mu.Lock()
	news := !c.flushing && len(c.queues)+len(c.claims) == 1
	c.flushing = c.flushing || news
	c.mu.Unlock()
	if news {
		c.sub.wakeConnects()
	}
}

func (c *Controller) granted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grant
}

// end ends the controller, whose admin queue is lost.
func (c *Controller) end() {
	c.ready.Store(false)
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.dropQueues("the admin queue of the controller is gone")
	c.node.log.Info("host disconnected", "host", c.hostNQN, "subsystem", c.sub.nqn, "controller", c.id)
}

// dropQueues ends the I/O queues, and reports whether there are none.
func (c *Controller) dropQueues(why string) bool {
	c.mu.Lock()
	list := slices.Clone(c.claims)
	for qid, q := range c.queues {
		if qid != 0 {
			list = append(list, q)
		}
	}
	c.mu.Unlock()
	for _, q := range list {
		q.post(func() {
			if q.state < queueLost && !q.over {
				q.over = true
				q.log.Debug("queue ended", "reason", why)
				q.mover.Terminate(AtOnce)
			}
		})
	}
	return len(list) == 0
}

// leave notes that a queue which leaves has no command under way.
func (c *Controller) leave(q *Queue) {
	c.mu.Lock()
	was := q.left
	q.left = true
	c.mu.Unlock()
	if !was {
		c.endIfLeft()
	}
}

// endIfLeft ends the queues if all of them leave, and none has a command.
func (c *Controller) endIfLeft() {
	list := c.allQueues()
	c.mu.Lock()
	stay := slices.ContainsFunc(list, func(q *Queue) bool { return !q.left })
	c.mu.Unlock()
	if stay {
		return
	}
	for _, q := range list {
		q.post(func() { q.endNow(WhenSent) })
	}
}

// queueGone forgets a queue of which nothing is left.
func (c *Controller) queueGone(q *Queue) {
	c.sub.mu.Lock()
	paths := q.everyPath()
	q.retired = nil
	q.paths.Store(new([]*path))
	c.remember(paths)
	c.mu.Lock()
	if c.queues[q.id] == q {
		delete(c.queues, q.id)
	}
	c.dropClaim(q)
	left := len(c.queues) + len(c.claims)
	over := c.ended && left == 0
	drained := !c.ended && left == 1
	var attached []*attached
	if over {
		c.gone = true
		attached = append(slices.Clone(*c.attached.Load()), c.detached...)
	}
	c.mu.Unlock()
	c.sub.mu.Unlock()
	for _, p := range paths {
		p.ns.part(p)
	}
	for _, a := range attached {
		a.detach()
	}
	switch {
	case over:
		c.sub.remove(c)
		c.uncount()
	case drained:
		c.admin.post(c.queuesGone)
	}
	c.endIfLeft()
}

// property returns a property, and whether it is there in that size.
func (c *Controller) property(p nvme.Property, wide bool) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p == nvme.PropCAP && wide:
		return nvme.Capabilities{MQES: uint16(c.node.cfg.Depth - 1), Timeout: startTimeout}.Value(), true
	case p == nvme.PropVS && !wide:
		return nvme.Version, true
	case p == nvme.PropCC && !wide:
		return uint64(c.cc), true
	case p == nvme.PropCSTS && !wide:
		return uint64(c.csts), true
	}
	// The others are of controllers on PCIe, or of abilities that there are not: they read as 0.
	const end = 0x1300
	reserved := p == 0x0c || p == 0x10 || p == 0x18 || p >= nvme.PropNSSR && p < end
	return 0, reserved && p%4 == 0
}

// setCC is a write to the property CC, whose changes make the controller ready, reset it, or shut it down
// (Base 2.0 §3.1.3.5). The lock of the admin queue is held.
func (c *Controller) setCC(v uint32) {
	c.mu.Lock()
	old := c.cc
	c.cc = v
	switch {
	case v&nvme.CCEnable != 0 && old&nvme.CCEnable == 0:
		if v&(nvme.CCCSS|nvme.CCMPS|nvme.CCAMS) != 0 || v&(nvme.CCIOSQES|nvme.CCIOCQES) != nvme.CCEntrySizes {
			c.csts |= nvme.CSTSFatal
			break
		}
		c.csts = nvme.CSTSReady
		c.ready.Store(true)
	case v&nvme.CCEnable == 0 && old&nvme.CCEnable != 0:
		c.mu.Unlock()
		c.reset()
		return
	}
	shutdown := v&nvme.CCSHN != 0 && old&nvme.CCSHN == 0
	if shutdown {
		c.csts = c.csts&^nvme.CSTSShutdown | nvme.CSTSShutdownUnderWay
		c.ready.Store(false)
		c.covers = false
	}
	c.mu.Unlock()
	if shutdown && c.dropQueues("the controller is shut down") {
		c.queuesGone()
	}
}

// reset ends I/O queues, and gives the controller the state that it had at the start. It is ready no more when they are
// gone.
func (c *Controller) reset() {
	c.ready.Store(false)
	for _, t := range c.events.parked {
		t.parked = false
		c.admin.discard(t)
	}
	c.events, c.features, c.changed, c.retell, c.notices = events{}, newFeatures(), nil, retell{}, notices{}
	c.delays.Store(false)
	for _, a := range *c.attached.Load() {
		a.recovery = 0
	}
	c.mu.Lock()
	c.grant = maxIOQueues
	c.csts &^= nvme.CSTSShutdown
	c.mu.Unlock()
	if c.dropQueues("the controller is reset") {
		c.queuesGone()
	}
}

// queuesGone goes on with a reset or a shutdown when there are no I/O queues. The lock of the admin queue is held.
func (c *Controller) queuesGone() {
	c.mu.Lock()
	shutdown := false
	switch {
	case len(c.queues)+len(c.claims) > 1:
	case c.csts&nvme.CSTSShutdown == nvme.CSTSShutdownUnderWay:
		shutdown = c.flushes == 0 && !c.covers
	case c.cc&nvme.CCEnable == 0:
		c.csts &^= nvme.CSTSReady | nvme.CSTSFatal
	}
	c.mu.Unlock()
	if shutdown {
		c.flush()
	}
}

// flush makes the namespaces durable: a host that shuts the controller down is about to rely on that. The lock of the admin queue is held.
func (c *Controller) flush() {
	list := *c.admin.paths.Load()
	c.flushes, c.covers, c.unflushed = len(list)+1, true, false
	for _, p := range list {
		f := &shutdownFlush{c: c, p: p.hold()}
		f.op = backend.Op{Kind: backend.Flush, Done: f}
		if p.ns.v.Store().Submit(&f.op) {
			f.OpDone(&f.op)
		}
	}
	c.flushed()
}

// flushed notes that a flush has ended. A shutdown is not complete if one has failed: the host, which could be told so by no command, finds the
// controller in the state of a fatal error, which a reset ends (Base 2.0 §3.1.3.6). The lock of the admin queue is held.
func (c *Controller) flushed() {
	if c.flushes--; c.flushes > 0 {
		return
	}
	c.mu.Lock()
	switch {
	case !c.covers || c.csts&nvme.CSTSShutdown != nvme.CSTSShutdownUnderWay:
	case c.unflushed:
		c.csts |= nvme.CSTSFatal
	default:
		c.csts = c.csts&^nvme.CSTSShutdown | nvme.CSTSShutdownDone
	}
	c.mu.Unlock()
	c.queuesGone()
}

// shutdownFlush is the flush of a namespace in a shutdown.
type shutdownFlush struct {
	c  *Controller
	p  heldPath
	op backend.Op
}

// OpDone implements backend.Completer.
func (f *shutdownFlush) OpDone(*backend.Op) {
	failed := f.op.Err != nil && !moved(f.op.Err) // another process that serves the bytes has all that was answered here
	if failed {
		f.p.ns.log.Error("the store could not be flushed when a host shut its controller down", "host", f.c.hostNQN, "reason", f.op.Err)
	}
	f.c.admin.post(func() {
		f.p.letGo()
		f.c.unflushed = f.c.unflushed || failed
		f.c.flushed()
	})
}

// tick lets a second pass.
func (c *Controller) tick(now uint32) {
	c.tellAgain(now)
	if c.heard.Swap(false) {
		c.last = now
	}
	if silent := now - c.last; c.kato > 0 && uint64(silent)*1000 > uint64(c.kato)+1000 {
		c.admin.fail(AtOnce, "nothing was heard of the host for %d s, and its keep-alive timeout is %d ms", silent, c.kato)
		c.dropQueues("the keep-alive timeout is over")
	}
}
