package mirror

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// holding is a store that keeps writes until they are let go.
type holding struct {
	backend.Store
	mu   sync.Mutex
	ops  []*backend.Op
	lets bool
}

func (h *holding) Submit(op *backend.Op) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if op.Kind != backend.Write || h.lets {
		return h.Store.Submit(op)
	}
	h.ops = append(h.ops, op)
	return false
}

// letGo ends what is held. What comes from now on is not.
func (h *holding) letGo() {
	h.mu.Lock()
	ops := h.ops
	h.ops, h.lets = nil, true
	h.mu.Unlock()
	for _, op := range ops {
		h.Store.Submit(op)
		op.Done.OpDone(op)
	}
}

// TestAppliedWakesNobody: that the copy has a write is noted with the next tick, unless a read waits for it.
func TestAppliedWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, waits := range []bool{false, true} {
			l := newLab(t, 2)
			h := &holding{}
			l.wrap = func(s backend.Store) backend.Store {
				if h.Store == nil { // of the primary
					h.Store = s
					return h
				}
				return s
			}
			l.begin()
			a := l.nodes[0]
			l.write(a, 0, bytesOf(4096, 1)) // answered, for both memories have it
			read := make(chan time.Duration, 1)
			began := time.Now()
			if waits {
				go func() {
					l.expect(a, 0, bytesOf(4096, 1))
					read <- time.Since(began)
				}()
			}
			synctest.Wait()
			began = time.Now()
			h.letGo()
			synctest.Wait()
			a.mirror.mu.Lock()
			left := len(a.mirror.inbox)
			a.mirror.mu.Unlock()
			switch {
			case !waits && left != 1:
				t.Errorf("the end of a write for which nothing waits was taken at once: %d are left", left)
			case waits && <-read > 0:
				t.Error("a read waits for a tick, and the copy has the write")
			}
			l.await(a, "applied", func(s replica.State) bool { return s.Applied == s.Last })
			if took := time.Since(began); took > 50*time.Millisecond {
				t.Errorf("that it was applied was noted after %v", took)
			}
			l.end()
		}
	})
}

// TestWritesWakeNoWatcher: who waits for another role is woken neither by beats nor by what hosts write, and hears of the role at once.
func TestWritesWakeNoWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		a := l.nodes[0]
		var looks atomic.Int64
		heard := make(chan time.Time)
		go func() {
			_ = a.mirror.Await(t.Context(), func(s replica.State) bool {
				looks.Add(1)
				return s.Role != replica.Primary
			})
			heard <- time.Now()
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		looks.Store(0)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := looks.Load(); n > 0 {
			t.Errorf("in a second without a host somebody was woken %d times, who waits for another role", n)
		}
		looks.Store(0)
		began := time.Now()
		const writes = 100
		for i := range int64(writes) {
			l.write(a, i*4096, bytesOf(4096, 1))
		}
		synctest.Wait()
		if n, ticks := looks.Load(), int64(time.Since(began)/(10*time.Millisecond)); n > 5+ticks {
			t.Errorf("%d writes have woken somebody %d times, who waits for another role", writes, n)
		}
		if err := a.mirror.SwitchTo(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if took := (<-heard).Sub(began); took > 0 {
			t.Errorf("the new role was heard of %v after the switch", took)
		}
		l.end()
	})
}
