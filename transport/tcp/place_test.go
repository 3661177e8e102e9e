package tcp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
)

// begin sends a WRITE without data, and returns its tag and that of its R2T.
func (p *peer) begin(off, n int) (itt, ttt uint32) {
	p.t.Helper()
	itt = p.command(rw16(0x8a, off, n), n, false, true, true, nil)
	r2t, _ := p.receive()
	if r2t.Opcode() != pdu.OpR2T {
		p.t.Fatalf("%v for a WRITE without data", r2t.Opcode())
	}
	return itt, pdu.R2T{Header: r2t}.TTT()
}

// part sends a Data-Out PDU.
func (p *peer) part(itt, ttt uint32, sn, off int, data []byte, last bool) {
	f := pdu.DataOutFields{Final: last, DataSegmentLength: len(data), ITT: itt, TTT: ttt, DataSN: serial.SN(uint32(sn)), BufferOffset: uint32(off)}
	p.send(f.AppendTo(nil), data)
}

// ping returns when the target has handled all that was sent.
func (p *peer) ping() {
	p.t.Helper()
	f := pdu.NOPOutFields{Immediate: true, ITT: 0x4000, TTT: pdu.ReservedTag, CmdSN: serial.SN(p.cmdSN)}
	p.send(f.AppendTo(nil), nil)
	if h, _ := p.receive(); h.Opcode() != pdu.OpNOPIn {
		p.t.Fatalf("%v for a ping", h.Opcode())
	}
}

func (p *peer) good(itt uint32) {
	p.t.Helper()
	if status, _, sense := p.finish(itt, nil); status != 0 {
		p.t.Fatalf("status %#x, % x", status, sense)
	}
}

// gone waits for the end of all sessions but n.
func (b *bench) gone(n int) {
	b.t.Helper()
	b.until(func() bool { return len(b.node.Sessions()) == n })
}

var untorn = []string{"ImmediateData=No", "InitialR2T=Yes"}

// Data-out is cut anywhere; the blocks in the store are whole at any time: one WRITE's or another's.
func TestBlocksAreWhole(t *testing.T) {
	const n = 64 << 10
	a, z := bytes.Repeat([]byte{'A'}, n), bytes.Repeat([]byte{'Z'}, n)
	for _, cut := range []int{1, 256, 511, 512, 513, 5000, 33333, n - 1} {
		b := newBench(t, newMemory(t), nil)
		first, second := b.dial(untorn...), b.dial(untorn...)
		itt, ttt := first.begin(0, n)
		first.part(itt, ttt, 0, 0, a[:cut], false)
		first.ping()
		second.write(0, z, 0, 0)
		first.part(itt, ttt, 1, cut, a[cut:], true)
		first.good(itt)
		whole := cut / blockSize * blockSize
		if got := second.read(0, n); !bytes.Equal(got, append(bytes.Clone(z[:whole]), a[whole:]...)) {
			t.Errorf("cut at %d: the second has blocks of the first, or parts of them", cut)
		}
	}
}

// A connection ends in the middle of a block, and of a PDU: what has come as a whole may be there,
// the rest of the block may not.
func TestEndInMidBlock(t *testing.T) {
	const n = 128 << 10
	z := bytes.Repeat([]byte{'Z'}, n)
	for _, most := range []int{700, 4096, n} { // of a PDU
		for _, cut := range []int{1, 100, 511, 513, 7777, 65000, n - 1} {
			b := newBench(t, newMemory(t), nil)
			p, other := b.dial(untorn...), b.dial(untorn...)
			other.write(0, z, 0, 0)
			itt, ttt := p.begin(0, n)
			left, sn := cut, 0
			for off := 0; off < n; off += most {
				size := min(most, n-off)
				if size > left {
					f := pdu.DataOutFields{Final: off+size == n, DataSegmentLength: size, ITT: itt, TTT: ttt, DataSN: serial.SN(uint32(sn)), BufferOffset: uint32(off)}
					if _, err := p.c.Write(append(f.AppendTo(nil), bytes.Repeat([]byte{'A'}, left)...)); err != nil {
						t.Fatal(err)
					}
					break
				}
				p.part(itt, ttt, sn, off, bytes.Repeat([]byte{'A'}, size), false)
				left -= size
				sn++
			}
			p.c.Close()
			b.gone(1)
			got := other.read(0, n)
			for at := 0; at < n; at += blockSize {
				block := got[at : at+blockSize]
				if v := block[0]; !bytes.Equal(block, bytes.Repeat([]byte{v}, blockSize)) || v == 'A' && at+blockSize > cut || v != 'A' && v != 'Z' {
					t.Errorf("PDUs of %d bytes, cut at %d: the block at %d is of two WRITEs: %q…%q", most, cut, at, block[0], block[blockSize-1])
				}
			}
		}
	}
}

