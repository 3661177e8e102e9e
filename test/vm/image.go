// Package vm tests the target with the initiator that matters most: Linux's own. A virtual machine under
// software emulation boots Debian's kernel with an initramfs that u-root's builder makes, and uses disks of
// the target.
package vm

import (
	"os"
	"path/filepath"

	"oneshot/internal/debian"
	"oneshot/test/vm/machine"
)

// modules lists the modules that the guest loads, in addition to those that these need.
var modules = []string{
	"virtio_pci", "virtio_net", "virtio_console", "virtio_blk", "crc32c_generic", "iscsi_tcp", "sd_mod", "ext4", "xfs",
	"siw", "ib_iser", "ib_uverbs", "rdma_ucm", "crc32_generic", "rdma_rxe", "dummy", "dm_mod", "dm_delay", "dm_multipath", "dm_round_robin", "dm_service_time",
	"scsi_dh_alua", "sg", "nbd", "nvme_tcp", "nvme_rdma", "i6300esb",
}

// programs lists programs of Debian that the guest runs.
var programs = []string{
	"/usr/sbin/iscsid", "/usr/bin/iscsiadm", "/sbin/mkfs.ext4", "/sbin/mkfs.xfs", "/sbin/e2fsck", "/sbin/xfs_repair", "/sbin/fstrim", "/sbin/blkdiscard", "/usr/bin/rdma",
	"/bin/ip", "/bin/dmesg", "/bin/bash", "/usr/bin/rping", "/sbin/dmsetup", "/usr/bin/timeout", "/usr/bin/setpriv", "/usr/bin/env", "/usr/bin/iscsi-inq", "/usr/bin/iscsi-test-cu",
	"/lib/systemd/systemd-udevd", "/bin/udevadm", "/sbin/multipathd", "/sbin/multipath",
	"/usr/bin/fio", "/usr/bin/sg_raw", "/sbin/resize2fs", "/usr/sbin/xfs_growfs",
	"/usr/bin/sg_compare_and_write", "/usr/bin/sg_get_lba_status", "/usr/bin/sg_inq", "/usr/bin/sg_logs", "/usr/bin/sg_luns", "/usr/bin/sg_modes",
	"/usr/bin/sg_opcodes", "/usr/bin/sg_persist", "/usr/bin/sg_prevent", "/usr/bin/sg_readcap", "/usr/bin/sg_requests", "/usr/bin/sg_rtpg", "/usr/bin/sg_sanitize",
	"/usr/bin/sg_start", "/usr/bin/sg_stpg", "/usr/bin/sg_turs", "/usr/bin/sg_unmap", "/usr/bin/sg_verify", "/usr/bin/sg_vpd", "/usr/bin/sg_write_same",
	"/usr/bin/sg_write_x", "/usr/bin/sg_xcopy", "/usr/sbin/nvme",
}

// files lists files that the guest has at the same paths as the host: drivers of RDMA devices, which
// libibverbs loads by name.
var files = []string{
	"/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so", "/etc/libibverbs.d/siw.driver",
	"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver",
	"/lib/x86_64-linux-gnu/libgcc_s.so.1", // libc loads it to end threads
	"/lib/multipath/libchecktur.so", "/lib/multipath/libprioalua.so", "/lib/multipath/libprioconst.so", "/lib/multipath/libpriosysfs.so",
	"/lib/udev/rules.d/50-udev-default.rules", "/lib/udev/rules.d/55-dm.rules", "/lib/udev/rules.d/56-dm-mpath.rules",
	"/lib/udev/rules.d/60-multipath.rules", "/lib/udev/rules.d/60-persistent-storage.rules", "/lib/udev/rules.d/95-dm-notify.rules",
	"/lib/udev/scsi_id",
}

// buildImage makes the image of the tests in dir.
func buildImage(dir string) (*machine.Image, error) {
	kernels, err := debian.KernelDir()
	if err != nil {
		return nil, err
	}
	k, err := debian.Fetch(kernels)
	if err != nil {
		return nil, err
	}
	if err := buildSiw(kernels, k.Modules); err != nil {
		return nil, err
	}
	built := filepath.Join(dir, "built")
	if err := os.MkdirAll(built, 0o755); err != nil {
		return nil, err
	}
	contents := machine.Contents{Modules: modules, Programs: programs, Files: make(map[string]string)}
	for _, f := range files {
		contents.Files[f] = f[1:]
	}
	contents.Files["../../scripts/soft-roce.sh"] = "bin/soft-roce.sh"
	if err := buildVerbs(built, contents.Files); err != nil {
		return nil, err
	}
	forgiving := filepath.Join(built, "forgiving.so")
	if _, err := run(".", "gcc", "-O1", "-shared", "-fPIC", "-o", forgiving, "testdata/forgiving.c"); err != nil {
		return nil, err
	}
	contents.Files[forgiving] = "lib/forgiving.so"
	contents.StandIns = filepath.Join(built, "standin")
	if err := buildStandIns(contents.StandIns, "/usr/bin/fio"); err != nil {
		return nil, err
	}
	return machine.Build(dir, k, contents)
}

func run(dir, name string, args ...string) (string, error) { return debian.Run(dir, name, args...) }
