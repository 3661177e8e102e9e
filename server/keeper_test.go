package server

import (
	"context"
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

// TestSocketOfFormerPortal: a daemon begins to listen where its keeper has a socket of a former configuration.
func TestSocketOfFormerPortal(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	path := filepath.Join(t.TempDir(), "k.sock")
	at, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(err)
	l, err := listenTCP("tcp4", "127.0.0.1:0")
	must(err)
	address := netip.MustParseAddrPort(l.Addr().String())
	p := keeper.Portal{Address: front.Address{IP: address.Addr(), Interface: "lo"}, Port: address.Port()}
	var portals atomic.Pointer[[]keeper.Portal] // of the configuration
	portals.Store(&[]keeper.Portal{p})
	k, err := keeper.New(keeper.Options{Socket: at, Portals: func() ([]keeper.Portal, error) { return *portals.Load(), nil }, Log: log})
	must(err)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.Serve(ctx) }()
	defer func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
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
