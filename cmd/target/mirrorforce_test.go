//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oneshot/mgmt"
)

// rejoined makes a node that target ha force has left out a member again, with the token that force has printed for it.
func (s *site) rejoined(name, said string) {
	s.t.Helper()
	m := regexp.MustCompile(`--node ` + name + ` --discard-mine --token (\w+)\n`).FindStringSubmatch(said)
	if m == nil {
		s.t.Fatalf("there is no token for %s: %s", name, said)
	}
	s.fails("nothing was changed", s.on(name, "ha", "rejoin", "--token", m[1])...)
	s.must(s.on(name, "ha", "rejoin", "--discard-mine", "--token", m[1])...)
}

// TestMirrorForce: a and w are lost, and b goes on alone. force says what b has, and changes nothing without confirmation or
// while others live. What comes back is refused, also if it is a majority of old; when it has given up what it has it
// gets what it lacks, and no more, and serves.
func TestMirrorForce(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()
	s.servedBy("a")
	s.fails("another process uses it", s.on("b", "ha", "force", "--confirm", "lab")...)
	l.stop.Store(true)
	l.wg.Wait()
	if !l.m.flush() {
		t.Fatal("no flush")
	}
	s.stop("b")
	s.fails("somebody answers at the address of a, w", s.on("b", "ha", "force", "--confirm", "lab")...)
	token := strings.TrimSpace(s.must(s.asked("w", "ha", "token")...))
	s.fails("nothing was given up", s.on("b", "ha", "rejoin", "--discard-mine", "--token", token)...) // it is a member, and has all
	s.kill("a")
	s.kill("w")
	for _, args := range [][]string{nil, {"--confirm", "disk"}} {
		out, err := s.run(s.on("b", append([]string{"ha", "force"}, args...)...)...)
		if err == nil || !strings.Contains(out, "the copy of this node was in sync in term") || !strings.Contains(out, "--confirm lab") {
			t.Errorf("%v: %s", err, out)
		}
	}
	s.fails("has no copy of anything", s.on("w", "ha", "force", "--confirm", "lab")...)

	said := s.must(s.on("b", "ha", "force", "--confirm", "lab")...)
	s.fails("is the only member", s.on("b", "ha", "force", "--confirm", "lab")...)
	s.start("b")
	l = newLoadAfter(t, l.m, l) // all that was flushed is there
	l.more(100)

	// a and w are a majority of the former voters.
	s.start("a")
	s.start("w")
	for _, name := range []string{"a", "w"} {
		s.untilCluster(name, "the former generation is refused", func(c *mgmt.Cluster) bool {
			return strings.Contains(c.Trouble, "target ha rejoin") && !slices.ContainsFunc(c.Mirrors, func(m mgmt.Mirror) bool { return m.Role == mgmt.RolePrimary })
		})
	}
	l.more(50)
	l.stop.Store(true) // what is written meanwhile is copied again and again
	l.wg.Wait()
	s.kill("a")
	s.kill("w")
	s.rejoined("a", said)
	s.rejoined("w", said)
	s.start("a")
	s.start("w")
	s.until("b", "all vote", allUp)
	s.level("b")
	if text := s.told("a"); !strings.Contains(text, "only where it may differ=true") {
		t.Error("a copy that was in sync is brought level in whole")
	}
	s.servedBy("a")
	l = newLoadAfter(t, l.m, l)
	l.more(50)
	s.endLoad(l)
}

