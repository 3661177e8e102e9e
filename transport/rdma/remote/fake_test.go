//go:build verbs && !guest && cgo && linux

package remote_test

import (
	"log/slog"
	"testing"
	"time"

	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
	"oneshot/transport/rdma/verbs"
	"oneshot/transport/rdma/verbs/fake"
)

func init() { fake.Install() }

// newFake opens the device of a test, at which both ends are.
func newFake(t testing.TB, c fake.Config) rdma.Device {
	t.Helper()
	fake.BeginTest(t, c)
	d, err := verbs.Open(verbs.Config{Name: fake.Name, LingerTime: time.Second, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { check(t, d.Close()) })
	return d
}

// The suite, over package verbs with the fake device of its tests.
func TestEndpointsOverVerbs(t *testing.T) {
	for name, c := range map[string]fake.Config{
		"InfiniBand, late reads": {LateReads: true},
		"siw":                    {IWARP: true, Siw: true},
	} {
		t.Run(name, func(t *testing.T) {
			rdmatest.RunEndpoint(t, func(t *testing.T, s *rdmatest.Volatile) rdmatest.Endpoint {
				dev := newFake(t, c)
				f := newFar(t, s, dev, "127.0.0.1:0", service.Config{})
				d := open(t, remote.Config{Device: dev})
				return rdmatest.Endpoint{Device: d, Address: f.l.Addr().String() + "/disk/log", Store: s, Revoke: f.revoke, Wire: true, Quick: true}
			})
		})
	}
}

// A card whose Reads need memory that the peer may write to is not used: clients could reach the I/O memory of
// others.
func TestCardIsRefused(t *testing.T) {
	dev := newFake(t, fake.Config{IWARP: true})
	f := &far{t: t}
	if _, err := service.New(service.Config{Device: dev, Opener: f}); err == nil {
		t.Error("partitions are served over an iWARP card")
	}
}
