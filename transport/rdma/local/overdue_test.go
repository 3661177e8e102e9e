package local_test

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

// fill returns a Write of 4096 octets at off.
func (u *user) fill(off int64, octet byte, flags rdma.Flags) rdma.Work {
	copy(u.buf[off:], bytes.Repeat([]byte{octet}, 4096))
	return rdma.Work{
		ID: uint64(off), Op: rdma.OpWrite, Flags: rdma.Signaled | flags, SGL: u.sge(int(off), 4096), RemoteSTag: u.e.STag, RemoteOffset: uint64(off),
	}
}

// A user may have been given up, and nobody has heard of that: his link is cut. What he has left in the store, or in the queue pair, does not
// come on top of what others have been told is written since. If they write nothing there, it is done.
func TestOverdue(t *testing.T) {
	free := rdma.FreeStart | rdma.FreeFinish
	for name, c := range map[string]struct {
		order    rdma.Order
		kinds    []backend.Kind // that hang in the store
		late     []rdma.Flags   // of the Writes, 4096 octets each: the first hangs
		overtake int            // which of them the other one overtakes; -1: none

		want []rdma.Status
	}{
		"in the store":                  {kinds: faulty.Writes, late: []rdma.Flags{0}, overtake: 0, want: []rdma.Status{rdma.StatusOK}},
		"behind a fence":                {kinds: faulty.Writes, late: []rdma.Flags{0, rdma.Fence}, overtake: 1, want: []rdma.Status{rdma.StatusOK, rdma.StatusFlushed}},
		"behind a fence, free":          {order: free, kinds: faulty.Writes, late: []rdma.Flags{0, rdma.Fence}, overtake: 1, want: []rdma.Status{rdma.StatusOK, rdma.StatusFlushed}},
		"behind the flush of its own":   {kinds: []backend.Kind{backend.Flush}, late: []rdma.Flags{rdma.Barrier}, overtake: 0, want: []rdma.Status{rdma.StatusFlushed}},
		"what is behind it is not done": {kinds: faulty.Writes, late: []rdma.Flags{0, rdma.Fence, 0}, overtake: 1, want: []rdma.Status{rdma.StatusOK, rdma.StatusFlushed, rdma.StatusFlushed}},
		"nobody else writes":            {kinds: faulty.Writes, late: []rdma.Flags{0, rdma.Fence, rdma.Barrier}, overtake: -1, want: []rdma.Status{rdma.StatusOK, rdma.StatusOK, rdma.StatusOK}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := faulty.New(newMemory(t, 1<<20), 1)
				v := newVolume(t, store)
				d := open(t, local.Config{Open: opener(v, rdma.DurabilityMedium)})
				x, y := use(t, d, "disk/log", c.order, nil), use(t, d, "disk/log", 0, nil)
				gate := store.Hold(faulty.Match{Kinds: c.kinds, Len: 4096})
				if c.kinds[0] == backend.Flush {
					gate.Release()
					gate = store.Hold(faulty.Match{Kinds: c.kinds})
				}
				var ws []rdma.Work
				for i, flags := range c.late {
					ws = append(ws, x.fill(int64(i)<<12, 1, flags))
				}
				if _, err := x.qp.Post(ws); err != nil {
					t.Fatal(err)
				}
				gate.Await(1)
				time.Sleep(3 * time.Second)
				synctest.Wait()
				if c.overtake >= 0 {
					if _, err := y.qp.Post([]rdma.Work{y.fill(int64(c.overtake)<<12, 2, 0)}); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if n := gate.Held(); n != 1 {
					t.Errorf("%d operations hang: one goes to the store beside one that is late", n)
				}
				gate.Release()
				synctest.Wait()
				var cs [8]rdma.Completion
				var got []rdma.Status
				for _, c := range cs[:x.cq.Poll(cs[:])] {
					got = append(got, c.Status)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("the Writes end with %v, want %v", got, c.want)
				}
				if c.overtake < 0 {
					return
				}
				if n := y.cq.Poll(cs[:]); n != 1 || cs[0].Status != rdma.StatusOK {
					t.Errorf("%d, %v", n, cs[0].Status)
				}
				b := make([]byte, 4096)
				if err := backendtest.Do(store, &backend.Op{Kind: backend.Read, Off: int64(c.overtake) << 12, Len: 4096, Segs: [][]byte{b}}); err != nil {
					t.Fatal(err)
				}
				if b[0] != 2 {
					t.Errorf("%d stands there, want what was written last", b[0])
				}
			})
		})
	}
}