// unmap is UNMAP of one range.
func (p *peer) unmap(off, n int) {
	p.t.Helper()
	list := binary.BigEndian.AppendUint16(nil, 22)
	list = binary.BigEndian.AppendUint16(list, 16)
	list = append(list, 0, 0, 0, 0)
	list = binary.BigEndian.AppendUint64(list, uint64(off/blockSize))
	list = binary.BigEndian.AppendUint32(list, uint32(n/blockSize))
	list = append(list, 0, 0, 0, 0)
	cdb := []byte{0x42, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}
	p.do(cdb, list)
}

// A WRITE that began before an UNMAP and ends by losing its connection leaves bytes that count as
// written: what is unmapped later reads as zeroes.
func TestUnmapAfterLostWrite(t *testing.T) {
	const n = 32 << 10
	b := newBench(t, newMemory(t), nil)
	p, other := b.dial(untorn...), b.dial(untorn...)
	itt, ttt := p.begin(0, n)
	other.unmap(0, n)
	p.part(itt, ttt, 0, 0, bytes.Repeat([]byte{'A'}, n/2), false)
	p.ping()
	p.c.Close()
	b.gone(1)
	if got := other.read(0, 512); got[0] != 'A' {
		t.Fatalf("%q is there: nothing is tried here", got[0])
	}
	other.unmap(0, 512)
	if got := other.read(0, 512); !bytes.Equal(got, make([]byte, 512)) {
		t.Errorf("an unmapped block reads as %q", got[0])
	}
	// WRITE SAME (16) with UNMAP.
	cdb := rw16(0x93, 512, 512)
	cdb[1] = 8
	other.do(cdb, make([]byte, 512))
	if got := other.read(512, 512); !bytes.Equal(got, make([]byte, 512)) {
		t.Errorf("a block of zeroes reads as %q", got[0])
	}
}

// do does a command with data-out that ends well.
func (p *peer) do(cdb, out []byte) {
	p.t.Helper()
	if status, _, sense := p.finish(p.command(cdb, len(out), false, true, true, nil), out); status != 0 {
		p.t.Fatalf("% x: status %#x, % x", cdb, status, sense)
	}
}

// An initiator that sends no more of the data that it was asked for is given up in time; not as long as some come.
func TestDataThatDoNotCome(t *testing.T) {
	b := newBench(t, newMemory(t), func(c *iscsi.Config) { c.NOPInterval = 0 })
	p, other := b.dial(untorn...), b.dial()
	itt, ttt := p.begin(0, 8192)
	pass := func(seconds int) {
		for range seconds {
			b.node.Tick()
		}
		p.ping() // it is alive
	}
	pass(70)
	p.part(itt, ttt, 0, 0, make([]byte, 4096), false)
	pass(0) // the data have been taken when this is
	pass(71)
	b.node.Tick()
	if h, _, err := p.tryReceive(); err == nil {
		t.Errorf("%v instead of the end", h.Opcode())
	}
	other.write(0, make([]byte, 4096), 0, 0)
}
