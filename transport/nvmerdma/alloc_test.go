//go:build !race

package nvmerdma

import (
	"testing"

	"oneshot/nvme"
)

// A command of the hot path allocates nothing in the target, whichever way its data go. Nor does the host of the test, so that
// what the process allocates is the target's.
func TestAllocations(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		h := r.admin().queue(1)
		const n = 4096
		read := h.capsule(rw(nvme.Read, 8, n), h.key(n), nil)
		write := h.capsule(rw(nvme.Write, 8, n), h.key(n), nil)
		inCapsule := h.capsule(rw(nvme.Write, 8, n), nvme.SGL{Length: n, Type: nvme.SGLInCapsule}, pattern(n, 3))
		for name, message := range map[string][]byte{"Read": read, "Write by RDMA Read": write, "Write in a capsule": inCapsule} {
			if l := r.device.Limits(); name == "Write by RDMA Read" && (l.ReadSinkWrite || l.UnguardedRead) {
				continue // each Read has a registration of its own
			}
			once := func() {
				h.send(message)
				if e, ok := h.completion(); !ok || e.Status != nvme.Success {
					t.Fatal(e.Status, ok)
				}
			}
			for range 100 {
				once()
			}
			if got := testing.AllocsPerRun(2000, once); got > 0.1 {
				t.Errorf("%s allocates %.2f times", name, got)
			}
		}
	})
}
