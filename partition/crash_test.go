package partition

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/internal/rounds"
)

// disk is a store in memory with a cache that a power cut loses, in whole or by sectors of 512 octets.
type disk struct {
	mu      sync.Mutex
	data    []byte
	medium  []byte       // what is durable
	pending []backend.Op // written and not durable, oldest first; with copies of their bytes
	last    []backend.Op // all that was written since forget
	refuse  error
	block   int
}

func newDisk(size int) *disk {
	return &disk{data: make([]byte, size), medium: make([]byte, size), block: 512}
}

// restarted is a disk that holds image.
func restarted(image []byte) *disk {
	return &disk{data: slices.Clone(image), medium: slices.Clone(image), block: 512}
}

func (d *disk) Info() backend.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return backend.Info{Size: int64(len(d.data)), BlockSize: d.block, VolatileCache: true}
}

func (d *disk) Close() error { return nil }

func (d *disk) Submit(op *backend.Op) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op.Err = op.Check(int64(len(d.data))); op.Err != nil {
		return true
	}
	if op.Kind == backend.Read {
		at := d.data[op.Off:]
		for _, seg := range op.Segs {
			move(seg, at[:len(seg)])
			at = at[len(seg):]
		}
		return true
	}
	if op.Err = d.refuse; op.Err != nil {
		return true
	}
	if op.Kind == backend.Flush || op.Flags&backend.Barrier != 0 {
		for _, w := range d.pending {
			move(d.medium[w.Off:], d.data[w.Off:w.Off+w.Len])
		}
		d.pending = nil
	}
	if op.Kind == backend.Flush {
		return true
	}
	b := make([]byte, op.Len)
	if op.Kind == backend.Write {
		at := b
		for _, seg := range op.Segs {
			move(at, seg)
			at = at[len(seg):]
		}
	}
	done := backend.Op{Kind: op.Kind, Flags: op.Flags, Off: op.Off, Len: op.Len, Segs: [][]byte{b}}
	move(d.data[op.Off:], b)
	d.last = append(d.last, done)
	if op.Flags&(backend.Barrier|backend.FUA) != 0 {
		move(d.medium[op.Off:], b)
	} else {
		d.pending = append(d.pending, done)
	}
	return true
}

// move copies src to the start of dst. Zeroes are cleared instead: the race detector looks at
// each octet of a copy, and a slot is 256 KiB of almost nothing else.
func move(dst, src []byte) {
	const piece = 4096
	for len(src) > 0 {
		n := min(piece, len(src))
		if bytes.Equal(src[:n], zeroes[:n]) {
			clear(dst[:n])
		} else {
			copy(dst, src[:n])
		}
		dst, src = dst[n:], src[n:]
	}
}

var zeroes [4096]byte

// crash returns what a power cut leaves: what is durable, and by chance sectors of the rest.
func (d *disk) crash(r *rand.Rand, chance float64) []byte {
	image := make([]byte, len(d.medium))
	move(image, d.medium)
	for _, op := range d.pending {
		lose(image, &op, r, chance)
	}
	return image
}

// lose writes to image some sectors of op.
func lose(image []byte, op *backend.Op, r *rand.Rand, chance float64) {
	for at := int64(0); at < op.Len; at += 512 {
		if r.Float64() < chance {
			copy(image[op.Off+at:], op.Segs[0][at:min(at+512, op.Len)])
		}
	}
}

const diskSize = 4 << 20

// changes are those that the crash tests interrupt, each of them.
var changes = []struct {
	name string
	do   func(s *Set) error
}{
	{"create", func(s *Set) error {
		_, err := s.Create(Any, New{Name: "a", Size: 64 << 10}, New{Name: "b", Size: 64 << 10, Access: []Access{{Rights: MayRead}}})
		return err
	}},
	{"grow", func(s *Set) error { n := int64(512 << 10); return s.Alter(Any, "a", Change{Size: &n}) }},
	{"shrink", func(s *Set) error { n := int64(8192); return s.Alter(Any, "a", Change{Size: &n}) }},
	{"rename", func(s *Set) error { n := strings.Repeat("c", 63); return s.Alter(Any, "a", Change{Name: &n}) }},
	{"grant", func(s *Set) error {
		return s.Alter(Any, "b", Change{Grant: []Access{{Who{whoUID, 7, ""}, MayWrite, nil}}})
	}},
	{"revoke", func(s *Set) error { return s.Alter(Any, "b", Change{Revoke: []Who{{}}}) }},
	{"delete", func(s *Set) error { return s.Delete(Any, "b", true) }},
	{"many", func(s *Set) error { // the body is longer than what is zeroed before
		news := make([]New, 40)
		for i := range news {
			news[i] = New{Name: fmt.Sprintf("n%02d", i), Size: 4096, Offset: 3<<20 + 4096*int64(i), Cache: &Cache{WriteMS: 1}}
		}
		_, err := s.Create(Any, news...)
		return err
	}},
	// At the last of these the body that is overwritten differs in one octet, behind what is zeroed.
	{"tune 2", func(s *Set) error { n := uint32(2); return s.Alter(Any, "n39", Change{Cache: &Cache{WriteMS: n}}) }},
	{"tune 3", func(s *Set) error { n := uint32(3); return s.Alter(Any, "n39", Change{Cache: &Cache{WriteMS: n}}) }},
	{"tune 4", func(s *Set) error { n := uint32(4); return s.Alter(Any, "n39", Change{Cache: &Cache{WriteMS: n}}) }},
}

