// Package movertest is the suite that every datamover of package iscsi passes. A new one starts here:
//
//	func TestMover(t *testing.T) {
//		movertest.Run(t, func(t testing.TB, node *iscsi.Node, pool *mem.Pool) movertest.Service { … })
//	}
//
// The suite looks at a mover from both sides: an initiator (package initiator) sends commands, and
// the node behind the mover serves them from stores that answer at once, later, or when they are told
// to. What is tested is what iscsi.Datamover promises; what is special about a transport, and peers
// that break its rules, are for the tests of the mover's own package.
package movertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	mathrand "math/rand/v2"
	"runtime"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/initiator"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/volume"
)

// Start has movers of the kind that is tested serve a node. They get their memory from pool.
type Start func(t testing.TB, node *iscsi.Node, pool *mem.Pool) Service

// Service is what Start has started.
type Service struct {
	URL     initiator.URL     // how initiators reach it; the suite names the target
	Options initiator.Options // what they need to
	Leases  int               // that it holds as long as it runs
	// Stop ends it. The node has been shut down, so there are no connections any more.
	Stop func()
}

const (
	iqn       = "iqn.2026-11.example.oneshot:movertest"
	storeSize = 8 << 20
	blockSize = 512
	window    = 32
	poolSize  = 64 << 20
)

// Run tests movers of one kind.
func Run(t *testing.T, start Start) {
	for _, c := range []struct {
		name string
		f    func(*bench)
	}{
		{"ReadsAndWrites", readsAndWrites},
		{"Outstanding", outstanding},
		{"EarlyAnswer", earlyAnswer},
		{"AbortInStore", abortInStore},
		{"AbortBeforeItsTurn", abortBeforeItsTurn},
		{"Reset", reset},
		{"LogoutUnderLoad", logoutUnderLoad},
		{"DropUnderLoad", dropUnderLoad},
		{"Reinstatement", reinstatement},
		{"ScarceMemory", scarceMemory},
		{"Text", textKeys},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, open := range faulty.Ways { // a gate of a store that lends holds nothing
				t.Run(name, func(t *testing.T) { c.f(newBench(t, start, open)) })
			}
		})
	}
}

// bench is a node with one disk, and the movers that serve it.
type bench struct {
	*testing.T
	node   *iscsi.Node
	pool   *mem.Pool
	disk   *scsi.Target
	faults *faulty.Store // nil: the store lends
	Service
}

// newBench returns a bench. When the test ends nothing may be left.
func newBench(t *testing.T, start Start, open func(testing.TB, backend.Store) backend.Store) *bench {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	b := &bench{T: t, pool: mem.NewPool(poolSize), disk: scsi.NewTarget(scsi.TargetConfig{Name: iqn})}
	b.node = iscsi.NewNode(iscsi.Config{
		Login: login.DefaultConfig(), Connections: 20, Sessions: 20, Commands: window, MemoryPerConnection: 8 << 20,
		LoginTimeout: 15, NOPInterval: 30, NOPTimeout: 30, ReadTimeout: 70, Pool: b.pool, Logger: log, Rand: rand.Reader,
	})
	m, err := memory.New(storeSize)
	b.check(err)
	store := open(t, m)
	b.faults, _ = store.(*faulty.Store)
	v, err := volume.New(volume.Config{Store: store})
	b.check(err)
	lu, err := scsi.NewLogicalUnit(scsi.LUConfig{Volume: v, Serial: "1", Logger: log})
	b.check(err)
	b.disk.SetLU(0, lu)
	b.node.AddTarget(&iscsi.Target{Name: iqn, SCSI: b.disk})
	b.Service = start(t, b.node, b.pool)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // no grace
		if err := b.node.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		b.Stop()
		b.check(lu.Close())
		b.check(v.Close())
		if n := b.pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
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

// idle awaits that commands and connections hold nothing.
func (b *bench) idle() {
	b.Helper()
	b.until("memory comes back", func() bool { return b.pool.Stats().Leases == b.Leases })
}

// dial logs in; immediate is initiator.Options.Immediate.
func (b *bench) dial(immediate int, isid pdu.ISID) *initiator.Session {
	b.Helper()
	u, o := b.URL, b.Options
	u.Target, u.LUN = iqn, -1
	o.Immediate, o.Depth, o.ISID = immediate, window, isid
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	s, err := initiator.Dial(ctx, u, o)
	b.check(err)
	b.Cleanup(func() { _ = s.Close() })
	_ = s.Do(ctx, &initiator.Command{CDB: make([]byte, 6)}) // takes the unit attention
	return s
}

func rw(op byte, off, n int) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint64(cdb[2:], uint64(off/blockSize))
	binary.BigEndian.PutUint32(cdb[10:], uint32(n/blockSize))
	return cdb
}

func write(off int, data []byte) *initiator.Command {
	return &initiator.Command{CDB: rw(0x8a, off, len(data)), Out: data}
}

func read(off int, into []byte) *initiator.Command {
	return &initiator.Command{CDB: rw(0x88, off, len(into)), In: into}
}

// do runs a command that has to succeed.
func (b *bench) do(s *initiator.Session, c *initiator.Command) {
	b.Helper()
	err := s.Do(b.Context(), c)
	if err == nil {
		err = c.Failure()
	}
	if err != nil {
		b.Fatalf("command %#x: %v", c.CDB[0], err)
	}
}

// works has the session write and read something.
func (b *bench) works(s *initiator.Session) {
	b.Helper()
	want, got := random(99, 64<<10), make([]byte, 64<<10)
	b.do(s, write(storeSize/2, want))
	b.do(s, read(storeSize/2, got))
	if !bytes.Equal(got, want) {
		b.Fatal("other bytes are read than written")
	}
}

// start starts commands and returns where their ends are told.
func start(s *initiator.Session, cs ...*initiator.Command) <-chan *initiator.Command {
	over := make(chan *initiator.Command, len(cs))
	for _, c := range cs {
		c.Done = func(c *initiator.Command) { over <- c }
	}
	s.Start(cs...)
	return over
}

func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = mathrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(data)
	return data
}

// hold has the store's writes hang. The store lends: false, for then there are none.
func (b *bench) hold() (*faulty.Gate, bool) {
	if b.faults == nil {
		return nil, false
	}
	return b.faults.Hold(faulty.Match{Kinds: faulty.Writes}), true
}
