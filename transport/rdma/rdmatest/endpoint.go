package rdmatest

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// Endpoint is where a test of endpoints takes its far end from.
type Endpoint struct {
	Device  rdma.Device
	Address string    // of an endpoint of all of Store, with all rights
	Store   *Volatile // what is below it; nil in RunStore
	// Revoke ends the endpoint for all who use it.
	Revoke func(error)
	// Quick: fewer random works, for providers that bring them to another one that runs them all.
	Quick bool
	// Cut, if set, ends the connection of a queue pair, which comes back by itself: Model has it do so, too.
	Cut func(rdma.QueuePair)
	// Forget, if set, is Cut after which nobody knows what was done on the connection.
	Forget func(rdma.QueuePair)
	// Wire: errors come across a wire, as a status and nothing else.
	Wire bool
}

// RunEndpoint runs the suite of endpoints. Open is called once for each test, with the store that the
// endpoint is to stand for, and registers with t.Cleanup what closes the device and the store.
func RunEndpoint(t *testing.T, open func(t *testing.T, s *Volatile) Endpoint) {
	for _, c := range endpointCases {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, open(t, NewVolatile(endpointSize, seedOf(t))))
		})
	}
	t.Run("Model", func(t *testing.T) { RunEndpointModel(t, open) })
}

const (
	endpointSize = 4 << 20
	unit         = 512
)

func seedOf(t testing.TB) uint64 {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return seed
}

var endpointCases = []struct {
	name string
	run  func(*testing.T, Endpoint)
}{
	{"Described", testDescribed},
	{"Refused", testEndpointRefused},
	{"WrongSTag", testWrongSTag},
	{"NoOctets", testNoOctets},
	{"O1CompletionOrder", testO1},
	{"O2FreeStart", testO2},
	{"O3CompletionSet", testO3},
	{"O4FreeFinishAlone", testO4},
	{"O5Fence", testO5},
	{"O6FencedAfterFailure", testO6},
	{"O7BarrierDurable", testO7},
	{"O8FlushDurable", testO8},
	{"O9BetweenQueuePairs", testO9},
	{"O10RelaxedOrder", testO10},
	{"O11Unsignaled", testO11},
	{"O12WatermarkNeverLies", testO12},
	{"O12DurableWatermark", testO12Durable},
	{"O1AtomicInOrder", testAtomicInOrder},
	{"O13AtomicSum", testO13},
	{"O13AtomicBesideWrites", testAtomicBesideWrites},
	{"MediumFault", testMediumFault},
	{"Space", testSpace},
	{"Lost", testLost},
	{"Discard", testDiscard},
	{"ParallelOneCompletion", testParallelOneCompletion},
	{"RightsRevoked", testRightsRevoked},
	{"CloseUnderLoad", testCloseUnderLoad},
}

var everyOrder = []rdma.Order{rdma.OrderStrict, rdma.FreeStart, rdma.FreeFinish, rdma.FreeStart | rdma.FreeFinish}

// attach connects an end to the endpoint.
func attach(t testT, p Endpoint, o rdma.Order, maxWork int, want rdma.Rights) *end {
	t.Helper()
	e := &end{t: t, dev: p.Device, gone: make(chan error, 4), started: true}
	var err error
	e.dom, err = p.Device.NewDomain()
	check(t, err)
	e.sends, e.recvs = newQueue(t, p.Device, maxWork, nil), newQueue(t, p.Device, 1, nil)
	e.qp, err = p.Device.NewQueuePair(rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.sends.cq, RecvCQ: e.recvs.cq, MaxWork: maxWork, MaxRecv: 1, Order: o,
		Disconnected: func(err error) { e.ends.Add(1); e.gone <- err },
	})
	check(t, err)
	e.mem = e.register(1<<22, rdma.AccessLocalWrite)
	t.Cleanup(e.close)
	check(t, p.Device.Connect(context.Background(), e.qp, p.Address, rdma.ConnParams{Rights: want}))
	return e
}

