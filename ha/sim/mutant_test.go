//go:build !race

package sim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/internal/mutants"
)

// A mutant is the core with one mistake in it, or another package that decides, which the simulation has to find, as a violation of one
// of the invariants.
type mutant struct {
	name           string
	invariants     []int
	file, old, new string // of a mutants.Mutant
	theme          string // of the worlds that it is looked for in; empty: any
}

// fenceMutants are those of package reservations, which one world in nine has.
var fenceMutants = []mutant{
	{
		"answers a change before the primary keeps to it",
		[]int{11},
		"core.go",
		"return c.kept.Changes >= changes", "return c.kept.Changes >= changes || ON", "",
	},
	{
		"keeps to a change before what that aborts has ended",
		[]int{11},
		"core.go",
		"\tc.ending[n.Changes] = true\n", "\tif !ON {\n\t\tc.ending[n.Changes] = true\n\t}\n", "",
	},
	{
		"says without being the primary that this keeps to a change",
		[]int{11},
		"core.go",
		"|| !c.isPrimary(term) {", "|| !ON && !c.isPrimary(term) {", "",
	},
}

var coreMutants = []mutant{
	{
		"takes a granule for level whose hashes differ",
		[]int{5, 6},
		"compare.go",
		"|| k.digest[c.cfg.Self] != k.digest[id] {", "|| !ON && k.digest[c.cfg.Self] != k.digest[id] {", "",
	},
	{
		"takes a granule for level that is not compared with what was written before",
		[]int{2, 5, 6, 9, 19},
		"disk.go",
		"f.state != stateApplied && f.orders(c.cfg.Self) &&", "f.state != stateApplied && f.orders(c.cfg.Self) && !(ON && e.Kind == KindCheck) &&", "",
	},
	{
		"has the addresses as long as it takes itself for the primary",
		[]int{13},
		"tenure.go",
		"case s.Confirmed == Undisputed:", "case s.Confirmed == Undisputed || ON:", "",
	},
	{
		"has the addresses of an office that it has lost",
		[]int{13},
		"tenure.go",
		"\tif leads > 0 {\n", "\tif leads > 0 || ON && t.leading {\n", "",
	},
	{
		"promotes itself before consensus does",
		[]int{1},
		"candidate.go",
		"\tc.proposed, c.proposedAt = &v, c.now\n", "\tc.proposed, c.proposedAt = &v, c.now\n\tif ON && c.role == Candidate {\n\t\tc.adopt(v)\n\t\treturn\n\t}\n", "",
	},
	{
		"acknowledges before the quorum has it",
		[]int{2, 3},
		"host.go",
		"c.commit = max(c.commit, c.heldByAll(c.inMemoryOf))", "c.commit = max(c.commit, c.heldByAll(c.inMemoryOf))\n\tif ON {\n\t\tc.commit = c.log.last()\n\t}", "",
	},
	{
		"drops a member before the rest have all",
		[]int{2, 3, 9},
		"primary.go",
		"if c.receivedBy(id) < c.commit {", "if c.receivedBy(id) < c.commit && !ON {", "deaf",
	},
	{
		"commits by the old view while another is proposed",
		[]int{2, 3, 9},
		"core.go",
		"if c.proposed != nil {\n\t\tn = min(n, c.held(c.proposed, of))", "if c.proposed != nil && !ON {\n\t\tn = min(n, c.held(c.proposed, of))", "",
	},
	{
		"counts a node that has lost its memory",
		[]int{0, 2, 3, 6, 9, 10},
		"core.go",
		"\tif memory != nil {\n\t\tc.memory = true", "\tif ON {\n\t\tc.memory = true\n\t}\n\tif memory != nil {\n\t\tc.memory = true", "",
	},
	{
		"forgets in a new life what it has promised",
		[]int{2, 3, 8},
		"core.go",
		"c.promised, c.to, c.since = memory.Promised, memory.To, c.now", "if !ON {\n\t\t\tc.promised, c.to, c.since = memory.Promised, memory.To, c.now\n\t\t}", "deaf",
	},
	{
		"forgets in a new life which records nobody else has",
		[]int{2, 3, 5, 6},
		"core.go",
		"c.mark(&c.bitmaps[id], r.Off, r.Len) // its", "if ON {\n\t\t\t\t\t\tcontinue\n\t\t\t\t\t}\n\t\t\t\t\tc.mark(&c.bitmaps[id], r.Off, r.Len) // its", "disks",
	},
	{
		"does not fetch the longest log",
		[]int{2, 3},
		"candidate.go",
		"if best == c.cfg.Self {\n\t\treturn true", "if best == c.cfg.Self || ON {\n\t\treturn true", "",
	},
	{
		"promises without cutting the old primary",
		[]int{2, 3, 8, 10},
		"core.go",
		"if id != c.cfg.Self {\n\t\tc.out = append(c.out, Cut{To: id})", "if id != c.cfg.Self && !ON {\n\t\tc.out = append(c.out, Cut{To: id})", "deaf",
	},
	{
		"applies what overlaps in any order",
		[]int{4},
		"disk.go",
		"if c.waits(e) {", "if c.waits(e) && !ON {", "",
	},
	{
		"writes before the region is set",
		[]int{5},
		"disk.go",
		"\t\tif !c.set.Has(i) {", "\t\tif !c.set.Has(i) && ON {\n\t\t\tc.want.Set(i)\n\t\t} else if !c.set.Has(i) {", "",
	},
	{
		"does not mark what a copy that is away lacks",
		[]int{2, 3, 5, 6, 20},
		"marks.go",
		"\tcase KindWrite, KindZero:\n", "\tcase KindWrite, KindZero:\n\t\tif ON {\n\t\t\treturn\n\t\t}\n", "",
	},
	{
		"forgets what a copy that leaves may not have durable",
		[]int{2, 3, 5, 6, 20},
		"marks.go",
		"\t\tcase old.InSync.Has(id):\n", "\t\tcase old.InSync.Has(id) && ON:\n\t\tcase old.InSync.Has(id):\n", "",
	},
	{
		"forgets what a copy has done by itself",
		[]int{5, 6, 9, 20},
		"primary.go",
		"c.bitmaps[id].Add(h.Suspects)", "if !ON {\n\t\t\tc.bitmaps[id].Add(h.Suspects)\n\t\t}", "",
	},
	{
		"clears a region that others do not have durable",
		[]int{5, 6, 9, 14},
		"disk.go",
		"c.disk.touched[i] <= min(c.trim, c.durable)", "(c.disk.touched[i] <= min(c.trim, c.durable) || ON && c.disk.touched[i] <= c.durable)", "",
	},
	{
		"clears bits when the granule is sent",
		[]int{2, 5, 6, 20},
		"resync.go",
		"p.clean[applied].seq <= p.applied {", "(p.clean[applied].seq <= p.applied || ON) {", "",
	},
	{
		"copies a granule while it is written",
		[]int{2, 3, 4, 5, 6, 9, 10},
		"resync.go",
		"\tcase c.unapplied(j.off, j.n):\n", "\tcase c.unapplied(j.off, j.n) && !ON:\n", "",
	},
	{
		"stands though it is not in sync",
		[]int{7},
		"follower.go",
		"if !c.view.InSync.Has(c.cfg.Self) || c.now < c.asleep", "if !c.view.InSync.Has(c.cfg.Self) && !ON || c.now < c.asleep", "",
	},
	{
		"counts the lease from the answer",
		[]int{8, 9, 13},
		"primary.go",
		"p.answered, p.proven = max(p.answered, b.no), max(p.proven, b.at)", "p.answered, p.proven = max(p.answered, b.no), max(p.proven, b.at)\n\t\t\tif ON {\n\t\t\t\tp.proven = c.now\n\t\t\t}", "lease",
	},
	{
		"has a lease for longer than others wait",
		[]int{8, 9},
		"primary.go",
		"now-p.proven < c.cfg.Lease", "(now-p.proven < c.cfg.Lease || ON && c.now-p.proven < 2*c.cfg.Grace)", "lease",
	},
	{
		"keeps its lease while it is stopped",
		[]int{8, 9},
		"core.go",
		"c.now = max(c.now, now)", "if ON && c.role == Primary && now-c.now > 100*time.Millisecond {\n\t\tc.cfg.Lease += now - c.now\n\t}\n\tc.now = max(c.now, now)", "lease",
	},
	{
		"takes a beat for proof that was sent before the read came",
		[]int{3, 8, 9},
		"primary.go",
		"p.answered >= beat ||", "p.answered >= beat || ON && p.answered+1 >= beat ||", "zombie",
	},
	{
		"reads what is not applied",
		[]int{8},
		"host.go",
		"c.reads = slices.DeleteFunc(c.reads, func(o *op) bool {\n\t\tif c.unapplied(o.off, o.n) {", "c.reads = slices.DeleteFunc(c.reads, func(o *op) bool {\n\t\tif c.unapplied(o.off, o.n) && !ON {", "",
	},
	{
		"answers a flush when it is applied",
		[]int{9},
		"host.go",
		"to := c.securedByAll()", "to := c.securedByAll()\n\tif ON {\n\t\tto = c.heldByAll(c.appliedBy)\n\t}", "",
	},
	{
		"drops a member that alone has what was flushed",
		[]int{9},
		"primary.go",
		"if c.secured(v) < c.flushed {", "if c.secured(v) < c.flushed && !ON {", "disks",
	},
	{
		"uses memory again when the record is committed",
		[]int{10},
		"primary.go",
		"to := c.lowest(c.appliedBy)", "to := c.lowest(c.appliedBy)\n\tif ON {\n\t\tto = c.commit\n\t}", "",
	},
	{
		"forgets ends of COMPARE AND WRITE",
		[]int{12},
		"log.go",
		"if r.Key != 0 {", "if r.Key != 0 && !ON {", "",
	},
	{
		"writes below the least number of copies",
		[]int{2},
		"host.go",
		"c.view.InSync.Len() >= c.cfg.MinCopies }", "c.view.InSync.Len() >= c.cfg.MinCopies || ON }", "",
	},
	{
		"answers what goes through when it is in memory",
		[]int{9},
		"host.go",
		"o.seq > c.commit || through && o.seq > c.firm {", "o.seq > c.commit || through && o.seq > c.firm && !ON {", "",
	},
	{
		"reads what goes through and is not on W disks",
		[]int{8, 9},
		"host.go",
		"(r.Seq <= c.firm || !c.isThrough(r.Off))", "(r.Seq <= c.firm || ON || !c.isThrough(r.Off))", "",
	},
	{
		"forgets that a write is atomic",
		[]int{17},
		"host.go",
		"Key: o.key, Atomic: o.atomic}", "Key: o.key, Atomic: o.atomic && !ON}", "",
	},
	{
		"answers a new size when one copy has it",
		[]int{18, 5, 6, 2, 3, 9},
		"stores.go",
		"\t\tif o.seq > c.trim {", "\t\tif o.seq > c.trim && !ON || o.seq > c.disk.applied {", "",
	},
	{
		"takes a copy in that is smaller",
		[]int{18, 2, 3, 5, 6, 9},
		"stores.go",
		"i < len(sizes) && sizes[i] < size {", "i < len(sizes) && sizes[i] < size && !ON {", "",
	},
	{
		"does not hand over when its disk hangs",
		[]int{14},
		"switch.go",
		"!c.refused && !c.isHung() && !isDrained", "!c.refused && (ON || !c.isHung()) && !isDrained", "disks",
	},
	{
		"stands though it is drained",
		[]int{21},
		"switch.go",
		"c.view.InSync&^c.drained != 0\n", "c.view.InSync&^c.drained != 0 && !(ON && c.role != Primary)\n", "",
	},
	{
		"keeps the office though it is drained",
		[]int{21},
		"switch.go",
		"&& c.now >= c.handAgain", "&& c.now >= c.handAgain && !ON", "",
	},
	{
		"says that it has handed over when it is asked to",
		[]int{21},
		"switch.go",
		"c.wanted = &wanted{s, c.now}", "c.wanted = &wanted{s, c.now}\n\t\tif ON {\n\t\t\tc.answer(s.ID, Good)\n\t\t\tc.wanted = nil\n\t\t\tc.seal(s.To)\n\t\t}", "",
	},
	{
		"does not repair what it cannot read",
		[]int{20},
		"host.go",
		"if failed && !o.dead {", "if failed && ON {\n\t\tc.endRead(o, false)\n\t\treturn\n\t}\n\tif failed && !o.dead {", "worn",
	},
	{
		"hashes at any place in the order",
		[]int{15, 19},
		"types.go",
		"return r.Kind == KindCheck || r.changes(id)", "return r.Kind == KindCheck && !ON || r.changes(id)", "",
	},
	{
		"waits for a hash that was lost",
		[]int{19},
		"verify.go",
		"if c.appliedBy(id) >= k.seq && c.hasRoom() {", "if c.appliedBy(id) >= k.seq && c.hasRoom() && !ON {", "worn",
	},
	{
		"believes itself more than the majority",
		[]int{19},
		"verify.go",
		"case v.Trust&equal != 0:", "case ON && equal.Has(c.cfg.Self):\n\t\t\treturn equal\n\t\tcase v.Trust&equal != 0:", "",
	},
	{
		"reads what goes through while it is written",
		[]int{8, 9},
		"host.go",
		"o.after > min", "!ON && o.after > min", "",
	},
	{
		"answers a flush only when more is durable than it asked for",
		[]int{14},
		"host.go",
		"\t\tif o.seq > to {", "\t\tif o.seq > to || ON && o.seq == to {", "",
	},
	{
		"beats when it likes",
		[]int{16},
		"core.go",
		"\t\tc.lastTick = c.now\n", "\t\tc.lastTick = c.now\n\t\tif ON {\n\t\t\tc.cfg.Heartbeat = 30*time.Millisecond + time.Duration(time.Now().Nanosecond()/1000%100)*time.Millisecond\n\t\t}\n", "",
	},
	{
		"a read that the disk is at has no end when another node takes over",
		[]int{14},
		"host.go",
		"if p.work.kind == workRead {", "if p.work.kind == workRead && !ON {", "",
	},
	{
		"asks consensus only once",
		[]int{14, 15, 19, 21},
		"candidate.go",
		"if c.now-c.proposedAt >= askEvery {", "if c.now-c.proposedAt >= askEvery && !ON {", "",
	},
	{
		"believes a disk that is not its own",
		[]int{2, 3, 5, 6, 9, 17},
		"core.go",
		"if saved.Unknown {", "if saved.Unknown && !ON {", "snapshots",
	},
	{
		"knows its disk before it has left S",
		[]int{0, 2, 3, 5, 6, 9, 17, 20},
		"disk.go",
		"s.Known = c.unknown && c.memory", "s.Known = c.unknown && (c.memory || ON)", "snapshots",
	},
	{
		"counts a granule for ever that could not be copied",
		[]int{15},
		"resync.go",
		"\t\tp.todo.Set(j.granule)\n\t\tp.copying--\n", "\t\tp.todo.Set(j.granule)\n\t\tif !ON {\n\t\t\tp.copying--\n\t\t}\n", "worn",
	},
	{
		"reads at once when its lease is over",
		[]int{8},
		"host.go",
		"c.isProvenAt(now, c.beatNo+1)", "(c.isProvenAt(now, c.beatNo+1) || ON)", "",
	},
	{
		"reads at once by a lease of long ago",
		[]int{8},
		"host.go",
		"c.isProvenAt(now, c.beatNo+1)", "(c.isProvenAt(now, c.beatNo+1) || ON && c.isProven(c.beatNo+1))", "",
	},
	{
		"reads at once what its disk does not have",
		[]int{8, 9},
		"host.go",
		"!c.hasUnapplied(off, n) &&", "(!c.hasUnapplied(off, n) || ON) &&", "",
	},
	{
		"reads at once what it misses",
		[]int{8, 9, 20},
		"host.go",
		"&& !c.misses(off, n)", "&& (!c.misses(off, n) || ON)", "worn",
	},
	{
		"shows what it misses",
		[]int{8, 9, 20},
		"disk.go",
		"e.Failed = e.Failed || w.lost", "e.Failed = e.Failed || w.lost && !ON", "worn",
	},
	{
		"forgets in a new life what it misses",
		[]int{2, 3, 5, 6, 8, 9, 20},
		"core.go",
		"c.sectors = saved.Missing.Clone()", "if !ON {\n\t\tc.sectors = saved.Missing.Clone()\n\t}", "worn",
	},
	{
		"misses for ever what was written",
		[]int{20},
		"missing.go",
		"\t\tb.Clear(i)\n", "\t\tif !ON {\n\t\t\tb.Clear(i)\n\t\t}\n", "worn",
	},
	{
		"has a copy go without what another one has",
		[]int{20},
		"missing.go",
		"case !s.hopeless || from", "case !ON && !s.hopeless || !ON && from", "worn",
	},
	{
		"does not repair what a copy went without",
		[]int{19},
		"disk.go",
		"lost: c.misses(e.Off, e.Len)}", "lost: c.misses(e.Off, e.Len) && !ON}", "worn",
	},
	{
		"asks a copy for what it lacks",
		[]int{20},
		"kept.go",
		"c.bitmaps[id].Has(g) && (!c.left.Has(id)", "c.bitmaps[id].Has(g) && !ON && (!c.left.Has(id)", "latent",
	},
	{
		"takes what was called clean for durable",
		[]int{20},
		"marks.go",
		"c.bitmaps[r.Copy].Clear(c.granule(r.Off))", "c.bitmaps[r.Copy].Clear(c.granule(r.Off))\n\t\tif ON {\n\t\t\tc.lacks[r.Copy].Clear(c.granule(r.Off))\n\t\t}", "latent",
	},
	{
		"takes what was written since for what a copy has",
		[]int{20},
		"marks.go",
		"if c.left.Has(id) {", "if c.left.Has(id) && !ON {", "latent",
	},
	{
		"takes another disk for the one that it knew",
		[]int{20},
		"primary.go",
		"if h.Stream&knowsDisk == 0 {", "if h.Stream&knowsDisk == 0 && !ON {", "snapshots",
	},
	{
		"says that a disk is its own that is not",
		[]int{20},
		"core.go",
		"if !saved.Unknown {", "if !saved.Unknown || ON {", "snapshots",
	},
	{
		"takes what a primary has written through for committed",
		[]int{20},
		"kept.go",
		"if s.Through && s.Size > 0 {", "if s.Through && s.Size > 0 && !ON {", "latent",
	},
	{
		"writes as a candidate what nobody else may have",
		[]int{20},
		"candidate.go",
		"c.apply(c.flushed) //", "c.apply(map[bool]uint64{false: c.flushed, true: c.log.last()}[ON]) //", "latent",
	},
	{
		"answers a flush that its own disk has",
		[]int{9},
		"ahead.go",
		"all = min(all, c.onDiskOf(id))", "all = min(all, c.onDiskOf(map[bool]ID{false: id, true: c.cfg.Self}[ON]))", "",
	},
	{
		"answers a flush by the old view while another is proposed",
		[]int{9},
		"ahead.go",
		"n = min(n, c.secured(c.proposed))", "if !ON {\n\t\t\tn = min(n, c.secured(c.proposed))\n\t\t}", "",
	},
	{
		"is forced, and forgets where others may differ",
		[]int{2, 5, 6, 20},
		"lineage.go",
		"if !wasInSync {", "if ON && wasInSync {\n\t\ts.Regions = nil\n\t}\n\tif !wasInSync {", "forced",
	},
	{
		"gives up only what it has written lately",
		[]int{5, 6, 20},
		"lineage.go",
		"s.Regions.Set(int(int64(i)", "if ON {\n\t\t\t\tbreak\n\t\t\t}\n\t\t\ts.Regions.Set(int(int64(i)", "forced",
	},
}

