package host_test

import (
	"bytes"
	"strings"
	"testing"

	"oneshot/initiator/host"
	"oneshot/nvme/auth"
	"oneshot/test/targettest"
)

// Secrets of nvme gen-dhchap-key; of the second the key was transformed.
const (
	hostSecret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	ctrlSecret = "DHHC-1:02:iKq+KSxcAqQWYyGGHOyZ6vMp5cB/Acgo6YEP2oX793F0zTzrpy6cxeBLmVpdZ1UVYVwhOg==:"
	otherNQN   = "nqn.2026-11.example.oneshot:other"
	otherKey   = "DHHC-1:03:jvTvLStelz/4+w36oFO372iYYSv0le41BRSYxe+SdNri8l/GSzXcimkp0bmuFlcIHhooHXHaF7xzK5aITEPMGA88I60=:"
)

func secretOf(t testing.TB, text string) *auth.Secret {
	t.Helper()
	s, err := auth.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

const demand = `    auth: {dhchap_secret: "` + hostSecret + `", dhchap_ctrl_secret: "` + ctrlSecret + `", dhchap_groups: [ffdhe4096]}`

// guarded starts a daemon whose hosts have to prove who they are, each subsystem in another way.
func guarded(t testing.TB) *targettest.Target {
	t.Helper()
	return targettest.Start(t, `
stores: {a: {type: memory, size: 16MiB}, b: {type: memory, size: 1MiB}, c: {type: memory, size: 1MiB}}
subsystems:
  - nqn: "`+nqn+`"
    namespaces: {1: a}
`+demand+`
    hosts:
      - {nqn: "`+otherNQN+`", auth: {dhchap_secret: "`+otherKey+`", dhchap_groups: [ffdhe3072, ffdhe2048]}}
      - "nqn.2026-11.example.oneshot:*"
  - {nqn: "`+nqn+`2", namespaces: {1: b}, auth: {dhchap_secret: "`+hostSecret+`", dhchap_hashes: [sha256], dhchap_groups: [ffdhe2048, "null"]}}
  - {nqn: "`+nqn+`3", namespaces: {1: c}, auth: {dhchap_secret: "`+hostSecret+`", dhchap_groups: ["null"]}}
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
}

// A host that knows the secret has its disk, and may prove itself again while commands run.
func TestAuthenticated(t *testing.T) {
	addr := guarded(t).Portals[0]
	for _, c := range []host.Options{
		{Secret: secretOf(t, hostSecret)},
		{Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, ctrlSecret), Queues: 2},
		{Secret: secretOf(t, otherKey), HostNQN: otherNQN},
	} {
		c := dial(t, host.URL{Address: addr, HeaderDigest: true, DataDigest: true}, c)
		n, err := c.Namespace(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		want, got := pattern(100<<10, 3), make([]byte, 100<<10)
		if _, err := n.WriteAt(want, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Authenticate(within(t)); err != nil {
			t.Error(err)
		}
		if _, err := n.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the bytes are others (%v)", err)
		}
	}
	if list, err := host.Discover(within(t), host.URL{Address: addr}, host.Options{Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, ctrlSecret)}); err != nil || len(list) != 4 {
		t.Errorf("discovery: %d entries, %v", len(list), err)
	}
}

// Who has no secret, or another one, is told what is wrong; and a host that wants a proof gets it or leaves.
func TestNotAuthenticated(t *testing.T) {
	tg := guarded(t)
	for name, x := range map[string]struct {
		sub  string
		o    host.Options
		want string
	}{
		"no secret":            {nqn, host.Options{}, "there is no secret"},
		"another secret":       {nqn, host.Options{Secret: secretOf(t, otherKey)}, "refuses the host"},
		"that of another host": {nqn, host.Options{Secret: secretOf(t, hostSecret), HostNQN: otherNQN}, "refuses the host"},
		"another controller":   {nqn, host.Options{Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, otherKey)}, "the controller has not proved who it is"},
		"a controller without": {nqn + "2", host.Options{Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, ctrlSecret)}, "refuses the host"},
		"no group":             {nqn + "3", host.Options{Secret: secretOf(t, hostSecret)}, "no DH group"},
	} {
		c, err := host.Dial(within(t), host.URL{Address: tg.Portals[0], Subsystem: x.sub}, x.o)
		if err == nil {
			_ = c.Close()
			t.Errorf("%s: the controller is there", name)
		} else if !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "AQIDBAUG") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Where nothing is asked for, a host that wants a proof does not get any.
	tg.Edit(demand, "")
	tg.Restart()
	dial(t, host.URL{Address: tg.Portals[0]}, host.Options{})
	other, err := host.Dial(within(t), host.URL{Address: tg.Portals[0], Subsystem: nqn}, host.Options{Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, ctrlSecret)})
	if err == nil || !strings.Contains(err.Error(), "it proves nothing") {
		t.Errorf("%v", err)
	}
	if err == nil {
		_ = other.Close()
	}
}