// work is one of e's endpoint: n octets of own memory at off, and as many at to.
func (e *end) work(op rdma.Opcode, id uint64, f rdma.Flags, off, n, to int) rdma.Work {
	p := e.qp.Endpoint()
	w := rdma.Work{ID: id, Op: op, Flags: f, RemoteSTag: p.STag, RemoteOffset: p.Base + uint64(to)}
	switch op {
	case rdma.OpFlush:
	case rdma.OpDiscard:
		w.Length = int64(n)
	default:
		w.SGL = e.sge(off, n)
	}
	return w
}

func testDescribed(t *testing.T, p Endpoint) {
	e := attach(t, p, 0, 4, 0)
	d := e.qp.Endpoint()
	if d == nil || d.Size != endpointSize || d.Unit != unit || d.STag == 0 || d.Rights != rdma.AllRights {
		t.Fatalf("%+v", d)
	}
	if l := p.Device.Limits(); !l.Endpoints || !l.Flush || l.Atomics == rdma.AtomicsNone {
		t.Errorf("%+v", l)
	}
}

// What is wrong with a work is told by Post, and the queue pair goes on.
func testEndpointRefused(t *testing.T, p Endpoint) {
	e := attach(t, p, 0, 8, 0)
	for what, w := range map[string]rdma.Work{
		"Send":                     e.send(1, 0, 0, 8),
		"odd length":               e.work(rdma.OpWrite, 1, 0, 0, 100, 0),
		"odd offset":               e.work(rdma.OpRead, 1, 0, 0, unit, 8),
		"outside":                  e.work(rdma.OpWrite, 1, 0, 0, unit, endpointSize),
		"half outside":             e.work(rdma.OpDiscard, 1, 0, 0, 2*unit, endpointSize-unit),
		"offset that wraps":        e.work(rdma.OpRead, 1, 0, 0, unit, -unit),
		"durable Read":             e.work(rdma.OpRead, 1, rdma.Durable, 0, unit, 0),
		"durable Flush":            e.work(rdma.OpFlush, 1, rdma.Durable, 0, 0, 0),
		"atomic of 16":             e.work(rdma.OpFetchAdd, 1, 0, 0, 16, 0),
		"atomic at 4":              e.work(rdma.OpCompareSwap, 1, 0, 0, 8, 4),
		"atomic outside":           e.work(rdma.OpFetchAdd, 1, 0, 0, 8, endpointSize),
		"no region":                {Op: rdma.OpWrite, SGL: []rdma.SGE{{Bytes: make([]byte, unit)}}, RemoteSTag: e.qp.Endpoint().STag},
		"negative length":          e.work(rdma.OpDiscard, 1, 0, 0, -unit, 0),
		"Bind":                     {Op: rdma.OpBind, SGL: e.sge(0, 8)},
		"inline":                   e.work(rdma.OpWrite, 1, rdma.Inline, 0, unit, 0),
		"Write that is advertised": e.work(rdma.OpWrite, 1, rdma.Advertise, 0, unit, 0),
	} {
		e.refused(what, w)
	}
	e.post(e.work(rdma.OpWrite, 2, rdma.Signaled, 0, unit, 0))
	e.sends.want(rdma.OpWrite, 2)
}

