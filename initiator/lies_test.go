package initiator_test

import (
	"bytes"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
)

// disk answers what LU asks, for a disk of 2^16 blocks of 512 bytes, and has f answer READ(16) and WRITE(16).
func (g *target) disk(f func(itt uint32, read bool)) {
	for {
		h, _, err := g.read()
		if err != nil {
			return
		}
		switch h.Opcode() {
		case pdu.OpLogoutRequest:
			g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		case pdu.OpTaskManagementRequest:
			g.aborts()
			g.write(&pdu.TaskManagementResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		case pdu.OpSCSICommand:
			switch cdb := (pdu.SCSICommand{Header: h}).CDB(); {
			case cdb[0] == 0x88 || cdb[0] == 0x8a:
				f(h.ITT(), cdb[0] == 0x88)
			case cdb[0] == 0x9e && g.capacity != 0: // READ CAPACITY(16)
				g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Status: g.capacity, Sequence: g.sequence()}, nil)
			case cdb[0] == 0x9e:
				b := make([]byte, 32)
				b[5], b[6], b[10] = 0xff, 0xff, 2
				g.write(&pdu.DataInFields{ITT: h.ITT(), TTT: pdu.ReservedTag, Final: true, HasStatus: true, DataSegmentLength: len(b), Sequence: g.sequence()}, b)
			default:
				g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Underflow: cdb[0] == 0x12, ResidualCount: 1024, Sequence: g.sequence()}, nil)
			}
		}
	}
}

// A target that would have moved more than the command is about has other blocks than the initiator knows of: what was moved is not
// what was asked for.
func TestOverflow(t *testing.T) {
	noLeaks(t)
	const block, n = 512, 8
	for _, inData := range []bool{false, true} {
		s := dialFake(t, func(g *target) {
			g.disk(func(itt uint32, read bool) {
				if read {
					f := pdu.DataInFields{ITT: itt, TTT: pdu.ReservedTag, Final: true, DataSegmentLength: n * block}
					if inData {
						f.HasStatus, f.Overflow, f.ResidualCount, f.Sequence = true, true, 7*n*block, g.sequence()
					}
					g.write(&f, make([]byte, n*block))
					if inData {
						return
					}
				}
				g.write(&pdu.SCSIResponseFields{ITT: itt, Overflow: true, ResidualCount: 7 * n * block, Sequence: g.sequence()}, nil)
			})
		})
		u, err := s.LU(t.Context(), 0)
		check(t, err)
		b := make([]byte, n*block)
		if k, err := u.ReadAt(b, 0); err == nil || k != 0 || !strings.Contains(err.Error(), "more") {
			t.Errorf("READ: %d, %v", k, err)
		}
		if k, err := u.WriteAt(b, 0); err == nil || k != 0 || !strings.Contains(err.Error(), "more") {
			t.Errorf("WRITE: %d, %v", k, err)
		}
		check(t, s.Close())
	}
}

// The end of a large PDU may come in two parts, the first of them with the data.
func TestTailInParts(t *testing.T) {
	noLeaks(t)
	const size = 40<<10 + 1 // three bytes of padding
	first, wrote, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := dialFake(t, func(g *target) {
		check(t, g.c.(*net.TCPConn).SetWriteBuffer(1<<20))
		h, _, err := g.read()
		if err != nil {
			return
		}
		second, _, err := g.read()
		if err != nil {
			return
		}
		g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		<-first // the initiator reads nothing until wrote
		f := pdu.DataInFields{ITT: second.ITT(), TTT: pdu.ReservedTag, Final: true, HasStatus: true, DataSegmentLength: size, Sequence: g.sequence()}
		b := append(append(f.AppendTo(nil), pattern(size, 1)...), 0, 0, 0)
		_, _ = g.c.Write(b[:len(b)-2])
		close(wrote)
		<-read
		_, _ = g.c.Write(b[len(b)-2:])
		for {
			h, _, err := g.read()
			if err != nil {
				return
			}
			g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		}
	})
	done := make(chan struct{})
	c := &initiator.Command{CDB: make([]byte, 10), In: make([]byte, size), Done: func(*initiator.Command) { close(done) }}
	before := uint64(0)
	s.Start(&initiator.Command{CDB: make([]byte, 6), Done: func(*initiator.Command) { // in the goroutine that reads
		before = s.Counters().Get("reads")
		close(first)
		<-wrote
	}}, c)
	<-wrote
	for s.Counters().Get("reads") == before {
		runtime.Gosched()
	}
	close(read)
	<-done
	if c.Err != nil || !bytes.Equal(c.In, pattern(size, 1)) {
		t.Errorf("%v, or other bytes", c.Err)
	}
	check(t, s.Close())
}

// A read that finds nothing is a system call, and counted as one: so it is at the target, and at the host of NVMe.
func TestEmptyReadsCount(t *testing.T) {
	noLeaks(t)
	s := dialFake(t, func(g *target) {
		for {
			h, _, err := g.read()
			if err != nil {
				return
			}
			if h.Opcode() == pdu.OpLogoutRequest {
				g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
				return
			}
			g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
		}
	})
	reads := func() uint64 { return s.Counters().Get("reads") }
	answered := make(chan uint64, 1)
	s.Start(&initiator.Command{CDB: make([]byte, 6), Done: func(*initiator.Command) { answered <- reads() }})
	n := <-answered // nothing comes after it
	for giveUp := time.Now().Add(10 * time.Second); reads() == n; runtime.Gosched() {
		if time.Now().After(giveUp) {
			t.Error("a read that found nothing was not counted")
			break
		}
	}
	check(t, s.Close())
}

// A target that answers a command which has not left, for it can guess what comes next, does not get at memory that is its owner's again.
func TestAnsweredBeforeSent(t *testing.T) {
	noLeaks(t)
	s, _ := dialRDMAWith(t, 1, func(g *rdmaTarget) {
		h, _, stag, ok := g.next()
		if !ok || stag == 0 {
			t.Errorf("no command with an STag: % x", h)
			return
		}
		const oneOn = 1<<16 | 1 // the next turn, the next slot
		g.say(&pdu.SCSIResponseFields{ITT: h.ITT() + oneOn, Sequence: g.sequence()}, nil, 0)
		g.say(&pdu.SCSIResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil, stag)
		for ok {
			_, _, _, ok = g.next()
		}
	})
	done := make(chan *initiator.Command, 2)
	var both [2]*initiator.Command
	for i := range both {
		both[i] = &initiator.Command{CDB: []byte{0x88, 13: 8, 15: 0}, In: make([]byte, 4096), Done: func(c *initiator.Command) { done <- c }}
	}
	s.Start(both[:]...)
	for range both {
		<-done
	}
	if err := both[1].Failure(); err == nil || !strings.Contains(err.Error(), "has not been sent") {
		t.Errorf("a command that never left ends with %v", err)
	}
	_ = s.Close()
}

// A session whose data the kernel cannot send ends, rather than wait for answers to what never left.
func TestUnsendable(t *testing.T) {
	noLeaks(t)
	s := dialFake(t, func(g *target) {
		for {
			if _, _, err := g.read(); err != nil {
				return
			}
		}
	})
	m, err := s.Alloc(64 << 10)
	check(t, err)
	b := m.Bytes()
	check(t, m.Free())
	err = s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 10), Out: b})
	if err == nil || !strings.Contains(err.Error(), "bad address") {
		t.Errorf("%v", err)
	}
	_ = s.Close()
}
