//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/backend/backendtest"
	"oneshot/test/medium"
)

// diskText is mirrorText with devices.
var diskText = strings.NewReplacer("a: {type: file, path: disk.img}", "a: {type: device, path: device}", "b: {type: file, path: disk.img}", "b: {type: device, path: device}").Replace(mirrorText)

// newMedia makes a cluster with a mirror whose disks are media, by node, behind devices. The test has to be apart.
func newMedia(t *testing.T, text string) (*site, map[string]*medium.Medium) {
	t.Helper()
	s := newSiteOf(t, text)
	return s, s.media("a", "b")
}

// media has the disks of nodes, which are devices by the text of a site, be media. It is called once.
func (s *site) media(names ...string) map[string]*medium.Medium {
	s.t.Helper()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	// A copy needs a device that has a name for good, which a loop device has not: for the processes of this test, it has.
	const devices = "/sys/dev/block"
	must(unix.Mount("tmpfs", devices, "tmpfs", 0, ""))
	s.interval = 100 * time.Millisecond
	media := map[string]*medium.Medium{}
	for i, name := range names {
		media[name] = medium.New(s.t, s.path(name, "disk"), mirrorSize, uint64(i))
		must(os.Symlink(media[name].File(), s.path(name, "disk.img")))
		loop := backendtest.NewLoopOf(s.t, media[name].File(), 512)
		must(os.Symlink(loop.Path, s.path(name, "device")))
		var st unix.Stat_t
		must(unix.Stat(loop.Path, &st))
		dir := filepath.Join(devices, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		must(os.Mkdir(dir, 0o700))
		must(os.WriteFile(filepath.Join(dir, "wwid"), []byte("t10.ONESHOT test "+name), 0o600))
		must(os.Symlink("/sys/block/"+filepath.Base(loop.Path)+"/queue", filepath.Join(dir, "queue")))
	}
	return media
}

// powerCut has a load end with the daemons of some nodes, and what these nodes have not synced be lost.
func (s *site) powerCut(media map[string]*medium.Medium, names ...string) {
	s.t.Helper()
	for _, name := range names {
		if cmd := s.daemons[name]; cmd != nil {
			if err := cmd.Process.Kill(); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	for _, name := range names {
		s.kill(name)
		if m := media[name]; m != nil {
			s.isFree(s.path(name, "device"))
			m.Cut()
		}
	}
}

// isFree waits until nobody has a device: Linux takes the rings of a process apart after its end.
func (s *site) isFree(path string) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return
		}
		if err != unix.EBUSY || time.Since(began) > time.Minute {
			s.t.Fatalf("%s: %v", path, err)
		}
	}
}

// flushed flushes, and remembers what has to be there after any loss.
func (l *load) flushed() {
	l.t.Helper()
	floors := make([]uint64, len(l.blocks))
	for i := range floors {
		floors[i] = l.blocks[i].floor.Load()
	}
	if !l.m.flush() {
		l.t.Fatal("no flush")
	}
	for i := range floors {
		l.blocks[i].durable = floors[i]
	}
}

// TestMirrorPower: nodes lose their power, and their disks what they have not synced: all, and then the primary while it is alone. What was
// flushed is there.
func TestMirrorPower(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media := newMedia(t, diskText)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	var l *load
	end := func() {}
	begin := func() { // on what the last load has flushed, if it has ended by a loss
		var in context.Context
		in, end = context.WithCancel(ctx)
		before := l
		if before != nil {
			for i := range before.blocks {
				before.blocks[i].acked = before.blocks[i].durable
			}
		}
		l = newLoadAfter(t, newMultipath(in, s), before)
		l.pause.Store(int64(4 * pace))
		l.more(50)
	}
	// lost has the load end, as it has come to be, with the nodes that are lost.
	lost := func(names ...string) {
		s.powerCut(media, names...)
		end()
		l.wg.Wait()
	}
	begin()

	s.level("w")
	l.flushed()
	l.more(50)
	lost("a", "b", "w")
	for _, name := range machines {
		s.start(name)
	}
	begin()

	primary := s.level("w")
	s.powerCut(media, other(primary))
	l.more(50) // which the other copy lacks
	l.flushed()
	l.more(50)
	lost(primary)
	s.start(other(primary))
	s.start(primary)
	begin()
	s.endLoad(l)
}

// TestMirrorOfADisk: a mirror begins with what a device has, which was a disk before.
func TestMirrorOfADisk(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, _ := newMedia(t, diskText)
	want := make([]byte, mirrorSize)
	for no := range mirrorSize / block {
		fill(want[no*block:][:block], no, 1)
	}
	device, err := os.OpenFile(s.path("a", "device"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = device.Write(want)
	if err := errors.Join(err, device.Sync(), device.Close()); err != nil {
		t.Fatal(err)
	}
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	m := newMultipath(ctx, s)
	for range 2 { // from each copy
		primary := s.level("w")
		got := make([]byte, block)
		for no := range mirrorSize / block {
			if !m.read(no, got) {
				t.Fatal("it cannot be read")
			}
			if !bytes.Equal(got, want[no*block:][:block]) {
				t.Fatalf("node %s: block %d begins with % x", primary, no, got[:16])
			}
		}
		s.must(s.asked("w", "ha", "switch", "disk")...)
	}
}