// TestMirrorForceStale: of a mirror the only copy in sync is lost, while a majority of the voters lives. The other copy goes on by
// force: hosts see what it had. The lost node comes back, serves nothing, says so, and gives its bytes up.
func TestMirrorForceStale(t *testing.T) {
	s := newThrough(t)
	l := s.beginLoad()
	s.servedBy("a")
	s.kill("b")
	l.more(50) // which b lacks
	l.stop.Store(true)
	l.wg.Wait()
	s.fails("somebody answers at the address of a", s.on("b", "ha", "force", "disk", "--confirm", "disk")...)
	s.kill("a")
	out, err := s.run(s.on("b", "ha", "force", "disk")...)
	if err == nil || !strings.Contains(out, "the copy of this node is NOT in sync") || !strings.Contains(out, "a had what was acknowledged") || !strings.Contains(out, "--confirm disk") {
		t.Errorf("%v: %s", err, out)
	}
	s.fails("there is no mirror other", s.on("b", "ha", "force", "other", "--confirm", "other")...)
	s.must(s.on("b", "ha", "force", "disk", "--confirm", "disk")...)
	s.start("b")
	s.untilCluster("b", "b serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })

	s.start("a")
	s.untilCluster("a", "the former lineage is told", func(c *mgmt.Cluster) bool { return strings.Contains(c.Mirrors[0].Trouble, "target ha rejoin") })
	m := l.m
	seen := make([]byte, block)
	for no := range 64 {
		if !m.read(no, seen) { // a serves nothing
			t.Fatal("no read")
		}
	}
	s.kill("a")
	s.must(s.on("a", "ha", "rejoin", "--discard-mine")...)
	s.start("a")
	s.level("b")
	s.servedBy("a")
	now := make([]byte, block)
	if !m.read(63, now) || string(now) != string(seen) {
		t.Error("what b had is not what a shows")
	}
	s.settle(m)
	s.stopAll()
	s.equal()
}

// forcedBy has a mirror go on with the copy of a node that does not run, and starts it.
func (s *site) forcedBy(name string, which ...string) {
	s.t.Helper()
	s.must(s.on(name, append([]string{"ha", "force"}, which...)...)...)
	s.start(name)
	s.untilCluster(name, "it serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
}

// lacking returns a site where b was forced to go on without a, whose copy alone has what l has written last. Only w runs.
func lacking(t *testing.T) (s *site, l *load) {
	s = newThrough(t)
	l = s.beginLoad()
	s.servedBy("a")
	s.kill("b")
	l.more(50) // which b lacks
	l.stop.Store(true)
	l.wg.Wait()
	s.kill("a")
	s.forcedBy("b", "disk", "--confirm", "disk")
	s.kill("b")
	return s, l
}

// TestMirrorForceAgain: the copy that was forced is lost, too. The one of the lineage before is forced in its turn, and goes on with
// what it has; and a machine that takes the place of the lost one, with an empty directory and an empty disk, is brought level.
func TestMirrorForceAgain(t *testing.T) {
	s, l := lacking(t)
	s.forcedBy("a", "disk", "--confirm", "disk")
	l = newLoadAfter(t, l.m, l) // all is there
	l.more(50)
	if err := errors.Join(os.RemoveAll(s.path("b", "consensus")), os.Remove(s.path("b", "disk.img"))); err != nil {
		t.Fatal(err)
	}
	_, token, _ := strings.Cut(s.must(s.asked("w", "ha", "replace", "b")...), "--token ")
	s.must(s.on("b", "ha", "join", "--token", strings.Fields(token)[0])...)
	s.start("b")
	s.endLoad(l)
}

// TestMirrorForceFormer: a copy of a former lineage, whose node knows that, goes on as a cluster of its own when all others are lost.
func TestMirrorForceFormer(t *testing.T) {
	s, _ := lacking(t)
	s.forcedBy("a", "disk", "--confirm", "disk")
	s.start("b")
	s.untilCluster("b", "the former lineage is told", func(c *mgmt.Cluster) bool { return strings.Contains(c.Mirrors[0].Trouble, "target ha rejoin") })
	for _, name := range machines {
		s.kill(name)
	}
	s.forcedBy("b", "--confirm", "lab")
}

// TestMirrorForceOwn: the only copy in sync is good, and the directory of its node is lost. The node joins anew, and its own copy is forced.
func TestMirrorForceOwn(t *testing.T) {
	s := newThrough(t)
	l := s.beginLoad()
	s.servedBy("a")
	s.kill("b")
	l.more(50) // which b lacks
	l.stop.Store(true)
	l.wg.Wait()
	s.kill("a")
	if err := os.RemoveAll(s.path("a", "consensus")); err != nil {
		t.Fatal(err)
	}
	s.start("b")
	s.untilCluster("w", "a majority agrees", func(c *mgmt.Cluster) bool { return c.Members[1].Leads || c.Members[2].Leads })
	s.fails("add --lose disk", s.asked("w", "ha", "replace", "a")...)
	_, token, _ := strings.Cut(s.must(s.asked("w", "ha", "replace", "a", "--lose", "disk")...), "--token ")
	s.must(s.on("a", "ha", "join", "--token", strings.Fields(token)[0])...)
	s.start("a")
	s.until("w", "a is a member", allUp)
	s.untilCluster("a", "nobody serves the mirror", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role != mgmt.RolePrimary })
	s.stop("a")
	s.forcedBy("a", "disk", "--confirm", "disk")
	l = newLoadAfter(t, l.m, l) // all is there
	l.more(50)
	s.untilCluster("b", "the former lineage is told", func(c *mgmt.Cluster) bool { return strings.Contains(c.Mirrors[0].Trouble, "target ha rejoin") })
	s.kill("b")
	s.must(s.on("b", "ha", "rejoin", "--discard-mine")...)
	s.start("b")
	s.endLoad(l)
}

// TestMirrorForceOtherDisk: force says that the disk of the copy is not there, or is another one. A node that was forced with its own disk does not
// go on with another one, whose bytes all others would get, until somebody has asked for that.
func TestMirrorForceOtherDisk(t *testing.T) {
	s := newThrough(t)
	l := s.beginLoad()
	s.servedBy("b")
	s.kill("a")
	l.more(50)
	l.stop.Store(true)
	l.wg.Wait()
	s.kill("b")
	disk := s.path("b", "disk.img")
	exchange := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() { // a node that serves nevertheless would not end
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, s.command().Path, s.on("b", "serve")...)
		cmd.Args[0] = "target"
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "start with that one") {
			t.Errorf("b, with another disk: %v: %s", err, said.String())
		}
	}
	const other = "the disk of this node is NOT the one that it was"
	exchange(disk, disk+".away")
	s.fails(other, s.on("b", "ha", "force", "disk")...)
	if err := os.WriteFile(disk, make([]byte, mirrorSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(other, s.on("b", "ha", "force", "disk")...)
	exchange(disk, disk+".other")

	exchange(disk+".away", disk)
	if said := s.must(s.on("b", "ha", "force", "disk", "--confirm", "disk")...); !strings.Contains(said, "the copy of this node was in sync in term") {
		t.Errorf("with its own disk: %s", said)
	}
	exchange(disk, disk+".away")
	exchange(disk+".other", disk)
	refused()
	exchange(disk, disk+".other")
	refused()
	if _, err := os.Stat(disk); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a disk that was to be lost was made: %v", err)
	}

	exchange(disk+".away", disk)
	s.start("b")
	s.untilCluster("b", "b serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	l = newLoadAfter(t, l.m, l) // all is there
	l.stop.Store(true)
	l.wg.Wait()

	// Its disk is lost for good: it goes on with another one when somebody says so.
	s.kill("b")
	exchange(disk, disk+".away")
	exchange(disk+".other", disk)
	s.forcedBy("b", "disk", "--confirm", "disk")
}
