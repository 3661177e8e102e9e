package quorum

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

// counter draws numbers that are not random.
func counter() func() uint64 {
	n := uint64(0x1111)
	return func() uint64 { n += 0x1010101; return n }
}

func entry(index, term uint64, data string) *raftpb.Entry {
	return &raftpb.Entry{Index: new(index), Term: new(term), Type: raftpb.EntryNormal.Enum(), Data: []byte(data)}
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// batches are what a node has saved: votes, entries, entries that replace others, what needs no sync, a snapshot of
// another node; nil is a Compact.
var batches = []*raft.Ready{
	{HardState: hard(2, 1, 1), MustSync: true},
	{HardState: hard(2, 1, 1), Entries: []*raftpb.Entry{entry(2, 2, "two"), entry(3, 2, "three"), entry(4, 2, strings.Repeat("long", 900))}, MustSync: true},
	{HardState: hard(2, 1, 2)},
	{HardState: hard(3, 2, 2), Entries: []*raftpb.Entry{entry(3, 3, "another three")}, MustSync: true},
	nil,
	{HardState: hard(3, 2, 3), Entries: []*raftpb.Entry{entry(4, 3, "another four")}, MustSync: true},
	{HardState: hard(4, 2, 9), Snapshot: &raftpb.Snapshot{Data: []byte("state"), Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(9)), Term: new(uint64(4)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}}}}, MustSync: true},
	{HardState: hard(5, 1, 9), Entries: []*raftpb.Entry{entry(10, 5, "ten")}, MustSync: true},
}

var testIdentity = Identity{Cluster: 7, Number: 1, Name: "a", Key: []byte("key"), Cert: []byte("cert"), Authority: []byte("authority")}

func testSnapshot() *raftpb.Snapshot {
	return &raftpb.Snapshot{Data: []byte("first"), Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1)), Term: new(uint64(1)), ConfState: &raftpb.ConfState{Voters: []uint64{1}}}}
}

// save does one of batches.
func save(l *Log, rd *raft.Ready) error {
	if rd == nil {
		return l.Compact(2, &raftpb.ConfState{Voters: []uint64{1}}, []byte("second"))
	}
	return l.Save(rd)
}

// describe says what a log holds, without what each life changes.
func describe(l *Log) string {
	var b bytes.Buffer
	h, conf, _ := l.store.InitialState()
	s, _ := l.store.Snapshot()
	fmt.Fprintf(&b, "%d %s term %d vote %d, snapshot %d %q %v", l.id.Number, l.id.Name, h.GetTerm(), h.GetVote(), s.GetMetadata().GetIndex(), s.GetData(), conf.GetVoters())
	last, _ := l.store.LastIndex()
	for i := s.GetMetadata().GetIndex() + 1; i <= last; i++ {
		es, _ := l.store.Entries(i, i+1, 1<<30)
		fmt.Fprintf(&b, " %d:%d:%.13s:%08x", es[0].GetIndex(), es[0].GetTerm(), es[0].GetData(), crc32.ChecksumIEEE(es[0].GetData()))
	}
	return b.String()
}

// run saves batches and returns what the log held after each one that was saved. A power cut ends it.
func saveAll(d *disk, acked *[]string, number *uint64) {
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(powerCut); !ok {
				panic(e)
			}
		}
	}()
	l, err := CreateLog(d, testIdentity, testSnapshot(), counter())
	if err != nil {
		panic(err)
	}
	*acked, *number = append(*acked, describe(l)), l.number
	for _, rd := range batches {
		if err := save(l, rd); err != nil {
			panic(err)
		}
		*acked, *number = append(*acked, describe(l)), l.number
	}
}

