package debian

import (
	"crypto/sha256"
	"encoding/hex"
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
	return fetch(filepath.Join(dir, suite), suite, packages, "download")
}

// FetchRoot is FetchFrom for packages with all that they depend on: a root file system, in which nothing has been configured. It
// is another directory for other packages.
func FetchRoot(dir, suite string, packages ...string) (string, error) {
	sum := sha256.Sum256([]byte(strings.Join(packages, " ")))
	return fetch(filepath.Join(dir, suite+"-"+hex.EncodeToString(sum[:6])), suite, packages, "install", "-y", "--download-only")
}

// fetch has apt-get download packages with the command, and unpacks what is new in root.
func fetch(root, suite string, packages []string, command ...string) (string, error) {
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
	for _, d := range []string{"lists/partial", "cache", "debs/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o755); err != nil {
			return "", err
		}
	}
	for name, text := range map[string]string{"sources.list": source, "status": ""} { // nothing is installed there
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	if tmp, err = filepath.Abs(tmp); err != nil {
		return "", err
	}
	apt := func(program string, args ...string) (string, error) {
		return Run(filepath.Join(tmp, "debs"), program, append([]string{
			"-q", "-o", "Dir::Etc::sourcelist=" + tmp + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
			"-o", "Dir::State::lists=" + tmp + "/lists", "-o", "Dir::State::status=" + tmp + "/status",
			"-o", "Dir::Cache=" + tmp + "/cache", "-o", "Dir::Cache::archives=" + tmp + "/debs",
			"-o", "APT::Install-Recommends=false", "-o", "Debug::NoLocking=true",
			"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		}, args...)...)
	}
	_, err = apt("apt-get", "update")
	if i := slices.Index(packages, anyKernel); i >= 0 && err == nil {
		packages = slices.Clone(packages)
		packages[i], err = dependency(apt("apt-cache", "depends", anyKernel))
	}
	if err == nil {
		_, err = apt("apt-get", slices.Concat(command, packages)...)
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
