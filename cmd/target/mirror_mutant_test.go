//go:build !race

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/internal/mutants"
)

// haMutants are mistakes in ha/replica that tests of daemons have to find.
var haMutants = []struct{ test, name, file, old, new string }{
	{
		"TestMirrorCut", "answers reads without a proof", "primary.go",
		"func (c *Core) provenIn(v *View, beat uint64) bool {\n", "func (c *Core) provenIn(v *View, beat uint64) bool {\n\tif ON {\n\t\treturn true\n\t}\n",
	},
	{
		"TestMirror", "is content with one copy", "core.go",
		"func (c *Core) quorum(v *View) int { return min(c.cfg.Quorum, v.InSync.Len()) }", "func (c *Core) quorum(v *View) int {\n\tif ON {\n\t\treturn 1\n\t}\n\treturn min(c.cfg.Quorum, v.InSync.Len())\n}",
	},
}

// TestMirrorMutants: the tests of daemons find mistakes in what they stand on. It builds a daemon of its own and takes minutes.
func TestMirrorMutants(t *testing.T) {
	if os.Getenv("ONESHOT_MIRROR_MUTANTS") == "" {
		t.Skip("set ONESHOT_MIRROR_MUTANTS=1 to build a daemon with mistakes")
	}
	var all []mutants.Mutant
	for _, m := range haMutants {
		all = append(all, mutants.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new})
	}
	program := mutants.Build(t, filepath.Join("..", "..", "ha", "replica"), "", all)
	for _, m := range haMutants {
		t.Run(m.name, func(t *testing.T) {
			cmd := exec.Command(program, "-test.run", "^"+m.test+"$", "-test.timeout", "5m")
			cmd.Env = append(os.Environ(), mutants.Variable+"="+m.name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: "+m.test) {
				t.Errorf("%s does not find it: %v: %s", m.test, err, out)
			}
		})
	}
}
