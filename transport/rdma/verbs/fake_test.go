//go:build verbs && !guest && cgo && linux

package verbs

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/verbs/fake"
)

// These tests use package fake, on machines without RDMA. In a virtual machine with devices, suite_test.go
// replaces them.

func TestMain(m *testing.M) {
	fake.Install()
	goleak.VerifyTestMain(m)
}

const listenAt = "127.0.0.1:0"

// openFake opens the device of a test until it ends.
func openFake(t *testing.T, c Config) *Device {
	t.Helper()
	c.Name, c.Logger = fake.Name, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.LingerTime == 0 { // no test may depend on it but those that set it
		c.LingerTime = time.Hour
	}
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*Device)
}

var kinds = map[string]fake.Config{
	"InfiniBand":              {},
	"InfiniBand, late reads":  {LateReads: true},
	"rxe, no flush":           {Rxe: true, LateFlush: true},
	"InfiniBand, cleans":      {Clean: true},
	"iWARP card":              {IWARP: true},
	"siw":                     {IWARP: true, Siw: true},
	"siw, late reads, blames": {IWARP: true, Siw: true, LateReads: true, Blames: true},
}

func TestSuite(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			fake.BeginTest(t, c)
			rdmatest.Run(t, func(t *testing.T) rdmatest.Pair {
				d := openFake(t, Config{})
				p := rdmatest.Pair{Client: d, Server: d, Listen: listenAt, Defects: rdmatest.Defects{EmptyReads: c.Siw, ReadRights: c.Siw}}
				if c.Blames {
					p.Defects.Farewell = ErrResponse
				}
				return p
			})
		})
	}
}

var _ rdma.Device = (*Device)(nil)
