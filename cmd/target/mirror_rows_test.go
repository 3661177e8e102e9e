//go:build !race

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/mgmt"
)

// beginLoad has a host write to a mirror that is level.
func (s *site) beginLoad() *load { return s.beginLoadOf(pathTime) }

// beginLoadOf is beginLoad of a host with its patience.
func (s *site) beginLoadOf(patience time.Duration) *load {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 8*time.Minute)
	s.t.Cleanup(cancel)
	s.level("a")
	m := newMultipath(ctx, s)
	m.patience = patience
	l := newLoad(s.t, m)
	l.more(100)
	return l
}

// endLoad sees that everything is there, on all copies.
func (s *site) endLoad(l *load) {
	s.t.Helper()
	l.end()
	s.settle(l.m)
	s.stopAll()
	s.equal()
}

// through changes the text of a mirror: its disks have what is acknowledged, so all daemons that have it may be killed.
func through(text string) string {
	return strings.Replace(text, "type: mirror,", "type: mirror, cache: writethrough,", 1)
}

// newThrough is newMirror with through.
func newThrough(t *testing.T) *site {
	s := newSiteOf(t, through(mirrorText))
	s.startAll()
	return s
}

// TestMirrorAllKilled: the daemons of all nodes are killed at once, under load. With writethrough all that was acknowledged is there.
func TestMirrorAllKilled(t *testing.T) {
	s := newThrough(t)
	l := s.beginLoad()
	for range 3 {
		for _, cmd := range s.daemons {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range machines {
			s.kill(name)
			s.start(name)
		}
		l.more(100)
	}
	s.endLoad(l)
}

// TestMirrorMinCopies: what is to be on two copies is not acknowledged while one is away, and hosts go on when it is back. Reads go on
// meanwhile.
func TestMirrorMinCopies(t *testing.T) {
	s := newSiteOf(t, strings.Replace(mirrorText, "type: mirror,", "type: mirror, min_copies: 2,", 1))
	s.startAll()
	primary := s.level("a")
	s.kill(other(primary))
	s.untilCluster(primary, "the primary is alone", func(c *mgmt.Cluster) bool { return mirrorState(c, &c.Mirrors[0]) == "held" })
	session, err := newHost(t.Context(), s, "held").login(primary)
	if err != nil {
		t.Fatal(err)
	}
	lu, err := session.LU(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	do := func(c *initiator.Command) error {
		if err := lu.Prepare(c, 0); err != nil {
			t.Error(err)
		}
		return session.Do(t.Context(), c)
	}
	written := make(chan error, 1)
	go func() { written <- do(&initiator.Command{Out: make([]byte, block), Attentions: 8}) }()
	s.untilCluster(primary, "the write waits", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Waiting > 0 || len(written) > 0 })
	if err := do(&initiator.Command{In: make([]byte, block), Attentions: 8}); err != nil {
		t.Errorf("a read beside it: %v", err)
	}
	select {
	case err := <-written:
		t.Fatalf("one copy has the write, and it has ended: %v", err)
	default:
	}
	s.start(other(primary))
	if err := <-written; err != nil {
		t.Error(err)
	}
	s.endLoad(s.beginLoad())
}

// TestMirrorHeld: who may lack something does not serve, and nobody does without a majority; hosts wait, and go on.
func TestMirrorHeld(t *testing.T) {
	s := newThrough(t)
	l := s.beginLoad()

	primary := s.level("a")
	s.kill(other(primary))
	l.more(100) // which the other copy lacks
	s.kill(primary)
	s.start(other(primary))
	s.untilCluster(other(primary), "a copy that is not in sync does not serve", func(c *mgmt.Cluster) bool {
		m := &c.Mirrors[0]
		if m.Role == "primary" {
			t.Error("a copy that lacks something serves")
		}
		return strings.Contains(copiesText(m), other(primary)+" not in sync")
	})
	s.start(primary)
	l.more(50)

	for {
		primary = s.level("w")
		s.kill("w")
		l.more(50)
		s.kill(primary)
		is := false
		s.untilCluster(other(primary), "it knows that no majority is there", func(c *mgmt.Cluster) bool {
			is = c.Mirrors[0].Role == "primary"
			for _, m := range c.Members {
				if m.Leads {
					return false
				}
			}
			return true
		})
		if is {
			t.Error("a node serves without a majority")
		}
		s.start("w")
		if s.takesOver(other(primary)) {
			break
		}
		s.start(primary)
	}
	l.more(50)
	s.start(primary)
	s.endLoad(l)
}

// withTmpfs gives a node's directory a file system of its own, of so many bytes. The test has to be apart.
func (s *site) withTmpfs(name, size string) {
	s.t.Helper()
	dir := s.path(name, "")
	text, err := os.ReadFile(s.path(name, "t.yaml"))
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	}
	if err == nil {
		err = os.WriteFile(s.path(name, "t.yaml"), text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.kill(name)
		_ = unix.Unmount(dir, unix.MNT_DETACH) // it ends with the namespace
	})
}

