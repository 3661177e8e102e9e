package backendtest

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Loop is a block device in front of a file: what every Linux can make.
type Loop struct {
	Path string // of the device
	File string // of the file below
	Dev  *os.File

	t testing.TB
}

// NewLoop makes a block device of size bytes with blocks of block bytes, which goes when the
// test ends.
func NewLoop(t testing.TB, size int64, block int) *Loop {
	t.Helper()
	file := filepath.Join(t.TempDir(), "loop.img")
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Truncate(file, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return NewLoopOf(t, file, block)
}

// NewLoopOf is NewLoop in front of a file that there is.
func NewLoopOf(t testing.TB, file string, block int) *Loop {
	t.Helper()
	l := &Loop{t: t, File: file}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("tests of block devices need loop devices (modprobe loop) and run as root: %v", err)
	}
	defer control.Close()
	for l.Dev == nil { // others may take the free one in between
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		l.attach("/dev/loop"+strconv.Itoa(n), f, block)
	}
	t.Cleanup(func() {
		_, _ = unix.IoctlRetInt(int(l.Dev.Fd()), unix.LOOP_CLR_FD)
		l.Dev.Close()
	})
	return l
}

func (l *Loop) attach(path string, f *os.File, block int) {
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	cfg := unix.LoopConfig{Fd: uint32(f.Fd()), Size: uint32(block)}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	switch err := unix.IoctlLoopConfigure(int(dev.Fd()), &cfg); err {
	case nil:
		l.Path, l.Dev = path, dev
	case unix.EBUSY:
		dev.Close()
	default:
		l.t.Fatal(err)
	}
}

// Resize gives the device another size, as somebody does who knows nothing of us.
func (l *Loop) Resize(size int64) {
	l.t.Helper()
	if err := os.Truncate(l.File, size); err != nil {
		l.t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(l.Dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		l.t.Fatal(err)
	}
}
