//go:build !race

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/mgmt"
	"oneshot/test/medium"
)

// Nodes that are lost in the middle of something that changes who has what.

// took counts how often a node has become the primary by itself, and because the one before has handed over.
func (s *site) took(name string) (itself, handed int) {
	s.t.Helper()
	text := s.told(name)
	return strings.Count(text, `"this node has taken over"`), strings.Count(text, `"this node is the primary: the one before has handed over"`)
}

// TestMirrorLostMeanwhile: the primary is killed while the other copy is brought level, which cannot end, for its disk holds a write back. That node
// serves nothing, nor when its disk goes on and it may have all; hosts wait, and go on when the lost one is back.
func TestMirrorLostMeanwhile(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media := newMedia(t, through(diskText))
	disk := media["b"]
	s.startAll()
	l := s.beginLoad()
	s.servedBy("a")
	s.kill("b")
	l.more(100) // which b lacks
	held := disk.Hold(int(l.newest.Load()))
	s.start("b")
	s.awaits(held, "b is brought level")
	l.more(50) // which b has got, perhaps
	s.untilCluster("a", "it says so", func(c *mgmt.Cluster) bool {
		return strings.HasPrefix(copiesText(&c.Mirrors[0]), "a in sync, b resync (")
	})
	itself, handed := s.took("b")
	s.kill("a")
	servesNothing := func() {
		t.Helper()
		l.m.tries(500)
		s.refuses(l, 1)
		s.untilCluster("b", "b knows that a is lost", func(c *mgmt.Cluster) bool {
			m := &c.Mirrors[0]
			return !c.Members[0].Up && (c.Members[1].Leads || c.Members[2].Leads) && mirrorState(c, m) == primaryDown && strings.HasPrefix(copiesText(m), "a in sync, b not in sync")
		})
	}
	servesNothing()
	disk.Heal()
	servesNothing()
	s.start("a")
	l.more(100)
	if now, all := s.took("b"); now != itself || all != handed {
		t.Errorf("b was primary, and a had what b lacked")
	}
	s.servedBy("b")
	l.more(50)
	s.endLoad(l)
}

// newThree makes a cluster with a mirror of three copies, that of node c on a medium, and starts it. The test has to be apart.
func newThree(t *testing.T) (*site, *medium.Medium) {
	s := newSiteAt(t, strings.NewReplacer("b: {type: file, path: disk.img}}", "b: {type: file, path: disk.img}, c: {type: device, path: device}}",
		"portals:\n", "portals:\n  - {node: c, listen: \"AT5\", group: 3}\n").Replace(mirrorText), freePorts(t, 6))
	s.text = strings.NewReplacer("w: {address", "c: {address", ", witness: true", "").Replace(s.text)
	for _, name := range []string{"a", "b", "c"} {
		s.write(name, s.text)
	}
	disk := s.media("c")["c"]
	s.startAll()
	return s, disk
}

// TestMirrorThirdBehind: of three copies the primary is killed while c is brought level, which cannot end, for its disk holds a write back. b
// goes on with what it has, and knows what c lacks: c gets that and little else, and all three are equal in the end.
func TestMirrorThirdBehind(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, disk := newThree(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l := newLoad(t, newMultipathAt(ctx, s, s.at[3:]...))
	s.servedBy("a")
	l.more(200)
	l.end()
	s.settle(l.m)
	const most, granule = 1024, 16 // blocks
	l = newLoadWithin(t, l.m, l, most)
	copies := func(m *mgmt.Mirror, want string) bool { return regexp.MustCompile(want).MatchString(copiesText(m)) }
	for is := false; !is; {
		s.servedBy("a")
		s.signal("c", syscall.SIGSTOP)                         // its process goes on later, and knows what it has
		for l.more(1); l.newest.Load() >= granule; l.more(1) { // c lacks what is copied first
		}
		held := disk.Hold(int(l.newest.Load()))
		s.untilCluster("a", "c is left out", func(c *mgmt.Cluster) bool { return !copies(&c.Mirrors[0], "c in sync") })
		l.first.Store(most) // and much that was not written before
		l.more(300)
		s.signal("c", syscall.SIGCONT)
		s.awaits(held, "c is brought level")
		l.first.Store(2 * most) // what it lacks is not written again
		s.kill("a")
		if is = s.takesOver("b"); is {
			l.more(100)
			s.untilCluster("b", "it knows what c lacks", func(c *mgmt.Cluster) bool {
				m := &c.Mirrors[0]
				if lacks := m.Copies[2].Lacks; lacks > 3*most*block {
					t.Fatalf("c lacks %d bytes, and %d at most were written without it", lacks, 3*most*block)
				}
				return m.Role == mgmt.RolePrimary && copies(m, `^a (away|not in sync).*, b in sync, c (not in sync|resync) \(.* to go\)$`)
			})
		}
		disk.Heal()
		if is {
			s.untilCluster("b", "c is level", func(c *mgmt.Cluster) bool { return copies(&c.Mirrors[0], "b in sync, c in sync$") })
			l.more(50)
		}
		s.start("a")
		l.first.Store(0)
	}
	s.servedBy("c")
	l.more(50)
	l.end()
	s.settle(l.m)
	for _, name := range []string{"a", "b", "c"} {
		s.kill(name)
	}
	s.equal()
}

// TestMirrorPromised: the copy that is not primary is killed when it has promised itself the office, and before it could get that, for the witness is
// stopped. Where nobody has heard of it the primary leaves it out, and goes on. Where the primary has, the office may be given to the dead one
// when the witness is back: then hosts wait for it.
func TestMirrorPromised(t *testing.T) {
	if !isApart(t) {
		return
	}
	n := newNetwork(t)
	s := n.site(mirrorText)
	s.startAll()
	l := s.beginLoad()
	newProbe(l.m.ctx, s, l)
	for _, c := range []struct {
		what string
		cut  func(primary, other string, cut bool)
	}{
		{"nobody hears it", func(_, o string, cut bool) { n.pull(o, 1, cut) }},
		{"it hears nobody", func(p, o string, cut bool) { n.lose(p, o, cut) }},
	} {
		for _, primary := range []string{"a", "b"} {
			back := other(primary)
			s.servedBy(primary)
			l.more(50)
			s.signal("w", syscall.SIGSTOP)
			c.cut(primary, back, true)
			s.untilCluster(back, "it wants the office", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == "taking over" })
			s.kill(back)
			c.cut(primary, back, false)
			s.signal("w", syscall.SIGCONT)
			goesOn := false
			s.untilCluster(primary, "who serves is agreed", func(c *mgmt.Cluster) bool {
				m := &c.Mirrors[0]
				goesOn = m.Role == mgmt.RolePrimary && strings.Contains(copiesText(m), back+" away")
				return goesOn || m.Primary == back
			})
			t.Logf("%s: %s goes on without %s: %t", c.what, primary, back, goesOn)
			switch {
			case goesOn:
				l.more(50)
			case c.what == "nobody hears it":
				t.Errorf("%s has an office of which nobody could hear", back)
			}
			s.start(back)
		}
	}
	s.endLoad(l)
}

