package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
)

// steps counts what is done to disks and files, and has the power go before one of these.
type steps struct {
	mu  sync.Mutex
	n   int
	at  int // the step before which the power goes; 0: never
	cut func()
}

func (s *steps) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n == s.at {
		s.cut()
	}
}

// countedDisk is a disk whose operations are steps. broken has a write leave only its first sectors, and fail.
type countedDisk struct {
	*backendtest.Disk
	steps  *steps
	broken func(op *backend.Op) bool
}

func (d *countedDisk) Submit(op *backend.Op) bool {
	d.steps.step()
	if d.broken == nil || op.Kind != backend.Write || !d.broken(op) {
		return d.Disk.Submit(op)
	}
	half := backend.Op{Kind: op.Kind, Flags: op.Flags, Off: op.Off, Len: op.Len / 2, Segs: [][]byte{op.Segs[0][:op.Len/2]}}
	d.Disk.Submit(&half)
	op.Err = &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errDisk}
	return true
}

// countedFiles are files whose operations are steps.
type countedFiles struct {
	*files
	steps *steps
}

func (f countedFiles) Create(name string) (quorum.File, error) {
	f.steps.step()
	file, err := f.files.Create(name)
	return countedFile{file, f.steps}, err
}

func (f countedFiles) Rename(from, to string) error { f.steps.step(); return f.files.Rename(from, to) }
func (f countedFiles) SyncDir() error               { f.steps.step(); return f.files.SyncDir() }

type countedFile struct {
	quorum.File
	steps *steps
}

func (f countedFile) WriteAt(b []byte, off int64) (int, error) {
	f.steps.step()
	return f.File.WriteAt(b, off)
}
func (f countedFile) Sync() error { f.steps.step(); return f.File.Sync() }

// afterCut returns what a power cut leaves of files: of what was not synced any sectors.
func (f *files) afterCut(r *rand.Rand) *files {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := newFiles()
	for name, c := range f.durable {
		b := append(slices.Clone(c.ok), make([]byte, max(0, len(c.b)-len(c.ok)))...)
		for at := 0; at < len(c.b); at += 512 {
			if r.IntN(2) == 0 {
				copy(b[at:], c.b[at:min(at+512, len(c.b))])
			}
		}
		left.m[name] = &file{fs: left, b: b, ok: slices.Clone(b)}
	}
	_ = left.SyncDir()
	return left
}

const wholeLen = 4096

func same(b byte) []byte { return bytes.Repeat([]byte{b}, wholeLen) }

// journalScript is a life of a copy with atomic writes at 0, 8192 and 16384, some of which the disk refuses half-way. may has what a later
// life may find at each place: the byte of which all of it consists. A place that is not there may have anything.
func journalScript(t *testing.T, disk *countedDisk, fsys quorum.FS, may map[int64][]byte) {
	t.Helper()
	m := &Mirror{opts: Options{Copy: disk}, journal: journal{fsys: fsys, disk: "x"}}
	do := func(works ...*work) (errs []error) {
		m.journaling.queue = append(m.journaling.queue, works...)
		for {
			works := m.journaling.next()
			if len(works) == 0 {
				break
			}
			m.doJournaled(works)
		}
		for _, w := range works {
			errs = append(errs, w.op.Err)
		}
		return errs
	}
	atomic := func(off int64, b byte) *work {
		if list, is := may[off]; is {
			may[off] = append(list, b)
		}
		return &work{op: backend.Op{Kind: backend.Write, Flags: backend.Atomic, Off: off, Len: wholeLen}, segs: [1][]byte{same(b)}}
	}
	ends := func(off int64, b byte) { may[off] = []byte{b} }
	expect := func(what string, got []error, want ...bool) {
		t.Helper()
		for i := range want {
			if (got[i] == nil) != want[i] {
				t.Errorf("%s: work %d ends with %v", what, i, got[i])
			}
		}
	}
	for off := range may {
		ends(off, 0)
	}
	refuses := func(off int64) { disk.broken = func(op *backend.Op) bool { return op.Off == off } }
	refusesByte := func(b byte) { disk.broken = func(op *backend.Op) bool { return op.Segs[0][0] == b } }

	expect("two together", do(atomic(0, 1), atomic(8192, 1)), true, true)
	ends(0, 1)
	ends(8192, 1)
	expect("again", do(atomic(0, 2), atomic(16384, 2)), true, true)
	ends(0, 2)
	ends(16384, 2)
	refuses(8192)
	expect("refused", do(atomic(8192, 3)), false)
	expect("elsewhere", do(atomic(0, 4)), true)
	ends(0, 4)
	disk.broken = nil
	expect("asked for again", do(atomic(8192, 3)), true)
	ends(8192, 3)
	refuses(8192)
	expect("refused, and another one not", do(atomic(8192, 5), atomic(0, 5)), false, true)
	ends(0, 5)
	disk.broken = nil
	delete(may, 8192) // given up: something else is about to come
	plain := &work{op: backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: 8192, Len: wholeLen, Segs: [][]byte{same(6)}}}
	expect("overwritten", do(plain), true)
	ends(8192, 6)
	refuses(16384)
	expect("refused", do(atomic(16384, 7)), false)
	disk.broken = nil
	expect("completed beside another one", do(atomic(0, 7)), true)
	ends(0, 7)
	ends(16384, 7)
	refusesByte(9)
	expect("refused", do(atomic(0, 9)), false)
	delete(may, 0) // given up
	expect("another one instead", do(atomic(0, 10)), true)
	ends(0, 10)
	disk.broken = nil
	expect("the last", do(atomic(8192, 8)), true)
	ends(8192, 8)
	if len(m.journal.kept) != 0 {
		t.Errorf("the journal keeps %d writes at the end", len(m.journal.kept))
	}
}

