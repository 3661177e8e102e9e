package nvmetcp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/nvmetcp/nvmetest"
	"oneshot/volume"
)

const (
	subNQN = "nqn.2026-11.com.example:disk"
	size   = 8 << 20
)

// rig is a node that serves one namespace over loopback.
type rig struct {
	*nvmf.Node
	t    testing.TB
	l    *net.TCPListener
	sub  *nvmf.Subsystem
	ns   *nvmf.Namespace
	v    *volume.Volume
	pool *mem.Pool

	mu     sync.Mutex
	movers []*Mover // of all connections, in their order; guarded by mu
}

// rigConfig says what differs from the usual rig.
type rigConfig struct {
	store       backend.Store // nil: one of memory
	memory      int64
	share       int
	depth       int
	connections int // most of them
	limits      nvmf.Limits
	still       bool // no time passes, but when the test says so (Tick)
}

func newRig(t testing.TB, cfg rigConfig) *rig {
	t.Helper()
	if cfg.store == nil {
		s, err := memory.New(size)
		if err != nil {
			t.Fatal(err)
		}
		cfg.store = s
	}
	if cfg.memory == 0 {
		cfg.memory, cfg.share = 64<<20, 4<<20
	}
	if cfg.depth == 0 {
		cfg.depth = 128
	}
	if cfg.connections == 0 {
		cfg.connections = 100
	}
	if cfg.limits == (nvmf.Limits{}) {
		cfg.limits = nvmf.Limits{Controllers: 100, ConnectTimeout: time.Minute, ReadTimeout: time.Minute}
	}
	log := slog.New(slog.DiscardHandler)
	v, err := volume.New(volume.Config{Store: cfg.store, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := nvmf.NewNamespace(nvmf.NamespaceConfig{Volume: v, UUID: [16]byte{7}, NGUID: [16]byte{8}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	pool := mem.NewPool(cfg.memory)
	r := &rig{t: t, v: v, ns: ns, pool: pool, Node: nvmf.NewNode(nvmf.Config{
		Pool: pool, Door: door.NewDoor(cfg.connections), Logger: log, MemoryPerConnection: cfg.share, Depth: cfg.depth, Firmware: "1", Limits: cfg.limits,
	})}
	r.sub = r.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN, Serial: "S", Namespaces: []nvmf.Shown{{NSID: 1, Namespace: ns}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.l = l.(*net.TCPListener)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if !cfg.still {
		wg.Go(func() { r.Run(ctx) })
	}
	wg.Go(func() {
		for {
			c, err := r.l.AcceptTCP()
			if err != nil {
				return
			}
			if !r.Admit() {
				_ = c.Close()
				continue
			}
			m, err := open(r.Node, 1, c)
			if err != nil {
				t.Error(err)
				continue
			}
			r.mu.Lock()
			r.movers = append(r.movers, m)
			r.mu.Unlock()
			wg.Go(func() { _ = m.serve() })
		}
	})
	t.Cleanup(func() {
		_ = r.l.Close()
		patience, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Shutdown(patience); err != nil {
			t.Error(err)
		}
		stop()
		wg.Wait()
		r.RemoveSubsystem(r.sub)
		r.sub.SetNamespaces([]nvmf.Shown{{NSID: 1}})
		ns.Close()
		if err := v.Settled(); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		pool.Close()
	})
	return r
}

// mover is that of a connection.
func (r *rig) mover(h *nvmetest.Host) *Mover {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.movers, func(m *Mover) bool { return m.Peer() == h.C.LocalAddr().String() })
	return r.movers[i]
}

// awaitHeld waits until the target takes nothing more of a connection before there is memory for the data of a capsule.
func (r *rig) awaitHeld(h *nvmetest.Host) {
	r.t.Helper()
	m := r.mover(h)
	r.until("a capsule is held", func() bool {
		m.queue.Lock()
		defer m.queue.Unlock()
		return m.Held(m.In.Task)
	})
}

// arrived is what the mover of a connection says has come.
func (r *rig) arrived(h *nvmetest.Host) (sent, read uint64, open bool) {
	m := r.mover(h)
	m.queue.Lock()
	defer m.queue.Unlock()
	return m.Arrived()
}

// until waits until something holds.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() { // only a hang reaches it
		if time.Now().After(deadline) {
			r.t.Fatalf("awaited in vain: %s", what)
		}
	}
}

// dial opens a connection, and exchanges ICReq and ICResp.
func (r *rig) dial(ic pdu.IC) *nvmetest.Host { return nvmetest.Dial(r.t, r.l.Addr().String(), ic) }

func (r *rig) dialRaw() *nvmetest.Host { return nvmetest.DialRaw(r.t, r.l.Addr().String()) }

// admin connects an admin queue, and has the controller ready.
func (r *rig) admin(ic pdu.IC, subsystem string) *nvmetest.Host {
	r.t.Helper()
	return nvmetest.Admin(r.t, r.l.Addr().String(), ic, subsystem)
}

// pattern is n bytes that differ from those of other seeds.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9 + i + seed)
	}
	return b
}

// Bytes of every length and through every way are what they were: in short capsules and the longest, by R2T, with digests and without, with data
// that are aligned, with the success flag.
func TestIO(t *testing.T) {
	r := newRig(t, rigConfig{})
	for name, ic := range map[string]pdu.IC{"plain": {}, "digests": {HeaderDigest: true, DataDigest: true}, "header digest": {HeaderDigest: true}, "aligned": {Align: 31, DataDigest: true}} {
		for _, cattr := range []uint8{0, 4} {
			t.Run(name, func(t *testing.T) {
				r.t = t
				admin := r.admin(ic, subNQN)
				h := admin.Queue(1, cattr)
				if cattr != 0 {
					h.Cap = Transport.Capsule
				}
				for i, n := range []int{512, 4096, 16 << 10, 17 << 10, 256 << 10, 1 << 20} {
					want := pattern(n, i+int(cattr))
					h.Must(nvmetest.RW(nvme.Write, 8, uint32(n/512)), want, 0)
					if _, got := h.Must(nvmetest.RW(nvme.Read, 8, uint32(n/512)), nil, n); !bytes.Equal(got, want) {
						t.Fatalf("%d bytes: other ones come back", n)
					}
				}
			})
		}
	}
	r.t = t
}
