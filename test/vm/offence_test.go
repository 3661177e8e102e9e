package vm

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// iserPeer returns the path in the guest of the tests of iser that are peers of a daemon, which are built once.
func iserPeer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(guestDir, "iser.test")
	if _, err := os.Stat(path); err != nil {
		if _, err := run("../..", "go", "test", "-c", "-tags", "verbs,guest,invariants", "-o", path, "./iser"); err != nil {
			t.Fatal(err)
		}
	}
	return newDownloads(t, guestDir).get("iser.test")
}

// roundsBeside has Linux's initiator write and compare until done is closed, and at least once after that. It returns the
// number of rounds. Between two of them it pauses for three times as long as the last one took: otherwise it keeps the
// emulated processors busy while the peers wait, and takes them from the peers that work.
func roundsBeside(t *testing.T, dev string, done <-chan struct{}) (rounds int) {
	t.Helper()
	for over := false; ; {
		begin := time.Now()
		guest.run(t, "@direct", dev, "16384", "40", "4")
		rounds++
		if over {
			return rounds
		}
		select {
		case <-done:
			over = true
		case <-time.After(3 * time.Since(begin)):
		}
	}
}

// TestVerbsOffences: peers that break the rules over a device of the kernel's (iser/guest_test.go), while
// Linux's initiator writes and compares over the same device. Their connections end, each with a line in the
// log that says why, and nobody else notices.
func TestVerbsOffences(t *testing.T) {
	peer := iserPeer(t)
	for _, c := range []struct {
		device rdmaDevice
		tests  string
		said   []string
	}{
		{rdmaDevices[0], "^TestGuest", []string{
			"an iSCSI PDU without iSER header, on a connection that has not agreed to one-shot RDMA",
			"a message of 300 octets, which is shorter than its PDU",
			"a message of 14 octets without an iSER header",
			"a message of 0 octets, which is shorter than its PDU",
			"a message of 20 octets, which is shorter than its PDU",
			"a message of 48 octets, which is shorter than its PDU",
			"an iSER Hello, which was not asked for",
			"PDU SCSI Command before the login was complete",
			"no login within 10 s",
			"Receive: ",
			"has no buffer for its data: its Read STag is not valid",
			"Write: remote access error",
			"Read: remote access error",
			"wait for the initiator to take them: it asks for more than it takes",
		}},
		// Of the message that is longer than any receive siw tells now of the message, now of the end only.
		// Not TestGuestHalfOpen: siw uses its listening endpoint after it has freed it then, and on a busy machine that ended
		// the guest's kernel (1 of 2 runs).
		{rdmaDevices[1], "^(TestGuestFirstMessage|TestGuestSinks|TestGuestKilledWrites)$/^(garbage|a_Hello|longer_than_any_receive)", []string{
			"an iSCSI PDU without iSER header", "an iSER Hello, which was not asked for",
		}},
	} {
		t.Run(c.device.name, func(t *testing.T) {
			c.device.start(t)
			// The login timeout is for the peer that sends nothing. Linux's initiator has to log in within it on a busy machine.
			g := startInGuest(t, fmt.Sprintf(`
limits: {login_timeout: 10s}
stores: {d: {type: memory, size: 64MiB}, e: {type: memory, size: 16MiB}}
targets: [{iqn: %q, luns: {0: d}}, {iqn: "iqn.2026-11.example.oneshot:test", luns: {0: e}}]
portals: [{transport: verbs, listen: "%s:3275", device: %s}]
`, iqn, c.device.host, c.device.name), 1)
			portal := net.JoinHostPort(c.device.host, "3275")
			i := inGuest(t, portal, "iser")
			i.record(nil)
			dev := "/dev/" + i.login(1)[0]
			guest.run(t, "@direct", dev, "16384", "40", "4") // what the daemon takes without them
			memory := newGuestMemory(t)
			done := make(chan struct{})
			offences := guest.start(t, "env", "ONESHOT_RDMA_DEVICE="+c.device.name, "ONESHOT_RDMA_PORTAL="+portal,
				peer, short(), "-test.v", "-test.timeout=9m", "-test.run", c.tests)
			var out string
			var exit int
			go func() {
				defer close(done)
				out, exit = offences.wait(t, guest)
			}()
			t.Logf("%d rounds of I/O, the last of them afterwards", roundsBeside(t, dev, done))
			if exit != 0 {
				t.Errorf("exit %d\n%s", exit, out)
			}
			memory.bounded(150)
			i.logout()
			log := g.end()
			for _, want := range c.said {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not say %q", want)
				}
			}
			if t.Failed() {
				t.Log(log)
			}
		})
	}
}
