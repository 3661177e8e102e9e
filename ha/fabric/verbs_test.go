//go:build verbs && !guest && cgo && linux

package fabric

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
	"oneshot/transport/rdma/verbs/fake"
)

// These devices stand for the kernel's on machines without RDMA. In a virtual machine with devices, guest_test.go replaces them.
func init() {
	fake.Install()
	for name, c := range map[string]fake.Config{
		"InfiniBand":              {},
		"rxe, no flush":           {Rxe: true, LateFlush: true},
		"iWARP card":              {IWARP: true},
		"siw, late reads, blames": {IWARP: true, Siw: true, LateReads: true, Blames: true},
	} {
		providers[name] = func(t *testing.T) *node { return newNode(t, overFake(t, c), "127.0.0.1:0") }
	}
}

// begun is the test whose device the fake one is.
var begun *testing.T

func overFake(t *testing.T, c fake.Config) rdma.Device {
	t.Helper()
	if begun != t {
		begun = t
		fake.BeginTest(t, c)
	}
	d, err := verbs.Open(verbs.Config{Name: fake.Name, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), LingerTime: time.Hour})
	check(t, err)
	return d
}

// TestCutKeepsQueuePair: Cut does not return while the device has the queue pair of the node that is cut, for which it may place octets.
func TestCutKeepsQueuePair(t *testing.T) {
	a, b := providers["siw, late reads, blames"](t), providers["siw, late reads, blames"](t)
	x, y := link(t, a, b)
	other, third := link(t, a, b)
	a.grants(t, x, y, 7)
	fake.KeepQueuePairs()
	var forgotten atomic.Bool
	cut := make(chan struct{})
	go func() {
		a.Cut()
		if !forgotten.Load() {
			t.Error("Cut does not wait until the queue pair is gone")
		}
		close(cut)
	}()
	fake.AwaitKept()
	check(t, errors.Join(third.Say([]byte("time passes"), time.Minute), third.Commit(time.Minute)))
	if n, err := other.Read(make([]byte, 99)); n != 11 || err != nil {
		t.Errorf("another connection: %d, %v", n, err)
	}
	forgotten.Store(true)
	fake.Forget()
	<-cut
	<-y.gone
	a.close(t, x, other)
	b.close(t, y, third)
}

// TestSinks: over iWARP a node learns the STag to which its octets of a Read go. It is good for nothing but these.
func TestSinks(t *testing.T) {
	a, b := providers["iWARP card"](t), providers["iWARP card"](t)
	x, y := link(t, a, b)
	a.grants(t, x, y, 7)
	fake.HoldReads()
	check(t, y.Fetch(Run{Addr: 8192, Len: 4096, Grant: 7}, func() { t.Error("it was read, over a connection that has ended") }))
	sink := fake.Sinks(4096)[0]
	x.Learn(Key{STag: rdma.STag(sink.STag), Base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))))})
	copy(a.Bytes(), "octets")
	check(t, errors.Join(x.Put(Run{Len: 4096, Grant: 1}, time.Minute), x.Commit(time.Minute)))
	<-x.gone
	<-y.gone
	if !bytes.Equal(b.Bytes(), make([]byte, arenaLen)) {
		t.Error("octets have come beside the sink")
	}
	fake.Release()
	a.close(t, x)
	b.close(t, y)
}

// TestLostDevice: a device that is removed is closed when nobody uses it any more, and nodes meet again when it is back.
func TestLostDevice(t *testing.T) {
	open := func(at string) (rdma.Device, rdma.Listener, error) {
		d, err := verbs.Open(verbs.Config{Name: fake.Name, LingerTime: time.Hour})
		if err != nil {
			return nil, nil, err
		}
		l, err := d.Listen(at)
		return d, l, err
	}
	check(t, overFake(t, fake.Config{IWARP: true}).Close())
	var nodes [2]*node
	for i := range nodes {
		d, l, err := open("127.0.0.1:0")
		check(t, err)
		at := l.Addr().String()
		f, err := New(Config{Device: d, Listener: l, Address: at, Again: func() (rdma.Device, rdma.Listener, error) { return open(at) }})
		check(t, err)
		a, err := f.NewArena(arenaLen, "disk")
		check(t, err)
		nodes[i] = &node{f, a}
	}
	a, b := nodes[0], nodes[1]
	x, y := link(t, a, b)
	lost := [2]*card{a.card, b.card}
	fake.Removal()
	<-x.gone
	<-y.gone
	check(t, errors.Join(x.Release(), y.Release()))
	var back [2]*card
	for i, n := range nodes {
		for back[i] == nil || back[i] == lost[i] {
			runtime.Gosched()
			n.mu.Lock()
			back[i] = n.card
			n.mu.Unlock()
		}
	}
	x, y = link(t, a, b)
	a.grants(t, x, y, 7)
	copy(b.Bytes(), "octets")
	check(t, errors.Join(y.Put(Run{Len: 4096, Grant: 7}, time.Minute), y.Say([]byte("they are there"), time.Minute), y.Commit(time.Minute)))
	if n, err := x.Read(make([]byte, 99)); n != 14 || err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("%d, %v, %q", n, err, a.Bytes()[:6])
	}
	a.close(t, x)
	b.close(t, y)
}

// TestGrantedAgain: who is granted the memory again, and was not cut meanwhile, keeps its connection and its key.
func TestGrantedAgain(t *testing.T) {
	a, b := providers["InfiniBand"](t), providers["InfiniBand"](t)
	x, y := link(t, a, b)
	a.grants(t, x, y, 7)
	a.grants(t, x, y, 8)
	copy(b.Bytes(), "octets")
	for _, number := range []uint64{7, 8} {
		check(t, errors.Join(y.Put(Run{Len: 4096, Grant: number}, time.Minute), y.Say([]byte("they are there"), time.Minute), y.Commit(time.Minute)))
		if n, err := x.Read(make([]byte, 99)); n != 14 || err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%d, %v, %q", n, err, a.Bytes()[:6])
		}
	}
	a.close(t, x)
	b.close(t, y)
}
