package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/durable"
	"oneshot/backend/faulty"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
)

// The format is that of format.go, octet by octet.
func TestFormat(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, minBlock)
	want := header{batches: true, block: 4096, segments: 4, segment: 64 << 20, serial: 6, epoch: 7, first: 8, oldest: 3, needed: 5}
	want.put(b)
	text := "oneshot log 2\n\x00\x00" + "\x00\x00\x10\x00" + "\x00\x00\x00\x04" + "\x00\x00\x00\x00\x04\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x06" +
		"\x00\x00\x00\x00\x00\x00\x00\x07" + "\x00\x00\x00\x00\x00\x00\x00\x08" + "\x00\x00\x00\x00\x00\x00\x00\x03" + "\x00\x00\x00\x00\x00\x00\x00\x05"
	if string(b[:72]) != text || binary.BigEndian.Uint32(b[72:]) == 0 || !bytes.Equal(b[headerSize:], make([]byte, minBlock-headerSize)) {
		t.Errorf("header: % x", b)
	}
	if h, err := parseHeader(b); err != nil || h != want || h.place() != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	want.batches = false
	if want.put(b); string(b[:16]) != "oneshot log 1\n\x00\x00" {
		t.Errorf("header of the first version: % x", b[:16])
	}
	if h, err := parseHeader(b); err != nil || h != want {
		t.Errorf("%+v, %v", h, err)
	}
	for i := range headerSize {
		b[i] ^= 1
		if _, err := parseHeader(b); err == nil {
			t.Errorf("octet %d may be any", i)
		}
		b[i] ^= 1
	}
	putEntry(b, 7, 9, 3|firstBit, []byte("abc"))
	if e, ok := parseEntry(b, 7, 9); string(b[:4]) != "\x40\x00\x00\x03" || !ok || !e.first || string(e.payload) != "abc" {
		t.Errorf("first entry of a batch: % x, %+v, %v", b[:32], e, ok)
	}
	putEntry(b, 7, 9, 3, []byte("abc"))
	if string(b[:4]) != "\x00\x00\x00\x03" || string(b[8:19]) != "\x00\x00\x00\x00\x00\x00\x00\x09abc" || !bytes.Equal(b[19:], make([]byte, minBlock-19)) {
		t.Errorf("entry: % x", b[:32])
	}
	var epoch [8]byte
	epoch[7] = 7
	if sum := crc32.Checksum(slices.Concat(epoch[:], b[:4], b[8:19]), castagnoli); sum != binary.BigEndian.Uint32(b[4:]) {
		t.Errorf("checksum %#x, want %#x", binary.BigEndian.Uint32(b[4:]), sum)
	}
	if e, ok := parseEntry(b, 7, 9); !ok || e.mark || e.first || string(e.payload) != "abc" {
		t.Errorf("%+v, %v", e, ok)
	}
	for what, ok := range map[string]bool{
		"of another epoch":    func() bool { _, ok := parseEntry(b, 8, 9); return ok }(),
		"of another sequence": func() bool { _, ok := parseEntry(b, 7, 10); return ok }(),
	} {
		if ok {
			t.Errorf("an entry %s is one", what)
		}
	}
	for i := range 19 {
		b[i] ^= 1
		if n, _ := entryLength(b); n > 0 && n <= minBlock {
			if _, ok := parseEntry(b, 7, 9); ok {
				t.Errorf("octet %d may be any", i)
			}
		}
		b[i] ^= 1
	}
}

// FuzzParse parses any octets; whatever is taken for a header or a record is as it would have been written.
func FuzzParse(f *testing.F) {
	b := make([]byte, minBlock)
	(&header{block: 512, segments: 4, segment: 4096, serial: 6, epoch: 7, first: 8, oldest: 3, needed: 5}).put(b)
	f.Add(slices.Clone(b), uint64(7), uint64(9))
	putEntry(b, 7, 9, 3, []byte("abc"))
	f.Add(slices.Clone(b), uint64(7), uint64(9))
	p := mark{8, 1, 2}.bytes()
	putEntry(b, 7, 9, markSize|markBit|firstBit, p[:])
	f.Add(slices.Clone(b), uint64(7), uint64(9))
	f.Fuzz(func(t *testing.T, b []byte, epoch, seq uint64) {
		if len(b) < minBlock {
			return
		}
		again := make([]byte, len(b))
		if h, err := parseHeader(b); err == nil {
			if h.put(again); !bytes.Equal(again[:headerSize], b[:headerSize]) {
				t.Errorf("%+v", h)
			}
		}
		n, isMark := entryLength(b)
		if n > int64(len(b)) {
			return
		}
		e, ok := parseEntry(b, epoch, seq)
		if !ok {
			return
		}
		length := uint32(n - entrySize)
		if e.first {
			length |= firstBit
		}
		if isMark {
			length |= markBit
			p := parseMark(e.payload).bytes()
			e.payload = p[:]
		}
		if putEntry(again[:n], epoch, seq, length, e.payload); !bytes.Equal(again[:n], b[:n]) {
			t.Errorf("%+v", e)
		}
	})
}

