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

// completionQueue is a completion queue. Its goroutine sleeps in Go's poller until the device has a
// completion. It calls event if the owner has armed the queue; otherwise it only notices the ends of
// connections that nobody polls. Only this goroutine calls event.
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
	last   *queuePair            // the one that was looked up last
	ring   ring.Ring[rdma.Completion]
	armed  bool // the owner waits for an event
	asleep bool // the goroutine waits for the device
	closed bool
	users  int // queue pairs
	wcs    [C.OS_BATCH]C.struct_os_wc

	polls, completions, events uint64
	found, vain, sleeps        uint64 // how often poll found something, or nothing; how often the goroutine slept

	yielded time.Time     // when poll last let other goroutines in
	kick    chan struct{} // ends a pause; capacity 1
	wg      sync.WaitGroup
}

const (
	// pause is how long the goroutine does not look at a queue that its owner polls without arming it.
	// Then it checks whether a connection has ended.
	pause = 5 * time.Millisecond
	// slice is how long poll keeps other goroutines waiting. After 10 ms the runtime would preempt it.
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
	// Each queue pair that ends may add as many work requests of its own as markers says.
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

// harvest moves the completions of the device to the ring, and returns how many the ring holds. The
// lock is held. A closed queue has none.
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

// arm arms the device, moves the completions that it has by then to the ring, and returns how many the
// ring holds. The lock is held.
func (c *completionQueue) arm() int {
	n := C.os_arm(c.cq, &c.wcs[0], C.OS_BATCH)
	c.take(n)
	if n == C.OS_BATCH {
		return c.harvest()
	}
	return c.ring.Len()
}

// take handles the first n completions of the device in c.wcs.
func (c *completionQueue) take(n C.int) {
	for i := range int(max(n, 0)) {
		wc := &c.wcs[i]
		if q := c.last; q == nil || q.number != wc.qpn {
			c.last = c.qps[uint32(wc.qpn)]
		}
		if c.last == nil {
			continue // the queue pair is closed, and its owner knows
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
	var gap time.Duration // how long the last completion took to come
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

// work does the next step of the goroutine. False: the device is armed, and the goroutine can sleep.
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

// spinning is the number of goroutines that poll, each of which occupies a processor.
var spinning atomic.Int32

// poll polls for completions for a while, as long as the owner waits for one and at most half of the
// processors poll. In each turn it yields to the kernel, for other threads that want this processor. It
// yields to the runtime rarely: Gosched wakes a thread for every idle processor, which then competes with
// the source of the completions. Without any Gosched the runtime's monitor would interrupt the goroutine,
// and then wake every 20 µs.
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

// add registers q, so that its completions are found by its number.
func (c *completionQueue) add(q *queuePair) {
	c.mu.Lock()
	c.qps[uint32(q.number)] = q
	c.users++
	c.mu.Unlock()
}

// flush is called when the device does not know q any more. It takes the completions that the device
// has left for q; then rest pushes those of everything that the device has not completed.
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

// drain moves the completions of the device to the ring.
func (c *completionQueue) drain() {
	c.mu.Lock()
	c.harvest()
	c.mu.Unlock()
}

// release undoes add.
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
		c.cq = nil // a late Poll finds nothing
	}
	C.os_destroy_channel(c.channel)
}

// addTo adds the counters of the queue to sum.
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
