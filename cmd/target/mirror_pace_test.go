//go:build !race

package main

import (
	"os"
	"strings"
	"testing"

	"oneshot/mgmt"
)

// TestMirrorPace: a copy is brought level at the pace of the configuration, which a reload changes at once; target ha status tells of both.
func TestMirrorPace(t *testing.T) {
	s := newSiteOf(t, strings.Replace(mirrorText, "type: mirror,", "type: mirror, resync: {rate: 64KiB/s}, ", 1)) // all of it takes four minutes
	s.startAll()
	s.untilCluster("a", "a copy is brought level", func(c *mgmt.Cluster) bool {
		m := &c.Mirrors[0]
		return m.Role == mgmt.RolePrimary && strings.Contains(copiesText(m), "b resync (")
	})
	if said := s.must(s.asked("a", "ha", "status")...); !strings.Contains(said, "at up to 64KiB/s (resync.rate)") {
		t.Errorf("%s", said)
	}
	text, err := os.ReadFile(s.path("a", "t.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("a", strings.Replace(string(text), "rate: 64KiB/s", "rate: auto", 1))
	if said := s.must(s.asked("a", "reload")...); !strings.Contains(said, `copies of the mirror "disk" are brought level as fast as can be, and at 20MiB/s while hosts are busy`) {
		t.Errorf("%s", said)
	}
	s.untilCluster("a", "the other pace is in force", func(c *mgmt.Cluster) bool {
		r := c.Mirrors[0].Resync
		return r != nil && r.Rate == 0 && r.Min == 20<<20
	})
	if primary := s.level("a"); primary != "a" {
		t.Errorf("%s is primary", primary)
	}
}
