package local_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"oneshot/backend"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

func (u *user) mapped(off uint64, n int64, write bool) *rdma.Mapping {
	u.t.Helper()
	m, err := u.qp.(rdma.Mapper).Map(u.e.Base+off, n, write)
	if err != nil {
		u.t.Fatal(err)
	}
	return m
}

func recalled(m *rdma.Mapping) bool {
	select {
	case <-m.Recalled:
		return true
	default:
		return false
	}
}

// Memory that is mapped and works see the same octets; those of the neighbours are out of reach.
func TestMapCoherent(t *testing.T) {
	d := newDivided(t, newMemory(t, storeSize))
	d.at(backend.Write, mib, bytes.Repeat([]byte{0xcc}, mib))
	u := use(t, d.dev, "disk/log", 0, nil)
	m := u.mapped(4096, 8192, true)
	defer m.Unmap()
	if len(m.Bytes) != 8192 || cap(m.Bytes) != 8192 {
		t.Fatalf("%d octets, of %d", len(m.Bytes), cap(m.Bytes))
	}
	copy(u.buf, bytes.Repeat([]byte{1}, 4096))
	u.do(rdma.Work{Op: rdma.OpWrite, SGL: u.sge(0, 4096), RemoteOffset: 4096})
	if !bytes.Equal(m.Bytes[:4096], u.buf[:4096]) {
		t.Error("what a work writes is not in the mapping")
	}
	copy(m.Bytes[4096:], bytes.Repeat([]byte{2}, 4096))
	if u.do(rdma.Work{Op: rdma.OpRead, SGL: u.sge(0, 4096), RemoteOffset: 8192}); !bytes.Equal(u.buf[:4096], m.Bytes[4096:]) {
		t.Error("what is written to the mapping, no work reads")
	}
	at := (*uint64)(unsafe.Pointer(&m.Bytes[16]))
	atomic.StoreUint64(at, 40)
	if u.do(rdma.Work{Op: rdma.OpFetchAdd, SGL: u.sge(0, 8), RemoteOffset: 4096 + 16, Operand: 2}); atomic.LoadUint64(at) != 42 {
		t.Errorf("40 and 2 are %d", *at)
	}
	u.do(rdma.Work{Op: rdma.OpDiscard, RemoteOffset: 4096, Length: 4096})
	if !bytes.Equal(m.Bytes[:4096], make([]byte, 4096)) {
		t.Error("what was discarded is in the mapping")
	}
	whole := u.mapped(0, 4*mib, true)
	for i := range whole.Bytes {
		whole.Bytes[i] = 0xee
	}
	whole.Unmap()
	b := make([]byte, mib)
	if d.at(backend.Read, mib, b); !bytes.Equal(b, bytes.Repeat([]byte{0xcc}, mib)) {
		t.Error("octets of the neighbour have changed")
	}
}

// What may not be mapped is refused, and the connection stands.
func TestMapRefused(t *testing.T) {
	d := newDivided(t, newMemory(t, storeSize))
	writable := use(t, d.dev, "disk/log", 0, nil)
	readable := use(t, open(t, local.Config{Open: func(ctx context.Context, name string, _ rdma.Rights, gone func(error)) (local.Opened, error) {
		return d.opens(ctx, name, rdma.RightRead|rdma.RightFlush, gone)
	}}), "disk/log", 0, nil)
	blind := use(t, open(t, local.Config{Open: func(ctx context.Context, name string, _ rdma.Rights, gone func(error)) (local.Opened, error) {
		return d.opens(ctx, name, rdma.RightWrite, gone)
	}}), "disk/log", 0, nil)
	for _, c := range []struct {
		name  string
		u     *user
		off   uint64
		n     int64
		write bool
	}{
		{"none", writable, 0, 0, false},
		{"negative", writable, 512, -512, false},
		{"odd", writable, 0, 100, false},
		{"at an odd place", writable, 8, 512, false},
		{"beyond the end", writable, 4*mib - 512, 1024, false},
		{"before the start", writable, ^uint64(511), 512, false},
		{"so long that sums wrap", writable, 512, 1<<63 - 512, false},
		{"write without the right", readable, 0, 512, true},
		{"read without the right", blind, 0, 512, false},
		{"write without the right to read", blind, 0, 512, true},
	} {
		var work *rdma.WorkError
		if _, err := c.u.qp.(rdma.Mapper).Map(c.u.e.Base+c.off, c.n, c.write); !errors.As(err, &work) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	readable.mapped(0, 512, false).Unmap()
	for _, u := range []*user{writable, readable} {
		if c := u.do(rdma.Work{Op: rdma.OpFlush}); c.Status != rdma.StatusOK {
			t.Errorf("after what was refused: %+v", c)
		}
	}

	file := newDivided(t, newFile(t, storeSize, false))
	if _, err := use(t, file.dev, "disk/log", 0, nil).qp.(rdma.Mapper).Map(0, 512, false); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a file is mapped: %v", err)
	}
}

