package isns

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/test/isnsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a client until the test ends or stop is called.
func run(t *testing.T, c *Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

var registration = Registration{
	Entity: "host.example",
	Targets: []Target{
		{Name: "iqn.2026-11.example.oneshot:a", Alias: "the first"},
		{Name: "iqn.2026-11.example.oneshot:b", Groups: []uint16{2}},
	},
	Portals: []Portal{{netip.MustParseAddrPort("192.0.2.1:3260"), 1}, {netip.MustParseAddrPort("[2001:db8::1]:860"), 2}},
}

// What isnsd makes of a registration, of a change of it, and of its end.
func TestIsnsd(t *testing.T) {
	s := isnsd.New(t)
	s.Start()
	c := NewClient(s.Addr, slog.New(slog.NewTextHandler(t.Output(), nil)))
	c.Set(registration)
	stop := run(t, c)
	s.Until("nodes", "oneshot:b", true)
	nodes, portals, groups, entities := s.List("nodes"), s.List("portals"), s.List("portal-groups"), s.List("entities")
	for _, x := range []struct {
		in, want string
		n        int
	}{
		{nodes, "iSCSI node type = Target", 2},
		{nodes, `iSCSI alias = "the first"`, 1},
		{portals, "Portal IP address = 192.0.2.1\n", 1},
		{portals, "Portal IP address = 2001:db8::1\n", 1},
		{portals, "port = 3260/tcp", 1},
		{groups, "Portal group tag = 1\n", 1},
		{groups, "Portal group tag = 2\n", 2},
		{groups, "Portal group address = 192.0.2.1\n", 1}, // b is not reached there
		{entities, `"host.example"`, 1},
	} {
		if strings.Count(x.in, x.want) != x.n {
			t.Errorf("want %q %d times in\n%s", x.want, x.n, x.in)
		}
	}
	changed := registration
	changed.Targets = []Target{changed.Targets[0], {Name: "iqn.2026-11.example.oneshot:c"}}
	c.Set(changed)
	s.Until("nodes", "oneshot:c", true)
	s.Until("nodes", "oneshot:b", false)
	changed.Targets = nil // a server that is told nothing would go on listing them
	c.Set(changed)
	s.Until("entities", "host.example", false)
	changed.Targets = []Target{{Name: "iqn.2026-11.example.oneshot:d"}}
	c.Set(changed)
	s.Until("nodes", "oneshot:d", true)
	changed.Targets = []Target{{Name: "iqn.2026-11.example.oneshot:e"}} // another speaks for the entity
	c.Set(changed)
	s.Until("nodes", "oneshot:e", true)
	s.Until("nodes", "oneshot:d", false)
	stop()
	s.Until("entities", "host.example", false)
}

// A server that comes later is told then.
func TestServerComesLater(t *testing.T) {
	s := isnsd.New(t)
	failed := make(chan struct{})
	c := NewClient(s.Addr, slog.New(&watch{slog.NewTextHandler(t.Output(), nil), failed, new(sync.Once)}))
	c.Set(registration)
	run(t, c)
	<-failed
	s.Start()
	s.Until("nodes", "oneshot:b", true)
}

// watch tells when a warning has been logged.
type watch struct {
	slog.Handler
	warned chan struct{}
	once   *sync.Once
}

func (w *watch) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		w.once.Do(func() { close(w.warned) })
	}
	return w.Handler.Handle(ctx, r)
}
