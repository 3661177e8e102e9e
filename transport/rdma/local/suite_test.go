package local_test

import (
	"testing"

	"go.uber.org/goleak"

	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, c local.Config) *local.Device {
	t.Helper()
	d := local.Open(c)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestPairs(t *testing.T) {
	for name, one := range map[string]bool{"two devices": false, "one device": true} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, func(t *testing.T) rdmatest.Pair {
				p := rdmatest.Pair{Client: open(t, local.Config{}), Listen: "pair:0"}
				if p.Server = p.Client; !one {
					p.Server = open(t, local.Config{})
				}
				return p
			})
		})
	}
}

// The limits that the suite is told are those of the device.
func TestLimits(t *testing.T) {
	l := open(t, local.Config{}).Limits()
	if !l.Windows || l.OneShot || !l.ReceiveWait || l.ReadSinkWrite || l.Endpoints || l.Orders != 0 || l.Flush {
		t.Errorf("%+v", l)
	}
	if !l.SendInvalidate || !l.RegionInvalidate || l.UnguardedInvalidate || !l.EndTold || !l.CountsRemote {
		t.Errorf("%+v", l)
	}
}
