package vm

import "path/filepath"

// buildVerbs builds in dir what uses the kernel's RDMA devices in the guest itself, and adds it to
// the files there: the tests of the provider and of partitions and of nodes over it, the daemon and the initiator. They have no
// tables for debuggers, for each octet of an initramfs is unpacked by an emulated processor.
func buildVerbs(dir string, files map[string]string) error {
	for name, args := range map[string][]string{
		"verbs.test":  {"test", "-c", "-ldflags=-s -w", "-tags", "verbs,guest", "-o", filepath.Join(dir, "verbs.test"), "oneshot/transport/rdma/verbs"},
		"remote.test": {"test", "-c", "-ldflags=-s -w", "-tags", "verbs,guest", "-o", filepath.Join(dir, "remote.test"), "oneshot/transport/rdma/remote"},
		"fabric.test": {"test", "-c", "-ldflags=-s -w", "-tags", "verbs,guest", "-o", filepath.Join(dir, "fabric.test"), "oneshot/ha/fabric"},
		"target":      {"build", "-ldflags=-s -w", "-tags", "verbs", "-o", filepath.Join(dir, "target"), "oneshot/cmd/target"},
		"initiator":   {"build", "-ldflags=-s -w", "-tags", "verbs", "-o", filepath.Join(dir, "initiator"), "oneshot/cmd/initiator"},
	} {
		if _, err := run(".", "go", args...); err != nil {
			return err
		}
		files[filepath.Join(dir, name)] = "bin/" + name
	}
	return nil
}
