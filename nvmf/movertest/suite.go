// Package movertest is the suite that every mover of package nvmf passes. A new one starts here:
//
//	func TestMover(t *testing.T) {
//		movertest.Run(t, func(t testing.TB, node *nvmf.Node, pool *mem.Pool) movertest.Service { … })
//	}
//
// The suite looks at a mover from both sides: a host of the test's own sends commands, and the node behind the mover serves them from
// stores that answer at once, later, or when they are told to. What is tested is what nvmf.Mover promises; what is special about a transport,
// and hosts that break its rules, are for the tests of the mover's own package.
package movertest

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/volume"
)

// Start has movers of the kind that is tested serve a node. They get their memory from pool.
type Start func(t testing.TB, node *nvmf.Node, pool *mem.Pool) Service

// Service is what Start has started.
type Service struct {
	// Dial makes a controller of the subsystem NQN, with one I/O queue of Depth entries. The host ends with the test at the latest.
	Dial func(t testing.TB) Host
	// Stop ends the service. The node has been shut down, so there are no connections any more.
	Stop func()
	// Leases is how many it holds as long as it runs; less than 0: connections hold some, too.
	Leases int
}

// Host is a host with a controller that is ready. Its methods may be called from any goroutine.
type Host interface {
	// Start sends commands to the I/O queue, those of a fused pair in one call. Each ends with its Done, also when the connection ends.
	Start(cs ...*Command)
	// Abort asks for the end of a command that was started, and returns whether the controller says that it has ended it.
	Abort(c *Command) bool
	// Reset disables the controller (CC.EN), which ends its I/O queue.
	Reset()
	// Cut ends the connections, as if the host had lost its power.
	Cut()
}

// Command is a command and its outcome. Memory and fields belong to the host from Start until Done is called, once, by any goroutine.
type Command struct {
	Opcode nvme.Opcode
	Fuse   nvme.Fuse
	NSID   uint32
	DWords [6]uint32 // 10 to 15
	Out    []byte    // what the controller fetches; or
	In     []byte    // where what it sends goes
	Done   func(*Command)

	Err error // why there is no CQE: the queue has ended
	CQE nvme.CQE
}

// NQN is that of the subsystem, Depth the most entries of an I/O queue.
const (
	NQN   = "nqn.2026-11.com.example:movertest"
	Depth = 64
)

const (
	storeSize   = 8 << 20
	blockSize   = 512
	poolSize    = 64 << 20
	share       = 4 << 20 // memory_per_connection
	longest     = 1 << 20 // bytes of a command
	outstanding = 32
)

// Run tests movers of one kind.
func Run(t *testing.T, start Start) {
	for _, c := range []struct {
		name string
		f    func(*bench)
	}{
		{"ReadsAndWrites", readsAndWrites},
		{"Outstanding", anyOrder},
		{"EarlyAnswer", earlyAnswer},
		{"Fused", fused},
		{"AbortInStore", abortInStore},
		{"AbortWithoutMemory", abortWithoutMemory},
		{"ResetUnderLoad", resetUnderLoad},
		{"DropUnderLoad", dropUnderLoad},
		{"CutUnderLoad", cutUnderLoad},
		{"ScarceMemory", scarceMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, open := range faulty.Ways { // a gate of a store that lends holds nothing
				t.Run(name, func(t *testing.T) { c.f(newBench(t, start, open)) })
			}
		})
	}
}

// bench is a node with one namespace, and the movers that serve it.
type bench struct {
	*testing.T
	node   *nvmf.Node
	pool   *mem.Pool
	faults *faulty.Store // nil: the store lends
	Service
}

// newBench returns a bench. When the test ends nothing may be left.
func newBench(t *testing.T, start Start, open func(testing.TB, backend.Store) backend.Store) *bench {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	b := &bench{T: t, pool: mem.NewPool(poolSize)}
	m, err := memory.New(storeSize)
	b.check(err)
	store := open(t, m)
	b.faults, _ = store.(*faulty.Store)
	v, err := volume.New(volume.Config{Store: store, Logger: log})
	b.check(err)
	ns, err := nvmf.NewNamespace(nvmf.NamespaceConfig{Volume: v, UUID: [16]byte{7}, NGUID: [16]byte{8}, Logger: log})
	b.check(err)
	b.node = nvmf.NewNode(nvmf.Config{
		Pool: b.pool, Door: door.NewDoor(20), Logger: log, MemoryPerConnection: share, Depth: Depth, Firmware: "1",
		Limits: nvmf.Limits{Controllers: 20, ConnectTimeout: time.Minute, ReadTimeout: time.Minute},
	})
	sub := b.node.AddSubsystem(nvmf.SubsystemConfig{NQN: NQN, Serial: "S", Namespaces: []nvmf.Shown{{NSID: 1, Namespace: ns}}})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { b.node.Run(ctx) })
	b.Service = start(t, b.node, b.pool)
	t.Cleanup(func() { // after the hosts have ended
		patience, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		b.check(b.node.Shutdown(patience))
		b.Stop()
		stop()
		wg.Wait()
		b.node.RemoveSubsystem(sub)
		sub.SetNamespaces([]nvmf.Shown{{NSID: 1}})
		ns.Close()
		b.check(v.Settled())
		b.check(v.Close())
		if n := b.pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		b.pool.Close()
	})
	return b
}

