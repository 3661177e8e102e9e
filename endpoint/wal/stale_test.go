package wal

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// cutAfter returns what a power cut leaves when one batch with these records is written, and not durable: what was
// durable, and those blocks of the batch that keep says. The batch begins behind what l has.
func cutAfter(t *testing.T, disk *backendtest.Disk, l *Log, keep []int, batch ...string) []byte {
	t.Helper()
	var image []byte
	disk.Durable = func(op *backend.Op) error { // the writer's goroutine alone comes here
		if image == nil {
			image = disk.Crash(nil, 0)
			all := disk.Crash(nil, 1)
			for _, k := range keep {
				at := int(op.Off) + k*testBlock
				copy(image[at:at+testBlock], all[at:])
			}
		}
		return nil
	}
	appendBatch(t, l, batch...)
	disk.Durable = nil
	if image == nil {
		t.Fatal("there was no batch")
	}
	return image
}

var (
	short = strings.Repeat("s", 100)
	two   = strings.Repeat("2", testBlock) // takes two blocks, with its header
)

// What a crash has left behind a hole is not replayed when the hole is filled, though its sequence number would be
// the next.
func TestHole(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	mustAppend(t, l, []byte("first"))
	// Of the batch the first block is lost. In the next life a mark and one block take the place of these two.
	disk = backendtest.DiskOf(cutAfter(t, disk, l, []int{1, 2}, two, "lost"), testBlock)
	l = mustOpen(t, disk, Options{})
	if got := records(t, l); !slices.Equal(got, []string{"first"}) {
		t.Fatalf("after the power cut: %q", got)
	}
	mustAppend(t, l, []byte("second"))
	l = mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{})
	if got := records(t, l); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("%q", got)
	}
}

// When a mark is lost there are no records of its epoch: none is written before the mark is durable.
func TestLostMark(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	mustAppend(t, l, []byte("first"))
	must(t, l.Close())
	l = mustOpen(t, disk, Options{})
	var images [][]byte // what power cuts leave before something is durable: all of it but its first block
	disk.Durable = func(op *backend.Op) error {
		image, all := disk.Crash(nil, 0), disk.Crash(nil, 1)
		for at := op.Off + testBlock; at < op.Off+op.Len; at += testBlock {
			copy(image[at:at+testBlock], all[at:])
		}
		images = append(images, image)
		return nil
	}
	_, w := l.Append([]byte("lost"))
	_, v := l.Append([]byte("stale"))
	must(t, w.Wait())
	must(t, v.Wait())
	disk.Durable = nil
	disk = backendtest.DiskOf(images[0], testBlock)
	l = mustOpen(t, disk, Options{})
	mustAppend(t, l, []byte("second"))
	l = mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{})
	if got := records(t, l); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("%q", got)
	}
}

// What a log replays after its program was killed is not lost in the next power cut.
func TestKilled(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	l := mustOpen(t, disk, Options{Segment: testSegment})
	mustAppend(t, l, []byte("first"))
	dead := errors.New("killed")
	disk.Durable = func(*backend.Op) error { return dead }
	if _, w := l.Append([]byte("written")); !errors.Is(w.Wait(), dead) {
		t.Fatal(w.Wait())
	}
	disk.Durable = nil
	l = mustOpen(t, disk, Options{})
	if got := records(t, l); !slices.Equal(got, []string{"first", "written"}) {
		t.Fatalf("%q", got)
	}
	l = mustOpen(t, backendtest.DiskOf(disk.Crash(nil, 0), testBlock), Options{})
	if got := records(t, l); !slices.Equal(got, []string{"first", "written"}) {
		t.Errorf("after a power cut: %q", got)
	}
}

// A record of which any part is torn is not replayed.
func TestTorn(t *testing.T) {
	long := strings.Repeat("long", 600) // 5 blocks
	for lost := range 5 {
		disk := backendtest.NewDisk(testSize, testBlock)
		l := mustOpen(t, disk, Options{Segment: testSegment})
		mustAppend(t, l, []byte(short))
		keep := slices.Delete([]int{0, 1, 2, 3, 4}, lost, lost+1)
		disk = backendtest.DiskOf(cutAfter(t, disk, l, keep, long), testBlock)
		l = mustOpen(t, disk, Options{})
		if got := records(t, l); !slices.Equal(got, []string{short}) {
			t.Errorf("block %d is lost: %.40q", lost, got)
		}
		if lsn := mustAppend(t, l, []byte(long)); lsn != 2 {
			t.Errorf("the next record is %d", lsn)
		}
	}
}

// The records of a log that was there before, at the same places, are not those of a new one.
func TestAgainFromTheStart(t *testing.T) {
	disk := backendtest.NewDisk(testSize, testBlock)
	for life := range 3 {
		l := mustOpen(t, disk, Options{Segment: testSegment, Create: true})
		if got := records(t, l); len(got) != 0 || l.First() != 1 {
			t.Fatalf("life %d: %q", life, got)
		}
		for range 5 - life {
			mustAppend(t, l, []byte(short))
		}
		if got := records(t, l); len(got) != 5-life {
			t.Errorf("life %d: %d records", life, len(got))
		}
		must(t, l.Close())
		l = mustOpen(t, disk, Options{})
		if got := records(t, l); len(got) != 5-life {
			t.Errorf("life %d, opened again: %d records", life, len(got))
		}
		must(t, l.Close())
	}
}
