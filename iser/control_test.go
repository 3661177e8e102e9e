package iser

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/rdmatest"
)

// takeMemory takes all of the I/O memory, until give is called.
func (b *bench) takeMemory() (give func()) {
	var all []*mem.Lease
	for n := mem.MaxLease; n > 0; n /= 2 {
		for l := b.pool.Lease(n); l != nil; l = b.pool.Lease(n) {
			all = append(all, l)
		}
	}
	return func() {
		for _, l := range all {
			l.Release()
		}
	}
}

// A unit attention is pending until the initiator has been told: the answer of a command that reports it is not sent while there is no memory for it.
func TestAttentionWithoutMemory(t *testing.T) {
	eachFraming(t, func(t *testing.T, b *bench, c *client) {
		second, err := scsi.NewLogicalUnit(scsi.LUConfig{Volume: b.volume, Serial: "2"})
		check(t, err)
		t.Cleanup(func() { check(t, second.Close()) })
		requestSense, reportLUNs := []byte{0x03, 0, 0, 0, 252, 0}, []byte{0: 0xa0, 9: 255, 11: 0}
		for _, cdb := range [][]byte{requestSense, reportLUNs} {
			b.disk.SetLU(1, second)
			give := b.takeMemory()
			r := c.do(cdb, false, true, 252, 0)
			give()
			if r.Status() != 0x28 {
				t.Fatalf("%02x without memory: status %02x", cdb[0], r.Status())
			}
			if r := c.do(requestSense, false, true, 252, 0); r.Status() != 0 || c.buf[2] != 6 || c.buf[12] != 0x3f || c.buf[13] != 0x0e {
				t.Errorf("REQUEST SENSE after %02x: status %02x, % x", cdb[0], r.Status(), c.buf[:18])
			}
			if r := c.do(make([]byte, 6), false, false, 0, 0); r.Status() != 0 {
				t.Errorf("told twice after %02x", cdb[0])
			}
			b.disk.SetLU(1, nil)
			if r := c.do(reportLUNs, false, true, 252, 0); r.Status() != 0 {
				t.Errorf("REPORT LUNS: status %02x", r.Status())
			}
		}
	})
}

// Initiators can log in, and get answers that are too long to be inline, while others have all of
// the I/O memory.
func TestLoginWithoutMemory(t *testing.T) {
	for framing, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(framing, func(t *testing.T) {
			b := newBenchOf(t, 22<<20, iwarp.Config{})
			defer b.takeMemory()()
			c := b.dial(direct)
			if a := c.logIn("MaxBurstLength=262144\x00FirstBurstLength=65536\x00DefaultTime2Wait=2\x00DefaultTime2Retain=0\x00MaxOutstandingR2T=1\x00ErrorRecoveryLevel=0\x00X-example.a=1\x00X-example.b=2\x00X-example.c=3\x00"); len(a.data) <= 256 {
				t.Fatalf("an answer of %d octets shows nothing", len(a.data))
			}
			c.do(make([]byte, 6), false, false, 0, 0)
			echo := bytes.Repeat([]byte("echo"), 2048)
			for i := range uint32(128) { // more than memory is put aside for
				f := pdu.NOPOutFields{Immediate: true, ITT: 1000 + i, TTT: pdu.ReservedTag, CmdSN: c.cmdSN, DataSegmentLength: len(echo)}
				c.send(f.AppendTo(nil), echo, false, false, 0, 0)
				if a, ok := c.receive(); !ok || a.h.Opcode() != pdu.OpNOPIn || !bytes.Equal(a.data, echo) {
					t.Fatalf("echo %d: %v, %d octets", i, ok, len(a.data))
				}
			}
		})
	}
}

// What a connection has in answers that are not taken is bounded in octets, too: where nothing has been proved, to a few.
func TestEchoesNotTaken(t *testing.T) {
	for name, c := range map[string]struct {
		login []string // text; nil: none
		most  int
	}{
		"no login": {nil, lightWaiting}, "discovery session": {[]string{"SessionType=Discovery"}, lightWaiting},
		"session": {[]string{"TargetName=" + iqn}, maxWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newFakeBench(t, 64<<20)
			m, p := b.mover()
			if c.login != nil {
				logInAs(t, p, 1, c.login...)
			}
			before := b.pool.Stats().InUse
			m.conn.Lock()
			for range c.most / maxSegment {
				m.SendControl(make([]byte, pdu.BHSLen), make([]byte, maxSegment), iscsi.Ending{})
			}
			if m.Dead() {
				t.Error("the connection ends too early")
			}
			m.SendControl(make([]byte, pdu.BHSLen), make([]byte, maxSegment), iscsi.Ending{})
			if !m.Dead() {
				t.Errorf("%d octets wait, and more are taken", m.waiting)
			}
			m.conn.Unlock()
			if n := b.pool.Stats().InUse - before; n > 2*int64(c.most) {
				t.Errorf("%d bytes of I/O memory are in use for them", n)
			}
			b.end(p)
		})
	}
}