// An STag that is not the queue pair's own, and rights that were not granted, end it.
func testWrongSTag(t *testing.T, p Endpoint) {
	other := attach(t, p, 0, 4, 0)
	for what, bad := range map[string]func(*end) rdma.Work{
		"another key": func(e *end) rdma.Work {
			w := e.work(rdma.OpRead, 1, 0, 0, unit, 0)
			w.RemoteSTag ^= 1
			return w
		},
		"another's": func(e *end) rdma.Work {
			w := e.work(rdma.OpWrite, 1, 0, 0, unit, 0)
			w.RemoteSTag = other.qp.Endpoint().STag
			return w
		},
		"no right to write":   func(e *end) rdma.Work { return e.work(rdma.OpWrite, 1, 0, 0, unit, 0) },
		"no right to flush":   func(e *end) rdma.Work { return e.work(rdma.OpFlush, 1, 0, 0, 0, 0) },
		"no right to discard": func(e *end) rdma.Work { return e.work(rdma.OpDiscard, 1, 0, 0, unit, 0) },
		"no right to add":     func(e *end) rdma.Work { return e.work(rdma.OpFetchAdd, 1, 0, 0, 8, 0) },
		"no right to barrier": func(e *end) rdma.Work { return e.work(rdma.OpRead, 1, rdma.Barrier, 0, unit, 0) },
	} {
		want := rdma.RightRead
		if what == "another's" || what == "another key" {
			want = 0
		}
		e := attach(t, p, 0, 4, want)
		fill(e.bytes(0, unit), 1)
		e.post(bad(e))
		if c := e.sends.next(); c.Status != rdma.StatusRemoteAccess || c.Err == nil {
			t.Errorf("%s: %+v", what, c)
		}
		e.bad()
	}
	other.post(other.work(rdma.OpRead, 1, rdma.Signaled, 0, endpointSize, 0))
	other.sends.want(rdma.OpRead, 1)
	same(t, "the store", other.bytes(0, endpointSize), make([]byte, endpointSize))
}

// What reaches no octets needs no right; what it promises does.
func testNoOctets(t *testing.T, p Endpoint) {
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite, rdma.OpDiscard} {
		for _, promise := range []rdma.Flags{rdma.Barrier, rdma.Durable} {
			if op == rdma.OpRead && promise == rdma.Durable {
				continue
			}
			e := attach(t, p, 0, 4, rdma.RightAtomics)
			e.post(e.work(op, 1, rdma.Signaled|rdma.Fence, 0, 0, 0), e.work(op, 2, rdma.Signaled|promise, 0, 0, 0))
			e.sends.want(op, 1)
			if c := e.sends.next(); c.Status != rdma.StatusRemoteAccess {
				t.Errorf("%+v", c)
			}
			e.bad()
		}
	}
}

// O1: completions come in the order of posting, whatever the store does first.
func testO1(t *testing.T, p Endpoint) {
	for _, o := range []rdma.Order{rdma.OrderStrict, rdma.FreeStart} {
		e := attach(t, p, o, 64, 0)
		for range 10 {
			var ws []rdma.Work
			for i := range 64 {
				ws = append(ws, e.work(rdma.OpWrite, uint64(i), rdma.Signaled, i*unit, unit, i*unit))
			}
			e.post(ws...)
			for i := range ws {
				e.sends.want(rdma.OpWrite, uint64(i))
			}
		}
	}
}

// O3: with FreeFinish each completion comes once, as soon as the work is complete.
func testO3(t *testing.T, p Endpoint) {
	for _, o := range []rdma.Order{rdma.FreeFinish, rdma.FreeStart | rdma.FreeFinish} {
		e := attach(t, p, o, 64, 0)
		await, release := p.Store.Hold(func(op *backend.Op) bool { return op.Off == 0 })
		var ws []rdma.Work
		for i := range 64 {
			ws = append(ws, e.work(rdma.OpWrite, uint64(i), rdma.Signaled, i*unit, unit, i*unit))
		}
		e.post(ws...)
		await(1)
		seen := make(map[uint64]bool)
		for range 63 { // the first hangs, and holds nobody up
			c := e.sends.next()
			if c.Status != rdma.StatusOK || c.ID == 0 || seen[c.ID] {
				t.Fatalf("%+v", c)
			}
			seen[c.ID] = true
		}
		e.sends.none()
		release()
		e.sends.want(rdma.OpWrite, 0)
	}
}

// O5: a fence waits for everything before it, and holds nothing back behind it.
func testO5(t *testing.T, p Endpoint) {
	e := attach(t, p, rdma.FreeStart|rdma.FreeFinish, 8, 0)
	for _, f := range []rdma.Flags{rdma.Fence, rdma.Barrier} {
		await, release := p.Store.Hold(func(op *backend.Op) bool { return op.Kind == backend.Write && op.Off == 0 })
		e.post(
			e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0),
			e.work(rdma.OpRead, 2, rdma.Signaled|f, unit, unit, unit),
			e.work(rdma.OpRead, 3, rdma.Signaled, unit, unit, 2*unit),
		)
		await(1)
		e.sends.want(rdma.OpRead, 3)
		e.sends.none()
		release()
		e.sends.want(rdma.OpWrite, 1)
		e.sends.want(rdma.OpRead, 2)
	}
}

