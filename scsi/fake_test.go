package scsi

import (
	"encoding/binary"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume"
)

// fakeStore keeps its bytes in a slice. It is given faults and delays by hooks.
type fakeStore struct {
	mu      sync.Mutex
	data    []byte
	mapped  map[int64]bool // by block of 512 bytes; nil: not kept
	info    backend.Info
	flushes int
	closed  bool

	// fail, if set, is asked for the error of an operation.
	fail func(*backend.Op) error
	// hold, if set, says whether an operation completes later, by complete.
	hold func(*backend.Op) bool
	held []*backend.Op
}

func newFakeStore(size int64) *fakeStore {
	return &fakeStore{
		data:   make([]byte, size),
		mapped: make(map[int64]bool),
		info:   backend.Info{Size: size, BlockSize: 512, DiscardGranularity: 4096, OptimalIO: 4096},
	}
}

func (s *fakeStore) Info() backend.Info { return s.info }
func (s *fakeStore) Close() error       { s.closed = true; return nil }

func (s *fakeStore) Submit(op *backend.Op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil && s.hold(op) {
		s.held = append(s.held, op)
		return false
	}
	s.do(op)
	return true
}

// complete finishes the operations that were held, and returns how many.
func (s *fakeStore) complete() int {
	s.mu.Lock()
	ops := s.held
	s.held = nil
	for _, op := range ops {
		s.do(op)
	}
	s.mu.Unlock()
	for _, op := range ops {
		op.Done.OpDone(op)
	}
	return len(ops)
}

func (s *fakeStore) do(op *backend.Op) {
	if op.Err = op.Check(int64(len(s.data))); op.Err != nil {
		return
	}
	if s.fail != nil {
		if op.Err = s.fail(op); op.Err != nil {
			return
		}
	}
	off := op.Off
	switch op.Kind {
	case backend.Read:
		for _, seg := range op.Segs {
			off += int64(copy(seg, s.data[off:]))
		}
	case backend.Write:
		for _, seg := range op.Segs {
			off += int64(copy(s.data[off:], seg))
		}
		s.mark(op, true)
	case backend.Flush:
		s.flushes++
	case backend.Discard:
		clear(s.data[op.Off : op.Off+op.Len])
		s.mark(op, false)
	case backend.WriteZeroes:
		clear(s.data[op.Off : op.Off+op.Len])
		s.mark(op, true)
	case backend.Status:
		op.Mapped = s.mapped[op.Off/512]
		op.Extent = 512
		for op.Extent < op.Len && s.mapped[(op.Off+op.Extent)/512] == op.Mapped {
			op.Extent += 512
		}
	}
}

func (s *fakeStore) mark(op *backend.Op, mapped bool) {
	if s.mapped == nil {
		return
	}
	for b := op.Off / 512; b < (op.Off+op.Len)/512; b++ {
		if mapped {
			s.mapped[b] = true
		} else {
			delete(s.mapped, b)
		}
	}
}

// fakeLender lends its slice.
type fakeLender struct{ *fakeStore }

func (s fakeLender) Lend(segs [][]byte, off, n int64, write bool) [][]byte {
	return append(segs, s.data[off:off+n:off+n])
}

func (s fakeLender) Commit(off, n int64) {
	s.mu.Lock()
	s.mark(&backend.Op{Off: off, Len: n}, true)
	s.mu.Unlock()
}

func (s fakeLender) Map(int64, int64)   {}
func (s fakeLender) Unmap(int64, int64) {}

// fakeOwner drives tasks to their end.
type fakeOwner struct {
	pool  *mem.Pool
	ready chan *Task
	empty bool // no memory is to be had
	most  int  // bytes of the largest lease; 0: mem.MaxLease
}

// testPool is one for all tests: the address space of a pool is not given back.
var testPool = mem.NewPool(256 << 20)

func newFakeOwner() *fakeOwner {
	return &fakeOwner{pool: testPool, ready: make(chan *Task, 1024)}
}

func (o *fakeOwner) TaskReady(t *Task) { o.ready <- t }

func (o *fakeOwner) Lease(_ *Task, n int) *mem.Lease {
	if o.empty || o.most != 0 && n > o.most {
		return nil
	}
	return o.pool.Lease(n)
}

// bench is a target with one logical unit, and a nexus that has no unit attentions pending.
type bench struct {
	t      testing.TB
	store  *fakeStore
	lu     *LogicalUnit
	target *Target
	nexus  *Nexus
	owner  *fakeOwner
}

const testBlocks = 1024 // of 512 bytes

// benchConfig is a logical unit with a volume of its own.
type benchConfig struct {
	LUConfig
	Store   backend.Store
	Journal volume.Journal
	Keeper  volume.Keeper
}

// client is an initiator port.
func client(name string, isid uint64) Initiator {
	return ISCSIPort(name, [6]byte(binary.BigEndian.AppendUint64(nil, isid<<16)[:6]))
}

