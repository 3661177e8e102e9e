package wal

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
)

// appendBatch appends records as one batch, unless they do not fit into one, and waits for them.
func appendBatch(t *testing.T, l *Log, batch ...string) {
	t.Helper()
	l.mu.Lock()
	var last Wait
	for _, p := range batch {
		must(t, l.makeRoom(l.sizeOf([]byte(p)), false))
		_, last = l.putRecord([]byte(p))
	}
	l.mu.Unlock()
	must(t, last.Wait())
}

// tryOpen opens what is on a disk, and says whether it is damaged. Otherwise it returns the records.
func tryOpen(t *testing.T, disk *backendtest.Disk) (damaged bool, all []string) {
	t.Helper()
	before := disk.Crash(nil, 1)
	l, shut, err := open(t, disk, Options{})
	defer shut()
	if _, ok := errors.AsType[*DamagedError](err); ok {
		if !bytes.Equal(disk.Crash(nil, 1), before) {
			t.Error("Open has written to a damaged log")
		}
		return true, nil
	}
	must(t, err)
	return false, records(t, l)
}

// Whatever block is lost of what is kept: Open finds the damage if a later batch was written, wherever segments and epochs begin. In the
// last batch it cannot be told from what a crash leaves, and ends the log.
func TestDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(faulty.Seed(t), 3))
	for range 10 {
		disk := backendtest.NewDisk(testSize, testBlock)
		var owner [testSize / testBlock]int // batch of each block of the segment that is there; 0: it is not used
		batches := 0
		disk.Durable = func(op *backend.Op) error {
			batches++
			own := owner[op.Off/testBlock:]
			if op.Off%testSegment == 0 {
				clear(own[:testSegment/testBlock])
			}
			for i := range op.Len / testBlock {
				own[i] = batches
			}
			return nil
		}
		l := mustOpen(t, disk, Options{Segment: testSegment})
		var all []string // that were not truncated
		for step := range 25 + r.IntN(10) {
			if r.IntN(5) == 0 {
				must(t, l.Close())
				l = mustOpen(t, disk, Options{})
			}
			if len(l.kept) == int(l.segments)-1 {
				must(t, l.Truncate(l.next))
				all = nil
			}
			batch := make([]string, 1+r.IntN(3))
			for i := range batch {
				batch[i] = strings.Repeat(string(rune('a'+step%26)), 1+r.IntN(testBlock))
			}
			appendBatch(t, l, batch...)
			all = append(all, batch...)
		}
		must(t, l.Close())
		image := disk.Crash(nil, 0)
		for _, s := range l.kept {
			for at := range int64(testSegment / testBlock) {
				block := l.start(s.serial)/testBlock + at
				own := owner[block]
				if own == 0 {
					continue
				}
				lost := slices.Clone(image)
				clear(lost[block*testBlock:][:testBlock])
				damaged, got := tryOpen(t, backendtest.DiskOf(lost, testBlock))
				if want := own < batches; damaged != want {
					t.Errorf("block %d, of batch %d of %d, is lost: damaged: %v", block, own, batches, damaged)
				}
				if !damaged && (len(got) > len(all) || !slices.Equal(got, all[:len(got)])) {
					t.Errorf("block %d is lost: %d records of %d, or others", block, len(got), len(all))
				}
			}
		}
	}
}

// large returns a record that fills a number of bytes in the log, with its header.
func large(n int) string { return strings.Repeat("l", n-entrySize) }

// A block that the medium cannot read, behind a hole, does not hide what proves the damage, be it far behind that block, or beside it.
func TestDamageBeforeUnreadable(t *testing.T) {
	const block = 4096
	for size, bads := range map[int][]int64{maxEntry: {maxEntry / 2}, block: {block, 2 * block, 5 * block, 8 * block}} {
		for _, bad := range bads {
			disk := backendtest.NewDisk(32<<20, block)
			l := mustOpen(t, disk, Options{})
			for range 4 {
				mustAppend(t, l, []byte(large(size)))
			}
			must(t, l.Close())
			image := disk.Crash(nil, 0)
			image[block] ^= 1
			disk = backendtest.DiskOf(image, block)
			bad += block
			disk.Fault = func(op *backend.Op) error {
				if op.Kind == backend.Read && op.Off <= bad && op.Off+op.Len > bad {
					return &backend.MediumError{Kind: op.Kind, Off: bad, Err: errors.New("broken on purpose")}
				}
				return nil
			}
			if damaged, got := tryOpen(t, disk); !damaged {
				t.Errorf("records of %d bytes, and byte %d cannot be read: %d records", size, bad, len(got))
			}
		}
	}
}