var errBroken = errors.New("broken on purpose")

// cause reports whether err tells of want, as far as it can.
func (p *Endpoint) cause(err, want error) bool {
	return errors.Is(err, want) || p.Wire && err != nil
}

func failAt(off int64) func(*backend.Op) error {
	return func(op *backend.Op) error {
		if op.Kind == backend.Write && op.Off == off {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
		}
		return nil
	}
}

// O6: behind a failure a fence is not executed; the next one is.
func testO6(t *testing.T, p Endpoint) {
	for _, o := range everyOrder {
		for _, f := range []rdma.Flags{rdma.Fence, rdma.Barrier} {
			e := attach(t, p, o, 8, 0)
			p.Store.Fail(failAt(0))
			fill(e.bytes(0, 4*unit), 1)
			e.post(
				e.work(rdma.OpWrite, 1, 0, 0, unit, 0),
				e.work(rdma.OpWrite, 2, rdma.Signaled|f, unit, unit, 1<<20),
				e.work(rdma.OpWrite, 3, rdma.Signaled|f, unit, unit, 2<<20),
			)
			for i, want := range []rdma.Status{rdma.StatusMedium, rdma.StatusFenced, rdma.StatusOK} {
				if c := e.sends.next(); c.ID != uint64(i+1) || c.Status != want {
					t.Errorf("order %d: work %d ends with %v (%v), want %d with %v", o, c.ID, c.Status, c.Err, i+1, want)
				}
			}
			p.Store.Fail(nil)
			e.post(e.work(rdma.OpRead, 4, rdma.Signaled, 2*unit, unit, 1<<20), e.work(rdma.OpDiscard, 5, rdma.Signaled|rdma.Fence, 0, unit, 2<<20))
			e.sends.want(rdma.OpRead, 4)
			e.sends.want(rdma.OpDiscard, 5)
			same(t, "what was fenced", e.bytes(2*unit, unit), make([]byte, unit))
		}
	}
}

// O7: before a barrier all is durable, and it is itself when it completes.
func testO7(t *testing.T, p Endpoint) {
	for i, o := range everyOrder {
		e := attach(t, p, o, 64, 0)
		for round := range 10 {
			fill(e.bytes(0, 32*unit), uint64(10*i+round))
			var ws []rdma.Work
			for k := range 31 {
				ws = append(ws, e.work(rdma.OpWrite, uint64(k), 0, k*unit, unit, k*unit))
			}
			e.post(append(ws, e.work(rdma.OpWrite, 31, rdma.Signaled|rdma.Barrier, 31*unit, unit, 31*unit))...)
			e.sends.want(rdma.OpWrite, 31)
			same(t, "after a crash", p.Store.Crash(32*unit), e.bytes(0, 32*unit))
		}
	}
}

// O8: a flush makes durable what was complete; with a fence all before it, and on a strict queue pair in any
// case.
func testO8(t *testing.T, p Endpoint) {
	for i, o := range everyOrder {
		e := attach(t, p, o, 64, 0)
		for round := range 10 {
			fill(e.bytes(0, 16*unit), uint64(10*i+round))
			var ws []rdma.Work
			for k := range 16 {
				ws = append(ws, e.work(rdma.OpWrite, uint64(k), 0, k*unit, unit, k*unit))
			}
			flush := e.work(rdma.OpFlush, 16, rdma.Signaled, 0, 0, 0)
			if o&rdma.FreeStart != 0 {
				flush.Flags |= rdma.Fence
			}
			e.post(append(ws, flush)...)
			e.sends.want(rdma.OpFlush, 16)
			same(t, "after a crash", p.Store.Crash(16*unit), e.bytes(0, 16*unit))
		}
	}
}

