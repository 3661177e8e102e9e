package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume"
)

var (
	quiet   = slog.New(slog.DiscardHandler)
	errTest = errors.New("broken")
)

// copyBench is a bench with a second logical unit, as LUN 1.
type copyBench struct {
	*prBench
	second      *LogicalUnit
	secondStore *fakeStore
}

// newCopyBench makes both stores of a kind.
func newCopyBench(t *testing.T, lends bool) *copyBench {
	t.Helper()
	b := &copyBench{secondStore: newFakeStore(testBlocks * 512)}
	store := backend.Store(b.secondStore)
	if lends {
		store = fakeLender{b.secondStore}
	}
	var err error
	if b.second, err = NewLogicalUnit(LUConfig{Volume: volumeOf(store), Serial: "0002", Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	first := newBench(t, lends, func(c *benchConfig, s *fakeStore) { c.Logger = quiet })
	first.target.SetLU(1, b.second)
	b.prBench = &prBench{bench: first, a: first.nexus, b: first.client(2), c: first.client(3)}
	for _, n := range []*Nexus{b.a, b.b, b.c} {
		for _, i := range *n.table.Load() {
			i.ua.Store(0)
		}
	}
	copy(first.store.data, pattern(1, len(first.store.data)))
	copy(b.secondStore.data, pattern(2, len(b.secondStore.data)))
	return b
}

// identify is a CSCD descriptor for lu.
func identify(lu *LogicalUnit) []byte {
	d := make([]byte, 32)
	d[0], d[4], d[5], d[7] = 0xe4, 1, 3, 16
	copy(d[8:], lu.naa[:])
	binary.BigEndian.PutUint32(d[28:], uint32(lu.blockSize))
	return d
}

func blockSegment(from, to, blocks uint16, src, dst uint64) []byte {
	d := make([]byte, 28)
	d[0], d[3] = 0x02, 24
	binary.BigEndian.PutUint16(d[4:], from)
	binary.BigEndian.PutUint16(d[6:], to)
	binary.BigEndian.PutUint16(d[10:], blocks)
	binary.BigEndian.PutUint64(d[12:], src)
	binary.BigEndian.PutUint64(d[20:], dst)
	return d
}

func byteSegment(from, to uint16, n uint32, src, dst uint64, srcByte, dstByte uint16) []byte {
	d := make([]byte, 32)
	d[0], d[3] = 0x0a, 28
	binary.BigEndian.PutUint16(d[4:], from)
	binary.BigEndian.PutUint16(d[6:], to)
	binary.BigEndian.PutUint32(d[8:], n)
	binary.BigEndian.PutUint64(d[12:], src)
	binary.BigEndian.PutUint64(d[20:], dst)
	binary.BigEndian.PutUint16(d[28:], srcByte)
	binary.BigEndian.PutUint16(d[30:], dstByte)
	return d
}

// copyParameters is a parameter list of EXTENDED COPY(LID1).
func copyParameters(id, flags byte, targets, segments [][]byte) []byte {
	t, s := slices.Concat(targets...), slices.Concat(segments...)
	l := make([]byte, 16)
	l[0], l[1] = id, flags
	binary.BigEndian.PutUint16(l[2:], uint16(len(t)))
	binary.BigEndian.PutUint32(l[8:], uint32(len(s)))
	return slices.Concat(l, t, s)
}

func thirdPartyCDB(opcode, action byte, id uint32, n int) []byte {
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = opcode, action
	switch {
	case opcode == 0x84 && action < 5:
		cdb[2] = byte(id)
	case opcode == 0x84:
		binary.BigEndian.PutUint32(cdb[2:], id)
	case action != 0:
		binary.BigEndian.PutUint32(cdb[6:], id)
	}
	binary.BigEndian.PutUint32(cdb[10:], uint32(n))
	return cdb
}

func (b *copyBench) extendedCopy(n *Nexus, list []byte) int {
	b.t.Helper()
	return verdict(b.as(n, thirdPartyCDB(0x83, 0, 0, len(list)), list, 0))
}

func (b *copyBench) both() [][]byte { return [][]byte{identify(b.lu), identify(b.second)} }

func TestExtendedCopy(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newCopyBench(t, lends)
		one, two := b.store.data, b.secondStore.data
		wantOne, wantTwo := bytes.Clone(one), bytes.Clone(two)
		copy(wantTwo[100*512:110*512], wantOne[5*512:])
		copy(wantOne[1020*512:], wantTwo[100*512:104*512])
		copy(wantTwo[0:1024], wantOne[512:1536])
		vendor := identify(b.second)
		clear(vendor[4:28])
		vendor[4], vendor[5], vendor[7] = 2, 1, byte(len(b.second.vendorID()))
		copy(vendor[8:], b.second.vendorID())
		vendor[1] = 0xe0 // LU ID TYPE, NUL
		list := copyParameters(7, 0, [][]byte{identify(b.lu), vendor}, [][]byte{
			blockSegment(0, 1, 10, 5, 100), blockSegment(1, 0, 4, 100, 1020), byteSegment(0, 1, 1024, 0, 0, 512, 0),
		})
		if v := b.extendedCopy(b.a, list); v != 0 {
			t.Fatalf("EXTENDED COPY: %05x", v)
		}
		if !bytes.Equal(one, wantOne) || !bytes.Equal(two, wantTwo) {
			t.Errorf("lends %v: the copies differ", lends)
		}
		status := b.do(thirdPartyCDB(0x84, 0, 7, 64), nil, 64)
		if got := hexOf(status.in); got != "0000000801000300"+"00002000" {
			t.Errorf("RECEIVE COPY STATUS: %s", got)
		}
		for name, r := range map[string]result{
			"unknown":   b.do(thirdPartyCDB(0x84, 0, 8, 64), nil, 64),
			"another's": b.as(b.b, thirdPartyCDB(0x84, 0, 7, 64), nil, 64),
		} {
			if r.code() != 0x52400 {
				t.Errorf("status of an %s list: %05x", name, r.code())
			}
		}
		list[1] = 0x18 // to be forgotten
		list[0] = 9
		if v := b.extendedCopy(b.a, list); v != 0 {
			t.Errorf("without a list identifier: %05x", v)
		}
		if v := verdict(b.do(thirdPartyCDB(0x84, 0, 9, 64), nil, 64)); v != 0x52400 {
			t.Errorf("its status: %05x", v)
		}
		b.released()
	}
}

// released checks that no copy holds anything.
func (b *copyBench) released() {
	b.t.Helper()
	for _, lu := range []*LogicalUnit{b.lu, b.second} {
		if err := lu.v.Settled(); err != nil {
			b.t.Error(err)
		}
	}
}

// A copy whose source and destination overlap copies what was there before, whatever the size
// of the pieces.
func TestCopyOntoItself(t *testing.T) {
	b := newCopyBench(t, true)
	later := newCopyBench(t, false)
	later.store.hold = holdTasks
	rapid.Check(t, func(rt *rapid.T) {
		b := rapid.SampledFrom([]*copyBench{b, later}).Draw(rt, "bench")
		n := rapid.IntRange(0, testBlocks).Draw(rt, "blocks")
		src := rapid.IntRange(0, testBlocks-n).Draw(rt, "from")
		dst := rapid.IntRange(0, testBlocks-n).Draw(rt, "to")
		want := bytes.Clone(b.store.data)
		copy(want[dst*512:], want[src*512:(src+n)*512])
		piece := int64(rapid.IntRange(1, 64).Draw(rt, "piece")) * 512
		list := copyParameters(1, 0, b.both(), [][]byte{blockSegment(0, 0, uint16(n), uint64(src), uint64(dst))})
		task := b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
		task.Owner = smallLeases{b.owner, piece}
		if v := verdict(b.run(task, list)); v != 0 || !bytes.Equal(b.store.data, want) {
			rt.Fatalf("%05x, data as wanted: %v", v, bytes.Equal(b.store.data, want))
		}
	})
}

// smallLeases gives leases of at most n bytes for copies, so that they come in many pieces.
type smallLeases struct {
	*fakeOwner
	n int64
}

func (o smallLeases) Lease(t *Task, n int) *mem.Lease {
	if t.copying != nil {
		n = min(n, int(o.n))
	}
	return o.fakeOwner.Lease(t, n)
}

func TestExtendedCopyIsRefused(t *testing.T) {
	b := newCopyBench(t, true)
	before, before2 := bytes.Clone(b.store.data), bytes.Clone(b.secondStore.data)
	good := blockSegment(0, 1, 4, 0, 0)
	many := func(d []byte, n int) [][]byte { return slices.Repeat([][]byte{d}, n) }
	changed := func(d []byte, at int, to byte) [][]byte {
		d = bytes.Clone(d)
		d[at] = to
		return [][]byte{d, identify(b.second)}
	}
	inline := copyParameters(1, 0, b.both(), [][]byte{good})
	inline[15] = 1
	whole := copyParameters(1, 0, b.both(), [][]byte{good})
	inexact := byteSegment(0, 1, 512, 0, 0, 1, 0)
	for name, c := range map[string]struct {
		list []byte
		want int
	}{
		"too short":              {make([]byte, 15), 0x51a00},
		"cut in a target":        {whole[:16+32+31], 0x51a00},
		"cut in a segment":       {whole[:len(whole)-1], 0x51a00},
		"inline data":            {inline, 0x5260b},
		"too many targets":       {copyParameters(1, 0, many(identify(b.lu), 17), [][]byte{good}), 0x52606},
		"too many segments":      {copyParameters(1, 0, b.both(), many(good, 65)), 0x52608},
		"too much of both":       {copyParameters(1, 0, many(identify(b.lu), 17), many(good, 130)), 0x51a00},
		"Fibre Channel":          {copyParameters(1, 0, changed(identify(b.lu), 0, 0xe0), [][]byte{good}), 0x52607},
		"stream":                 {copyParameters(1, 0, b.both(), [][]byte{{3, 0, 0, 0}}), 0x52609},
		"wrong segment length":   {copyParameters(1, 0, b.both(), [][]byte{append([]byte{2, 0, 0, 4}, 0, 0, 0, 1)}), 0x52609},
		"unknown unit":           {copyParameters(1, 0, changed(identify(b.lu), 20, 0xff), [][]byte{good}), 0xa0d02},
		"a tape":                 {copyParameters(1, 0, changed(identify(b.lu), 1, 1), [][]byte{good}), 0xa0d03},
		"other block length":     {copyParameters(1, 0, changed(identify(b.lu), 30, 0x10), [][]byte{good}), 0xa0d03},
		"index without a target": {copyParameters(1, 0, b.both(), [][]byte{blockSegment(0, 2, 1, 0, 0)}), 0xa0d02},
		"source beyond the end":  {copyParameters(1, 0, b.both(), [][]byte{good, blockSegment(0, 1, 2, testBlocks-1, 0)}), 0xa0000},
		"destination beyond":     {copyParameters(1, 0, b.both(), [][]byte{good, blockSegment(0, 1, 2, 0, testBlocks-1)}), 0xa0000},
		"far beyond":             {copyParameters(1, 0, b.both(), [][]byte{good, blockSegment(0, 1, 2, 1<<63, 1<<64-1)}), 0xa0000},
		"inexact":                {copyParameters(1, 0, b.both(), [][]byte{good, inexact}), 0xa260a},
		"too long":               {copyParameters(1, 0, b.both(), [][]byte{good, byteSegment(0, 1, maxSegmentBytes+512, 0, 0, 0, 0)}), 0x52600},
	} {
		if v := b.extendedCopy(b.a, c.list); v != c.want {
			t.Errorf("%s: %05x, want %05x", name, v, c.want)
		}
	}
	if v := b.extendedCopy(b.a, nil); v != 0 {
		t.Errorf("without a list: %05x", v)
	}
	if !bytes.Equal(b.store.data, before) || !bytes.Equal(b.secondStore.data, before2) {
		t.Error("a refused copy has copied something")
	}

	// What others have reserved, is write protected or broken.
	list := copyParameters(1, 0, b.both(), [][]byte{good})
	expect := func(what string, want int) {
		t.Helper()
		if v := b.extendedCopy(b.a, list); v != want {
			t.Errorf("%s: %05x, want %05x", what, v, want)
		}
	}
	reserve := func(kind reservationType, action byte) {
		t.Helper()
		l := proutList(3, 3, 0)
		if action == proutRegister {
			l = proutList(0, 3, 0)
		}
		task := b.task(proutCDB(action, kind, len(l)), l, 0)
		task.Nexus, task.LUN = b.b, 1<<48
		if v := verdict(b.run(task, l)); v != 0 {
			t.Fatalf("reserve: %#x", v)
		}
	}
	reserve(0, proutRegister)
	reserve(writeExclusive, proutReserve)
	expect("destination reserved", 0xa0d01)
	list = copyParameters(1, 0, b.both(), [][]byte{blockSegment(1, 0, 4, 0, 0)})
	expect("source reserved for writing", 0)
	reserve(writeExclusive, proutRelease)
	reserve(exclusiveAccess, proutReserve)
	expect("source reserved", 0xa0d01)
	reserve(0, proutClear)
	for _, i := range *b.a.table.Load() {
		i.ua.Store(0)
	}
	b.second.mode.bits.Store(modeSWP)
	expect("source write protected", 0)
	list = copyParameters(1, 0, b.both(), [][]byte{good})
	expect("destination write protected", 0xa0d01)
	b.second.mode.reset()
	b.secondStore.fail = space
	expect("no space", 0x72707)
	b.secondStore.fail = medium(0, errTest)
	expect("broken", 0xa0d01)
	if got := hexOf(b.do(thirdPartyCDB(0x84, 0, 1, 64), nil, 64).in); got[8:10] != "02" {
		t.Errorf("status after a failure: %s", got)
	}
	b.released()
}

// A copy can be aborted between any two operations, and holds nothing then. While it is under
// way another one with its list identifier is refused, and its units are not closed.
func TestCopyAborted(t *testing.T) {
	for _, steps := range []int{0, 1, 2, 3} {
		b := newCopyBench(t, false)
		b.store.hold, b.secondStore.hold = holdAll, holdAll
		list := copyParameters(5, 0, b.both(), [][]byte{blockSegment(0, 1, 8, 0, 0), blockSegment(1, 0, 8, 0, 8)})
		task := b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
		task.Start()
		place(task, list)
		next := task.Pulled()
		for range steps {
			if b.store.complete()+b.secondStore.complete() > 0 {
				next = task.Resume()
			}
			for len(b.owner.ready) > 0 { // it yields
				<-b.owner.ready
				next = task.Resume()
			}
		}
		if next != Wait {
			t.Fatalf("after %d steps: %v", steps, next)
		}
		if v := b.extendedCopy(b.a, list); v != 0x50016 {
			t.Errorf("the same list identifier: %05x", v)
		}
		if got := hexOf(b.do(thirdPartyCDB(0x84, 0, 5, 64), nil, 64).in); got[8:10] != "00" {
			t.Errorf("status under way: %s", got)
		}
		if b.second.v.Idle() {
			t.Error("a unit that is copied to is idle")
		}
		b.nexus.Manage(AbortTaskSet, 0, nil, func(TMFResponse) {})
		b.store.complete()
		b.secondStore.complete()
		if next = task.Resume(); next != Aborted {
			t.Fatalf("after %d steps and an abort: %v", steps, next)
		}
		task.Release()
		b.released()
		if got := hexOf(b.do(thirdPartyCDB(0x84, 0, 5, 64), nil, 64).in); got[8:10] != "02" {
			t.Errorf("status after an abort: %s", got)
		}
		b.store.hold, b.secondStore.hold = nil, nil
		if v := b.extendedCopy(b.a, list); v != 0 {
			t.Errorf("again: %05x", v)
		}
		if v := verdict(b.do(rw10(0x2a, 0, testBlocks), make([]byte, testBlocks*512), 0)); v != 0 {
			t.Errorf("WRITE afterwards: %05x", v)
		}
	}
}

// PREEMPT AND ABORT ends the copies of the preempted to and from the logical unit that are commands to another one, and is answered when they
// write there no more; PREEMPT lets them end their piece.
func TestCopyPreempted(t *testing.T) {
	for _, action := range []byte{proutPreempt, proutPreemptAndAbort} {
		b := newCopyBench(t, false)
		second := func(n *Nexus, cdb, list []byte) *Task {
			task := b.task(cdb, list, 0)
			task.Nexus, task.LUN = n, 1<<48
			return task
		}
		out := func(n *Nexus, action byte, key, other uint64) (*Task, Next) {
			l := proutList(key, other, 0)
			task := second(n, proutCDB(action, writeExclusiveRegistrants, len(l)), l)
			if next := task.Start(); next != Pull {
				t.Fatal(next)
			}
			place(task, l)
			return task, task.Pulled()
		}
		for _, c := range []struct {
			n          *Nexus
			action     byte
			key, other uint64
		}{{b.a, proutRegister, 0, 0xa}, {b.b, proutRegister, 0, 0xb}, {b.b, proutReserve, 0xb, 0}} {
			task, next := out(c.n, c.action, c.key, c.other)
			if next != Done || task.Status != Good {
				t.Fatalf("action %d: %v, status %02x", c.action, next, task.Status)
			}
			task.Release()
		}
		b.store.hold, b.secondStore.hold = holdAll, holdAll
		const blocks = 16
		list := copyParameters(5, 0, b.both(), [][]byte{blockSegment(0, 1, blocks/2, 0, 0), blockSegment(0, 1, blocks/2, blocks/2, blocks/2)})
		victim := b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
		victim.Nexus = b.a
		victim.Start()
		place(victim, list)
		victim.Pulled()
		b.store.complete()
		if next := victim.Resume(); next != Wait || len(b.secondStore.held) != 1 {
			t.Fatalf("the copy does not write: %v", next)
		}
		task, next := out(b.b, action, 0xb, 0xa)
		if waits := action == proutPreemptAndAbort; (next == Wait) != waits {
			t.Errorf("action %d is answered with %v while the copy writes", action, next)
		}
		b.secondStore.complete()
		want := victim.Resume()
		for len(b.owner.ready) > 0 {
			<-b.owner.ready
			want = victim.Resume()
		}
		if len(b.secondStore.held) != 0 || len(b.store.held) != 0 {
			t.Errorf("action %d: the copy goes on", action)
		}
		switch {
		case action == proutPreemptAndAbort && want != Aborted, action == proutPreempt && (want != Done || victim.Status != CheckCondition):
			t.Errorf("action %d: the copy ends with %v, status %02x", action, want, victim.Status)
		}
		if want == Done || want == Aborted {
			victim.Release()
		}
		if next == Wait {
			next = task.Resume()
		}
		if next != Done || task.Status != Good {
			t.Fatalf("action %d: %v, status %02x", action, next, task.Status)
		}
		task.Release()
		b.released()
	}
}

// ---- tokens ----

func rangeList(header int, ranges ...[2]uint64) []byte {
	l := make([]byte, header, header+16*len(ranges))
	for _, r := range ranges {
		l = binary.BigEndian.AppendUint64(l, r[0])
		l = binary.BigEndian.AppendUint32(l, uint32(r[1]))
		l = append(l, 0, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(l, uint16(len(l)-2))
	binary.BigEndian.PutUint16(l[header-2:], uint16(16*len(ranges)))
	return l
}

func (b *copyBench) third(n *Nexus, lun uint64, action byte, id uint32, list []byte) int {
	b.t.Helper()
	task := b.task(thirdPartyCDB(0x83, action, id, len(list)), list, 0)
	task.Nexus, task.LUN = n, lun<<48
	return verdict(b.run(task, list))
}

// information is RECEIVE ROD TOKEN INFORMATION.
func (b *copyBench) information(n *Nexus, lun uint64, id uint32) []byte {
	b.t.Helper()
	task := b.task(thirdPartyCDB(0x84, 7, id, 1024), nil, 1024)
	task.Nexus, task.LUN = n, lun<<48
	r := b.run(task, nil)
	if r.status != Good {
		b.t.Fatalf("RECEIVE ROD TOKEN INFORMATION: %05x", r.code())
	}
	return r.in
}

// token makes a token for ranges of LUN 0.
func (b *copyBench) token(ranges ...[2]uint64) []byte {
	b.t.Helper()
	if v := b.third(b.a, 0, 0x10, 1, rangeList(16, ranges...)); v != 0 {
		b.t.Fatalf("POPULATE TOKEN: %05x", v)
	}
	info := b.information(b.a, 0, 1)
	if len(info) != 32+4+2+512 || info[4] != 0x10 || info[5] != copyEnded {
		b.t.Fatalf("RECEIVE ROD TOKEN INFORMATION: % x", info)
	}
	return info[38:]
}

func useList(token []byte, skip uint64, flags byte, ranges ...[2]uint64) []byte {
	l := rangeList(536, ranges...)
	l[2] = flags
	binary.BigEndian.PutUint64(l[8:], skip)
	copy(l[16:], token)
	return l
}

func TestTokens(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newCopyBench(t, lends)
		one, two := b.store.data, b.secondStore.data
		token := b.token([2]uint64{10, 4}, [2]uint64{100, 4})
		if got := hexOf(token[:8]) + hexOf(token[48:64]); got != "00800001000001f8"+"00000000000000000000000000001000" {
			t.Errorf("token %s", got)
		}
		// By another initiator, to another unit, skipping 2 of the 8 blocks, to two ranges.
		want := bytes.Clone(two)
		rod := slices.Concat(one[10*512:14*512], one[100*512:104*512])
		copy(want[0:512*3], rod[2*512:])
		copy(want[200*512:203*512], rod[5*512:])
		if v := b.third(b.b, 1, 0x11, 44, useList(token, 2, 0, [2]uint64{0, 3}, [2]uint64{200, 3})); v != 0 {
			t.Fatalf("WRITE USING TOKEN: %05x", v)
		}
		if !bytes.Equal(two, want) {
			t.Errorf("lends %v: other data are there", lends)
		}
		info := b.information(b.b, 1, 44)
		if hexOf(info) != "00000020"+"11010000"+"00000000"+"000000f1"+"0000000000000006"+"0003000000000000"+"00000000" {
			t.Errorf("its result: %x", info)
		}
		task := b.task(thirdPartyCDB(0x84, 5, 44, 1024), nil, 1024)
		task.Nexus = b.b
		if r := b.run(task, nil); !bytes.Equal(r.in[4:], info[4:32]) {
			t.Errorf("RECEIVE COPY STATUS(LID4): %x", r.in)
		}
		// Zeroes.
		zero := make([]byte, 512)
		binary.BigEndian.PutUint32(zero, rodZero)
		zero[6], zero[7] = 1, 0xf8
		clear(want[50*512 : 60*512])
		if v := b.third(b.b, 1, 0x11, 45, useList(zero, 0, 0, [2]uint64{50, 10})); v != 0 || !bytes.Equal(two, want) {
			t.Errorf("zero token: %05x", v)
		}
		// Deleted after use.
		if v := b.third(b.a, 1, 0x11, 46, useList(token, 0, 2, [2]uint64{0, 8})); v != 0 {
			t.Errorf("used and deleted: %05x", v)
		}
		if v := b.third(b.a, 1, 0x11, 46, useList(token, 0, 0, [2]uint64{0, 8})); v != 0x52304 {
			t.Errorf("used after that: %05x", v)
		}
		if info := b.information(b.a, 1, 46); info[5] != copyWithErrors || info[13] != 18 || info[32+2] != keyIllegalRequest || info[32+12] != 0x23 {
			t.Errorf("its result: %x", info)
		}
		b.released()
	}
}

// A token ends before any of its bytes changes, whatever changes them, and not before.
func TestTokenEndsWithItsData(t *testing.T) {
	b := newCopyBench(t, true)
	block := make([]byte, 512)
	list := unmapList([2]uint64{13, 2})
	xcopy := copyParameters(1, 0, b.both(), [][]byte{blockSegment(1, 0, 4, 0, 10)})
	for name, c := range map[string]struct {
		cdb, out []byte
		ends     bool
	}{
		"READ":           {rw10(0x28, 10, 4), nil, false},
		"WRITE before":   {rw10(0x2a, 9, 1), block, false},
		"WRITE behind":   {rw10(0x2a, 14, 1), block, false},
		"WRITE":          {rw10(0x2a, 13, 1), block, true},
		"WRITE SAME":     {rw10(0x41, 10, 1), block, true},
		"UNMAP":          {unmap(list), list, true},
		"EXTENDED COPY":  {thirdPartyCDB(0x83, 0, 0, len(xcopy)), xcopy, true},
		"SANITIZE":       {sanitizeCDB(sanitizeBlockErase, 0), nil, true},
		"WRITE SAME off": {rw10(0x41, 20, 1), block, false},
	} {
		token := b.token([2]uint64{10, 4})
		if v := verdict(b.do(c.cdb, c.out, 1<<16)); v != 0 {
			t.Fatalf("%s: %05x", name, v)
		}
		b.sanitized()
		want := 0
		if c.ends {
			want = 0x52306
		}
		if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != want {
			t.Errorf("after %s: %05x, want %05x", name, v, want)
		}
	}
	// Onto itself: what the token stands for is about to change, so nothing is written.
	token := b.token([2]uint64{10, 4})
	before := bytes.Clone(b.store.data)
	if v := b.third(b.a, 0, 0x11, 2, useList(token, 0, 0, [2]uint64{12, 4})); v != 0x52306 || !bytes.Equal(before, b.store.data) {
		t.Errorf("onto itself: %05x", v)
	}
	// A unit that is taken away takes its tokens along.
	token = b.token([2]uint64{10, 4})
	b.target.SetLU(0, nil)
	for _, i := range *b.a.table.Load() {
		i.ua.Store(0)
	}
	if err := errors.Join(b.lu.Close(), b.lu.v.Close()); err != nil {
		t.Fatal(err)
	}
	if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != 0x52306 {
		t.Errorf("after the unit was closed: %05x", v)
	}
}

// copyReads returns a WRITE USING TOKEN of blocks 10 to 13 to blocks 0 to 3 of the second unit, with its
// parameter list, whose read is held.
func (b *copyBench) copyReads() (*Task, []byte) {
	b.t.Helper()
	token := b.token([2]uint64{10, 4})
	b.store.hold = func(op *backend.Op) bool { return op.Kind == backend.Read }
	list := useList(token, 0, 0, [2]uint64{0, 4})
	task := b.task(thirdPartyCDB(0x83, 0x11, 9, len(list)), list, 0)
	task.LUN = 1 << 48
	task.Start()
	place(task, list)
	if next := task.Pulled(); next != Wait {
		b.t.Fatal(next)
	}
	return task, list
}

// A write between two pieces of a copy ends the token, and the copy with it.
func TestTokenEndsUnderCopy(t *testing.T) {
	b := newCopyBench(t, false)
	task, list := b.copyReads()
	before := bytes.Clone(b.secondStore.data)
	if v := verdict(b.do(rw10(0x2a, 11, 1), make([]byte, 512), 0)); v != 0 {
		t.Fatalf("WRITE: %05x", v)
	}
	b.store.complete()
	if v := verdict(b.finish(task, task.Resume(), list)); v != 0x52306 || !bytes.Equal(before, b.secondStore.data) {
		t.Errorf("%05x", v)
	}
	b.released()
}

// A token that is made while a copy overwrites what it stands for ends when the copy gets there.
func TestTokenEndsInFrontOfCopy(t *testing.T) {
	b := newCopyBench(t, false)
	task, list := b.copyReads()
	made, s := b.target.copies.create(b.second, 0, []volume.Range{{Off: 512, N: 512}}, time.Minute)
	if s != (Sense{}) {
		t.Fatal(s)
	}
	b.store.complete()
	if v := verdict(b.finish(task, task.Resume(), list)); v != 0 {
		t.Errorf("%05x", v)
	}
	if made.Valid() {
		t.Error("a token stands for what has been overwritten")
	}
	b.released()
}

func TestTokenLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCopyBench(t, true)
		token := b.token([2]uint64{10, 4})
		for range 3 { // each use keeps it
			time.Sleep(rodInactivity0 - time.Second)
			if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != 0 {
				t.Errorf("in time: %05x", v)
			}
		}
		time.Sleep(rodInactivity0 + time.Second)
		if v := b.third(b.a, 1, 0x11, 2, useList(token, 0, 0, [2]uint64{0, 4})); v != 0x52307 {
			t.Errorf("too late: %05x", v)
		}
		for i := range maxRODTokens {
			if _, s := b.target.copies.create(b.lu, 0, []volume.Range{{N: 512}}, time.Second); s != (Sense{}) {
				t.Fatalf("token %d: %+v", i, s)
			}
		}
		if v := b.third(b.a, 0, 0x10, 3, rangeList(16, [2]uint64{0, 1})); v != 0xa550d {
			t.Errorf("one too many: %05x", v)
		}
		time.Sleep(2 * time.Second)
		if v := b.third(b.a, 0, 0x10, 3, rangeList(16, [2]uint64{0, 1})); v != 0 {
			t.Errorf("when the others have expired: %05x", v)
		}
		if n := len(b.target.copies.tokens); n != 1 {
			t.Errorf("%d tokens are kept", n)
		}
	})
}

