package vm

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// TestISERGuestKilled: when a machine dies with commands outstanding, the target frees everything: its
// session, memory and descriptors.
func TestISERGuestKilled(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
management: {socket: $DIR/socket}
`)
	tg.WaitLog(t.Context(), "service open")
	client := mgmt.NewClient(tg.Dir + "/socket")
	defer client.Close()
	status := func() *mgmt.Status {
		t.Helper()
		s, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before, open := status().Buffers, descriptors(t, tg)

	other, err := boot(guestImage, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	load := otherGuest(other, func() *command {
		i := prepareISER(t, tg)
		i.record(map[string]string{"node.session.queue_depth": "64"})
		return guest.start(t, "@busy", "/dev/"+i.login(1)[0], "262144", "64")
	})
	if line, more := <-load.Lines; !more || !strings.HasPrefix(line, "busy") {
		t.Fatalf("the load says %q\n%s", line, other.Log())
	}
	if status().Buffers.Leases <= before.Leases {
		t.Error("commands are outstanding, but no I/O memory is in use")
	}
	other.Stop()
	tg.WaitLog(t.Context(), "connection lost")

	var left string
	if !await(func() bool {
		after, sessions, now := status().Buffers, sessions(t, client), descriptors(t, tg)
		left = fmt.Sprintf("%d sessions; %d descriptors, %d before; %+v, before %+v", sessions, now, open, after, before)
		return after.InUse == before.InUse && after.Leases == before.Leases && sessions == 0 && now == open
	}) {
		t.Fatal(left)
	}
}

func sessions(t *testing.T, client *mgmt.Client) int {
	t.Helper()
	s, err := client.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(s.Sessions)
}

// otherGuest calls f with a machine of its own, instead of the one that the tests share.
func otherGuest(m *guestMachine, f func() *command) *command {
	var c *command
	onOther(m, func() { c = f() })
	return c
}

// onOther runs f with m in the place of the shared machine.
func onOther(m *guestMachine, f func()) {
	shared, initiatorStarted, siwStarted, rxeStarted := guest, startInitiator, startSiw, startRXE
	defer func() { guest, startInitiator, startSiw, startRXE = shared, initiatorStarted, siwStarted, rxeStarted }()
	guest, startInitiator, startSiw, startRXE = m, once{}, siwOnce{}, rxeOnce{}
	f()
}
