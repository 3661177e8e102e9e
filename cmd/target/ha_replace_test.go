//go:build !race

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"oneshot/mgmt"
)

// TestReplaceUp: a node that is up is not replaced for a name that was mistyped, whichever node is asked, itself among them. Nothing has changed then. Who
// means it says so, and so does who ends it first.
func TestReplaceUp(t *testing.T) {
	s := newMirror(t)
	s.level("w")
	for _, c := range []struct{ at, node, says string }{
		{"w", "b", "node b is up, and its copy of disk is in sync"},
		{"b", "b", "node b is up, and its copy of disk is in sync"},
		{"a", "w", "node w is up;"},
		{"a", "b", "add --up"},
	} {
		s.fails(c.says, s.asked(c.at, "ha", "replace", c.node)...)
	}
	s.until("w", "nothing has changed", allUp)
	leaves := func(c *mgmt.Cluster) bool {
		for _, m := range c.Members {
			if m.Leaving {
				return true
			}
		}
		return false
	}
	s.untilCluster("w", "nobody leaves", func(c *mgmt.Cluster) bool {
		if leaves(c) {
			t.Error("a node leaves that was refused to")
		}
		return true
	})

	s.kill("b") // not known to the others yet, perhaps
	said := s.must(s.asked("w", "ha", "replace", "b")...)
	s.untilCluster("w", "b leaves", leaves)
	join := regexp.MustCompile(`--token (\w+)\n`).FindStringSubmatch(said)
	if join == nil {
		t.Fatalf("replace says %s", said)
	}
	for _, name := range []string{"consensus", "disk.img"} {
		s.empty("b", name)
	}
	s.must(s.on("b", "ha", "join", "--token", join[1])...)
	s.start("b")
	s.level("w")

	s.must(s.asked("w", "ha", "replace", "b", "--up")...)
	s.untilCluster("b", "b is refused", func(c *mgmt.Cluster) bool { return strings.Contains(c.Trouble, "was replaced or removed") })
}

// empty removes a directory or a file of a node.
func (s *site) empty(name, what string) {
	s.t.Helper()
	if err := os.RemoveAll(s.path(name, what)); err != nil {
		s.t.Fatal(err)
	}
}