// Whoever writes does not look at tokens that nobody can use any more.
func TestExpiredTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCopyBench(t, true)
		b.token([2]uint64{10, 4})
		time.Sleep(rodInactivity0 - time.Second)
		later := b.token([2]uint64{100, 4})
		valid := func() (n int) {
			synctest.Wait()
			for _, r := range b.target.copies.tokens {
				if r.Valid() {
					n++
				}
			}
			return n
		}
		for _, want := range []int{2, 1, 1, 0} {
			if n := valid(); n != want {
				t.Fatalf("%d tokens are valid, want %d", n, want)
			}
			time.Sleep(rodInactivity0 / 2)
		}
		if v := b.third(b.a, 1, 0x11, 2, useList(later, 0, 0, [2]uint64{0, 4})); v != 0x52307 {
			t.Errorf("too late: %05x", v)
		}
	})
}

// A copy that has been under way for long leaves alone what it has not come to when others write there: its initiator may have sent it again by
// another path, and have gone on.
func TestLateCopyIsOvertaken(t *testing.T) {
	for _, at := range []uint32{0, 100, 101, 200} {
		b := newCopyBench(t, false)
		hold := true
		b.secondStore.hold = func(op *backend.Op) bool { return op.Kind == backend.Write && hold }
		list := copyParameters(7, 0, b.both(), [][]byte{blockSegment(0, 1, 4, 0, 0), blockSegment(0, 1, 4, 8, 100)})
		task := b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
		task.Start()
		place(task, list)
		if next := task.Pulled(); next != Wait {
			t.Fatal(next)
		}
		task.Overdue()
		hold = false
		write := b.task(rw10(0x2a, at, 1), make([]byte, 512), 0)
		write.LUN = 1 << 48
		write.Start()
		place(write, bytes.Repeat([]byte{0xfe}, 512))
		next := write.Pulled()
		if waits := at == 0; (next == Wait) != waits {
			t.Errorf("a write at %d: %v", at, next)
		}
		if next == Done {
			b.finish(write, next, nil)
		}
		b.secondStore.complete()
		v := verdict(b.finish(task, task.Resume(), list))
		if overtaken := at == 100 || at == 101; overtaken != (v == 0xb0000) || !overtaken && v != 0 {
			t.Errorf("beside a write at %d: %05x", at, v)
		}
		if next == Wait {
			b.finish(write, write.Resume(), nil)
		}
		if got := b.secondStore.data[512*at]; got != 0xfe {
			t.Errorf("block %d begins with %x", at, got)
		}
		b.released()
	}
}