// fillUp takes all room of a node's file system, until the file that it returns is removed.
// A file that is replaced has had room for two of it, so what was free for a moment is to be taken as well: by another call.
func (s *site) fillUp(name string) (file string) {
	s.t.Helper()
	file = s.path(name, "filler")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 4096)
	for {
		if _, err := f.Write(b); errors.Is(err, unix.ENOSPC) {
			return file
		} else if err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestMirrorFull: the file systems of the copies and of the witness are full, one after the other. A copy whose disk is full is left out,
// a primary hands over; hosts see no error, and when there is room all are level again.
func TestMirrorFull(t *testing.T) {
	if !isApart(t) {
		return
	}
	n := newNetwork(t)
	s := n.site(mirrorText)
	for _, name := range machines {
		s.withTmpfs(name, "40m")
		if name != "w" {
			if err := errors.Join(os.WriteFile(s.path(name, "disk.img"), nil, 0o600), os.Truncate(s.path(name, "disk.img"), mirrorSize)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.startAll()
	l := s.beginLoad()

	full := s.fillUp("w")
	for i := 0; !strings.Contains(s.must(s.asked("w", "ha", "status")...), "no space left"); i++ { // it has the rest of a page
		s.must(s.asked("a", "ha", []string{"drain", "undrain"}[i%2], "b")...)
	}
	l.more(50)
	s.must(s.asked("a", "ha", "undrain", "b")...)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	s.untilCluster("w", "the witness takes part again", func(c *mgmt.Cluster) bool { return c.Trouble == "" })

	for _, isPrimary := range []bool{false, true} {
		primary := s.level("w")
		victim, serves := other(primary), primary
		if isPrimary {
			victim, serves = primary, other(primary)
		}
		full := s.fillUp(victim)
		var isOut atomic.Bool
		var flushes sync.WaitGroup
		flushes.Go(func() { // after a flush a copy remembers in its metadata what it has; else it may need no room for a minute
			for !isOut.Load() && l.m.flush() {
			}
		})
		s.untilCluster(serves, "the full disk is left out", func(c *mgmt.Cluster) bool {
			s.fillUp(victim)
			m := &c.Mirrors[0]
			return m.Role == "primary" && strings.Contains(copiesText(m), serves+" in sync") && !strings.Contains(copiesText(m), victim+" in sync")
		})
		isOut.Store(true)
		flushes.Wait()
		l.more(50)
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		s.level("w")
	}
	s.endLoad(l)
}

// allow sets a soft limit of a node's daemon, at most the hard one.
func (s *site) allow(name string, resource int, most uint64) {
	s.t.Helper()
	var now unix.Rlimit
	pid := s.daemons[name].Process.Pid
	err := unix.Prlimit(pid, resource, nil, &now)
	if err == nil {
		now.Cur = min(most, now.Max)
		err = unix.Prlimit(pid, resource, &now, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestMirrorNoDescriptors: a daemon gets no descriptor any more. It goes on with what it has; a node that comes meanwhile is not let in,
// and is when there are descriptors again. Hosts see no error, whoever has the mirror.
func TestMirrorNoDescriptors(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoadOf(time.Minute) // a host that ends its connection with a slow victim cannot come back
	for _, c := range []struct{ victim, comes string }{{"a", "b"}, {"b", "w"}, {"w", "a"}} {
		if c.victim != "w" {
			s.servedBy(c.victim)
			l.more(2 * workers) // the host has logged in there: what came first may have been the other node's answers
		}
		s.allow(c.victim, unix.RLIMIT_NOFILE, 0) // those that are open stay
		l.more(50)
		s.kill(c.comes)
		s.start(c.comes)
		l.more(50)
		for !strings.Contains(s.told(c.victim), "too many open files") {
			l.more(1)
		}
		s.allow(c.victim, unix.RLIMIT_NOFILE, 1<<64-1)
		s.level("w")
	}
	s.endLoad(l)
}

// TestMirrorDiskFails: the kernel refuses what a daemon writes into the second half of its disk. A copy is left out, a primary hands
// over, if need be to a node that is drained; when the disk takes writes again both are level.
func TestMirrorDiskFails(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()
	fails := func(victim string) {
		serves := other(victim)
		s.allow(victim, unix.RLIMIT_FSIZE, mirrorSize/2)
		s.untilCluster(serves, "the bad disk is left out", func(c *mgmt.Cluster) bool {
			m := &c.Mirrors[0]
			return m.Role == mgmt.RolePrimary && strings.Contains(copiesText(m), serves+" in sync") && !strings.Contains(copiesText(m), victim+" in sync")
		})
		says := func(at, what string, holds func(reason string) bool) {
			s.untilCluster(at, what, func(c *mgmt.Cluster) bool {
				return slices.ContainsFunc(c.Mirrors[0].Copies, func(m mgmt.Copy) bool { return m.Node == victim && holds(m.Reason) })
			})
		}
		for _, at := range []string{serves, "w"} {
			says(at, "what is wrong with the disk", func(reason string) bool { return strings.Contains(reason, "does not take what is written") })
		}
		l.more(50)
		s.allow(victim, unix.RLIMIT_FSIZE, 1<<64-1)
		for _, at := range []string{serves, "w"} {
			says(at, "nothing is wrong", func(reason string) bool { return reason == "" })
		}
	}
	fails(other(s.level("w")))
	primary := s.level("w")
	fails(primary)
	primary = s.level("w")
	s.must(s.asked("w", "ha", "drain", other(primary))...)
	fails(primary)
	s.untilCluster("w", "the drained node hands back", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Primary == primary })
	s.level("w")
	s.must(s.asked("w", "ha", "undrain", other(primary))...)
	s.endLoad(l)
}

// TestMirrorOfThePast: disks and directories that are not what they were: exchanged, set back, lost, cloned. Each is told, with what to
// do; nothing comes from it, and nothing is lost.
func TestMirrorOfThePast(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()
	disk, state := s.path("b", "disk.img"), s.path("b", "consensus")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	serves := func(name string) { // with the load
		t.Helper()
		s.servedBy(name)
		l.more(100)
	}

	serves("b")
	past, err := os.ReadFile(disk)
	must(err)
	serves("a")
	must(os.CopyFS(s.path("b", "past"), os.DirFS(state)))
	must(os.CopyFS(s.path("clone", "consensus"), os.DirFS(state)))

	// Another disk: the node says so, and serves again when it has all bytes.
	s.kill("b")
	must(os.Rename(disk, disk+".old"))
	must(os.WriteFile(disk, make([]byte, mirrorSize), 0o600))
	s.start("b")
	serves("b")
	if text := s.told("b"); !strings.Contains(text, "the disk of this node's copy is not the one of its metadata: other nodes have to bring all of it level; if this is the only copy in sync, start with the right disk") {
		t.Errorf("an exchanged disk: b says %s", text)
	}

	// The same disk, set back: whether it is noticed by its samples or by its regions, nothing of the past is served.
	serves("a")
	s.kill("b")
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	must(err)
	_, err = f.WriteAt(past, 0)
	must(errors.Join(err, f.Close()))
	s.start("b")
	serves("b")

	// A clone, at an address of its own, while b runs.
	must(os.WriteFile(s.path("clone", "disk.img"), past, 0o600))
	s.write("clone", strings.NewReplacer(s.at[1], freePort(t), s.at[4], freePort(t)).Replace(s.text))
	s.startAs("clone", "b")
	s.untilCluster("clone", "the clone is refused", func(c *mgmt.Cluster) bool {
		return strings.Contains(c.Trouble, "target ha replace b")
	})
	l.more(50)
	s.kill("clone")

	// The same, while b is away.
	serves("a")
	s.kill("b")
	must(os.RemoveAll(s.path("clone", "consensus")))
	must(os.CopyFS(s.path("clone", "consensus"), os.DirFS(state)))
	s.startAs("clone", "b")
	s.untilCluster("clone", "the clone is told that it is not where b is", func(c *mgmt.Cluster) bool {
		if c.Mirrors[0].Role == mgmt.RolePrimary {
			t.Error("the clone serves")
		}
		for _, m := range c.Members {
			if m.Name != "b" && (m.Up || !strings.Contains(m.Reason, "if this machine is a clone of the node, end it")) {
				return false
			}
		}
		return true
	})
	l.more(50)
	s.kill("clone")
	s.start("b")
	serves("b")
	serves("a")

	// The directory of consensus, set back.
	s.kill("b")
	must(os.Rename(state, s.path("b", "now")))
	must(os.Rename(s.path("b", "past"), state))
	s.start("b")
	s.untilCluster("b", "b is refused", func(c *mgmt.Cluster) bool { return strings.Contains(c.Trouble, "set back") })
	l.more(50)
	s.kill("b")
	must(os.RemoveAll(state))
	s.fails("target ha replace", s.on("b", "serve")...)
	_, token, _ := strings.Cut(s.must(s.asked("w", "ha", "replace", "b")...), "--token ")
	token, _, _ = strings.Cut(token, "\n")
	s.must(s.on("b", "ha", "join", "--token", token)...)
	s.start("b")
	serves("b")

	// Strangers at the ports of the cluster get nothing, and disturb nobody.
	for _, at := range s.at[:3] {
		for range 20 {
			c, err := net.Dial("tcp", at)
			must(err)
			defer c.Close()
			_, _ = c.Write([]byte(strings.Repeat("\x16\x03\x01 GET / HTTP/1.1\r\n", 50))) // it may be closed already
		}
	}
	l.more(50)
	if err := os.RemoveAll(filepath.Join(s.dir, "clone")); err != nil {
		t.Error(err)
	}
	s.endLoad(l)
}
