package vm

import "path/filepath"

// buildVerbs builds what uses the kernel's RDMA devices in the guest itself: the tests of the
// provider, and the daemon.
func buildVerbs(stage string) error {
	const provider = "oneshot/transport/rdma/verbs"
	if _, err := run(".", "go", "test", "-c", "-tags", "verbs,guest", "-o", filepath.Join(stage, "verbs.test"), provider); err != nil {
		return err
	}
	for _, program := range []string{"target", "initiator"} {
		if _, err := run(".", "go", "build", "-tags", "verbs", "-o", filepath.Join(stage, program), "oneshot/cmd/"+program); err != nil {
			return err
		}
	}
	return nil
}
