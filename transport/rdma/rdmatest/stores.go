package rdmatest

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// RunStore runs those tests of endpoints that need no store which fails and hangs when it is told to. Open is
// called once for each test, and returns an endpoint of 4 MiB of zeroes, in units of 512, without Store.
func RunStore(t *testing.T, open func(t *testing.T) Endpoint) {
	for _, c := range endpointCases {
		if slices.Contains([]string{
			"Described", "Refused", "WrongSTag", "O1CompletionOrder", "O9BetweenQueuePairs", "O13AtomicSum", "O13AtomicBesideWrites",
			"Discard", "CloseUnderLoad",
		}, c.name) {
			t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
		}
	}
	t.Run("Model", func(t *testing.T) {
		RunEndpointModel(t, func(t *testing.T, s *Volatile) Endpoint {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			return open(t)
		})
	})
}

// once reports true for the first of the operations for which f does.
func once(f func(*backend.Op) bool) func(*backend.Op) bool {
	found := false
	return func(op *backend.Op) bool {
		first := !found && f(op)
		found = found || first
		return first
	}
}

func isWrite(op *backend.Op) bool { return op.Kind == backend.Write }

// O2: with FreeStart a work passes one that it overlaps, and each octet is that of either.
func testO2(t *testing.T, p Endpoint) {
	e := attach(t, p, rdma.FreeStart|rdma.FreeFinish, 8, 0)
	fill(e.bytes(0, 4*unit), 1)
	await, release := p.Store.Hold(once(isWrite))
	defer release() // if the test ends early
	e.post(e.work(rdma.OpWrite, 1, rdma.Signaled, 0, 2*unit, 0))
	await(1)
	e.post(
		e.work(rdma.OpWrite, 2, rdma.Signaled, 2*unit, 2*unit, unit),
		e.work(rdma.OpRead, 3, rdma.Signaled, 4*unit, 3*unit, 0),
	)
	if a, b := e.sends.next(), e.sends.next(); a.ID+b.ID != 5 || a.Status != rdma.StatusOK || b.Status != rdma.StatusOK {
		t.Errorf("%+v, %+v", a, b)
	}
	e.sends.none()
	release()
	e.sends.want(rdma.OpWrite, 1)
	e.post(e.work(rdma.OpRead, 4, rdma.Signaled, 8*unit, 3*unit, 0))
	e.sends.want(rdma.OpRead, 4)
	same(t, "what one has written alone", e.bytes(8*unit, unit), e.bytes(0, unit))
	same(t, "what the other has written alone", e.bytes(10*unit, unit), e.bytes(3*unit, unit))
	for i, v := range e.bytes(9*unit, unit) {
		if v != e.bytes(unit, unit)[i] && v != e.bytes(2*unit, unit)[i] {
			t.Fatalf("octet %d is of neither", i)
		}
	}
}

// O4: FreeFinish alone: works start in order, and one that is complete is reported though an earlier one is not.
func testO4(t *testing.T, p Endpoint) {
	e := attach(t, p, rdma.FreeFinish, 8, 0)
	fill(e.bytes(0, 3*unit), 2)
	await, release := p.Store.Hold(once(isWrite))
	defer release() // if the test ends early
	e.post(
		e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0),
		e.work(rdma.OpWrite, 2, rdma.Signaled, unit, unit, unit),
	)
	await(1)
	e.sends.want(rdma.OpWrite, 2)
	// The third overlaps the first; the fourth does not, and is behind the third.
	e.post(
		e.work(rdma.OpWrite, 3, rdma.Signaled, 2*unit, unit, 0),
		e.work(rdma.OpWrite, 4, rdma.Signaled, unit, unit, 8*unit),
	)
	other := attach(t, p, 0, 4, 0) // by the end of its Read the others would have started
	other.post(other.work(rdma.OpRead, 5, rdma.Signaled, 0, unit, 8*unit))
	other.sends.want(rdma.OpRead, 5)
	same(t, "what has not started", other.bytes(0, unit), make([]byte, unit))
	e.sends.none()
	release()
	e.sends.want(rdma.OpWrite, 1)
	for range 2 {
		if c := e.sends.next(); c.Status != rdma.StatusOK || c.ID != 3 && c.ID != 4 {
			t.Errorf("%+v", c)
		}
	}
	e.post(e.work(rdma.OpRead, 6, rdma.Signaled, 4*unit, unit, 0))
	e.sends.want(rdma.OpRead, 6)
	same(t, "what was written last", e.bytes(4*unit, unit), e.bytes(2*unit, unit))
}

// O9: what was polled as complete on one queue pair, another one sees, whatever their orders.
func testO9(t *testing.T, p Endpoint) {
	var ends []*end
	for _, o := range everyOrder {
		ends = append(ends, attach(t, p, o, 8, 0))
	}
	for round := range 60 {
		a, b := ends[round%4], ends[(round/4)%4]
		fill(a.bytes(0, unit), uint64(round+1))
		a.post(a.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 4*unit))
		a.sends.want(rdma.OpWrite, 1)
		b.post(b.work(rdma.OpRead, 2, rdma.Signaled, unit, unit, 4*unit))
		b.sends.want(rdma.OpRead, 2)
		same(t, "what another queue pair sees", b.bytes(unit, unit), a.bytes(0, unit))
	}
}

