package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"oneshot/internal/debian"
	"oneshot/test/vm/machine"
)

// What the guest needs in addition to the programs that are built here.
var (
	modules = []string{
		"virtio_pci", "virtio_net", "virtio_console", "crc32c_generic", "crc32_generic", "dummy", "sd_mod", "configfs",
		"iscsi_tcp", "ib_iser", "ib_uverbs", "rdma_ucm", "rdma_rxe", "nbd", "target_core_mod", "iscsi_target_mod", "ib_isert",
		"nvme_tcp", "nvme_rdma", "nvmet_tcp", "nvmet_rdma",
	}
	programs = []string{
		"/usr/sbin/iscsid", "/usr/bin/iscsiadm", "/usr/sbin/tgtd", "/usr/sbin/tgtadm", "/usr/bin/fio", "/usr/bin/rdma", "/usr/sbin/nvme",
		"/bin/ip", "/bin/bash", "/bin/mkdir", "/bin/ln", "/usr/bin/truncate",
	}
	files = []string{
		"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver", // loaded by name
		"/lib/x86_64-linux-gnu/libgcc_s.so.1", // libc loads it to end threads
	}
)

// guest is the machine that everything runs in.
type guest struct{ *machine.Machine }

// build builds the image, and returns it and the version of its kernel. With what mirrors need, if they are measured.
func build(o options) (*machine.Image, string, error) {
	cache, err := machine.CacheDir()
	if err != nil {
		return nil, "", err
	}
	k, err := debian.Fetch(cache)
	if err != nil {
		return nil, "", err
	}
	target := filepath.Join(cache, "target")
	if _, err := debian.Run(".", "go", "build", "-tags", "verbs", "-o", target, "oneshot/cmd/target"); err != nil {
		return nil, "", err
	}
	initiator := filepath.Join(cache, "initiator")
	if _, err := debian.Run(".", "go", "build", "-o", initiator, "oneshot/cmd/initiator"); err != nil {
		return nil, "", err
	}
	echo, err := buildEcho(cache)
	if err != nil {
		return nil, "", err
	}
	contents := machine.Contents{
		Modules: modules, Programs: programs, Files: map[string]string{target: "bin/target", initiator: "bin/initiator", echo: "bin/echo"},
	}
	for _, f := range files {
		contents.Files[f] = f[1:]
	}
	contents.Files[filepath.Join(k.Modules, "kernel/drivers/block/brd.ko")] = "brd.ko" // loaded with parameters
	if o.mirror || o.failover {
		contents.Modules = append(slices.Clone(modules), "drbd", "target_core_iblock", "dm_mod")
		contents.Programs = append(slices.Clone(programs), "/sbin/drbdadm", "/sbin/drbdsetup", "/sbin/drbdmeta", "/sbin/dmsetup")
		for _, f := range []string{"/lib/drbd/drbdadm-84", "/lib/drbd/drbdsetup-84"} { // what drbdadm runs for the kernel's DRBD
			contents.Files[f] = f[1:]
		}
	}
	if o.failover {
		contents.Modules = append(contents.Modules, "virtio_blk", "ext4")
		contents.Programs = append(contents.Programs, "/usr/sbin/keepalived", "/usr/bin/arping")
	}
	img, err := machine.Build(cache, k, contents)
	return img, k.Version, err
}

// started returns a machine that has been booted, if it has.
func started(m *machine.Machine, err error) (*guest, error) {
	if err != nil {
		return nil, err
	}
	return &guest{m}, nil
}

// runTime is a limit that only a machine that hangs reaches.
const runTime = 2 * time.Minute

// run runs a command in the guest, which has to succeed, and returns its output.
func (g *guest) run(argv ...string) (string, error) {
	c, err := g.Start(argv...)
	if err != nil {
		return "", err
	}
	out, err := c.Wait(runTime)
	if err == nil && c.Exit != 0 {
		err = fmt.Errorf("%s: exit %d\n%s", strings.Join(argv, " "), c.Exit, out)
	}
	return out, err
}

// runAll runs commands; spaces separate their words.
func (g *guest) runAll(commands ...string) error {
	for _, c := range commands {
		if _, err := g.run(strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}

// write makes a file.
func (g *guest) write(path, text string) error {
	_, err := g.run("@write", path, text)
	return err
}

// load returns the host's load average over one minute.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(b))[0]
}