// Records that are appended while a batch is written make up one batch. Each of many appenders finds its record, and
// the order is that of the LSNs.
func TestGroupCommit(t *testing.T) {
	disk := backendtest.NewDisk(1<<20, testBlock)
	l := mustOpen(t, disk, Options{})
	const appenders, each = 16, 20
	var batches atomic.Int64
	var appended, all sync.WaitGroup
	appended.Add(appenders)
	disk.Durable = func(*backend.Op) error {
		if batches.Add(1) == 1 { // the header
			appended.Wait()
		}
		return nil
	}
	disk.Fault = func(op *backend.Op) error {
		if op.Kind == backend.Flush || op.Flags&backend.FUA == 0 {
			t.Errorf("a batch takes a %v with flags %x", op.Kind, op.Flags)
		}
		return nil
	}
	want := make([]string, appenders*each)
	for i := range appenders {
		all.Go(func() {
			p := fmt.Sprintf("appender %d, record 0", i)
			lsn, w := l.Append([]byte(p))
			want[lsn-1] = p
			appended.Done()
			if err := w.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := batches.Load(); n != 2 {
		t.Errorf("%d durable writes for a header and %d records", n, appenders)
	}
	for i := range appenders {
		all.Go(func() {
			for k := 1; k < each; k++ {
				p := fmt.Sprintf("appender %d, record %d", i, k)
				lsn, w := l.Append([]byte(p))
				want[lsn-1] = p
				if err := w.Wait(); err != nil {
					t.Error(err)
				}
				if l.Durable() < lsn {
					t.Errorf("record %d is not durable: %d", lsn, l.Durable())
				}
			}
		})
	}
	all.Wait()
	disk.Fault = nil
	if got := records(t, l); !slices.Equal(got, want) {
		t.Error("other records are replayed")
	}
	must(t, l.Close())
	if _, w := l.Append(nil); w.Wait() != ErrClosed {
		t.Errorf("Append after Close: %v", w.Wait())
	}
	if err := l.Replay(t.Context(), 0, nil); err != ErrClosed {
		t.Errorf("Replay after Close: %v", err)
	}
	l = mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{})
	if got := records(t, l); !slices.Equal(got, want) {
		t.Error("other records are replayed after a power cut")
	}
}

// Of two that truncate a full log at a time the second has its turn when the first has made room.
func TestTruncateTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := backendtest.NewDisk(testSize, testBlock)
		l, shut, err := open(t, disk, Options{Segment: testSegment})
		must(t, err)
		var last uint64
		for {
			lsn, w := l.Append([]byte(short))
			if w.Wait() == ErrFull {
				break
			}
			last = lsn
		}
		second := make(chan error, 1)
		disk.Durable = func(*backend.Op) error {
			disk.Durable = nil
			go func() { second <- l.Truncate(last - 1) }()
			synctest.Wait()
			return nil
		}
		must(t, l.Truncate(l.First()+8))
		must(t, <-second)
		if l.First() != last-1 {
			t.Errorf("the first record is %d, want %d", l.First(), last-1)
		}
		shut()
	})
}

