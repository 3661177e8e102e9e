//go:build verbs && guest

package verbs_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/verbs"
)

// These tests need a device: test/vm builds them with the tag guest, and runs them in a virtual
// machine.
const (
	envDevice = "ONESHOT_RDMA_DEVICE" // rxe0
	envListen = "ONESHOT_RDMA_LISTEN" // an address of it, with port 0
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) rdma.Device {
	t.Helper()
	d, err := verbs.Open(verbs.Config{
		Name:   os.Getenv(envDevice),
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
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
	rdmatest.Run(t, func(t *testing.T) rdmatest.Pair {
		d := open(t)
		siw := strings.HasPrefix(d.Limits().Name, "siw")
		p := rdmatest.Pair{
			Client: d, Server: d, Listen: os.Getenv(envListen),
			Defects: rdmatest.Defects{ReadRights: siw, EmptyReads: siw, Fences: siw, WindowRange: !siw},
		}
		if siw {
			p.Defects.Farewell = verbs.ErrResponse
		}
		return p
	})
}

// TestLimits logs the limits of the device.
func TestLimits(t *testing.T) {
	l := open(t).Limits()
	t.Logf("%+v", l)
	if l.MaxSGE < 4 || l.MaxReadSGE < 1 || l.MaxReads < 1 || l.MaxPrivate < 4 || l.MaxMessage < 1<<20 || l.MaxWork < 1024 {
		t.Errorf("%+v", l)
	}
}