// TestJournalCrash: wherever the power goes in that life, the next one finds all of an atomic write, or nothing.
func TestJournalCrash(t *testing.T) {
	for at := 1; ; at++ {
		reached := false
		for seed := range uint64(rounds.Of(8, 2)) {
			r := rand.New(rand.NewPCG(seed, uint64(at)))
			may := map[int64][]byte{0: nil, 8192: nil, 16384: nil}
			disk, fsys := backendtest.NewDisk(32<<10, 512), newFiles()
			var image []byte
			var left *files
			found := map[int64][]byte{}
			s := &steps{at: at}
			s.cut = func() {
				reached = true
				image, left = disk.Crash(r, []float64{0, 0.5, 1}[r.IntN(3)]), fsys.afterCut(r)
				for off, list := range may {
					found[off] = slices.Clone(list)
				}
			}
			journalScript(t, &countedDisk{Disk: disk, steps: s}, countedFiles{fsys, s}, may)
			if image == nil {
				continue
			}
			next := backendtest.DiskOf(image, 512)
			j := journal{fsys: left, disk: "x"}
			if err := j.complete(next); err != nil {
				t.Fatalf("step %d, seed %d: %v", at, seed, err)
			}
			for off, list := range found {
				got := make([]byte, wholeLen)
				if err := do(next, backend.Op{Kind: backend.Read, Off: off, Len: wholeLen, Segs: [][]byte{got}}); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, same(got[0])) || !slices.Contains(list, got[0]) {
					t.Fatalf("step %d, seed %d: at %d there is %d … %d, and it may be %d", at, seed, off, got[0], got[wholeLen-1], list)
				}
			}
			if _, list, err := pendingIn(left); len(list) > 0 || err != nil {
				t.Fatalf("step %d, seed %d: after it was completed the journal has %d writes, %v", at, seed, len(list), err)
			}
		}
		if !reached {
			if at < 60 {
				t.Errorf("there were only %d steps", at)
			}
			return
		}
	}
}

// TestJournalOfAnother: what was begun on another disk is not written to this one, and what cannot be written is told.
func TestJournalOfAnother(t *testing.T) {
	fsys := newFiles()
	j := journal{fsys: fsys, disk: "x"}
	if err := j.save([]whole{{4096, same(9)}}); err != nil {
		t.Fatal(err)
	}
	other := backendtest.NewDisk(1<<20, 512)
	if err := (&journal{fsys: fsys, disk: "y"}).complete(other); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, wholeLen)
	if err := do(other, backend.Op{Kind: backend.Read, Off: 4096, Len: wholeLen, Segs: [][]byte{got}}); err != nil || !bytes.Equal(got, same(0)) {
		t.Errorf("the other disk has %d at 4096, %v", got[0], err)
	}
	broken := &countedDisk{Disk: other, steps: &steps{}, broken: func(*backend.Op) bool { return true }}
	if err := (&journal{fsys: fsys, disk: "x"}).complete(broken); !errors.Is(err, errDisk) {
		t.Errorf("a disk that cannot complete the write: %v", err)
	}
	if _, list, _ := pendingIn(fsys); len(list) != 1 {
		t.Errorf("%d writes are pending, not 1", len(list))
	}
}

// TestAtomicWrites: hosts write at once, the power of both nodes goes, and who serves the mirror then has all of each write, or nothing.
func TestAtomicWrites(t *testing.T) {
	for seed := range uint64(rounds.Of(24, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { atomicWrites(t, seed) })
		})
	}
}