// A full log says so, takes records again after Truncate, and can be truncated after a restart, too.
func TestFull(t *testing.T) {
	for _, restart := range []bool{false, true} {
		disk := backendtest.NewDisk(testSize, testBlock)
		l := mustOpen(t, disk, Options{Segment: testSegment})
		for round := range 6 {
			var last uint64
			for {
				lsn, w := l.Append([]byte(short))
				if err := w.Wait(); err == ErrFull {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				last = lsn
			}
			for range 3 { // it stays full
				if _, w := l.Append([]byte(short)); w.Wait() != ErrFull {
					t.Fatal(w.Wait())
				}
			}
			if n := last - l.First(); n < 3*5 {
				t.Errorf("full with %d records", n)
			}
			if restart {
				must(t, l.Close())
				l = mustOpen(t, disk, Options{})
				if _, w := l.Append([]byte(short)); w.Wait() != ErrFull {
					t.Fatal(w.Wait())
				}
			}
			want := l.First() + 8 + uint64(round) // in another segment
			must(t, l.Truncate(want))
			if l.First() != want {
				t.Errorf("the first record is %d, want %d", l.First(), want)
			}
			if restart {
				must(t, l.Close())
				l = mustOpen(t, disk, Options{})
				if l.First() != want {
					t.Errorf("the first record is %d after a restart, want %d", l.First(), want)
				}
			}
		}
		if err := l.Truncate(1 << 40); err == nil {
			t.Error("truncated beyond the end")
		}
		must(t, l.Truncate(l.Durable()+1))
		if got := records(t, l); len(got) != 0 {
			t.Errorf("%d records are left", len(got))
		}
	}
}

// Records have any length up to a bound.
func TestLengths(t *testing.T) {
	disk := backendtest.NewDisk(16<<20, 4096)
	l := mustOpen(t, disk, Options{})
	var want []string
	for _, n := range []int{0, 1, 4080, 4081, 65536, maxEntry - entrySize} {
		p := strings.Repeat(string(rune('a'+len(want))), n)
		mustAppend(t, l, []byte(p))
		want = append(want, p)
	}
	_, w := l.Append(make([]byte, maxEntry-entrySize+1))
	if e, ok := errors.AsType[*TooLongError](w.Wait()); !ok || e.Max != maxEntry-entrySize {
		t.Errorf("%v", w.Wait())
	}
	for range 2 {
		if got := records(t, l); !slices.Equal(got, want) {
			t.Error("other records are replayed")
		}
		must(t, l.Close())
		l = mustOpen(t, disk, Options{})
	}
}

// Replay begins where it is told to, and ends with the error of its function.
func TestReplayFrom(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	for i := range 15 {
		mustAppend(t, l, []byte{byte(i + 1)})
	}
	enough := errors.New("enough")
	for from := range uint64(17) {
		next := max(from, 1)
		err := l.Replay(t.Context(), from, func(lsn uint64, p []byte) error {
			if lsn != next || len(p) != 1 || uint64(p[0]) != lsn {
				t.Errorf("from %d: record %d is %v", from, lsn, p)
			}
			if next++; lsn == 12 {
				return enough
			}
			return nil
		})
		if want := from <= 12; errors.Is(err, enough) != want || !want && (err != nil || next != 16 && from < 16) {
			t.Errorf("from %d up to %d: %v", from, next, err)
		}
	}
}

// A partition that holds no log, or another one, is refused, and not written to.
func TestOpenRefused(t *testing.T) {
	other := make([]byte, testSize)
	copy(other, "something else")
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	for range 12 {
		mustAppend(t, l, []byte(short))
	}
	must(t, l.Close())
	log := disk.Crash(nil, 0)
	damaged := func(at int) []byte { b := slices.Clone(log); b[at] ^= 1; return b }
	wide := make([]byte, 16<<20)
	(&header{block: 2 << 20, segments: 2, segment: 8 << 20, serial: 1, epoch: 7, first: 1, oldest: 1}).put(wide[:testBlock])
	freed := make([]byte, testSize)
	(&header{block: testBlock, segments: 4, segment: testSegment, serial: 1, epoch: 7, first: 1, oldest: 1}).put(freed[:testBlock])
	p := mark{8, 99, 0}.bytes()
	putEntry(freed[testBlock:2*testBlock], 7, 1, markSize|markBit, p[:])
	for what, c := range map[string]struct {
		image []byte
		o     Options
		text  string
	}{
		"all is freed":     {freed, Options{}, "frees segments"},
		"blocks too long":  {wide, Options{}, "makes no sense"},
		"foreign":          {other, Options{}, "holds no log"},
		"other segments":   {log, Options{Segment: testSegment / 2}, "segments of 4096 bytes"},
		"odd segments":     {other, Options{Segment: 1000, Create: true}, "multiples of 512"},
		"small segments":   {other, Options{Segment: 512, Create: true}, "at least 2048"},
		"one segment":      {other, Options{Segment: 16384, Create: true}, "there have to be two"},
		"smaller":          {log[:3*testSegment], Options{Segment: testSegment}, "needs 4 segments"},
		"a lost record":    {damaged(testBlock * 3), Options{Segment: testSegment}, "record 3 should stand at byte 1536"},
		"a lost header":    {damaged(0), Options{Segment: testSegment}, "should stand at byte 0"},
		"a lost separator": {damaged(testSegment), Options{Segment: testSegment}, "though at byte 4608 stands"},
	} {
		d := backendtest.DiskOf(slices.Clone(c.image), testBlock)
		if _, _, err := open(t, d, c.o); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", what, err)
		}
		if !bytes.Equal(d.Crash(nil, 1), c.image) {
			t.Errorf("%s: Open has written", what)
		}
	}
}

