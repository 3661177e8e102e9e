package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"oneshot/ha/front"
	"oneshot/ha/keeper"
)

// keptBy runs a keeper, whose configuration has some portals, until the test ends, and returns its socket.
func keptBy(t *testing.T, portals *atomic.Pointer[[]keeper.Portal]) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "k.sock")
	at, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.New(keeper.Options{Socket: at, Portals: func() ([]keeper.Portal, error) { return *portals.Load(), nil }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.Serve(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

// TestSocketOfAbandonedPortal: nobody listens at an address that was to go with a mirror by a reload that has failed.
func TestSocketOfAbandonedPortal(t *testing.T) {
	address := freeAddress(t)
	var portals atomic.Pointer[[]keeper.Portal] // of the file
	portals.Store(new([]keeper.Portal))
	text, on := mirrorOn(t)
	text = strings.Replace(text, "state: consensus", "state: consensus, keeper: {socket: "+keptBy(t, &portals)+"}", 1)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	p := keeper.Portal{Address: front.Address{IP: address.Addr(), Interface: "lo"}, Port: address.Port()}
	portals.Store(&[]keeper.Portal{p})
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	next := strings.Replace(text, "portals: [", fmt.Sprintf("portals: [{mirror: d, listen: %q, group: 10, interface: lo}, {node: a, listen: %q, group: 11}, ", address, busy.Addr()), 1)
	if _, err := s.Apply(on(next)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a reload at a port that is in use: %v", err)
	}
	if err := busy.Close(); err != nil {
		t.Error(err)
	}
	if l, err := listenAnywhere("tcp4", address.String()); err != nil {
		t.Error(err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestSocketOfPortalThatLeft: when a reload has ended nobody listens where an address went with a mirror before, so that the next one may.
func TestSocketOfPortalThatLeft(t *testing.T) {
	address := freeAddress(t)
	p := keeper.Portal{Address: front.Address{IP: address.Addr(), Interface: "lo"}, Port: address.Port()}
	var portals atomic.Pointer[[]keeper.Portal] // of the file
	portals.Store(&[]keeper.Portal{p})
	without, on := mirrorOn(t)
	without = strings.Replace(without, "state: consensus", "state: consensus, keeper: {socket: "+keptBy(t, &portals)+"}", 1)
	with := strings.Replace(without, "portals: [", fmt.Sprintf("portals: [{mirror: d, listen: %q, group: 10, interface: lo}, ", address), 1)
	s := newServer(t, on(with))
	defer shutdown(t, s)
	portals.Store(new([]keeper.Portal))
	if _, err := s.Apply(on(without)); err != nil {
		t.Fatal(err)
	}
	if l, err := listenAnywhere("tcp4", address.String()); err != nil {
		t.Error(err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// freeAddress is one that moves, at which nobody listens.
func freeAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := listenAnywhere("tcp4", "192.0.2.10:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestSocketOfFormerPortal: a daemon begins to listen where its keeper has a socket of a former configuration.
func TestSocketOfFormerPortal(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	l, err := listenTCP("tcp4", "127.0.0.1:0")
	must(err)
	address := netip.MustParseAddrPort(l.Addr().String())
	p := keeper.Portal{Address: front.Address{IP: address.Addr(), Interface: "lo"}, Port: address.Port()}
	var portals atomic.Pointer[[]keeper.Portal] // of the configuration
	portals.Store(&[]keeper.Portal{p})
	path := keptBy(t, &portals)
	former := keeper.NewClient(path, log)
	l, err = former.Listen(p, func() (*net.TCPListener, error) { return l, nil })
	must(err)
	must(l.Close())
	must(former.Close())

	portals.Store(new([]keeper.Portal))
	text, on := clusterOn(t)
	m, err := openMember(on(strings.Replace(text, "state: consensus", "state: consensus, keeper: {socket: "+path+"}", 1)), log)
	must(err)
	l, err = listenTCP("tcp4", address.String())
	if err != nil {
		t.Error(err)
	} else {
		must(l.Close())
	}
	must(m.close())
}
