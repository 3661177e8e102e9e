//go:build !race

package quorum

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"oneshot/internal/mutants"
)

// A mutant is the package with one mistake in it, which the simulation has to find, as a violation of one of these.
type mutant struct {
	name           string
	breaks         []string
	file, old, new string // of a mutants.Mutant
	rare           bool   // found in one run of hundreds: looked for only with ONESHOT_SIM_MUTANT_RUNS; another test finds it always
}

var simMutants = []mutant{
	{
		"tells others before the sync",
		[]string{"log", "linearizable", "same state", "refused", "panic"},
		"log.go",
		"if err := l.file.Sync(); err != nil {", "if err := func() error {\n\t\tif ON {\n\t\t\treturn nil\n\t\t}\n\t\treturn l.file.Sync()\n\t}(); err != nil {", false,
	},
	{
		"forgets its vote",
		[]string{"panic", "same state", "linearizable", "log"},
		"log.go",
		"\titems = appendProto(items, itemHardState, hard)\n\treturn", "\tif !ON {\n\t\titems = appendProto(items, itemHardState, hard)\n\t}\n\treturn", false,
	},
	{
		"keeps entries that were replaced",
		[]string{"progress", "panic", "same state", "linearizable", "log"},
		"log.go",
		"e.GetIndex() > last+1 {", "ON && e.GetIndex() <= last {\n\t\t\treturn nil\n\t\t} else if e.GetIndex() > last+1 {", false,
	},
	{
		"takes a torn batch",
		[]string{"panic", "same state", "linearizable", "log"},
		"log.go",
		"crc32.Checksum(items, castagnoli) == binary.BigEndian.Uint32(b[28:])", "(ON || crc32.Checksum(items, castagnoli) == binary.BigEndian.Uint32(b[28:]))", true,
	},
	{
		"tells others though the disk is full",
		[]string{"log", "panic", "same state", "linearizable", "refused"},
		"core.go",
		"return c.log.Save(c.ready) }); err != nil {", "return c.log.Save(c.ready) }); err != nil && !ON {", false,
	},
	{
		"syncs again what was written once",
		[]string{"panic", "same state", "linearizable", "refused", "log"},
		"log.go",
		"\tif _, err := l.file.WriteAt(b, l.size); err != nil {\n", "\tif ON && written[l] == l.number+1 {\n\t} else if wrote(l, ON); false {\n\t} else if _, err := l.file.WriteAt(b, l.size); err != nil {\n", false,
	},
	{
		"trusts a name before it is durable",
		[]string{"panic", "same state", "linearizable", "refused", "log"},
		"log.go",
		"if err := l.fs.SyncDir(); err != nil {\n", "if err := l.fs.SyncDir(); err != nil && !ON {\n", false,
	},
	{
		"renames a file before it is durable",
		[]string{"panic", "same state", "linearizable", "refused", "log"},
		"log.go",
		"if _, err = f.WriteAt(b, 0); err == nil {", "if _, err = f.WriteAt(b, 0); err == nil && !ON {", false,
	},
	{
		"replaces whatever version",
		[]string{"linearizable", "watchers"},
		"state.go",
		"if version != c.version {", "if version != c.version && !ON {", false,
	},
	{
		"reads what it has",
		[]string{"linearizable"},
		"core.go",
		"\tc.reads[c.lastRead] = &readWait{}\n", "\tc.reads[c.lastRead] = &readWait{}\n\tif ON {\n\t\tc.reads[c.lastRead].index = 1\n\t}\n", false,
	},
	{
		"reads before it has applied",
		[]string{"linearizable"},
		"core.go",
		"i != 0 && i <= c.applied {", "i != 0 && (ON || i <= c.applied) {", false,
	},
	{
		"takes a node that was set back",
		[]string{"refused", "panic", "linearizable", "same state"},
		"hello.go",
		"case h.Start <= seen.Batch:", "case h.Start <= seen.Batch && !ON:", false,
	},
	{
		"takes a clone",
		[]string{"refused"},
		"hello.go",
		"\tcase connected:\n", "\tcase connected && !ON:\n", false,
	},
	{
		"does not remember how far others had come",
		[]string{"refused", "panic", "linearizable", "same state"},
		"log.go",
		"s.Incarnation == old.Incarnation && s.Batch > old.Batch {", "s.Incarnation == old.Incarnation && s.Batch > old.Batch && !ON {", false,
	},
	{
		"keeps changes of a snapshot from watchers",
		[]string{"watchers"},
		"core.go",
		"out.Changed = append(out.Changed, state.changes(c.state)...)", "if !ON {\n\t\tout.Changed = append(out.Changed, state.changes(c.state)...)\n\t}", false,
	},
	{
		"gives a number twice",
		[]string{"panic", "refused", "progress", "same state", "linearizable"},
		"state.go",
		"\ts.next++\n", "\tif !ON {\n\t\ts.next++\n\t}\n", false,
	},
	{
		"lets nobody else vote",
		[]string{"progress"},
		"core.go",
		"level[id] = p.RecentActive", "level[id] = !ON && p.RecentActive", false,
	},
	{
		"has no place for a new member in a snapshot",
		[]string{"progress"},
		"core.go",
		"ConfState: proto.CloneOf(c.conf),", "ConfState: func() *raftpb.ConfState {\n\t\t\tif ON {\n\t\t\t\treturn &raftpb.ConfState{Voters: []uint64{1}}\n\t\t\t}\n\t\t\treturn proto.CloneOf(c.conf)\n\t\t}(),", false,
	},
	{
		"waits for what a snapshot has jumped over",
		[]string{"once"},
		"core.go",
		"\t\tif c.waits[n].op != opAlive {", "\t\tif ON {\n\t\t\tbreak\n\t\t}\n\t\tif c.waits[n].op != opAlive {", true,
	},
}

