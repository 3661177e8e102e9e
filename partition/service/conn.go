package service

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// conn is one connection. Whoever holds mu drives it: the goroutine of its device, a store's that has completed
// something, or the pool's when there is memory again.
type conn struct {
	s    *Service
	peer string
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue // of qp
	ends rdma.CompletionQueue // of the endpoints
	far  *memory              // I/O memory as the device knows it
	done chan struct{}        // closed when nothing of it is left
	once sync.Once
	wg   sync.WaitGroup // goroutines of it

	wakeMu sync.Mutex // a leaf
	over   bool       // no goroutine may be started any more; guarded by wakeMu

	mu    sync.Mutex // taken before Service.mu
	dead  bool
	err   error // why
	quiet bool  // dead, and the device is done with it

	phase   phase
	hello   wire.Greeting
	id      partition.Identity
	page    *mem.Lease  // messages of the greeting: the one that is received, and those that are sent
	replies int         // of these
	next    bool        // the receive of the next message is to be posted
	timer   *time.Timer // bounds the time until there is a handle; and makes a wrong proof wait
	busy    bool        // a greeting is being answered by another goroutine
	leaving bool        // disconnect when what is posted has been sent

	slots    []rdma.SGE // of receives, when there is a handle
	leases   []*mem.Lease
	returns  []int // slots to be posted again
	handles  map[uint32]*handle
	attached bool // the slots are posted

	commands []*command // by number
	free     []*command
	active   int      // without a response
	wanting  *command // the first that waits for memory; linked by nextMemory
	lastWant *command
	memory   int64 // in use by commands
	asked    bool  // the pool will call MemoryFree

	sends    []rdma.Work // to be posted
	senders  []*command  // of them; nil: of a greeting
	posted   int         // work requests under way
	most     int         // the bound of posted
	unsent   int         // responses and messages of the greeting that have not left
	progress uint64      // completions
	seen     uint64      // progress, when Service.look looked last

	cs    [32]rdma.Completion
	batch [32]rdma.Receive
}

// phase is how far the greeting has come.
type phase uint8

const (
	wantHello phase = iota
	wantAttach
)

// A slot of a receive holds a request and what may follow it. Leases of slotLease bytes have slotsPer of them.
const (
	slotLen   = wire.RequestLen + wire.MaxInline
	slotLease = 128 << 10
	slotsPer  = slotLease / slotLen
	// The page has room for the last pageOuts messages that were sent, from pageOut on: the client may ask again before
	// the device has said that an answer has left.
	pageOut  = mem.PageSize / 2
	pageOuts = 4
)

// IDs of works at the wire. Commands have their number, with what it is about above it.
const (
	idReceive = 1 << 63
	idGreet   = 1 << 62 // the Send of a greeting
	idPull    = 1 << 61 // a Read of a command
)

