package iwarp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// plainRequestFrame is a good Request of revision 2.
func plainRequestFrame() []byte {
	f := setup{}.frame(false)
	return f.AppendTo(nil)
}

// edited returns a frame with its octets from off on replaced by b.
func edited(frame []byte, off int, b ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[off:], b)
	return frame
}

// Invalid Requests (RFC 5044 §7.1.2, RFC 6581 §10): the connection is closed without an answer, and
// Accept does not return them.
func TestRequestOffences(t *testing.T) {
	good := plainRequestFrame()
	l := listen(t, open(t, iwarp.Config{}))
	for name, b := range map[string][]byte{
		"key":              edited(good, 15, 'E'),
		"key of a Reply":   edited(good, 9, 'p'),
		"another protocol": []byte("GET / HTTP/1.1\r\nHost: storage\r\n\r\n"),
		"PD_Length 513":    append(edited(good, 18, 2, 1), make([]byte, 509)...),
		"PD_Length 65535":  edited(good, 18, 0xff, 0xff),
		"revision 0":       edited(good, 17, 0),
		"revision 3":       edited(good, 17, 3),
		"S without room":   edited(good[:22], 18, 0, 2),
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, l)
			p.write(b)
			p.quiet()
		})
	}
	t.Run("cut", func(t *testing.T) {
		for n := range good {
			p := dial(t, l)
			p.write(good[:n])
			must(t, p.c.CloseWrite())
			p.quiet()
		}
	})
	t.Run("M", func(t *testing.T) { // markers are declined with a rejection
		p := dial(t, l)
		p.write(edited(good, 16, 0xd0))
		if r := p.startFrame(true); !r.Reject || r.Markers {
			t.Errorf("Reply %+v; want a rejection", r)
		}
		p.quiet()
	})
	t.Run("nobody was bothered", func(t *testing.T) {
		go l.Close()
		if r, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %+v, %v", r, err)
		}
	})
}

// A peer that stops within its Request is dropped after StartupTimeout, whatever it has sent.
func TestRequestStops(t *testing.T) {
	good := plainRequestFrame()
	l := listen(t, open(t, iwarp.Config{StartupTimeout: 10 * time.Millisecond}))
	for _, n := range []int{0, 1, 16, 19, 20, len(good) - 1} {
		p := dial(t, l)
		p.write(good[:n])
		p.quiet()
	}
}

// Revision 1 is answered with revision 1 (RFC 6581 §10), and works.
func TestRevision1(t *testing.T) {
	s := newSubject(t, open(t, iwarp.Config{}))
	l := listen(t, s.dev)
	p := dial(t, l)
	f := ddp.StartFrame{Revision: 1, PrivateData: []byte("hello")}
	p.write(f.AppendTo(nil))
	r, err := l.Accept()
	must(t, err)
	if string(r.PeerData()) != "hello" {
		t.Errorf("private data %q", r.PeerData())
	}
	must(t, r.Accept(s.qp, rdma.ConnParams{OneShot: setup{shot: byFlags}.offer()}))
	if f := p.startFrame(true); f.Revision != 1 || f.HasEnhanced || f.Reject || !f.CRC || len(f.PrivateData) > 0 {
		t.Errorf("Reply %+v", f)
	}
	s.receive(100)
	p.send(p.message(ctlSend, 0, 1, 20))
	s.delivered()
}

// A responder sends nothing before the initiator has (RFC 5044 §7.1.2 rule 4).
func TestResponderWaits(t *testing.T) {
	s, p := responder(t, setup{})
	s.post(rdma.Work{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: s.sge(0, 10)})
	if n := s.qp.Counters().MessagesOut; n != 0 {
		t.Errorf("%d messages sent before the first one has come", n)
	}
	p.send(tagged(ctlWrite, 0, 0, 0))
	if f := p.fpdu(); f == nil || binary.BigEndian.Uint16(f[2:]) != ctlSend {
		t.Errorf("%x; want the Send", f)
	}
	if c := s.next(); c.Op != rdma.OpSend || c.Status != rdma.StatusOK {
		t.Errorf("%+v", c)
	}
}

