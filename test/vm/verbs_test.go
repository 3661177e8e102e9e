package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rdmaDevice is a device of the guest, at both ends of whose connections the guest is.
type rdmaDevice struct {
	name  string
	host  string // its address
	start func(*testing.T)
}

// rdmaDevices are the two that Linux makes of a network interface: soft-RoCE, on an interface that
// leads nowhere and takes the largest MTU of RoCE, and siw.
var rdmaDevices = []rdmaDevice{
	{"rxe0", "10.9.0.1", startRXE.Do},
	{"siw0", "10.0.2.15", startSiw.Do},
}

var startRXE rxeOnce

type rxeOnce struct{ done bool }

func (o *rxeOnce) Do(t *testing.T) {
	if o.done {
		return
	}
	o.done = true
	for _, c := range []string{
		"ip link add rd0 type dummy",
		"ip link set dev rd0 mtu 9000 up",
		"ip addr add 10.9.0.1/24 dev rd0",
		"rdma link add rxe0 type rxe netdev rd0",
	} {
		guest.run(t, strings.Fields(c)...)
	}
}

// short is the flag of tests in the guest that has them do few rounds (internal/rounds), unless ONESHOT_VERBS is long.
func short() string { return "-test.short=" + strconv.FormatBool(!long()) }

// long: tests over RDMA devices of the kernel do all that they can.
func long() bool { return os.Getenv("ONESHOT_VERBS") == "long" }

// some returns the first n of what is done one after the other, or all of it if ONESHOT_VERBS is long.
func some[T any](all []T, n int) []T {
	if long() {
		return all
	}
	return all[:n]
}

// TestVerbs runs the tests of the provider over each device.
func TestVerbs(t *testing.T) {
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			out, exit := guest.start(t, "env", "ONESHOT_RDMA_DEVICE="+d.name, "ONESHOT_RDMA_LISTEN="+net.JoinHostPort(d.host, "0"),
				"/bin/verbs.test", short(), "-test.timeout=9m", "-rapid.checks=20", "-rapid.nofailfile").wait(t, guest)
			if exit != 0 {
				t.Errorf("exit %d\n%s\n%s", exit, out[max(0, len(out)-1<<14):], guest.Log())
			}
		})
	}
}

// TestPartitionsOverVerbs runs the suite of endpoints over soft-RoCE, and over siw if ONESHOT_VERBS is long. The guest is at both ends.
func TestPartitionsOverVerbs(t *testing.T) {
	for _, d := range some(rdmaDevices, 1) {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			out, exit := guest.start(t, "env", "ONESHOT_RDMA_DEVICE="+d.name, "ONESHOT_RDMA_LISTEN="+net.JoinHostPort(d.host, "0"),
				"/bin/remote.test", short(), "-test.timeout=9m", "-test.run=TestEndpointsOverVerbs").wait(t, guest)
			if exit != 0 {
				t.Errorf("exit %d\n%s\n%s", exit, out[max(0, len(out)-1<<14):], guest.Log())
			}
		})
	}
}

// TestPartitionPortalOverVerbs: a program reaches a partition of the daemon through a portal over a device of the kernel,
// and the portal goes with its connections.
func TestPartitionPortalOverVerbs(t *testing.T) {
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			portal := net.JoinHostPort(d.host, "3272")
			g := startInGuest(t, fmt.Sprintf(`
stores: {p: {type: memory, size: 32MiB, partitioned: true, partitions: {log: {size: 16MiB, access: {any: rwf}}}}}
targets: [{iqn: %q}]
portals: [{transport: verbs, listen: %q, device: %s, serve: partitions}]
management: {socket: /tmp/oneshot.sock}
`, iqn, portal, d.name), 1)
			url := "rdma+verbs://" + portal + "/p/log?device=" + d.name
			out := guest.run(t, "initiator", "partition", "ls", "rdma+verbs://"+portal+"?device="+d.name)
			if !strings.Contains(out, "p/log") {
				t.Errorf("the partition is not listed:\n%s", out)
			}
			text := strings.Repeat("octets for a partition\n", 4096)[:64<<10]
			guest.run(t, "@write", "/tmp/octets", text)
			guest.run(t, "initiator", "partition", "write", url, "/tmp/octets")
			guest.run(t, "initiator", "partition", "read", url, "/tmp/back", "--length", "64KiB")
			if got := guest.run(t, "@cat", "/tmp/back"); strings.TrimSuffix(got, "\n") != text {
				t.Errorf("%d octets are read back that are not those that were written", len(got))
			}
			guest.run(t, "@remove", "/tmp/octets")
			guest.run(t, "@remove", "/tmp/back")
			expect(t, "queue pairs without programs", strconv.Itoa(g.resources(d, "qp")), "0")
		})
	}
}

