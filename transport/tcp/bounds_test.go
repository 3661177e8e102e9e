package tcp

import (
	"bytes"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"oneshot/internal/rounds"
	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
)

// discover opens a discovery session.
func (b *bench) discover() *peer {
	b.t.Helper()
	c, err := net.Dial("tcp4", b.l.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // only a hang reaches it
	p := &peer{t: b.t, c: c, cmdSN: 100}
	text := "InitiatorName=iqn.2026-11.example:d\x00SessionType=Discovery\x00MaxRecvDataSegmentLength=262144\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, ISID: pdu.ISID{0x80}, CmdSN: 100,
		ITT: 1, DataSegmentLength: len(text),
	}
	p.send(f.AppendTo(nil), []byte(text))
	if h, data := p.receive(); h[36] != 0 || !strings.Contains(string(data), "MaxRecvDataSegmentLength=8192\x00") {
		b.t.Fatalf("discovery: % x %q", []byte(h), data)
	}
	return p
}

// A part of a PDU holds no more memory than it has bytes, in a discovery session and in any other.
func TestPartOfAPDUHoldsNoBuffer(t *testing.T) {
	for name, open := range map[string]func(b *bench) *peer{
		"discovery": (*bench).discover,
		"normal":    func(b *bench) *peer { return b.dial() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newMemory(t), nil)
			p := open(b)
			other := b.dial()
			nop := pdu.NOPOutFields{ITT: 3, TTT: pdu.ReservedTag, CmdSN: serial.SN(p.cmdSN), DataSegmentLength: 4000}
			whole := append(nop.AppendTo(nil), random(1, 4000)...)
			for _, cut := range []int{1, pdu.BHSLen - 1, pdu.BHSLen, pdu.BHSLen + 1, 3000, len(whole) - 1} {
				want := b.received(p) + uint64(cut)
				if _, err := p.c.Write(whole[:cut]); err != nil {
					t.Fatal(err)
				}
				whole = whole[cut:]
				b.until(func() bool { return b.received(p) == want })
				b.until(func() bool { return b.pool.Stats().InUse == 0 }) // it would never be
				other.read(0, 4096)
				if len(whole) <= cut {
					break
				}
			}
			if _, err := p.c.Write(whole); err != nil {
				t.Fatal(err)
			}
			if h, data := p.receive(); h.Opcode() != pdu.OpNOPIn || !bytes.Equal(data, random(1, 4000)) {
				t.Errorf("%v with %d bytes", h.Opcode(), len(data))
			}
		})
	}
}

// received is how many bytes the target has received of p.
func (b *bench) received(p *peer) (n uint64) {
	b.at(p, func(m *Mover) { n = m.BytesIn })
	return n
}

// heap is how much memory of the heap is in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse)
}

// Pings whose echoes are not read are taken until a certain number of bytes wait, and no more.
func TestUnreadEchoes(t *testing.T) {
	for name, c := range map[string]struct {
		open        func(b *bench) *peer
		each, bound int
		waiting     int   // bytes of echoes that may wait for the socket
		leased      int64 // bytes of I/O memory that what came behind them may hold
	}{
		"discovery": {(*bench).discover, 8 << 10, 1 << 20, 2 * maxLight, 0},
		"normal":    {func(b *bench) *peer { return b.dial("MaxRecvDataSegmentLength=262144") }, 256 << 10, 2 << 20, 2 * maxHeavy, int64(mem.RoundUp(inLen))},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newMemory(t), nil)
			p := c.open(b)
			before := heap()
			nop := pdu.NOPOutFields{Immediate: true, ITT: 3, TTT: pdu.ReservedTag, CmdSN: serial.SN(p.cmdSN), DataSegmentLength: c.each}
			one := append(nop.AppendTo(nil), make([]byte, c.each)...)
			sent := make(chan int)
			go func() {
				total := 0
				for n, err := 0, error(nil); err == nil; total += n {
					n, err = p.c.Write(one)
				}
				sent <- total
			}()
			b.until(func() (full bool) {
				b.at(p, func(m *Mover) { full = m.Stuck() })
				return full
			})
			_ = p.c.SetWriteDeadline(time.Unix(1, 0)) // long over: the target takes no more
			total := <-sent
			if more := heap() - before; more > c.bound {
				t.Errorf("%d bytes are held for %d that were sent", more, total)
			}
			b.at(p, func(m *Mover) {
				if n := m.Out.Outstanding() * c.each; n > c.waiting {
					t.Errorf("%d bytes of echoes wait for the socket", n)
				}
			})
			if n := b.pool.Stats().InUse; n > c.leased {
				t.Errorf("%d bytes of I/O memory are held", n)
			}
			for got := 0; got < total/len(one); got++ {
				if h, data := p.receive(); h.Opcode() != pdu.OpNOPIn || len(data) != c.each {
					t.Fatalf("%v with %d bytes", h.Opcode(), len(data))
				}
			}
		})
	}
}