// The piece of a copy that waits for its range when it is late has not been begun: others who come to write there come before it.
func TestLatePieceIsOvertaken(t *testing.T) {
	for _, name := range []string{"copied", "zeroes"} {
		b := newCopyBench(t, false)
		write := func(fill byte) (*Task, Next) {
			task := b.task(rw10(0x2a, 100, 1), make([]byte, 512), 0)
			task.LUN = 1 << 48
			task.Start()
			place(task, bytes.Repeat([]byte{fill}, 512))
			return task, task.Pulled()
		}
		b.secondStore.hold = func(op *backend.Op) bool { return op.Kind == backend.Write }
		given, _ := write(1)
		given.Abort()
		if next := given.Resume(); next != Wait {
			t.Fatal(next)
		}
		var task *Task
		var list []byte
		if name == "copied" {
			list = copyParameters(7, 0, b.both(), [][]byte{blockSegment(0, 1, 4, 0, 100)})
			task = b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
		} else {
			zero := make([]byte, rodTokenLen)
			binary.BigEndian.PutUint32(zero, rodZero)
			binary.BigEndian.PutUint16(zero[6:], rodTokenLen-8)
			list = useList(zero, 0, 0, [2]uint64{100, 4})
			task = b.task(thirdPartyCDB(0x83, 0x11, 8, len(list)), list, 0)
			task.LUN = 1 << 48
		}
		task.Start()
		place(task, list)
		if next := task.Pulled(); next != Wait || !task.r.Parked() {
			t.Fatalf("%s: the copy does not wait for its range: %v", name, next)
		}
		task.Overdue()
		task.Overdue()
		newer, next := write(3)
		if next != Wait {
			t.Fatal(next)
		}
		b.secondStore.hold = nil
		b.secondStore.complete()
		if next := given.Resume(); next != Aborted {
			t.Fatal(next)
		}
		given.Release()
		if r := b.finish(newer, newer.Resume(), nil); r.status != Good {
			t.Errorf("%s: the newer write: %v", name, r.status)
		}
		if v := verdict(b.finish(task, task.Resume(), list)); v != 0xb0000 {
			t.Errorf("%s: the copy ends with %05x", name, v)
		}
		if got := b.secondStore.data[512*100]; got != 3 {
			t.Errorf("%s: the block begins with %x", name, got)
		}
		b.released()
	}
}

