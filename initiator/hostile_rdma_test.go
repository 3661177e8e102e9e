package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"oneshot/initiator"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// rdmaTarget is a target over one-shot RDMA that does as the test says.
type rdmaTarget struct {
	t      testing.TB
	qp     rdma.QueuePair
	cq     rdma.CompletionQueue
	memory rdma.Region
	wake   chan struct{}
	ended  chan error
	statSN serial.SN
}

const hostileSlots, hostileSlot = 32, 9 << 10

// next returns the next message and the STag that it advertises. False: the connection has ended.
func (g *rdmaTarget) next() (h pdu.Header, data []byte, stag rdma.STag, ok bool) {
	var c [1]rdma.Completion
	for {
		for g.cq.Poll(c[:]) == 0 {
			if g.cq.Arm() {
				<-g.wake
			}
		}
		switch {
		case c[0].Status != rdma.StatusOK:
			return nil, nil, 0, false
		case c[0].Op != rdma.OpReceive:
			continue
		}
		b := bytes.Clone(g.memory.Bytes()[int(c[0].ID)*hostileSlot:][:c[0].Bytes])
		h = pdu.Header(b[:pdu.BHSLen])
		if c[0].Flags&rdma.Advertised != 0 {
			stag = c[0].STag
		}
		return h, b[pdu.BHSLen:][:h.DataSegmentLen()], stag, true
	}
}

// say sends a PDU. stag, if it is not 0, is closed with it.
func (g *rdmaTarget) say(f interface{ AppendTo([]byte) []byte }, data []byte, stag rdma.STag) {
	b := append(f.AppendTo(nil), data...)
	b = append(b, make([]byte, pdu.PaddedLen(len(data))-len(data))...)
	w := rdma.Work{Op: rdma.OpSend, Flags: rdma.Inline, SGL: []rdma.SGE{{Bytes: b}}}
	if stag != 0 {
		w.Flags, w.STag = rdma.Inline|rdma.Close, stag
	}
	if _, err := g.qp.Post([]rdma.Work{w}); err != nil && !errors.Is(err, rdma.ErrDisconnected) {
		g.t.Errorf("the target posts: %v", err)
	}
}

func (g *rdmaTarget) sequence() pdu.Sequence {
	g.statSN++
	return pdu.Sequence{StatSN: g.statSN - 1, ExpCmdSN: 1, MaxCmdSN: 100}
}

// logIn agrees to everything.
func (g *rdmaTarget) logIn() bool {
	for {
		h, _, _, ok := g.next()
		if !ok {
			return false
		}
		r, err := pdu.ParseLoginRequest(h)
		if err != nil {
			return false
		}
		keys := []byte("InitialR2T=Yes\x00ImmediateData=No\x00")
		if r.CSG() == pdu.StageSecurityNegotiation {
			keys = []byte("AuthMethod=None\x00TargetPortalGroupTag=1\x00")
		}
		g.say(&pdu.LoginResponseFields{
			Transit: true, CSG: r.CSG(), NSG: r.NSG(), ISID: r.ISID(), TSIH: 1, ITT: r.ITT(), DataSegmentLength: len(keys), Sequence: g.sequence(),
		}, keys, 0)
		if r.NSG() == pdu.StageFullFeaturePhase {
			return true
		}
	}
}

// dialRDMA connects with a target that does as f says after the login. ended is told how the
// target's end of the connection ends.
func dialRDMA(t testing.TB, f func(*rdmaTarget)) (s *initiator.Session, ended <-chan error) {
	t.Helper()
	return dialRDMAWith(t, 32, f)
}

// dialRDMAWith is dialRDMA for a target that takes as many advertised STags as window says.
func dialRDMAWith(t testing.TB, window uint32, f func(*rdmaTarget)) (s *initiator.Session, ended <-chan error) {
	t.Helper()
	s, ended, err := tryRDMA(t, rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: window}, f)
	check(t, err)
	return s, ended
}

