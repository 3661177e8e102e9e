package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"oneshot/initiator"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// listen takes connections and says nothing on them.
func listen(t *testing.T) string {
	t.Helper()
	return serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// serve calls f for each connection until the test ends.
func serve(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// target is a target on a socket that does as the test says.
type target struct {
	c      net.Conn
	statSN serial.SN
	aborts func() // is told of each task to abort
	// capacity is the status of READ CAPACITY(16).
	capacity byte
}

// read returns the next PDU.
func (g *target) read() (pdu.Header, []byte, error) {
	h := make(pdu.Header, pdu.BHSLen)
	if _, err := io.ReadFull(g.c, h); err != nil {
		return nil, nil, err
	}
	b := make([]byte, pdu.PaddedLen(h.DataSegmentLen()))
	_, err := io.ReadFull(g.c, b)
	return h, b[:h.DataSegmentLen()], err
}

func (g *target) sequence() pdu.Sequence {
	g.statSN++
	return pdu.Sequence{StatSN: g.statSN - 1, ExpCmdSN: 1, MaxCmdSN: 100}
}

func (g *target) write(f interface{ AppendTo([]byte) []byte }, data []byte) {
	b := append(f.AppendTo(nil), data...)
	_, _ = g.c.Write(append(b, make([]byte, pdu.PaddedLen(len(data))-len(data))...))
}

// logIn agrees to everything.
func (g *target) logIn() error {
	return g.logInWith("HeaderDigest=None\x00DataDigest=None\x00InitialR2T=No\x00ImmediateData=Yes\x00FirstBurstLength=65536\x00MaxRecvDataSegmentLength=8192\x00")
}

// logInWith answers the operational stage with those keys.
func (g *target) logInWith(operational string) error {
	for {
		h, _, err := g.read()
		if err != nil {
			return err
		}
		r, err := pdu.ParseLoginRequest(h)
		if err != nil {
			return err
		}
		var keys []byte
		if r.CSG() == pdu.StageSecurityNegotiation {
			keys = []byte("AuthMethod=None\x00TargetPortalGroupTag=1\x00")
		} else {
			keys = []byte(operational)
		}
		g.write(&pdu.LoginResponseFields{
			Transit: true, CSG: r.CSG(), NSG: r.NSG(), ISID: r.ISID(), TSIH: 1, ITT: r.ITT(), DataSegmentLength: len(keys), Sequence: g.sequence(),
		}, keys)
		if r.NSG() == pdu.StageFullFeaturePhase {
			return nil
		}
	}
}

// dialFake connects with a target that does as f says after the login.
func dialFake(t testing.TB, f func(*target)) *initiator.Session {
	t.Helper()
	addr := serve(t, func(c net.Conn) {
		g := &target{c: c}
		if g.logIn() == nil {
			f(g)
		}
	})
	u, err := initiator.ParseURL("iscsi://" + addr + "/" + iqn)
	check(t, err)
	s, err := initiator.Dial(t.Context(), u, initiator.Options{})
	check(t, err)
	return s
}

// What a target must not do ends the session, with an error that says so.
func TestViolations(t *testing.T) {
	for name, f := range map[string]func(g *target, itt uint32){
		"data over the end": func(g *target, itt uint32) {
			g.write(&pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: 1024}, make([]byte, 1024))
		},
		"data elsewhere": func(g *target, itt uint32) {
			g.write(&pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, BufferOffset: 256, DataSegmentLength: 256}, make([]byte, 256))
		},
		"data for nothing": func(g *target, itt uint32) {
			g.write(&pdu.DataInFields{ITT: itt + 1, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: 4}, make([]byte, 4))
		},
		"large data for nothing": func(g *target, itt uint32) {
			g.write(&pdu.DataInFields{ITT: itt + 1, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: 200 << 10}, nil)
		},
		"more than we take": func(g *target, itt uint32) {
			g.write(&pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: 1 << 23}, nil)
		},
		"an answer to nothing": func(g *target, itt uint32) {
			g.write(&pdu.SCSIResponseFields{ITT: itt + 1, Sequence: g.sequence()}, nil)
		},
		"R2T of a READ": func(g *target, itt uint32) {
			g.write(&pdu.R2TFields{ITT: itt, TTT: 1, DesiredDataTransferLength: 512}, nil)
		},
		"R2T of nothing": func(g *target, itt uint32) {
			g.write(&pdu.R2TFields{ITT: itt + 1, TTT: 1, DesiredDataTransferLength: 512}, nil)
		},
		"a request":       func(g *target, itt uint32) { g.write(&pdu.NOPOutFields{ITT: itt}, nil) },
		"no known opcode": func(g *target, _ uint32) { g.write(unknown{}, nil) },
		"Reject": func(g *target, _ uint32) {
			g.write(&pdu.RejectFields{Reason: pdu.RejectProtocolError, DataSegmentLength: 48, Sequence: g.sequence()}, make([]byte, 48))
		},
		"asks to log out": func(g *target, _ uint32) {
			g.write(&pdu.AsyncFields{Event: pdu.AsyncLogoutRequest, Parameter3: 1, Sequence: g.sequence()}, nil)
		},
		"end":           func(*target, uint32) {},
		"half a header": func(g *target, _ uint32) { _, _ = g.c.Write(make([]byte, 20)) },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s := dialFake(t, func(g *target) {
				h, _, err := g.read()
				if err != nil {
					return
				}
				f(g, h.ITT())
			})
			err := s.Do(t.Context(), &initiator.Command{CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, In: make([]byte, 512)})
			if err == nil {
				t.Error("no error")
			}
			if err := s.Close(); err == nil {
				t.Error("a logout that nobody has answered")
			}
		})
	}
}