// However many copies end meanwhile, the initiator is told of one that is under way, and how it has ended.
func TestCopyUnderWayIsRemembered(t *testing.T) {
	b := newCopyBench(t, false)
	task, list := b.copyReads()
	for id := range uint32(maxCopyResults + 1) {
		if v := b.third(b.a, 0, 0x10, 100+id, rangeList(16, [2]uint64{200, 1})); v != 0 {
			t.Fatalf("POPULATE TOKEN: %05x", v)
		}
	}
	if info := b.information(b.a, 1, 9); info[5] != copyForeground && info[5] != copyEnded {
		t.Errorf("% x", info)
	}
	if v := verdict(b.finish(task, task.Resume(), list)); v != 0 {
		t.Errorf("the copy: %05x", v)
	}
	if info := b.information(b.a, 1, 9); info[5] != copyEnded {
		t.Errorf("in the end: % x", info)
	}
	if n := len(b.a.copies.list); n != maxCopyResults {
		t.Errorf("%d results are kept", n)
	}
	b.released()
}

// A token does not expire while a copy uses it, however long that takes, nor until it has not been used for its time afterwards.
func TestTokenLivesWhileItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCopyBench(t, false)
		task, list := b.copyReads()
		again := func(when string) {
			t.Helper()
			if v := b.third(b.a, 1, 0x11, 2, list); v != 0 {
				t.Errorf("%s: %05x", when, v)
			}
		}
		b.store.hold = nil
		time.Sleep(rodInactivity0 + time.Second)
		again("beside the copy")
		time.Sleep(rodInactivity0 + time.Second)
		if v := verdict(b.finish(task, task.Resume(), list)); v != 0 {
			t.Errorf("the copy: %05x", v)
		}
		time.Sleep(rodInactivity0 - time.Second)
		again("after the copy")
		b.released()
	})
}