// O10: RelaxedOrder has one work of a strict queue pair start before earlier ones; its completion stays in order.
func testO10(t *testing.T, p Endpoint) {
	e := attach(t, p, rdma.OrderStrict, 8, 0)
	fill(e.bytes(0, 3*unit), 3)
	await, release := p.Store.Hold(once(isWrite))
	defer release() // if the test ends early
	e.post(
		e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0),
		e.work(rdma.OpWrite, 2, rdma.Signaled, unit, unit, 0), // has to wait
		e.work(rdma.OpWrite, 3, rdma.Signaled|rdma.RelaxedOrder, 2*unit, unit, 8*unit),
	)
	await(1)
	other := attach(t, p, 0, 4, 0)
	for i := 0; ; i++ { // until the third has been done; it hangs for ever if that waits
		other.post(other.work(rdma.OpRead, 4, rdma.Signaled, 0, unit, 8*unit))
		other.sends.want(rdma.OpRead, 4)
		if bytes.Equal(other.bytes(0, unit), e.bytes(2*unit, unit)) {
			break
		}
		if i == 20_000 {
			t.Fatal("the work does not start before those that it may pass")
		}
	}
	e.sends.none()
	release()
	for id := uint64(1); id <= 3; id++ {
		e.sends.want(rdma.OpWrite, id)
	}
}

// O1: unless works start in any order, nobody sees an atomic operation before what was posted before it, nor what was posted behind it before
// the atomic operation: it may release a lock, or take one.
func testAtomicInOrder(t *testing.T, p Endpoint) {
	for _, o := range []rdma.Order{rdma.OrderStrict, rdma.FreeFinish} {
		e, other := attach(t, p, o, 8, 0), attach(t, p, o, 4, 0)
		fill(e.bytes(0, 2*unit), 1)
		add := e.work(rdma.OpFetchAdd, 2, rdma.Signaled, 2*unit, 8, 1<<20) // far away: volumes lock more than a block
		add.Operand = 1
		for _, ws := range [][]rdma.Work{
			{e.work(rdma.OpWrite, 1, rdma.Signaled, 0, unit, 0), add},
			{add, e.work(rdma.OpWrite, 1, rdma.Signaled, unit, unit, 2<<20)},
		} {
			see := ws[1].RemoteOffset - e.qp.Endpoint().Base
			read := other.work(rdma.OpRead, 3, rdma.Signaled, 0, unit, int(see))
			other.post(read)
			other.sends.want(rdma.OpRead, 3)
			before := bytes.Clone(other.bytes(0, unit))
			await, release := p.Store.Hold(once(isWrite))
			defer release() // if the test ends early
			e.post(ws...)
			await(1)
			for range 50 { // by the end of these the other one would have been done
				other.post(read)
				other.sends.want(rdma.OpRead, 3)
			}
			same(t, "what is behind a work that is not complete", other.bytes(0, unit), before)
			release()
			for range ws {
				if c := e.sends.next(); c.Status != rdma.StatusOK {
					t.Errorf("%+v", c)
				}
			}
		}
		e.post(e.work(rdma.OpDiscard, 4, rdma.Signaled, 0, 3<<20, 0))
		e.sends.want(rdma.OpDiscard, 4)
	}
}

// O13: atomic operations lose nothing to Writes of the blocks beside theirs, and these lose nothing to them.
func testAtomicBesideWrites(t *testing.T, p Endpoint) {
	turns := rounds.Of(150, 40)
	var wg sync.WaitGroup
	var writers []*end
	for i := range 4 {
		e := attach(t, p, everyOrder[i], 16, 0)
		op, to := rdma.OpFetchAdd, unit+8*(i/2)
		if i%2 == 0 {
			writers = append(writers, e)
			op, to = rdma.OpWrite, i*unit // the block before, and the one behind
		}
		wg.Go(func() {
			for round := range turns {
				n := 8
				if op == rdma.OpWrite {
					n = unit
					fill(e.bytes(0, unit), uint64(round))
				}
				w := e.work(op, 1, rdma.Signaled, 0, n, to)
				w.Operand = 5
				if _, err := e.qp.Post([]rdma.Work{w}); err != nil {
					t.Error(err)
					return
				}
				if c := e.sends.next(); c.Status != rdma.StatusOK {
					t.Errorf("%+v", c)
				}
			}
		})
	}
	wg.Wait()
	e := attach(t, p, 0, 4, 0)
	e.post(e.work(rdma.OpRead, 1, rdma.Signaled, 0, 3*unit, 0))
	e.sends.want(rdma.OpRead, 1)
	for i := range 2 {
		if n := binary.NativeEndian.Uint64(e.bytes(unit+8*i, 8)); n != 5*uint64(turns) {
			t.Errorf("word %d is %d, want %d", i, n, 5*turns)
		}
	}
	same(t, "the block before", e.bytes(0, unit), writers[0].bytes(0, unit))
	same(t, "the block behind", e.bytes(2*unit, unit), writers[1].bytes(0, unit))
}