// A log that fails tells all who wait, and stays failed; opened again it has what was acknowledged.
func TestFailingStore(t *testing.T) {
	broken := errors.New("broken on purpose")
	for what, c := range map[string]struct {
		err     error
		written bool
		status  rdma.Status
	}{
		"a write":    {&backend.MediumError{Kind: backend.Write, Err: broken}, false, rdma.StatusMedium},
		"no space":   {&backend.SpaceError{Err: broken}, false, rdma.StatusSpace},
		"durability": {&backend.MediumError{Kind: backend.Write, Err: broken}, true, rdma.StatusMedium},
		"lost":       {&durable.LostError{Err: broken}, true, rdma.StatusLost},
	} {
		disk := backendtest.NewDisk(testSize, testBlock)
		l := mustOpen(t, disk, Options{Segment: testSegment})
		mustAppend(t, l, []byte("first"))
		fault := &disk.Fault
		if c.written {
			fault = &disk.Durable
		}
		*fault = func(*backend.Op) error { return c.err }
		_, w := l.Append([]byte("second"))
		e, ok := errors.AsType[*endpoint.Error](w.Wait())
		if !ok || e.Status != c.status || !errors.Is(w.Wait(), broken) {
			t.Errorf("%s: %v", what, w.Wait())
		}
		*fault = nil
		if _, w := l.Append([]byte("third")); !errors.Is(w.Wait(), broken) {
			t.Errorf("%s, afterwards: %v", what, w.Wait())
		}
		if err := l.Truncate(2); err != nil && !errors.Is(err, broken) {
			t.Errorf("%s: %v", what, err)
		}
		if err := l.Close(); !errors.Is(err, broken) {
			t.Errorf("%s: Close: %v", what, err)
		}
		l = mustOpen(t, disk, Options{})
		if got := records(t, l); len(got) == 0 || got[0] != "first" || len(got) > 2 || len(got) == 2 && got[1] != "second" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// Of a batch that has failed the bytes may be in a cache, and never get from there to the medium. If they are found when the log is opened
// again, they do not become a hole before what is appended then.
func TestFailedBatchInTheCache(t *testing.T) {
	broken := errors.New("broken on purpose")
	for what, before := range map[string][]string{"records": {"first"}, "a header": {}} {
		disk := backendtest.NewDisk(testSize, testBlock)
		l := mustOpen(t, disk, Options{Segment: testSegment})
		for _, p := range before {
			mustAppend(t, l, []byte(p))
		}
		disk.Durable = func(*backend.Op) error { return &durable.LostError{Err: broken} }
		if _, w := l.Append([]byte("failed")); !errors.Is(w.Wait(), broken) {
			t.Errorf("%s: %v", what, w.Wait())
		}
		_ = l.Close() // which has the same error
		disk.Durable = nil
		disk.Forget()
		l = mustOpen(t, disk, Options{})
		mustAppend(t, l, []byte("last"))
		l = mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{Segment: testSegment})
		if got := records(t, l); len(got) == 0 || got[len(got)-1] != "last" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// A block that the medium cannot read, behind the end of the log, keeps nobody from it.
func TestUnreadableBehindTheEnd(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	mustAppend(t, l, []byte("first"))
	must(t, l.Close())
	const bad = testSegment - testBlock
	disk.Fault = func(op *backend.Op) error {
		if op.Kind == backend.Read && op.Off <= bad && op.Off+op.Len > bad {
			return &backend.MediumError{Kind: op.Kind, Off: bad, Err: errors.New("broken on purpose")}
		}
		return nil
	}
	l = mustOpen(t, disk, Options{})
	mustAppend(t, l, []byte("second"))
	if got := records(t, l); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("%q", got)
	}
}

// Nor does one in what a lap before has left there, however long that entry is: its sequence says that it is not the next one.
func TestUnreadableOfTheLapBefore(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	mustAppend(t, l, nil)
	lsn := mustAppend(t, l, make([]byte, 2*testBlock)) // in three blocks
	for l.serial < l.segments {
		lsn = mustAppend(t, l, make([]byte, 4*testBlock)) // it fills most of a segment
		must(t, l.Truncate(lsn))
	}
	for l.serial == l.segments {
		mustAppend(t, l, nil)
	}
	must(t, l.Close())
	bad := 3 * int64(testBlock)
	if l.pos != bad-testBlock {
		t.Fatalf("the log ends at %d", l.pos)
	}
	disk.Fault = func(op *backend.Op) error {
		if op.Kind == backend.Read && op.Off <= bad && op.Off+op.Len > bad {
			return &backend.MediumError{Kind: op.Kind, Off: bad, Err: errors.New("broken on purpose")}
		}
		return nil
	}
	l = mustOpen(t, disk, Options{})
	if last := mustAppend(t, l, nil); last <= lsn {
		t.Errorf("record %d comes behind record %d", last, lsn)
	}
}

// A connection that ends while a batch is written, and a store that was opened again and has lost what was not
// flushed: the log writes the batch again.
func TestRestartedStore(t *testing.T) { nearAndFar(t, testRestartedStore) }

func testRestartedStore(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint) {
	disk := backendtest.NewDisk(testSize, testBlock)
	h := endpointtest.New(t, disk)
	e := user(h)(endpoint.Options{Sole: true})
	l, err := Open(t.Context(), e, Options{Segment: testSegment})
	must(t, err)
	var want []string
	for life := range 4 {
		want = append(want, fmt.Sprint("before ", life))
		mustAppend(t, l, []byte(want[len(want)-1]))
		var next *backendtest.Disk
		var once sync.Once
		moment := &disk.Fault // before it is written, or when it is written, and not durable
		if life%2 == 1 {
			moment = &disk.Durable
		}
		*moment = func(op *backend.Op) (err error) {
			if op.Kind == backend.Write {
				once.Do(func() {
					if life < 2 {
						h.End()
						return
					}
					next = backendtest.DiskOf(disk.Crash(nil, 0), testBlock)
					h.Restart(next)
					err = &backend.DeniedError{} // what the old store still has to do it does not
				})
			}
			return err
		}
		want = append(want, fmt.Sprint("under way ", life))
		mustAppend(t, l, []byte(want[len(want)-1]))
		want = append(want, fmt.Sprint("after ", life))
		mustAppend(t, l, []byte(want[len(want)-1]))
		if *moment = nil; next != nil {
			disk = next
		}
		if got := records(t, l); !slices.Equal(got, want) {
			t.Fatalf("life %d: %q, want %q", life, got, want)
		}
		c := mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{})
		if got := records(t, c); !slices.Equal(got, want) {
			t.Fatalf("life %d, after a power cut: %q, want %q", life, got, want)
		}
		must(t, l.Truncate(l.First()))
	}
	must(t, l.Close())
}

// Who gives up a Replay leaves a read under way. What that brings does not come into the records of the next Replay.
func TestReplayGivenUp(t *testing.T) {
	store := faulty.New(backendtest.NewDisk(testSize, testBlock), faulty.Seed(t))
	h := endpointtest.New(t, store)
	l := beginWith(t, h.Use, endpoint.Options{Sole: true, Free: true}, Options{Segment: testSegment}).l
	last := uint64(0)
	for n := range 2 * int(testSegment/testBlock) {
		last = mustAppend(t, l, fmt.Append(nil, "record ", n+1))
	}
	gate := store.Hold(faulty.Match{Kinds: faulty.Reads, Times: 1})
	ctx, giveUp := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Replay(ctx, 0, func(uint64, []byte) error { return nil }) }()
	gate.Await(1)
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, l.Replay(t.Context(), last-1, func(lsn uint64, p []byte) error {
		gate.Release()
		if want := fmt.Sprint("record ", lsn); string(p) != want {
			t.Errorf("record %d is %q, want %q", lsn, p, want)
		}
		return nil
	}))
}

