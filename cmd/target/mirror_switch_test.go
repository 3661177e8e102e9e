//go:build !race

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oneshot/mgmt"
)

// switches is how often TestMirrorSwitch has another node serve; ONESHOT_SWITCHES says otherwise.
const switches = 6

func switchesWanted(t *testing.T) int {
	text := os.Getenv("ONESHOT_SWITCHES")
	if text == "" {
		return switches
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("ONESHOT_SWITCHES is %q: %v", text, err)
	}
	return n
}

// steps says how long each step of all switches took, as the nodes have logged it.
func (s *site) steps() string {
	s.t.Helper()
	var text []string
	for _, step := range []string{"gathered", "consensus"} {
		var took []time.Duration
		for _, name := range []string{"a", "b"} {
			for _, m := range regexp.MustCompile(`this node has handed over.* `+step+`="?([^ "]+)`).FindAllStringSubmatch(s.told(name), -1) {
				d, err := time.ParseDuration(m[1])
				if err != nil || d < 0 || d > time.Minute {
					s.t.Errorf("a node says %s", m[0])
				}
				took = append(took, d)
			}
		}
		if len(took) == 0 {
			s.t.Fatalf("no node says how long it took until %s", step)
		}
		slices.Sort(took)
		text = append(text, fmt.Sprintf("%s in %v, 99 %% in %v, all in %v", step, took[len(took)/2], took[len(took)*99/100], took[len(took)-1]))
	}
	return strings.Join(text, "; ")
}

// TestMirrorSwitch: the mirror is switched again and again under load, through any node. The host sees no error but those
// that lead it to the other path, and its bytes are right.
func TestMirrorSwitch(t *testing.T) {
	n := switchesWanted(t)
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(n)*time.Second)
	defer cancel()
	s.level("a")
	m := newMultipath(ctx, s)
	l := newLoad(t, m)
	said := regexp.MustCompile(`^Node (\w) serves disk; node (\w) did until now. The switch took (\d+) ms.\n$`)
	var took []int
	for i, refused := 0, 0; i < n; {
		l.more(50)
		through := []string{"a", "b", "w"}[i%3]
		primary := s.level("w")
		text, _ := s.run(s.asked(through, slices.Concat([]string{"ha", "switch", "disk"}, []string{other(primary)}[:i%2])...)...)
		// On a busy machine a copy may be late, and leave, and a node may take over for one that has no processor.
		if refused++; refused < 20+n && regexp.MustCompile("in sync$|try again$|serves disk now|serves disk already.$|to another node meanwhile").MatchString(strings.TrimSpace(text)) {
			t.Logf("%s", text)
			continue
		}
		match := said.FindStringSubmatch(text)
		if match == nil || match[1] != other(primary) || match[2] != primary {
			t.Fatalf("switch from %s says %q", primary, text)
		}
		ms, _ := strconv.Atoi(match[3])
		took = append(took, ms)
		i++
	}
	l.more(50)
	l.end()
	slices.Sort(took)
	t.Logf("%d switches took %d to %d ms, half of them at most %d and 99 %% at most %d; the host changed its path %d times", n, took[0], took[n-1], took[n/2], took[n*99/100], m.moves)
	t.Logf("half of them were %s", s.steps())
	s.servedBy("a")
	if text := s.must(s.asked("b", "ha", "switch", "disk", "a")...); text != "Node a serves disk already.\n" {
		t.Errorf("a switch to the primary says %q", text)
	}
	differs := func(is bool) {
		s.must(s.asked("b", "reload")...)
		s.until("a", "it has heard of that", func(m map[string]*mgmt.Member) bool { return (len(m["b"].Differs) > 0) == is })
	}
	s.write("b", strings.Replace(s.text, "luns: {0: disk}", "luns: {1: disk}", 1))
	differs(true)
	for _, to := range [][]string{{"b"}, nil} {
		s.fails("node b is not to serve disk, for its configuration is another one, and hosts would see that (targets.", s.asked("w", append([]string{"ha", "switch", "disk"}, to...)...)...)
	}
	s.write("b", s.text)
	differs(false)
	s.fails("there is no mirror disc: there are disk", s.asked("w", "ha", "switch", "disc")...)
	s.fails("node w has no copy of disk: nodes a, b have", s.asked("b", "ha", "switch", "disk", "w")...)
	s.kill("b")
	s.untilCluster("a", "a is alone", func(c *mgmt.Cluster) bool { return strings.Contains(copiesText(&c.Mirrors[0]), "b away") })
	s.fails("node b cannot serve disk: its copy is away", s.asked("w", "ha", "switch", "disk", "b")...)
	s.fails("no other node can serve the mirror disk: a in sync, b away", s.asked("a", "ha", "switch", "disk")...)
	s.stop("a")
	s.stop("w")
}

