package nvmerdma

import (
	"slices"
	"sync"
	"testing"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/nvmf/movertest"
	"oneshot/transport/rdma"
)

// TestMover runs the suite of all movers, over devices with receives that connections share and without.
func TestMover(t *testing.T) {
	for _, name := range []string{"local", "iwarp", "InfiniBand", "siw"} {
		d, ok := devices[name]
		if !ok {
			continue // it is of the kernel, and this is built without
		}
		t.Run(name, func(t *testing.T) {
			movertest.Run(t, func(t testing.TB, node *nvmf.Node, pool *mem.Pool) movertest.Service {
				r := &rig{Node: node, t: t, device: d.open(t), pool: pool}
				stop := r.listen(d.addr)
				leases := pool.Stats().Leases
				if l := r.device.Limits(); !l.ReceiveWait || l.ReadSinkWrite || l.UnguardedRead || l.UnguardedInvalidate {
					leases = -1 // each connection has receives of its own
				}
				return movertest.Service{Dial: r.moverHost, Stop: stop, Leases: leases}
			})
		})
	}
}

// moverHost is a host that has many commands under way.
type moverHost struct {
	t     testing.TB
	admin *host // guarded by asks
	asks  sync.Mutex

	mu     sync.Mutex
	io     *host                         // what it posts and polls is guarded by mu
	queued []*movertest.Command          // for want of memory or of entries; guarded by mu
	under  map[uint16]*movertest.Command // by CID; guarded by mu
	places []place                       // in order; guarded by mu
	sent   int                           // commands; guarded by mu
	over   error                         // the connection has ended; guarded by mu
}

// place is where a command has its data.
type place struct {
	off, n int
	cid    uint16
}

func (r *rig) moverHost(t testing.TB) movertest.Host {
	t.Helper()
	m := &moverHost{t: t, admin: r.admin(), under: make(map[uint16]*movertest.Command)}
	m.io = m.admin.queue(1)
	var wg sync.WaitGroup
	wg.Go(m.run)
	t.Cleanup(func() {
		m.Cut()
		wg.Wait()
	})
	return m
}

// Start implements movertest.Host.
func (m *moverHost) Start(cs ...*movertest.Command) {
	m.mu.Lock()
	m.queued = append(m.queued, cs...)
	ended := m.issue()
	m.mu.Unlock()
	end(ended)
}

func end(cs []*movertest.Command) {
	for _, c := range cs {
		c.Done(c)
	}
}

// issue sends what it can of the commands that are queued, and returns those that have ended because the connection has. The lock is held.
func (m *moverHost) issue() (ended []*movertest.Command) {
	for len(m.queued) > 0 && len(m.under) < movertest.Depth-1 {
		c := m.queued[0]
		at := m.find(max(len(c.Out), len(c.In)))
		if m.over == nil && at < 0 {
			break
		}
		m.queued = slices.Delete(m.queued, 0, 1)
		if c.Err = m.over; c.Err == nil {
			c.Err = m.send(c, at)
		}
		if c.Err != nil {
			ended = append(ended, c)
		}
	}
	return ended
}

// find returns where n bytes of memory are free; less than 0: nowhere.
func (m *moverHost) find(n int) int {
	at := 0
	for _, p := range m.places {
		if p.off-at >= n {
			break
		}
		at = p.off + p.n
	}
	if at+n > dataLen {
		return -1
	}
	return at
}

// send sends a command whose data are at that place. Every second one that may has them in its capsule.
func (m *moverHost) send(c *movertest.Command, at int) error {
	n := max(len(c.Out), len(c.In))
	s, inside := m.io.key(n), []byte(nil)
	s.Address += uint64(at)
	copy(m.io.data[at:], c.Out)
	if m.sent++; m.sent%2 == 0 && len(c.Out) > 0 && len(c.Out) <= capsule {
		s, inside = nvme.SGL{Length: uint32(n), Type: nvme.SGLInCapsule}, c.Out
	}
	b := m.io.capsule(nvme.Command{Opcode: c.Opcode, Fuse: c.Fuse, NSID: c.NSID, DWords: c.DWords}, s, inside)
	if err := m.io.trySend(b); err != nil {
		return err
	}
	m.under[m.io.cid] = c
	i := slices.IndexFunc(m.places, func(p place) bool { return p.off >= at })
	if i < 0 {
		i = len(m.places)
	}
	m.places = slices.Insert(m.places, i, place{at, n, m.io.cid})
	return nil
}

// run takes completions until the connection has ended.
func (m *moverHost) run() {
	for {
		m.mu.Lock()
		n := m.io.cq.Poll(m.io.cs[:])
		var ended []*movertest.Command
		if n > 0 {
			ended = m.took(&m.io.cs[0])
		}
		over := m.over
		m.mu.Unlock()
		end(ended)
		switch {
		case over != nil:
			return
		case n == 0 && m.io.cq.Arm():
			<-m.io.wake
		}
	}
}

// took takes a completion of the device, and returns the commands that have ended. The lock is held.
func (m *moverHost) took(c *rdma.Completion) (ended []*movertest.Command) {
	switch {
	case c.Status != rdma.StatusOK:
		m.over = rdma.ErrDisconnected
		for _, x := range m.under {
			x.Err = m.over
			ended = append(ended, x)
		}
		clear(m.under)
		return append(ended, m.issue()...)
	case c.Op != rdma.OpReceive:
		return nil
	}
	e := nvme.ParseCQE(m.io.region.Bytes()[int(c.ID)*answerLen:])
	_ = m.io.tryReceive(int(c.ID)) // if the connection is over, what was posted before says so
	x := m.under[e.CID]
	if x == nil || c.Bytes != nvme.CQELen {
		m.t.Errorf("a completion of %d bytes for CID %d", c.Bytes, e.CID)
		return nil
	}
	delete(m.under, e.CID)
	i := slices.IndexFunc(m.places, func(p place) bool { return p.cid == e.CID })
	if x.CQE = e; e.Status == nvme.Success {
		copy(x.In, m.io.data[m.places[i].off:])
	}
	m.places = slices.Delete(m.places, i, i+1)
	return append(m.issue(), x)
}

// Abort implements movertest.Host.
func (m *moverHost) Abort(c *movertest.Command) bool {
	m.mu.Lock()
	cid, ok := uint16(0), false
	for id, x := range m.under {
		if x == c {
			cid, ok = id, true
		}
	}
	m.mu.Unlock()
	if !ok {
		return false
	}
	m.asks.Lock()
	defer m.asks.Unlock()
	e := m.admin.must(nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}, nil, 0)
	return e.DW0&1 == 0
}

// Reset implements movertest.Host.
func (m *moverHost) Reset() {
	m.asks.Lock()
	defer m.asks.Unlock()
	m.admin.must(propertySet(nvme.PropCC, 0x460000), nil, 0)
}

// Cut implements movertest.Host.
func (m *moverHost) Cut() {
	m.io.qp.Abort(nil)
	m.admin.qp.Abort(nil)
}
