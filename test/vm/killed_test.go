package vm

import (
	"fmt"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// survivor is a target on the host whose initiator dies.
type survivor struct {
	t      *testing.T
	tg     *targettest.Target
	client *mgmt.Client
	// What it holds without the initiator.
	before mgmt.Buffers
	open   int // descriptors
}

func newSurvivor(t *testing.T) *survivor {
	t.Helper()
	s := &survivor{t: t, tg: targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 64MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{transport: iwarp, listen: $PORTAL}]
management: {socket: $DIR/socket}
`)}
	s.tg.WaitLog(t.Context(), "service open")
	s.client = mgmt.NewClient(s.tg.Dir + "/socket")
	t.Cleanup(s.client.Close)
	s.before, s.open = s.status().Buffers, descriptors(t, s.tg)
	return s
}

func (s *survivor) status() *mgmt.Status {
	s.t.Helper()
	status, err := s.client.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return status
}

// load logs in over siw, and begins I/O that does not end.
func (s *survivor) load() *command {
	s.t.Helper()
	i := prepareISER(s.t, s.tg)
	i.record(map[string]string{"node.session.queue_depth": "64"})
	return guest.start(s.t, "@busy", "/dev/"+i.login(1)[0], "262144", "64")
}

// isUsed checks that commands of the initiator are outstanding.
func (s *survivor) isUsed() {
	s.t.Helper()
	if s.status().Buffers.Leases <= s.before.Leases {
		s.t.Error("commands are outstanding, but no I/O memory is in use")
	}
}

// isFree waits until the target has noticed that the machine is dead, and has freed everything that it held for it: the
// session, memory and descriptors.
func (s *survivor) isFree() {
	s.t.Helper()
	s.tg.WaitLog(s.t.Context(), "connection lost")
	var left string
	if !await(func() bool {
		after, sessions, now := s.status().Buffers, sessions(s.t, s.client), descriptors(s.t, s.tg)
		left = fmt.Sprintf("%d sessions; %d descriptors, %d before; %+v, before %+v", sessions, now, s.open, after, s.before)
		return after.InUse == s.before.InUse && after.Leases == s.before.Leases && sessions == 0 && now == s.open
	}) {
		s.t.Fatal(left)
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

// onOther runs f with m in the place of the shared machine.
func onOther(m *guestMachine, f func()) {
	shared, initiatorStarted, siwStarted, rxeStarted := guest, startInitiator, startSiw, startRXE
	defer func() { guest, startInitiator, startSiw, startRXE = shared, initiatorStarted, siwStarted, rxeStarted }()
	guest, startInitiator, startSiw, startRXE = m, once{}, siwOnce{}, rxeOnce{}
	f()
}
