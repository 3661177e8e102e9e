package main

import (
	"regexp"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/config/configtest"
)

// hidden are values that the summary does not show: secrets, the groups of portals that are in none, those for partitions, and who reads the file.
var hidden = regexp.MustCompile(`\.Secret$|^\.Portals\[6\]\.Group$|^\.Cluster\.Self$`)

// What check prints shows every value of a configuration: whatever is changed in full.yaml changes it, and the cluster
// in cluster.yaml.
func TestSummaryMissesNothing(t *testing.T) {
	testSummary(t, "full.yaml", func(path string) bool { return !strings.HasPrefix(path, ".Cluster") })
	testSummary(t, "cluster.yaml", func(path string) bool { return strings.HasPrefix(path, ".Cluster") || strings.HasSuffix(path, ".Node") })
}

func testSummary(t *testing.T, file string, looksAt func(path string) bool) {
	t.Helper()
	load := func() *config.Config {
		c, err := config.Load("../../configs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	summary := func(c *config.Config) string {
		var b strings.Builder
		if err := writeSummary(&b, c); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	before := summary(load())
	for i, l := range configtest.Leaves(load()) {
		if strings.HasPrefix(l.Path, ".Stores") && strings.HasSuffix(l.Path, "].Name") {
			continue // LUNs would show a store that is not there
		}
		if !looksAt(l.Path) {
			continue
		}
		next := load()
		configtest.Leaves(next)[i].Alter(t)
		if same := summary(next) == before; same != hidden.MatchString(l.Path) {
			t.Errorf("%s: it shows in the summary: %t", l.Path, !same)
		}
	}
}
