//go:build verbs && !guest && cgo && linux

package iser

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"oneshot/iscsi"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
	"oneshot/transport/rdma/verbs/fake"
)

// These tests run over the devices of package fake: what is said of the provider in user space holds over the kernel's
// devices, too.

func init() { fake.Install() }

// fakes are the kinds of device whose differences matter here.
var fakes = map[string]fake.Config{
	"InfiniBand": {}, "InfiniBand, cleans": {Clean: true}, "iWARP card": {IWARP: true}, "siw": {IWARP: true, Siw: true},
}

// openFake opens the device of a test, which closes it.
func openFake(t *testing.T, c fake.Config) rdma.Device {
	t.Helper()
	c.Node = filepath.Join(t.TempDir(), "node")
	check(t, os.Mkdir(c.Node, 0o700))
	fake.Begin(c)
	d, err := verbs.Open(verbs.Config{
		Name: fake.Name, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), LingerTime: 50 * time.Millisecond,
	})
	check(t, err)
	return d
}

// dialFake connects to b over its own device. Answers do not invalidate the client's STag, which not every device could.
func dialFake(b *bench, d rdma.Device) *client {
	b.t.Helper()
	c := dial(b.t, keptDevice{d}, b.l.Addr().String(), rdma.ConnParams{PrivateData: []byte{noZBVA | noInvalidate, 0, 0, 0}})
	if c.window != nil {
		check(b.t, c.window.Free())
		c.window = nil
	}
	return c
}

func TestVerbsNewSessionFindsNoReservation(t *testing.T) {
	for kind, c := range fakes {
		t.Run(kind, func(t *testing.T) {
			d := openFake(t, c)
			l := &late{Device: d, told: make(chan struct{})}
			b := newBenchOn(t, 64<<20, l, "127.0.0.1:0")
			newSessionFindsNoReservation(t, l, func() *client { return dialFake(b, d) })
		})
	}
}

// TestVerbsReadsWithoutAnswer: an initiator that answers no RDMA Read loses its connection, and the target has the memory
// back, also where nobody is pinged.
func TestVerbsReadsWithoutAnswer(t *testing.T) {
	const readTimeout = 20
	for kind, k := range fakes {
		t.Run(kind, func(t *testing.T) {
			d := openFake(t, k)
			b := newBenchOn(t, 64<<20, d, "127.0.0.1:0")
			b.node.SetLimits(iscsi.Limits{Connections: 10, Sessions: 10, LoginTimeout: 15, ReadTimeout: readTimeout})
			c := dialFake(b, d)
			c.logIn("")
			c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
			fake.HoldReads()
			t.Cleanup(fake.Release)
			c.start(rw16(0x8a, 0, 8), true, false, 0, 4096, 0)
			c.do(make([]byte, 6), false, false, 0, 0) // the target has taken the WRITE before this
			for range readTimeout {
				b.node.Tick()
			}
			c.do(make([]byte, 6), false, false, 0, 0)
			b.node.Tick()
			for {
				if _, ok := c.receive(); !ok {
					break
				}
			}
			<-c.over
			wait(func() bool { return b.node.Connections() == 0 && b.pool.Stats().Leases == b.leases })
		})
	}
}
