// Package vm tests the target with the initiator that matters most: Linux's own. A virtual
// machine under software emulation boots Debian's kernel with an initramfs that u-root's
// builder makes, and does with the target what people do with disks.
package vm

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

// modules that the guest loads, with what they need.
var modules = []string{
	"virtio_pci", "virtio_net", "virtio_console", "crc32c_generic", "iscsi_tcp", "sd_mod", "ext4", "xfs",
	"siw", "ib_iser", "ib_uverbs", "rdma_ucm", "crc32_generic", "rdma_rxe", "dummy", "dm_mod", "dm_multipath", "dm_round_robin",
}

// programs of Debian's that the guest runs, with the libraries they need.
var programs = []string{
	"/usr/sbin/iscsid", "/usr/bin/iscsiadm", "/sbin/mkfs.ext4", "/sbin/mkfs.xfs", "/sbin/e2fsck", "/sbin/xfs_repair", "/sbin/fstrim", "/usr/bin/rdma",
	"/bin/ip", "/bin/bash", "/usr/bin/rping", "/sbin/dmsetup", "/usr/bin/timeout", "/usr/bin/env", "/usr/bin/iscsi-inq", "/usr/bin/iscsi-test-cu",
}

// files that the guest has where the host has them: drivers of RDMA devices, which libibverbs
// loads by name.
var files = []string{
	"/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so", "/etc/libibverbs.d/siw.driver",
	"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver",
	"/lib/x86_64-linux-gnu/libgcc_s.so.1", // libc loads it to end threads
}

// image is what a machine boots.
type image struct{ kernel, initramfs string }

// buildImage makes the image in dir, or finds it there.
func buildImage(dir string) (*image, error) {
	k, err := debian.Fetch(dir)
	if err != nil {
		return nil, err
	}
	if err := buildSiw(dir, k.Modules); err != nil {
		return nil, err
	}
	img := &image{kernel: k.Image, initramfs: filepath.Join(dir, "initramfs.cpio")}
	return img, buildInitramfs(img.initramfs, k.Modules)
}

// buildInitramfs has u-root's builder put together our guest, a few commands of u-root's,
// Debian's programs and the modules.
func buildInitramfs(out, moduleDir string) error {
	stage := out + ".d"
	if err := os.RemoveAll(stage); err != nil {
		return err
	}
	if err := stageModules(filepath.Join(stage, "modules"), moduleDir); err != nil {
		return err
	}
	guest := filepath.Join(stage, "guest")
	if _, err := run(".", "go", "build", "-trimpath", "-o", guest, "./guest"); err != nil {
		return err
	}
	forgiving := filepath.Join(stage, "forgiving.so")
	if _, err := run(".", "gcc", "-O1", "-shared", "-fPIC", "-o", forgiving, "testdata/forgiving.c"); err != nil {
		return err
	}
	if err := buildVerbs(stage); err != nil {
		return err
	}
	args := []string{
		"tool", "u-root", "-o", out, "-defaultsh=", "-initcmd=/bin/guest",
		"-files", guest + ":bin/guest", "-files", filepath.Join(stage, "verbs.test") + ":bin/verbs.test", "-files", filepath.Join(stage, "target") + ":bin/target",
		"-files", filepath.Join(stage, "initiator") + ":bin/initiator",
		"-files", "../../scripts/soft-roce.sh:bin/soft-roce.sh",
		"-files", forgiving + ":lib/forgiving.so", "-files", filepath.Join(stage, "modules") + ":modules",
		"-files", "/etc/nsswitch.conf:etc/nsswitch.conf", "-files", "/etc/passwd:etc/passwd",
	}
	for _, p := range programs {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return fmt.Errorf("the guest needs %s: %w; run make deps", p, err)
		}
		args = append(args, "-files", real+":sbin/"+filepath.Base(p))
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("the guest needs %w; run make deps", err)
		}
		args = append(args, "-files", f+":"+f[1:])
	}
	_, err := run(".", "go", append(args, "github.com/u-root/u-root/cmds/core/ip", "github.com/u-root/u-root/cmds/core/dmesg")...)
	return err
}

// stageModules copies modules and what they need to dir, with their order in dir/list.
func stageModules(dir, from string) error {
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

func run(dir, name string, args ...string) (string, error) { return debian.Run(dir, name, args...) }

// cacheDir is where downloads and images are kept from run to run.
func cacheDir() (string, error) {
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
