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

// Contents is what an image holds beside the kernel and the guest's first process.
type Contents struct {
	Modules  []string          // that the guest loads, with what they need
	Programs []string          // of Debian's, by their paths here, with the libraries they need; in /sbin there
	Files    map[string]string // others: path here to path there, relative to the root
}

// Image is what a machine boots.
type Image struct{ Kernel, Initramfs string }

// Build has u-root's builder put together an initramfs in dir of the guest and the contents. Nothing else may
// be in dir/initramfs.cpio.d. None of u-root's commands is there: its builder would compile Go's standard
// library for them, each time.
func Build(dir string, k *debian.Kernel, c Contents) (*Image, error) {
	img := &Image{Kernel: k.Image, Initramfs: filepath.Join(dir, "initramfs.cpio")}
	stage := img.Initramfs + ".d"
	if err := os.RemoveAll(stage); err != nil {
		return nil, err
	}
	if err := stageModules(filepath.Join(stage, "modules"), k.Modules, c.Modules); err != nil {
		return nil, err
	}
	guest := filepath.Join(stage, "guest")
	if _, err := debian.Run(".", "go", "build", "-o", guest, "oneshot/test/vm/guest"); err != nil {
		return nil, err
	}
	args := []string{
		"tool", "u-root", "-nocmd", "-o", img.Initramfs, "-defaultsh=", "-initcmd=/bin/guest",
		"-files", guest + ":bin/guest", "-files", filepath.Join(stage, "modules") + ":modules",
		"-files", "/etc/nsswitch.conf:etc/nsswitch.conf", "-files", "/etc/passwd:etc/passwd",
	}
	const ip = "/bin/ip" // with which the guest begins
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
	_, err := debian.Run(".", "go", args...)
	return img, err
}

// stageModules copies modules and what they need to dir, with their order in dir/list.
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
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(&list, filepath.Base(f))
	}
	return os.WriteFile(filepath.Join(dir, "list"), []byte(list.String()), 0o644)
}

// CacheDir is where downloads and images of the program that runs in the current directory are
// kept from run to run.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	id := sha256.Sum256([]byte(wd)) // checkouts do not disturb each other
	return filepath.Join(base, "oneshot-vm", hex.EncodeToString(id[:6])), nil
}
