package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"oneshot/internal/debian"
)

// Contents lists what an image holds in addition to the kernel and the guest's first process.
type Contents struct {
	Modules  []string          // modules that the guest loads, with those that they need
	Programs []string          // programs of Debian by their paths on the host, with their libraries; in the guest in /sbin
	Files    map[string]string // other files: from paths on the host to paths in the guest, relative to the root
	StandIns string            // directory of libraries in the place of the host's, which are left out; in the guest in /lib/standin
}

// Image is a kernel and an initramfs that a machine boots.
type Image struct{ Kernel, Initramfs string }

// Build makes an initramfs in dir, with u-root's builder, of test/vm/guest and the contents. Nothing else may be in
// dir/initramfs.cpio.d. The image has none of u-root's commands, because for them the builder would compile Go's
// standard library each time.
func Build(dir string, k *debian.Kernel, c Contents) (*Image, error) {
	kernel, err := Unpacked(filepath.Dir(k.Image), k.Image)
	if err != nil {
		return nil, err
	}
	img := &Image{Kernel: kernel, Initramfs: filepath.Join(dir, "initramfs.cpio")}
	stage := img.Initramfs + ".d"
	if err := os.RemoveAll(stage); err != nil {
		return nil, err
	}
	if err := stageModules(filepath.Join(stage, "modules"), k.Modules, c.Modules); err != nil {
		return nil, err
	}
	guest := filepath.Join(stage, "guest")
	if _, err := debian.Run(".", "go", "build", "-ldflags=-s -w", "-o", guest, "oneshot/test/vm/guest"); err != nil {
		return nil, err
	}
	args := []string{
		"tool", "u-root", "-nocmd", "-o", img.Initramfs, "-defaultsh=", "-initcmd=/bin/guest",
		"-files", guest + ":bin/guest", "-files", filepath.Join(stage, "modules") + ":modules",
		"-files", "/etc/nsswitch.conf:etc/nsswitch.conf", "-files", "/etc/passwd:etc/passwd",
	}
	const ip = "/bin/ip" // the first program that the guest runs
	if !slices.Contains(c.Programs, ip) {
		c.Programs = append(slices.Clip(c.Programs), ip)
	}
	for _, p := range c.Programs {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return nil, fmt.Errorf("the guest needs %s: %w; run make deps", p, err)
		}
		args = append(args, "-files", real+":sbin/"+filepath.Base(p))
	}
	for here, there := range c.Files {
		if _, err := os.Stat(here); err != nil {
			return nil, fmt.Errorf("the guest needs %w; run make deps", err)
		}
		args = append(args, "-files", here+":"+there)
	}
	command := "go"
	if c.StandIns != "" {
		libraries, err := filepath.Glob(filepath.Join(c.StandIns, "*.so*"))
		if err != nil {
			return nil, err
		}
		for _, l := range libraries {
			args = append(args, "-files", l+":lib/standin/"+filepath.Base(l))
		}
		// u-root asks the loader for the libraries of programs.
		command, args = "env", append([]string{"LD_LIBRARY_PATH=" + c.StandIns, "go"}, args...)
	}
	_, err = debian.Run(".", command, args...)
	return img, err
}

// stageModules copies modules, and the modules that they need, to dir, without what only costs, and writes their order to
// dir/list.
func stageModules(dir, from string, modules []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	needs, err := debian.Needs(from, modules)
	if err != nil {
		return err
	}
	var order []string
	for _, files := range needs {
		for _, f := range slices.Backward(files) { // the last one listed is needed first
			if !slices.Contains(order, f) {
				order = append(order, f)
			}
		}
	}
	var list strings.Builder
	for _, f := range order {
		b, err := os.ReadFile(filepath.Join(from, f))
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.Base(f))
		if err := os.WriteFile(to, b, 0o644); err != nil {
			return err
		}
		if plain, packed := strings.CutSuffix(to, ".xz"); packed { // as in Debian 13
			if _, err := debian.Run(dir, "xz", "-d", to); err != nil {
				return err
			}
			to = plain
		}
		if err := lighten(to); err != nil {
			return err
		}
		fmt.Fprintln(&list, filepath.Base(to))
	}
	return os.WriteFile(filepath.Join(dir, "list"), []byte(list.String()), 0o644)
}

// CacheDir returns the directory that keeps downloads and images from run to run, for programs that run in
// the current directory.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	id := sha256.Sum256([]byte(wd)) // each checkout has a directory of its own
	return filepath.Join(base, "oneshot-vm", hex.EncodeToString(id[:6])), nil
}