func TestTokensAreRefused(t *testing.T) {
	b := newCopyBench(t, true)
	token := b.token([2]uint64{10, 4})
	changed := func(l []byte, at int, to byte) []byte {
		l = bytes.Clone(l)
		l[at] = to
		return l
	}
	populate, use := rangeList(16, [2]uint64{0, 4}), useList(token, 0, 0, [2]uint64{0, 4})
	typed := changed(changed(populate, 2, 2), 9, 0x01) // access upon reference
	for name, c := range map[string]struct {
		action byte
		list   []byte
		want   int
	}{
		"short":                  {0x10, populate[:15], 0x51a00},
		"cut":                    {0x10, populate[:31], 0x51a00},
		"longer than it is":      {0x10, changed(populate, 1, 31), 0x51a00},
		"shorter than its list":  {0x10, changed(populate, 1, 29), 0x52600},
		"no ranges":              {0x10, rangeList(16), 0x52600},
		"no blocks":              {0x10, rangeList(16, [2]uint64{0, 0}), 0x52600},
		"beyond the end":         {0x10, rangeList(16, [2]uint64{testBlocks - 1, 2}), 0x52100},
		"overlap":                {0x10, rangeList(16, [2]uint64{5, 5}, [2]uint64{0, 6}), 0x52600},
		"type":                   {0x10, typed, 0x52301},
		"inactivity timeout":     {0x10, changed(populate, 7, 61), 0x52600},
		"unknown token":          {0x11, changed(use, 16+511, token[511]^1), 0x52304},
		"changed token":          {0x11, changed(use, 16+60, 1), 0x52305},
		"type of the token":      {0x11, changed(use, 16+3, 2), 0x52301},
		"length of the token":    {0x11, changed(use, 16+7, 2), 0x5230a},
		"more than it has":       {0x11, useList(token, 0, 0, [2]uint64{0, 5}), 0x52600},
		"skips more than it has": {0x11, useList(token, 5, 0, [2]uint64{0, 1}), 0x52600},
		"skips far more":         {0x11, useList(token, 1<<63, 0, [2]uint64{0, 1}), 0x52600},
	} {
		if v := b.third(b.a, 1, c.action, 77, c.list); v != c.want {
			t.Errorf("%s: %05x, want %05x", name, v, c.want)
		}
	}
	if v := verdict(b.do(thirdPartyCDB(0x84, 7, 4711, 64), nil, 64)); v != 0x52400 {
		t.Errorf("information on an unknown list: %05x", v)
	}
	if v := verdict(b.do(thirdPartyCDB(0x83, 0x1f, 0, 0), nil, 0)); v != 0x52400 {
		t.Errorf("unknown service action: %05x", v)
	}
}

