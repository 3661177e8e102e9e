package vm

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// TestVerbsConnections: a peer opens more connections over a device of the kernel than may be there without login
// (TestCrowd in iser/guest_test.go), while Linux's initiator writes and compares over the same device. Others log
// in afterwards, and the daemon's memory is bounded.
func TestVerbsConnections(t *testing.T) {
	peer := iserPeer(t)
	for i, c := range []struct {
		connections int
		bound       int // MiB by which the daemon may grow
	}{
		{160, 220}, // 128 may be there
		{80, 250},  // an eighth of limits.memory has receives for 64
	} {
		d := rdmaDevices[i]
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			g := startInGuest(t, fmt.Sprintf(`
limits: {login_timeout: 1h}
stores: {d: {type: memory, size: 64MiB}, e: {type: memory, size: 16MiB}}
targets: [{iqn: %q, luns: {0: d}}, {iqn: "iqn.2026-11.example.oneshot:test", luns: {0: e}}]
portals: [{transport: verbs, listen: "%s:3277", device: %s}]
`, iqn, d.host, d.name), 1)
			portal := net.JoinHostPort(d.host, "3277")
			i := inGuest(t, portal, "iser")
			i.record(nil)
			dev := "/dev/" + i.login(1)[0]
			guest.run(t, "@direct", dev, "16384", "40", "4")
			memory := newGuestMemory(t)
			done := make(chan struct{})
			connections := guest.start(t, "env", "ONESHOT_RDMA_DEVICE="+d.name, "ONESHOT_RDMA_PORTAL="+portal, "ONESHOT_RDMA_CONNECTIONS="+strconv.Itoa(c.connections),
				peer, "-test.v", "-test.timeout=9m", "-test.run", "^TestCrowd$")
			var out string
			var exit int
			go func() {
				defer close(done)
				out, exit = connections.wait(t, guest)
			}()
			t.Logf("%d rounds of I/O, the last of them afterwards", roundsBeside(t, dev, done))
			if exit != 0 {
				t.Errorf("exit %d\n%s", exit, out)
			}
			memory.bounded(c.bound)
			i.logout()
			g.end()
		})
	}
}

// guestMemory is the most memory that the daemon in the guest had had, in MiB, when it was looked at.
type guestMemory struct {
	t      *testing.T
	before int
}

func newGuestMemory(t *testing.T) guestMemory {
	t.Helper()
	return guestMemory{t, peakInGuest(t)}
}

// bounded checks that the daemon has had at most that many MiB more since.
func (m guestMemory) bounded(most int) {
	m.t.Helper()
	if more := peakInGuest(m.t) - m.before; more > most {
		m.t.Errorf("the daemon grew by %d MiB, want at most %d", more, most)
	} else {
		m.t.Logf("the daemon grew by %d MiB", more)
	}
}

// peakInGuest returns the most memory that the daemon in the guest has had, in MiB.
func peakInGuest(t *testing.T) int {
	t.Helper()
	out := guest.run(t, "bash", "-c", `for p in /proc/[0-9]*; do
	if read -r name 2>/dev/null <$p/comm && [ "$name" = target ]; then
		while read -r key n _; do [ "$key" = VmHWM: ] && echo $((n / 1024)); done <$p/status
	fi
done; true`)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return n
}
