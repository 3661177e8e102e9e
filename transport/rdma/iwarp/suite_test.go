package iwarp_test

import (
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/rdmatest"
)

func open(t *testing.T, c iwarp.Config) rdma.Device {
	t.Helper()
	d, err := iwarp.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestSuite(t *testing.T) {
	for name, c := range map[string]struct {
		client, server iwarp.Config
		one            bool // device for both ends
	}{
		"default":        {},
		"one device":     {one: true},
		"Ethernet, bare": {client: iwarp.Config{MaxULPDU: 1442, NoCRC: true}, server: iwarp.Config{MaxULPDU: 1442, NoCRC: true}},
	} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, func(t *testing.T) rdmatest.Pair {
				p := rdmatest.Pair{Client: open(t, c.client), Listen: "127.0.0.1:0"}
				if p.Server = p.Client; !c.one {
					p.Server = open(t, c.server)
				}
				return p
			})
		})
	}
}

// The limits that the suite relies on are those of iWARP.
func TestLimits(t *testing.T) {
	l := open(t, iwarp.Config{}).Limits()
	if !l.Windows || !l.OneShot || !l.ReceiveWait || l.ReadSinkWrite {
		t.Errorf("%+v", l)
	}
	if !l.SendInvalidate || !l.RegionInvalidate || l.UnguardedInvalidate || !l.EndTold || !l.CountsRemote {
		t.Errorf("%+v", l)
	}
	if l.MaxSGE < 16 || l.MaxReadSGE < 16 || l.MaxReads < 128 || l.MaxInline < 64 || l.MaxPrivate != 251 {
		t.Errorf("%+v", l)
	}
}