// Open returns when its context ends, though the store does not answer; and the next one finds the log.
func TestOpenGivenUp(t *testing.T) {
	for _, kinds := range [][]backend.Kind{faulty.Reads, faulty.Writes} {
		store := faulty.New(backendtest.NewDisk(testSize, testBlock), faulty.Seed(t))
		h := endpointtest.New(t, store)
		mustAppend(t, begin(t, h.Use, Options{Segment: testSegment}).l, []byte(short))
		e := h.Use(endpoint.Options{Sole: true})
		gate := store.Hold(faulty.Match{Kinds: kinds})
		ctx, giveUp := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := Open(ctx, e, Options{})
			done <- err
		}()
		gate.Await(1)
		giveUp()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		gate.Release()
		l, err := Open(t.Context(), e, Options{})
		must(t, err)
		if got := records(t, l); !slices.Equal(got, []string{short}) {
			t.Errorf("%q", got)
		}
		must(t, l.Close())
	}
}

// In a store that keeps nothing the log is gone after a restart, and says so.
func TestForgetfulStore(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	h := endpointtest.New(t, disk)
	h.Info.Durability = rdma.DurabilityNone
	e := h.Use(endpoint.Options{Sole: true})
	l, err := Open(t.Context(), e, Options{Segment: testSegment})
	must(t, err)
	mustAppend(t, l, []byte(short))
	h.Restart(backendtest.NewDisk(testSize, testBlock))
	if _, w := l.Append([]byte(short)); w.Wait() == nil {
		t.Error("a record behind those that are gone is durable")
	}
	_ = l.Close()
}