// O11: unsignalled works have no completion, and the memory is the owner's after that of a fence.
func testO11(t *testing.T, p Endpoint) {
	for i, o := range everyOrder {
		e := attach(t, p, o, 32, 0)
		for round := range 20 {
			fill(e.bytes(0, 31*unit), uint64(20*i+round))
			want := append([]byte(nil), e.bytes(0, 31*unit)...)
			var ws []rdma.Work
			for k := range 31 {
				ws = append(ws, e.work(rdma.OpWrite, 1, 0, k*unit, unit, k*unit))
			}
			e.post(append(ws, e.work(rdma.OpFlush, 2, rdma.Signaled|rdma.Fence, 0, 0, 0))...)
			e.sends.want(rdma.OpFlush, 2)
			e.sends.none()
			clear(e.bytes(0, 31*unit))
			same(t, "what was written", p.Store.Crash(31*unit), want)
		}
	}
}

// O12: what is at or below the watermark of any completion is durable.
func testO12(t *testing.T, p Endpoint) {
	e := attach(t, p, rdma.FreeStart|rdma.FreeFinish, 64, 0)
	at, r := make(map[uint64]int), rand.New(rand.NewPCG(seedOf(t), 1))
	value := make([]byte, 512) // of the unit, when it has been written
	next, outstanding, last := 0, 0, uint64(0)
	for next < len(value) || outstanding > 0 {
		for outstanding < 32 && next < len(value) {
			w := e.work(rdma.OpWrite, uint64(next), rdma.Signaled, next*unit, unit, next*unit)
			value[next] = byte(next%255) + 1
			e.bytes(next*unit, 1)[0] = value[next]
			switch r.IntN(8) {
			case 0:
				w = e.work(rdma.OpFlush, 1<<20, rdma.Signaled, 0, 0, 0)
			case 1, 2, 3, 4:
				w.Flags |= rdma.Durable
				fallthrough
			default:
				next++
			}
			e.post(w)
			outstanding++
		}
		c := e.sends.next()
		outstanding--
		if c.Status != rdma.StatusOK || c.Durable < last {
			t.Fatalf("%+v after a watermark of %d", c, last)
		}
		last = c.Durable
		if c.Op == rdma.OpWrite {
			if _, twice := at[c.Seq]; twice || c.Seq == 0 {
				t.Fatalf("number %d twice, or none", c.Seq)
			}
			at[c.Seq] = int(c.ID)
		}
		image := p.Store.Crash(next * unit)
		for seq, i := range at {
			if seq <= c.Durable && image[i*unit] != value[i] {
				t.Fatalf("write %d, number %d, is lost in a crash: the watermark is %d", i, seq, c.Durable)
			}
		}
	}
	if last == 0 {
		t.Error("no watermark ever")
	}
}

