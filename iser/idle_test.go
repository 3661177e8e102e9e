package iser

import (
	"testing"

	"oneshot/mem"
)

// What nobody uses of the I/O memory is taken away from the device and given back to the kernel, and
// registered again before it is used.
func TestIdleMemory(t *testing.T) {
	b, d := newFakeBench(t, 3*mem.ArenaSize)
	fill := func() (leases []*mem.Lease) {
		for {
			l := b.pool.Lease(mem.MaxLease)
			if l == nil {
				return leases
			}
			for p := l.Bytes(); len(p) > 0; p = p[4096:] {
				p[0] = 1 // so the page is there
			}
			leases = append(leases, l)
		}
	}
	registered := func() int {
		n, _ := d.Registered()
		return n
	}
	leases := fill()
	if n := registered(); n != 3 {
		t.Fatalf("%d arenas are registered, want 3", n)
	}
	at, _ := leases[len(leases)-1].Arena()
	for _, l := range leases {
		l.Release()
	}
	for range 20 {
		b.node.Tick()
	}
	if n := registered(); n != 1 { // that of the receives
		t.Errorf("%d arenas are registered while nobody uses them", n)
	}
	if at.Bytes()[0] != 0 {
		t.Error("the memory is there still")
	}
	leases = fill()
	if n := registered(); n != 3 {
		t.Errorf("%d arenas are registered, and all are used", n)
	}
	// I/O goes through memory that was away.
	if !d.Knows(leases[len(leases)-1].Bytes()) {
		t.Error("a lease is not registered")
	}
	for _, l := range leases {
		l.Release()
	}
}