// volumeOf makes a volume of a store.
func volumeOf(s backend.Store) *volume.Volume {
	v, err := volume.New(volume.Config{Store: s})
	if err != nil {
		panic(err)
	}
	return v
}

func newBench(t testing.TB, lends bool, change func(*benchConfig, *fakeStore)) *bench {
	t.Helper()
	store := newFakeStore(testBlocks * 512)
	cfg := benchConfig{LUConfig: LUConfig{Serial: "0001"}, Store: store}
	if lends {
		cfg.Store = fakeLender{store}
	}
	if change != nil {
		change(&cfg, store)
	}
	var err error
	if cfg.Volume, err = volume.New(volume.Config{Store: cfg.Store, Journal: cfg.Journal, Keeper: cfg.Keeper, Logger: cfg.Logger}); err != nil {
		t.Fatal(err)
	}
	lu, err := NewLogicalUnit(cfg.LUConfig)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: store, lu: lu, owner: newFakeOwner()}
	b.target = NewTarget(TargetConfig{Name: "iqn.2026-11.example.oneshot:test"})
	b.target.SetLU(0, lu)
	b.nexus = b.newNexus()
	t.Cleanup(func() {
		if n := testPool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
	})
	return b
}

func (b *bench) newNexus() *Nexus {
	n := b.target.NewNexus(client("iqn.2026-11.example.clients:a", 0x400000000001))
	for _, i := range *n.table.Load() {
		i.ua.Store(0)
	}
	return n
}

// result is what the initiator sees of a command.
type result struct {
	next   Next
	status Status
	sense  []byte
	in     []byte
	// The residual's two sides.
	transfer    uint64
	transferOut bool
}

// code is the sense key and additional sense code as 0xKAAQQ of fixed format sense data.
func (r result) code() int {
	if len(r.sense) == 0 {
		return 0
	}
	if r.sense[0]&0x7f == 0x72 {
		return int(r.sense[1])<<16 | int(r.sense[2])<<8 | int(r.sense[3])
	}
	return int(r.sense[2])<<16 | int(r.sense[12])<<8 | int(r.sense[13])
}

// task returns a new command.
func (b *bench) task(cdb []byte, out []byte, in int) *Task {
	return &Task{Owner: b.owner, Nexus: b.nexus, CDB: cdb, DataOutLen: uint32(len(out)), DataInLen: uint32(in)}
}

// do runs a command with the data-out out and room for in bytes.
func (b *bench) do(cdb []byte, out []byte, in int) result {
	b.t.Helper()
	return b.run(b.task(cdb, out, in), out)
}

// run starts a task and drives it to its end.
func (b *bench) run(task *Task, out []byte) result {
	b.t.Helper()
	return b.finish(task, task.Start(), out)
}

// finish drives a task to its end and releases it.
func (b *bench) finish(task *Task, next Next, out []byte) result {
	b.t.Helper()
	for steps := 0; next == Pull || next == Wait; steps++ {
		if steps > 1<<20 {
			b.t.Fatal("the command does not end")
		}
		if next == Pull {
			place(task, out)
			next = task.Pulled()
			continue
		}
		b.store.complete()
		b.awaitReady(task)
		next = task.Resume()
	}
	r := result{next: next, status: task.Status, sense: append([]byte{}, task.Sense...), transfer: task.Transfer, transferOut: task.TransferOut}
	for _, seg := range task.In {
		r.in = append(r.in, seg...)
	}
	task.Release()
	return r
}

// awaitReady takes wake-ups until task's is among them. All that happens in a bench has
// happened when it is called.
func (b *bench) awaitReady(task *Task) {
	b.t.Helper()
	for {
		if (task.waiter != nil || task.measured != nil || task.changing != nil && task.lu.v.Access().Shared()) && task.r.Parked() { // which a goroutine ends
			if <-b.owner.ready == task {
				return
			}
			continue
		}
		select {
		case ready := <-b.owner.ready:
			if ready == task {
				return
			}
		default:
			b.t.Fatalf("the command % x waits for nothing", task.CDB)
		}
	}
}

// place copies the data-out to where the task wants it.
func place(task *Task, out []byte) {
	task.Place(0, out[:task.OutLen])
}

func holdAll(*backend.Op) bool { return true }

// holdTasks holds what commands ask for, not what the logical unit does by itself.
func holdTasks(op *backend.Op) bool {
	_, ok := op.Done.(*volume.Request)
	return ok
}

// laterStore keeps one operation until complete, and allocates nothing.
type laterStore struct {
	*fakeStore
	op *backend.Op
}

func (s *laterStore) Submit(op *backend.Op) bool {
	s.op = op
	return false
}

func (s *laterStore) complete() {
	op := s.op
	s.op = nil
	s.do(op)
	op.Done.OpDone(op)
}
