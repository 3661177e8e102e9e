package wal

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
)

const (
	testBlock   = 512
	testSegment = 8 * testBlock
	testSize    = 4*testSegment + 3*testBlock // some is left over
)

// clone is what a power cut left, and what was known at that time.
type clone struct {
	image     []byte
	appended  int    // records of the history that had been appended
	durable   uint64 // LSN up to which they had been acknowledged
	truncated uint64 // LSN below which somebody had said that they are not needed
}

// history is the log as it should be, over all its restarts.
type history struct {
	t    *testing.T
	r    *rand.Rand // of the test
	life int

	mu        sync.Mutex
	chance    *rand.Rand // of power cuts
	records   []string   // by LSN-1
	truncated uint64
	log       atomic.Pointer[Log]
	clones    []clone
}

// take remembers what a power cut leaves after an operation of the disk: what is durable, all, or something in
// between.
func (h *history) take(d *backendtest.Disk) {
	l := h.log.Load()
	if l == nil {
		return
	}
	durable := l.Durable() // before the image is made
	h.mu.Lock()
	defer h.mu.Unlock()
	image := d.Crash(h.chance, []float64{0, 0.3, 0.7, 1}[h.chance.IntN(4)])
	h.clones = append(h.clones, clone{image, len(h.records), durable, h.truncated})
}

// check opens what a power cut left, compares what is replayed with the history, and checks that it outlives the next
// power cut. It returns the records.
func (h *history) check(c clone) (first uint64, all []string) {
	h.t.Helper()
	disk := backendtest.DiskOf(append([]byte(nil), c.image...), testBlock)
	l, shut, err := open(h.t, disk, Options{Segment: testSegment})
	if err != nil {
		h.t.Fatalf("life %d, %d records, %d durable: %v", h.life, c.appended, c.durable, err)
	}
	first, all = l.First(), records(h.t, l)
	end := first + uint64(len(all)) // the next one
	switch {
	case first > max(c.truncated, 1):
		h.t.Fatalf("life %d: the first record is %d, truncated was below %d", h.life, first, c.truncated)
	case end <= c.durable:
		h.t.Fatalf("life %d: records up to %d are replayed, up to %d were acknowledged", h.life, end-1, c.durable)
	case end > uint64(c.appended)+1:
		h.t.Fatalf("life %d: records up to %d are replayed, up to %d were appended", h.life, end-1, c.appended)
	}
	for i, p := range all {
		if lsn := first + uint64(i); p != h.records[lsn-1] {
			h.t.Fatalf("life %d: record %d is %.30q, and %.30q was appended", h.life, lsn, p, h.records[lsn-1])
		}
	}
	if h.r.IntN(4) > 0 {
		shut()
		return first, all
	}
	// The next power cut takes none of it.
	again := disk.Crash(nil, 0)
	shut()
	l, shut, err = open(h.t, backendtest.DiskOf(again, testBlock), Options{Segment: testSegment})
	if err != nil {
		h.t.Fatal(err)
	}
	if got := records(h.t, l); l.First() != first || strings.Join(got, "|") != strings.Join(all, "|") {
		h.t.Fatalf("life %d: %d records from %d on, and after another power cut %d from %d on", h.life, len(all), first, len(got), l.First())
	}
	shut()
	return first, all
}

// What was acknowledged is replayed, in order, and nothing is invented. The power is cut at any completion, and
// leaves any part of what was not flushed, over many lives of one log, whose ring is written again and again. Records
// have few sizes, so that what is left of one life fits into the holes of the next.
func TestPowerCuts(t *testing.T) {
	seed := faulty.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	h := &history{t: t, r: r, chance: rand.New(rand.NewPCG(seed, 2))}
	disk := backendtest.NewDisk(testSize, testBlock)
	laps := uint64(0)
	for h.life = range 20 {
		disk.After = func(*backend.Op) { h.take(disk) }
		disk.Durable = func(*backend.Op) error { // of a batch there may be any part
			h.take(disk)
			return nil
		}
		l, shut, err := open(t, disk, Options{Segment: testSegment})
		must(t, err)
		h.log.Store(l)
		h.live(l, 5+r.IntN(25))
		laps = l.serial
		shut()
		h.log.Store(nil)
		// All images are checked; the next life goes on from one of them.
		for _, c := range h.clones {
			h.check(c)
		}
		c := h.clones[r.IntN(len(h.clones))]
		first, all := h.check(c)
		disk = backendtest.DiskOf(c.image, testBlock)
		h.records = h.records[:first+uint64(len(all))-1] // the others are lost
		h.truncated = min(h.truncated, first)
		h.clones = nil
	}
	if laps < 6 {
		t.Errorf("the ring was not written again: %d segments", laps)
	}
}

// live appends and truncates.
func (h *history) live(l *Log, steps int) {
	var last Wait
	for step := range steps {
		h.mu.Lock()
		h.records = append(h.records, h.record(step))
		p := h.records[len(h.records)-1]
		h.mu.Unlock()
		lsn, w := l.Append([]byte(p))
		if lsn == 0 { // full
			if w.Wait() != ErrFull {
				h.t.Fatal(w.Wait())
			}
			h.mu.Lock()
			h.records = h.records[:len(h.records)-1]
			h.mu.Unlock()
			h.truncate(l)
			continue
		}
		if last = w; h.r.IntN(3) == 0 {
			must(h.t, w.Wait())
		}
		if h.r.IntN(12) == 0 {
			h.truncate(l)
		}
	}
	must(h.t, last.Wait())
}

func (h *history) record(step int) string {
	n := []int{20, 20, 480, 500, 1000, 2000}[h.r.IntN(6)]
	return fmt.Sprintf("%-*s", n, fmt.Sprintf("life %d step %d", h.life, step))
}

func (h *history) truncate(l *Log) {
	h.mu.Lock()
	lsn := l.First()
	lsn += uint64(h.r.IntN(int(uint64(len(h.records)) + 2 - lsn)))
	h.truncated = max(h.truncated, lsn)
	h.mu.Unlock()
	must(h.t, l.Truncate(lsn))
}