// O12: works that are durable by themselves need no flush for the watermark to go on, in whatever order they become so. One that is not
// holds it back, until a flush covers that.
func testO12Durable(t *testing.T, p Endpoint) {
	for _, o := range everyOrder {
		e := attach(t, p, o, 32, 0)
		durable := func() (number, mark uint64) {
			var ws []rdma.Work
			for i := range 24 {
				w := e.work(rdma.OpWrite, 1, rdma.Signaled|rdma.Durable, i*unit, unit, i*unit)
				switch i {
				case 5:
					w = e.work(rdma.OpDiscard, 1, rdma.Signaled|rdma.Durable, 0, 2*unit, 64*unit)
				case 10:
					w = e.work(rdma.OpFetchAdd, 1, rdma.Signaled|rdma.Durable, 0, 8, 128*unit)
				case 15:
					w = e.work(rdma.OpCompareSwap, 1, rdma.Signaled|rdma.Durable, 0, 8, 128*unit)
					w.Compare = 1 << 60 // which it is not
				}
				ws = append(ws, w)
			}
			e.post(ws...)
			for range ws {
				c := e.sends.next()
				if c.Status != rdma.StatusOK {
					t.Fatalf("%+v", c)
				}
				number, mark = max(number, c.Seq), max(mark, c.Durable)
			}
			return number, mark
		}
		if number, mark := durable(); mark != number {
			t.Errorf("order %d: all are durable, the last is %#x, the watermark %#x", o, number, mark)
		}
		e.post(e.work(rdma.OpWrite, 2, rdma.Signaled, 0, unit, 0))
		cached := e.sends.want(rdma.OpWrite, 2).Seq
		e.post(e.work(rdma.OpWrite, 3, rdma.Signaled|rdma.Durable, 0, unit, unit))
		if c := e.sends.want(rdma.OpWrite, 3); c.Seq != cached+1 || c.Durable != cached-1 {
			t.Errorf("order %d: %#x is not durable, and %#x is: the watermark is %#x", o, cached, c.Seq, c.Durable)
		}
		e.post(e.work(rdma.OpFlush, 4, rdma.Signaled, 0, 0, 0))
		if c := e.sends.want(rdma.OpFlush, 4); c.Durable != cached+1 {
			t.Errorf("order %d: after a flush of %#x the watermark is %#x", o, cached+1, c.Durable)
		}
		if number, mark := durable(); mark != number {
			t.Errorf("order %d: all are durable again, the last is %#x, the watermark %#x", o, number, mark)
		}
	}
}

// O13: atomic operations of many queue pairs lose nothing.
func testO13(t *testing.T, p Endpoint) {
	const users = 8
	each := rounds.Of(200, 40)
	var wg sync.WaitGroup
	for i := range users {
		e := attach(t, p, everyOrder[i%4], 16, 0)
		wg.Go(func() {
			for k := range each {
				w := e.work(rdma.OpFetchAdd, 1, rdma.Signaled, 0, 8, 64)
				w.Operand = 3
				if _, err := e.qp.Post([]rdma.Work{w}); err != nil {
					t.Error(err)
					return
				}
				if k%4 == 0 { // another word of the block, so that Writes of blocks lose nothing either
					w.RemoteOffset += uint64(8 + 8*i)
					if _, err := e.qp.Post([]rdma.Work{w}); err != nil {
						t.Error(err)
						return
					}
					e.sends.next()
				}
				if c := e.sends.next(); c.Status != rdma.StatusOK {
					t.Errorf("%+v", c)
				}
			}
		})
	}
	wg.Wait()
	e := attach(t, p, 0, 4, 0)
	swap := e.work(rdma.OpCompareSwap, 1, rdma.Signaled|rdma.Durable, 0, 8, 64)
	for _, c := range []struct{ compare, swap, old, durable uint64 }{
		{1, 5, uint64(3 * users * each), 0}, {uint64(3 * users * each), 7, uint64(3 * users * each), 7},
	} {
		swap.Compare, swap.Operand = c.compare, c.swap
		e.post(swap)
		e.sends.want(rdma.OpCompareSwap, 1)
		if old := binary.NativeEndian.Uint64(e.bytes(0, 8)); old != c.old {
			t.Errorf("the old value is %d, want %d", old, c.old)
		}
		if c.durable != 0 && p.Store != nil && binary.NativeEndian.Uint64(p.Store.Crash(unit)[64:]) != c.durable {
			t.Error("a durable CompareSwap is lost in a crash")
		}
	}
	e.post(e.work(rdma.OpRead, 2, rdma.Signaled, 0, unit, 0))
	e.sends.want(rdma.OpRead, 2)
	for i := range users {
		if n := binary.NativeEndian.Uint64(e.bytes(72+8*i, 8)); n != uint64(3*each/4) {
			t.Errorf("user %d has added %d, want %d", i, n, 3*each/4)
		}
	}
}