// TestSoftRoCE: the script makes a device once, tries it, and removes it once.
func TestSoftRoCE(t *testing.T) {
	for _, c := range []string{
		"ip link add rd1 type dummy",
		"ip link set dev rd1 mtu 1500 up",
		"ip addr add 10.9.1.1/24 dev rd1",
	} {
		guest.run(t, strings.Fields(c)...)
	}
	script := func(args ...string) []string { return append([]string{"bash", "/bin/soft-roce.sh"}, args...) }
	said := func(out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("the script does not say %q:\n%s", want, out)
		}
	}
	said(guest.fails(t, script("test", "rd1")...), "has no soft-RoCE")
	said(guest.fails(t, script("up", "nosuch")...), "no network interface nosuch")
	out := guest.run(t, script("up", "rd1")...)
	said(out, "on rd1: made")
	said(out, `listen: "10.9.1.1:3260"`)
	said(out, "MTU 1500")
	said(guest.run(t, script("up", "rd1")...), "there already")
	said(guest.run(t, script("status")...), "on rd1: ACTIVE")
	said(guest.run(t, script("test", "rd1")...), "data compared")
	said(guest.run(t, script("down", "rd1")...), "removed")
	said(guest.run(t, script("down", "rd1")...), "no soft-RoCE on rd1")
}

// TestTargetRDMA: what the daemon says about the devices.
func TestTargetRDMA(t *testing.T) {
	for _, d := range rdmaDevices {
		d.start(t)
	}
	out := guest.run(t, "target", "rdma")
	for _, d := range rdmaDevices {
		if !strings.Contains(out, d.name) {
			t.Errorf("%s is missing:\n%s", d.name, out)
		}
	}
	if !strings.Contains(out, "RoCE") || !strings.Contains(out, "iWARP") || !strings.Contains(out, "ACTIVE") {
		t.Errorf("target rdma says\n%s", out)
	}
}

// guestTarget is the daemon in the guest.
type guestTarget struct {
	t       *testing.T
	machine *guestMachine
	portals int
	argv    []string
	cmd     *command
	log     strings.Builder // what it has said so far
	ended   bool
}

// startInGuest starts the daemon and waits for n portals.
func startInGuest(t *testing.T, config string, n int) *guestTarget {
	t.Helper()
	return serveInGuest(t, config, n, "target", "serve", "--config", "/tmp/target.yaml")
}

// serveInGuest is startInGuest with another command than that of root.
func serveInGuest(t *testing.T, config string, n int, command ...string) *guestTarget {
	t.Helper()
	guest.run(t, "@write", "/tmp/target.yaml", config)
	g := &guestTarget{t: t, machine: guest, portals: n, argv: command}
	g.start()
	t.Cleanup(g.stop)
	return g
}

func (g *guestTarget) start() {
	g.t.Helper()
	g.cmd = g.machine.start(g.t, g.argv...)
	for range g.portals {
		g.waitLog("portal open")
	}
}

// waitLog reads the log until a line says one of what, and returns that.
func (g *guestTarget) waitLog(what ...string) string {
	g.t.Helper()
	limit := time.After(runTime)
	for {
		select {
		case line, more := <-g.cmd.Lines:
			if !more {
				g.t.Fatalf("the target ends with %d before it says one of %q\n%s", g.cmd.Exit, what, g.log.String())
			}
			g.t.Log(line)
			g.log.WriteString(line + "\n")
			if i := slices.IndexFunc(what, func(w string) bool { return strings.Contains(line, w) }); i >= 0 {
				return what[i]
			}
		case <-limit:
			g.t.Fatalf("the target does not say one of %q\n%s\n%s", what, g.log.String(), g.machine.Log())
		}
	}
}

// waitAll is waitLog for all of what, in whatever order.
func (g *guestTarget) waitAll(what ...string) {
	g.t.Helper()
	for len(what) > 0 {
		said := g.waitLog(what...)
		what = slices.DeleteFunc(what, func(w string) bool { return w == said })
	}
}

// signal sends one, and waits for the end.
func (g *guestTarget) signal(s syscall.Signal) (out string, exit int) {
	g.machine.run(g.t, "@signal", "target", strconv.Itoa(int(s)))
	return g.cmd.wait(g.t, g.machine)
}

// kill is SIGKILL, and a new start.
func (g *guestTarget) kill() {
	g.t.Helper()
	g.signal(syscall.SIGKILL)
	g.start()
}

// stop ends the daemon in good order, unless end has.
func (g *guestTarget) stop() {
	if !g.ended {
		g.end()
	}
}

// end ends the daemon in good order and returns all that it has said.
func (g *guestTarget) end() string {
	g.ended = true
	out, exit := g.signal(syscall.SIGTERM)
	g.log.WriteString(out)
	if exit != 0 || strings.Contains(out, "panic") {
		g.t.Errorf("the target ends with %d\n%s", exit, out)
	}
	return g.log.String()
}

