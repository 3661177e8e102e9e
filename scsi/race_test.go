package scsi

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
)

// asyncStore completes operations from goroutines of its own, some of them at once.
type asyncStore struct {
	*fakeStore
	ops chan *backend.Op
	wg  sync.WaitGroup
}

func newAsyncStore(s *fakeStore) *asyncStore {
	a := &asyncStore{fakeStore: s, ops: make(chan *backend.Op, 1024)}
	for range 3 {
		a.wg.Go(func() {
			for op := range a.ops {
				a.locked(op)
				op.Done.OpDone(op)
			}
		})
	}
	return a
}

func (a *asyncStore) locked(op *backend.Op) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.do(op)
}

func (a *asyncStore) Submit(op *backend.Op) bool {
	if op.Off/512%5 == 4 {
		a.locked(op)
		return true
	}
	a.ops <- op
	return false
}

func (a *asyncStore) stop() {
	close(a.ops)
	a.wg.Wait()
}

// testConn drives the tasks of one nexus, as a transport connection does: whoever holds mu
// takes steps, and TaskReady takes them itself if nobody holds it.
type testConn struct {
	t     *testing.T
	nexus *Nexus

	mu   sync.Mutex
	live map[*Task]*testTask // guarded by mu
	wake chan struct{}       // something was ready, or has ended

	readyMu sync.Mutex
	ready   []*Task // guarded by readyMu
}

// testTask is a command and what becomes of it.
type testTask struct {
	Task
	out  []byte
	end  func(*Task, Next) // called before the release
	ends int
}

func newTestConn(t *testing.T, n *Nexus) *testConn {
	return &testConn{t: t, nexus: n, live: make(map[*Task]*testTask), wake: make(chan struct{}, 1)}
}

func (c *testConn) TaskReady(t *Task) {
	c.readyMu.Lock()
	c.ready = append(c.ready, t)
	c.readyMu.Unlock()
	if c.mu.TryLock() {
		c.unlock()
	}
	c.nudge()
}

func (c *testConn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *testConn) Lease(_ *Task, n int) *mem.Lease { return testPool.Lease(n) }

func (c *testConn) takeReady() (t *Task) {
	c.readyMu.Lock()
	defer c.readyMu.Unlock()
	if len(c.ready) > 0 {
		t = c.ready[0]
		c.ready = c.ready[1:]
	}
	return t
}

// unlock resumes what is ready and unlocks mu.
func (c *testConn) unlock() {
	for {
		for t := c.takeReady(); t != nil; t = c.takeReady() {
			if x := c.live[t]; x != nil {
				c.step(x, x.Resume())
			} else if next := t.Resume(); next != Wait {
				c.t.Errorf("a late Resume returns %v", next)
			}
		}
		c.mu.Unlock()
		c.readyMu.Lock()
		more := len(c.ready) > 0
		c.readyMu.Unlock()
		if !more || !c.mu.TryLock() {
			return
		}
	}
}

// start begins a command. mu is held.
func (c *testConn) start(x *testTask) {
	x.Owner, x.Nexus = c, c.nexus
	c.live[&x.Task] = x
	c.step(x, x.Start())
}

func (c *testConn) step(x *testTask, next Next) {
	for next == Pull {
		place(&x.Task, x.out)
		next = x.Pulled()
	}
	if next == Wait {
		return
	}
	delete(c.live, &x.Task)
	x.ends++
	if x.end != nil {
		x.end(&x.Task, next)
	}
	x.Release()
	c.nudge()
}

// do runs a command to its end. No lock is held.
func (c *testConn) do(x *testTask) {
	c.mu.Lock()
	c.start(x)
	c.await(func() bool { return c.live[&x.Task] == nil })
	c.unlock()
}

// await resumes what is ready until the condition holds. mu is held, except while waiting.
func (c *testConn) await(holds func() bool) {
	for c.drainLocked(); !holds(); c.drainLocked() {
		c.mu.Unlock()
		<-c.wake
		c.mu.Lock()
	}
}

func (c *testConn) drainLocked() {
	for t := c.takeReady(); t != nil; t = c.takeReady() {
		if x := c.live[t]; x != nil {
			c.step(x, x.Resume())
		}
	}
}

