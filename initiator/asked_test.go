package initiator_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
)

// A target that asks for more than all the data of a command ends the session: each of its requests would make the initiator hold
// as many PDUs as it has data, for a socket that takes none.
func TestR2TsWithoutEnd(t *testing.T) {
	noLeaks(t)
	s := dialFake(t, func(g *target) {
		h, _, err := g.read()
		if err != nil {
			return
		}
		for i := range uint32(3) {
			g.write(&pdu.R2TFields{ITT: h.ITT(), TTT: i, R2TSN: 0, BufferOffset: 64 << 10, DesiredDataTransferLength: 64 << 10}, nil)
		}
		g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		for err == nil {
			if h, _, err = g.read(); err == nil && h.Opcode() == pdu.OpLogoutRequest {
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			}
		}
	})
	err := s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 10), Out: make([]byte, 128<<10)})
	if err == nil || !strings.Contains(err.Error(), "R2T") {
		t.Errorf("%v", err)
	}
	_ = s.Close()
}

// abortWith has a command aborted by a target that answers so, and then says what then does.
func abortWith(t *testing.T, r pdu.TaskResponse, then func(g *target, itt uint32)) (c *initiator.Command, s *initiator.Session) {
	t.Helper()
	asked := make(chan struct{})
	s = dialFake(t, func(g *target) {
		var itt uint32
		for {
			h, _, err := g.read()
			if err != nil {
				return
			}
			switch h.Opcode() {
			case pdu.OpSCSICommand:
				itt = h.ITT()
				close(asked)
			case pdu.OpTaskManagementRequest:
				f := pdu.TaskManagementResponseFields{Response: r, ITT: h.ITT(), Sequence: g.sequence()}
				b := f.AppendTo(nil)
				if then != nil {
					then(g, itt)
					b = append(b, dataIn(itt)...)
				}
				_, _ = g.c.Write(b)
			case pdu.OpLogoutRequest:
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			}
		}
	})
	ctx, cancel := newContext(t)
	c = &initiator.Command{CDB: make([]byte, 6), In: make([]byte, 512)}
	done := make(chan error)
	go func() { done <- s.Do(ctx, c) }()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, ctx.Err()) {
		t.Errorf("the abort ends with %v", err)
	}
	return c, s
}

func dataIn(itt uint32) []byte {
	f := pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: 512}
	return append(f.AppendTo(nil), pattern(512, 1)...)
}

// A target that does not abort a task may execute it at any time: nobody is told that it was aborted, and the session ends, so that
// what is left of it is over when the next one begins.
func TestAbortRefused(t *testing.T) {
	for r, gone := range map[pdu.TaskResponse]bool{
		pdu.TaskFunctionComplete: true, pdu.TaskDoesNotExist: true,
		pdu.TaskLUNDoesNotExist: false, pdu.TaskFunctionNotSupported: false, pdu.TaskFunctionRejected: false,
	} {
		noLeaks(t)
		c, s := abortWith(t, r, nil)
		if aborted := errors.Is(c.Err, initiator.ErrAborted); aborted != gone {
			t.Errorf("response %d: %v", r, c.Err)
		}
		if err := s.Close(); (err == nil) != gone {
			t.Errorf("response %d: the session: %v", r, err)
		}
	}
}

// Data that comes behind the answer to an abort goes to no memory: that is its owner's again.
func TestDataAfterAbort(t *testing.T) {
	noLeaks(t)
	c, s := abortWith(t, pdu.TaskFunctionComplete, func(*target, uint32) {})
	for i, x := range c.In {
		if x != 0 {
			t.Errorf("byte %d is %#x", i, x)
			break
		}
	}
	if err := s.Close(); err == nil {
		t.Error("the session goes on")
	}
}

