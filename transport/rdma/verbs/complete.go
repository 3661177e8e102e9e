//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
// #cgo noescape os_poll
// #cgo nocallback os_poll
// #cgo noescape os_arm
// #cgo nocallback os_arm
// #cgo nocallback os_consume
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// completionQueue is a completion queue. Its goroutine sleeps in Go's poller until the device has
// something, for the owner if it has armed the queue, and otherwise to see connections end that
// nobody polls. All calls of event are the goroutine's.
//
//	device's queue ─► harvest ─► ring ─► Poll
//	      └───────────────────────────────┘ when the ring is empty
type completionQueue struct {
	dev     *Device
	event   func()
	channel *C.struct_ibv_comp_channel
	cq      *C.struct_ibv_cq
	poller  *poller
	spin    time.Duration

	mu     sync.Mutex            // taken before queuePair.mu and receiveQueue.mu
	qps    map[uint32]*queuePair // by number
	last   *queuePair            // found last
	ring   ring.Ring[rdma.Completion]
	armed  bool // the owner waits for an event
	asleep bool // the goroutine waits for the device
	closed bool
	users  int // queue pairs
	wcs    [C.OS_BATCH]C.struct_os_wc

	polls, completions, events uint64
	found, vain, sleeps        uint64 // of poll; of the goroutine

	yielded time.Time     // when poll last let other goroutines in
	kick    chan struct{} // ends a pause; capacity 1
	wg      sync.WaitGroup
}

const (
	// pause is how long the goroutine leaves a queue alone that its owner polls without arming
	// it, before it looks whether a connection has ended.
	pause = 5 * time.Millisecond
	// slice is how long poll keeps other goroutines waiting. The runtime lets them in by force after 10 ms.
	slice = 5 * time.Millisecond
)

// NewCompletionQueue implements rdma.Device.
func (d *Device) NewCompletionQueue(depth int, event func()) (_ rdma.CompletionQueue, err error) {
	c := &completionQueue{
		dev: d, event: event, spin: d.cfg.Spin, qps: make(map[uint32]*queuePair), kick: make(chan struct{}, 1),
	}
	if c.channel, err = C.os_create_channel(d.ctx); c.channel == nil {
		return nil, fmt.Errorf("verbs: completion channel of %s: %w", d.cfg.Name, err)
	}
	// Queue pairs that end add work requests of their own: markers each.
	entries := min(depth+depth/2+64, d.maxCQE)
	if c.cq, err = C.os_create_cq(d.ctx, C.int(entries), c.channel); c.cq == nil {
		C.os_destroy_channel(c.channel)
		return nil, fmt.Errorf("verbs: completion queue of %d on %s: %w", depth, d.cfg.Name, err)
	}
	if c.poller, err = newPoller(int(C.os_channel_fd(c.channel)), d.cfg.Name+" completions"); err != nil {
		c.free()
		return nil, err
	}
	if rc := C.os_arm(c.cq, &c.wcs[0], 0); rc < 0 {
		c.free()
		return nil, fmt.Errorf("verbs: arm completion queue on %s: %w", d.cfg.Name, errno(rc))
	}
	d.mu.Lock()
	d.cqs[c] = struct{}{}
	d.mu.Unlock()
	c.wg.Go(c.serve)
	return c, nil
}

// Poll implements rdma.CompletionQueue.
func (c *completionQueue) Poll(into []rdma.Completion) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(into) && (c.ring.Len() > 0 || c.harvest() > 0) {
		for n < len(into) && c.ring.Len() > 0 {
			p := c.ring.At(c.ring.Head)
			into[n] = *p
			p.QueuePair, p.Err = nil, nil
			c.ring.Head++
			n++
		}
	}
	if n > 0 {
		c.polls++
		c.completions += uint64(n)
	}
	return n
}

// harvest takes what the device has to the ring and returns how much the ring holds. The lock is
// held. A queue that is closed has nothing.
func (c *completionQueue) harvest() int {
	for c.cq != nil {
		n := C.os_poll(c.cq, &c.wcs[0], C.OS_BATCH)
		c.take(n)
		if n < C.OS_BATCH {
			break
		}
	}
	return c.ring.Len()
}

// arm arms the device, takes what it has meanwhile, and returns how much the ring holds. The lock
// is held.
func (c *completionQueue) arm() int {
	n := C.os_arm(c.cq, &c.wcs[0], C.OS_BATCH)
	c.take(n)
	if n == C.OS_BATCH {
		return c.harvest()
	}
	return c.ring.Len()
}

// take makes completions of c.wcs.
func (c *completionQueue) take(n C.int) {
	for i := range int(max(n, 0)) {
		wc := &c.wcs[i]
		if q := c.last; q == nil || q.number != wc.qpn {
			c.last = c.qps[uint32(wc.qpn)]
		}
		if c.last == nil {
			continue // its owner has closed it, and has been told
		}
		c.last.completed(wc, c)
	}
}