// Replies that a connecting end cannot accept. If the peer believes that the connection is up, the answer
// is a Terminate; otherwise the connection is just closed.
func TestReplyOffences(t *testing.T) {
	shot := setup{shot: byFlags}
	plain := func(f func(*ddp.StartFrame)) func(setup) []byte {
		return func(x setup) []byte {
			r := x.frame(true)
			f(&r)
			return r.AppendTo(nil)
		}
	}
	with := func(o ddp.OneShot) func(setup) []byte {
		return plain(func(r *ddp.StartFrame) { r.PrivateData = o.AppendTo(make([]byte, ddp.CMHeaderLen)) })
	}
	for _, c := range []struct {
		name  string
		setup setup
		p2p   bool
		reply func(setup) []byte
		cause ddp.Cause
	}{
		{name: "key", reply: func(x setup) []byte { return edited(plain(func(*ddp.StartFrame) {})(x), 3, 'x') }, cause: ddp.NoTerminate},
		{name: "Request", reply: func(setup) []byte { return plainRequestFrame() }, cause: ddp.NoTerminate},
		{name: "PD_Length", reply: func(x setup) []byte { return edited(plain(func(*ddp.StartFrame) {})(x), 18, 9, 9) }, cause: ddp.NoTerminate},
		{name: "cut", reply: func(x setup) []byte { return plain(func(*ddp.StartFrame) {})(x)[:21] }, cause: ddp.NoTerminate},
		{name: "M", reply: plain(func(r *ddp.StartFrame) { r.Markers = true }), cause: ddp.MPAStartup},
		{name: "no S", reply: plain(func(r *ddp.StartFrame) { r.HasEnhanced = false }), cause: ddp.MPAStartup},
		{name: "revision 1", reply: plain(func(r *ddp.StartFrame) { r.HasEnhanced, r.Revision = false, 1 }), cause: ddp.MPAStartup},
		{name: "peer-to-peer, not asked for", reply: plain(func(r *ddp.StartFrame) { r.Enhanced.PeerToPeer = true }), cause: ddp.MPAStartup},
		{name: "peer-to-peer, not answered", p2p: true, reply: plain(func(*ddp.StartFrame) {}), cause: ddp.MPAStartup},
		{name: "no RTR", p2p: true, reply: plain(func(r *ddp.StartFrame) {
			r.Enhanced.PeerToPeer, r.Enhanced.RTRSend = true, true
		}), cause: ddp.MPANoRTR},
		{name: "ORD above our IRD", reply: plain(func(r *ddp.StartFrame) { r.Enhanced.ORD = 100 }), cause: ddp.MPAInsufficientIRD},
		{name: "serves no Reads", reply: plain(func(r *ddp.StartFrame) { r.Enhanced.IRD = 0 }), cause: ddp.MPAInsufficientIRD},
		{name: "container not offered", reply: with(shot.agreed()), cause: ddp.MPAStartup},
		{name: "encoding not offered", setup: shot, reply: with(setup{shot: byOpcodes}.agreed()), cause: ddp.MPAStartup},
		{name: "two encodings", setup: shot, reply: with(setup{shot: byOpcodes | byFlags}.agreed()), cause: ddp.MPAStartup},
		{name: "feature not offered", setup: setup{shot: closeAlone}, reply: with(shot.agreed()), cause: ddp.MPAStartup},
		{name: "no feature", setup: shot, reply: with(setup{shot: ddp.OfferEvery | ddp.OfferFlags}.agreed()), cause: ddp.MPAStartup},
		{name: "window above what is wanted", setup: shot, reply: with(setup{shot: byFlags, window: 3}.agreed()), cause: ddp.MPAStartup},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.setup.config.ClientServer = !c.p2p
			s := newSubject(t, open(t, c.setup.config))
			p, done := connecting(t, s, c.setup, nil)
			p.write(c.reply(c.setup))
			if c.name == "cut" {
				must(t, p.c.CloseWrite())
			}
			if err := <-done; err == nil {
				t.Error("connected")
			}
			if c.cause == ddp.NoTerminate {
				p.quiet()
			} else {
				p.terminate(c.cause, nil)
			}
		})
	}
}

// A rejection gets no answer, and Connect's error has its private data.
func TestReplyRejects(t *testing.T) {
	s := newSubject(t, open(t, iwarp.Config{}))
	p, done := connecting(t, s, setup{}, nil)
	f := setup{}.frame(true)
	f.Reject, f.PrivateData = true, []byte("no")
	p.write(f.AppendTo(nil))
	err := <-done
	if e, ok := errors.AsType[*rdma.RejectedError](err); !ok || string(e.PrivateData) != "no" {
		t.Errorf("Connect: %v", err)
	}
	p.quiet()
}

// A peer that stops within its Reply is dropped after StartupTimeout.
func TestReplyStops(t *testing.T) {
	good := func() []byte { f := setup{}.frame(true); return f.AppendTo(nil) }()
	dev := open(t, iwarp.Config{StartupTimeout: 400 * time.Millisecond}) // the TCP connection has to be made within it, too
	for _, n := range []int{0, 19, len(good) - 1} {
		p, done := connecting(t, newSubject(t, dev), setup{}, nil)
		p.write(good[:n])
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Connect: %v, want %v", err, context.DeadlineExceeded)
		}
		p.quiet()
	}
}
