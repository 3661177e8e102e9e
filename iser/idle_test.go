package iser

import (
	"testing"

	"oneshot/mem"
	"oneshot/transport/queuepair"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
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

// Where each connection registers memory for itself, what it does not use is taken away from the device, too, and given back to the kernel
// while the connection is there.
func TestIdleMemoryOfConnections(t *testing.T) {
	for kind, says := range map[string]func(*rdma.Limits){
		"iWARP card": func(l *rdma.Limits) { l.ReadSinkWrite = true },
		"siw":        func(l *rdma.Limits) { l.UnguardedRead, l.UnguardedInvalidate = true, true },
	} {
		t.Run(kind, func(t *testing.T) {
			d := rdmatest.NewFake()
			says(&d.Says)
			b := newBenchOn(t, 3*mem.ArenaSize, d, "")
			registered := func() int {
				n, _ := d.Registered()
				return n
			}
			type connection struct {
				*Mover
				pair   *rdmatest.FakePair
				memory []*queuepair.Memory
			}
			var conns [2]*connection
			for i := range conns {
				m, p := b.mover()
				conns[i] = &connection{Mover: m, pair: p}
			}
			before := registered()
			// Each of them uses some of each arena.
			use := func() (all [][]byte) {
				for n := 0; ; n++ {
					c := conns[n%len(conns)]
					m := new(queuepair.Memory)
					c.conn.Lock()
					p := c.Lease(mem.MaxLease, m)
					c.conn.Unlock()
					if p == nil {
						return all
					}
					p[0] = 1 // so the page is there
					all, c.memory = append(all, p), append(c.memory, m)
				}
			}
			giveBack := func() {
				for _, c := range conns {
					for _, m := range c.memory {
						c.GiveBack(m)
					}
					c.memory = nil
				}
			}
			for range 2 {
				all := use()
				if n := registered() - before; n != 3*len(conns) {
					t.Fatalf("%d registrations are made for arenas, want 3 of each connection", n)
				}
				giveBack()
				for range 12 {
					b.pool.Trim()
				}
				if n := registered() - before; n != len(conns) { // the first arena has the receives
					t.Errorf("%d registrations of arenas are left while nobody uses them", n)
				}
				there := 0
				for _, p := range all {
					if p[0] != 0 { // what it was, or what a lease has after its end (package invariant)
						there++
					}
				}
				if there > mem.ArenaSize/mem.MaxLease {
					t.Errorf("%d of %d pages are there still", there, len(all))
				}
			}
			for _, c := range conns {
				c.pair.End()
			}
			wait(func() bool { return b.node.Connections() == 0 && !b.target.Busy() })
		})
	}
}
