// Package debian fetches packages of Debian's that are unpacked, not installed: the kernel, for virtual
// machines and the appliance, and programs of other releases.
package debian

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	Image   string // the file that is booted
	Modules string // the directory of its modules, lib/modules/VERSION
	Version string
}

// KernelDir returns the directory for kernels that all checkouts of a user share, and what is made of a kernel alone: to
// unpack one takes ten seconds of a processor.
func KernelDir() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "oneshot-kernels"), err
}

// Fetch returns the kernel that linux-image-amd64 stands for, from dir, or downloads it and unpacks it there. Several
// processes may do so at once: each works aside, and what is complete gets its name.
func Fetch(dir string) (*Kernel, error) {
	deb, err := download(dir)
	if err != nil {
		return nil, err
	}
	root := strings.TrimSuffix(deb, ".deb")
	if _, err := os.Stat(root); err != nil {
		if err := unpack(deb, root); err != nil {
			return nil, err
		}
	}
	return kernelIn(root)
}

// FetchKernelFrom is Fetch for the kernel of another release of Debian.
func FetchKernelFrom(dir, suite string) (*Kernel, error) {
	root, err := FetchFrom(dir, suite, anyKernel)
	if err != nil {
		return nil, err
	}
	return kernelIn(root)
}

// kernelIn returns the kernel that is unpacked in root.
func kernelIn(root string) (*Kernel, error) {
	kernels, _ := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if len(kernels) != 1 {
		return nil, fmt.Errorf("%s holds %d kernels", root, len(kernels))
	}
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	modules := filepath.Join(root, "lib/modules", version)
	if _, err := os.Stat(modules); err != nil { // of releases without a directory lib of its own
		modules = filepath.Join(root, "usr/lib/modules", version)
	}
	return &Kernel{Image: kernels[0], Modules: modules, Version: version}, nil
}

// download returns the path of the kernel's package in dir.
func download(dir string) (string, error) {
	name, err := dependency(Run(".", "apt-cache", "depends", anyKernel))
	if err != nil {
		return "", err
	}
	if debs, _ := filepath.Glob(filepath.Join(dir, name+"_*.deb")); len(debs) > 0 {
		return debs[0], nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "download")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if _, err := Run(tmp, "apt-get", "-q", "download", name); err != nil {
		return "", err
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, name+"_*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s leaves %d packages", name, len(debs))
	}
	deb := filepath.Join(dir, filepath.Base(debs[0]))
	return deb, os.Rename(debs[0], deb)
}

// anyKernel is the package that depends on the kernel of its release.
const anyKernel = "linux-image-amd64"

// dependency is the first package in what apt-cache depends says.
func dependency(out string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	_, name, found := strings.Cut(out, "Depends: ")
	if !found {
		return "", fmt.Errorf("%s depends on nothing; is apt-get update needed?\n%s", anyKernel, out)
	}
	return strings.Fields(name)[0], nil
}

// unpack unpacks a package in root, unless another process has been quicker.
func unpack(deb, root string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(root), "unpacked")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if _, err := Run(".", "dpkg-deb", "-x", deb, tmp); err != nil {
		return err
	}
	err = os.Rename(tmp, root)
	if _, there := os.Stat(root); there == nil {
		return nil
	}
	return err
}

// Run runs a program in dir and returns its output, which is part of the error if it fails.
func Run(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