// A READ or WRITE of blocks that the target has not done as a whole has failed, whatever its status.
func TestShort(t *testing.T) {
	const block, n = 512, 8
	for name, f := range map[string]func(g *target, itt uint32, read bool){
		"residual": func(g *target, itt uint32, read bool) {
			if read {
				g.write(&pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: block}, make([]byte, block))
			}
			g.write(&pdu.SCSIResponseFields{ITT: itt, Underflow: true, ResidualCount: (n - 1) * block, Sequence: g.sequence()}, nil)
		},
		"less data than it says": func(g *target, itt uint32, read bool) {
			r := uint32(0)
			if read {
				g.write(&pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: block}, make([]byte, block))
			} else {
				r = 1
			}
			g.write(&pdu.SCSIResponseFields{ITT: itt, Underflow: r > 0, ResidualCount: r, Sequence: g.sequence()}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s := dialFake(t, func(g *target) {
				for {
					h, _, err := g.read()
					if err != nil {
						return
					}
					cdb := pdu.SCSICommand{Header: h}.CDB()
					switch {
					case h.Opcode() == pdu.OpLogoutRequest:
						g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
					case h.Opcode() != pdu.OpSCSICommand:
					case cdb[0] == 0x9e: // READ CAPACITY(16)
						b := make([]byte, 32)
						b[6], b[10] = 1, block>>8
						g.write(&pdu.DataInFields{ITT: h.ITT(), TTT: pdu.ReservedTag, Final: true, HasStatus: true, DataSegmentLength: len(b), Sequence: g.sequence()}, b)
					case cdb[0] == 0x88 || cdb[0] == 0x8a:
						f(g, h.ITT(), cdb[0] == 0x88)
					default:
						g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Underflow: cdb[0] == 0x12, ResidualCount: 1024, Sequence: g.sequence()}, nil)
					}
				}
			})
			u, err := s.LU(t.Context(), 0)
			check(t, err)
			b := make([]byte, n*block)
			if k, err := u.ReadAt(b, 0); err == nil || k != 0 {
				t.Errorf("READ: %d, %v", k, err)
			}
			if k, err := u.WriteAt(b, 0); err == nil || k != 0 {
				t.Errorf("WRITE: %d, %v", k, err)
			}
			check(t, s.Close())
		})
	}
}

// A target that answers a WRITE twice, before it has taken the data, ends it once.
func TestAnsweredTwice(t *testing.T) {
	noLeaks(t)
	const n, burst = 16 << 20, 256 << 10 // more than sockets hold
	s := dialFake(t, func(g *target) {
		check(t, g.c.(*net.TCPConn).SetReadBuffer(64<<10))
		h, _, err := g.read()
		if err != nil {
			return
		}
		for off := 64 << 10; off < n; off += burst {
			g.write(&pdu.R2TFields{ITT: h.ITT(), TTT: uint32(off), BufferOffset: uint32(off), DesiredDataTransferLength: uint32(min(burst, n-off))}, nil)
		}
		for range 2 {
			g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		}
		for err == nil {
			if h, _, err = g.read(); err == nil && h.Opcode() == pdu.OpLogoutRequest {
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			}
		}
	})
	ended := 0
	done := make(chan struct{})
	s.Start(&initiator.Command{CDB: make([]byte, 10), Out: make([]byte, n), Done: func(*initiator.Command) {
		if ended++; ended == 1 {
			close(done)
		}
	}})
	<-done
	check(t, s.Close())
	if ended != 1 {
		t.Errorf("it has ended %d times", ended)
	}
}

// A target that pings without end, and takes no answers, does not fill the memory of the initiator.
func TestPingsWithoutEnd(t *testing.T) {
	noLeaks(t)
	s := dialFake(t, func(g *target) {
		check(t, g.c.(*net.TCPConn).SetReadBuffer(64<<10))
		h, _, err := g.read()
		if err != nil {
			return
		}
		for range 128 {
			g.write(&pdu.NOPInFields{ITT: pdu.ReservedTag, TTT: 1, DataSegmentLength: 200 << 10, Sequence: g.sequence()}, make([]byte, 200<<10))
		}
		g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		for err == nil {
			if h, _, err = g.read(); err == nil && h.Opcode() == pdu.OpLogoutRequest {
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
			}
		}
	})
	if err := s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)}); err == nil {
		t.Error("25 MiB wait for a target that reads nothing")
	}
	_ = s.Close()
}
