package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/config/configtest"
)

// hidden are values that the summary does not show: secrets, the groups of portals that are in none, those for partitions and objects, the address of one that is a socket, who reads the file, the device of a
// transport without one and the watchdog of no keeper.
var hidden = regexp.MustCompile(`\.Secret$|\.Auth\.(Host|Controller)$|^\.Portals\[[679]\]\.Group$|^\.Portals\[9\]\.Listen$|^\.Cluster\.(Self|Device|Keeper\.Watchdog)$`)

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

// TestCheckNode: with a node check shows what that one serves, and misses its files, those of its copies too.
func TestCheckNode(t *testing.T) {
	s := newSiteOf(t, mirrorSite)
	path := s.path("a", "t.yaml")
	all := s.must("check", "--config", path)
	for _, want := range []string{"disk ", s.at[3], s.at[4], "node a", "node b", "not kept: the cluster keeps the reservations of mirrors\n"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	on := s.must("check", "--config", path, "--node", "b")
	if !strings.Contains(on, s.at[4]) || strings.Contains(on, s.at[3]) || !regexp.MustCompile(`node b +\S+ +the stores, targets and portals above are its own\n`).MatchString(on) {
		t.Errorf("of b:\n%s", on)
	}
	if strings.Contains(all, "warning") {
		t.Errorf("warnings about files of other machines:\n%s", all)
	}
	if warns := s.must("check", "--config", path, "--node", "a"); !strings.Contains(warns, "could not open the store \"disk\"") {
		t.Errorf("no warning about the directory that is missing:\n%s", warns)
	}
	if on := s.must("check", "--config", path, "--node", "w"); strings.Contains(on, "disk") || strings.Contains(on, s.at[3]) {
		t.Errorf("of the witness:\n%s", on)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.write("a", strings.Replace(string(text), "b: {", "b: {fence: [/no/such/program], ", 1)) // a takes over from b, and w from nobody
	if warns := s.must("check", "--config", path, "--node", "a"); !strings.Contains(warns, "this machine could not fence the node b") {
		t.Errorf("no warning about the program that is missing:\n%s", warns)
	}
	if on := s.must("check", "--config", path, "--node", "w"); strings.Contains(on, "warning") {
		t.Errorf("a witness fences nobody:\n%s", on)
	}
	s.fails("there is no node \"c\" in the cluster lab", "check", "--config", path, "--node", "c")
}

const mirrorSite = `
stores:
  disk: {type: mirror, size: 16MiB, copies: {a: {type: file, path: missing/disk.img}, b: {type: file, path: disk.img}}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: disk}}
portals:
  - {node: a, listen: "AT3", group: 1}
  - {node: b, listen: "AT4", group: 2}
`
