package mirror

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// named is a store with an identity, and perhaps those that it has with older kernels.
type named struct {
	backend.Store
	ids []backend.Identity
}

func (n named) Identities() []backend.Identity { return n.ids }

// named has the disks of two nodes have identities, which can be changed.
func (l *lab) named() []backend.Identity {
	ids := []backend.Identity{"a", "b"}
	l.wrap = func(s backend.Store) backend.Store {
		if s == l.nodes[0].disk {
			return named{s, ids[:1]}
		}
		return named{s, ids[1:]}
	}
	return ids
}

// written has the primary write want, and waits until no region is set any more.
func (l *lab) written(p *node, want []byte) {
	l.t.Helper()
	l.write(p, 64<<10, want)
	time.Sleep(time.Minute)
}

// returns kills the primary b, exchanges its disk, and has all copies level again: with a alive meanwhile, or after both
// have lost their power. b comes first, so it would serve if it could. Then it becomes the primary, and has want.
func (l *lab) returns(powerCut bool, exchange func(b *node), want []byte) {
	l.t.Helper()
	a, b := l.nodes[0], l.nodes[1]
	b.cutPower(nil, 0)
	if powerCut {
		a.cutPower(nil, 0)
	} else {
		l.await(a, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
		l.expect(a, 64<<10, want)
	}
	exchange(b)
	b.start()
	time.Sleep(10 * time.Second)
	if s := b.mirror.State(); s.Role == replica.Primary {
		l.t.Fatalf("a disk that is unknown is a source: %+v", s)
	}
	if d := b.doubt(); powerCut && (d == nil || d.Taken) {
		l.t.Errorf("while no other node is there its status says %+v of the disk", d)
	}
	if powerCut {
		a.start()
	}
	l.level(a)
	l.expect(a, 64<<10, want)
	a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
	l.level(b)
	l.expect(b, 64<<10, want)
	if d := b.doubt(); d != nil {
		l.t.Errorf("the copy is in sync, and its status says %+v of the disk", d)
	}
	b.kill()
	if meta := b.metadata(); meta.saved.Unknown || meta.disk != string(backend.IdentityOf(l.wrap(b.disk))) {
		l.t.Errorf("the disk has been brought level, and the metadata are of disk %q, unknown: %v", meta.disk, meta.saved.Unknown)
	}
	b.start()
	l.level(l.primary())
}

// doubt returns what the status of a node says of its disk.
func (n *node) doubt() *Doubt {
	s, _ := n.mirror.Status()
	return s.Doubt
}

// metadata are those that a node which is down has on its disk.
func (n *node) metadata() *metadata {
	n.lab.t.Helper()
	m, err := openMetadata(&files{m: maps.Clone(n.files.m)})
	if err != nil {
		n.lab.t.Fatal(err)
	}
	return m
}

// TestOtherDisk: another disk beside the metadata is no source, and is brought level in whole.
func TestOtherDisk(t *testing.T) {
	for _, powerCut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			ids := l.named()
			l.begin()
			defer l.end()
			l.nodes[0].mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
			l.level(l.nodes[1])
			want := bytesOf(128<<10, 1)
			l.written(l.nodes[1], want)
			l.returns(powerCut, func(b *node) { b.disk, ids[1] = backendtest.NewDisk(l.size, 512), "another" }, want)
		})
	}
}

// TestDiskSetBack: a disk that was set back to a snapshot is no source, and is brought level in whole.
func TestDiskSetBack(t *testing.T) {
	for _, powerCut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			l.wrap = func(s backend.Store) backend.Store { return s }
			l.begin()
			defer l.end()
			b := l.nodes[1]
			l.nodes[0].mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
			l.level(b)
			l.written(b, bytesOf(128<<10, 1))
			shot := b.disk.Crash(nil, 0)
			want := bytesOf(128<<10, 2)
			l.written(b, want)
			l.returns(powerCut, func(b *node) { b.disk = backendtest.DiskOf(shot, 512) }, want)
		})
	}
}

