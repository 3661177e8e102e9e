package vm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"oneshot/test/targettest"
	"oneshot/test/wire"
)

// siwParameter sets a parameter of siw's until the test ends.
func siwParameter(t *testing.T, name string, on bool) {
	t.Helper()
	file := "/sys/module/siw/parameters/" + name
	was := strings.TrimSpace(guest.run(t, "@cat", file))
	guest.run(t, "@write", file, strconv.FormatBool(on)[:1])
	t.Cleanup(func() { guest.run(t, "@write", file, was) })
}

// lastConnected returns the log's line about the connection that was made last.
func lastConnected(tg *targettest.Target) string {
	log := tg.Log()
	line, _, _ := strings.Cut(log[max(0, strings.LastIndex(log, `msg="iwarp: connected"`)):], "\n")
	return line
}

// TestISERStartup tests the options of Linux's startup: CRCs are used if either end asks for them
// (RFC 5044 §7.1.1), unless Linux insists on having none; Linux may want to send an empty message first
// (RFC 6581 §9.2).
func TestISERStartup(t *testing.T) {
	tg := targettest.Start(t, `
log: {level: debug}
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals:
  - {transport: iwarp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, crc: false}
`)
	const always, asked = 0, 1 // portals
	for _, c := range []struct {
		name                         string
		portal                       int
		required, strict, peerToPeer bool
		want                         bool
	}{
		{"only we ask", always, false, false, false, true},
		{"only Linux asks", asked, true, true, false, true},
		{"nobody asks", asked, false, false, false, false},
		{"Linux wants none", asked, false, true, false, false},
		{"peer to peer", always, false, false, true, true},
		{"peer to peer without CRC", asked, false, true, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := prepareISER(t, tg)
			siwParameter(t, "mpa_crc_required", c.required)
			siwParameter(t, "mpa_crc_strict", c.strict)
			siwParameter(t, "peer_to_peer", c.peerToPeer)
			i.portal = guestAddr(t, tg.Portals[c.portal])
			i.record(nil)
			dev := "/dev/" + i.login(1)[0]
			if line, want := lastConnected(tg), fmt.Sprintf("crc=%v ", c.want); !strings.Contains(line, want) {
				t.Errorf("the log says %q, want %q", line, want)
			}
			guest.run(t, "@direct", dev, "65536", "16", "4")
			if c.name == "nobody asks" {
				fileSystem(t, "ext4", dev, 100, 8<<20, nil)
			}
			i.logout()
		})
	}
}

// TestISERSizes: transfers of all sizes, up to 64 commands outstanding.
func TestISERSizes(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
limits: {commands: 64}
`)
	i := prepareISER(t, tg)
	i.record(map[string]string{"node.session.queue_depth": "64"})
	disk := i.login(1)[0]
	expect(t, "queue depth", sys(t, disk, "device/queue_depth"), "64")
	for _, c := range []struct{ size, count, depth int }{
		{512, 256, 64}, {4096, 256, 64}, {8192, 64, 64}, {8192 + 512, 64, 8}, {64 << 10, 64, 64}, {512 << 10, 16, 16}, {1 << 20, 8, 8},
	} {
		guest.run(t, "@direct", "/dev/"+disk, strconv.Itoa(c.size), strconv.Itoa(c.count), strconv.Itoa(c.depth))
	}
	i.logout()
}

// TestISERLoginsAndLogouts: the resources of a session are free when it is over. The target allows only
// one session, and has as many descriptors open at the end as at the beginning.
func TestISERLoginsAndLogouts(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
limits: {sessions: 1, memory: 32MiB, memory_per_connection: 4MiB}
`)
	i := prepareISER(t, tg)
	i.record(nil)
	var before int
	const logins = 6
	for n := range logins {
		disk := i.login(1)[0]
		if n == 1 {
			before = descriptors(t, tg)
		}
		if n == logins-1 && !await(func() bool { return descriptors(t, tg) <= before }) {
			t.Errorf("%d descriptors are open, %d were after the second login", descriptors(t, tg), before)
		}
		guest.run(t, "@direct", "/dev/"+disk, "262144", "16", "8")
		i.logout()
	}
}

// descriptors returns how many files the daemon has open.
func descriptors(t *testing.T, tg *targettest.Target) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", tg.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestISERLinkLost cuts the guest's link under load until the target has closed the connection. When the
// link is restored, the initiator logs in again by itself, and all records are there.
func TestISERLinkLost(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB, cache: writeback}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
limits: {nop_interval: 2s, nop_timeout: 2s}
`)
	i := prepareISER(t, tg)
	i.record(nil)
	dev := "/dev/" + i.login(1)[0]
	const count = 100
	writeRecords(t, dev, count, map[int]func(){30: func() {
		guest.run(t, "ip", "link", "set", "dev", "eth0", "down")
		tg.WaitLog(t.Context(), "no sign of life from the initiator")
		guest.run(t, "ip", "link", "set", "dev", "eth0", "up")
	}})
	guest.run(t, "@drop")
	guest.run(t, "@check", dev, strconv.Itoa(count))
	i.logout()
}

// TestISERCapture: tshark finds nothing wrong with the traffic between Linux and the target.
func TestISERCapture(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
`)
	i := prepareISER(t, tg)
	capture := wire.StartCapture(t, tg.Portal())
	i.discoverISER()
	guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
	i.record(nil)
	disk := i.login(1)[0]
	for _, size := range []string{"512", "8192", "262144"} {
		guest.run(t, "@direct", "/dev/"+disk, size, "4", "2")
	}
	i.logout()
	capture.JudgeISER(t)
}