// TestMirrorDrain: a rolling upgrade under load, from the program that ONESHOT_FORMER names, if it does. Each node is drained, stopped,
// started and undrained in its turn; a drained one takes nothing, even when it is started anew.
func TestMirrorDrain(t *testing.T) {
	s := newSiteOf(t, mirrorText)
	s.program = os.Getenv("ONESHOT_FORMER")
	s.startAll()
	isUpgrade := s.program != ""
	s.program = "" // from now on
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	m := newMultipath(ctx, s)
	l := newLoad(t, m)
	for _, name := range []string{"b", "a"} {
		s.level("w")
		l.more(50)
		if text := s.must(s.asked("w", "ha", "drain", name)...); !strings.HasSuffix(text, fmt.Sprintf("Node %s serves nothing, until target ha undrain %[1]s.\n", name)) {
			t.Errorf("drain says %q", text)
		}
		s.fails("nobody could serve the mirror disk: all of its nodes, a, b, would be drained", s.asked("a", "ha", "drain", other(name))...)
		if primary := s.level("w"); primary != other(name) {
			t.Errorf("%s is drained, and %s serves", name, primary)
		}
		s.stop(name)
		l.more(50)
		s.start(name)
		if primary := s.level("w"); primary != other(name) {
			t.Errorf("%s is drained, and was started, and %s serves", name, primary)
		}
		s.fails(fmt.Sprintf("node %s cannot serve disk: it is drained; target ha undrain %[1]s lets it", name), s.asked(name, "ha", "switch", "disk", name)...)
		if table := s.must(s.asked("w", "ha", "status")...); !regexp.MustCompile(`\n` + name + ` .*, drained `).MatchString(table) {
			t.Errorf("status says\n%s", table)
		}
		s.must(s.asked(other(name), "ha", "undrain", name)...)
		if name == "b" && isUpgrade {
			s.until("w", "status names the versions", func(m map[string]*mgmt.Member) bool {
				return m["a"].Version != "" && m["a"].Version == m["w"].Version && m["b"].Version != "" && m["b"].Version != m["a"].Version
			})
		}
	}
	s.stop("w")
	l.more(50)
	s.start("w")
	s.level("w")
	l.more(50)
	l.end()
	s.fails("there is no node c in the cluster", s.asked("a", "ha", "drain", "c")...)
	s.kill("a")
	s.untilCluster("b", "b is alone", func(c *mgmt.Cluster) bool { return strings.Contains(copiesText(&c.Mirrors[0]), "a away") })
	s.fails("node b is drained, and serves something still: the mirror disk (copies: a away", s.asked("b", "ha", "drain", "b", "--wait", "300ms")...)
	s.start("a")
	s.untilCluster("b", "b hands over when it can", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Primary == "a" })
	for range 2 { // it reads from its own state that it is drained, before the mirror is open, and after that
		s.stop("b")
		s.untilCluster("a", "b is away", func(c *mgmt.Cluster) bool { return strings.Contains(copiesText(&c.Mirrors[0]), "b away") })
		s.start("b")
		s.level("a")
	}
	for s.level("w"); ; s.level("w") {
		s.kill("a")
		for range 10 {
			s.must(s.asked("b", "ha", "status")...)
		}
		undrained := time.Now()
		s.must(s.asked("w", "ha", "undrain", "b")...)
		if s.takesOver("b") {
			s.untilCluster("b", "b has taken over", func(c *mgmt.Cluster) bool {
				t := c.Mirrors[0].Takeover
				if t != nil && t.At.Before(undrained) {
					s.t.Errorf("b was drained until %v, and took over at %v", undrained, t.At)
				}
				return t != nil
			})
			break
		}
		s.start("a")
		s.level("a")
		s.must(s.asked("w", "ha", "drain", "b")...)
	}
	s.start("a")
	s.stopAll()
}