// TestSetBackStays: a disk that was set back stays unknown in the next life, though its sample is right by then.
func TestSetBackStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		shot := b.disk.Crash(nil, 0)
		want := bytesOf(128<<10, 1)
		l.written(a, want)
		a.kill()
		b.kill()
		samples := b.metadata().samples
		b.disk = backendtest.DiskOf(shot, 512)
		b.start()
		time.Sleep(time.Second)
		b.kill()
		for _, x := range samples { // as a primary that has begun to bring it level leaves it
			at := want[x.off-64<<10:][:x.n]
			if err := backendtest.Do(b.disk, &backend.Op{Kind: backend.Write, Off: x.off, Len: x.n, Segs: [][]byte{at}, Flags: backend.FUA}); err != nil {
				t.Fatal(err)
			}
		}
		if len(samples) == 0 || !b.metadata().saved.Unknown {
			t.Errorf("the disk is known again; samples: %v", samples)
		}
		b.start()
		time.Sleep(10 * time.Second)
		if d := b.doubt(); d == nil || d.Was != d.Found || d.Taken {
			t.Errorf("the status says %+v of the disk", d)
		}
		a.start()
		l.level(a)
		a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
		l.level(b)
		l.expect(b, 64<<10, want)
	})
}

// TestOnlyOtherDisk: if the only copy in sync is on another disk the set is held, and it goes on with the right one.
func TestOnlyOtherDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1)
		id := []backend.Identity{"right"}
		l.wrap = func(s backend.Store) backend.Store { return named{s, id} }
		l.begin()
		defer l.end()
		n := l.nodes[0]
		want := bytesOf(128<<10, 1)
		l.written(n, want)
		n.kill()
		mark := n.metadata().saved.Mark
		right := n.disk
		n.disk, id = backendtest.NewDisk(l.size, 512), []backend.Identity{"wrong", "wrong with an older kernel"}
		n.start()
		time.Sleep(time.Minute)
		if s := n.mirror.State(); s.Role == replica.Primary {
			t.Fatalf("a disk that is unknown is a source: %+v", s)
		}
		if d := n.doubt(); d == nil || *d != (Doubt{Was: "right", Found: "wrong"}) {
			t.Errorf("the status says %+v of the disk", d)
		}
		n.kill()
		if now := n.metadata().saved.Mark; now != mark || mark == 0 {
			t.Errorf("the mark is %d, and was %d", now, mark)
		}
		n.disk, id = right, []backend.Identity{"right"}
		n.start()
		l.level(n)
		l.expect(n, 64<<10, want)
	})
}

// TestDiskOfOlderKernel: a newer kernel gives the disk another name, and knows the one that it had. The copy is the only one, and goes on; an atomic write
// that was under way is completed, but not one from before an older kernel has had the copy brought level: it did not know the name of the newer one.
func TestDiskOfOlderKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1)
		ids := []backend.Identity{"older"}
		l.wrap = func(s backend.Store) backend.Store { return named{s, ids} }
		l.begin()
		defer l.end()
		n := l.nodes[0]
		restart := func(pending string, list []whole, now ...backend.Identity) {
			n.kill()
			if j := (journal{fsys: n.files, disk: pending}); list != nil {
				if err := j.save(list); err != nil {
					t.Fatal(err)
				}
				j.close()
			}
			ids = now
			n.start()
		}
		goesOn := func(pending string, list []whole, now ...backend.Identity) {
			restart(pending, list, now...)
			l.level(n)
			if d := n.doubt(); d != nil {
				t.Errorf("with the names %q the status says %+v of the disk", now, d)
			}
			if disk, list, err := pendingIn(n.files); err != nil || len(list) > 0 {
				t.Errorf("with the names %q the journal has %d writes of disk %s, %v", now, len(list), disk, err)
			}
		}
		want, stale := bytesOf(128<<10, 1), bytesOf(4096, 2)
		l.written(n, want)
		goesOn("newer", []whole{{64 << 10, stale}}, "newer", "older")
		l.expect(n, 64<<10, want)
		goesOn("", nil, "newer", "older") // it does not come back, either
		l.expect(n, 64<<10, want)
		goesOn("newer", []whole{{0, stale}}, "newer")
		l.expect(n, 0, stale)

		goesOn("newer", []whole{{8192, stale}}, "newest", "newer")
		l.expect(n, 8192, stale)
		restart("", nil, "newer")
		synctest.Wait()
		if d := n.doubt(); d == nil || *d != (Doubt{Was: "newest", Found: "newer"}) {
			t.Errorf("with an older kernel, which does not tell the name that was kept, the status says %+v of the disk", d)
		}
		goesOn("", nil, "newest", "newer")
		l.expect(n, 64<<10, want)
	})
}

