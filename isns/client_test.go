package isns

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// Run ends while a registration has no answer yet: the server may have it, and is told to forget it.
func TestUnansweredIsTakenBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := NewClient(l.Addr().String(), slog.New(slog.DiscardHandler))
	c.Set(Registration{
		Entity: "here", Targets: []Target{{Name: "iqn.2026-11.com.example:a"}},
		Portals: []Portal{{Address: netip.MustParseAddrPort("192.0.2.1:3260"), Group: 1}},
	})
	var got []uint16
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			h := make([]byte, headerLen)
			if _, err := io.ReadFull(conn, h); err != nil {
				t.Error(err)
			}
			function := binary.BigEndian.Uint16(h[2:])
			got = append(got, function)
			stop() // while the first one waits
			if function == functionDereg {
				m := newMessage(function|response, 0, binary.BigEndian.Uint16(h[8:]))
				m.b = append(m.b, 0, 0, 0, 0)
				b, _ := m.bytes()
				_, _ = conn.Write(b)
			}
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	c.Run(ctx)
	_ = l.Close()
	<-served
	if !slices.Equal(got, []uint16{functionReg, functionDereg}) {
		t.Errorf("the server was sent %#x", got)
	}
}
