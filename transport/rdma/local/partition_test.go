package local_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/device"
	"oneshot/backend/file"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/volume"
)

const (
	mib       = 1 << 20
	storeSize = 8 * mib
)

// stores are those that a partition may be of.
var stores = map[string]func(testing.TB) backend.Store{
	"memory": func(t testing.TB) backend.Store { return newMemory(t, storeSize) },
	"file": func(t testing.TB) backend.Store {
		s, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "store"), Size: storeSize, Sparse: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	"device": func(t testing.TB) backend.Store {
		s, err := device.Open(device.Config{Path: backendtest.NewLoop(t, storeSize, 512).Path})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
}

// divided is a store with three partitions, of which the middle one is opened.
type divided struct {
	t     testing.TB
	store backend.Store
	set   *partition.Set
	dev   *local.Device

	mu     sync.Mutex
	volume *volume.Volume
	gone   []func(error)
	open   sync.WaitGroup // endpoints
}

func newDivided(t testing.TB, s backend.Store) *divided {
	t.Helper()
	set, err := partition.Init(s, false)
	if err == nil {
		_, err = set.Create(partition.Any,
			partition.New{Name: "before", Size: mib, Offset: mib},
			partition.New{Name: "log", Size: 4 * mib, Offset: 2 * mib},
			partition.New{Name: "behind", Size: mib, Offset: 6 * mib})
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &divided{t: t, store: s, set: set}
	d.dev = local.Open(local.Config{Open: d.opens})
	d.serve()
	t.Cleanup(func() {
		d.stop()
		if err := errors.Join(d.dev.Close(), set.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// serve opens the partition.
func (d *divided) serve() {
	d.t.Helper()
	view, err := d.set.View("log")
	if err != nil {
		d.t.Fatal(err)
	}
	v, err := volume.New(volume.Config{Store: view})
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	d.volume = v
	d.mu.Unlock()
}

// stop ends all endpoints and closes the partition.
func (d *divided) stop() {
	d.mu.Lock()
	gone, v := d.gone, d.volume
	d.gone, d.volume = nil, nil
	d.mu.Unlock()
	for _, f := range gone {
		f(errChanged)
	}
	d.open.Wait()
	if v != nil {
		if err := v.Close(); err != nil {
			d.t.Error(err)
		}
	}
}

func (d *divided) opens(_ context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volume == nil {
		return local.Opened{}, rdma.ErrNoEndpoint
	}
	if want == 0 {
		want = rdma.AllRights
	}
	d.gone = append(d.gone, gone)
	h := d.volume.Open(func() {})
	d.open.Add(1)
	return local.Opened{
		Medium: h, Memory: d.volume.Lends(), Close: func() { h.Close(); d.open.Done() },
		Info: rdma.Endpoint{Name: name, Rights: want, Durability: rdma.DurabilityMedium},
	}, nil
}

// at reads and writes the store itself, without its partitions.
func (d *divided) at(kind backend.Kind, off int64, b []byte) {
	d.t.Helper()
	if err := backendtest.Do(d.store, &backend.Op{Kind: kind, Off: off, Len: int64(len(b)), Segs: [][]byte{b}}); err != nil {
		d.t.Fatal(err)
	}
}

// The suite on stores of all kinds, behind partitions; and the octets of the neighbours never change.
func TestPartitionsApart(t *testing.T) {
	for name, make := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // files and devices wait for the disk
			rdmatest.RunStore(t, func(t *testing.T) rdmatest.Endpoint {
				d := newDivided(t, make(t))
				for _, off := range []int64{mib, 6 * mib} {
					d.at(backend.Write, off, bytes.Repeat([]byte{0xcc}, mib))
				}
				t.Cleanup(func() {
					b := bytes.Repeat([]byte{0}, mib)
					for _, off := range []int64{mib, 6 * mib} {
						if d.at(backend.Read, off, b); !bytes.Equal(b, bytes.Repeat([]byte{0xcc}, mib)) {
							t.Error("octets of a neighbour have changed")
						}
					}
				})
				return rdmatest.Endpoint{Device: d.dev, Address: "disk/log", Quick: true}
			})
		})
	}
}

// A partition is made smaller, or deleted, while works are under way: the queue pairs end, and after the change
// nothing reaches the octets that were given up.
func TestChangeUnderLoad(t *testing.T) {
	size := int64(mib)
	for name, change := range map[string]func(*partition.Set) error{
		"ShrinkUnderLoad": func(s *partition.Set) error { return s.Alter(partition.Any, "log", partition.Change{Size: &size}) },
		"DeleteUnderLoad": func(s *partition.Set) error { return s.Delete(partition.Any, "log", true) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDivided(t, newFile(t, storeSize, true)) // operations outlive Submit
			var load sync.WaitGroup
			posted := make(chan struct{}, 4)
			for i := range 4 {
				u := use(t, d.dev, "disk/log", orders[i], nil)
				for k := range u.buf {
					u.buf[k] = 0xee
				}
				load.Go(func() { u.writeUntilTheEnd(posted) })
			}
			for range 4 {
				<-posted
			}
			if err := change(d.set); err == nil {
				t.Error("the partition is changed while it is in use")
			}
			d.stop()
			if err := change(d.set); err != nil {
				t.Fatal(err)
			}
			mark := bytes.Repeat([]byte{0x11}, 3*mib)
			d.at(backend.Write, 3*mib, mark)
			load.Wait()
			b := bytes.Clone(mark)
			if d.at(backend.Read, 3*mib, b); !bytes.Equal(b, mark) {
				t.Error("a work has reached what was given up")
			}
			if name == "ShrinkUnderLoad" {
				d.serve()
				if u := use(t, d.dev, "disk/log", 0, nil); u.e.Size != mib {
					t.Errorf("the partition has %d bytes", u.e.Size)
				}
			}
		})
	}
}

// writeUntilTheEnd keeps works under way until the queue pair ends: each of them completes well, or because of
// that. It says when the first has completed.
func (u *user) writeUntilTheEnd(begun chan<- struct{}) {
	at, out := 0, 0
	var cs [16]rdma.Completion
	for ended := false; !ended || out > 0; {
		for !ended && out < 16 {
			at = (at + 7919*512) % (4*mib - 4096)
			w := rdma.Work{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: u.sge(0, 4096), RemoteSTag: u.e.STag, RemoteOffset: uint64(at) &^ 511}
			if _, err := u.qp.Post([]rdma.Work{w}); errors.Is(err, rdma.ErrDisconnected) {
				ended = true
			} else if err != nil {
				u.t.Error(err)
				return
			} else {
				out++
			}
		}
		n := u.cq.Poll(cs[:])
		out -= n
		for _, c := range cs[:n] {
			if c.Status == rdma.StatusOK && begun != nil {
				begun <- struct{}{}
				begun = nil
			}
			if c.Status != rdma.StatusOK && c.Status != rdma.StatusRemoteAccess && c.Status != rdma.StatusFlushed {
				u.t.Errorf("%+v", c)
			}
		}
	}
}

// The processor copies data to and from memory once. For files and devices the kernel copies, or the device does.
func TestCopies(t *testing.T) {
	for name, c := range map[string]struct {
		store  func(testing.TB) backend.Store
		copies uint64 // of a work
	}{
		"memory":           {stores["memory"], 1},
		"file, page cache": {stores["file"], 0},
		"file, direct":     {func(t testing.TB) backend.Store { return newFile(t, storeSize, true) }, 0},
		"device":           {stores["device"], 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDivided(t, c.store(t))
			u := use(t, d.dev, "disk/log", 0, nil)
			const n = 8
			for i := range n {
				for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead} {
					if done := u.do(rdma.Work{Op: op, SGL: u.sge(0, 4096), RemoteOffset: uint64(4096 * i)}); done.Status != rdma.StatusOK {
						t.Fatalf("%+v", done)
					}
				}
				for _, w := range []rdma.Work{{Op: rdma.OpFlush}, {Op: rdma.OpDiscard, Length: 4096}} {
					if done := u.do(w); done.Status != rdma.StatusOK {
						t.Fatalf("%+v", done)
					}
				}
			}
			if k := u.qp.Counters(); k.Copies != 2*n*c.copies || k.BytesCopied != 2*n*4096*c.copies {
				t.Errorf("%d copies of %d bytes, want %d for each of %d works", k.Copies, k.BytesCopied, c.copies, 2*n)
			}
		})
	}
}

// A partition is not given up before an operation that is under way in the store has ended, however long that takes.
func TestChangeWaits(t *testing.T) {
	s := rdmatest.NewVolatile(storeSize, 1)
	d := newDivided(t, s)
	u := use(t, d.dev, "disk/log", 0, nil)
	await, release := s.Hold(func(op *backend.Op) bool { return op.Kind == backend.Write && op.Off == 5*mib })
	defer release()
	w := rdma.Work{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: u.sge(0, 4096), RemoteSTag: u.e.STag, RemoteOffset: 3 * mib}
	if _, err := u.qp.Post([]rdma.Work{w}); err != nil {
		t.Fatal(err)
	}
	await(1)
	stopped := make(chan struct{})
	go func() { d.stop(); close(stopped) }()
	for range 200_000 {
		if _, err := d.set.View("log"); err == nil {
			t.Fatal("the partition is closed while the store writes to it")
		}
		runtime.Gosched()
	}
	release()
	<-stopped
	if err := d.set.Delete(partition.Any, "log", false); err != nil {
		t.Error(err)
	}
}