type unknown struct{}

func (unknown) AppendTo(b []byte) []byte {
	return append(b, append([]byte{0x2f}, make([]byte, 47)...)...)
}

// R2Ts that ask for parts, in any order, with unsolicited data before them.
func TestR2T(t *testing.T) {
	noLeaks(t)
	want := pattern(200<<10, 5)
	got := make([]byte, len(want))
	filled := make(chan struct{})
	s := dialFake(t, func(g *target) {
		defer g.read()
		defer close(filled)
		h, data, err := g.read()
		if err != nil {
			return
		}
		itt := h.ITT()
		n := copy(got, data)
		collect := func() {
			for {
				h, data, err := g.read()
				if err != nil || h.Opcode() != pdu.OpDataOut {
					return
				}
				d, _ := pdu.ParseDataOut(h)
				n += copy(got[d.BufferOffset():], data)
				if h.Final() {
					return
				}
			}
		}
		if !h.Final() {
			collect() // the rest of the first burst
		}
		for _, r := range [][2]int{{150 << 10, 50 << 10}, {n, 150<<10 - n}} {
			g.write(&pdu.R2TFields{ITT: itt, TTT: uint32(r[0]), BufferOffset: uint32(r[0]), DesiredDataTransferLength: uint32(r[1])}, nil)
			collect()
		}
		g.write(&pdu.SCSIResponseFields{ITT: itt, Sequence: g.sequence()}, nil)
	})
	check(t, s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 10), Out: want}))
	<-filled // the answer says it too, but the race detector does not see it through a socket
	if !bytes.Equal(got, want) {
		t.Error("the target got other bytes")
	}
	_ = s.Close()
}

// A command that the target keeps is aborted; one that is withdrawn before it was sent, too.
func TestAbort(t *testing.T) {
	noLeaks(t)
	asked := make(chan uint32, 1)
	s := dialFake(t, func(g *target) {
		for {
			h, _, err := g.read()
			if err != nil {
				return
			}
			switch h.Opcode() {
			case pdu.OpSCSICommand:
				asked <- h.ITT()
			case pdu.OpTaskManagementRequest:
				g.write(&pdu.TaskManagementResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			case pdu.OpLogoutRequest:
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			}
		}
	})
	ctx, cancel := newContext(t)
	done := make(chan error)
	go func() { done <- s.Do(ctx, &initiator.Command{CDB: make([]byte, 6), In: make([]byte, 512)}) }()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, ctx.Err()) {
		t.Errorf("the abort ends with %v", err)
	}
	check(t, s.Close())
}