// tryRDMA is dialRDMA for a target that agrees to what offer says, and for an initiator that may refuse that.
func tryRDMA(t testing.TB, offer rdma.OneShotOffer, f func(*rdmaTarget)) (s *initiator.Session, ended <-chan error, err error) {
	t.Helper()
	dev, err := iwarp.Open(iwarp.Config{})
	check(t, err)
	l, err := dev.Listen("127.0.0.1:0")
	check(t, err)
	dom, err := dev.NewDomain()
	check(t, err)
	g := &rdmaTarget{t: t, wake: make(chan struct{}, 1), ended: make(chan error, 1)}
	g.memory, err = dom.Register(make([]byte, hostileSlots*hostileSlot), rdma.AccessLocalWrite)
	check(t, err)
	g.cq, err = dev.NewCompletionQueue(256, func() {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	g.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: g.cq, RecvCQ: g.cq, MaxWork: 64, MaxRecv: hostileSlots, Disconnected: func(err error) { g.ended <- err },
	})
	check(t, err)
	for i := range hostileSlots {
		_, err := g.qp.PostReceive([]rdma.Receive{{ID: uint64(i), SGL: []rdma.SGE{{
			Bytes: g.memory.Bytes()[i*hostileSlot:][:hostileSlot], Region: g.memory,
		}}}})
		check(t, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		r, err := l.Accept()
		if err != nil {
			return
		}
		if err := r.Accept(g.qp, rdma.ConnParams{OneShot: &offer}); err == nil && g.logIn() {
			f(g)
		}
	})
	t.Cleanup(func() {
		check(t, l.Close())
		check(t, g.qp.Close())
		wg.Wait()
		check(t, g.cq.Close())
		check(t, g.memory.Deregister())
		check(t, dev.Close())
	})
	u, err := initiator.ParseURL("oneshot+iwarp://" + l.Addr().String() + "/" + iqn)
	check(t, err)
	s, err = initiator.Dial(t.Context(), u, initiator.Options{})
	return s, g.ended, err
}

// A target that agrees to half of one-shot is refused at once: the first answer would end the session.
func TestHalfOneShot(t *testing.T) {
	for _, offer := range []rdma.OneShotOffer{{Flags: true, Advertise: true, Window: 32}, {Flags: true, Close: true, Window: 32}} {
		s, _, err := tryRDMA(t, offer, func(*rdmaTarget) {})
		if err == nil || !strings.Contains(err.Error(), "does not agree to one-shot RDMA") {
			t.Errorf("%+v: %v", offer, err)
		}
		if s != nil {
			_ = s.Close()
		}
	}
}

// One-shot's step 16: a target that closes other memory than that of the command it answers, or
// closes with a PDU that ends no command, is not to be trusted. It is told 0/2/07, and the session ends.
func TestWrongClose(t *testing.T) {
	type command struct {
		itt  uint32
		stag rdma.STag
	}
	good := func(g *rdmaTarget, itt uint32, stag rdma.STag) {
		g.say(&pdu.SCSIResponseFields{ITT: itt, Sequence: g.sequence()}, nil, stag)
	}
	for name, c := range map[string]struct {
		offend func(g *rdmaTarget, a, b command)
		says   string
	}{
		"that of another command": {
			func(g *rdmaTarget, a, b command) { good(g, a.itt, b.stag) }, "whose memory is another",
		},
		"with the answer to no command": {
			func(g *rdmaTarget, a, _ command) { good(g, 0x7fff0000, a.stag) }, "whose memory is another",
		},
		"with a NOP-In": {
			func(g *rdmaTarget, a, _ command) {
				g.say(&pdu.NOPInFields{ITT: pdu.ReservedTag, TTT: 1, Sequence: g.sequence()}, nil, a.stag)
			}, "ends no command",
		},
		"with a NOP-In for the ITT of the command": {
			func(g *rdmaTarget, a, _ command) {
				g.say(&pdu.NOPInFields{ITT: a.itt, TTT: pdu.ReservedTag, Sequence: g.sequence()}, nil, a.stag)
			}, "ends no command",
		},
		"with an Async Message": {
			func(g *rdmaTarget, a, _ command) {
				g.say(&pdu.AsyncFields{Event: pdu.AsyncVendor, Sequence: g.sequence()}, nil, a.stag)
			}, "ends no command",
		},
		"with the answer to a function that nobody asked for": {
			func(g *rdmaTarget, a, _ command) {
				g.say(&pdu.TaskManagementResponseFields{ITT: 0x80000001, Sequence: g.sequence()}, nil, a.stag)
			}, "whose memory is another",
		},
		"with a Reject of another command": {
			func(g *rdmaTarget, a, b command) {
				bad := pdu.SCSICommandFields{Final: true, ITT: b.itt, CDB: make([]byte, 6)}
				g.say(&pdu.RejectFields{Reason: pdu.RejectProtocolError, DataSegmentLength: pdu.BHSLen, Sequence: g.sequence()}, bad.AppendTo(nil), a.stag)
			}, "whose memory is another",
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s, ended := dialRDMA(t, func(g *rdmaTarget) {
				var cs []command
				for len(cs) < 2 {
					h, _, stag, ok := g.next()
					if !ok || stag == 0 {
						t.Errorf("no command with an STag: % x", h)
						return
					}
					cs = append(cs, command{h.ITT(), stag})
				}
				c.offend(g, cs[0], cs[1])
				for ok := true; ok; {
					_, _, _, ok = g.next()
				}
			})
			says := c.says
			done := make(chan *initiator.Command, 2)
			var both [2]*initiator.Command
			for i := range both {
				both[i] = &initiator.Command{
					CDB: []byte{0x88, 13: 8, 15: 0}, In: make([]byte, 4096), Done: func(c *initiator.Command) { done <- c },
				}
			}
			s.Start(both[:]...)
			for range both {
				if c := <-done; c.Err == nil || !strings.Contains(c.Err.Error(), "closes STag") || !strings.Contains(c.Err.Error(), says) {
					t.Errorf("a command ends with status %d, %v", c.Status, c.Err)
				}
			}
			peer, ok := errors.AsType[*iwarp.PeerError](<-ended)
			if !ok {
				t.Fatalf("the target's end of the connection ends without a Terminate")
			}
			if layer, etype, code := peer.Cause.Layer(), peer.Cause.Etype(), peer.Cause.Code(); layer != 0 || etype != 2 || code != 7 {
				t.Errorf("the target is told %v", peer)
			}
			_ = s.Close()
		})
	}
}

