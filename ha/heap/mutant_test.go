//go:build !race

package heap

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"oneshot/internal/mutants"
)

// TestMutants: for each mistake there is a test that fails.
func TestMutants(t *testing.T) {
	var all []mutants.Mutant
	for _, m := range heapMutants {
		all = append(all, m.Mutant)
	}
	program := mutants.Build(t, ".", "", all)
	for _, m := range heapMutants {
		t.Run(m.Name, func(t *testing.T) {
			cmd := exec.Command(program, "-test.run", "^"+m.test+"$")
			cmd.Env = append(os.Environ(), mutants.Variable+"="+m.Name)
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "--- FAIL: "+m.test+" ") {
				t.Errorf("%s does not fail: %s", m.test, out)
			}
		})
	}
}

var heapMutants = []struct {
	test string
	mutants.Mutant
}{
	{"TestCrash", mutants.Mutant{
		Name: "places are written before the journal is durable", File: "core.go",
		Old: "\tc.steps = append(c.steps, Work{Flush: true})\n\tpages", New: "\tif !ON {\n\t\tc.steps = append(c.steps, Work{Flush: true})\n\t}\n\tpages",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "the superblock is written before the places are durable", File: "core.go",
		Old: "\tc.steps = append(c.steps, Work{Flush: true}, Work{Off: superOff(next.epoch)",
		New: "\tif !ON {\n\t\tc.steps = append(c.steps, Work{Flush: true})\n\t}\n\tc.steps = append(c.steps, Work{Off: superOff(next.epoch)",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "the journal is used again before the superblock is durable", File: "core.go",
		Old: "Data: next.encode()}, Work{Flush: true})", New: "Data: next.encode()})\n\tif !ON {\n\t\tc.steps = append(c.steps, Work{Flush: true})\n\t}",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "a batch that is torn is taken", File: "layout.go",
		Old: "!= binary.BigEndian.Uint32(b[28:]) {", New: "!= binary.BigEndian.Uint32(b[28:]) && !ON {",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "batches of an earlier epoch are taken", File: "layout.go",
		Old: "binary.BigEndian.Uint64(b[8:]) != epoch ||", New: "binary.BigEndian.Uint64(b[8:]) != epoch && !ON ||",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "the table is not written", File: "core.go",
		Old: "\tif c.told {", New: "\tif c.told && !ON {",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "a page of a place is not written", File: "core.go",
		Old: "p <= (off+wire.HeaderLen+int64(len(object))-1)/page; p++ {", New: "p <= (off+wire.HeaderLen+int64(len(object))-1)/page && (!ON || p == off/page); p++ {",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "the older superblock is taken", File: "recover.go",
		Old: "odd.epoch > s.epoch)", New: "(odd.epoch > s.epoch) != ON)",
	}},
	{"TestCrash", mutants.Mutant{
		Name: "the old place of an object is not freed", File: "core.go",
		Old: "\t\tif r.old != noPlace {", New: "\t\tif r.old != noPlace && !ON {",
	}},
	{"TestModel", mutants.Mutant{
		Name: "a place has the same generation again", File: "core.go",
		Old: ".Generation + 1\n", New: ".Generation + 1\n\tif ON {\n\t\trec.generation = 1\n\t}\n",
	}},
	{"TestModel", mutants.Mutant{
		Name: "a change is done again", File: "core.go",
		Old: "\tcase r.Number == e.number:\n", New: "\tcase r.Number == e.number && !ON:\n",
	}},
	{"TestModel", mutants.Mutant{
		Name: "what a client has sent later goes before", File: "core.go",
		Old: "\t\t\tc.senders[r.Client] = true // what", New: "\t\t\tc.senders[r.Client] = !ON // what",
	}},
	{"TestOneBatch", mutants.Mutant{
		Name: "two changes of one object are in one batch", File: "core.go",
		Old: "\tif c.busy[off] {", New: "\tif c.busy[off] && !ON {",
	}},
	{"TestNotBefore", mutants.Mutant{
		Name: "a change is seen before it is in the journal", File: "core.go",
		Old: "\tc.after = c.commit\n", New: "\tif c.after = c.commit; ON {\n\t\tc.apply(&c.staged[0].record)\n\t}\n",
	}},
	{"TestForgotten", mutants.Mutant{
		Name: "any client is forgotten", File: "core.go",
		Old: "found < 0 || e.seq < c.table[found].seq {", New: "found < 0 || (e.seq < c.table[found].seq) != ON {",
	}},
	{"TestRefused", mutants.Mutant{
		Name: "a place may begin anywhere", File: "core.go",
		Old: "\tif off%wire.Unit != 0 || !c.begins(off) {", New: "\tif (off%wire.Unit != 0 || !c.begins(off)) && !ON {",
	}},
	{"TestRefused", mutants.Mutant{
		Name: "the key is not compared", File: "core.go",
		Old: "\tcase p.Key != c.Key():", New: "\tcase p.Key != c.Key() && !ON:",
	}},
	{"TestFull", mutants.Mutant{
		Name: "places that are too large are not used", File: "core.go",
		Old: "got = class; got < wire.Classes; got++ {", New: "got = class; got < wire.Classes && (!ON || got == class); got++ {",
	}},
	{"TestMoved", mutants.Mutant{
		Name: "a read is not proved", File: "heap.go",
		Old: "\t\tif err := h.prove(); err != nil { // after", New: "\t\tif err := h.prove(); err != nil && !ON { // after",
	}},
	{"TestMoved", mutants.Mutant{
		Name: "an answer without a change is not proved", File: "heap.go",
		Old: "\t\t\tif err := h.prove(); err != nil {\n\t\t\t\treturn err", New: "\t\t\tif err := h.prove(); err != nil && !ON {\n\t\t\t\treturn err",
	}},
	{"TestForeign", mutants.Mutant{
		Name: "a store in use is taken", File: "recover.go",
		Old: "\tif !blank(b) {", New: "\tif !blank(b) && !ON {",
	}},
}
