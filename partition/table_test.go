package partition

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A table that was made by other means than this package.
const vectorLine = "oneshot partitions 1 7 256 5eb717a1\n"

const vectorBody = `{"uuid":"6f1c2b9e-8a54-4d07-9b61-2f0e5d7a1c33","unit":4096,"size":1073741824,"partitions":[{"uuid":"0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15","name":"log","offset":1048576,"size":268435456,"cache":{"write_ms":0},"access":[{"who":"uid:998","rights":"rwfa"}]}]}` + "\n"

func TestVector(t *testing.T) {
	slot := append([]byte(vectorLine+vectorBody), make([]byte, slotSize-len(vectorLine)-len(vectorBody))...)
	table, err := parseSlot(slot)
	if err != nil {
		t.Fatal(err)
	}
	p := table.Find("log")
	if table.Generation != 7 || table.Unit != 4096 || table.Size != 1<<30 || p == nil || p.Offset != 1<<20 || p.Size != 256<<20 ||
		p.Cache == nil || p.Cache.WriteMS != 0 || len(p.Access) != 1 || p.Access[0].Who.String() != "uid:998" || p.Access[0].Rights.String() != "rwfa" {
		t.Errorf("%+v", table)
	}
	if got, err := table.slot(); err != nil || !bytes.Equal(got, slot) {
		t.Errorf("printed: %s, %v", got[:400], err)
	}
}

// slotOf returns the slot of a body.
func slotOf(body string) []byte {
	line := fmt.Sprintf(lineFormat, 7, len(body), crc32.Checksum([]byte(body), castagnoli))
	return append([]byte(line+body), make([]byte, max(0, slotSize-len(line)-len(body)))...)
}

// What a later version has put into the table stays when this one rewrites it.
func TestUnknownKeys(t *testing.T) {
	body := vectorBody
	for _, r := range [][2]string{
		{`"write_ms":0`, `"write_ms":0,"mode":"<&>"`},
		{`"rights":"rwfa"`, `"rights":"rwfa","until":[1,{"a":null}]`},
		{`]}]}`, `],"zone":1e3}],"Name":"x","note":"ü\"\\"}`},
	} {
		body = strings.Replace(body, r[0], r[1], 1)
	}
	table, err := parseSlot(slotOf(body))
	if err != nil {
		t.Fatal(err)
	}
	if got := table.body(); string(got) != body {
		t.Errorf("got  %s\nwant %s", got, body)
	}
}

// Each check of a slot, with the words of its error.
func TestSlotRefused(t *testing.T) {
	entry := func(more string) string { // a second partition
		return strings.Replace(vectorBody, `"rwfa"}]}]`, `"rwfa"}]},{"uuid":"1b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15",`+more+`}]`, 1)
	}
	with := func(old, new string) string { return strings.Replace(vectorBody, old, new, 1) }
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"uuid":"%08x-53d2-4e8f-a9c6-71e2d8b40f15","name":"n%d","offset":%d,"size":4096}`, i, i, 1<<20+4096*i)
		}
		return with(vectorBody[strings.Index(vectorBody, `{"uuid":"0b7`):len(vectorBody)-3], strings.TrimPrefix(b.String(), ","))
	}
	lines := func(n int) string {
		return with(`{"who":"uid:998","rights":"rwfa"}`, strings.TrimSuffix(strings.Repeat(`{"who":"any","rights":"r"},`, n), ","))
	}
	for _, ok := range []string{many(256), lines(32), entry(`"name":"b","offset":269484032,"size":4096`), with(`"cache":{"write_ms":0},`, ``)} {
		if _, err := parseSlot(slotOf(ok)); err != nil {
			t.Errorf("refused: %.200s: %v", ok, err)
		}
	}
	for _, c := range []struct{ body, want string }{
		{many(257), "257 partitions"},
		{lines(33), "33 access lines"},
		{with(`"log"`, `"Log"`), "a name has"},
		{with(`"log"`, `""`), "a name has"},
		{with(`"log"`, `".x"`), "a name has"},
		{with(`"log"`, `"`+strings.Repeat("a", 64)+`"`), "a name has"},
		{with(`"log"`, `7`), `"name" has the value 7`},
		{with(`"offset":1048576`, `"offset":1044480`), "begins at byte"},
		{with(`"offset":1048576`, `"offset":1048577`), "multiples of 4096"},
		{with(`"size":268435456`, `"size":268435457`), "multiples of 4096"},
		{with(`"size":268435456`, `"size":0`), "no range"},
		{with(`"size":268435456`, `"size":9223372036854771712`), "no range"},
		{with(`"size":268435456`, `"size":1073741824`), "ends at byte"},
		{with(`"unit":4096`, `"unit":512`), "unit"},
		{with(`"unit":4096`, `"unit":12288`), "unit"},
		{with(`"unit":4096,`, ``), "missing"},
		{entry(`"name":"b","offset":269479936,"size":4096`), "overlap"},
		{entry(`"name":"b","offset":1048576,"size":268435456`), "overlap"},
		{entry(`"name":"log","offset":269484032,"size":4096`), "two partitions"},
		{strings.Replace(entry(`"name":"b","offset":269484032,"size":4096`), `"1b7f4`, `"0b7f4`, 1), "twice"},
		{with(`"0b7f4c1a-53d2-4e`, `"0b7f4c1a-53d2-1e`), "has the value"},
		{with(`"0b7f4c1a`, `"0B7F4C1A`), "has the value"},
		{with(`uid:998`, `uid:0998`), "names nobody"},
		{with(`rwfa`, `rwx`), "rights"},
		{with(`"write_ms":0`, `"write_ms":-1`), "has the value"},
		{with(`[{"uuid"`, `[null,{"uuid"`), "missing"},
		{`[]`, "JSON object"},
		{`null`, "JSON object"},
		{"{}{}", "JSON object"},
		{"{\"a\":\"\xff\"}", "UTF-8"},
	} {
		if _, err := parseSlot(slotOf(c.body)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.300s:\n%v, want %q", c.body, err, c.want)
		}
	}
	for _, c := range []struct{ slot, want string }{
		{strings.Replace(string(slotOf(vectorBody)), "log", "lob", 1), "damaged"},
		{strings.Replace(string(slotOf(vectorBody)), " 7 ", " 07 ", 1), "no line"},
		{strings.Replace(string(slotOf(vectorBody)), " 7 ", " +7 ", 1), "no line"},
		{strings.Replace(string(slotOf(vectorBody)), "5eb717a1", "5EB717A1", 1), "no line"},
		{strings.Replace(string(slotOf(vectorBody)), "partitions 1", "partitions 2", 1), "no line"},
		{strings.Replace(string(slotOf(vectorBody)), " 256 ", " 262065 ", 1), "262065 octets"},
		{strings.Replace(string(slotOf(vectorBody)), " 256 ", " -1 ", 1), "octets"},
		{"EFI PART" + strings.Repeat("\x00", slotSize-8), "EFI PART"},
		{strings.Repeat("\x00", slotSize), "zeroes"},
	} {
		if _, err := parseSlot([]byte(c.slot)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.slot, err, c.want)
		}
	}
}