// racing runs f on several connections at once, on a store that lends and on one that answers
// later.
func racing(t *testing.T, f func(t *testing.T, b *bench, conns []*testConn)) {
	for _, lends := range []bool{true, false} {
		name := map[bool]string{true: "lent", false: "later"}[lends]
		t.Run(name, func(t *testing.T) {
			b := newBench(t, lends, func(c *benchConfig, s *fakeStore) {
				if !lends {
					a := newAsyncStore(s)
					t.Cleanup(a.stop)
					c.Store = a
				}
			})
			var conns []*testConn
			for range 4 {
				conns = append(conns, newTestConn(t, b.newNexus()))
			}
			f(t, b, conns)
			if running, gate := b.lu.running(), b.lu.gate.Load(); running != 0 || gate != 0 {
				t.Errorf("%d tasks are running, gate %d", running, gate)
			}
			if err := b.lu.v.Settled(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAtomic: COMPARE AND WRITE against READ, WRITE and itself. The counter in all blocks of
// a range goes up by one with each success, and nobody ever sees two of its values at once.
func TestAtomic(t *testing.T) {
	racing(t, func(t *testing.T, b *bench, conns []*testConn) {
		const lba, blocks, rounds = 100, 4, 300
		value := func(n uint64) []byte {
			data := make([]byte, blocks*512)
			for i := 0; i < len(data); i += 8 {
				binary.BigEndian.PutUint64(data[i:], n)
			}
			return data
		}
		// From the first COMPARE AND WRITE on, reads of the stripe are copies.
		first := append(value(0), value(0)...)
		conns[0].do(&testTask{Task: Task{CDB: caw(lba, blocks), DataOutLen: uint32(len(first))}, out: first})
		var successes atomic.Uint64
		var wg sync.WaitGroup
		for k, c := range conns {
			wg.Go(func() {
				for round := range rounds {
					var seen uint64
					c.do(&testTask{
						Task: Task{CDB: rw10(0x28, lba, blocks), DataInLen: blocks * 512},
						end: func(task *Task, _ Next) {
							seen = binary.BigEndian.Uint64(task.In[0])
							if !bytes.Equal(task.In[0], value(seen)) {
								t.Error("a READ sees half of a COMPARE AND WRITE")
							}
						},
					})
					if k == 3 { // a neighbour in the same stripe, written all the time
						data := pattern(round, 8*512)
						c.do(&testTask{Task: Task{CDB: rw10(0x2a, 200, 8), DataOutLen: uint32(len(data))}, out: data})
						continue
					}
					data := append(value(seen), value(seen+1)...)
					c.do(&testTask{
						Task: Task{CDB: caw(lba, blocks), DataOutLen: uint32(len(data))}, out: data,
						end: func(task *Task, _ Next) {
							if task.Status == Good {
								successes.Add(1)
							}
						},
					})
				}
			})
		}
		wg.Wait()
		if got := b.store.data[lba*512:][:blocks*512]; !bytes.Equal(got, value(successes.Load())) {
			t.Errorf("%d successes, the counter is %d", successes.Load(), binary.BigEndian.Uint64(got))
		}
		if successes.Load() == 0 {
			t.Error("not one COMPARE AND WRITE succeeded")
		}
	})
}

// TestTaskManagementRaces lets commands of all attributes run on all connections while task
// management aborts some and all of them. Each command ends once; each function has one
// response, after what it aborted; nothing is left behind.
func TestTaskManagementRaces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	racing(t, func(t *testing.T, b *bench, conns []*testConn) {
		const perConn = 400
		var wg sync.WaitGroup
		var responses, functions atomic.Int64
		var all [4][]*testTask
		var aborted atomic.Int64
		for k, c := range conns {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			wg.Go(func() {
				for range perConn {
					x := randomTask(rng)
					x.end = func(task *Task, next Next) {
						if next == Aborted {
							aborted.Add(1)
						}
					}
					all[k] = append(all[k], x)
					c.mu.Lock()
					c.await(func() bool { return len(c.live) < 8 })
					c.start(x)
					if rng.IntN(8) == 0 {
						functions.Add(1)
						c.manageRandom(rng, &responses)
					}
					c.unlock()
				}
				c.mu.Lock()
				c.await(func() bool { return len(c.live) == 0 })
				c.unlock()
			})
		}
		wg.Wait()
		for _, tasks := range all {
			for _, x := range tasks {
				if x.ends != 1 {
					t.Fatalf("% x ended %d times", x.CDB, x.ends)
				}
			}
		}
		if responses.Load() != functions.Load() {
			t.Errorf("%d functions, %d responses", functions.Load(), responses.Load())
		}
		t.Logf("%d of %d aborted by %d functions", aborted.Load(), 4*perConn, functions.Load())
		for _, c := range conns {
			closed := false
			c.nexus.Close(func() { closed = true })
			if !closed {
				t.Error("a nexus without tasks does not close at once")
			}
		}
	})
}

// manageRandom asks for a function and checks its response against what became of the task.
// mu is held.
func (c *testConn) manageRandom(rng *rand.Rand, responses *atomic.Int64) {
	fn := []TMF{AbortTask, AbortTask, AbortTask, AbortTaskSet, ClearTaskSet, LUNReset, TargetWarmReset, ITNexusReset, QueryTask}[rng.IntN(9)]
	var victim *testTask
	for _, x := range c.live {
		victim = x
		break
	}
	if victim == nil {
		c.nexus.Manage(fn, 0, nil, func(TMFResponse) { responses.Add(1) })
		return
	}
	end, wasAborted := victim.end, false
	victim.end = func(task *Task, next Next) {
		wasAborted = next == Aborted
		end(task, next)
	}
	c.nexus.Manage(fn, 0, &victim.Task, func(r TMFResponse) {
		responses.Add(1)
		if fn == AbortTask && (r == FunctionComplete) != wasAborted {
			c.t.Errorf("ABORT TASK answers %d, task aborted: %v", r, wasAborted)
		}
	})
}

func randomTask(rng *rand.Rand) *testTask {
	x := &testTask{}
	lba, blocks := uint32(rng.IntN(64)), uint16(1+rng.IntN(8))
	n := uint32(blocks) * 512
	switch rng.IntN(6) {
	case 0:
		x.CDB, x.DataInLen = rw10(0x28, lba, blocks), n
		x.NoLend = true
	case 1:
		x.CDB, x.DataOutLen = rw10(0x2a, lba, blocks), n
		x.NoLend = true
	case 2:
		x.CDB, x.DataOutLen = caw(uint64(lba), 2), 4*512
	case 3:
		x.CDB, x.DataOutLen = rw16(0x8b, uint64(lba), uint32(blocks)), n
	case 4:
		x.CDB, x.DataOutLen = rw16(0x93, uint64(lba), 700), 512
	case 5:
		x.CDB = rw10(0x35, 0, 0)
	}
	x.out = make([]byte, x.DataOutLen)
	if rng.IntN(6) == 0 {
		x.Attr = Ordered + Attr(rng.IntN(2))
	}
	return x
}
