package server

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse(filepath.Join(t.TempDir(), "test.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const one = `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d, 1: d, 2: {store: d, readonly: true}}}]
portals: [{transport: tcp, listen: "127.0.0.1:0"}]
`

// Serve and Shutdown may be called in any order, and at the same time. Everything ends each time.
func TestServeMeetsShutdown(t *testing.T) {
	for range 50 {
		s, err := New(parse(t, one), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Serve(); err != nil {
				t.Error(err)
			}
		})
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// LUNs that show a store in the same way share one logical unit, which is closed once.
func TestUnitsAreShared(t *testing.T) {
	s, err := New(parse(t, one), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.units.made); n != 2 {
		t.Errorf("%d logical units of three LUNs, two of them alike", n)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// If a port or a store is in use, New returns one line that says what to change, and releases what it
// has opened.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	file := filepath.Join(t.TempDir(), "disk.img")
	config := func(address string) string {
		return `
stores: {d: {type: file, path: ` + file + `, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{transport: tcp, listen: "` + address + `"}]
`
	}
	check := func(text, want string) {
		t.Helper()
		_, err := New(parse(t, text), slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, which does not say %q in one line", err, want)
		}
	}
	check(config(l.Addr().String()), "choose another")
	first, err := New(parse(t, config("127.0.0.1:0")), slog.New(slog.DiscardHandler)) // the store is free again
	if err != nil {
		t.Fatal(err)
	}
	check(config("127.0.0.1:0"), "in use")
	if err := first.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// A portal on all addresses of one IP version accepts nothing over the other.
func TestPortalsOfOneVersion(t *testing.T) {
	for _, transport := range []string{"tcp", "iwarp"} {
		for address, want := range map[string]string{"0.0.0.0:0": "0.0.0.0:", "[::]:0": "[::]:"} {
			r := serve(t, `
stores: {m: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{transport: `+transport+`, listen: "`+address+`"}]
`)
			if got := r.Addrs()[0].String(); !strings.HasPrefix(got, want) {
				t.Errorf("%s: a portal at %s listens at %s", transport, address, got)
			}
		}
	}
}