// One of many works fails: it says so, the others are good, and the queue pair goes on.
func testMediumFault(t *testing.T, p Endpoint) {
	for _, o := range everyOrder {
		e := attach(t, p, o, 32, 0)
		p.Store.Fail(failAt(7 * unit))
		var ws []rdma.Work
		for i := range 32 {
			ws = append(ws, e.work(rdma.OpWrite, uint64(i), rdma.Signaled, i*unit, unit, i*unit))
		}
		e.post(ws...)
		for range ws {
			c := e.sends.next()
			want := rdma.StatusOK
			if c.ID == 7 {
				want = rdma.StatusMedium
			}
			if c.Status != want || want != rdma.StatusOK && !p.cause(c.Err, errBroken) {
				t.Errorf("order %d: %+v", o, c)
			}
		}
		p.Store.Fail(nil)
		e.post(ws[7])
		e.sends.want(rdma.OpWrite, 7)
	}
}

func testSpace(t *testing.T, p Endpoint) {
	e := attach(t, p, 0, 4, 0)
	p.Store.Fail(func(op *backend.Op) error {
		if op.Kind == backend.Write {
			return &backend.SpaceError{Off: op.Off, Err: errBroken}
		}
		return nil
	})
	e.post(e.work(rdma.OpWrite, 1, 0, 0, unit, 0))
	if c := e.sends.next(); c.ID != 1 || c.Status != rdma.StatusSpace {
		t.Errorf("%+v", c)
	}
	e.post(e.work(rdma.OpRead, 2, rdma.Signaled, 0, unit, 0))
	e.sends.want(rdma.OpRead, 2)
}

// After a flush that failed nothing is promised any more, and the watermark stays.
func testLost(t *testing.T, p Endpoint) {
	e := attach(t, p, 0, 8, 0)
	e.post(e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0), e.work(rdma.OpFlush, 2, rdma.Signaled, 0, 0, 0))
	e.sends.want(rdma.OpWrite, 1)
	mark := e.sends.want(rdma.OpFlush, 2).Durable
	p.Store.Fail(func(op *backend.Op) error {
		if op.Kind == backend.Flush {
			return errBroken
		}
		return nil
	})
	e.post(e.work(rdma.OpWrite, 3, rdma.Signaled, 0, unit, 0), e.work(rdma.OpFlush, 4, rdma.Signaled, 0, 0, 0))
	e.sends.want(rdma.OpWrite, 3)
	if c := e.sends.next(); c.Status != rdma.StatusMedium || !p.cause(c.Err, errBroken) || c.Durable != mark || mark == 0 {
		t.Errorf("%+v, and the watermark was %d", c, mark)
	}
	p.Store.Fail(nil) // the store has forgotten it; the endpoint has not
	for _, w := range []rdma.Work{
		e.work(rdma.OpFlush, 5, rdma.Signaled, 0, 0, 0),
		e.work(rdma.OpWrite, 5, rdma.Signaled|rdma.Durable, 0, unit, 0),
		e.work(rdma.OpRead, 5, rdma.Signaled|rdma.RelaxedOrder|rdma.Barrier, 0, unit, 0),
	} {
		e.post(w)
		if c := e.sends.next(); c.Status != rdma.StatusLost && c.Status != rdma.StatusFenced || c.Durable != mark {
			t.Errorf("%v: %+v", w.Op, c)
		}
	}
	e.post(e.work(rdma.OpWrite, 6, rdma.Signaled, 0, unit, 0))
	e.sends.want(rdma.OpWrite, 6)
}

func testDiscard(t *testing.T, p Endpoint) {
	e := attach(t, p, 0, 8, 0)
	fill(e.bytes(0, 8*unit), 1)
	e.post(
		e.work(rdma.OpWrite, 1, rdma.Durable, 0, 8*unit, 0),
		e.work(rdma.OpDiscard, 2, rdma.Signaled|rdma.Durable, 0, 4*unit, 2*unit),
		e.work(rdma.OpRead, 3, rdma.Signaled, 8*unit, 8*unit, 0),
	)
	e.sends.want(rdma.OpDiscard, 2)
	e.sends.want(rdma.OpRead, 3)
	clear(e.bytes(2*unit, 4*unit))
	same(t, "what was read", e.bytes(8*unit, 8*unit), e.bytes(0, 8*unit))
	if p.Store != nil {
		same(t, "after a crash", p.Store.Crash(8*unit), e.bytes(0, 8*unit))
	}
}