func (c *completionQueue) push(x *rdma.Completion) {
	c.ring.Push(*x)
}

// Arm implements rdma.CompletionQueue. The device is armed whenever the goroutine sleeps.
func (c *completionQueue) Arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.Len() > 0 || c.harvest() > 0 {
		return false
	}
	c.armed = true
	if !c.asleep {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
	return true
}

// due reports whether event has to be called. The lock is held.
func (c *completionQueue) due() bool { return c.armed && c.ring.Len() > 0 && c.event != nil }

// serve is the queue's goroutine.
func (c *completionQueue) serve() {
	consume := func(uintptr) bool { return C.os_consume(c.channel) > 0 }
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var gap time.Duration // until the last completion came
	for {
		idle := time.Now()
		for c.work(gap <= c.spin && !c.dev.sleeping.Load(), timer) {
			idle = time.Now()
		}
		if !c.poller.wait(consume) {
			return
		}
		gap = time.Since(idle)
		c.mu.Lock()
		c.asleep = false
		c.mu.Unlock()
	}
}

// work does the next thing that the goroutine has to do. False: it can sleep, the device is armed.
func (c *completionQueue) work(spin bool, timer *time.Timer) (more bool) {
	c.mu.Lock()
	c.harvest()
	if c.due() {
		c.armed = false
		c.events++
		c.mu.Unlock()
		c.event()
		return true
	}
	armed, closed := c.armed, c.closed
	c.mu.Unlock()
	switch {
	case closed:
	case !armed: // the owner is at work, or polls
		timer.Reset(pause)
		select {
		case <-c.kick:
			return true
		case <-timer.C:
		}
	case spin && c.poll():
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.poller.rest()
	c.arm()
	if c.due() || c.armed != armed {
		return true
	}
	c.asleep = true
	c.sleeps++
	if c.closed {
		c.poller.wake()
	}
	return false
}

// spinning is how many goroutines look for completions, each of which keeps a processor.
var spinning atomic.Int32

// poll looks for completions for a while, as long as the owner waits for one and half of the
// processors are left to others. Who else wants this one gets it from the kernel. The runtime is
// asked rarely: Gosched wakes a thread for every idle processor, which then competes with whoever the completions
// come from; and never asking lets its monitor interrupt the goroutine, and then look every 20 µs.
func (c *completionQueue) poll() bool {
	defer spinning.Add(-1)
	if int(spinning.Add(1)) > runtime.GOMAXPROCS(0)/2 {
		return false
	}
	began := time.Now()
	for now := began; ; now = time.Now() {
		last := now.Sub(began) >= c.spin
		c.mu.Lock()
		found := c.harvest() > 0
		switch {
		case found:
			c.found++
		case last:
			c.vain++
		}
		c.mu.Unlock()
		if found || last {
			return found
		}
		if now.Sub(c.yielded) > slice {
			c.yielded = now
			runtime.Gosched()
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// add makes completions for q known by its number.
func (c *completionQueue) add(q *queuePair) {
	c.mu.Lock()
	c.qps[uint32(q.number)] = q
	c.users++
	c.mu.Unlock()
}

// flush ends what q, which the device does not know any more, has in the queue: what the device
// has completed is taken, then rest pushes what it has not.
func (c *completionQueue) flush(q *queuePair, rest func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.harvest()
	rest()
	delete(c.qps, uint32(q.number))
	if c.last == q {
		c.last = nil
	}
	if c.due() {
		c.poller.wake()
	}
}

// drain takes what the device has to the ring.
func (c *completionQueue) drain() {
	c.mu.Lock()
	c.harvest()
	c.mu.Unlock()
}

// release is the end of add.
func (c *completionQueue) release() {
	c.mu.Lock()
	c.users--
	c.mu.Unlock()
}

// Close implements rdma.CompletionQueue.
func (c *completionQueue) Close() error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil
	case c.users > 0:
		c.mu.Unlock()
		return errInUse
	}
	c.closed = true
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
	err := c.poller.close()
	c.wg.Wait()
	c.poller = nil
	c.mu.Lock()
	c.free()
	c.mu.Unlock()
	c.dev.mu.Lock()
	delete(c.dev.cqs, c)
	c.addTo(&c.dev.past)
	c.dev.mu.Unlock()
	return err
}

func (c *completionQueue) free() {
	if c.poller != nil {
		_ = c.poller.close()
	}
	if c.cq != nil {
		C.os_destroy_cq(c.cq)
		c.cq = nil // who polls late finds nothing
	}
	C.os_destroy_channel(c.channel)
}

// addTo adds what has crossed the queue.
func (c *completionQueue) addTo(sum *rdma.Counters) {
	c.mu.Lock()
	sum.Polls += c.polls
	sum.Completions += c.completions
	sum.Events += c.events
	sum.PollingFound += c.found
	sum.PollingInVain += c.vain
	sum.Sleeps += c.sleeps
	c.mu.Unlock()
}
