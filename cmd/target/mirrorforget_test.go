//go:build !race

package main

import (
	"os"
	"strings"
	"testing"

	"oneshot/mgmt"
)

// TestMirrorForget: a mirror is forgotten when no node has it any more, and not before, whichever node is asked. A node that still has it, and was away,
// serves it no more; the name begins another mirror.
func TestMirrorForget(t *testing.T) {
	s := newMirror(t)
	s.level("w")
	s.until("w", "all are up", allUp)
	s.fails("the configuration of a, b, w has it", s.asked("w", "ha", "forget", "disk")...)
	without := newSiteAt(t, siteText, s.at).text
	for _, name := range []string{"b", "w"} {
		s.write(name, without)
		s.must(s.asked(name, "reload")...)
	}
	s.fails("the configuration of a has it", s.asked("b", "ha", "forget", "disk")...)
	s.kill("a") // it may be served there, as far as the others know
	s.untilCluster("w", "a is away", func(c *mgmt.Cluster) bool { return !isUp(c, "a") })
	s.fails("the configuration of a had it when it was last heard", s.asked("w", "ha", "forget", "disk")...)
	s.write("a", without)
	s.start("a")
	s.untilCluster("w", "status says that nobody has it", func(c *mgmt.Cluster) bool {
		return len(c.Mirrors) == 1 && c.Mirrors[0].Role == mgmt.RoleGivenUp
	})
	if said := s.must(s.asked("w", "ha", "forget", "disk")...); !strings.Contains(said, "Remove the directory mirrors/disk") {
		t.Errorf("it says %s", said)
	}
	for _, name := range []string{"a", "b", "w"} {
		s.untilCluster(name, "the mirror is forgotten", func(c *mgmt.Cluster) bool { return len(c.Mirrors) == 0 })
	}
	s.fails("the cluster has no mirrors", s.asked("a", "ha", "forget", "disk")...)

	s.stop("a")
	s.write("a", s.text)
	s.start("a")
	s.untilCluster("a", "a takes no part", func(c *mgmt.Cluster) bool {
		return len(c.Mirrors) == 1 && strings.Contains(c.Mirrors[0].Trouble, "was forgotten") && c.Mirrors[0].Role != mgmt.RolePrimary
	})
	s.stop("a")
	for _, name := range []string{"a", "b"} {
		if err := os.RemoveAll(s.path(name, "consensus/mirrors/disk")); err != nil {
			t.Fatal(err)
		}
	}
	s.start("a")
	for _, name := range []string{"b", "w"} {
		s.write(name, s.text)
		s.must(s.asked(name, "reload")...)
	}
	s.level("w")
}