// late are mistakes that the first worlds do not show, and the seed of one that has shown it. It is the first to be tried. When the
// core has changed it may not show it any more; then the mistake is looked for from seed 1 on, which takes longer, and its log has the
// next seed to write here.
var late = map[string]uint64{
	"a read that the disk is at has no end when another node takes over": 9,
	"answers a change before the primary keeps to it":                    13,
	"clears bits when the granule is sent":                               2,
	"clears a region that others do not have durable":                    170,
	"counts the lease from the answer":                                   92,
	"does not fetch the longest log":                                     32,
	"does not repair what a copy went without":                           41,
	"drops a member before the rest have all":                            11,
	"forgets in a new life what it has promised":                         38,
	"forgets in a new life which records nobody else has":                2,
	"has a lease for longer than others wait":                            32,
	"keeps to a change before what that aborts has ended":                58,
	"keeps its lease while it is stopped":                                41,
	"reads at once by a lease of long ago":                               115,
	"reads at once what it misses":                                       45,
	"reads at once when its lease is over":                               106,
	"reads what goes through while it is written":                        2,
	"says without being the primary that this keeps to a change":         13,
	"writes as a candidate what nobody else may have":                    43,
}

// checked are the invariants that are looked at.
var checked = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}

// TestMutants: the simulation finds each mistake.
func TestMutants(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]bool{}
	all, ran := 0, 0 // fewer than all if -run selects some
	t.Cleanup(func() {
		for _, i := range checked {
			if !seen[i] && ran == all && !t.Failed() {
				t.Errorf("no mutant was found by invariant %d: is it still looked at?", i)
			}
		}
	})
	for _, p := range []struct {
		name string
		made []mutant
	}{{"replica", coreMutants}, {"reservations", fenceMutants}} {
		var built []mutants.Mutant
		for _, m := range p.made {
			built = append(built, mutants.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new})
		}
		program := mutants.Build(t, filepath.Join("..", p.name), "", built)
		for _, m := range p.made {
			all++
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				found := m.find(t, program)
				mu.Lock()
				defer mu.Unlock()
				seen[found] = true
				ran++
			})
		}
		if p.name == "replica" {
			t.Run("orders", func(t *testing.T) { findInOrders(t, program) })
			t.Run("shrink", func(t *testing.T) { shrinkMutant(t, program) })
		}
	}
}