// TestLogCrashAtEveryStep: a power cut or a kill before any step of any write, sync and rename leaves what was saved
// last, or what was about to be. So does another one while the log is opened after the first.
func TestLogCrashAtEveryStep(t *testing.T) {
	var all []string
	var number uint64
	whole := newDisk()
	saveAll(whole, &all, &number)
	r := rand.New(rand.NewPCG(1, 1))
	for step := range whole.count + 1 {
		for _, chance := range []float64{0, 0.5, 0.5, 0.5, 1} {
			d := newDisk()
			d.steps = step
			var acked []string
			number = 0
			saveAll(d, &acked, &number)
			d = d.cut(r, chance)
			for again := 0; ; again++ { // crashes while it is opened
				d.steps = again
				l, err := tryOpen(d)
				if err == nil && l == nil {
					d = d.cut(r, chance)
					continue
				}
				if errors.Is(err, ErrNoLog) && len(acked) == 0 {
					break
				}
				if err != nil {
					t.Fatalf("step %d, chance %v: %v", step, chance, err)
				}
				got := describe(l)
				if !slices.Contains(all[max(len(acked)-1, 0):min(len(acked)+1, len(all))], got) {
					t.Fatalf("step %d, chance %v: the log holds\n%s\nafter\n%s", step, chance, got, strings.Join(acked, "\n"))
				}
				if l.start <= number || l.number < l.start {
					t.Fatalf("step %d: a life that begins with batch %d follows batch %d", step, l.start, number)
				}
				d.steps = -1
				if err := l.Save(&raft.Ready{HardState: hard(9, 1, 1), MustSync: true}); err != nil {
					t.Fatalf("step %d: after the crash: %v", step, err)
				}
				break
			}
		}
	}
	if len(all) != len(batches)+1 || whole.count < 40 {
		t.Errorf("%d steps for %d batches", whole.count, len(all))
	}
}

// tryOpen opens a log; nothing: the power was cut.
func tryOpen(d *disk) (l *Log, err error) {
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(powerCut); !ok {
				panic(e)
			}
			l, err = nil, nil
		}
	}()
	return OpenLog(d, counter())
}

// TestLogTrouble: when the disk is full, or a sync or the renaming fails, nothing counts as saved, and the same is saved when the
// disk works again. Power cuts after that find it, though the kernel has forgotten what a failed sync was to write.
func TestLogTrouble(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, trouble := range []func(d *disk){
		func(d *disk) { d.full = true },
		func(d *disk) { d.fail = errSync },
		func(d *disk) { d.lost = errSync },
	} {
		for i := range batches {
			d := newDisk()
			l, err := CreateLog(d, testIdentity, testSnapshot(), counter())
			if err != nil {
				t.Fatal(err)
			}
			for _, rd := range batches[:i] {
				if err := save(l, rd); err != nil {
					t.Fatal(err)
				}
			}
			number := l.number
			trouble(d)
			err = save(l, batches[i])
			if rd := batches[i]; rd != nil && !rd.MustSync {
				if err != nil {
					t.Fatalf("batch %d needs no sync: %v", i, err)
				}
				continue
			}
			if d.lost != nil {
				continue // it does not come to names here
			}
			if err == nil || l.number != number {
				t.Fatalf("batch %d is saved by a disk that does not work: %v", i, err)
			}
			if d.full && !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("batch %d: %v", i, err)
			}
			d.full, d.fail = false, nil
			next := batches[i]
			if next == nil { // nobody asks again for a Compact; what comes next is saved all the same
				next = batches[i+1]
			}
			if err := l.Save(next); err != nil {
				t.Fatalf("batch %d, again: %v", i, err)
			}
			want := describe(l)
			l, err = OpenLog(d.cut(r, 0), counter())
			if err != nil {
				t.Fatalf("batch %d: %v", i, err)
			}
			if got := describe(l); got != want && batches[i] != nil { // of a snapshot only memory may know
				t.Fatalf("batch %d: the log holds\n%s\nand held\n%s", i, got, want)
			}
		}
	}
}

// TestLogLeavesBadBlock: a block below the open file is bad for good. What was not saved there goes into a new file, also if there was no room for that at
// first; while there is none the old file is tried, too.
func TestLogLeavesBadBlock(t *testing.T) {
	for _, full := range []int{0, 1, 2, 5, 100} { // attempts
		d := newDisk()
		l, err := CreateLog(d, testIdentity, testSnapshot(), counter())
		if err != nil {
			t.Fatal(err)
		}
		vote := &raft.Ready{HardState: hard(2, 1, 1), MustSync: true}
		d.bad = d.names[logName]
		if err := l.Save(vote); err == nil {
			t.Fatal("a bad block is saved")
		}
		d.full = true
		for range full {
			if err := l.Save(vote); err == nil || d.names[logName] != d.bad {
				t.Fatalf("without room: %v", err)
			}
		}
		d.full = false
		for n := 0; l.Save(vote) != nil; n++ {
			if n > elsewhereEach {
				t.Fatal("the bad block is tried again and again")
			}
		}
		want := describe(l)
		if l, err = OpenLog(d.cut(nil, 0), counter()); err != nil || describe(l) != want {
			t.Errorf("%v: %s", err, describe(l))
		}
	}
}