// A table that is printed and parsed again is the same.
func TestPrintParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := &Table{Generation: rapid.Uint64().Draw(t, "generation"), UUID: newUUID(), Unit: 4096, unknown: fields{}}
		at := int64(firstByte)
		for i := range rapid.IntRange(0, 8).Draw(t, "partitions") {
			p := Partition{UUID: newUUID(), Name: fmt.Sprintf("p%d", i), unknown: fields{}}
			p.Offset = at + 4096*rapid.Int64Range(0, 100).Draw(t, "gap")
			p.Size = 4096 * rapid.Int64Range(1, 1<<30).Draw(t, "size")
			at = p.end()
			if rapid.Bool().Draw(t, "cache") {
				p.Cache = &Cache{WriteMS: rapid.Uint32().Draw(t, "ms"), Through: rapid.Bool().Draw(t, "through"), unknown: fields{}}
			}
			for range rapid.IntRange(0, 3).Draw(t, "lines") {
				kind := whoKind(rapid.IntRange(0, 3).Draw(t, "kind"))
				w := Who{kind: kind}
				if kind == whoUID || kind == whoGID {
					w.id = rapid.Uint32().Draw(t, "id")
				} else if kind == whoName {
					w.name = rapid.StringMatching(`[!-~]{1,223}`).Draw(t, "name")
				}
				p.Access = append(p.Access, Access{w, Rights(rapid.IntRange(0, 63).Draw(t, "rights")), fields{}})
			}
			table.Partitions = append(table.Partitions, p)
		}
		table.Size = at
		slot, err := table.slot()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseSlot(slot); err != nil || !reflect.DeepEqual(got, table) {
			t.Fatalf("%+v, %v, want %+v", got, err, table)
		}
	})
}

// No slot makes the parser panic, and what it has parsed can be printed and parsed again. The fuzzer gives bodies,
// for which the test makes the line, or whole slots.
func FuzzSlot(f *testing.F) {
	f.Add([]byte(vectorLine+vectorBody), true)
	f.Add([]byte(vectorBody), false)
	f.Add([]byte(`{"uuid":"6f1c2b9e-8a54-4d07-9b61-2f0e5d7a1c33","unit":4096,"size":1048576,"partitions":[],"x":{"<":1}}`), false)
	f.Add([]byte(strings.Replace(vectorBody, `rwfa`, `afwr`, 1)), false)
	f.Add([]byte(strings.Replace(vectorBody, `uid:998`, `name:n`, 1)), false)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if !whole {
			b = slotOf(string(b))
		}
		table, err := parseSlot(b)
		if err != nil {
			return
		}
		slot, err := table.slot()
		if err != nil {
			return // longer than it was
		}
		again, err := parseSlot(slot)
		if err != nil {
			t.Fatalf("printed and not parsed: %v: %.500q", err, slot)
		}
		if twice, err := again.slot(); err != nil || !bytes.Equal(twice, slot) {
			t.Fatalf("printed twice: %.500q, and %.500q", slot, twice)
		}
	})
}

func TestFreeRanges(t *testing.T) {
	table := &Table{Unit: 4096}
	for _, r := range []Range{{8 << 20, 1 << 20}, {1 << 20, 4096}, {2 << 20, 1 << 20}} {
		table.Partitions = append(table.Partitions, Partition{Offset: r.Offset, Size: r.Size})
	}
	const size = 10<<20 + 512
	want := []Range{{1<<20 + 4096, 1<<20 - 4096}, {3 << 20, 5 << 20}, {9 << 20, 1 << 20}}
	if got := table.free(size); !reflect.DeepEqual(got, want) {
		t.Errorf("free: %v, want %v", got, want)
	}
	if got := table.free(5 << 20); !reflect.DeepEqual(got, []Range{want[0], {3 << 20, 2 << 20}}) {
		t.Errorf("free of a store that shrank: %v", got)
	}
	for _, c := range []struct {
		n, at int64
		ok    bool
	}{{4096, 3 << 20, true}, {5 << 20, 3 << 20, true}, {5<<20 + 4096, 0, false}} {
		if at, ok := table.place(c.n, size); at != c.at || ok != c.ok {
			t.Errorf("%d bytes are placed at %d, %v", c.n, at, ok)
		}
	}
}