// tableOf opens image and prints its table.
func tableOf(t *testing.T, image []byte) string {
	t.Helper()
	d := &disk{data: image, medium: image, block: 512}
	s, err := Open(d)
	if len(d.last) > 0 {
		t.Errorf("Open has written %d times", len(d.last))
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", s.Table().Generation, s.Table().body())
}

// cuts returns the places at which a write of a slot is torn: between sectors, behind each octet of the line, at the
// ends of the body.
func cuts(slot []byte) (at []int) {
	line := max(bytes.IndexByte(slot, '\n')+1, 40) // the zeroes before have none
	end := len(bytes.TrimRight(slot, "\x00"))
	for n := 0; n <= len(slot); n += 512 {
		at = append(at, n)
	}
	for n := 0; n < line+17; n += rounds.Of(1, 16) {
		at = append(at, n)
	}
	for n := max(line, end-16); n <= end+1; n++ {
		at = append(at, n)
	}
	slices.Sort(at)
	return at
}

// losses returns sets of sectors, by their offset in a write, that were written or not. Only sectors whose octets
// change are in the sets. If there are few such sectors, all sets are returned; otherwise random ones.
func losses(old, slot []byte, r *rand.Rand) (sets []map[int64]bool) {
	var changed []int64
	for at := 0; at < len(slot); at += 512 {
		if !bytes.Equal(old[at:at+512], slot[at:at+512]) {
			changed = append(changed, int64(at))
		}
	}
	all := len(changed) <= 6
	times := rounds.Of(100, 12)
	if all {
		times = 1 << len(changed)
	}
	for n := range times {
		set := make(map[int64]bool)
		for k, at := range changed {
			set[at] = n>>k&1 == 1
			if !all {
				set[at] = r.Float64() < []float64{0.5, 0.05, 0.95, 0.999}[n%4]
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// Wherever a change is torn, and whichever of its sectors are lost, the table is the old one or the
// new one.
func TestCrashAtEveryStep(t *testing.T) {
	seed := faulty.Seed(t)
	r := rand.New(rand.NewPCG(seed, seed))
	d := newDisk(diskSize)
	s, err := Init(d, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		before := d.crash(r, 0)
		old := tableOf(t, before)
		d.last = nil
		if err := c.do(s); err != nil {
			t.Fatal(c.name, err)
		}
		after := tableOf(t, d.crash(r, 0))
		if after == old {
			t.Errorf("%s: the change was answered, and a power cut takes it back", c.name)
		}
		whole := fmt.Sprintf("%d %s", s.Table().Generation, s.Table().body())
		check := func(image []byte, what string, n int) {
			t.Helper()
			if got := tableOf(t, image); got != old && got != whole {
				t.Errorf("%s, %s %d: %s", c.name, what, n, got)
			}
		}
		image := before
		torn := make([]byte, firstByte+512) // what is read of a store
		for i := range d.last {
			op := &d.last[i]
			if op.Off >= firstByte {
				move(image[op.Off:], op.Segs[0])
				continue
			}
			move(torn, image[:2*slotSize])
			last := 0
			for _, n := range cuts(op.Segs[0]) {
				from := last
				if last = n; bytes.Equal(op.Segs[0][from:n], torn[op.Off+int64(from):][:n-from]) {
					continue // the octets are those of the cut before
				}
				copy(torn[op.Off+int64(from):], op.Segs[0][from:n])
				check(torn, "torn at octet", n)
			}
			for n, sectors := range losses(image[op.Off:], op.Segs[0], r) {
				for at, written := range sectors {
					from := image[op.Off:]
					if written {
						from = op.Segs[0]
					}
					copy(torn[op.Off+at:][:512], from[at:])
				}
				check(torn, "lost sectors, round", n)
			}
			move(image[op.Off:], op.Segs[0])
		}
		if got := tableOf(t, image); got != whole {
			t.Errorf("%s: %s, want %s", c.name, got, whole)
		}
	}
}

// After each answer the change is durable, and so are the octets erased before.
func TestDurable(t *testing.T) {
	seed := faulty.Seed(t)
	r := rand.New(rand.NewPCG(seed, seed))
	d := newDisk(diskSize)
	s, err := Init(d, false)
	if err != nil {
		t.Fatal(err)
	}
	former := bytes.Repeat([]byte{7}, 128<<10) // of what "grow" adds
	copy(d.data[firstByte:], former)
	copy(d.medium[firstByte:], former)
	for _, c := range changes {
		if err := c.do(s); err != nil {
			t.Fatal(c.name, err)
		}
		want := fmt.Sprintf("%d %s", s.Table().Generation, s.Table().body())
		for n := 0; n < 20; n += rounds.Of(1, 10) {
			image := d.crash(r, float64(n)/20)
			if got := tableOf(t, image); got != want {
				t.Errorf("%s: a power cut leaves %s, want %s", c.name, got, want)
			}
			if c.name == "grow" && !blankBytes(image[firstByte+64<<10:firstByte+128<<10]) {
				t.Errorf("grow: a power cut leaves the former octets")
			}
		}
	}
}

func blankBytes(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }

// An Init that is forced over a table leaves the old one or the new one; one over other things leaves
// them without a table, or the new one.
func TestCrashOfInit(t *testing.T) {
	seed := faulty.Seed(t)
	r := rand.New(rand.NewPCG(seed, seed))
	for _, former := range []string{"table", "other"} {
		d := newDisk(diskSize)
		rest := bytes.Repeat([]byte{0xee}, firstByte)
		copy(d.data, rest)
		copy(d.medium, rest)
		if former == "table" {
			s, err := Init(d, true)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := s.Create(Any, New{Name: fmt.Sprint("p", s.Table().Generation), Size: 4096}); err != nil {
					t.Fatal(err)
				}
			}
		}
		image := d.crash(r, 0)
		old := tableOf(t, image)
		d.last = nil
		s, err := Init(d, true)
		if err != nil {
			t.Fatal(err)
		}
		whole := fmt.Sprintf("%d %s", s.Table().Generation, s.Table().body())
		mixed := slices.Clone(image[:firstByte+512])
		for _, op := range d.last {
			for n := range 40 {
				if op.Off >= 2*slotSize {
					break // nobody reads this
				}
				move(mixed[op.Off:], image[op.Off:op.Off+op.Len])
				lose(mixed, &op, r, []float64{0.5, 0.02, 0.98, 0.999}[n%4])
				got := tableOf(t, mixed)
				if former == "other" && strings.HasPrefix(got, "the store has no") {
					continue
				}
				if got != old && got != whole {
					t.Errorf("over %s: %s", former, got)
				}
			}
			copy(image[op.Off:], op.Segs[0])
			copy(mixed[op.Off:], op.Segs[0])
		}
		if got := tableOf(t, d.crash(r, 0)); got != whole || !bytes.Equal(image[:firstByte], d.medium[:firstByte]) {
			t.Errorf("over %s, at the end: %s", former, got)
		}
		if !blankBytes(d.medium[2*slotSize : firstByte]) {
			t.Errorf("over %s: octets of what was there remain", former)
		}
	}
}

// A change that cannot be written is refused, and the table in force stays.
func TestWriteFails(t *testing.T) {
	d := newDisk(diskSize)
	s, err := Init(d, false)
	if err != nil {
		t.Fatal(err)
	}
	d.refuse = &backend.MediumError{Kind: backend.Write, Err: errors.New("scratched")}
	if err := changes[0].do(s); !errors.Is(err, d.refuse) || s.Table().Generation != 1 || len(s.Table().Partitions) != 0 {
		t.Errorf("%v, generation %d", err, s.Table().Generation)
	}
	d.refuse = nil
	if err := changes[0].do(s); err != nil || s.Table().Generation != 2 {
		t.Errorf("%v, generation %d", err, s.Table().Generation)
	}
}