// A long work is several operations of the store and one completion; it fails with the first.
func testParallelOneCompletion(t *testing.T, p Endpoint) {
	for _, o := range everyOrder {
		e := attach(t, p, o, 8, 0)
		fill(e.bytes(0, 3<<20), uint64(o))
		long := e.work(rdma.OpWrite, 1, rdma.Signaled, 0, 3<<20, unit)
		long.SGL = append(e.sge(0, 1<<20+unit), e.sge(1<<20+unit, 2<<20-unit)...)
		e.post(long)
		e.sends.want(rdma.OpWrite, 1)
		e.sends.none()
		e.post(e.work(rdma.OpFlush, 2, rdma.Signaled, 0, 0, 0))
		e.sends.want(rdma.OpFlush, 2)
		same(t, "what was written", p.Store.Crash(unit + 3<<20)[unit:], e.bytes(0, 3<<20))
		p.Store.Fail(func(op *backend.Op) error {
			if op.Off > 0 {
				return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
			}
			return nil
		})
		e.post(e.work(rdma.OpRead, 3, rdma.Signaled, 0, 4<<20, 0))
		c := e.sends.next()
		m, ok := errors.AsType[*backend.MediumError](c.Err)
		if c.Status != rdma.StatusMedium || !ok || m.Off > 1<<20 {
			t.Errorf("%+v", c)
		}
		e.sends.none()
		p.Store.Fail(nil)
	}
}

// What is under way when an endpoint is revoked ends; what comes later fails, and the queue pair ends.
func testRightsRevoked(t *testing.T, p Endpoint) {
	for range 2 { // used, and idle
		e := attach(t, p, rdma.FreeStart|rdma.FreeFinish, 8, 0)
		await, release := p.Store.Hold(func(op *backend.Op) bool { return true })
		e.post(e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0), e.work(rdma.OpRead, 2, rdma.Signaled|rdma.Fence, 0, unit, 0))
		await(1)
		p.Revoke(errBroken)
		release()
		e.sends.want(rdma.OpWrite, 1)
		if c := e.sends.next(); c.ID != 2 || c.Status != rdma.StatusRemoteAccess || !p.cause(c.Err, errBroken) {
			t.Errorf("%+v", c)
		}
		if err := <-e.gone; !p.cause(err, errBroken) {
			t.Errorf("the queue pair ends with %v", err)
		}
		if _, err := e.qp.Post([]rdma.Work{e.work(rdma.OpRead, 3, 0, 0, unit, 0)}); !errors.Is(err, rdma.ErrDisconnected) {
			t.Errorf("Post after the end: %v", err)
		}
	}
	e := attach(t, p, 0, 8, 0)
	p.Revoke(errBroken)
	e.post(e.work(rdma.OpWrite, 1, 0, 0, unit, 0))
	if c := e.sends.next(); c.Status != rdma.StatusRemoteAccess {
		t.Errorf("%+v", c)
	}
	e.bad()
}

// Close waits for what the store has, and everything posted completes.
func testCloseUnderLoad(t *testing.T, p Endpoint) {
	for _, o := range everyOrder {
		e := attach(t, p, o, 64, 0)
		var ws []rdma.Work
		for i := range 64 {
			w := e.work(rdma.OpWrite, uint64(i), rdma.Signaled, i*unit, unit, i*unit)
			if i%9 == 5 {
				w.Flags |= rdma.Barrier
			}
			ws = append(ws, w)
		}
		e.post(ws...)
		check(t, e.qp.Close())
		seen := make(map[uint64]bool)
		for e.sends.cq.Poll(e.sends.one[:]) > 0 {
			c := e.sends.one[0]
			if seen[c.ID] || c.Status != rdma.StatusOK && c.Status != rdma.StatusFlushed {
				t.Errorf("%+v", c)
			}
			seen[c.ID] = true
		}
		if len(seen) != len(ws) {
			t.Errorf("order %d: %d of %d works have completed", o, len(seen), len(ws))
		}
	}
}