func (b *bench) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// until looks again and again until what is awaited holds.
func (b *bench) until(what string, holds func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() { // only a hang reaches it
		if time.Now().After(deadline) {
			b.Fatalf("awaited in vain: %s", what)
		}
	}
}

// idle awaits that commands hold nothing.
func (b *bench) idle() {
	b.Helper()
	b.until("memory comes back", func() bool { return b.Leases < 0 || b.pool.Stats().Leases == b.Leases })
}

func (b *bench) dial() Host {
	b.Helper()
	return b.Dial(b)
}

func rw(op nvme.Opcode, off, n int) *Command {
	lba := uint64(off / blockSize)
	return &Command{Opcode: op, NSID: 1, DWords: [6]uint32{uint32(lba), uint32(lba >> 32), uint32(n/blockSize - 1)}}
}

func write(off int, data []byte) *Command {
	c := rw(nvme.Write, off, len(data))
	c.Out = data
	return c
}

func read(off int, into []byte) *Command {
	c := rw(nvme.Read, off, len(into))
	c.In = into
	return c
}

// start starts commands and returns where their ends are told.
func start(h Host, cs ...*Command) <-chan *Command {
	over := make(chan *Command, len(cs))
	for _, c := range cs {
		c.Done = func(c *Command) { over <- c }
	}
	h.Start(cs...)
	return over
}

// end awaits the end of a command.
func (b *bench) end(over <-chan *Command) *Command {
	b.Helper()
	select {
	case c := <-over:
		return c
	case <-time.After(time.Minute): // only a hang reaches it
		b.Fatal("a command does not end")
	}
	return nil
}

// good awaits the end of a command that has to succeed.
func (b *bench) good(over <-chan *Command) {
	b.Helper()
	if c := b.end(over); c.Err != nil || c.CQE.Status != nvme.Success {
		b.Fatalf("command %#x ends with %v, %v", c.Opcode, c.CQE.Status, c.Err)
	}
}

// refused runs a command that has to fail with a status.
func (b *bench) refused(h Host, c *Command, want nvme.Status) {
	b.Helper()
	if c := b.end(start(h, c)); c.Err != nil || c.CQE.Status.Code() != want {
		b.Fatalf("command %#x ends with %v, %v; want %v", c.Opcode, c.CQE.Status, c.Err, want)
	}
}

// do runs a command that has to succeed.
func (b *bench) do(h Host, c *Command) {
	b.Helper()
	b.good(start(h, c))
}

// works has the host write and read something.
func (b *bench) works(h Host) {
	b.Helper()
	want, got := random(99, 64<<10), make([]byte, 64<<10)
	b.do(h, write(storeSize/2, want))
	b.do(h, read(storeSize/2, got))
	if !bytes.Equal(got, want) {
		b.Fatal("other bytes are read than written")
	}
}

func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(data)
	return data
}

// hold has the store's writes hang. The store lends: false, for then there are none.
func (b *bench) hold() (*faulty.Gate, bool) {
	if b.faults == nil {
		return nil, false
	}
	return b.faults.Hold(faulty.Match{Kinds: faulty.Writes}), true
}

// starve takes the memory that nothing uses, but for less than left bytes. Commands that have ended have given theirs back.
func (b *bench) starve(left int64) (feed func()) {
	b.Helper()
	b.idle() // a host may see an answer before its memory is free again
	var all []*mem.Lease
	for _, n := range []int{longest, mem.PageSize} {
		for b.pool.Free() >= left+int64(n) {
			l := b.pool.Lease(n)
			if l == nil {
				break // what is free does not lie together
			}
			all = append(all, l)
		}
	}
	return func() {
		for _, l := range all {
			l.Release()
		}
	}
}