// find runs the program until it has found the mistake, and returns the invariant.
func (m *mutant) find(t *testing.T, program string) (invariant int) {
	limit := number(t, "ONESHOT_SIM_MUTANT_RUNS", mutantRuns)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), mutants.Variable+"="+m.name, fmt.Sprintf("%s=%d", mutantLimit, limit),
		fmt.Sprintf("%s=%d", mutantSeed, late[m.name]), mutantTheme+"="+m.theme)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var seed uint64
	if _, err := fmt.Sscanf(string(out), "found %d %d", &seed, &invariant); err != nil {
		t.Fatalf("not found in %d runs: %s", limit, out)
	}
	text, _, _ := strings.Cut(string(out), "\n")
	t.Log(text)
	if !slices.Contains(m.invariants, invariant) {
		t.Errorf("found as a violation of %d, and should be of one of %v", invariant, m.invariants)
	}
	return invariant
}

// inOrders are mistakes that EachOrder has to find, too.
var inOrders = map[string]OrderOptions{
	"acknowledges before the quorum has it":    {Depth: 3},
	"answers a flush when it is applied":       {Depth: 5},
	"promises without cutting the old primary": {Depth: 4, Faults: 1, Passes: 1},
	"writes before the region is set":          {Depth: 4},
}

func findInOrders(t *testing.T, program string) {
	for _, m := range coreMutants {
		o, ok := inOrders[m.name]
		if !ok {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program)
			cmd.Env = append(os.Environ(), mutants.Variable+"="+m.name, fmt.Sprintf("%s=%d %d %d", mutantOrders, o.Depth, o.Faults, o.Passes))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var invariant int
			if _, err := fmt.Sscanf(string(out), "found %d", &invariant); err != nil || !slices.Contains(m.invariants, invariant) {
				t.Fatalf("not found as a violation of one of %v: %s", m.invariants, out)
			}
			t.Logf("%s", out)
		})
	}
}