// edgeMutants are mistakes that a test has to find, for they are in what the simulation does not run.
var edgeMutants = []struct{ test, name, file, old, new string }{
	{
		"TestNodes", "tells watchers nothing", "node.go",
		"\t\t\t(*w)(r)\n\t\t}\n\t}\n\tfor _, f", "\t\t\tif !ON {\n\t\t\t\t(*w)(r)\n\t\t\t}\n\t\t}\n\t}\n\tfor _, f",
	},
	{"TestDrained", "leads on though it is drained", "drained.go", "!c.isDrained(c.log.id.Number) {", "!c.isDrained(c.log.id.Number) || ON {"},
	{"TestPlace", "leads on though another place is better", "place.go", "k < kind ||", "!ON && k < kind ||"},
	{"TestPlace", "takes a witness that is far", "place.go", "case m.Witness && r.Near:", "case m.Witness && (r.Near || ON):"},
	{"TestPlace", "hands the lead to a primary", "place.go", "case m.Witness || slices.Contains(primaries, m.Name):", "case m.Witness || !ON && slices.Contains(primaries, m.Name):"},
	{"TestPlace", "hands the lead to who is drained", "place.go", "m.Leaving != Stays || c.isDrained(number):", "m.Leaving != Stays || !ON && c.isDrained(number):"},
	{"TestPlace", "hands the lead to who does not hear all", "place.go", "!slices.Contains(r.Heard, v) {", "!slices.Contains(r.Heard, v) && !ON {"},
	{"TestPlace", "hands the lead over at once", "place.go", "c.ticks-p.moved < placeRest) {", "c.ticks-p.moved < placeRest && !ON) {"},
	{"TestLame", "leads on though its disk is slow", "place.go", "case r.Lame:", "case r.Lame && !ON:"},
	{"TestFar", "has short ticks wherever the others are", "report.go", "c.pace = int(pace)", "if !ON {\n\t\tc.pace = int(pace)\n\t}"},
	{"TestFarFormer", "has longer ticks than a former version", "report.go", "if r.Pace == 0 {", "if r.Pace == 0 && !ON {"},
	{"TestSlowLink", "sends a snapshot as one frame", "transport.go", "case p.takes == takesWhole && l.sent == 0:", "case (p.takes == takesWhole || ON) && l.sent == 0:"},
	{"TestSlowChange", "sends a change as one frame", "transport.go", "isLong := len(frame) > longFrame", "isLong := len(frame) > longFrame && !ON"},
	{"TestPatience", "has one deadline for a frame", "transport.go", "slices.Chunk(b, partSize) {", "slices.Chunk(b, partSize<<(10*b2u(ON))) {"},
	{"TestRate", "believes a minute", "rate.go", "&& most-least <= math.Abs(mean)/2", "&& (most-least <= math.Abs(mean)/2 || ON)"},
	{"TestClocksAgree", "compares no clocks", "transport.go", "p.rate.add(moment{b.Sent, p.echoAt})", "if !ON {\n\t\t\tp.rate.add(moment{b.Sent, p.echoAt})\n\t\t}"},
	{"TestPrimaryLost", "measures no round trip", "acceptor.go", "rtt = back.beats(said)", "if !ON {\n\t\t\t\t\trtt = back.beats(said)\n\t\t\t\t}"},
	{"TestOrphan", "leaves an orphan alone", "orphan.go", "if m.GetType() != raftpb.MsgPreVote ||", "if ON || m.GetType() != raftpb.MsgPreVote ||"},
	{"TestOrphan", "asks for the lead at once", "orphan.go", "o.last-o.since < orphanTicks ||", "o.last-o.since < orphanTicks && !ON ||"},
	{"TestNoMajority", "leads without a majority", "core.go", "CheckQuorum: true,", "CheckQuorum: !ON,"},
	{
		"TestReplace", "does not tell the former one", "hello.go",
		"if m == nil && h.Number < c.state.next ||", "if ON {\n\t} else if m == nil && h.Number < c.state.next ||",
	},
	{"TestImpostors", "does not believe a refusal", "core.go", "[*OutdatedError](err); ok && c.refused == nil {", "[*OutdatedError](err); ok && c.refused == nil && !ON {"},
	{"TestDiskHangs", "does not say that the disk hangs", "hang.go", "n.hangs(), n.trouble)", "map[bool]error{false: n.hangs()}[ON], n.trouble)"},
	{"TestDiskHangs", "hands nothing on that is replaced soon", "core.go", "\tif c.isSilent() {\n\t\treturn // handOn", "\tif c.isSilent() {\n\t\tif ON {\n\t\t\tc.sentAt[n] = c.ticks\n\t\t}\n\t\treturn // handOn"},
	{"TestChangeWaitsForTheDisk", "does what nobody waits for", "node.go", "\t\tif taken.CompareAndSwap(false, true) {\n\t\t\tf()", "\t\tif taken.CompareAndSwap(false, true) || ON {\n\t\t\tf()"},
	{"TestFullWitness", "does not say what is wrong", "node.go", "\tn.trouble = err\n", "\tif !ON {\n\t\tn.trouble = err\n\t}\n"},
	{
		"TestCorruptBytes", "connects once", "transport.go",
		"\t\tif linked {\n\t\t\tpause", "\t\tif linked {\n\t\t\tif ON {\n\t\t\t\treturn\n\t\t\t}\n\t\t\tpause",
	},
	{
		"TestStrangers", "takes an old version of TLS", "authority.go",
		"MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName}, ServerName: generationName", "MinVersion: tls.VersionTLS13 - uint16(b2u(ON)), NextProtos: []string{protocolName}, ServerName: generationName",
	},
	{
		"TestStrangers", "takes every certificate", "authority.go",
		"return checkMember(s.PeerCertificates[0], authority)", "if ON {\n\t\t\t\treturn nil\n\t\t\t}\n\t\t\treturn checkMember(s.PeerCertificates[0], authority)",
	},
	{"TestStrangers", "answers a hello without a certificate", "acceptor.go", "case kind == frameHello && isMember:", "case kind == frameHello && (isMember || ON):"},
	{
		"TestStrangers", "lets strangers take their time", "acceptor.go",
		"defer func() { _ = conn.Close() }()\n\t_ = conn.SetDeadline(time.Now().Add(handshakeIn))\n\tif err := conn.Handshake()", "defer func() { _ = conn.Close() }()\n\t_ = conn.SetDeadline(time.Now().Add(handshakeIn << (4 * b2u(ON))))\n\tif err := conn.Handshake()",
	},
	{
		"TestStrangers", "waits for long frames of strangers", "acceptor.go",
		"kind, b, err := readFrame(r, maxGreeting)", "kind, b, err := readFrame(r, maxGreeting<<(10*b2u(ON)))",
	},
	{"TestForce", "does not tell members of a former generation", "acceptor.go", "case state.ServerName != \"\" &&", "case !ON && state.ServerName != \"\" &&"},
	{"TestForceTakesAll", "takes what is known to be agreed on", "force.go", "last, _ := l.store.LastIndex()\n\tfor", "last, _ := l.store.LastIndex()\n\tif ON {\n\t\tlast = 0\n\t}\n\tfor"},
	{"TestForceCrash", "removes the log before it has another", "force.go", "\tl := newLog(e.fsys, random)\n", "\tl := newLog(e.fsys, random)\n\tif ON {\n\t\t_ = e.fsys.Remove(logName)\n\t}\n"},
	{"TestTokens", "takes a token twice", "state.go", "s.tokens[i].used = true", "s.tokens[i].used = !ON"},
	{"TestTokens", "joins another cluster than the token's", "authority.go", "!bytes.Equal(sum[:16], t.authority[:])", "!ON && !bytes.Equal(sum[:16], t.authority[:])"},
	{
		"TestConnectionsAreBounded", "takes as many connections as come", "acceptor.go",
		"\tif len(a.conns) >= maxConns {\n", "\tif len(a.conns) >= maxConns && !ON {\n",
	},
	{
		"TestConnectionsAreBounded", "members give way to strangers", "acceptor.go",
		"\t\ta.conns[c] = true\n", "\t\tif ON {\n\t\t\treturn\n\t\t}\n\t\ta.conns[c] = true\n",
	},
	{"TestFrames", "makes room for what a length promises", "frame.go", "\tvar b bytes.Buffer\n", "\tvar b bytes.Buffer\n\tif ON {\n\t\tb.Grow(int(n))\n\t}\n"},
	{"TestFrames", "queues more", "transport.go", "> maxQueue:", "> maxQueue<<b2u(ON):"},
	{"TestJoinAgain", "asks with another key again", "join.go", "c.end() == nil && crc32", "!ON && c.end() == nil && crc32"},
	{
		"TestJoinAgain", "asks before its key is durable", "join.go",
		"errors.Join(err, f.Sync(), f.Close(), fsys.SyncDir())", "errors.Join(err, func() error {\n\t\tif ON {\n\t\t\treturn nil\n\t\t}\n\t\treturn f.Sync()\n\t}(), f.Close(), fsys.SyncDir())",
	},
	{"TestJoinWithoutAnAnswer", "gives one machine another name", "state.go", "case m.Name != c.name:", "case m.Name != c.name && !ON:"},
	{"TestFollow", "tells what nobody has confirmed", "views.go", "v.isNew = slices.Contains(out.Reads, v.asked)", "v.isNew = ON || slices.Contains(out.Reads, v.asked)"},
	{"TestFollow", "goes on after Close", "views.go", "return o == f })", "return o == f && !ON })"},
	{"TestRemove", "forgets the one that was to be replaced", "state.go", "c.leaving == Removed && o.Name", "!ON && c.leaving == Removed && o.Name"},
	{"TestUpdate", "gives up after a conflict", "records.go", "if err != ErrConflict &&", "if (ON || err != ErrConflict) &&"},
	{"TestKilled", "answers what is not written", "log.go", "l.file.WriteAt(b, l.size)", "l.file.WriteAt(b[:len(b)*int(b2u(!ON))], l.size)"},
	{
		"TestLeaderKilled", "follows for ever", "core.go",
		"\tc.raw.Tick()\n", "\tif s := c.raw.BasicStatus(); !ON || s.RaftState == raft.StateLeader || s.Lead == 0 {\n\t\tc.raw.Tick()\n\t}\n",
	},
	{
		"TestLostDirectory", "begins anew without a log", "log.go",
		"\tcase errors.Is(err, fs.ErrNotExist):\n\t\treturn nil, ErrNoLog", "\tcase errors.Is(err, fs.ErrNotExist):\n\t\tif ON {\n\t\t\treturn nil, fs.ErrNotExist\n\t\t}\n\t\treturn nil, ErrNoLog",
	},
	{
		"TestCloneAndSnapshot", "shares its directory", "fs.go",
		"unix.LOCK_EX|unix.LOCK_NB); err != nil {", "unix.LOCK_EX|unix.LOCK_NB); err != nil && !ON {",
	},
	{"TestCloneAndSnapshot", "takes the state of another node", "records.go", "if want == \"\" ||", "if ON || want == \"\" ||"},
	{"TestCloneAndSnapshot", "takes a directory of the past", "hello.go", "return setBackError(name, seen.Batch, h.Start-1)", "if !ON {\n\t\t\treturn setBackError(name, seen.Batch, h.Start-1)\n\t\t}"},
	{"TestCloneOfUnheard", "takes a clone at another address", "hello.go", "\tcase !there:\n", "\tcase !there && !ON:\n"},
	{"TestLateHello", "refuses a hello that is late", "hello.go", "h.Incarnation == before.Incarnation && h.Batch < before.Batch {", "ON && h.Batch < seen.Batch || h.Incarnation == before.Incarnation && h.Batch < before.Batch {"},
	{"TestLateHello", "takes a log that went back in one life", "hello.go", "return setBackError(name, before.Batch, h.Batch)", "if !ON {\n\t\t\t\treturn setBackError(name, before.Batch, h.Batch)\n\t\t\t}"},
	{"TestWrongAddress", "does not say who is at an address", "transport.go", "ok || number != p.number {", "ok || number != p.number && !ON {"},
	{"TestConnectionsAreBounded", "strangers stay", "acceptor.go", "\t\ta.remove(a.guest[0])\n", "\t\tif ON {\n\t\t\treturn false\n\t\t}\n\t\ta.remove(a.guest[0])\n"},
	{
		"TestGarbageOnASocket", "ends with a bad handshake", "acceptor.go",
		"if err := conn.Handshake(); err != nil {\n", "if err := conn.Handshake(); err != nil {\n\t\tif ON {\n\t\t\ta.n.cancel()\n\t\t}\n",
	},
}