// FuzzCopyList reads any parameter list of EXTENDED COPY. What is accepted lies within the limits
// that are reported, and its steps within the units.
func FuzzCopyList(f *testing.F) {
	lu := &LogicalUnit{blockShift: 9, blockSize: 512}
	lu.capacity.Store(fuzzBlocks)
	f.Add(copyParameters(1, 0x18, [][]byte{identify(lu)}, [][]byte{blockSegment(0, 0, 4, 0, 8), byteSegment(0, 0, 512, 1, 2, 0, 0)}))
	f.Add(copyParameters(1, 0, nil, [][]byte{blockSegment(0, 0, 4, 1<<63, 8)}))
	f.Add(copyParameters(1, 0, [][]byte{identify(lu)}, [][]byte{{2, 0, 0xff, 0xff}}))
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, list []byte) {
		if len(list) < copyHeader || len(list) > copyHeader+maxCopyList {
			return
		}
		l, s, ok := parseCopyList(list)
		if ok != (s == Sense{}) || len(l.targets) > maxCopyTargets || len(l.segments) > maxCopySegments {
			t.Fatalf("%v, %+v, %d, %d", ok, s, len(l.targets), len(l.segments))
		}
		for i := range l.segments {
			step, s := l.segments[i].step(lu, lu)
			if s == (Sense{}) && (step.n > maxSegmentBytes || step.n < 0 || (step.n|step.src|step.dst)%512 != 0 || step.src < 0 || step.dst < 0) {
				t.Fatalf("%+v", step)
			}
		}
	})
}

