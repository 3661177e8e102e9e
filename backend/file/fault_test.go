package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/fdio"
)

func write(off, n int, v byte, flags backend.Flags) *backend.Op {
	return &backend.Op{Kind: backend.Write, Off: int64(off), Len: int64(n), Segs: [][]byte{filled(n, v)}, Flags: flags}
}

func read(off, n int) *backend.Op {
	return &backend.Op{Kind: backend.Read, Off: int64(off), Len: int64(n), Segs: [][]byte{make([]byte, n)}}
}

// On a full disk writes fail as such, what was written before is there, and after a discard
// there is room again.
func TestFullDisk(t *testing.T) {
	for _, c := range []Config{{}, {Cache: Writethrough}, {IO: fdio.Uring}, {IO: fdio.Uring, Cache: Writethrough}} {
		var log strings.Builder
		c.Path, c.Size, c.Sparse, c.Log = filepath.Join(tmpfs(t, 1<<20), "disk.img"), 4<<20, true, logTo(&log)
		s := mustOpen(t, c)
		const piece = 64 << 10
		good, full := 0, 0
		for off := 0; off < 4<<20; off += piece {
			err := backendtest.Do(s, write(off, piece, byte(1+off/piece), 0))
			if err == nil && full == 0 {
				good++
				continue
			}
			full++
			if e, ok := errors.AsType[*backend.SpaceError](err); !ok || !errors.Is(err, unix.ENOSPC) || e.Off < int64(off) || e.Off >= int64(off+piece) {
				t.Fatalf("write at %d: %v", off, err)
			}
		}
		if good == 0 || full == 0 {
			t.Fatalf("%d writes went well and %d did not", good, full)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "no space") || !strings.Contains(log.String(), "disk.img") {
			t.Errorf("%d lines for %d failures:\n%s", n, full, log.String())
		}
		for i := range good {
			op := read(i*piece, piece)
			if err := backendtest.Do(s, op); err != nil || string(op.Segs[0]) != string(filled(piece, byte(1+i))) {
				t.Fatalf("piece %d is not what was written: %v", i, err)
			}
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
			t.Errorf("flush: %v", err)
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Discard, Len: 4 * piece}); err != nil {
			t.Errorf("discard: %v", err)
		}
		if err := backendtest.Do(s, write(good*piece, piece, 7, 0)); err != nil {
			t.Errorf("write after the discard: %v", err)
		}
		mustClose(t, s)
	}
}

// WriteZeroes needs room too: tmpfs has no other way than to write them.
func TestFullDiskZeroes(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(tmpfs(t, 1<<20), "disk.img"), Size: 4 << 20, Sparse: true})
	defer mustClose(t, s)
	err := backendtest.Do(s, &backend.Op{Kind: backend.WriteZeroes, Len: 4 << 20})
	if _, ok := errors.AsType[*backend.SpaceError](err); !ok {
		t.Errorf("4 MiB of zeroes on 1 MiB: %v", err)
	}
}

// A file cut short by somebody else: what is there is read, the rest is an error that says
// where, and why.
func TestShortFile(t *testing.T) {
	for _, direct := range []bool{false, true} {
		var log strings.Builder
		s := mustOpen(t, Config{Size: 1 << 20, Sparse: true, Direct: direct, Log: logTo(&log)})
		if err := backendtest.Do(s, write(0, 1<<20, 1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Truncate(s.Path(), 512<<10); err != nil {
			t.Fatal(err)
		}
		if err := backendtest.Do(s, read(256<<10, 256<<10)); err != nil {
			t.Errorf("direct=%v: read before the end: %v", direct, err)
		}
		err := backendtest.Do(s, read(448<<10, 128<<10))
		if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != 512<<10 || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("direct=%v: read across the end: %v", direct, err)
		}
		if !strings.Contains(log.String(), "truncated") {
			t.Errorf("direct=%v: the log says %q", direct, log.String())
		}
		mustClose(t, s)
	}
}

// tellsOnce is a kernel that has lost bytes, and tells the next who asks it to make the file
// durable, once.
type tellsOnce struct{ lost atomic.Bool }

func (k *tellsOnce) Before(c fdio.Call) error {
	if (c.Name == "fsync" || c.Name == "fdatasync" || c.Name == "msync" || c.Flags&unix.RWF_DSYNC != 0) && k.lost.CompareAndSwap(true, false) {
		return unix.EIO
	}
	return nil
}

func (k *tellsOnce) After(c fdio.Call) error { return k.Before(c) }

// The one that is told of a loss is a resize: it fails, and flushes fail after it.
func TestResizeIsToldOfLoss(t *testing.T) {
	for _, sparse := range []bool{true, false} {
		k := &tellsOnce{}
		s := mustOpen(t, Config{Size: 1 << 20, Sparse: sparse, faults: k})
		if err := backendtest.Do(s, write(0, 4096, 1, 0)); err != nil {
			t.Fatal(err)
		}
		k.lost.Store(true)
		if err := s.Resize(2 << 20); !errors.Is(err, unix.EIO) || s.Info().Size != 1<<20 {
			t.Errorf("resize: %v, %d bytes", err, s.Info().Size)
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); !errors.Is(err, unix.EIO) {
			t.Errorf("flush: %v, and the bytes are lost", err)
		}
		if err := s.Resize(3 << 20); !errors.Is(err, unix.EIO) {
			t.Errorf("another resize: %v", err)
		}
		if err := s.Close(); !errors.Is(err, unix.EIO) {
			t.Errorf("close: %v", err)
		}
	}
}

// A file that grows when it is opened is told of bytes that were lost before: it is served, and
// flushes fail. Nobody would be told at the next opening.
func TestOpenIsToldOfLoss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	mustClose(t, mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true}))
	k := &tellsOnce{}
	k.lost.Store(true)
	var log strings.Builder
	s := mustOpen(t, Config{Path: path, Size: 2 << 20, Sparse: true, Log: logTo(&log), faults: k})
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); !errors.Is(err, unix.EIO) {
		t.Errorf("flush: %v", err)
	}
	if !strings.Contains(log.String(), "may be lost") {
		t.Errorf("the log says %q", log.String())
	}
	if err := s.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("close: %v", err)
	}
	// A file that is new has nothing to lose.
	k.lost.Store(true)
	if s, err := Open(Config{Path: path + "2", Size: 1 << 20, Sparse: true, faults: k}); !errors.Is(err, unix.EIO) {
		t.Errorf("a new file: %v, %v", s, err)
	}
	if _, err := os.Stat(path + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}