// What was written to the endpoint before, and is lost with the store, keeps nobody from opening the log that is there now.
func TestOpenAfterLoss(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	h := endpointtest.New(t, disk)
	e := h.Use(endpoint.Options{Sole: true})
	l, err := Open(t.Context(), e, Options{Segment: testSegment})
	must(t, err)
	mustAppend(t, l, []byte(short))
	must(t, l.Close())
	b, err := e.Alloc(testBlock)
	must(t, err)
	must(t, e.WriteAt(t.Context(), b, testSize-testBlock))
	h.Restart(backendtest.DiskOf(disk.Crash(nil, 0), testBlock))
	l, err = Open(t.Context(), e, Options{})
	must(t, err)
	if got := records(t, l); !slices.Equal(got, []string{short}) {
		t.Errorf("%q", got)
	}
	must(t, l.Close())
}

// The partition is deleted: all who wait are told.
func TestGone(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(testSize, testBlock))
	e := h.Use(endpoint.Options{Sole: true})
	l, err := Open(t.Context(), e, Options{Segment: testSegment})
	must(t, err)
	h.Refuse(rdma.ErrNoEndpoint)
	h.End()
	if _, w := l.Append([]byte(short)); !errors.Is(w.Wait(), rdma.ErrNoEndpoint) {
		t.Errorf("%v", w.Wait())
	}
	if err := l.Close(); !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Errorf("%v", err)
	}
}

// Those whose records have become durable append again before the next batch is taken: appenders that never rest share
// nearly all batches, instead of taking turns in two halves.
func TestGroupCommitOfAll(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // whose turn it is does not depend on other processors
	disk := backendtest.NewDisk(1<<20, testBlock)
	l := mustOpen(t, disk, Options{})
	const appenders, each = 16, 50
	var batches atomic.Int64
	disk.Durable = func(*backend.Op) error {
		batches.Add(1)
		for range 10 * appenders { // that takes long enough for everybody else to append meanwhile
			runtime.Gosched()
		}
		return nil
	}
	var all sync.WaitGroup
	for range appenders {
		all.Go(func() {
			for range each {
				_, w := l.Append([]byte("record"))
				if err := w.Wait(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := batches.Load(); n > appenders*each/8*3/4 {
		t.Errorf("%d batches for %d records of %d appenders: halves of them take turns", n, appenders*each, appenders)
	}
}
