package medium

import (
	"bytes"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMedium: a disk that hangs ends its requests when it is well again, a write that is held changes nothing before, a page that cannot be read can
// when it was written, and a power cut takes nothing that was synced, and all or nothing of a page that was not.
func TestMedium(t *testing.T) {
	m := New(t, filepath.Join(t.TempDir(), "disk"), 64*mediumPage, 1)
	fd, err := unix.Open(m.File(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	write := func(page int, value byte) {
		t.Helper()
		if _, err := unix.Pwrite(fd, bytes.Repeat([]byte{value}, mediumPage), int64(page*mediumPage)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(page int) (byte, error) {
		b := make([]byte, mediumPage)
		_, err := unix.Pread(fd, b, int64(page*mediumPage))
		if !bytes.Equal(b, bytes.Repeat(b[:1], mediumPage)) {
			t.Errorf("page %d is not whole", page)
		}
		return b[0], err
	}

	var healed atomic.Bool
	for _, do := range map[string]func() error{
		"read":  func() error { _, err := unix.Pread(fd, make([]byte, mediumPage), 0); return err },
		"write": func() error { _, err := unix.Pwrite(fd, make([]byte, mediumPage), 0); return err },
		"sync":  func() error { return unix.Fsync(fd) },
	} {
		healed.Store(false)
		m.Hang()
		end := make(chan error, 1)
		early := make(chan bool, 1)
		go func() { err := do(); early <- !healed.Load(); end <- err }()
		for range 100 { // others are not held
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(m.File(), &st); err != nil {
				t.Fatal(err)
			}
		}
		healed.Store(true)
		m.Heal()
		if isEarly, err := <-early, <-end; isEarly || err != nil {
			t.Errorf("a request to a disk that hangs ends before it is well: %t, %v", isEarly, err)
		}
	}

	write(4, 1)
	come := m.Hold(5)
	healed.Store(false)
	early := make(chan bool, 1)
	go func() {
		_, err := unix.Pwrite(fd, bytes.Repeat([]byte{2}, 2*mediumPage), 4*mediumPage)
		early <- err == nil && !healed.Load()
	}()
	<-come
	if b, err := read(4); b != 1 || err != nil {
		t.Errorf("a page whose write is held has %d: %v", b, err)
	}
	healed.Store(true)
	m.Heal()
	if <-early {
		t.Error("a write that is held ends before the disk is well")
	}
	for page := 4; page < 6; page++ {
		if b, err := read(page); b != 2 || err != nil {
			t.Errorf("page %d has %d after its write: %v", page, b, err)
		}
	}

	written := m.Spoil(3)
	if _, err := read(3); !errors.Is(err, unix.EIO) {
		t.Errorf("a page that cannot be read: %v", err)
	}
	write(3, 7)
	if b, err := read(3); b != 7 || err != nil {
		t.Errorf("a page that was written anew has %d: %v", b, err)
	}
	<-written

	written = m.Spoil(3)
	m.Heal()
	<-written

	m.Ruin(3, false)
	write(3, 8)
	if _, err := read(3); !errors.Is(err, unix.EIO) {
		t.Errorf("a page that cannot be read, whatever is written: %v", err)
	}
	m.Ruin(3, true)
	if _, err := unix.Pwrite(fd, make([]byte, mediumPage), 3*mediumPage); !errors.Is(err, unix.EIO) {
		t.Errorf("a page that cannot be written: %v", err)
	}
	m.Heal()
	if b, err := read(3); b != 8 || err != nil {
		t.Errorf("a page that is good again has %d: %v", b, err)
	}

	if err := unix.Ftruncate(fd, 66*mediumPage); err != nil {
		t.Fatal(err)
	}
	write(65, 9)
	if b, err := read(64); b != 0 || err != nil {
		t.Errorf("a page by which the file grew has %d: %v", b, err)
	}
	if err := unix.Ftruncate(fd, 64*mediumPage); err == nil {
		t.Error("the file is cut")
	}

	for page := range 64 {
		write(page, 1)
	}
	if err := unix.Fsync(fd); err != nil {
		t.Fatal(err)
	}
	for page := range 32 {
		write(page, 2)
	}
	m.Cut()
	kept := 0
	for page := range 64 {
		b, err := read(page)
		if err != nil || b != 1 && (b != 2 || page >= 32) {
			t.Errorf("page %d has %d after a power cut: %v", page, b, err)
		}
		if b == 2 {
			kept++
		}
	}
	if kept == 0 || kept == 32 {
		t.Errorf("of 32 pages that were not synced %d are there", kept)
	}
}