// FuzzRanges reads any list of range descriptors.
func FuzzRanges(f *testing.F) {
	f.Add(rangeList(16, [2]uint64{0, 4}, [2]uint64{4, 4}))
	f.Add(rangeList(16, [2]uint64{1<<64 - 1, 4}))
	f.Add(rangeList(16))
	lu := &LogicalUnit{blockShift: 9, blockSize: 512}
	lu.capacity.Store(fuzzBlocks)
	f.Fuzz(func(t *testing.T, list []byte) {
		if len(list) < populateHeader || len(list) > populateHeader+rangeLen*maxRODRanges {
			return
		}
		ranges, s, ok := lu.parseRanges(list, populateHeader)
		if ok != (s == Sense{}) || ok != (len(ranges) > 0) {
			t.Fatalf("%v, %+v, %v", ok, s, ranges)
		}
		seen := map[int64]bool{}
		for _, r := range ranges {
			if !lu.holds(r.Off, r.N) || r.N%512 != 0 || r.N == 0 {
				t.Fatalf("%+v", r)
			}
			for off := r.Off; off < r.Off+r.N; off += 512 {
				if seen[off] {
					t.Fatalf("block %d twice", off/512)
				}
				seen[off] = true
			}
		}
	})
}

// FuzzToken changes anything in a parameter list of WRITE USING TOKEN. Whatever is said, nothing but the
// ranges that it names changes, and if it is refused nothing.
func FuzzToken(f *testing.F) {
	f.Add([]byte{}, uint16(0), byte(0))
	f.Add([]byte{0xff, 0xff, 0, 1}, uint16(16), byte(0))        // the type of the token
	f.Add([]byte{1}, uint16(16+511), byte(0))                   // its secret
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 5}, uint16(8), byte(1))   // the offset into it
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1}, uint16(536), byte(2)) // the first range
	f.Add([]byte{2, 40, 0, 0}, uint16(0), byte(3))              // lengths
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}, uint16(534), byte(1))
	f.Fuzz(func(t *testing.T, change []byte, at uint16, cut byte) {
		b := newCopyBench(t, cut&1 == 0)
		list := useList(b.token([2]uint64{10, 4}, [2]uint64{100, 4}), 1, 0, [2]uint64{0, 3}, [2]uint64{20, 3})
		if int(at) > len(list) {
			return
		}
		copy(list[at:], change)
		list = list[:len(list)-min(int(cut)>>1, len(list))]
		one, two := bytes.Clone(b.store.data), bytes.Clone(b.secondStore.data)
		v := b.third(b.b, 1, 0x11, 44, list)
		if !bytes.Equal(b.store.data, one) {
			t.Fatal("the source has changed")
		}
		if v != 0 {
			if !bytes.Equal(b.secondStore.data, two) {
				t.Fatalf("%05x, but bytes have changed", v)
			}
			return
		}
		for off := range two {
			if two[off] != b.secondStore.data[off] && !named(list, uint64(off/512)) {
				t.Fatalf("byte %d has changed", off)
			}
		}
	})
}

// named reports whether a range of a parameter list of WRITE USING TOKEN holds the block.
func named(list []byte, block uint64) bool {
	ranges := list[536:][:binary.BigEndian.Uint16(list[534:])]
	for ; len(ranges) >= 16; ranges = ranges[16:] {
		if lba := binary.BigEndian.Uint64(ranges); block >= lba && block-lba < uint64(binary.BigEndian.Uint32(ranges[8:])) {
			return true
		}
	}
	return false
}

// A copy that has ended pins nothing, whether or not its initiator takes the answer: a sanitize operation, and whoever closes the volume, would
// wait for that.
func TestEndedCopyPinsNothing(t *testing.T) {
	b := newCopyBench(t, false)
	list := copyParameters(5, 0, b.both(), [][]byte{blockSegment(0, 1, 8, 0, 0)})
	task := b.task(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0)
	task.Start()
	place(task, list)
	next := task.Pulled()
	for next == Wait {
		b.awaitReady(task)
		next = task.Resume()
	}
	if next != Done || task.Status != Good {
		t.Fatalf("%v, status %02x", next, task.Status)
	}
	if !b.lu.v.Idle() || !b.second.v.Idle() {
		t.Error("volumes are pinned until the answer has left")
	}
	task.Release()
	b.released()
}
