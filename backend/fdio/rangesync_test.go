package fdio

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// syncOn asks the kernel to make a page durable, by a descriptor.
func syncOn(t *testing.T, fd int) error {
	t.Helper()
	m, err := unix.MmapPtr(fd, 0, nil, uintptr(unix.Getpagesize()), unix.PROT_NONE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.MunmapPtr(m, uintptr(unix.Getpagesize())) }()
	if _, _, errno := unix.Syscall(unix.SYS_MSYNC, uintptr(m), uintptr(unix.Getpagesize()), unix.MS_SYNC); errno != 0 {
		return errno
	}
	return nil
}

// What durable writes through the page cache rest on: the kernel tells the descriptors of all workers that bytes are lost, each once.
func TestEachWorkerIsTold(t *testing.T) {
	const disk = 8 << 20
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	image := filepath.Join(dir, "image")
	fd, err := unix.Open(image, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = errors.Join(unix.Ftruncate(fd, disk), unix.Close(fd))
	}
	if err != nil {
		t.Fatal(err)
	}
	loop := backendtest.NewLoopOf(t, image, 512)
	if fd, err = unix.Open(loop.Path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		FD: fd, Kind: "test store", Path: loop.Path, Info: backend.Info{Size: disk, BlockSize: 512}, IO: Threads, Medium: plain(fd),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var workers [3]worker
	for i := range workers {
		if workers[i].fd = -1; workers[i].descriptor(s) < 0 {
			t.Fatal("a worker has no descriptor")
		}
	}
	ones := bytes.Repeat([]byte{1}, disk)
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Len: disk, Segs: [][]byte{ones}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fdatasync(workers[0].fd); err != unix.EIO { // there is room for a quarter
		t.Fatalf("the bytes that have no room: %v", err)
	}
	for i := range workers {
		told := i == 0
		if err := syncOn(t, workers[i].fd); (err == nil) != told || err != nil && err != unix.EIO {
			t.Errorf("worker %d: %v", i, err)
		}
		s.workerEnded(&workers[i])
	}
	w := worker{fd: -1}
	if fd := w.descriptor(s); fd != workers[2].fd || len(s.syncs.spare) != 2 {
		t.Errorf("the next worker has descriptor %d, and not that of one that has ended", fd)
	}
	s.workerEnded(&w)
	if err := s.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("Close: %v", err)
	}
}

// Who divides the descriptors of the process knows how many the workers of open stores may take yet.
func TestMayOpen(t *testing.T) {
	before := MayOpen()
	has := func(want int) {
		t.Helper()
		if got := MayOpen() - before; got != want {
			t.Errorf("%d may be opened, want %d", got, want)
		}
	}
	s := mustOpen(t, Config{IO: Threads}, false)
	has(maxWorkers)
	if err := backendtest.Do(s, write(0, 4096, 1, backend.FUA)); err != nil {
		t.Fatal(err)
	}
	has(maxWorkers - 1)
	mustClose(t, s)
	has(0)
	s = mustOpen(t, Config{IO: Threads}, true)
	has(0)
	mustClose(t, s)
	has(0)
}
