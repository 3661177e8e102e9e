package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// inFile is a configuration with a file store in the guest, and one target of it.
const inFile = `
stores: {d: {type: file, path: /tmp/d.img, size: 256MiB, cache: writeback}}
targets: [{iqn: "` + iqn + `", luns: {0: d}}]
management: {socket: /tmp/oneshot.sock}
`

// removeFile removes the file of inFile at the end of the test.
func removeFile(t *testing.T) { t.Cleanup(func() { guest.run(t, "@remove", "/tmp/d.img") }) }

// TestVerbsKilledUnderLoad is TestKilledUnderLoad over soft-RoCE.
func TestVerbsKilledUnderLoad(t *testing.T) {
	d := rdmaDevices[0]
	d.start(t)
	portal := net.JoinHostPort(d.host, "3267")
	removeFile(t)
	g := startInGuest(t, inFile+"portals: [{transport: verbs, listen: \""+portal+"\", device: "+d.name+"}]\n", 1)
	underLoad(t, inGuest(t, portal, "iser"), g.kill)
}

// TestVerbsFio: fio writes 512 bytes to 1 MiB at a time, with 64 commands outstanding, and verifies the
// data.
func TestVerbsFio(t *testing.T) {
	d := rdmaDevices[0]
	d.start(t)
	portal := net.JoinHostPort(d.host, "3268")
	startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: %q, luns: {0: d}}]
portals: [{transport: verbs, listen: %q, device: %s}]
limits: {commands: 64}
`, iqn, portal, d.name), 1)
	const largest = "/sys/module/ib_iser/parameters/max_sectors" // of a command; 512 KiB unless told
	was := strings.TrimSpace(guest.run(t, "@cat", largest))
	guest.run(t, "@write", largest, "2048")
	t.Cleanup(func() { guest.run(t, "@write", largest, was) })

	i := inGuest(t, portal, "iser")
	i.record(map[string]string{"node.session.queue_depth": "64"})
	disk := i.login(1)[0]
	expect(t, "queue depth", sys(t, disk, "device/queue_depth"), "64")
	expect(t, "largest command in KiB", sys(t, disk, "queue/max_sectors_kb"), "1024")
	out := guest.run(t, "fio", "--output-format=json", "--filename=/dev/"+disk, "--direct=1", "--ioengine=libaio",
		"--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--iodepth=64", "--stonewall",
		"--name=sizes", "--bsrange=512-1M", "--size=16M",
		"--name=largest", "--bs=1M", "--size=48M",
		"--name=pages", "--bs=4k", "--size=4M")
	type transfer struct {
		Bytes int64 `json:"io_bytes"`
	}
	var r struct {
		Jobs []struct {
			Name        string `json:"jobname"`
			Error       int
			Read, Write transfer
			Depth       map[string]float64 `json:"iodepth_level"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, j := range r.Jobs {
		if j.Error != 0 || j.Write.Bytes < 4<<20 || j.Read.Bytes != j.Write.Bytes {
			t.Errorf("%s: error %d, %d bytes written and %d compared", j.Name, j.Error, j.Write.Bytes, j.Read.Bytes)
		}
		if j.Name == "pages" && j.Depth[">=64"] == 0 {
			t.Errorf("%s: never 64 commands outstanding: %v", j.Name, j.Depth)
		}
	}
	if len(r.Jobs) != 3 {
		t.Errorf("fio did %d jobs", len(r.Jobs))
	}
	i.logout()
}

// TestVerbsLogins: the resources of sessions over a device of the kernel are free when the sessions are
// over, according to the daemon and to the kernel. Each round logs in to five targets, because iscsid checks
// only once a second whether an RDMA connection is established.
func TestVerbsLogins(t *testing.T) {
	const targets = 5
	for _, d := range rdmaDevices[:1] { // over siw there is TestISERLoginsAndLogouts
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			portal := net.JoinHostPort(d.host, "3269")
			var list strings.Builder
			for n := range targets {
				fmt.Fprintf(&list, "  - {iqn: \"%s%d\", luns: {0: d}}\n", iqn, n)
			}
			g := startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 16MiB}}
targets:
%sportals: [{transport: verbs, listen: %q, device: %s}]
limits: {sessions: %d}
management: {socket: /tmp/oneshot.sock}
`, list.String(), portal, d.name, targets), 1)
			const rounds = 4
			i := inGuest(t, portal, "iser")
			i.discoverISER()
			i.adm("node", "-o", "update", "-n", "node.session.initial_login_retry_max", "-v", "8")
			i.adm("node", "-o", "update", "-n", "node.conn[0].timeo.login_timeout", "-v", "4")
			var before string
			for n := range rounds {
				i.adm("node", "--login")
				if n == 0 {
					expect(t, "queue pairs", strconv.Itoa(g.resources(d, "qp")), strconv.Itoa(targets))
				}
				i.adm("node", "--logout")
				if n == 0 {
					before = g.idle(d)
				}
			}
			g.holdsAgain(d, before)
			expect(t, "logins", strconv.Itoa(g.status().Counters.Logins), strconv.Itoa(1+targets*rounds))
		})
	}
}

// status holds those parts of the daemon's status that the tests need.
type status struct {
	Sessions int
	Counters struct{ Logins int }
	Buffers  struct {
		InUse  int64 `json:"in_use"`
		Leases int
	}
}

func (g *guestTarget) status() (s status) {
	g.t.Helper()
	out := g.machine.run(g.t, "target", "status", "--socket", "/tmp/oneshot.sock", "-o", "json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		g.t.Fatalf("%v in %s", err, out)
	}
	return s
}

// resources returns how many objects of a kind the kernel holds on a device for the daemon.
func (g *guestTarget) resources(d rdmaDevice, kind string) (n int) {
	g.t.Helper()
	for line := range strings.Lines(g.machine.run(g.t, "rdma", "resource", "show", kind)) {
		if strings.Contains(line, " "+d.name) && strings.Contains(line, "comm target") {
			n++
		}
	}
	return n
}

// holds lists what the daemon holds: sessions, memory, descriptors, objects of the device.
func (g *guestTarget) holds(d rdmaDevice) string {
	g.t.Helper()
	s := g.status()
	held := fmt.Sprintf("%d sessions, %d bytes in %d leases, %s", s.Sessions, s.Buffers.InUse, s.Buffers.Leases,
		strings.TrimSpace(g.machine.run(g.t, "@held", "target")))
	for _, kind := range []string{"qp", "cq", "mr", "pd", "cm_id"} {
		held += fmt.Sprintf(", %d %s", g.resources(d, kind), kind)
	}
	return held
}

// idle waits for the daemon to have neither sessions nor queue pairs, and returns what it holds then.
func (g *guestTarget) idle(d rdmaDevice) string {
	g.t.Helper()
	return g.until(d, "no session", func(now string) bool {
		return strings.HasPrefix(now, "0 sessions") && strings.Contains(now, " 0 qp") && strings.Contains(now, " 1 cm_id")
	})
}

// until waits until what the daemon holds is as wanted.
func (g *guestTarget) until(d rdmaDevice, want string, is func(string) bool) string {
	g.t.Helper()
	var now string
	if !await(func() bool {
		now = g.holds(d)
		return is(now)
	}) {
		g.t.Fatalf("the target holds %s; want %s", now, want)
	}
	return now
}

// holdsAgain waits until the daemon holds the same as before.
func (g *guestTarget) holdsAgain(d rdmaDevice, before string) {
	g.t.Helper()
	g.until(d, before, func(now string) bool { return now == before })
}