// There can be as many mappings as works, and no more.
func TestMapBound(t *testing.T) {
	d := newDivided(t, newMemory(t, storeSize))
	u := use(t, d.dev, "disk/log", 0, nil)
	var ms []*rdma.Mapping
	for range 256 {
		ms = append(ms, u.mapped(0, 512, true))
	}
	if _, err := u.qp.(rdma.Mapper).Map(u.e.Base, 512, false); !errors.Is(err, rdma.ErrFull) {
		t.Error(err)
	}
	ms[0].Unmap()
	ms[0].Unmap() // nothing
	ms[0] = u.mapped(0, 512, false)
	if _, err := u.qp.(rdma.Mapper).Map(u.e.Base, 512, false); !errors.Is(err, rdma.ErrFull) {
		t.Error(err)
	}
	for _, m := range ms {
		m.Unmap()
	}
}

// A partition that is given up asks for what is mapped, and waits until it is given back. The mapping outlives its
// queue pair.
func TestMapKeepsThePartition(t *testing.T) {
	for name, end := range map[string]func(d *divided, u *user){
		"change": func(*divided, *user) {},
		"change, then close": func(_ *divided, u *user) {
			if err := u.qp.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDivided(t, newMemory(t, storeSize))
			u := use(t, d.dev, "disk/log", 0, nil)
			ms := []*rdma.Mapping{u.mapped(0, mib, true), u.mapped(mib, mib, false)}
			stopped := make(chan struct{})
			go func() { d.stop(); close(stopped) }()
			for _, m := range ms {
				<-m.Recalled
			}
			if _, err := u.qp.(rdma.Mapper).Map(0, 512, false); !errors.Is(err, rdma.ErrDisconnected) {
				t.Errorf("something is mapped after the change: %v", err)
			}
			end(d, u)
			for i, m := range ms {
				m.Bytes[0] = byte(i + 1)
				if _, err := d.set.View("log"); err == nil {
					t.Fatal("the partition is closed while it is mapped")
				}
				select {
				case <-stopped:
					t.Fatal("the change does not wait")
				default:
				}
				m.Unmap()
			}
			<-stopped
			if err := d.set.Delete(partition.Any, "log", false); err != nil {
				t.Error(err)
			}
		})
	}
}

// The end of a connection asks for what is mapped; until that is given back the device cannot be closed.
func TestMapOutlivesTheConnection(t *testing.T) {
	for name, end := range map[string]func(rdma.QueuePair){
		"Disconnect": rdma.QueuePair.Disconnect,
		"Abort":      func(q rdma.QueuePair) { q.Abort(nil) },
		"Close":      func(q rdma.QueuePair) { _ = q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDivided(t, newMemory(t, storeSize))
			u := use(t, d.dev, "disk/log", 0, nil)
			m := u.mapped(0, mib, true)
			if recalled(m) {
				t.Error("it is asked for at once")
			}
			end(u.qp)
			<-m.Recalled
			m.Bytes[0] = 1
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Error(err)
				}
			}
			must(u.qp.Close())
			must(u.cq.Close())
			if d.dev.Close() == nil {
				t.Error("the device is closed while something is mapped")
			}
			m.Unmap()
			must(d.dev.Close())
			d.stop()
		})
	}
}
