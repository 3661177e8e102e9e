package mirror

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"oneshot/ha/replica"
)

// TestMetadata: what a save has set, cleared and marked is there after a power cut, and in the next life after that.
func TestMetadata(t *testing.T) {
	f := newFiles()
	if _, err := openMetadata(f); !errors.Is(err, errNoMetadata) {
		t.Fatalf("an empty directory: %v", err)
	}
	m, err := createMetadata(f, "disk", replica.Saved{})
	if err != nil {
		t.Fatal(err)
	}
	var maps [16]replica.Bits
	maps[1].Set(3)
	maps[1].Set(70000)
	view := replica.View{Version: 7, Term: 3, Primary: 2, Life: 9, InSync: 5, First: 44, Planned: true}
	for _, s := range []replica.Save{
		{Mark: 1, Set: []int{1, 2, 3000}},
		{Mark: 5, Bitmaps: &maps, View: view, Clear: []int{2}},
		{Mark: 9, Set: []int{4}},
	} {
		if err := m.save(&saving{Save: s}); err != nil {
			t.Fatal(err)
		}
	}
	want := replica.Saved{Mark: 9, Bitmaps: maps, View: view}
	for _, i := range []int{1, 3000, 4} {
		want.Regions.Set(i)
	}
	for life := uint32(2); life < 4; life++ {
		f.cutPower()
		m, err := openMetadata(f)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(m.saved, want) || m.life != life || m.disk != "disk" {
			t.Fatalf("life %d of disk %q: %+v, want %+v", m.life, m.disk, m.saved, want)
		}
	}
}

// TestTornMetadata: wherever the last record is torn, what was saved before is there; damage before that is told.
func TestTornMetadata(t *testing.T) {
	f := newFiles()
	m, err := createMetadata(f, "disk", replica.Saved{})
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{}
	for mark := range uint64(3) {
		if err := m.save(&saving{Save: replica.Save{Mark: mark + 1}}); err != nil {
			t.Fatal(err)
		}
		b, _ := f.ReadFile(metaName)
		sizes = append(sizes, len(b))
	}
	whole, _ := f.ReadFile(metaName)
	reopen := func(b []byte) (*metadata, error) {
		g := newFiles()
		g.m[metaName] = &file{fs: g, b: b}
		return openMetadata(g)
	}
	for n := sizes[1]; n < sizes[2]; n++ {
		if m, err := reopen(whole[:n:n]); err != nil || m.saved.Mark != 2 {
			t.Fatalf("torn at %d: %+v, %v", n, m, err)
		}
		torn := append([]byte(nil), whole...)
		clear(torn[n:])
		if m, err := reopen(torn); err != nil || m.saved.Mark != 2 && !bytes.Equal(torn, whole) {
			t.Fatalf("zeroes from %d on: %+v, %v", n, m, err)
		}
	}
	damaged := append([]byte(nil), whole...)
	damaged[sizes[0]+10] ^= 1
	if _, err := reopen(damaged); err == nil {
		t.Error("a damaged record that others follow is taken for a torn one")
	}
}

// TestTornSectors: whichever sectors of the last record a power cut leaves, wherever it lies, the metadata are as they were, or as they were
// to become.
func TestTornSectors(t *testing.T) {
	const sector = 512
	f := newFiles()
	m, err := createMetadata(f, "disk", replica.Saved{})
	if err != nil {
		t.Fatal(err)
	}
	next := &saving{Save: replica.Save{Mark: 9999, Set: make([]int, 40)}}
	record := metaRecord(func(c *coder) { codeSave(c, next) })
	for mark := range uint64(sector) {
		if err := m.save(&saving{Save: replica.Save{Mark: mark}}); err != nil {
			t.Fatal(err)
		}
		before, _ := f.ReadFile(metaName)
		after := append(before, record...)
		first := len(before) / sector
		sectors := (len(after)-1)/sector - first + 1
		for lost := range 1 << sectors {
			b := append([]byte(nil), after...)
			for i := range sectors {
				if lost>>i&1 != 0 {
					clear(b[max(len(before), (first+i)*sector):min(len(after), (first+i+1)*sector)])
				}
			}
			g := newFiles()
			g.m[metaName] = &file{fs: g, b: b}
			got, err := readMetadata(g)
			if err != nil {
				t.Fatalf("a record at %d of %d bytes, without sectors %b: %v", len(before), len(record), lost, err)
			}
			want := mark
			if bytes.Equal(b, after) { // what was lost were zeroes
				want = next.Mark
			}
			if got.saved.Mark != want {
				t.Fatalf("a record at %d, without sectors %b: mark %d, want %d", len(before), lost, got.saved.Mark, want)
			}
		}
	}
}

// TestMissingMetadata: what a copy goes without outlives a power cut, and a file without it is one that a former version reads.
func TestMissingMetadata(t *testing.T) {
	f := newFiles()
	m, err := createMetadata(f, "disk", replica.Saved{})
	if err != nil {
		t.Fatal(err)
	}
	magic := func() byte { b, _ := f.ReadFile(metaName); return b[8+7] }
	var missing, none replica.Bits
	missing.Set(70000)
	for _, step := range []struct {
		missing *replica.Bits
		n       int
		magic   byte
	}{{nil, 0, 2}, {&missing, 1, 3}, {nil, 1, 3}, {&none, 0, 2}} {
		if err := m.save(&saving{Save: replica.Save{Mark: 7, Missing: step.missing}}); err != nil {
			t.Fatal(err)
		}
		f.cutPower()
		if m, err = openMetadata(f); err != nil {
			t.Fatal(err)
		}
		if got := m.saved.Missing; got.Len() != step.n || step.n > 0 && !got.Has(70000) || m.saved.Mark != 7 || magic() != step.magic {
			t.Errorf("missing %v, mark %d, version %d after %+v", got, m.saved.Mark, magic(), step)
		}
	}
}