// firstVersion returns a disk with a log of the first version.
func firstVersion(block, segment int) *backendtest.Disk {
	image := make([]byte, 4*segment)
	h := header{block: uint32(block), segments: 4, segment: uint64(segment), serial: 1, epoch: 7, first: 1, oldest: 1}
	h.put(image[:block])
	return backendtest.DiskOf(image, block)
}

// The entries of a log of the first version do not say where batches begin, and never will: older programs would take such an entry for
// the end of the log. There damage is what is missing further before an entry than a batch is long.
func TestDamageInTheFirstVersion(t *testing.T) {
	const block, segment = 4096, 8 << 20
	for behind, want := range map[int]bool{0: false, 1: false, 2: true, 10: true} {
		disk := firstVersion(block, segment)
		l := mustOpen(t, disk, Options{})
		mustAppend(t, l, []byte("first"))
		at := l.pos
		mustAppend(t, l, []byte(large(maxEntry)))
		for range behind {
			mustAppend(t, l, []byte(large(maxEntry)))
		}
		must(t, l.Close())
		image := disk.Crash(nil, 0)
		for s := range uint64(4) {
			if b := image[s*segment:][:block]; s < l.serial && string(b[:len(magic1)]) != magic1 {
				t.Errorf("segment %d has another version: %q", s+1, b[:len(magic1)])
			}
		}
		for off := int64(block); off < at; off += block {
			if image[off]&(firstBit>>24) != 0 {
				t.Errorf("the entry at %d says that a batch begins", off)
			}
		}
		image[at] ^= 1
		if damaged, got := tryOpen(t, backendtest.DiskOf(image, block)); damaged != want || !damaged && !slices.Equal(got, []string{"first"}) {
			t.Errorf("%d records stand behind the one that is lost: damaged: %v, %d records", behind, damaged, len(got))
		}
	}
	// The longest batch, torn.
	disk := firstVersion(block, segment)
	l := mustOpen(t, disk, Options{})
	mustAppend(t, l, []byte("first"))
	keep := make([]int, 0, batchSize/testBlock)
	for k := block / testBlock; k < batchSize/testBlock; k++ {
		keep = append(keep, k)
	}
	image := cutAfter(t, disk, l, keep, large(maxEntry), large(maxEntry))
	if damaged, got := tryOpen(t, backendtest.DiskOf(image, block)); damaged || !slices.Equal(got, []string{"first"}) {
		t.Errorf("the last batch is torn: damaged: %v, %d records", damaged, len(got))
	}
}

// There, too, it is what is missing before something of the next epoch or in the next segment.
func TestDamageBetweenEpochs(t *testing.T) {
	disk := firstVersion(testBlock, testSegment)
	l := mustOpen(t, disk, Options{})
	mustAppend(t, l, []byte(short))
	must(t, l.Close())
	l = mustOpen(t, disk, Options{})
	mark := l.pos
	for l.serial == 1 {
		mustAppend(t, l, []byte(short))
	}
	must(t, l.Close())
	image := disk.Crash(nil, 0)
	clear(image[testSegment:][:testBlock])
	if damaged, got := tryOpen(t, backendtest.DiskOf(slices.Clone(image), testBlock)); !damaged {
		t.Errorf("the last header is lost: %d records", len(got))
	}
	clear(image[testSegment:])
	for what, at := range map[string]int64{"the last record of an epoch": mark - testBlock, "a mark": mark} {
		lost := slices.Clone(image)
		clear(lost[at:][:testBlock])
		if damaged, got := tryOpen(t, backendtest.DiskOf(lost, testBlock)); !damaged {
			t.Errorf("%s is lost: %d records", what, len(got))
		}
	}
}
