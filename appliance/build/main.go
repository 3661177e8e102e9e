// Command build makes the appliance: an initramfs that boots directly into target serve, and
// the kernel for it, which is Debian's.
//
//	make appliance                  or: go run ./appliance/build [-out DIR]
//
//	qemu-system-x86_64 -m 1024 -kernel bin/appliance/vmlinuz -initrd bin/appliance/initramfs.gz \
//	    -append "console=ttyS0 oneshot.ip=dhcp" -nographic -netdev user,id=n,hostfwd=tcp:127.0.0.1:3260-:3260 -device virtio-net-pci,netdev=n
package main

import (
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"oneshot/internal/debian"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "bin/appliance", "`directory` of the kernel and the initramfs")
	cache := flag.String("cache", "", "`directory` where the programs are kept; default: the one of -out")
	kernels := flag.String("kernels", "", "`directory` where the kernel's package is kept; default: the one of -cache")
	flag.Parse()
	if *cache == "" {
		*cache = *out
	}
	if *kernels == "" {
		*kernels = *cache
	}
	if err := build(*out, *cache, *kernels); err != nil {
		log.Fatal("appliance: ", err)
	}
}

// modules lists drivers for virtual and real machines: networks, RDMA, disks, and what those need.
var modules = []string{
	"virtio_pci", "virtio_net", "virtio_blk", "virtio_scsi", "e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice", "r8169", "tg3", "bnxt_en", "vmxnet3",
	"mlx4_en", "mlx5_core", "rdma_rxe", "ib_uverbs", "rdma_ucm", "mlx4_ib", "mlx5_ib", "irdma", "iw_cxgb4", "qedr",
	"ahci", "nvme", "sd_mod", "megaraid_sas", "mpt3sas",
	"crc32_generic", "crc32c_generic", "crc32c_intel", "ext4", "xfs", "vfat", "nls_ascii", "nls_cp437", "evdev", "button",
}

// commands lists u-root's commands for a user at the console, and for appliance/init.
var commands = []string{"dhclient", "ip", "dmesg", "ls", "cat"}

func build(out, cache, kernels string) (err error) {
	k, err := debian.Fetch(kernels)
	if err != nil {
		return err
	}
	stage, err := os.MkdirTemp("", "appliance")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	tree := filepath.Join(stage, "lib/modules", k.Version)
	if err := stageModules(tree, k.Modules); err != nil {
		return err
	}
	if _, err := debian.Run(".", "depmod", "-b", stage, k.Version); err != nil {
		return err
	}
	bin := filepath.Join(cache, "programs")
	if err := programs(bin); err != nil {
		return err
	}
	cpio := filepath.Join(stage, "initramfs.cpio")
	if err := pack(cpio, bin, tree, k.Version); err != nil {
		return err
	}
	initramfs := filepath.Join(out, "initramfs.gz")
	if err := errors.Join(compress(initramfs, cpio), copyFile(filepath.Join(out, "vmlinuz"), k.Image)); err != nil {
		return err
	}
	i, err := os.Stat(initramfs)
	if err != nil {
		return err
	}
	log.Printf("%s: %d MiB, for %s", initramfs, i.Size()>>20, filepath.Join(out, "vmlinuz"))
	return nil
}

// programs builds the programs of the appliance in bin, which keeps them, so that programs that are up to date are not
// linked again. u-root's builder could build its commands, but it would compile them and Go's standard library each time.
func programs(bin string) error {
	if _, err := debian.Run(".", "pkg-config", "--exists", "libibverbs", "librdmacm"); err != nil {
		return fmt.Errorf("the appliance speaks RDMA through rdma-core, whose headers are not there: apt-get install libibverbs-dev librdmacm-dev ibverbs-providers pkg-config (%w)", err)
	}
	root, err := debian.Run(".", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	version, err := debian.Run(".", filepath.Join(strings.TrimSpace(root), "packaging/version.sh"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X oneshot/internal/version.text=" + strings.TrimSpace(version), "-o", bin + string(filepath.Separator)}
	core := []string{"oneshot/appliance/init"}
	for _, c := range commands {
		core = append(core, "github.com/u-root/u-root/cmds/core/"+c)
	}
	for _, packages := range [][]string{{"-tags", "verbs", "oneshot/cmd/target"}, core} {
		if _, err := debian.Run(".", "go", slices.Concat(args, packages)...); err != nil {
			return err
		}
	}
	return nil
}

// libraries lists shared libraries that are loaded by name: the target loads rdma-core, and libc loads libgcc to end
// threads.
var libraries = []string{
	"/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1",
}

// pack makes the initramfs with u-root's builder, of the programs in bin and the modules in tree. The builder adds the
// libraries that the programs need.
func pack(cpio, bin, tree, version string) error {
	args := []string{
		"tool", "u-root", "-nocmd", "-o", cpio, "-defaultsh=", "-initcmd=/bin/init",
		"-files", tree + ":lib/modules/" + version,
	}
	for _, p := range append([]string{"init", "target"}, commands...) {
		args = append(args, "-files", filepath.Join(bin, p)+":bin/"+p)
	}
	// libibverbs loads the drivers of RDMA devices by name.
	drivers, _ := filepath.Glob("/usr/lib/x86_64-linux-gnu/libibverbs/*.so")
	names, _ := filepath.Glob("/etc/libibverbs.d/*.driver")
	for _, f := range slices.Concat(drivers, names, libraries) {
		real, err := filepath.EvalSymlinks(f)
		if err != nil {
			return fmt.Errorf("the appliance needs %w; run make deps", err)
		}
		args = append(args, "-files", real+":"+f[1:])
	}
	_, err := debian.Run(".", "go", args...)
	return err
}

// stageModules copies modules, and what they need, from the kernel's directory.
func stageModules(to, from string) error {
	needs, err := debian.Needs(from, modules)
	if err != nil {
		return err
	}
	for _, files := range needs {
		for _, f := range files {
			if err := copyFile(filepath.Join(to, f), filepath.Join(from, f)); err != nil {
				return err
			}
		}
	}
	for _, f := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
		if err := copyFile(filepath.Join(to, f), filepath.Join(from, f)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

func compress(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := gzip.NewWriter(f)
	if _, err := io.Copy(z, in); err != nil {
		return err
	}
	return z.Close()
}
