package partition

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSet(t testing.TB, d backend.Store) *Set {
	t.Helper()
	s, err := Init(d, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t testing.TB, s *Set, news ...New) []Partition {
	t.Helper()
	made, err := s.Create(Any, news...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func ptr[T any](v T) *T { return &v }

func wants(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// Init does not touch what stands in the first MiB, wherever that is, and Open makes no table.
func TestInitRefuses(t *testing.T) {
	for _, at := range []int{0, 1, 511, slotSize, 2 * slotSize, firstByte - 1} {
		d := newDisk(diskSize)
		d.data[at] = 'X'
		_, err := Init(d, false)
		wants(t, "Init", err, `"X`)
		_, err = Open(d)
		if e, ok := errors.AsType[*NoTableError](err); !ok || e.Blank() != (at >= maxLine && at != slotSize) {
			t.Errorf("Open: %v", err)
		}
		if len(d.last) > 0 || d.data[at] != 'X' {
			t.Errorf("octet %d: it has written", at)
		}
		if s, err := Init(d, true); err != nil || s.Table().Generation != 1 || d.data[at] == 'X' {
			t.Errorf("octet %d: forced: %v", at, err)
		}
	}
	d := newDisk(diskSize)
	d.data[firstByte] = 'X'
	newSet(t, d)
	_, err := Init(d, false)
	wants(t, "a second Init", err, "oneshot partitions 1 1 ")
	if s, err := Init(d, true); err != nil || s.Table().Generation != 2 || d.data[firstByte] != 'X' {
		t.Errorf("a forced one: %v", err)
	}
	_, err = Init(newDisk(firstByte), false)
	wants(t, "a small store", err, "come behind")
}

// The slot with the larger generation is in force, slot A if both are equal, and what is wrong with the other one is
// told.
func TestCurrent(t *testing.T) {
	slot := func(generation uint64, name string) []byte {
		table := &Table{Generation: generation, UUID: newUUID(), Unit: 4096, Size: diskSize, Partitions: []Partition{{UUID: newUUID(), Name: name, Offset: firstByte, Size: 4096}}}
		b, err := table.slot()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		a, b uint64
		want string
	}{{9, 10, "b"}, {10, 9, "a"}, {10, 10, "a"}, {math.MaxUint64, 1, "a"}} {
		d := newDisk(diskSize)
		copy(d.data, slot(c.a, "a"))
		copy(d.data[slotSize:], slot(c.b, "b"))
		s, err := Open(d)
		if err != nil || s.Table().Partitions[0].Name != c.want || s.Other() != nil {
			t.Fatalf("%d, %d: %v, %v", c.a, c.b, err, s)
		}
		if c.a == math.MaxUint64 {
			_, err = s.Create(Any, New{Name: "x", Size: 4096})
			wants(t, "after the last generation", err, "last generation")
			continue
		}
		in := map[string]int{"a": 0, "b": slotSize}[c.want]
		d.data[in+200] ^= 1
		if s, err = Open(d); err != nil || s.Table().Partitions[0].Name == c.want {
			t.Fatalf("damaged: %v", err)
		}
		wants(t, "the other slot", s.Other(), "CRC32C")
	}
}

func TestCreate(t *testing.T) {
	d := newDisk(2 * diskSize)
	s := newSet(t, d)
	made := create(t, s, New{Name: "a", Size: 4096}, New{Name: "b", Size: 8192}, New{Name: "c", Size: 4096, Offset: firstByte + 4096, Cache: &Cache{WriteMS: 5}})
	if made[0].Offset != 1<<20 || made[1].Offset != 2<<20 || s.Table().Generation != 2 || len(s.Table().Partitions) != 3 {
		t.Errorf("%+v", s.Table())
	}
	for _, c := range []struct {
		n    New
		want string
	}{
		{New{Name: "a", Size: 4096}, "already"},
		{New{Name: "A", Size: 4096}, "a name has"},
		{New{Name: "d", Size: 100}, "multiple"},
		{New{Name: "d"}, "multiple"},
		{New{Name: "d", Size: -4096}, "multiple"},
		{New{Name: "d", Size: 8 << 20}, "no free range"},
		{New{Name: "d", Size: 4096, Offset: firstByte}, "overlap"},
		{New{Name: "d", Size: 4096, Offset: 4096}, "begins at"},
		{New{Name: "d", Size: 4096, Offset: 2 * diskSize}, "not within"},
		{New{Name: "d", Size: 4096, Offset: -4096}, "not within"},
		{New{Name: "d", Size: math.MaxInt64 &^ 4095, Offset: 2 << 20}, "not within"},
		{New{Name: "d", Size: 4096, Offset: 3<<20 + 512}, "multiples"},
		{New{Name: "d", Size: 4096, Access: make([]Access, 33)}, "access lines"},
	} {
		_, err := s.Create(Any, New{Name: "ok", Size: 4096}, c.n)
		wants(t, c.n.Name, err, c.want)
	}
	if s.Table().Generation != 2 || len(s.Table().Partitions) != 3 {
		t.Errorf("what was refused has changed the table: %+v", s.Table())
	}
	s, err := Open(d)
	if err != nil || len(s.Table().Partitions) != 3 || s.Table().Find("c").Cache.WriteMS != 5 {
		t.Errorf("opened again: %v, %+v", err, s.Table())
	}
}

func TestIfMatch(t *testing.T) {
	s := newSet(t, newDisk(diskSize))
	if _, err := s.Create(1, New{Name: "a", Size: 4096}); err != nil {
		t.Fatal(err)
	}
	_, create := s.Create(1, New{Name: "b", Size: 4096})
	for what, err := range map[string]error{"create": create, "alter": s.Alter(1, "a", Change{}), "delete": s.Delete(3, "a", false)} {
		if e, ok := errors.AsType[*GenerationError](err); !ok || e.Have != 2 || s.Table().Generation != 2 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Delete(2, "a", false); err != nil || s.Table().Generation != 3 {
		t.Error(err)
	}
}

func TestAlter(t *testing.T) {
	d := newDisk(diskSize)
	s := newSet(t, d)
	create(t, s, New{Name: "a", Size: 4096}, New{Name: "b", Size: 4096})
	for i := firstByte; i < diskSize; i++ {
		d.data[i] = 7
	}
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Size: ptr(int64(0))}, "multiple"},
		{Change{Size: ptr(int64(-4096))}, "multiple"},
		{Change{Size: ptr(int64(5000))}, "multiple"},
		{Change{Size: ptr(int64(1<<20 + 4096))}, "at most 1048576"},
		{Change{Size: ptr(int64(math.MaxInt64 &^ 4095))}, "at most"},
		{Change{Name: ptr("b")}, "two partitions"},
		{Change{Name: ptr("b"), Size: ptr(int64(8192))}, "two partitions"},
		{Change{Name: ptr("")}, "a name has"},
	} {
		wants(t, "alter", s.Alter(Any, "a", c.change), c.want)
	}
	if d.data[firstByte+4096] != 7 || s.Table().Generation != 2 {
		t.Error("what was refused has changed something")
	}
	any, uid := Who{}, Who{kind: whoUID, id: 5}
	err := s.Alter(Any, "a", Change{Name: ptr("n"), Size: ptr(int64(1 << 20)), Cache: &Cache{WriteMS: 9, Through: true}, Grant: []Access{{Who: any, Rights: MayRead}, {Who: uid, Rights: MayWrite}}})
	p := s.Table().Find("n")
	if err != nil || p == nil || p.Size != 1<<20 || p.Cache.WriteMS != 9 || !p.Cache.Through || len(p.Access) != 2 {
		t.Fatalf("%v, %+v", err, p)
	}
	if d.data[firstByte+4095] != 7 || !blankBytes(d.data[firstByte+4096:2<<20]) || d.data[2<<20] != 7 {
		t.Error("growing has to erase what is new, and that alone")
	}
	if err := s.Alter(Any, "n", Change{Grant: []Access{{Who: uid, Rights: MayFlush}}, Revoke: []Who{any}, Size: ptr(int64(4096))}); err != nil {
		t.Fatal(err)
	}
	if p := s.Table().Find("n"); !reflect.DeepEqual(p.Access, []Access{{Who: uid, Rights: MayFlush}}) || p.Size != 4096 {
		t.Errorf("%+v", p)
	}
	if _, ok := errors.AsType[*UnknownError](s.Alter(Any, "a", Change{})); !ok {
		t.Error("the former name is still there")
	}
}

func TestDelete(t *testing.T) {
	d := newDisk(diskSize)
	s := newSet(t, d)
	create(t, s, New{Name: "a", Size: 1 << 20}, New{Name: "b", Size: 1 << 20})
	for i := firstByte; i < diskSize; i++ {
		d.data[i] = 7
	}
	if err := errors.Join(s.Delete(Any, "a", false), s.Delete(Any, "b", true)); err != nil {
		t.Fatal(err)
	}
	if d.data[firstByte] != 7 || d.data[2<<20-1] != 7 || !blankBytes(d.data[2<<20:3<<20]) || d.data[3<<20] != 7 {
		t.Error("erase discards its partition and nothing else, and octets stay without it")
	}
	if got := s.Free(); !reflect.DeepEqual(got, []Range{{1 << 20, 3 << 20}}) {
		t.Errorf("free: %v", got)
	}
	if _, ok := errors.AsType[*UnknownError](s.Delete(Any, "a", false)); !ok {
		t.Error("deleted twice")
	}
}

// A partition that is in use keeps its name, does not shrink, and cannot be deleted.
func TestInUse(t *testing.T) {
	s := newSet(t, newDisk(diskSize))
	create(t, s, New{Name: "a", Size: 8192})
	v, err := s.View("a")
	if err != nil {
		t.Fatal(err)
	}
	_, second := s.View("a")
	for what, err := range map[string]error{
		"a second view": second, "delete": s.Delete(Any, "a", true), "rename": s.Alter(Any, "a", Change{Name: ptr("b")}), "shrink": s.Alter(Any, "a", Change{Size: ptr(int64(4096))}),
	} {
		if e, ok := errors.AsType[*InUseError](err); !ok || e.Name != "a" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Alter(Any, "a", Change{Size: ptr(int64(12288)), Grant: []Access{{Rights: MayRead}}}); err != nil || v.Info().Size != 12288 {
		t.Errorf("grow: %v, %d bytes", err, v.Info().Size)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if v.Close() == nil {
		t.Error("closed twice without an error")
	}
	wants(t, "a refused change", s.Alter(Any, "a", Change{Name: ptr("B")}), "a name has")
	if v, err = s.View("a"); err != nil {
		t.Fatal("after a change that was refused:", err)
	}
	if err := errors.Join(v.Close(), s.Alter(Any, "a", Change{Size: ptr(int64(4096))}), s.Delete(Any, "a", true)); err != nil {
		t.Error(err)
	}
}

// A partition is not in use because somebody else has just changed it.
func TestChangesAtOnce(t *testing.T) {
	s := newSet(t, newDisk(diskSize))
	create(t, s, New{Name: "a", Size: 8192})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := int64(0); i < 40; i++ {
				if err := s.Alter(Any, "a", Change{Size: ptr(4096 + i%2*4096)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// When a store has shrunk, the partitions that still fit are served; the others can be shrunk or deleted.
func TestStoreChangesSize(t *testing.T) {
	d := newDisk(diskSize)
	s := newSet(t, d)
	create(t, s, New{Name: "a", Size: 1 << 20}, New{Name: "b", Size: 2 << 20})
	s, err := Open(restarted(d.data[:3<<20]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.View("b"); err == nil {
		t.Error("b fits no more")
	} else if e, ok := errors.AsType[*FitError](err); !ok || e.End != 4<<20 || e.StoreSize != 3<<20 {
		t.Error(err)
	}
	v, err := s.View("a")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "create", errOf(s.Create(Any, New{Name: "c", Size: 4096, Offset: 3 << 20})), "not within")
	if err := s.Alter(Any, "a", Change{Cache: &Cache{WriteMS: 1}}); err != nil || s.Table().Size != 4<<20 {
		t.Errorf("%v, size %d", err, s.Table().Size)
	}
	if err := s.Alter(Any, "b", Change{Size: ptr(int64(1 << 20))}); err != nil || s.Table().Size != 3<<20 {
		t.Errorf("%v, size %d", err, s.Table().Size)
	}
	b, err := s.View("b")
	if err = errors.Join(err, v.Close()); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	s, err = Open(restarted(append(d.data, make([]byte, 1<<20)...)))
	if err != nil || !reflect.DeepEqual(s.Free(), []Range{{4 << 20, 1 << 20}}) {
		t.Errorf("grown: %v, %v", err, s.Free())
	}
	// Larger blocks: partitions that do not suit them are refused, the others are served.
	d = newDisk(diskSize)
	s = newSet(t, d)
	create(t, s, New{Name: "a", Size: 8192}, New{Name: "b", Size: 4096})
	d.block = 8192
	if s, err = Open(d); err != nil {
		t.Fatal(err)
	}
	_, err = s.View("b")
	wants(t, "b", err, "8192 bytes")
	if v, err = s.View("a"); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// shrinking is a disk that becomes smaller while something is erased.
type shrinking struct {
	*disk
	to int
}

func (d *shrinking) Submit(op *backend.Op) bool {
	done := d.disk.Submit(op)
	if op.Kind == backend.Discard {
		d.mu.Lock()
		d.data = d.data[:d.to]
		d.mu.Unlock()
	}
	return done
}

// A store that shrinks while a partition in use grows leaves the partition as large as it was, and whoever made it grow is told.
func TestStoreShrinksDuringGrow(t *testing.T) {
	const now = 3 << 20
	d := &shrinking{newDisk(diskSize), now}
	s := newSet(t, d)
	create(t, s, New{Name: "a", Size: 1 << 20})
	v, err := s.View("a")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Alter(Any, "a", Change{Size: ptr(int64(3 << 20))})
	if e, ok := errors.AsType[*FitError](err); !ok || e.Name != "a" || e.End != 4<<20 || e.StoreSize != now {
		t.Errorf("grow: %v", err)
	}
	if size := v.Info().Size; size != 1<<20 {
		t.Errorf("the partition in use has %d bytes", size)
	}
	if err := s.Alter(Any, "a", Change{Revoke: []Who{{}}}); err != nil { // that is not about the size
		t.Error("another change:", err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Alter(Any, "a", Change{Size: ptr(int64(2 << 20))}); err != nil {
		t.Error("shrink to what is left:", err)
	}
	if v, err = s.View("a"); err != nil || v.Info().Size != 2<<20 {
		t.Fatal("open again:", err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func errOf(_ []Partition, err error) error { return err }

func TestRights(t *testing.T) {
	p := &Partition{}
	for _, l := range []string{"any r", "uid:5 w", "gid:6 fa", "gid:7 d", "name:host m", "uid:0 rwfadm"} {
		who, rights, _ := strings.Cut(l, " ")
		w, err := ParseWho(who)
		if err != nil || w.String() != who {
			t.Fatal(l, err)
		}
		r, err := ParseRights(rights)
		if err != nil || r.String() != rights {
			t.Fatal(l, err)
		}
		p.Access = append(p.Access, Access{Who: w, Rights: r})
	}
	for _, c := range []struct {
		id   Identity
		want string
	}{
		{Identity{}, "r"},
		{Identity{Local: true, UID: 5}, "rw"},
		{Identity{Local: true, UID: 5, GIDs: []uint32{7, 6}}, "rwfad"},
		{Identity{UID: 5, GIDs: []uint32{6}}, "r"},
		{Identity{Name: "host"}, "rm"},
		{Identity{Name: "Host"}, "r"},
		{Identity{Local: true}, "rwfadm"},
	} {
		if got := p.Rights(c.id).String(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.id, got, c.want)
		}
	}
	if r := new(Partition).Rights(Identity{Local: true}); r != 0 {
		t.Errorf("without a line: %v", r)
	}
	for _, s := range []string{"", "any:", "anyone", "uid:", "uid:-1", "uid:01", "uid:4294967296", "gid:x", "name:", "name:a b", "name:ü", "name:" + strings.Repeat("a", 224), "root"} {
		if w, err := ParseWho(s); err == nil {
			t.Errorf("%q is %v", s, w)
		}
	}
	for _, s := range []string{"x", "rr", "R", "r w"} {
		if r, err := ParseRights(s); err == nil {
			t.Errorf("%q is %v", s, r)
		}
	}
	if r, err := ParseRights("mdafwr"); err != nil || r.String() != "rwfadm" {
		t.Error(r, err)
	}
}

// Many goroutines change the set, use views of it and ask it at the same time.
func TestTogether(t *testing.T) {
	s := newSet(t, newDisk(16<<20))
	create(t, s, New{Name: "shared", Size: 4096, Offset: 8 << 20})
	v, err := s.View("shared")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const goroutines, rounds = 4, 10
	for g := range goroutines {
		wg.Go(func() {
			name := string(rune('a' + g))
			for range rounds {
				made, err := s.Create(Any, New{Name: name, Size: 4096})
				if err != nil {
					t.Error(err)
					return
				}
				w, err := s.View(name)
				if err != nil {
					t.Error(err)
					return
				}
				b := bytes.Repeat([]byte{byte(g)}, 4096)
				if err := backendtest.Do(w, &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{b}}); err != nil || made[0].Offset < firstByte {
					t.Error(err)
				}
				if err := errors.Join(w.Close(), s.Delete(Any, name, true)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range int64(rounds) {
			if err := v.(backend.Resizer).Resize((i + 2) * 4096); err != nil || v.Info().Size < (i+2)*4096 {
				t.Error(err)
			}
			s.Free()
		}
	})
	wg.Wait()
	if got, want := s.Table().Generation, uint64(2+2*goroutines*rounds+rounds); got != want || len(s.Table().Partitions) != 1 {
		t.Errorf("generation %d, want %d", got, want)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// unflushed is a store that does what it is asked to, and then fails writes with a barrier from the second one on.
type unflushed struct {
	backend.Store
	barriers int
}

func (s *unflushed) Submit(op *backend.Op) bool {
	done := s.Store.Submit(op)
	if op.Kind == backend.Write && op.Flags&backend.Barrier != 0 {
		if s.barriers++; s.barriers > 1 {
			op.Err = errors.New("broken on purpose")
		}
	}
	return done
}

// A change that has failed is not found by a restart, though all of it has arrived: a partition that was not deleted is still there.
func TestFailedChangeIsNotFound(t *testing.T) {
	m := newMemory(t, 16<<20)
	s, err := Init(m, false)
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, New{Name: "a", Size: 1 << 20})
	if s, err = Open(&unflushed{Store: m}); err != nil {
		t.Fatal(err)
	}
	wants(t, "Delete", s.Delete(Any, "a", false), "could not be written")
	if s.Table().Find("a") == nil {
		t.Error("the partition is gone")
	}
	if s, err = Open(m); err != nil || s.Table().Find("a") == nil {
		t.Errorf("after a restart: %v", err)
	}
}

// Each change is in both slots: one that the medium cannot read any more leaves the newest table in force, not one in which a range belongs
// to somebody else. A slot that cannot be written is told of, and the change is made nevertheless.
func TestBothSlots(t *testing.T) {
	d := faulty.New(newDisk(2*diskSize), 1)
	s := newSet(t, d)
	broken := errors.New("scratched")
	unreadable := func(what string, want uint64) {
		t.Helper()
		for slot := range int64(2) {
			mend := d.Fail(faulty.Match{Kinds: faulty.Reads, Off: slot * slotSize, Len: slotSize}, &backend.MediumError{Kind: backend.Read, Off: slot * slotSize, Err: broken})
			if again, err := Open(d); err != nil || again.Table().Generation != want || again.Other() == nil {
				t.Errorf("%s, slot %c cannot be read: %v", what, 'A'+rune(slot), err)
			}
			mend()
		}
	}
	unreadable("a new table", 1)
	for g := range uint64(3) {
		create(t, s, New{Name: fmt.Sprint("p", g), Size: 4096})
		unreadable("a change", 2+g)
	}
	mend := d.Fail(faulty.Match{Kinds: []backend.Kind{backend.Write}, Off: int64(s.slot) * slotSize, Len: slotSize}, &backend.MediumError{Kind: backend.Write, Off: int64(s.slot) * slotSize, Err: broken})
	create(t, s, New{Name: "one", Size: 4096})
	wants(t, "the other slot", s.Other(), "cannot be written")
	mend()
	if again, err := Open(d); err != nil || again.Table().Generation != 5 {
		t.Errorf("afterwards: %v", err)
	}
	create(t, s, New{Name: "two", Size: 4096})
	if s.Other() != nil {
		t.Error(s.Other())
	}
	unreadable("the change after it", 6)
}
