package vm

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

const (
	nqn     = "nqn.2026-11.example.oneshot:vm"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2"
	hostID  = "8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2"
)

// nvmeHost is Linux's host of NVMe over Fabrics, as far as one subsystem is concerned.
type nvmeHost struct {
	t    *testing.T
	addr []string // what names the portal and the host
	ctrl string   // nvme0
}

func newNVMeHost(t *testing.T, portal string) *nvmeHost {
	t.Helper()
	host, port, err := net.SplitHostPort(guestAddr(t, portal))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.start(t, "nvme", "disconnect-all").wait(t, guest) })
	return &nvmeHost{t: t, addr: []string{"-t", "tcp", "-a", host, "-s", port, "--hostnqn=" + hostNQN, "--hostid=" + hostID}}
}

func (h *nvmeHost) run(command string, args ...string) string {
	h.t.Helper()
	return guest.run(h.t, append([]string{"nvme", command}, args...)...)
}

// connect connects to the subsystem, and returns its first namespace: nvme0n1.
func (h *nvmeHost) connect(args ...string) string {
	h.t.Helper()
	var made struct{ Device string }
	out := h.run("connect", append(append([]string{"-n", nqn, "-o", "json"}, h.addr...), args...)...)
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Device == "" {
		h.t.Fatalf("nvme connect says %q (%v)", out, err)
	}
	h.ctrl = made.Device
	disk := h.ctrl + "n1"
	if !await(func() bool {
		_, exit := guest.start(h.t, "@cat", "/sys/block/"+disk+"/size").wait(h.t, guest)
		return exit == 0
	}) {
		h.t.Fatalf("there is no %s\n%s", disk, guest.run(h.t, "dmesg"))
	}
	return disk
}

func (h *nvmeHost) disconnect() {
	h.t.Helper()
	if out := h.run("disconnect", "-n", nqn); !strings.Contains(out, "disconnected 1 controller") {
		h.t.Errorf("nvme disconnect says %q", out)
	}
}

// TestNVMe does over NVMe/TCP what users of disks do, with Linux's host and nvme-cli: they find the subsystem, connect, and use a file
// system; every byte that fio writes is there.
func TestNVMe(t *testing.T) {
	for _, c := range []struct {
		name, store, blockSize string
		args                   []string
	}{
		{"digests", "{type: file, path: $DIR/disk.img, size: 1GiB}", "512", []string{"-g", "-G", "-i", "2"}},
		{"plain", "{type: memory, size: 256MiB}", "4096", []string{"-i", "1", "-Q", "128"}},
		{"without flow control", "{type: memory, size: 256MiB}", "512", []string{"-d", "-i", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := targettest.Start(t, `
stores: {d: `+c.store+`, small: {type: memory, size: 16MiB}}
subsystems:
  - {nqn: "`+nqn+`", namespaces: {1: {store: d, block_size: `+c.blockSize+`}}, hosts: ["`+hostNQN+`"]}
  - {nqn: "`+nqn+`-others", namespaces: {1: small}, hosts: ["nqn.2026-11.example.others:*"]}
portals: [{transport: nvme-tcp, listen: $PORTAL}, {transport: nvme-tcp, listen: $PORTAL2}]
`)
			h := newNVMeHost(t, tg.Portals[0])
			found := newNVMeHost(t, tg.Portals[1]) // a portal for discovery is like any other
			out := h.run("discover", found.addr...)
			if strings.Count(out, "subnqn:  "+nqn+"\n") != 2 || strings.Contains(out, "-others") || !strings.Contains(out, "Records 4") {
				t.Errorf("discovery says %s", out)
			}
			disk := h.connect(c.args...)
			dev := "/dev/" + disk
			expect(t, "block size", sys(t, disk, "queue/logical_block_size"), c.blockSize)
			expect(t, "cache", sys(t, disk, "queue/write_cache"), "write back")
			expect(t, "read-only", sys(t, disk, "ro"), "0")
			expect(t, "state", strings.TrimSpace(guest.run(t, "@cat", "/sys/class/nvme/"+h.ctrl+"/state")), "live")

			var space func() int64
			if strings.Contains(c.store, "disk.img") {
				space = func() int64 { return allocated(t, tg.Dir+"/disk.img") }
			}
			fileSystem(t, "ext4", dev, 100, 32<<20, space)
			verifyWithFio(t, dev, c.blockSize)
			h.disconnect()
		})
	}
}

// verifyWithFio has fio write up to 1 MiB at a time, with 128 commands outstanding, and compare what it reads.
func verifyWithFio(t *testing.T, dev, blockSize string) {
	t.Helper()
	out := guest.run(t, "fio", "--output-format=json", "--filename="+dev, "--direct=1", "--ioengine=libaio",
		"--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--iodepth=128", "--stonewall",
		"--name=sizes", "--bsrange="+blockSize+"-1M", "--size=32M",
		"--name=pages", "--bs=4k", "--size=8M")
	var r struct {
		Jobs []struct {
			Name        string `json:"jobname"`
			Error       int
			Read, Write struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for i, want := range []int64{32 << 20, 8 << 20} {
		if len(r.Jobs) != 2 {
			t.Fatalf("fio did %d jobs", len(r.Jobs))
		}
		if j := r.Jobs[i]; j.Error != 0 || j.Write.Bytes < want || j.Read.Bytes != j.Write.Bytes {
			t.Errorf("%s: error %d, %d bytes written and %d compared", j.Name, j.Error, j.Write.Bytes, j.Read.Bytes)
		}
	}
}