// TestSampleDropped: a region that is set again has no sample, for nobody knows what a power cut leaves of it: the disk
// is the right one whatever that is.
func TestSampleDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1)
		l.begin()
		defer l.end()
		n := l.nodes[0]
		l.written(n, bytesOf(128<<10, 1))
		synctest.Wait() // samples are read meanwhile
		var once sync.Once
		n.disk.After = func(op *backend.Op) {
			if op.Kind == backend.Write {
				once.Do(func() {
					if err := backendtest.Do(n.disk, &backend.Op{Kind: backend.Flush}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		want := bytesOf(128<<10, 2)
		l.write(n, 64<<10, want)
		time.Sleep(time.Second) // the disk has it, and the region is set
		n.cutPower(nil, 0)
		n.start()
		l.level(n)
		l.expect(n, 64<<10, want)
	})
}

// stopped is a directory whose steps end after some.
type stopped struct {
	*files
	steps int // that still succeed
}

var errStopped = errors.New("stopped")

func (s *stopped) next() error {
	if s.steps--; s.steps < 0 {
		return errStopped
	}
	return nil
}

func (s *stopped) Create(name string) (quorum.File, error) {
	if err := s.next(); err != nil {
		return nil, err
	}
	f, err := s.files.Create(name)
	return stoppedFile{f, s}, err
}

func (s *stopped) Rename(from, to string) error {
	if err := s.next(); err != nil {
		return err
	}
	return s.files.Rename(from, to)
}

func (s *stopped) SyncDir() error {
	if err := s.next(); err != nil {
		return err
	}
	return s.files.SyncDir()
}

type stoppedFile struct {
	quorum.File
	s *stopped
}

func (f stoppedFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.s.next(); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.File.WriteAt(b, off)
}

func (f stoppedFile) Sync() error {
	if err := f.s.next(); err != nil {
		return err
	}
	return f.File.Sync()
}

// TestKnownAtEveryStep: a save that makes the disk known is stopped at each of its steps, with and without a power cut.
// The disk is unknown and the metadata are those of before, or it is known and all of its regions are set. Tried again
// the save succeeds.
func TestKnownAtEveryStep(t *testing.T) {
	known := saving{Save: replica.Save{Known: true, Bitmaps: new([16]replica.Bits), View: replica.View{Version: 3}}}
	ended := false
	for step := 0; !ended; step++ {
		for _, exchanged := range []bool{false, true} {
			for _, powerCut := range []bool{false, true} {
				fsys := &stopped{newFiles(), 1 << 30}
				m, err := createMetadata(fsys, "old", replica.Saved{Unknown: !exchanged})
				if err != nil {
					t.Fatal(err)
				}
				if exchanged {
					m.found = "new"
				}
				if err := m.save(&saving{Save: replica.Save{Set: []int{0, 1}}, samples: []sample{{region: 7, n: 1}}}); err != nil {
					t.Fatal(err)
				}
				now := known
				fsys.steps = step
				err = m.save(&now)
				ended = err == nil
				again := &files{m: fsys.m, durable: fsys.durable}
				if powerCut {
					again.cutPower()
				}
				n, openErr := openMetadata(again)
				if openErr != nil {
					t.Fatalf("step %d: %v", step, openErr)
				}
				isKnown := n.saved.View.Version == 3
				if ended && !isKnown {
					t.Fatalf("step %d: the save has succeeded, and is lost", step)
				}
				disk := "old"
				if isKnown && exchanged {
					disk = "new"
				}
				if n.disk != disk || n.saved.Unknown != (!isKnown && !exchanged) || (len(n.samples) > 0) == isKnown || n.saved.Regions.Len() != 2 {
					t.Fatalf("step %d, exchanged %v, power cut %v: known %v, disk %q, %+v, samples %v", step, exchanged, powerCut, isKnown, n.disk, n.saved, n.samples)
				}
				fsys.steps = 1 << 30
				if err := m.save(&now); err != nil || m.disk != m.found || m.saved.Unknown {
					t.Fatalf("step %d, again: %v", step, err)
				}
			}
		}
	}
}

// TestSamples: they are there in the next life; of a region there is one, and none while it is set; the newest stay.
func TestSamples(t *testing.T) {
	f := newFiles()
	m, err := createMetadata(f, "disk", replica.Saved{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxSamples + 2 {
		s := &saving{samples: []sample{{region: i, off: int64(i) << 20, n: 4096, sum: uint32(i)}}}
		for range 2 {
			if err := m.save(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := m.save(&saving{Save: replica.Save{Set: []int{5}}}); err != nil {
		t.Fatal(err)
	}
	var want []sample
	for i := 2; i < maxSamples+2; i++ {
		if i != 5 {
			want = append(want, sample{region: i, off: int64(i) << 20, n: 4096, sum: uint32(i)})
		}
	}
	for range 2 { // by records, and by the first one
		f.cutPower()
		m, err := openMetadata(f)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.samples, want) {
			t.Fatalf("%v, want %v", m.samples, want)
		}
	}
}
