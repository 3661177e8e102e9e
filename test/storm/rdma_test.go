package storm

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/ddp"
	"oneshot/initiator"
	"oneshot/iser/isertest"
)

// TestRDMAConnections opens more RDMA connections without a login than the daemon has shared receives.
// Some send nothing, some send half of the startup of RDMA, and some send parts of a message. Meanwhile a
// session over iSER goes on, others log in, and the daemon's memory is bounded.
func TestRDMAConnections(t *testing.T) {
	d := start(t, `
stores: {a: {type: memory, size: 16MiB}, b: {type: file, path: $DIR/b.img, size: 16MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b}}]
portals: [{listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
management: {socket: $DIR/socket}
limits: {connections: 8192, login_timeout: 1h, memory: 128MiB}
`)
	raiseDescriptors(t, 4000)
	s, err := d.loginRDMA()
	if err != nil {
		t.Fatal(err)
	}
	w := d.witness(s)
	start := ddp.StartFrame{
		CRC: true, Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{IRD: 16, ORD: 16}, PrivateData: []byte{0xc0, 0, 0, 0}, // iSER: no ZBVA, no Send with Invalidate
	}
	for _, a := range []struct {
		name  string
		bound int64 // most memory in MiB that the attack may cost
		f     func(c net.Conn) error
	}{
		{"silence", 60, func(net.Conn) error { return nil }},
		{"half of an MPA Request", 60, func(c net.Conn) error {
			_, err := c.Write(start.AppendTo(nil)[:ddp.StartFrameHeader-1])
			return err
		}},
		{"half of an FPDU", 120, func(c net.Conn) error {
			b := unfinished()
			return begin(c, &start, b[:len(b)/2])
		}},
		{"the first segment of a message", 120, func(c net.Conn) error { return begin(c, &start, unfinished()) }},
	} {
		w.Works()
		var conns []net.Conn
		d.bounded(a.name, a.bound, func() {
			conns = d.connectRDMA(1100, a.f)
			w.Works()
			for range 5 {
				other, err := d.loginRDMA()
				if err == nil {
					err = other.Close()
				}
				if err != nil {
					t.Errorf("%s: an honest login: %v", a.name, err)
					break
				}
			}
			w.Works()
		})
		for _, c := range conns {
			_ = c.Close()
		}
		if t.Failed() {
			return
		}
	}
}

// loginRDMA logs in by iSER over iWARP.
func (d *daemon) loginRDMA() (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	return initiator.Dial(ctx, initiator.URL{Transport: initiator.ISER, Address: d.Portals[1], Target: iqn + "t", LUN: -1}, initiator.Options{})
}

// connectRDMA opens n connections to the RDMA portal, and calls f for each, which attacks. The target may
// end any of them to make room.
func (d *daemon) connectRDMA(n int, f func(net.Conn) error) []net.Conn {
	d.t.Helper()
	conns := make([]net.Conn, n)
	var wg sync.WaitGroup
	const side = 16
	for i := range side {
		wg.Go(func() {
			for k := i; k < n; k += side {
				c, err := net.DialTimeout("tcp", d.Portals[1], patience)
				if err != nil {
					d.t.Error(err)
					return
				}
				conns[k] = c
				if err := f(c); err != nil && !ended(err) {
					d.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if d.t.Failed() {
		d.t.FailNow()
	}
	return conns
}

func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// begin starts RDMA on c, and then sends b.
func begin(c net.Conn, start *ddp.StartFrame, b []byte) error {
	if _, err := c.Write(start.AppendTo(nil)); err != nil {
		return err
	}
	head := make([]byte, ddp.StartFrameHeader)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	n, err := ddp.StartFrameLen(head, true)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, c, int64(n-len(head))); err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// unfinished is an FPDU with the first octets of a Send whose last segment never comes.
func unfinished() []byte {
	var f ddp.Format
	payload := make([]byte, 256)
	u := ddp.Untagged{Control: f.Control(ddp.Send, false), MSN: 1, Payload: len(payload)}
	return ddp.AppendFPDUTrailer(append(f.AppendUntagged(nil, u), payload...), 0)
}

// offences are those that tests beside the code try against a target alone: here against a daemon that serves others.
func (g *commander) offences() {
	for range 4 {
		for _, o := range isertest.Offences(iqn + "t") {
			var peers []*isertest.Peer
			o.Do(g.t, func(direct bool, offer ddp.OneShotFlags) *isertest.Peer {
				p := isertest.Connect(g.t, g.Portals[1], direct, offer)
				p.ISID, p.LUN = byte(len(peers)), 4
				peers = append(peers, p)
				return p
			})
			for _, p := range peers {
				_ = p.Conn.Close()
			}
			if g.t.Failed() {
				g.t.Logf("after %q", o.Name)
				return
			}
		}
	}
}
