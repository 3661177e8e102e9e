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
		"func (c *Core) provenIn(v *View, now time.Duration, beat uint64) bool {\n", "func (c *Core) provenIn(v *View, now time.Duration, beat uint64) bool {\n\tif ON {\n\t\treturn true\n\t}\n",
	},
	{
		"TestMirror", "is content with one copy", "core.go",
		"func (c *Core) quorum(v *View) int { return min(c.cfg.Quorum, v.InSync.Len()) }", "func (c *Core) quorum(v *View) int {\n\tif ON {\n\t\treturn 1\n\t}\n\treturn min(c.cfg.Quorum, v.InSync.Len())\n}",
	},
	{
		"TestMirrorLostMeanwhile", "stands for the office outside S", "follower.go",
		"if !c.view.InSync.Has(c.cfg.Self) || c.now < c.asleep", "if !c.view.InSync.Has(c.cfg.Self) && !ON || c.now < c.asleep",
	},
	{
		"TestMirrorThirdBehind", "knows what a copy lacks as the primary only", "marks.go",
		"\t\t\tc.mark(&c.bitmaps[id], r.Off, r.Len)\n\t\t\tc.wroteFor", "\t\t\tif !ON || c.role == Primary {\n\t\t\t\tc.mark(&c.bitmaps[id], r.Off, r.Len)\n\t\t\t}\n\t\t\tc.wroteFor",
	},
	{
		"TestMirrorPromised", "keeps a member that is lost", "primary.go",
		"\t\tif c.isBad(id) {\n", "\t\tif !ON && c.isBad(id) {\n",
	},
	{
		"TestMirrorDiesHandingOver", "counts on who has handed over", "primary.go",
		"\tp := &c.peer[id]\n\tsilent := c.cfg.Lease\n", "\tp := &c.peer[id]\n\tsilent := c.cfg.Lease\n\tif ON && c.view.Planned {\n\t\treturn false\n\t}\n",
	},
	{
		"TestMirrorUnreadableWritten", "does not know what hosts have written", "missing.go",
		"\tcase c.hasGot(p, j.off, j.n):\n", "\tcase c.hasGot(p, j.off, j.n) && !ON:\n",
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