// verified has the copies compared, and again if one has left meanwhile, as on a busy machine.
func (s *site) verified() string {
	s.t.Helper()
	for {
		text, err := s.run(s.asked("w", "ha", "verify", "disk")...)
		if err == nil || !strings.Contains(text, "is not in sync any more") {
			if err != nil {
				s.t.Fatalf("%v: %s", err, text)
			}
			return text
		}
		s.level("w")
	}
}

// TestMirrorVerify: a copy that has changed on its disk is found, told of, and repaired from the one that is right.
func TestMirrorVerify(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	m := newMultipath(ctx, s)
	l := newLoad(t, m)
	l.more(50)
	if text := s.verified(); !strings.Contains(text, "The copies of disk are equal: 16777216 of 16777216 bytes were compared") {
		t.Errorf("verify says %q", text)
	}
	l.end()
	s.settle(m)
	const at = 5*65536 + 512
	f, err := os.OpenFile(s.path("b", "disk.img"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("rotten"), at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, how := range [][]string{nil, {"--repair"}} {
		s.fails("offset 327680, 65536 bytes: it is not known which copy is right", s.asked("a", slices.Concat([]string{"ha", "verify", "disk"}, how)...)...)
	}
	s.fails("for 1 of them it is not known which copy is right: find out", s.asked("w", "ha", "verify", "disk", "--progress")...)
	s.fails("node w has no copy of disk", s.asked("a", "ha", "verify", "disk", "--repair", "--from", "w")...)
	if text := s.must(s.asked("w", "ha", "verify", "disk", "--repair", "--from", "a")...); !strings.Contains(text, "not right on b") || !strings.Contains(text, "equal again, with 1 range repaired") {
		t.Errorf("a repair says %q", text)
	}
	primary := s.level("w")
	if status := s.must(s.asked("w", "status")...); !strings.Contains(status, "\nmirror         disk: healthy; primary "+primary+"; a in sync, b in sync\n") {
		t.Errorf("target status says\n%s", status)
	}
	if table := s.must(s.asked(primary, "ha", "status")...); !regexp.MustCompile(`\nmirror disk: copies were compared at .*: 1 difference, 1 repaired\n`).MatchString(table) {
		t.Errorf("status says\n%s", table)
	}
	s.verified()
	s.must(s.asked("w", "ha", "verify", "disk", "--stop")...)
	b := make([]byte, 6)
	if _, err := f.ReadAt(b, at); err != nil || string(b) == "rotten" {
		t.Errorf("the copy of b has %q: %v", b, err)
	}
	s.kill("b")
	s.untilCluster("a", "a is alone", func(c *mgmt.Cluster) bool { return strings.Contains(copiesText(&c.Mirrors[0]), "b away") })
	s.fails("there is nothing to compare: a in sync, b away", s.asked("w", "ha", "verify", "disk")...)
	if table := s.must(s.asked("a", "ha", "status")...); !regexp.MustCompile(`\ndisk +degraded +16MiB +a +primary +a in sync, b away`).MatchString(table) {
		t.Errorf("status says\n%s", table)
	}
	s.fails("add --repair", "ha", "verify", "disk", "--from", "a")
	s.stop("a")
	s.stop("w")
}
