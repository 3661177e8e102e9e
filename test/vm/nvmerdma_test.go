package vm

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// TestNVMeRDMA does over NVMe/RDMA, and each device of the kernel, what TestNVMe does over TCP: the target is in the guest, too. A
// portal of iSER shares the device. When the host has left, the daemon holds what it held before.
func TestNVMeRDMA(t *testing.T) {
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			portal := net.JoinHostPort(d.host, "4420")
			g := startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 256MiB}}
targets: [{iqn: %q, luns: {0: d}}]
subsystems: [{nqn: %q, namespaces: {1: d}, hosts: [%q]}]
portals: [{transport: nvme-rdma, listen: %q, device: %s}, {transport: verbs, listen: "%s:4426", device: %[5]s}]
management: {socket: /tmp/oneshot.sock}
`, iqn, nqn, hostNQN, portal, d.name, d.host), 2)
			h := nvmeHostOver(t, "rdma", portal)
			out := h.run("discover", h.addr...)
			for _, want := range []string{"subnqn:  " + nqn + "\n", "trtype:  rdma", "rdma_prtype: not specified", "rdma_qptype: connected", "rdma_cms:    rdma-cm", "trsvcid: 4420"} {
				if !strings.Contains(out, want) {
					t.Errorf("discovery does not say %q: %s", want, out)
				}
			}
			left := func(now string) bool {
				return strings.HasPrefix(now, "0 sessions") && strings.Contains(now, " 0 qp") && strings.Contains(now, " 2 cm_id")
			}
			before := g.until(d, "no queue", left)
			disk := h.connect("-i", "2")
			largest := "1024"
			if d.name == "siw0" {
				largest = "1020" // it registers 256 pages, which need not begin at one
			}
			expect(t, "largest command in KiB", sys(t, disk, "queue/max_hw_sectors_kb"), largest)
			expect(t, "queue pairs", strconv.Itoa(g.resources(d, "qp")), "3")
			if out := guest.run(t, "target", "sessions", "--socket", "/tmp/oneshot.sock"); !strings.Contains(out, "nvme-rdma") {
				t.Errorf("target sessions says %s", out)
			}
			dev := "/dev/" + disk
			if d.name == "rxe0" {
				fileSystem(t, "ext4", dev, 100, 6<<20, nil)
			}
			verifyWithFio(t, dev, "512")
			h.disconnect()
			if d.name == "siw0" {
				g.until(d, "no queue", left) // its portals connect to themselves, one more time each second in the beginning
				return
			}
			g.holdsAgain(d, before)
		})
	}
}

// TestNVMeRDMAUnderLoad is TestNVMeUnderLoad over RDMA.
func TestNVMeRDMAUnderLoad(t *testing.T) {
	d := rdmaDevices[0]
	d.start(t)
	portal := net.JoinHostPort(d.host, "4421")
	removeFile(t)
	g := startInGuest(t, fmt.Sprintf(`
stores: {d: {type: file, path: /tmp/d.img, size: 64MiB}}
subsystems: [{nqn: %q, namespaces: {1: d}}]
portals: [{transport: nvme-rdma, listen: %q, device: %s}]
`, nqn, portal, d.name), 1)
	nvmeHostOver(t, "rdma", portal).underLoad(g.kill)
}
