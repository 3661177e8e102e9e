package volume

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Await waits for what runs, and for nothing that comes later; one Await after the other, and beside it.
func TestAwaitCommands(t *testing.T) {
	var c Commands
	over := make([]bool, 4)
	await := func(i int) { c.Await(func() { over[i] = true }) }
	want := func(what string, want ...bool) {
		t.Helper()
		for i, w := range want {
			if over[i] != w {
				t.Errorf("%s: the waits that are over are %v", what, over)
			}
		}
	}
	await(0)
	want("nothing runs", true)
	first := c.Enter()
	await(1)
	second := c.Enter()
	if first == second {
		t.Error("a command that comes later is in the same turn")
	}
	await(2)
	want("two run", true, false, false)
	if c.End(second, 1) {
		t.Error("it is idle")
	}
	want("the later one has ended", true, false, false)
	again := c.Run()
	if !c.Rest(first) {
		t.Error("nobody is to be told")
	}
	c.Tell()
	want("the first has ended", true, true, false)
	await(3)
	if running, all := c.Count(); running != 1 || all != 1 {
		t.Errorf("%d of %d run", running, all)
	}
	if !c.End(again, 0) {
		t.Error("it is not idle")
	}
	want("all have ended", true, true, true, true)
	c.Release()

	// One that was slow to enter counts for a turn that is over.
	slow := evenTurn + Turn(c.odd.Load())
	c.Await(func() {})
	c.word.Add(uint64(slow) + 1)
	over[0] = false
	await(0)
	want("one that was slow runs", false)
	c.End(slow, 1)
	want("it has ended", true)
	if running, all := c.Count(); running != 0 || all != 0 || c.awaited.Load() {
		t.Errorf("%d of %d run, awaited %v", running, all, c.awaited.Load())
	}
}

// However commands and waits come together: what saw the state before the change is over when Await says so.
func TestAwaitCommandsTogether(t *testing.T) {
	var c Commands
	var denied atomic.Uint64
	var seen [4]atomic.Uint64 // what the command that each goroutine runs has seen; 0: none runs
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range seen {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				turn := c.Enter()
				seen[i].Store(denied.Load() + 1)
				seen[i].Store(0)
				c.End(turn, 1)
			}
		})
	}
	var waiters sync.WaitGroup
	for range 2 {
		waiters.Go(func() {
			for range 2000 {
				n := denied.Add(1)
				over := make(chan struct{})
				c.Await(func() { close(over) })
				<-over
				for i := range seen {
					if v := seen[i].Load(); v != 0 && v-1 < n {
						t.Errorf("a command runs that has seen %d, after the wait for %d", v-1, n)
						return
					}
				}
			}
		})
	}
	waiters.Wait()
	close(stop)
	wg.Wait()
	if running, all := c.Count(); running != 0 || all != 0 || c.awaited.Load() {
		t.Errorf("%d of %d run, awaited %v", running, all, c.awaited.Load())
	}
}