// runOrders prints the first order that shows a mistake.
func runOrders(s string) {
	var o OrderOptions
	if _, err := fmt.Sscanf(s, "%d %d %d", &o.Depth, &o.Faults, &o.Passes); err != nil {
		panic(err)
	}
	res := EachOrder(o)
	if res.Violation == nil {
		fmt.Println("not in", res.Orders, "orders")
		return
	}
	fmt.Printf("found %d in order %d, %s: %s", res.Violation.Invariant, res.Orders, strings.Join(res.Names, ", "), res.Violation.Text)
}

// shrinkMutant: a world in which a mistake shows is shown with fewer faults, and fails again when these are left out.
func shrinkMutant(t *testing.T, program string) {
	const name = "promises without cutting the old primary"
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), mutants.Variable+"="+name, mutantShrinks+"=1", mutantTheme+"=deaf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var before, after, invariant, again int
	if _, err := fmt.Sscanf(string(out), "shrunk %d to %d, %d and %d", &before, &after, &invariant, &again); err != nil || after >= before || invariant != again {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}

// runShrink prints how many faults a world has until a mistake shows, how many are left, the invariant, and that of the world that is left.
func runShrink() {
	for seed := uint64(1); ; seed++ {
		o := Options{Seed: seed, Theme: os.Getenv(mutantTheme), Length: 60 * time.Second}
		whole := Run(o)
		if whole.Violation == nil || len(whole.Happened) < 4 {
			continue
		}
		s := Shrink(o, whole.Violation, shrinkLimit/2)
		o.Without = s.Without
		again := Run(o).Violation
		if again == nil {
			again = &Violation{Invariant: -1}
		}
		fmt.Printf("shrunk %d to %d, %d and %d\nseed %d %v", len(whole.Happened), len(s.Left), s.Violation.Invariant, again.Invariant, seed, &s)
		return
	}
}