// What closes right is taken: the response, a Reject of the command, the response to its ABORT TASK.
func TestRightClose(t *testing.T) {
	noLeaks(t)
	asked := make(chan struct{})
	s, _ := dialRDMA(t, func(g *rdmaTarget) {
		var kept rdma.STag
		for i := 0; ; i++ {
			h, _, stag, ok := g.next()
			switch {
			case !ok:
				return
			case h.Opcode() == pdu.OpLogoutRequest:
				g.say(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil, 0)
			case h.Opcode() == pdu.OpTaskManagementRequest:
				g.say(&pdu.TaskManagementResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil, kept)
			case i == 1:
				g.say(&pdu.RejectFields{Reason: pdu.RejectProtocolError, DataSegmentLength: pdu.BHSLen, Sequence: g.sequence()}, h[:pdu.BHSLen], stag)
			case i == 2:
				kept = stag
				close(asked)
			default:
				g.say(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil, stag)
			}
		}
	})
	read := func(ctx context.Context) error {
		return s.Do(ctx, &initiator.Command{CDB: []byte{0x88, 13: 8, 15: 0}, In: make([]byte, 4096)})
	}
	check(t, read(t.Context()))
	if err := read(t.Context()); err == nil || !strings.Contains(err.Error(), "rejects") {
		t.Errorf("a command that is rejected ends with %v", err)
	}
	ctx, cancel := newContext(t)
	done := make(chan error)
	go func() { done <- read(ctx) }()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, ctx.Err()) {
		t.Errorf("a command that is aborted ends with %v", err)
	}
	check(t, read(t.Context()))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Data may lie in pieces, whatever the way.
func TestPieces(t *testing.T) {
	each(t, func(t *testing.T, s *initiator.Session) {
		l, err := s.LU(t.Context(), 0)
		check(t, err)
		for _, sizes := range [][]int{{512}, {100, 412}, {1, 4000, 95}, {511, 1, 65536, 0, 512 * 100, 512}, {512 * 1000, 512 * 24}} {
			n := 0
			var out, in [][]byte
			for i, k := range sizes {
				out = append(out, pattern(k, uint64(i+k)))
				in = append(in, make([]byte, k))
				n += k
			}
			w := &initiator.Command{OutV: out}
			check(t, l.Prepare(w, 4096))
			check(t, s.Do(t.Context(), w))
			if w.Transferred != n {
				t.Errorf("%v: %d bytes written", sizes, w.Transferred)
			}
			flat := make([]byte, n)
			if _, err := l.ReadAt(flat, 4096); err != nil || !bytes.Equal(flat, bytes.Join(out, nil)) {
				t.Fatalf("%v: other bytes are on the disk (%v)", sizes, err)
			}
			r := &initiator.Command{InV: in}
			check(t, l.Prepare(r, 4096))
			for range 2 { // a command may be used again
				for _, p := range in {
					clear(p)
				}
				check(t, s.Do(t.Context(), r))
				if r.Transferred != n || !bytes.Equal(bytes.Join(in, nil), flat) {
					t.Fatalf("%v: %d bytes read, or others", sizes, r.Transferred)
				}
			}
		}
		both := &initiator.Command{CDB: make([]byte, 6), Out: make([]byte, 1), OutV: [][]byte{{1}}}
		if err := s.Do(t.Context(), both); err == nil {
			t.Error("data in one piece and in several is taken")
		}
	})
}

// In one-shot no memory is registered for a command, wherever it lies.
func TestOneShotRegistersNothing(t *testing.T) {
	for _, w := range ways {
		if !strings.HasPrefix(w.url, "oneshot") {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			s := w.dial(t, targettest.Start(t, config))
			defer s.Close()
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			before := s.Counters()
			for i := range 20 {
				c := &initiator.Command{OutV: [][]byte{pattern(20000, 1), pattern(480, 2)}}
				if i%2 == 0 {
					c = &initiator.Command{In: make([]byte, 20480)}
				}
				check(t, l.Prepare(c, 0))
				check(t, s.Do(t.Context(), c))
			}
			if d := s.Counters().Sub(before); d.Get("registrations") != 0 || d.Get("deregistrations") != 0 || d.Get("advertises") != 20 {
				t.Errorf("%v", d)
			}
		})
	}
}
