package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FetchFrom returns a directory below dir into which packages of another release of Debian are
// unpacked, downloading them if they are not there. They come from where apt-get gets those of this
// machine, signed by keys that it trusts, and apt-get's own lists and packages stay as they are.
// linux-image-amd64 stands for the kernel that it depends on.
func FetchFrom(dir, suite string, packages ...string) (string, error) {
	root := filepath.Join(dir, suite)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	source, err := sourceOf(suite)
	if err != nil {
		return "", err
	}
	tmp := root + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "debs", "root"} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "sources.list"), []byte(source), 0o644); err != nil {
		return "", err
	}
	if tmp, err = filepath.Abs(tmp); err != nil {
		return "", err
	}
	apt := func(program string, args ...string) (string, error) {
		return Run(filepath.Join(tmp, "debs"), program, append([]string{
			"-q", "-o", "Dir::Etc::sourcelist=" + tmp + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
			"-o", "Dir::State::lists=" + tmp + "/lists", "-o", "Dir::Cache=" + tmp + "/cache",
			"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		}, args...)...)
	}
	_, err = apt("apt-get", "update")
	if i := slices.Index(packages, anyKernel); i >= 0 && err == nil {
		packages = slices.Clone(packages)
		packages[i], err = dependency(apt("apt-cache", "depends", anyKernel))
	}
	if err == nil {
		_, err = apt("apt-get", append([]string{"download"}, packages...)...)
	}
	if err != nil {
		return "", fmt.Errorf("packages of %s: %w", suite, err)
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "debs", "*.deb"))
	for _, deb := range debs {
		if _, err := Run(".", "dpkg-deb", "-x", deb, filepath.Join(tmp, "root")); err != nil {
			return "", err
		}
	}
	if err := os.Rename(filepath.Join(tmp, "root"), root); err != nil {
		return "", err
	}
	return root, os.RemoveAll(tmp)
}

// sourceOf is a line for sources.list: suite in the archive that this machine uses.
func sourceOf(suite string) (string, error) {
	out, err := Run(".", "apt-get", "indextargets", "--format", "$(LABEL) $(COMPONENT) $(REPO_URI)", "Identifier: Packages")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Debian" && f[1] == "main" {
			return "deb " + f[2] + " " + suite + " main\n", nil
		}
	}
	return "", fmt.Errorf("apt-get knows no archive of Debian's; is apt-get update needed?\n%s", out)
}