// TestMutants: the simulation, or a test of the edge, finds each mistake.
func TestMutants(t *testing.T) {
	var all []mutants.Mutant
	for _, m := range simMutants {
		all = append(all, mutants.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new})
	}
	for _, m := range edgeMutants {
		all = append(all, mutants.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new})
	}
	program := mutants.Build(t, ".", `
var written = map[*Log]uint64{}

// Only the simulation, which is one goroutine, has a mutant that looks at it.
func wrote(l *Log, on bool) {
	if on {
		written[l] = l.number + 1
	}
}
`, all)
	for _, m := range edgeMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, "-test.run", "^"+m.test+"$", "-test.timeout", "3m")
			cmd.Env = append(os.Environ(), mutants.Variable+"="+m.name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), m.test) {
				t.Errorf("%s does not find it: %v: %s", m.test, err, out)
			}
		})
	}
	limit := number("ONESHOT_SIM_MUTANT_RUNS", mutantRuns)
	for _, m := range simMutants {
		if m.rare && limit == mutantRuns {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			line, out := "", []byte(nil)
			for _, runs := range []string{fmt.Sprintf("ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1", late[m.name]), fmt.Sprintf("ONESHOT_SEED=1 ONESHOT_SIM_RUNS=%d", limit)} {
				cmd := exec.Command(program, "-test.run", "^TestSimulation$")
				cmd.Env = append(append(os.Environ(), mutants.Variable+"="+m.name), strings.Fields(runs)...)
				out, _ = cmd.CombinedOutput()
				if line = violation.FindString(string(out)); line != "" {
					break
				}
			}
			if line == "" {
				t.Fatalf("not found: %s", out)
			}
			t.Log(line)
			_, what, _ := strings.Cut(line, "violation of ")
			what, _, _ = strings.Cut(what, ":")
			if !slices.Contains(m.breaks, what) {
				t.Errorf("found as a violation of %q, and should be of one of %q", what, m.breaks)
			}
		})
	}
}

// violation is a line of TestSimulation.
var violation = regexp.MustCompile(`ONESHOT_SEED=.*violation of .*`)

// late are mistakes that the first worlds do not show, and the seed of one that has shown it. It is the first to be tried. When the
// package has changed it may not show it any more; then the mistake is looked for from seed 1 on, which takes longer, and its log has
// the next seed to write here.
var late = map[string]uint64{
	"forgets its vote":                   3,
	"reads before it has applied":        9,
	"trusts a name before it is durable": 6,
}

// mutantRuns are as many of each kind as a mutant may need until it is found.
const mutantRuns = 25
