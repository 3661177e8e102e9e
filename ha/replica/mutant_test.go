//go:build !race

package replica

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"oneshot/internal/mutants"
)

// TestMutants: for each mistake there is a scenario that fails. These are the mistakes that the simulation finds once in
// hundreds of runs, if at all; it looks for the others (ha/sim).
func TestMutants(t *testing.T) {
	var all []mutants.Mutant
	for _, m := range scenarioMutants {
		all = append(all, m.Mutant)
	}
	program := mutants.Build(t, ".", "", all)
	for _, m := range scenarioMutants {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, "-test.run", "^"+m.test+"$")
			cmd.Env = append(os.Environ(), mutants.Variable+"="+m.Name)
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "--- FAIL: "+m.test+" ") {
				t.Errorf("%s does not fail: %s", m.test, out)
			}
		})
	}
}

var scenarioMutants = []struct {
	test string // the scenario
	mutants.Mutant
}{
	{"TestSilentMachine", mutants.Mutant{
		Name: "drops a silent member whose machine is there", File: "primary.go",
		Old: "c.now-c.peer[id].there > most)",
		New: "c.now-c.peer[id].there > most || ON && c.role == Primary)",
	}},
	{"TestSilentMachine", mutants.Mutant{
		Name: "keeps a silent member for ever", File: "primary.go",
		Old: "(quiet > 4*c.cfg.Lease ||",
		New: "(quiet > 4*c.cfg.Lease && !ON ||",
	}},
	{"TestSilentPrimary", mutants.Mutant{
		Name: "takes over though the primary's machine is there", File: "follower.go",
		Old: "\treturn c.isSilent(c.view.Primary,",
		New: "\tif ON {\n\t\treturn c.now-c.lastBeat > c.cfg.Grace+c.turn()\n\t}\n\treturn c.isSilent(c.view.Primary,",
	}},
	{"TestLongOnItsWay", mutants.Mutant{
		Name: "what was long on its way is late", File: "host.go",
		Old: "c.entry(seq).at = c.now",
		New: "if !ON {\n\t\t\tc.entry(seq).at = c.now\n\t\t}",
	}},
	{"TestLatePrimary", mutants.Mutant{
		Name: "a primary that was late drops all", File: "core.go",
		Old: "\t\tc.peer[id].heard = min(",
		New: "\t\tif ON {\n\t\t\tbreak\n\t\t}\n\t\tc.peer[id].heard = min(",
	}},
	{"TestWaitsAwake", mutants.Mutant{
		Name: "waits for copies while it sleeps", File: "core.go",
		Old: "c.slept += slept",
		New: "if !ON {\n\t\tc.slept += slept\n\t}",
	}},
	{"TestWaitsAwake", mutants.Mutant{
		Name: "only a tick wakes it", File: "core.go",
		Old: "c.wake()",
		New: "if _, is := e.(Tick); is || !ON {\n\t\tc.wake()\n\t}",
	}},
	{"TestPaceBound", mutants.Mutant{
		Name: "copies faster than its pace", File: "pace.go",
		Old: "return c.rate() == 0 ||",
		New: "return c.rate() == 0 || ON ||",
	}},
	{"TestPaceYields", mutants.Mutant{
		Name: "does not give way to reads", File: "pace.go",
		Old: "+ c.reading + ",
		New: "+ c.reading*map[bool]int{false: 1}[ON] + ",
	}},
	{"TestPaceYields", mutants.Mutant{
		Name: "does not give way to what hosts have written", File: "pace.go",
		Old: "return waiting+c.writing",
		New: "return waiting+c.writing*map[bool]int{false: 1}[ON]",
	}},
	{"TestPaceYields", mutants.Mutant{
		Name: "stops while hosts wait", File: "pace.go",
		Old: "c.now >= c.pace.next }",
		New: "c.now >= c.pace.next && (!ON || !c.yields()) }",
	}},
	{"TestPaceYields", mutants.Mutant{
		Name: "goes on at once between two commands", File: "pace.go",
		Old: "p.calm = max(",
		New: "if ON {\n\t\t\treturn\n\t\t}\n\t\tp.calm = max(",
	}},
	{"TestPaceYieldsMemory", mutants.Mutant{
		Name: "does not give way to who waits for memory", File: "pace.go",
		Old: "waiting := len(c.hungry) + ",
		New: "waiting := map[bool]int{false: len(c.hungry)}[ON] + ",
	}},
	{"TestPaceYieldsShortly", mutants.Mutant{
		Name: "gives way for long, however short a wait was", File: "pace.go",
		Old: "min(yieldFor*(c.now-p.since), ",
		New: "min(yieldFor*(c.now-p.since+map[bool]time.Duration{true: time.Hour}[ON]), ",
	}},
	{"TestPaceHeld", mutants.Mutant{
		Name: "gives way to who waits for this very copy", File: "pace.go",
		Old: " > 0 && c.mayWrite()",
		New: " > 0 && (ON || c.mayWrite())",
	}},
	{"TestPaceOfVerify", mutants.Mutant{
		Name: "compares without a pace", File: "verify.go",
		Old: "&& c.mayMove() &&",
		New: "&& (ON || c.mayMove()) &&",
	}},
	{"TestPaceOfVerify", mutants.Mutant{
		Name: "compares while a copy waits", File: "verify.go",
		Old: "&& !c.pace.holds {",
		New: "&& (ON || !c.pace.holds) {",
	}},
	{"TestPaceOfPieces", mutants.Mutant{
		Name: "copies pieces without a pace", File: "missing.go",
		Old: "if !c.mayMove() {",
		New: "if !ON && !c.mayMove() {",
	}},
	{"TestDuel", mutants.Mutant{
		Name: "stands again when the other one does", File: "candidate.go",
		Old: "\tif c.view.Primary == c.cfg.Self {\n\t\tc.asleep += 4 * turn",
		New: "\tif c.view.Primary == c.cfg.Self && !ON {\n\t\tc.asleep += 4 * turn",
	}},
	{"TestOnePromiseTooFew", mutants.Mutant{
		Name: "needs one promise less", File: "candidate.go",
		Old: "if !c.isEnough(members) {",
		New: "if !c.isEnough(members) && (!ON || members == 0) {",
	}},
	{"TestCommittedByConnected", mutants.Mutant{
		Name: "counts what a member had that is not connected any more", File: "core.go",
		Old: "c.peer[id].stream == 0 {\n\t\treturn 0",
		New: "c.peer[id].stream == 0 && !ON {\n\t\treturn 0",
	}},
	{"TestCancel", mutants.Mutant{
		Name: "what a host has given up waits on", File: "host.go",
		Old: "if o.id != id || o.kind == opSwap",
		New: "if o.id != id || ON || o.kind == opSwap",
	}},
	{"TestGrownAlone", mutants.Mutant{
		Name: "takes the size of its own copy for that of all", File: "stores.go",
		Old: "p.stream == 0 || len(p.fits) > 0 {",
		New: "(p.stream == 0 || len(p.fits) > 0) && !ON {",
	}},
	{"TestGrownAlone", mutants.Mutant{
		Name: "does not make a member's store larger", File: "stores.go",
		Old: "\tfor _, r := range p.fits {\n",
		New: "\tfor _, r := range p.fits {\n\t\tif ON {\n\t\t\tbreak\n\t\t}\n",
	}},
	{"TestLargerCopy", mutants.Mutant{
		Name: "leaves what a larger copy has behind the end", File: "stores.go",
		Old: "\t\t\tend = max(end, s.Off+p.sizes[i])\n",
		New: "\t\t\tif !ON {\n\t\t\t\tend = max(end, s.Off+p.sizes[i])\n\t\t\t}\n",
	}},
	{"TestLargerCopy", mutants.Mutant{
		Name: "has its disk read behind the end of a store", File: "resync.go",
		Old: "Addr: j.addr, Behind: behind}",
		New: "Addr: j.addr, Behind: map[bool]int64{false: behind}[ON]}",
	}},
	{"TestLargerCopy", mutants.Mutant{
		Name: "asks others for what is behind the end of a store", File: "missing.go",
		Old: "if has := c.end(off) - off; has > 0 {",
		New: "if has := c.end(off) - off; has > 0 && !ON {",
	}},
	{"TestKeepsLog", mutants.Mutant{
		Name: "a copy gives up its log before it knows that it is outside", File: "follower.go",
		Old: "\t\tc.suspect()\n",
		New: "\t\tc.suspect()\n\t\tif ON {\n\t\t\tc.resetLog(0)\n\t\t\tc.memory = false\n\t\t}\n",
	}},
	{"TestOldView", mutants.Mutant{
		Name: "forgets in a new life which view it has known", File: "core.go",
		Old: "\t\tc.adopt(memory.View)\n",
		New: "\t\tif !ON {\n\t\t\tc.adopt(memory.View)\n\t\t}\n",
	}},
	{"TestDisputedByProposed", mutants.Mutant{
		Name: "takes itself for alone while another member is proposed", File: "confirmed.go",
		Old: "if c.proposed != nil {",
		New: "if c.proposed != nil && !ON {",
	}},
	{"TestOfficeByConsensus", mutants.Mutant{
		Name: "takes the office by the word of a member", File: "core.go",
		Old: "if v.Primary != c.cfg.Self || c.role == Primary && v.Term == c.view.Term {",
		New: "if v.Primary != c.cfg.Self || c.role == Primary && v.Term == c.view.Term || ON {",
	}},
	{"TestProposedGoesOn", mutants.Mutant{
		Name: "a copy begins anew while it is taken in", File: "primary.go",
		Old: "c.proposed != nil && c.proposed.InSync.Has(id)\n",
		New: "c.proposed != nil && c.proposed.InSync.Has(id) && !ON\n",
	}},
	{"TestLoadsForNobody", mutants.Mutant{
		Name: "lets others write while its own disk still does", File: "resync.go",
		Old: "j.loading = true\n\tc.loading++\n",
		New: "j.loading = true\n\tif !ON {\n\t\tc.loading++\n\t}\n",
	}},
	{"TestProof", mutants.Mutant{
		Name: "reads without proof that it is primary", File: "primary.go",
		Old: "\treturn c.provenIn(&c.view, now, beat)",
		New: "\treturn c.provenIn(&c.view, now, beat) || ON",
	}},
	{"TestProvenByLaterBeat", mutants.Mutant{
		Name: "takes a beat for proof that was sent before the read came", File: "primary.go",
		Old: "p.answered >= beat ||",
		New: "p.answered >= beat || ON && p.answered+1 >= beat ||",
	}},
	{"TestProvenByLaterBeat", mutants.Mutant{
		Name: "asks for proof when the disk has read", File: "host.go",
		Old: "c.wants = max(c.wants, o.beat)\n\t\tc.out",
		New: "if !ON {\n\t\t\tc.wants = max(c.wants, o.beat)\n\t\t}\n\t\tc.out",
	}},
	{"TestLease", mutants.Mutant{
		Name: "counts the lease from the answer", File: "primary.go",
		Old: "max(p.proven, b.at)\n",
		New: "max(p.proven, b.at)\n\t\t\tif ON {\n\t\t\t\tp.proven = c.now\n\t\t\t}\n",
	}},
	{"TestLeaseHandedOver", mutants.Mutant{
		Name: "keeps the lease while it hands over", File: "primary.go",
		Old: "c.proposed.Planned || !c",
		New: "c.proposed.Planned && !ON || !c",
	}},
	{"TestAppliedIsToldLater", mutants.Mutant{
		Name: "tells at once what its disk has", File: "follower.go",
		Old: "if a == applied && !c.ticked",
		New: "if a == applied && !ON && !c.ticked",
	}},
	{"TestAppliedIsToldLater", mutants.Mutant{
		Name: "keeps to itself that much memory is free", File: "follower.go",
		Old: "n < c.cfg.Heap/16",
		New: "(ON || n < c.cfg.Heap/16)",
	}},
	{"TestLeaseOrPromise", mutants.Mutant{
		Name: "gives a lease and a promise", File: "follower.go",
		Old: "c.now-c.lastBeat <= c.cfg.Grace && from",
		New: "c.now-c.lastBeat <= c.cfg.Grace && !ON && from",
	}},
	{"TestProof", mutants.Mutant{
		Name: "flushes without proof that it is primary", File: "host.go",
		Old: "c.proving = append(c.proving, o) // another",
		New: "if ON {\n\t\t\tc.answer(o.id, Good)\n\t\t\treturn true\n\t\t}\n\t\tc.proving = append(c.proving, o) // another",
	}},
	{"TestAmnesiacLease", mutants.Mutant{
		Name: "gives a lease though it has forgotten all views", File: "follower.go",
		Old: "ok = ok && c.memory // who",
		New: "ok = ok && (c.memory || ON) // who",
	}},
	{"TestMemoryForCopies", mutants.Mutant{
		Name: "lets writes take the memory that a copy needs to return", File: "resync.go",
		Old: "addr, ok := c.alloc(c.spare, n)",
		New: "addr, ok := c.alloc(c.heapOf(map[bool]int64{false: c.cfg.Heap}[ON]), n)",
	}},
	{"TestTakenInWithThisLog", mutants.Mutant{
		Name: "takes in a copy that may have an old log", File: "primary.go",
		Old: "return p.begun && ",
		New: "return (p.begun || ON) && p.started && ",
	}},
	{"TestRefusedWaits", mutants.Mutant{
		Name: "drops who could take over from a bad disk", File: "primary.go",
		Old: "if c.isDiskBad() {",
		New: "if c.isDiskBad() && !ON {",
	}},
	{"TestRefusedWaits", mutants.Mutant{
		Name: "takes a bad disk that is tried again for a good one", File: "disk.go",
		Old: "c.isHung() || c.now-c.again < c.cfg.Lease }",
		New: "c.isHung() || c.now-c.again < c.cfg.Lease && !ON }",
	}},
	{"TestHungWaits", mutants.Mutant{
		Name: "drops who could take over from a hung disk", File: "primary.go",
		Old: "silent = c.cfg.SlowCopy",
		New: "if !ON || c.refused || c.now-c.again < c.cfg.Lease {\n\t\t\tsilent = c.cfg.SlowCopy\n\t\t}",
	}},
	{"TestTakenInBehindAll", mutants.Mutant{
		Name: "takes in a copy that cannot give a member what is before its log", File: "primary.go",
		Old: " && c.commit >= p.behind && ",
		New: " && (c.commit >= p.behind || ON) && ",
	}},
	{"TestLowerLog", mutants.Mutant{
		Name: "takes what others had of another log for what they have of this one", File: "disk.go",
		Old: "\tc.freed = 0 //",
		New: "\tc.freed = map[bool]uint64{true: c.freed}[ON] //",
	}},
	{"TestLowerLog", mutants.Mutant{
		Name: "has promised of another log what is not in this one", File: "disk.go",
		Old: "\tc.flushed = 0\n",
		New: "\tc.flushed = map[bool]uint64{true: c.flushed}[ON]\n",
	}},
	{"TestHandedOverAfterRestart", mutants.Mutant{
		Name: "takes the office though only a candidate has told it of the log", File: "core.go",
		Old: "c.fed && c.source == old.Primary && ",
		New: "c.fed && (c.source == old.Primary || ON) && ",
	}},
	{"TestSlowOutside", mutants.Mutant{
		Name: "lets hosts wait for a slow copy that is outside", File: "primary.go",
		Old: "slow := c.holdsUp(p)\n",
		New: "slow := c.holdsUp(p) && !ON\n",
	}},
	{"TestSlowOutside", mutants.Mutant{
		Name: "gives up a copy for which hosts wait", File: "primary.go",
		Old: "len(c.hungry) == 0 || !c.mayWrite() ||",
		New: "len(c.hungry) == 0 || !c.mayWrite() && !ON ||",
	}},
	{"TestSlowOutside", mutants.Mutant{
		Name: "begins at once with a copy that was too slow", File: "primary.go",
		Old: "!asMember && (c.now < p.rests ||",
		New: "!asMember && (c.now < p.rests && !ON ||",
	}},
	{"TestDoubtfulOnce", mutants.Mutant{
		Name: "is in doubt for ever of what a power cut has left", File: "primary.go",
		Old: "if c.earlyTo == math.MaxUint64 {",
		New: "if c.earlyTo == math.MaxUint64 && !ON {",
	}},
	{"TestDrainedAlone", mutants.Mutant{
		Name: "is drained, and lets nobody serve", File: "follower.go",
		Old: "!(c.vain && c.now-c.lastBeat",
		New: "!(c.vain && !ON && c.now-c.lastBeat",
	}},
	{"TestDrainedAlone", mutants.Mutant{
		Name: "is drained, and takes over from one that remembers", File: "candidate.go",
		Old: "c.isExcused() && !c.takersForget() {",
		New: "c.isExcused() && !c.takersForget() && !ON {",
	}},
	{"TestHandedOverHung", mutants.Mutant{
		Name: "drops who has had no time to tell what it has", File: "primary.go",
		Old: "if p.stream == 0 && c.now-c.took <= c.cfg.SlowCopy {",
		New: "if p.stream == 0 && c.now-c.took <= c.cfg.SlowCopy && !ON {",
	}},
	{"TestFlushedBefore", mutants.Mutant{
		Name: "forgets a flush that the primary before has answered", File: "primary.go",
		Old: "c.flushed = max(c.flushed, min(c.syncTo, c.log.last()), c.durable)",
		New: "c.flushed = max(c.flushed, min(c.syncTo, c.log.last()), map[bool]uint64{false: c.durable}[ON])",
	}},
	{"TestHungLease", mutants.Mutant{
		Name: "gives a lease while its hung disk keeps it from taking records", File: "follower.go",
		Old: "if c.stream == 0 && c.isHung() {",
		New: "if c.stream == 0 && c.isHung() && !ON {",
	}},
	{"TestMemoryOfBefore", mutants.Mutant{
		Name: "gives memory that older records may have", File: "primary.go",
		Old: "if c.freed < c.base {",
		New: "if c.freed < c.base && !ON {",
	}},
	{"TestMemoryOfBefore", mutants.Mutant{
		Name: "takes its own log's begin for what all have applied", File: "primary.go",
		Old: "c.freed = max(freed, c.trim)",
		New: "c.freed = max(freed, map[bool]uint64{false: c.trim, true: c.base}[ON])",
	}},
	{"TestMemoryOfBefore", mutants.Mutant{
		Name: "waits for ever for a disk that has a record before its log", File: "primary.go",
		Old: "if at >= c.base {",
		New: "if at >= c.base || ON {",
	}},
	{"TestMemoryOfBeforeForCopies", mutants.Mutant{
		Name: "repairs its disk with memory that older records may have", File: "mend.go",
		Old: "addr, ok := c.alloc(c.spare, n)\n",
		New: "addr, ok := c.alloc(c.spare, n)\n\tif ON && !ok {\n\t\taddr, ok = c.spare.alloc(n)\n\t}\n",
	}},
	{"TestMemoryOfBeforeForCopies", mutants.Mutant{
		Name: "brings a copy level with memory that older records may have", File: "resync.go",
		Old: "\t\t\tif !ok {\n\t\t\t\tbreak\n",
		New: "\tif ON && !ok {\n\t\taddr, ok = c.spare.alloc(n)\n\t}\n\t\t\tif !ok {\n\t\t\t\tbreak\n",
	}},
	{"TestMemoryOfBeforeForCopies", mutants.Mutant{
		Name: "repairs a member with memory that older records may have", File: "verify.go",
		Old: "addr, ok := c.alloc(c.spare, f.n)\n",
		New: "addr, ok := c.alloc(c.spare, f.n)\n\tif ON && !ok {\n\t\taddr, ok = c.spare.alloc(f.n)\n\t}\n",
	}},
	{"TestNoRoomForCopies", mutants.Mutant{
		Name: "compares again what finds no room in the log", File: "host.go",
		Old: "!o.comparing && c.hasRoom() && ",
		New: "!o.comparing && (ON || c.hasRoom()) && ",
	}},
	{"TestNoRoomForCopies", mutants.Mutant{
		Name: "reads again what finds no room in the log", File: "resync.go",
		Old: "if !c.hasRoomForJob() {",
		New: "if !c.hasRoomForJob() && !ON {",
	}},
	{"TestNoRoomForCopies", mutants.Mutant{
		Name: "fetches again what finds no room in the log", File: "mend.go",
		Old: "!c.isLockedBut(m) && c.hasRoomForJob() {",
		New: "!c.isLockedBut(m) && (ON || c.hasRoomForJob()) {",
	}},
	{"TestNoRoomForCopies", mutants.Mutant{
		Name: "reads again for a member what finds no room in the log", File: "verify.go",
		Old: "c.isLocked(f.off, f.n) || !c.hasRoomForJob() {",
		New: "c.isLocked(f.off, f.n) || !c.hasRoomForJob() && !ON {",
	}},
	{"TestHungStandsLast", mutants.Mutant{
		Name: "stands as soon as others though its disk hangs", File: "follower.go",
		Old: "if c.isDiskBad() {",
		New: "if c.isDiskBad() && !ON {",
	}},
	{"TestHungStandsLast", mutants.Mutant{
		Name: "goes alone as soon as others though its disk hangs", File: "candidate.go",
		Old: "c.isDiskBad() && c.now-d.at < lame) {",
		New: "c.isDiskBad() && c.now-d.at < lame && !ON) {",
	}},
	{"TestCandidateAndHungDisk", mutants.Mutant{
		Name: "waits as a candidate for a disk that hangs", File: "candidate.go",
		Old: "if c.now-c.cand.began <= stuckAfter/2 {",
		New: "if c.now-c.cand.began <= stuckAfter/2 || ON {",
	}},
	{"TestCandidateAndHungDisk", mutants.Mutant{
		Name: "leaves out as a candidate who is needed", File: "candidate.go",
		Old: "if !c.isEnough(rest) {",
		New: "if !c.isEnough(rest) && !ON {",
	}},
	{"TestDrainedWhileSealed", mutants.Mutant{
		Name: "hands over to who was drained while it waited", File: "switch.go",
		Old: "if !c.takers().Has(c.successor) {",
		New: "if !c.takers().Has(c.successor) && !ON {",
	}},
	{"TestGoesWithWritten", mutants.Mutant{
		Name: "has a copy go without what it has got", File: "missing.go",
		Old: "case c.hasGot(p, j.off, j.n):",
		New: "case !ON && c.hasGot(p, j.off, j.n):",
	}},
	{"TestGoesWithWritten", mutants.Mutant{
		Name: "takes a part of a block for all of it", File: "wrote.go",
		Old: "(r.Off + n - 1) / n * n; off+n <= r.Off+r.Len;",
		New: "(r.Off + n - 1) / n * n; off+n <= r.Off+r.Len || ON && off < r.Off+r.Len;",
	}},
	{"TestGoesWithWritten", mutants.Mutant{
		Name: "keeps its notes of a granule that is copied", File: "resync.go",
		Old: "\tp.wrote.forget(c.blocksOf(off, c.granuleFor(p, off)))",
		New: "\tif !ON {\n\t\tp.wrote.forget(c.blocksOf(off, c.granuleFor(p, off)))\n\t}",
	}},
	{"TestDiskRefusesForGood", mutants.Mutant{
		Name: "reads again what was delivered", File: "host.go",
		Old: "c.mendFor(o, func(ok bool) { c.endRead(o, ok) })",
		New: "c.mendFor(o, func(ok bool) {\n\t\t\tif ON && ok {\n\t\t\t\tc.reads = append(c.reads, o)\n\t\t\t\treturn\n\t\t\t}\n\t\t\tc.endRead(o, ok)\n\t\t})",
	}},
	{"TestDiskRefusesForGood", mutants.Mutant{
		Name: "compares again with a disk that refuses", File: "host.go",
		Old: "o.comparing, o.delivered = false, ok",
		New: "o.comparing, o.delivered = false, ok && !ON",
	}},
	{"TestReadMergesBlocks", mutants.Mutant{
		Name: "does not deliver what its own disk has", File: "mend.go",
		Old: "\tc.deliver(j)\n\tc.dropJob(j)\n\tc.mended(m, j.n)",
		New: "\tif !ON {\n\t\tc.deliver(j)\n\t}\n\tc.dropJob(j)\n\tc.mended(m, j.n)",
	}},
	{"TestRepairTorn", mutants.Mutant{
		Name: "fetches for ever what never arrives whole", File: "mend.go",
		Old: "j.mends.torn == maxTorn {",
		New: "j.mends.torn == maxTorn && !ON {",
	}},
	{"TestRepair", mutants.Mutant{
		Name: "repairs with what another has not got yet", File: "mend.go",
		Old: "c.unapplied(j.off, j.n) || p.applied < c.newestIn(j.off, j.n):",
		New: "c.unapplied(j.off, j.n) || p.applied < c.newestIn(j.off, j.n) && !ON:",
	}},
	{"TestReadWaitsForCopy", mutants.Mutant{
		Name: "reports what it cannot read though a copy may return", File: "mend.go",
		Old: "c.awake() < m.until && ",
		New: "c.awake() < m.until && !ON && ",
	}},
	{"TestReadWaitsForCopy", mutants.Mutant{
		Name: "waits for ever for a copy that may return", File: "mend.go",
		Old: "c.now-c.peer[id].heard < c.cfg.SlowCopy &&",
		New: "(c.now-c.peer[id].heard < c.cfg.SlowCopy || ON) &&",
	}},
	{"TestOddIsNoSource", mutants.Mutant{
		Name: "repairs with what it knows to be wrong", File: "mend.go",
		Old: "c.healthy(m.tried|c.oddIn(off, n), off, n)",
		New: "c.healthy(m.tried|c.oddIn(off, n)&map[bool]Nodes{false: ^Nodes(0)}[ON], off, n)",
	}},
	{"TestOddIsNoSource", mutants.Mutant{
		Name: "asks for what it knows to be wrong", File: "mend.go",
		Old: "case c.oddIn(j.off, j.n).Has(j.from):",
		New: "case c.oddIn(j.off, j.n).Has(j.from) && !ON:",
	}},
	{"TestOddIsNoSource", mutants.Mutant{
		Name: "takes what it knows to be wrong by now", File: "mend.go",
		Old: "c.oddIn(j.off, j.n).Has(j.from), !c.hasRoom():",
		New: "c.oddIn(j.off, j.n).Has(j.from) && !ON, !c.hasRoom():",
	}},
	{"TestOddIsNoSource", mutants.Mutant{
		Name: "repairs for ever with what it cannot read", File: "resync.go",
		Old: "j.fault.lose(c.cfg.Self)",
		New: "if !ON {\n\t\t\t\tj.fault.lose(c.cfg.Self)\n\t\t\t}",
	}},
	{"TestOddLeaves", mutants.Mutant{
		Name: "forgets what is wrong on who has left", File: "verify.go",
		Old: "c.mark(&c.bitmaps[id], f.off, f.n)",
		New: "if !ON {\n\t\t\t\tc.mark(&c.bitmaps[id], f.off, f.n)\n\t\t\t}",
	}},
	{"TestRepairBeforeSwitch", mutants.Mutant{
		Name: "hands over while the other still reads for it", File: "switch.go",
		Old: "return j.asked }) {",
		New: "return j.asked && !ON }) {",
	}},
	{"TestSwitchGivenUp", mutants.Mutant{
		Name: "forgets who waits for a switch that was given up", File: "switch.go",
		Old: "c.now+handAgainAfter\n",
		New: "c.now+handAgainAfter\n\t\tif ON {\n\t\t\treturn\n\t\t}\n",
	}},
	{"TestStopVerify", mutants.Mutant{
		Name: "compares on though it is to stop", File: "core.go",
		Old: "\t\tif c.verify != nil {",
		New: "\t\tif c.verify != nil && !ON {",
	}},
	{"TestCandidateDrained", mutants.Mutant{
		Name: "goes on with its candidature when it is drained", File: "switch.go",
		Old: "c.role == Candidate && c.proposed == nil",
		New: "!ON && c.role == Candidate && c.proposed == nil",
	}},
	{"TestSwitchToDrained", mutants.Mutant{
		Name: "hands over to a node that is drained", File: "switch.go",
		Old: "!c.sealing && c.takers().Has(id)",
		New: "!c.sealing && (c.takers().Has(id) || ON)",
	}},
	{"TestBadDiskAmongDrained", mutants.Mutant{
		Name: "keeps the office with a bad disk because others are drained", File: "switch.go",
		Old: "if c.role == Primary && c.isDiskBad() {",
		New: "if !ON && c.role == Primary && c.isDiskBad() {",
	}},
	{"TestBadDiskAmongDrained", mutants.Mutant{
		Name: "hands back to a bad disk at once", File: "primary.go",
		Old: "if c.view.Planned && c.isExcused() {",
		New: "if !ON && c.view.Planned && c.isExcused() {",
	}},
	{"TestHandedOn", mutants.Mutant{
		Name: "hands on what it does not have", File: "log.go",
		Old: "if r := &recs[i]; r.Kind == KindResync",
		New: "if r := &recs[i]; !ON && r.Kind == KindResync",
	}},
	{"TestAmnesiacCandidate", mutants.Mutant{
		Name: "an amnesiac candidate keeps its promises", File: "candidate.go",
		Old: "\t\tc.resign() // who",
		New: "\t\tif ON {\n\t\t\treturn\n\t\t}\n\t\tc.resign() // who",
	}},
	{"TestOldView", mutants.Mutant{
		Name: "forgets in a power cut which view it has known", File: "core.go",
		Old: "if saved.View.Version > 0 {",
		New: "if saved.View.Version > 0 && !ON {",
	}},
	{"TestFormerLife", mutants.Mutant{
		Name: "takes the reign of its former life for its own", File: "candidate.go",
		Old: "Life: c.cfg.Incarnation, ",
		New: "Life: map[bool]uint32{false: c.cfg.Incarnation}[ON], ",
	}},
	{"TestAloneAndDurable", mutants.Mutant{
		Name: "is alone with what it has not got durable", File: "candidate.go",
		Old: "c.durable < c.flushed {",
		New: "c.durable < c.flushed && !ON {",
	}},
	{"TestBehindTheEnd", mutants.Mutant{
		Name: "waits for granules that are not in a store any more", File: "resync.go",
		Old: "if n <= 0 {",
		New: "if n <= 0 && ON {\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\tif n <= 0 {",
	}},
	{"TestRefusedInPart", mutants.Mutant{
		Name: "suspects nothing that the disk has refused", File: "disk.go",
		Old: "e.state, e.begun = stateWriting, true",
		New: "e.state, e.begun = stateWriting, !ON",
	}},
	{"TestKilledInPart", mutants.Mutant{
		Name: "suspects nothing that a former life has begun", File: "core.go",
		Old: "begun: true, at: c.now",
		New: "begun: !ON, at: c.now",
	}},
	{"TestForgetsSuspects", mutants.Mutant{
		Name: "suspects for ever what it has been given", File: "marks.go",
		Old: "if r.Copy == c.cfg.Self {",
		New: "if r.Copy == c.cfg.Self && !ON {",
	}},
	{"TestForgetsSuspects", mutants.Mutant{
		Name: "suspects no more what it has not written yet", File: "marks.go",
		Old: "\tcase KindClean:\n",
		New: "\tcase KindResync:\n\t\tif ON && r.Copy == c.cfg.Self {\n\t\t\tc.suspects.Clear(c.granule(r.Off))\n\t\t}\n\tcase KindClean:\n",
	}},
	{"TestForgetsSuspects", mutants.Mutant{
		Name: "suspects nothing that was copied to it", File: "marks.go",
		Old: "case e.changes(c.cfg.Self)",
		New: "case e.changes(c.cfg.Self) && !(ON && e.Kind == KindResync)",
	}},
	{"TestForgetsSuspects", mutants.Mutant{
		Name: "suspects nothing that it has durable, and others perhaps have not", File: "marks.go",
		Old: "case e.changes(c.cfg.Self)",
		New: "case e.changes(c.cfg.Self) && !(ON && e.Seq <= c.durable)",
	}},
	{"TestForgetsSuspects", mutants.Mutant{
		Name: "suspects nothing that was written since it was called clean", File: "marks.go",
		Old: "case e.changes(c.cfg.Self)",
		New: "case e.changes(c.cfg.Self) && !(ON && e.isWritten())",
	}},
	{"TestHungMember", mutants.Mutant{
		Name: "a member does not tell that its disk hangs", File: "follower.go",
		Old: "c.refused || c.isHung()}",
		New: "c.refused || c.isHung() && !ON}",
	}},
	{"TestNotRepaired", mutants.Mutant{
		Name: "forgets that a range cannot be read", File: "verify.go",
		Old: "Odd: f.odd.With(c.cfg.Self), Unreadable: f.unreadable",
		New: "Odd: f.odd.With(c.cfg.Self), Unreadable: map[bool]Nodes{false: f.unreadable}[ON]",
	}},
	{"TestHashedOutside", mutants.Mutant{
		Name: "takes the hash of a copy that is outside", File: "verify.go",
		Old: "c.verify != nil && c.view.InSync.Has(from) {",
		New: "c.verify != nil && (ON || c.view.InSync.Has(from)) {",
	}},
	{"TestReadFromProposed", mutants.Mutant{
		Name: "reads only from copies that it knows to be members", File: "mend.go",
		Old: "\tif c.proposed != nil {\n\t\tmembers",
		New: "\tif c.proposed != nil && !ON {\n\t\tmembers",
	}},
	{"TestReadsMove", mutants.Mutant{
		Name: "a read that the disk is at has no end when another node takes over", File: "host.go",
		Old: "if p.work.kind == workRead { // no list",
		New: "if p.work.kind == workRead && !ON { // no list",
	}},
	{"TestReadBehindCopying", mutants.Mutant{
		Name: "a read waits for what changes nothing", File: "disk.go",
		Old: "|| !f.changes(c.cfg.Self) ||",
		New: "|| !f.changes(c.cfg.Self) && !ON ||",
	}},
	{"TestCopyingWaits", mutants.Mutant{
		Name: "granules that a copy does not have stand one behind the other without bounds", File: "resync.go",
		Old: "p.copying+p.onTheirWay()+len(p.checks) < c.cfg.Copying",
		New: "p.copying+p.onTheirWay()+len(p.checks) < c.cfg.Copying || ON && p.copying < c.cfg.Copying",
	}},
	{"TestCompareFirst", mutants.Mutant{
		Name: "takes what one of the two cannot read for equal", File: "compare.go",
		Old: "k.failed&both != 0 ||",
		New: "!ON && k.failed&both != 0 ||",
	}},
	{"TestCompareFirstPatience", mutants.Mutant{
		Name: "compares what was compared", File: "compare.go",
		Old: "!p.differ.Has(granule) &&",
		New: "(ON || !p.differ.Has(granule)) &&",
	}},
	{"TestLargerCopy", mutants.Mutant{
		Name: "compares what lies behind its end", File: "compare.go",
		Old: "&& n == c.granuleLen(int64(granule)*c.cfg.Granule)",
		New: "&& (ON || n == c.granuleLen(int64(granule)*c.cfg.Granule))",
	}},
	{"TestCompareFirstFormer", mutants.Mutant{
		Name: "compares a copy that does not suspect what is equal", File: "compare.go",
		Old: "return p.stream&suspectsEqual != 0 &&",
		New: "return (ON || p.stream&suspectsEqual != 0) &&",
	}},
	{"TestSuspectsEqual", mutants.Mutant{
		Name: "does not suspect what was compared", File: "marks.go",
		Old: "case e.Kind == KindCheck:",
		New: "case e.Kind == KindCheck && !ON:",
	}},
	{"TestSuspectsEqual", mutants.Mutant{
		Name: "suspects what members have compared", File: "disk.go",
		Old: "e.begun = !c.view.InSync.Has(c.cfg.Self)",
		New: "e.begun = ON || !c.view.InSync.Has(c.cfg.Self)",
	}},
	{"TestCompareFirstAgain", mutants.Mutant{
		Name: "an answer of before counts", File: "primary.go",
		Old: "p.losses, p.wrote, p.comparing = 0, nil, nil, nil, 0, wrote{}, comparing{}",
		New: "p.losses, p.wrote, p.comparing = 0, nil, nil, nil, 0, wrote{}, map[bool]comparing{true: p.comparing}[ON]",
	}},
	{"TestReadAsksForSync", mutants.Mutant{
		Name: "a read waits until others have durable what it reads, and does not ask for it", File: "disk.go",
		Old: "if c.isThrough(off) {\n\t\tc.syncTo",
		New: "if c.isThrough(off) && !ON {\n\t\tc.syncTo",
	}},
	{"TestHandedOver", mutants.Mutant{
		Name: "takes for granted that all have what the successor has", File: "primary.go",
		Old: "c.freed, c.trim, max(c.freed, c.trim)",
		New: "c.freed, c.trim, map[bool]uint64{false: max(c.freed, c.trim), true: c.view.First - 1}[ON]",
	}},
	{"TestUnknownDisk", mutants.Mutant{
		Name: "stands with a disk that is not its own", File: "follower.go",
		Old: "c.loading > 0 || c.unknown {",
		New: "c.loading > 0 || c.unknown && !ON {",
	}},
	{"TestSyncOfBefore", mutants.Mutant{
		Name: "takes a sync of the log before for one of the new log", File: "disk.go",
		Old: "\t\tw.seq = 0\n",
		New: "\t\tif !ON {\n\t\t\tw.seq = 0\n\t\t}\n",
	}},
	{"TestGoesWithout", mutants.Mutant{
		Name: "waits for ever for what nobody can read", File: "missing.go",
		Old: "case p.losses+j.n > maxLosses*c.cfg.Unit,",
		New: "case p.losses+j.n > maxLosses*c.cfg.Unit, ON,",
	}},
	{"TestGoesWithoutNothing", mutants.Mutant{
		Name: "has a copy go without as much as there is", File: "missing.go",
		Old: "case p.losses+j.n > maxLosses*c.cfg.Unit,",
		New: "case p.losses+j.n > maxLosses*c.cfg.Unit && !ON,",
	}},
	{"TestGoesWithoutNothing", mutants.Mutant{
		Name: "has a copy of a former version go without something", File: "missing.go",
		Old: "!c.areNew(),",
		New: "!c.areNew() && !ON,",
	}},
	{"TestDiskKeepsNothing", mutants.Mutant{
		Name: "goes without what its source does not keep", File: "missing.go",
		Old: "case !s.hopeless || from != c.cfg.Self || waits:",
		New: "case !(ON && s.mended) && (!s.hopeless || from != c.cfg.Self || waits):",
	}},
	{"TestDiskKeepsNothing", mutants.Mutant{
		Name: "takes a granule for copied that another stream has got", File: "missing.go",
		Old: "m.copy != nil && p.sift == s {",
		New: "m.copy != nil && (p.sift == s || ON) {",
	}},
	{"TestReadMergesBlocks", mutants.Mutant{
		Name: "reads no less than a piece", File: "mend.go",
		Old: "case c.block > 0 && n > c.block:",
		New: "case c.block > 0 && n > c.block && !ON:",
	}},
	{"TestVerifyMerges", mutants.Mutant{
		Name: "repairs nothing of what no copy has as a whole", File: "verify.go",
		Old: "if !v.Repair || step",
		New: "if ON || !v.Repair || step",
	}},
	{"TestVerifyMerges", mutants.Mutant{
		Name: "ends a comparison before the smaller pieces", File: "verify.go",
		Old: "len(v.checks)+len(v.finer)+len(v.faults) == 0 &&",
		New: "len(v.checks)+len(v.finer)*map[bool]int{false: 1}[ON]+len(v.faults) == 0 &&",
	}},
	{"TestMissingIsDurable", mutants.Mutant{
		Name: "has what is not durable", File: "disk.go",
		Old: "c.fold(c.synced)",
		New: "c.fold(map[bool]uint64{false: c.synced, true: c.disk.applied}[ON])",
	}},
	{"TestMissingIsDurable", mutants.Mutant{
		Name: "does not try again what it misses", File: "missing.go",
		Old: "c.suspects.Set(c.granule(off))",
		New: "if !ON {\n\t\t\t\tc.suspects.Set(c.granule(off))\n\t\t\t}",
	}},
	{"TestMissingIsNotShown", mutants.Mutant{
		Name: "lends what it misses", File: "mend.go",
		Old: "to: from, lost: c.misses(l.Off, l.Len)}",
		New: "to: from, lost: c.misses(l.Off, l.Len) && !ON}",
	}},
	{"TestMissingIsNotShown", mutants.Mutant{
		Name: "hashes what it misses", File: "disk.go",
		Old: "lost: c.misses(e.Off, e.Len)}",
		New: "lost: c.misses(e.Off, e.Len) && !ON}",
	}},
	{"TestMissingIsNotShown", mutants.Mutant{
		Name: "reads what it misses", File: "host.go",
		Old: "op: o, lost: c.misses(o.off, o.n)}), Req: o.id, Off: o.off, Len: o.n}))",
		New: "op: o, lost: c.misses(o.off, o.n) && !ON}), Req: o.id, Off: o.off, Len: o.n}))",
	}},
	{"TestMissingIsNotShown", mutants.Mutant{
		Name: "compares with what it misses", File: "host.go",
		Old: "lost: !o.delivered && c.misses(o.off, o.n)}",
		New: "lost: !o.delivered && !ON && c.misses(o.off, o.n)}",
	}},
	{"TestKept", mutants.Mutant{
		Name: "asks a copy for what it lacks", File: "kept.go",
		Old: "c.bitmaps[id].Has(g) && (!c.left.Has(id)",
		New: "c.bitmaps[id].Has(g) && !ON && (!c.left.Has(id)",
	}},
	{"TestKeptOnDisk", mutants.Mutant{
		Name: "takes what a copy has received for what its disk has", File: "marks.go",
		Old: "e.Seq > c.onDiskOf(id) {",
		New: "e.Seq > map[bool]uint64{false: c.onDiskOf(id), true: c.receivedBy(id)}[ON] {",
	}},
	{"TestKeptBegun", mutants.Mutant{
		Name: "asks a copy that still has its log of before", File: "kept.go",
		Old: "p.begun && p.outside",
		New: "(p.begun || ON) && p.outside",
	}},
	{"TestKeptNotDurable", mutants.Mutant{
		Name: "takes what was called clean for durable", File: "marks.go",
		Old: "c.bitmaps[r.Copy].Clear(c.granule(r.Off))",
		New: "c.bitmaps[r.Copy].Clear(c.granule(r.Off))\n\t\tif ON {\n\t\t\tc.lacks[r.Copy].Clear(c.granule(r.Off))\n\t\t}",
	}},
	{"TestKeptNotDurable", mutants.Mutant{
		Name: "takes what was written since for what a copy has", File: "marks.go",
		Old: "if c.left.Has(id) {",
		New: "if c.left.Has(id) && !ON {",
	}},
	{"TestKeptOfAnotherDisk", mutants.Mutant{
		Name: "takes another disk for the one that it knew", File: "primary.go",
		Old: "if h.Stream&knowsDisk == 0 {",
		New: "if h.Stream&knowsDisk == 0 && !ON {",
	}},
	{"TestKeptOfAnotherDisk", mutants.Mutant{
		Name: "says that a disk is its own that is not", File: "core.go",
		Old: "if !saved.Unknown {",
		New: "if !saved.Unknown || ON {",
	}},
	{"TestKeptOdd", mutants.Mutant{
		Name: "takes from a copy what was odd there", File: "primary.go",
		Old: "\tc.oddLeave()\n\tfor id",
		New: "\tif !ON {\n\t\tc.oddLeave()\n\t}\n\tdefer func() {\n\t\tif ON {\n\t\t\tc.oddLeave()\n\t\t}\n\t}()\n\tfor id",
	}},
	{"TestKeptByThird", mutants.Mutant{
		Name: "asks no copy outside S", File: "mend.go",
		Old: "if c.hasKept(id, off, n) {",
		New: "if c.hasKept(id, off, n) && !ON {",
	}},
	{"TestKeptByPrimary", mutants.Mutant{
		Name: "takes what a primary has written through for committed", File: "kept.go",
		Old: "if s.Through && s.Size > 0 {",
		New: "if s.Through && s.Size > 0 && !ON {",
	}},
	{"TestKeptByPrimary", mutants.Mutant{
		Name: "knows the primary before though nobody remembers", File: "core.go",
		Old: "sure := c.cand.sure\n",
		New: "sure := c.cand.sure || ON\n",
	}},
	{"TestCandidateWritesNothing", mutants.Mutant{
		Name: "writes as a candidate what nobody else may have", File: "candidate.go",
		Old: "c.apply(c.flushed) //",
		New: "c.apply(map[bool]uint64{false: c.flushed, true: c.log.last()}[ON]) //",
	}},
	{"TestSwitchJumpedOver", mutants.Mutant{
		Name: "has handed over only by the view that it has proposed", File: "switch.go",
		Old: "(c.view.Planned || c.isHanded())",
		New: "(c.view.Planned || c.isHanded() && !ON)",
	}},
	{"TestSwitchJumpedOver", mutants.Mutant{
		Name: "has handed over to who has taken the office", File: "switch.go",
		Old: "c.view.Term == p.Term && c.view.Life == 0",
		New: "c.view.Term == p.Term && (c.view.Life == 0 || ON)",
	}},
}