// TestVerbsISER: Linux's initiator and the daemon, both in the guest, over each device: discovery,
// login with CHAP, file systems with checksums through cache drops and fstrim; and a TCP portal for the same
// target beside it, while another portal has no device.
func TestVerbsISER(t *testing.T) {
	const user, secret = "alice", "wonderland-looking"
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			const file = "/tmp/verbs.img"
			t.Cleanup(func() { guest.run(t, "@remove", file) })
			startInGuest(t, fmt.Sprintf(`
stores: {d: {type: file, path: `+file+`, size: 512MiB}}
targets: [{iqn: %q, luns: {0: d}, auth: {chap: {user: %s, secret: %s}}}]
portals:
  - {transport: verbs, listen: "%s:3260", device: %s}
  - {transport: verbs, listen: "%[4]s:3270", device: nosuch0}
  - {transport: tcp, listen: "%[4]s:3261"}
`, iqn, user, secret, d.host, d.name), 2)
			const auth = "node.session.auth."
			chap := map[string]string{auth + "authmethod": "CHAP", auth + "username": user, auth + "password": secret}

			// What comes within milliseconds of its MPA Reply siw leaves unread: a login is tried again.
			chap["node.conn[0].timeo.login_timeout"] = "4"

			i := inGuest(t, net.JoinHostPort(d.host, "3260"), "iser")
			i.discoverISER()
			guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
			i.record(chap)
			dev := "/dev/" + i.login(1)[0]
			if session := i.adm("session", "-P", "1"); !strings.Contains(session, "Iface Transport: iser") {
				t.Errorf("the session is not over iSER:\n%s", session)
			}
			fileSystems := []string{"ext4"} // the last one: e2fsck looks at it
			if long() {
				fileSystems = []string{"xfs", "ext4"}
			}
			for _, fs := range fileSystems {
				fileSystem(t, fs, dev, 100, 6<<20, func() int64 { return allocatedInGuest(t, file) })
			}
			i.logout()

			tcp := inGuest(t, net.JoinHostPort(d.host, "3261"), "default")
			tcp.record(chap)
			guest.run(t, "e2fsck", "-fn", "/dev/"+tcp.login(1)[0])
			tcp.logout()

			wrong := inGuest(t, i.portal, "iser")
			wrong.record(map[string]string{auth + "authmethod": "CHAP", auth + "username": user, auth + "password": "not-the-secret-at-all"})
			guest.fails(t, append([]string{"iscsiadm", "-m"}, wrong.node("--login")...)...)
		})
	}
}

// inGuest configures open-iscsi afresh for a portal of a target in the guest.
func inGuest(t *testing.T, portal, iface string) *iscsi {
	t.Helper()
	startInitiator.Do(t)
	forget := func() {
		guest.start(t, "iscsiadm", "-m", "node", "--logout").wait(t, guest)
		guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
	}
	forget()
	t.Cleanup(forget)
	return &iscsi{t: t, portal: portal, iface: iface}
}

// TestInitiatorOverVerbs: this project's initiator over each device. Where there are memory windows
// (soft-RoCE) a command is one post, in which its window is bound, and one completion, whose message has
// invalidated it; where there are none (siw) memory stays reachable, and the counters say so.
func TestInitiatorOverVerbs(t *testing.T) {
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: %q, luns: {0: d}}]
portals: [{transport: verbs, listen: "%s:3264", device: %s}]
`, iqn, d.host, d.name), 1)
			url := fmt.Sprintf("iser+verbs://%s:3264/%s/0?device=%s", d.host, iqn, d.name)
			guest.run(t, "@write", "/tmp/words", strings.Repeat("what is written comes back, ", 200_000))
			guest.run(t, "initiator", "write", "--offset", "1MiB", url, "/tmp/words")
			want := guest.run(t, "@sum", "/tmp/words")
			guest.run(t, "@write", "/tmp/words", "something else")
			guest.run(t, "initiator", "read", "--offset", "1MiB", "--length", strconv.Itoa(28*200_000), url, "/tmp/words")
			expect(t, "what came back", guest.run(t, "@sum", "/tmp/words"), want)
			var r struct {
				Initiator, Target struct {
					Crossings float64
					Counts    map[string]float64
				}
			}
			out := guest.run(t, "initiator", "bench", "--json", "--duration", "300ms", "--warmup", "50ms", "--immediate", "-1", url)
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			one := func(what string, got, want float64) {
				t.Helper()
				if got < want-0.01 || got > want+0.2 {
					t.Errorf("%s: %.2f per I/O, want %.0f\n%s", what, got, want, out)
				}
			}
			one("posts", r.Initiator.Counts["posts"], 1)
			if d.name == "siw0" {
				one("commands without windows", r.Initiator.Counts["without_windows"], 1)
				return
			}
			one("binds", r.Initiator.Counts["binds"], 1)
			one("the target's invalidations", r.Target.Counts["invalidations"], 1)
			one("messages sent", r.Initiator.Counts["messages_out"], 1)
		})
	}
}