// Two pieces of a list of targets, however long, may wait for an initiator that has proved nothing.
func TestLongListNotTaken(t *testing.T) {
	b, _ := newFakeBench(t, 64<<20)
	m, p := b.mover()
	logInAs(t, p, 1, "SessionType=Discovery")
	m.conn.Lock()
	for _, dies := range []bool{false, false, true} {
		m.SendControl(make([]byte, pdu.BHSLen), make([]byte, 100<<10), iscsi.Ending{})
		if m.Dead() != dies {
			t.Errorf("with %d PDUs and %d octets that wait: ended %v", m.controls, m.waiting, m.Dead())
		}
	}
	m.conn.Unlock()
	b.end(p)
}

// Connections over a device on which they take memory or receives from others give way to others as long as they have proved nothing: those in
// discovery sessions, too.
func TestDiscoverySessionsGiveWay(t *testing.T) {
	for kind, says := range map[string]func(*rdma.Limits){
		"receives of their own":    func(l *rdma.Limits) { l.ReceiveWait = false },
		"parts that take receives": func(l *rdma.Limits) { l.PartTakesReceive = true },
	} {
		t.Run(kind, func(t *testing.T) {
			d := rdmatest.NewFake()
			says(&d.Says)
			b := newBenchOn(t, 64<<20, d, "")
			b.node.SetLimits(iscsi.Limits{Connections: 4096, Sessions: 100, LoginTimeout: 3600, ReadTimeout: 70})
			_, innocent := b.mover()
			logInAs(t, innocent, 1, "TargetName="+iqn)
			var there []*rdmatest.FakePair
			for range 250 { // fewer than there may be discovery sessions
				if !b.target.MakeRoom() {
					t.Fatalf("nobody gives way of %d discovery sessions", len(there))
				}
				there = slices.DeleteFunc(there, func(p *rdmatest.FakePair) bool {
					if !isOver(p) {
						return false
					}
					p.End()
					return true
				})
				wait(func() bool { return b.node.Connections() == len(there)+1 })
				_, p := b.mover()
				logInAs(t, p, 2, "SessionType=Discovery")
				there = append(there, p)
			}
			if most := 128; len(there) > most {
				t.Errorf("%d discovery sessions are there, want %d at most", len(there), most)
			}
			if kept := b.pool.Limit(); kept < 48<<20 {
				t.Errorf("their receives have left %d bytes of I/O memory", kept)
			}
			if isOver(innocent) {
				t.Error("the session has given way")
			}
			for _, p := range append(there, innocent) {
				p.End()
			}
			wait(func() bool { return b.node.Connections() == 0 && !b.target.Busy() })
		})
	}
}

// isOver reports whether the target has ended a connection.
func isOver(p *rdmatest.FakePair) bool {
	select {
	case <-p.Over:
		return true
	default:
		return false
	}
}

// An initiator that answers pings but no RDMA Reads does not keep the memory for them, also where nobody is pinged.
func TestReadsWithoutAnswer(t *testing.T) {
	const readTimeout = 70 // as the bench has it
	for name, c := range map[string]struct{ direct, pings bool }{
		"iSER": {false, true}, "iSCSI-direct": {true, true}, "iSER, no pings": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			direct := c.direct
			b := newBenchOf(t, 64<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
			if !c.pings {
				b.node.SetLimits(iscsi.Limits{Connections: 10, Sessions: 10, LoginTimeout: 15, ReadTimeout: readTimeout})
			}
			p := b.raw(direct, 1)
			live := 0
			ping := func() bool {
				live++
				f := pdu.NOPOutFields{Immediate: true, ITT: 5000, TTT: pdu.ReservedTag, CmdSN: p.CmdSN}
				if p.TryWrite(p.PDU(f.AppendTo(nil), nil, 0, 0)) != nil {
					return false
				}
				seg, ok := p.Read()
				return ok && seg.Message.IsSend()
			}
			p.Command(rw16(0x8a, 0, 8), nil, 0x4711, 0, 4096)
			r := p.ReadRequest()
			for range readTimeout {
				b.node.Tick()
				if !ping() {
					t.Fatalf("the connection ends after %d s", live)
				}
			}
			p.Write(p.Response(r, make([]byte, 4096), true))
			if h, _ := p.Answer(); h.Opcode() != pdu.OpSCSIResponse || h[3] != 0 {
				t.Fatalf("% x", h)
			}
			// This one is never answered. Others behind it change nothing.
			p.Command(rw16(0x8a, 0, 8), nil, 0x4712, 0, 4096)
			p.ReadRequest()
			live = 0
			for {
				b.node.Tick()
				if live%10 == 9 && live < readTimeout {
					p.Command(rw16(0x8a, 0, 8), nil, 0x4713+uint32(live), 0, 4096)
					p.ReadRequest()
				}
				if !ping() {
					break
				}
				if live > 140 {
					t.Fatal("the connection stays")
				}
			}
			if live < readTimeout {
				t.Errorf("the connection ends after %d s", live)
			}
			wait(func() bool { return b.node.Connections() == 0 })
			if n := b.pool.Stats().Leases; n != b.leases {
				t.Errorf("%d leases, %d before", n, b.leases)
			}
		})
	}
}
