package volume

import (
	"reflect"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
)

// lendingStore lends its bytes, and may lose what was not flushed.
type lendingStore struct{ *sliceStore }

func (s lendingStore) Info() backend.Info {
	info := s.sliceStore.Info()
	info.VolatileCache = true
	return info
}
func (s lendingStore) Commit(int64, int64) {}
func (s lendingStore) Map(int64, int64)    {}
func (s lendingStore) Unmap(int64, int64)  {}
func (s lendingStore) Lend(segs [][]byte, off, n int64, _ bool) [][]byte {
	return append(segs, s.data[off:off+n:off+n])
}

// A released request is the zero value, whatever it was used for, but for room in a list.
func TestReleased(t *testing.T) {
	for _, lends := range []bool{false, true} {
		plain := newSliceStore(64 << 10)
		var store backend.Store = plain
		if lends {
			store = lendingStore{plain}
		}
		v := open(t, Config{Store: store})
		c := &client{make(chan *atomic.Bool, 16), mem.NewPool(16 << 20)}
		data := make([]byte, 8<<10)
		var r Request
		for name, begin := range map[string]func(then Step) Next{
			"read":             func(then Step) Next { return r.Read(512, 4096, 4000, true, then) },
			"write":            func(then Step) Next { return r.Write(512, 4096, true, then) },
			"flush":            func(then Step) Next { return r.Flush(then) },
			"status":           func(then Step) Next { return r.Status(512, 4096, then) },
			"compare":          func(then Step) Next { return r.CompareAndWrite(512, 1024, true, "", then) },
			"or":               func(then Step) Next { return r.OrWrite(512, 1024, true, then) },
			"verify":           func(then Step) Next { return r.Verify(512, 1024, true, then) },
			"verify, no data":  func(then Step) Next { return r.Verify(512, 1024, false, then) },
			"write and verify": func(then Step) Next { return r.WriteAndVerify(512, 1024, true, then) },
			"erase":            func(then Step) Next { return r.Erase([]Range{{0, 4096}, {8192, 4096}}, true, then) },
			"write same":       func(then Step) Next { return r.WriteSame(512, 4096, 512, true, then) },
			"take":             func(then Step) Next { return r.Take(100, then) },
			"erase nothing":    func(then Step) Next { return r.Erase(nil, true, then) },
			"park": func(then Step) Next {
				next := r.Park(func(*Request) bool { return false }, then)
				r.Grant()
				return next
			},
			"refused": func(then Step) Next {
				v.half.Store(&half{off: 0, n: 512})
				defer v.half.Store(nil)
				return r.CopyRead(v, 0, 0, 512, then)
			},
			"yield": func(then Step) Next { return r.Yield(then) },
			"copy": func(then Step) Next {
				return r.CopyMemory(4096, func(*Request) Next { return r.CopyRead(v, 0, 512, 4096, then) })
			},
			"copy zeroes": func(then Step) Next { return r.CopyWrite(v, 0, 512, 4096, true, then) },
			"half placed": func(then Step) Next { r.Write(512, 1024, false, then); r.Place(0, data[:512]); return Done },
		} {
			r.Begin(c, v, 512, mem.MaxLease, false, false)
			next := begin(func(*Request) Next { return Done })
			for next != Done {
				if next == Pull {
					r.Place(0, data[:r.OutLen])
					next, _ = r.Pulled()
				} else {
					<-c.ready
					next, _ = r.Resume(false)
				}
			}
			r.Settle()
			r.Release()
			r.segs = nil
			if x := reflect.ValueOf(&r).Elem(); !x.IsZero() {
				t.Errorf("lends %v, %s: left is %+v", lends, name, x)
				x.SetZero()
			}
		}
		if n := c.pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		if err := v.Settled(); err != nil {
			t.Error(err)
		}
	}
}
