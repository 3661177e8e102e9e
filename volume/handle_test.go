package volume

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/volume/access"
)

type opDone chan *backend.Op

func (d opDone) OpDone(op *backend.Op) { d <- op }

// wait does op by way of submit.
func (d opDone) wait(op *backend.Op, submit func(*backend.Op) bool) error {
	op.Done = d
	if !submit(op) {
		<-d
	}
	return op.Err
}

// counts adds one by COMPARE AND WRITE, so long until nobody comes in between.
func counts(t *testing.T, v *Volume, pool *mem.Pool) {
	c := &client{make(chan *atomic.Bool, 16), pool}
	h := v.Open(nil)
	defer h.Close()
	done := make(opDone, 1)
	for {
		both := make([]byte, 1024)
		if err := done.wait(&backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{both[:512]}}, h.Submit); err != nil {
			t.Error(err)
			return
		}
		copy(both[512:], both[:512])
		binary.NativeEndian.PutUint64(both[512:], binary.NativeEndian.Uint64(both)+1)
		r := new(Request)
		r.Begin(c, v, 512, mem.MaxLease, false, false)
		next := r.CompareAndWrite(0, 512, false, "", func(*Request) Next { return Done })
		for next != Done {
			if next == Pull {
				r.Place(0, both)
				next, _ = r.Pulled()
			} else {
				<-c.ready
				next, _ = r.Resume(false)
			}
		}
		r.Settle()
		won, err := r.Mismatch < 0, r.Err
		r.Release()
		if err != nil {
			t.Error(err)
		}
		if won || err != nil {
			return
		}
	}
}

// O13: atomic operations of handles are atomic among each other and against COMPARE AND WRITE, whether the
// store lends its memory or not.
func TestO13HandleAgainstCompareAndWrite(t *testing.T) {
	lends, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]backend.Store{"lender": lends, "other": newSliceStore(1 << 20)} {
		t.Run(name, func(t *testing.T) {
			const each, users = 2000, 4
			v := open(t, Config{Store: store})
			pool := mem.NewPool(16 << 20)
			var wg sync.WaitGroup
			for i := range users {
				wg.Go(func() {
					h := v.Open(nil)
					defer h.Close()
					done := make(opDone, 1)
					old := make([]byte, 8)
					for k := range each {
						op := &backend.Op{Len: 8, Segs: [][]byte{old}}
						add := func(op *backend.Op) bool { return h.FetchAdd(op, 1) }
						if i == 0 && k%2 == 0 { // with CompareSwap, whatever is there
							read := &backend.Op{Len: 8, Segs: [][]byte{old}}
							for won := false; !won; {
								if err := done.wait(read, func(op *backend.Op) bool { return h.FetchAdd(op, 0) }); err != nil {
									t.Error(err)
									return
								}
								was := binary.NativeEndian.Uint64(old)
								if err := done.wait(op, func(op *backend.Op) bool { return h.CompareSwap(op, was, was+1) }); err != nil {
									t.Error(err)
									return
								}
								won = binary.NativeEndian.Uint64(old) == was
							}
							continue
						}
						if err := done.wait(op, add); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 2 {
				wg.Go(func() {
					for range each / 4 {
						counts(t, v, pool)
					}
				})
			}
			wg.Wait()
			h := v.Open(nil)
			got := make([]byte, 512)
			if err := make(opDone, 1).wait(&backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{got}}, h.Submit); err != nil {
				t.Fatal(err)
			}
			if n, want := binary.NativeEndian.Uint64(got), uint64(each*users+each/2); n != want {
				t.Errorf("the sum is %d, want %d", n, want)
			}
			if err := v.Close(); !errors.Is(err, ErrInUse) {
				t.Errorf("Close of a volume with a handle: %v", err)
			}
			h.Close()
			if err := v.Settled(); err != nil {
				t.Error(err)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A reservation that denies writes denies those of a handle, and what is denied waits for what is under way.
func TestHandleDenied(t *testing.T) {
	gate := newGatedStore(1 << 20)
	v := open(t, Config{Store: gate})
	h := v.Open(nil)
	done := make(opDone, 1)
	op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}, Done: done}
	go func() {
		if h.Submit(op) {
			done <- op
		}
	}()
	<-gate.seen
	v.Access().SetCondition(access.Writes, access.Writes)
	drained := v.drained()
	select {
	case <-drained:
		t.Error("drained while an operation is under way")
	default:
	}
	gate.tokens <- nil
	<-done
	<-drained
	for _, c := range []struct {
		denial access.Denial
		op     backend.Op
		denied bool
	}{
		{access.Writes, backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}}, true},
		{access.Writes, backend.Op{Kind: backend.Discard, Len: 512}, true},
		{access.Writes, backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{make([]byte, 512)}}, false},
		{access.Writes, backend.Op{Kind: backend.Flush}, false},
		{access.Reads, backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{make([]byte, 512)}}, true},
		{access.Sanitizing, backend.Op{Kind: backend.Flush}, true},
		{access.IsOffline, backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{make([]byte, 512)}}, true},
	} {
		v.Access().SetCondition(access.Free-1, c.denial)
		if !c.denied {
			go func() { <-gate.seen; gate.tokens <- nil }()
		}
		err := done.wait(&c.op, h.Submit)
		if _, denied := errors.AsType[*backend.DeniedError](err); denied != c.denied {
			t.Errorf("%v with %x denied: %v", c.op.Kind, c.denial, err)
		}
	}
	v.Access().SetCondition(access.Free-1, access.Writes)
	old := &backend.Op{Len: 8, Segs: [][]byte{make([]byte, 8)}}
	if _, denied := errors.AsType[*backend.DeniedError](done.wait(old, func(op *backend.Op) bool { return h.FetchAdd(op, 1) })); !denied {
		t.Errorf("an atomic operation on a reserved volume: %v", old.Err)
	}
	h.Close()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}