// goesOnAlone waits until a node serves the mirror, and counts on the other copy no more.
func (s *site) goesOnAlone(name string) {
	s.t.Helper()
	s.untilCluster(name, "it goes on alone", func(c *mgmt.Cluster) bool {
		m := &c.Mirrors[0]
		return m.Role == mgmt.RolePrimary && !strings.Contains(copiesText(m), other(name)+" in sync")
	})
}

// switchAt asks a node to have another one serve the mirror.
func (s *site) switchAt(name, to string) error {
	c := mgmt.NewClient(s.path(name, "s.sock"))
	defer c.Close()
	_, err := c.SwitchMirror(s.t.Context(), "disk", to)
	return err
}

// TestMirrorDiesHandingOver: the primary is killed while it hands over. The other node serves, with all that was acknowledged: by the
// office that it was given, though it could not hear of it before, or because it takes over.
func TestMirrorDiesHandingOver(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()

	// While the one that is to serve is stopped: it has the office, and does not know.
	l.end()
	for is := false; !is; {
		s.settle(l.m)
		primary := s.level("w")
		next := other(primary)
		s.signal(next, syscall.SIGSTOP)
		asked := make(chan error, 1)
		go func() { asked <- s.switchAt(primary, next) }()
		s.untilCluster(primary, "it has handed over, or goes on", func(c *mgmt.Cluster) bool {
			is = c.Mirrors[0].Primary == next
			return is || len(asked) > 0
		})
		if is {
			s.kill(primary)
		}
		s.signal(next, syscall.SIGCONT)
		if err := <-asked; !is {
			t.Logf("before %s was left out: %v", next, err)
			continue
		}
		s.goesOnAlone(next)
		l = newLoadAfter(t, l.m, l)
		l.more(50)
		s.start(primary)
	}

	// At any moment, under load.
	const rounds = 4
	within := 0
	for i := 0; i < rounds; {
		primary := s.level("w")
		next := other(primary)
		l.more(20)
		itself, handed := s.took(next)
		asked := make(chan error, 1)
		go func() { asked <- s.switchAt(primary, next) }()
		moment := time.Duration(rand.IntN(8000)) * time.Microsecond
		pauseFor(l.m.ctx, moment)
		s.kill(primary)
		err := <-asked
		if !s.takesOver(next) {
			s.start(primary) // it was left out before
			continue
		}
		s.goesOnAlone(next)
		l.more(50)
		a, b := s.took(next)
		t.Logf("%s was killed after %v: %s has taken over %d times, and was handed the office %d times; the order ended with %v", primary, moment, next, a-itself, b-handed, err)
		if err != nil {
			within++
		}
		s.start(primary)
		i++
	}
	t.Logf("in %d of %d rounds the order had not ended", within, rounds)
	s.endLoad(l)
}

// TestMirrorSuccessorHangs: the node that is to serve is stopped a moment before. Who orders the switch is told that the first one serves again, and it does. If that
// one ends instead it does end, and the other one serves when it goes on.
func TestMirrorSuccessorHangs(t *testing.T) {
	s := newMirror(t)
	l := s.beginLoad()
	for hung := ""; hung == ""; {
		l.end()
		s.settle(l.m)
		primary := s.level("w")
		next := other(primary)
		s.signal(next, syscall.SIGSTOP)
		text, err := s.run(s.asked("w", "ha", "switch", "disk")...)
		switch {
		case err == nil:
			t.Fatalf("%s", text)
		case strings.Contains(text, fmt.Sprintf("node %s was to serve disk, and has not said that it does, so %s serves it again", next, primary)):
			hung = next
			s.goesOnAlone(primary)
		default:
			t.Logf("before %s was left out: %s", next, text)
		}
		l = newLoadAfter(t, l.m, l)
		l.more(50)
		s.signal(next, syscall.SIGCONT)
	}

	l.end()
	s.settle(l.m)
	primary := s.level("w")
	next := other(primary)
	s.signal(next, syscall.SIGSTOP)
	s.stop(primary)
	s.signal(next, syscall.SIGCONT)
	if s.takesOver(next) { // else it was left out before
		l = newLoadAfter(t, l.m, l)
		l.more(50)
	}
	s.start(primary)
	s.endLoad(l)
}
