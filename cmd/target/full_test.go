package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/mgmt"
)

// fullDisk is a standard output that takes nothing.
type fullDisk struct{}

var errFull = errors.New("no space left on device")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// fillingDisk takes one more write.
type fillingDisk struct{ has bytes.Buffer }

func (d *fillingDisk) Write(b []byte) (int, error) {
	if d.has.Len() > 0 {
		return 0, errFull
	}
	return d.has.Write(b)
}

// A command whose output is lost fails, though it has done what it was asked for: a script that keeps the output has nothing, and tokens that were
// printed nowhere have to be made again.
func TestOutputIsLost(t *testing.T) {
	if err := writeReload(fullDisk{}, &mgmt.Reload{Done: []string{"target a added"}}); !errors.Is(err, errFull) {
		t.Errorf("reload: %v", err)
	}
	path := filepath.Join(t.TempDir(), "t.yaml")
	err := os.WriteFile(path, []byte(`
cluster: {name: lab, state: consensus, nodes: {a: {address: "127.0.0.1:9"}, b: {address: "127.0.0.2:9"}}}
stores: {m: {type: memory, size: 1MiB}}
targets: [{node: a, iqn: "iqn.2026-11.example.oneshot:demo", luns: {0: m}}]
portals: [{node: a, listen: "127.0.0.1:0"}]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var bad bytes.Buffer
	status := run("target", []string{"ha", "init", "--config", path, "--node", "a"}, fullDisk{}, &bad)
	if status != exitError || !strings.Contains(bad.String(), errFull.Error()) {
		t.Errorf("ha init: %d %s", status, bad.String())
	}
}

// TestForceOutputIsLost: nothing is forced if what would be lost is shown to nobody. If what to do next is lost, force says that it has taken place, and fails.
func TestForceOutputIsLost(t *testing.T) {
	s := newSite(t)
	s.startAll()
	for _, name := range []string{"a", "b", "w"} {
		s.kill(name)
	}
	args := s.on("b", "ha", "force", "--confirm", "lab")
	var bad bytes.Buffer
	if status := run("target", args, fullDisk{}, &bad); status != exitError || !strings.Contains(bad.String(), "nothing was changed") || !strings.Contains(bad.String(), errFull.Error()) {
		t.Errorf("nobody has seen what would be lost: %d %s", status, bad.String())
	}
	bad.Reset()
	out := new(fillingDisk)
	if status := run("target", args, out, &bad); status != exitError || !strings.Contains(out.has.String(), "would be the only member") || !strings.Contains(bad.String(), "was forced to go on") {
		t.Errorf("nobody has seen what to do next: %d %s %s", status, out.has.String(), bad.String())
	}
	s.fails("is the only member of the cluster already", args...)
}
