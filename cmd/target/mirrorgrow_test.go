//go:build !race

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/mgmt"
)

// TestMirrorGrow: a mirror grows under load, and hosts are told; a copy that has no room, or is away, keeps it as it is, and the
// refusal says which. The new size is there after restarts, with the configuration of old and with the new one.
func TestMirrorGrow(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()
	const grown = 24 << 20
	has := func(node string, want int64) {
		t.Helper()
		s.untilCluster(node, "the size", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Size == want })
	}
	var hosts []*initiator.Session
	for _, u := range l.m.urls {
		session, err := initiator.Dial(t.Context(), u, initiator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		hosts = append(hosts, session)
	}

	s.fails("stores do not shrink", s.asked("w", "ha", "grow", "disk", "8MiB")...)
	for _, bytes := range []uint64{20 << 20, 1<<64 - 1} {
		if err := unix.Prlimit(s.daemons["b"].Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: 1<<64 - 1}, nil); err != nil {
			t.Fatal(err)
		}
		if bytes < grown {
			s.fails("the mirror disk keeps its size, 16MiB: the copy of node b cannot grow", s.asked("w", "ha", "grow", "disk", "24MiB")...)
			has("a", mirrorSize)
		}
	}
	if out := s.must(s.asked("w", "ha", "grow", "disk", "24MiB")...); !strings.Contains(out, "The mirror disk has 24MiB") {
		t.Error(out)
	}
	has("a", grown)
	has("b", grown)
	l.more(50)
	l.end()
	for i, host := range hosts {
		var told []string
		for !slices.Contains(told, "6 2a 9") {
			err := host.Do(l.m.ctx, &initiator.Command{CDB: make([]byte, 6)}) // TEST UNIT READY
			sense, ok := errors.AsType[*initiator.StatusError](err)
			if !ok && err != nil {
				t.Fatalf("host %d was told %v: %v", i, told, err)
			}
			if ok {
				told = append(told, fmt.Sprintf("%x %x %x", sense.Key, sense.ASC, sense.ASCQ))
			}
		}
	}
	m := newMultipath(l.m.ctx, s) // one that has asked for the size
	last := make([]byte, block)
	fill(last, grown/block-1, 1)
	if !m.write(grown/block-1, last) || !m.flush() {
		t.Fatal("no write to what is new")
	}

	s.kill("b")
	s.fails("the copy of node b cannot grow", s.asked("w", "ha", "grow", "disk", "32MiB")...)
	has("a", grown)
	s.start("b")
	s.stopAll()
	for _, name := range machines {
		s.start(name) // its configuration says 16 MiB
		s.write(name, strings.Replace(s.text, "size: 16MiB", "size: 24MiB", 1))
	}
	s.level("a")
	has("b", grown)
	for _, name := range machines {
		s.must(s.asked(name, "reload")...)
	}
	s.stopAll()
	for _, name := range machines {
		s.start(name)
	}
	s.level("w")
	has("a", grown)
	got := make([]byte, block)
	if !m.read(grown/block-1, got) || string(got) != string(last) {
		t.Error("what is new has not what was written")
	}
	s.settle(m)
	s.stopAll()
	a, err := os.ReadFile(s.path("a", "disk.img"))
	b, err2 := os.ReadFile(s.path("b", "disk.img"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if string(a[:grown]) != string(b[:grown]) {
		t.Error("the copies differ")
	}
}