// TestLogDamage: bytes that change in a batch that others follow are noticed, and never make a log that has forgotten
// something. In the last batch they look like a crash; then the number of the log says that something is missing.
func TestLogDamage(t *testing.T) {
	d := newDisk()
	var all []string
	var number uint64
	saveAll(d, &all, &number)
	image := d.names[logName].data
	opened := 0
	for at := 0; at < len(image); at += 29 {
		d := d.cut(nil, 1)
		d.names[logName].data[at] ^= 0x40
		l, err := OpenLog(d, counter())
		if _, ok := errors.AsType[*DamagedError](err); ok {
			if !strings.Contains(err.Error(), "target ha replace") {
				t.Fatalf("octet %d: %v", at, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("octet %d: %v", at, err)
		}
		opened++
		if got := describe(l); got == all[len(all)-1] && l.start == number+1 { // padding
			continue
		}
		if l.start > number {
			t.Fatalf("octet %d: the log has lost something, and says that it has batch %d of %d:\n%s", at, l.start-1, number, describe(l))
		}
	}
	if opened == 0 {
		t.Error("no change looked like a crash")
	}
	for n := range len(image) { // cut short
		if n%97 != 0 {
			continue
		}
		d := d.cut(nil, 1)
		d.names[logName].data = d.names[logName].data[:n]
		if l, err := OpenLog(d, counter()); err == nil && l.start > number && describe(l) != all[len(all)-1] {
			t.Fatalf("cut to %d octets the log says that it has all", n)
		}
	}
}

// TestLogIsReplaced: a file that has grown is replaced, and if there is no room for that the old one goes on.
func TestLogIsReplaced(t *testing.T) {
	d := newDisk()
	l, err := CreateLog(d, testIdentity, testSnapshot(), counter())
	if err != nil {
		t.Fatal(err)
	}
	index := uint64(1)
	long := strings.Repeat("x", usualLimit/9)
	grow := func() {
		t.Helper()
		index++
		if err := l.Save(&raft.Ready{HardState: hard(2, 1, index), Entries: []*raftpb.Entry{entry(index, 2, long)}, MustSync: true}); err != nil {
			t.Fatal(err)
		}
	}
	for !l.IsLong() {
		grow()
	}
	conf := &raftpb.ConfState{Voters: []uint64{1}}
	d.full = true
	if err := l.Compact(index, conf, []byte("state")); !errors.Is(err, unix.ENOSPC) || l.broken {
		t.Fatalf("%v, broken: %v", err, l.broken)
	}
	d.full = false
	if d.names[tempName] != nil {
		t.Error("the new file is left, and takes room")
	}
	old := d.names[logName]
	grow()
	if l.IsLong() || d.names[logName] != old {
		t.Error("a new file is tried again at once")
	}
	for !l.IsLong() {
		grow()
	}
	if err := l.Compact(index, conf, []byte("state")); err != nil {
		t.Fatal(err)
	}
	if n := len(d.names[logName].data); n > 4096 || l.IsLong() {
		t.Errorf("the new file has %d bytes", n)
	}
	want := describe(l)
	if l, err = OpenLog(d.cut(nil, 0), counter()); err != nil || describe(l) != want {
		t.Errorf("%v: %s", err, describe(l))
	}
}

// TestDir: the log works on the file system of the machine, which one process at a time may use.
func TestDir(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(d, counter()); !errors.Is(err, ErrNoLog) {
		t.Fatalf("an empty directory: %v", err)
	}
	l, err := CreateLog(d, testIdentity, testSnapshot(), counter())
	if err != nil {
		t.Fatal(err)
	}
	for _, rd := range batches {
		if err := save(l, rd); err != nil {
			t.Fatal(err)
		}
	}
	want := describe(l)
	if _, err := CreateLog(d, testIdentity, nil, counter()); err == nil {
		t.Error("a log was made where there is one")
	}
	if _, err := OpenDir(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process: %v", err)
	}
	if err := errors.Join(l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenDir(path); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if l, err = OpenLog(d, counter()); err != nil || describe(l) != want || l.id.Incarnation != 2 {
		t.Fatalf("%v: %s", err, describe(l))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
