//go:build blktests

package blktests

import "slices"

// exception is a reason for which tests do not pass.
type exception struct {
	why    string
	other  bool   // they try something else than our programs: that they pass says nothing, either
	kernel string // of which kernel it is true, as in BLKTESTS_KERNEL; empty: of all
	tests  []string
}

// debian12 is the kernel of this release.
const debian12 = "bookworm"

var exceptions = []exception{
	{why: "it is for the transport loop", tests: []string{"nvme/002", "nvme/016", "nvme/017", "nvme/052", "nvme/055"}},
	{why: "it changes Linux's own target while that is in use", other: true, tests: []string{"nvme/030", "nvme/038", "nvme/048", "nvme/051", "nvme/054", "nvme/057", "nvme/058", "nvme/060", "nvme/065"}},
	{why: "its subsystems are called blktests-subsystem-0 and so on, which are no NQNs", tests: []string{"nvme/031"}},
	{why: "it is for drives on PCIe", tests: []string{"nvme/032", "nvme/039", "nvme/046", "nvme/049", "nvme/050", "nvme/053", "nvme/059", "nvme/064", "nvme/066", "nvme/067"}},
	{why: "it passes a drive on PCIe through Linux's target", tests: []string{"nvme/033", "nvme/034", "nvme/035", "nvme/036", "nvme/037"}},
	{why: "it is for network cards that place data", tests: []string{"nvme/056"}},
	{why: "the target has no TLS", tests: []string{"nvme/062", "nvme/063"}},
	{why: "Debian's kernels have no KASAN", tests: []string{"nvme/069"}},
	{why: "it is for Linux 6.16 and later", tests: []string{"nvme/068"}},
	{why: "it sets a size by an ioctl, which the kernel refuses for a device that was made by netlink", tests: []string{"nbd/001"}},
	{why: "this release's kernel has no authentication", kernel: debian12, tests: []string{"nvme/041", "nvme/042", "nvme/043", "nvme/044", "nvme/045"}},
}

// excepted returns why a test does not pass with a kernel, or no reason if it should. kernel is empty for this release's.
func excepted(name, kernel string) exception {
	if kernel == "" {
		kernel = debian12
	}
	for _, e := range exceptions {
		if slices.Contains(e.tests, name) && (e.kernel == "" || e.kernel == kernel) {
			return e
		}
	}
	return exception{}
}
