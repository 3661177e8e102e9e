//go:build verbs && !guest && cgo && linux

package service_test

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/verbs"
	"oneshot/transport/rdma/verbs/fake"
)

func init() { fake.Install() }

// newSiwBench serves over a device that does what siw does.
func newSiwBench(t *testing.T) *bench {
	t.Helper()
	fake.BeginTest(t, fake.Config{IWARP: true, Siw: true})
	d, err := verbs.Open(verbs.Config{Name: fake.Name, LingerTime: 50 * time.Millisecond})
	check(t, err)
	b := &bench{t: t, pool: mem.NewPool(plenty), store: rdmatest.NewVolatile(size, 1), wire: d}
	b.serve(b.store, false, service.Config{})
	return b
}

// pulls has c write n octets, all of them seed, and returns the memory that the Reads for them go to, which fake.Release ends.
func (c *client) pulls(n int, seed byte) fake.Sink {
	c.t.Helper()
	fake.HoldReads()
	c.t.Cleanup(fake.Release)
	for i := range c.data()[:n] {
		c.data()[i] = seed
	}
	c.request(wire.Request{Op: wire.Write, Tag: 1, Length: uint32(n)})
	return fake.Sinks(n)[0]
}

// reads has c read 8 octets of the service's memory, and returns whether it could. A Read that waits for fake.Release is let go.
func (c *client) reads(stag uint32, at uint64) bool {
	c.t.Helper()
	_, err := c.qp.Post([]rdma.Work{{
		ID: 1 << 41, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: c.sge(dataAt+dataLen-8, 8), RemoteSTag: rdma.STag(stag), RemoteOffset: at,
	}})
	check(c.t, err)
	fake.Release()
	var one [1]rdma.Completion
	for {
		for c.cq.Poll(one[:]) > 0 {
			if one[0].ID == 1<<41 {
				return one[0].Status == rdma.StatusOK
			}
		}
		if c.cq.Arm() {
			<-c.wake
		}
	}
}

// A client over siw, which serves a peer's Read of any memory whose name it knows, finds nothing of others in the memory of its WRITE,
// and reads no other by that name.
func TestSiwReads(t *testing.T) {
	const n = 4096
	for _, c := range []struct {
		name string
		off  uint64
		ok   bool
	}{{"in the sink", 0, true}, {"behind it", n, false}} {
		t.Run(c.name, func(t *testing.T) {
			b := newSiwBench(t)
			var others []*mem.Lease
			for l := b.pool.Lease(mem.MaxLease); l != nil; l = b.pool.Lease(mem.MaxLease) {
				copy(l.Bytes(), bytes.Repeat([]byte{0xaa}, mem.MaxLease))
				others = append(others, l)
			}
			for _, l := range others {
				l.Release()
			}
			p := b.use(0)
			s := p.pulls(n, 2)
			if len(s.Memory) != n || !bytes.Equal(s.Memory, make([]byte, n)) {
				t.Errorf("a sink of %d octets is %d long, or holds something", n, len(s.Memory))
			}
			if ok := p.reads(s.STag, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.Memory))))+c.off); ok != c.ok {
				t.Errorf("a client has read the memory: %v, want %v", ok, c.ok)
			}
			p.close()
			check(t, p.dom.Close())
			b.settle(0)
		})
	}
}

// If the device does not take the memory of a WRITE away from its client, it belongs to the connection until that has ended.
func TestSiwSinkStays(t *testing.T) {
	const n = 4096
	b := newSiwBench(t)
	p := b.use(0)
	p.pulls(n, 1)
	leases := b.pool.Stats().Leases
	fake.KeepQueuePairs()
	t.Cleanup(fake.Forget)
	fake.Fail("ibv_dereg_mr", unix.EADDRINUSE, 0) // once
	fake.Release()
	for b.svc.Dead() == 0 {
		time.Sleep(50 * time.Microsecond) // the service has to run
	}
	if got := b.pool.Stats().Leases; got != leases {
		t.Errorf("%d leases, want %d: memory that a client can reach was given back", got, leases)
	}
	fake.Forget()
	p.ends("a WRITE whose memory stays with the client")
	p.close()
	check(t, p.dom.Close())
	b.settle(0)
}