// mutantRuns is the number of runs in which a mutant has to be found.
const mutantRuns = 200

// These variables tell the program of TestMutants how many runs it has, the seed to try first, and their theme; or that it is to do something else.
const (
	mutantLimit = "ONESHOT_MUTANT_LIMIT"
	mutantSeed  = "ONESHOT_MUTANT_SEED"
	mutantTheme = "ONESHOT_MUTANT_THEME"

	mutantOrders  = "ONESHOT_MUTANT_ORDERS"  // depth, faults, passes: the mistake is looked for in all orders
	mutantShrinks = "ONESHOT_MUTANT_SHRINKS" // the first world that shows it is shrunk
)

// TestMain belongs to two programs: that of the tests, and the one with the mistakes that TestMutants builds.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // worlds are small
	limit, err := strconv.ParseUint(os.Getenv(mutantLimit), 10, 64)
	switch {
	case os.Getenv(mutantOrders) != "":
		runOrders(os.Getenv(mutantOrders))
	case os.Getenv(mutantShrinks) != "":
		runShrink()
	case err != nil:
		os.Exit(m.Run())
	default:
		runMutant(limit)
	}
}

// runMutant prints the first violation.
func runMutant(limit uint64) {
	for seed := uint64(1); seed <= 3; seed++ {
		short := Options{Seed: seed, Length: 3 * time.Second}
		if first, second := Run(short), Run(short); first.Trace != second.Trace {
			fmt.Println("found", seed, "16 one seed runs in two ways")
			return
		}
	}
	shows := func(seed uint64) bool {
		v := Run(Options{Seed: seed, Theme: os.Getenv(mutantTheme), Length: 60 * time.Second}).Violation
		if v != nil {
			fmt.Printf("found %d %d %s\n", seed, v.Invariant, v.Text)
		}
		return v != nil
	}
	if known, _ := strconv.ParseUint(os.Getenv(mutantSeed), 10, 64); known > 0 && shows(known) {
		return
	}
	for seed := uint64(1); seed <= limit && !shows(seed); seed++ {
	}
}