func atomicWrites(t *testing.T, seed uint64) {
	const places, length = 4, 256 << 10
	r := rand.New(rand.NewPCG(seed, 4))
	l := newLab(t, 2)
	s := &steps{}
	l.wrap = func(store backend.Store) backend.Store {
		return &countedDisk{Disk: store.(*backendtest.Disk), steps: s}
	}
	l.begin()
	a := l.nodes[0]
	if most := a.mirror.MaxAtomic(); most != maxPiece {
		t.Errorf("atomic writes have at most %d bytes", most)
	}
	large := backend.Op{Kind: backend.Write, Flags: backend.Atomic, Len: maxPiece + 512, Segs: [][]byte{make([]byte, maxPiece+512)}}
	if err := l.do(a, large); err == nil {
		t.Error("a write that is too large is taken")
	}
	for at := range int64(places) {
		l.write(a, at*length, bytes.Repeat([]byte{1}, length))
	}
	l.flush(a)
	var images [2][]byte
	var left [2]*files
	chance := []float64{0.2, 0.5, 0.8}[r.IntN(3)]
	s.mu.Lock()
	s.at, s.cut = s.n+1+r.IntN(30), func() {
		for i, n := range l.nodes {
			images[i], left[i] = n.disk.Crash(r, chance), n.files.afterCut(r)
		}
	}
	s.mu.Unlock()
	for round := byte(2); round < 5; round++ {
		for at := range int64(places) {
			op := backend.Op{Kind: backend.Write, Flags: backend.Atomic, Off: at * length, Len: length, Segs: [][]byte{bytes.Repeat([]byte{round}, length)}}
			if err := l.do(a, op); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.flush(a)
	l.end()
	if images[0] == nil {
		t.Fatalf("the power did not go: there were only %d steps", s.n)
	}
	l.wrap = nil
	for i, n := range l.nodes {
		n.disk, n.files = backendtest.DiskOf(images[i], 512), left[i]
		n.start()
	}
	serves := l.steady()
	for at := range int64(places) {
		got := make([]byte, length)
		if err := l.do(serves, backend.Op{Kind: backend.Read, Off: at * length, Len: length, Segs: [][]byte{got}}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, bytes.Repeat(got[:1], length)) {
			t.Errorf("the write at %d is there in part", at*length)
		}
	}
	l.end()
}

// TestJournalGivenUp: a write that the disk of a copy has refused half-way is given up, and its place gets other bytes from the primary:
// a later life does not bring back what was given up.
func TestJournalGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.tune = func(c *replica.Config) { c.Heap, c.Ring = 1<<20, 64 }
		refuses := false
		l.wrap = func(s backend.Store) backend.Store {
			d := &countedDisk{Disk: s.(*backendtest.Disk), steps: &steps{}}
			if s == l.nodes[1].disk {
				d.broken = func(*backend.Op) bool { l.mu.Lock(); defer l.mu.Unlock(); return refuses }
			}
			return d
		}
		set := func(to bool) { l.mu.Lock(); defer l.mu.Unlock(); refuses = to }
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		set(true)
		if err := l.do(a, backend.Op{Kind: backend.Write, Flags: backend.Atomic, Off: 8192, Len: wholeLen, Segs: [][]byte{same(1)}}); err != nil {
			t.Fatal(err)
		}
		l.alone(a)
		l.setCut(a.id, b.id, true)
		for i := range 200 { // more than the log has room for
			l.write(a, int64(i)*8192, same(byte(i)))
		}
		set(false)
		l.setCut(a.id, b.id, false)
		l.level(a)
		l.flush(a)
		if _, list, err := pendingIn(b.files); len(list) > 0 || err != nil {
			t.Errorf("the copy still keeps %d writes, %v", len(list), err)
		}
		b.kill()
		b.start()
		l.level(a)
		l.end()
	})
}

// fullFiles are files on a disk that is full.
type fullFiles struct{ *files }

func (f fullFiles) Create(string) (quorum.File, error) { return nil, errDisk }

// TestJournalOnFullDisk: an atomic write that the core asks for again and again, because the journal has no room, is in memory once.
func TestJournalOnFullDisk(t *testing.T) {
	disk, fsys := backendtest.NewDisk(32<<10, 512), newFiles()
	m := &Mirror{opts: Options{Copy: disk}, journal: journal{fsys: fullFiles{fsys}, disk: "x"}}
	write := func(off int64, b byte) error {
		w := &work{op: backend.Op{Kind: backend.Write, Flags: backend.Atomic, Off: off, Len: wholeLen}, segs: [1][]byte{same(b)}}
		m.doJournaled([]*work{w})
		return w.op.Err
	}
	for i := range 100 {
		if err := write(int64(i%2)*8192, 1); err == nil {
			t.Fatal("it is written without the journal")
		}
		if n := len(m.journal.kept); n > 2 {
			t.Fatalf("after %d attempts at two writes %d are kept in memory", i+1, n)
		}
	}
	m.journal.fsys = fsys
	if err := write(8192, 2); err != nil {
		t.Fatal(err)
	}
	for at, want := range []byte{1, 2} {
		got := make([]byte, wholeLen)
		if err := do(disk, backend.Op{Kind: backend.Read, Off: int64(at) * 8192, Len: wholeLen, Segs: [][]byte{got}}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, same(want)) {
			t.Errorf("at %d there is %d", at*8192, got[0])
		}
	}
	if len(m.journal.kept) > 0 {
		t.Errorf("%d writes are kept at the end", len(m.journal.kept))
	}
}

// TestJournalTogether: the journal keeps together what comes together, up to 8 MiB.
func TestJournalTogether(t *testing.T) {
	var q journaling
	for range 10 {
		q.queue = append(q.queue, &work{op: backend.Op{Kind: backend.Write, Flags: backend.Atomic, Len: 1 << 20}})
	}
	for _, want := range []int{8, 2, 0} {
		if n := len(q.next()); n != want {
			t.Errorf("%d writes of 1 MiB together, want %d", n, want)
		}
	}
}