// open makes the queues, and posts the receive of the first message.
func (c *conn) open() (err error) {
	s := c.s
	l := s.cfg.Device.Limits()
	c.most = min(l.MaxWork, 8*s.cfg.Credits)
	if c.page = s.cfg.Pool.Keep(mem.PageSize); c.page == nil {
		return errMemory
	}
	depth := s.cfg.Credits + 2*slotsPer
	if c.cq, err = s.cfg.Device.NewCompletionQueue(c.most+depth, c.event); err != nil {
		return err
	}
	if c.ends, err = s.ends.NewCompletionQueue(maxHandles*s.cfg.Credits, c.event); err != nil {
		return err
	}
	qp, err := s.cfg.Device.NewQueuePair(rdma.QueuePairConfig{
		Domain: c.far.dom, SendCQ: c.cq, RecvCQ: c.cq, MaxWork: c.most, MaxRecv: depth,
		Disconnected: func(err error) { c.end(err); c.teardownSoon() },
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.qp = qp
	c.mu.Unlock()
	if err = c.listen(); err != nil {
		return err
	}
	c.cq.Arm()
	c.ends.Arm()
	c.mu.Lock()
	c.timer = time.AfterFunc(s.limits.Load().StartTimeout, func() { c.end(errSlow) })
	c.mu.Unlock()
	return nil
}

var (
	errMemory = errors.New("no I/O memory: the limit is reached (limits.memory)")
	errSlow   = errors.New("it takes too long to ask for a partition")
)

// listen posts the receive of the next message of a greeting.
func (c *conn) listen() error {
	e := c.far.sge(c.page, 0, wire.MaxGreeting)
	_, err := c.qp.PostReceive([]rdma.Receive{{ID: idReceive, SGL: []rdma.SGE{e}}})
	return err
}

// widen posts the receives of requests.
func (c *conn) widen() error {
	for len(c.slots) < c.s.cfg.Credits+1 {
		l := c.s.cfg.Pool.Keep(slotLease)
		if l == nil {
			return errMemory
		}
		c.leases = append(c.leases, l)
		for i := range slotsPer {
			c.returns = append(c.returns, len(c.slots))
			c.slots = append(c.slots, c.far.sge(l, i*slotLen, slotLen))
		}
	}
	c.attached = true
	return c.postReceives()
}

// postReceives posts the slots that are free again, unless too many responses wait to be sent.
func (c *conn) postReceives() error {
	for len(c.returns) > 0 && c.unsent < maxUnsent {
		n := min(len(c.returns), len(c.batch))
		for i, s := range c.returns[:n] {
			c.batch[i] = rdma.Receive{ID: idReceive | uint64(s), SGL: c.slots[s : s+1]}
		}
		if _, err := c.qp.PostReceive(c.batch[:n]); err != nil {
			return err
		}
		c.returns = c.returns[:copy(c.returns, c.returns[n:])]
	}
	return nil
}

// event is called by the device, and by that of the endpoints.
func (c *conn) event() {
	c.mu.Lock()
	defer c.unlock()
	for {
		c.work()
		if c.cq.Arm() && c.ends.Arm() {
			return
		}
	}
}

// work does what there is to do, until there is nothing. The lock is held.
func (c *conn) work() {
	for {
		n := c.cq.Poll(c.cs[:])
		for i := range c.cs[:n] {
			c.completed(&c.cs[i])
		}
		k := c.ends.Poll(c.cs[:])
		for i := range c.cs[:k] {
			c.ended(&c.cs[i])
		}
		c.giveMemory()
		if !c.flush() && n == 0 && k == 0 {
			return
		}
	}
}

// unlock does what has come up and releases mu.
func (c *conn) unlock() {
	if c.qp != nil {
		c.work()
	}
	c.mu.Unlock()
}

// flush posts what there is to be posted, at the endpoints first, and reports whether there was something.
func (c *conn) flush() (did bool) {
	for _, h := range c.handles {
		did = h.flush() || did
	}
	switch {
	case c.quiet:
		return c.abandon() || did
	case c.dead:
		return did
	}
	if c.next && c.unsent < pageOuts {
		c.next = false
		if err := c.listen(); err != nil {
			c.broken(err)
			return true
		}
	}
	if c.attached && len(c.returns) > 0 && c.unsent < maxUnsent {
		if err := c.postReceives(); err != nil {
			c.broken(err)
			return true
		}
	}
	if n := min(len(c.sends), c.most-c.posted); n > 0 {
		k, err := c.qp.Post(c.sends[:n])
		c.posted += k
		c.drop(k)
		did = true
		if err != nil {
			c.broken(err)
		}
	}
	if c.leaving && len(c.sends) == 0 && c.posted == 0 {
		c.leaving = false
		c.qp.Disconnect()
	}
	return did
}

// drop removes the first k of sends.
func (c *conn) drop(k int) {
	n := copy(c.sends, c.sends[k:])
	clear(c.sends[n:])
	c.sends = c.sends[:n]
	n = copy(c.senders, c.senders[k:])
	clear(c.senders[n:])
	c.senders = c.senders[:n]
}

// abandon ends what will never be sent, and what waits for memory. It is called when the device uses no memory of the
// connection any more, because a part of a response may have been posted from the memory that it frees.
func (c *conn) abandon() (did bool) {
	for len(c.sends) > 0 {
		w, x := c.sends[0], c.senders[0]
		c.drop(1)
		did = true
		if x != nil {
			x.dropped(&w)
		}
	}
	for x := c.wanting; x != nil; x = c.wanting {
		c.wanting, x.nextMemory = x.nextMemory, nil
		x.give(nil)
		did = true
	}
	c.lastWant = nil
	return did
}

// queue adds a work request to be posted. x is the command that it belongs to; nil: a greeting.
func (c *conn) queue(w rdma.Work, x *command) {
	c.sends = append(c.sends, w)
	c.senders = append(c.senders, x)
}

// completed handles a completion of the device.
func (c *conn) completed(x *rdma.Completion) {
	c.progress++
	if x.Status != rdma.StatusOK && x.Status != rdma.StatusFlushed {
		err := x.Err
		if err == nil {
			err = fmt.Errorf("%v: %v", x.Op, x.Status)
		}
		c.broken(err)
	}
	switch {
	case x.ID&idReceive != 0:
		if x.Status == rdma.StatusOK {
			c.received(int(x.ID&^uint64(idReceive)), x)
		}
		return
	case x.ID&idGreet != 0:
		c.posted--
		c.unsent--
		return
	}
	cmd := c.commands[x.ID&^uint64(idPull)]
	if x.ID&idPull != 0 {
		c.posted--
		cmd.pulled(x.Status == rdma.StatusOK)
		return
	}
	if x.Op == rdma.OpSend { // Writes complete by themselves only when the connection has ended
		c.posted -= cmd.works
		cmd.left()
	}
}

// received handles a message.
func (c *conn) received(slot int, x *rdma.Completion) {
	if c.dead {
		return
	}
	if !c.attached {
		c.greeted(c.page.Bytes()[:x.Bytes], x)
		return
	}
	b := c.slots[slot].Bytes[:x.Bytes]
	if o, isAnswer, err := wire.Kind(b); err == nil && !isAnswer && o == wire.Attach {
		c.greeted(b, x)
		c.returns = append(c.returns, slot)
		return
	}
	if c.request(b, slot, x) {
		return // the command has the slot
	}
	c.returns = append(c.returns, slot)
}

// broken ends the use of the connection, because of what the client did or left undone. The device says
// when it is over, and teardown follows. What the store still does for the client is given up before he hears of that: he may come
// back at once, to another service. The lock is held.
func (c *conn) broken(err error) {
	if c.dead {
		return
	}
	c.dead, c.err = true, err
	c.s.conns.Part(c)
	for _, h := range c.handles {
		h.qp.Abort(err)
	}
	c.qp.Abort(err)
}

// violation is broken because of a message.
func (c *conn) violation(err error) {
	if !c.dead {
		c.s.log.Warn("client of partitions broke the protocol", slog.String("client", c.peer), slog.Any("reason", err))
		c.broken(err)
	}
}

// end is broken for those who do not hold the lock.
func (c *conn) end(err error) {
	c.mu.Lock()
	if c.qp == nil { // it is not open yet
		c.dead = true
	} else {
		c.broken(err)
	}
	c.mu.Unlock()
}

// tick is called about once a second. What waits here to be posted is late when it has done so for long: its client may have been given up,
// and what others have written since is not overwritten. From when it is posted on the endpoint counts.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.unlock()
	for _, h := range c.handles {
		for x := h.first; x != nil; x = x.next {
			if x.ticks < backend.OverdueTicks {
				x.ticks++
			}
			if x.ticks == backend.OverdueTicks && x.guard == nil && h.guards != nil && x.changes() {
				x.guard = h.guards.Guard(int64(x.r.Offset), int64(x.r.Length))
			}
		}
	}
}

// isDead reports whether the connection has ended, or is about to.
func (c *conn) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// spawn starts a goroutine for which the end of the connection waits, unless the connection has ended.
func (c *conn) spawn(f func()) {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if !c.over {
		c.wg.Go(f)
	}
}

// teardownSoon is teardown for those who must not block.
func (c *conn) teardownSoon() {
	if c.s.conns.Has(c) { // so Close waits
		go c.teardown()
	}
}

// teardown ends the life of the connection, once. The device has said that it is over, or it never began.
func (c *conn) teardown() {
	c.once.Do(func() {
		_ = c.qp.Close()
		c.mu.Lock()
		c.dead, c.quiet = true, true
		c.s.conns.Part(c)
		c.timer.Stop()
		hs := slices.Collect(maps.Values(c.handles)) // no more come
		c.unlock()
		c.wakeMu.Lock()
		c.over = true
		c.wakeMu.Unlock()
		c.wg.Wait()
		for _, h := range hs {
			h.close()
		}
		c.mu.Lock()
		c.work() // all that was posted has completed
		c.mu.Unlock()
		c.release()
	})
}

// release gives back what the connection has.
func (c *conn) release() {
	if c.qp != nil {
		_ = c.qp.Close()
	}
	for _, q := range []rdma.CompletionQueue{c.cq, c.ends} {
		if q != nil {
			_ = q.Close()
		}
	}
	for _, l := range c.leases {
		l.Release()
	}
	if c.page != nil {
		c.page.Release()
	}
	c.letGo()
	c.s.conns.Leave(c)
	close(c.done)
}

// letGo gives the device back what it knows of memory for this connection alone.
func (c *conn) letGo() {
	if c.far == &c.s.far {
		return
	}
	if err := c.far.close(); err != nil {
		c.s.log.Error("the memory of a connection that has ended stays with the device", slog.Any("reason", err))
	}
}

// MemoryFree implements mem.Waiter.
func (c *conn) MemoryFree() {
	c.spawn(func() {
		c.mu.Lock()
		c.asked = false
		c.unlock()
	})
}
