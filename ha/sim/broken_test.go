package sim

import (
	"testing"
	"time"
)

// TestBrokenLink: a copy that suspects all of its disk gets in sync over connections of which none lasts half as long as that
// takes over one. What one connection has brought to its disk the next one does not bring again.
func TestBrokenLink(t *testing.T) {
	const most = 30 // connections
	for seed := uint64(1); seed <= 10; seed++ {
		whole, _ := returnOver(t, seed, time.Minute, 1)
		if _, connections := returnOver(t, seed, whole/2, most); connections < 2 {
			t.Errorf("seed %d: one connection of %v was enough, and before it has taken %v", seed, whole/2, whole)
		}
	}
}

// returnOver has a copy lose its disk, ends each of its connections with the primary when it has lasted for a time, and returns when the
// copy is in sync: how long that has taken, and how many connections. Hosts are silent then.
func returnOver(t *testing.T, seed uint64, lasts time.Duration, most int) (took time.Duration, connections int) {
	t.Helper()
	r := newRun(Options{Seed: seed})
	r.setUp()
	until := func(end time.Duration, done func() bool) {
		t.Helper()
		for r.violation == nil && !done() && r.world.step(end) {
			r.Steps++
		}
		if r.violation != nil {
			t.Fatalf("seed %d: %v (%s)", seed, r.violation, r.Setup)
		}
	}
	p, x := r.nodes[0], r.nodes[1]
	until(time.Second, func() bool { return false })
	x.takeSnapshot()
	until(2*time.Second, func() bool { return false })
	r.stopped = true
	x.setBack()
	until(r.now+10*time.Second, func() bool { return !r.view.InSync.Has(x.id) })
	p.disk.slow, x.disk.slow = 300*time.Millisecond, 300*time.Millisecond
	x.start()
	began, level := r.now, func() bool { return r.view.InSync.Has(x.id) }
	for !level() {
		if connections == most {
			t.Fatalf("seed %d: not in sync after %d connections of %v; it lacks %d granules (%s)",
				seed, most, lasts, p.core.Bitmap(x.id).Len(), r.Setup)
		}
		connections++
		until(r.now+time.Second, func() bool { return r.link(p.id, x.id).up })
		until(r.now+lasts, level)
		r.breakLink(p.id, x.id, 0)
	}
	if r.view.Primary != p.id {
		t.Fatalf("seed %d: node %d has taken over", seed, r.view.Primary)
	}
	return r.now - began, connections
}