// Whatever a target sends, the initiator neither panics nor hangs.
func FuzzTarget(f *testing.F) {
	f.Add((&pdu.DataInFields{ITT: 0x00010000, TTT: pdu.ReservedTag, Final: true, HasStatus: true, DataSegmentLength: 8}).AppendTo(nil))
	f.Add((&pdu.R2TFields{ITT: 0x00010000, TTT: 1, DesiredDataTransferLength: 512}).AppendTo(nil))
	f.Add((&pdu.SCSIResponseFields{ITT: 0x00010000, Status: 2, DataSegmentLength: 20}).AppendTo(nil))
	f.Add((&pdu.NOPInFields{ITT: pdu.ReservedTag, TTT: 5}).AppendTo(nil))
	f.Add((&pdu.RejectFields{Reason: pdu.RejectProtocolError, DataSegmentLength: 48}).AppendTo(nil))
	f.Add((&pdu.AsyncFields{Event: pdu.AsyncLogoutRequest}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := dialFake(t, func(g *target) {
			_, _, _ = g.read()
			_, _ = g.c.Write(b)
		})
		var wg sync.WaitGroup
		for _, c := range []*initiator.Command{
			{CDB: make([]byte, 6), In: make([]byte, 512)}, {CDB: make([]byte, 6), Out: make([]byte, 100<<10)},
		} {
			wg.Add(1)
			c.Done = func(*initiator.Command) { wg.Done() }
			s.Start(c)
		}
		wg.Wait()
		_ = s.Close()
	})
}

func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// Data of large PDUs is read to its place. Only what comes along with a header is copied.
func TestLargeReads(t *testing.T) {
	noLeaks(t)
	const n, size = 5, 40 << 10
	first, wrote := make(chan struct{}), make(chan struct{})
	s := dialFake(t, func(g *target) {
		_ = g.c.(*net.TCPConn).SetWriteBuffer(1 << 20) // all of it fits
		var tags [n]uint32
		for i := range tags { // before an answer: while Done waits for wrote, no command is sent
			h, _, err := g.read()
			if err != nil {
				return
			}
			tags[i] = h.ITT()
		}
		for i, tag := range tags {
			if i == 1 {
				<-first
			}
			g.write(&pdu.DataInFields{
				ITT: tag, TTT: pdu.ReservedTag, Final: true, HasStatus: true, DataSegmentLength: size, Sequence: g.sequence(),
			}, pattern(size, uint64(i)))
		}
		close(wrote)
		_, _, _ = g.read() // until the session ends
	})
	var cs [n]initiator.Command
	var done sync.WaitGroup
	for i := range cs {
		c := &cs[i]
		c.CDB, c.In = []byte{0x28, 0, 0, 0, 0, 0, 0, 0, size / 512, 0}, make([]byte, size)
		done.Add(1)
		c.Done = func(*initiator.Command) {
			if i == 0 { // in the goroutine that reads
				close(first)
				<-wrote
			}
			done.Done()
		}
		s.Start(c)
	}
	done.Wait()
	for i := range cs {
		if cs[i].Err != nil || !bytes.Equal(cs[i].In, pattern(size, uint64(i))) {
			t.Errorf("command %d: %v, or other data", i, cs[i].Err)
		}
	}
	const header = 4 << 10 // what is read ahead
	if moved := s.Counters().Get("bytes_moved"); moved > size+(n-1)*header {
		t.Errorf("%d bytes of %d were copied", moved, n*size)
	}
	_ = s.Close()
}