// A large READ in the smallest segments has thousands of headers. They are made when their turn
// comes: as long as the initiator reads nothing, there are few.
func TestManyHeaders(t *testing.T) {
	const n = 4 << 20
	count := rounds.Of(16, 4) // the headers of four take six times as much as what may be held
	b := newBench(t, newMemory(t), func(c *iscsi.Config) { c.MemoryPerConnection = 64 << 20 })
	p := b.dial("MaxRecvDataSegmentLength=512", "HeaderDigest=CRC32C")
	data := random(7, n)
	for off := 0; off < n; off += 64 << 10 {
		p.write(off, data[off:off+64<<10], 0, 0)
	}
	before := heap()
	var itts []uint32
	for range count {
		itts = append(itts, p.command(rw16(0x88, 0, n), n, true, false, true, nil))
	}
	nop := pdu.NOPOutFields{Immediate: true, ITT: 0x7777, TTT: pdu.ReservedTag, CmdSN: serial.SN(p.cmdSN)}
	p.send(nop.AppendTo(nil), nil)
	b.until(func() (all bool) {
		b.at(p, func(m *Mover) { all = m.Out.Outstanding() == count+1 })
		return all
	})
	if more := heap() - before; more > 256<<10 {
		t.Errorf("%d bytes are held for answers that nobody reads", more)
	}
	for _, itt := range itts {
		if status, in, _ := p.finish(itt, nil); status != 0 || !bytes.Equal(in, data) {
			t.Fatalf("status %#x, %d bytes", status, len(in))
		}
	}
	if h, _ := p.receive(); h.Opcode() != pdu.OpNOPIn {
		t.Errorf("%v after the answers", h.Opcode())
	}
}

// Data that comes before its command's turn takes all of the memory that there is for such. The
// commands get what they need all the same when their turn comes.
func TestDataBeforeItsTurn(t *testing.T) {
	const n, share = 64 << 10, 256 << 10
	b := newBench(t, newMemory(t), func(c *iscsi.Config) { c.MemoryPerConnection = share })
	first, p := b.dial(), b.dial("InitialR2T=No", "DataDigest=CRC32C")
	f := pdu.SCSICommandFields{
		Final: true, Write: true, Attr: pdu.AttrOrdered, ITT: 1000, EDTL: 4096, CDB: rw16(0x8a, 0, 4096), CmdSN: serial.SN(first.cmdSN),
	}
	first.cmdSN++
	first.send(f.AppendTo(nil), nil)
	r2t, _ := first.receive()
	var itts []uint32
	for i := range share / 2 / n {
		itts = append(itts, p.command(rw16(0x8a, (1+i)*n, n), n, false, true, true, random(uint64(i), n)))
	}
	over := p.command(rw16(0x8a, 0, n), n, false, true, true, make([]byte, n))
	if status, _, _ := p.finish(over, nil); status != byte(scsi.TaskSetFull) {
		t.Errorf("status %#x where the share is used up", status)
	}
	first.sequence(1000, r2t.TTT(), make([]byte, 4096), 0, 4096)
	first.finish(1000, nil)
	for i, itt := range itts {
		if status, _, sense := p.finish(itt, nil); status != 0 {
			t.Errorf("WRITE %d: status %#x, % x", i, status, sense)
		}
	}
	for i := range itts {
		if !bytes.Equal(p.read((1+i)*n, n), random(uint64(i), n)) {
			t.Errorf("WRITE %d: other bytes than written", i)
		}
	}
}

// An initiator that keeps many commands outstanding has them counted, and pauses made for it, unless
// that is switched off.
func TestModeration(t *testing.T) {
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			const depth = 32
			b := newBenchOf(t, newMemory(t), nil, off)
			p := b.dial("MaxRecvDataSegmentLength=262144")
			var itts []uint32
			for range depth {
				itts = append(itts, p.command(rw16(0x88, 0, 512), 512, true, false, true, nil))
			}
			for range 2 * censusFirst {
				if status, _, _ := p.finish(itts[0], nil); status != 0 {
					t.Fatalf("status %#x", status)
				}
				itts = append(itts[1:], p.command(rw16(0x88, 0, 512), 512, true, false, true, nil))
			}
			for _, itt := range itts {
				p.finish(itt, nil)
			}
			_ = p.c.Close()
			b.until(func() bool { return b.node.Connections() == 0 })
			b.until(func() bool { return off || b.cfg.Counters.Censuses.Load() > 0 })
			if n := b.cfg.Counters.Censuses.Load(); off && n > 0 {
				t.Errorf("commands were counted %d times, though moderation is off", n)
			}
		})
	}
}
