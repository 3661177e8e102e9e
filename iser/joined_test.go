package iser

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma/iwarp"
)

// writes sends WRITEs of 4 KiB of the blocks from 8 on, in one batch, whose buffers have the STags given
// and follow each other from tagged offset 0 on.
func (p *rawPeer) writes(stags ...uint32) (itts []uint32) {
	p.T.Helper()
	return p.writesApart(4096, stags...)
}

// writesApart is writes of buffers that begin so many octets behind each other.
func (p *rawPeer) writesApart(step uint64, stags ...uint32) (itts []uint32) {
	p.T.Helper()
	var batch [][]byte
	for i, s := range stags {
		itt := 100 + uint32(p.CmdSN)
		f := pdu.SCSICommandFields{
			Final: true, Write: true, ITT: itt, CmdSN: p.CmdSN, CDB: rw16(0x8a, 8+8*uint64(i), 8), EDTL: 4096,
		}
		p.CmdSN++
		h := appendHeader(nil)
		h[0] |= flagWSV
		binary.BigEndian.PutUint32(h[4:], s)
		binary.BigEndian.PutUint64(h[8:], uint64(i)*step)
		batch = append(batch, p.Message(0, h, f.AppendTo(nil)))
		itts = append(itts, itt)
	}
	p.Write(batch...)
	return itts
}

// statuses reads n answers, which are to be SCSI Responses with GOOD, and returns their ITTs.
func (p *rawPeer) statuses(n int) (itts []uint32) {
	p.T.Helper()
	for range n {
		h, _ := p.Answer()
		if h.Opcode() != pdu.OpSCSIResponse || h[3] != 0 {
			p.T.Fatalf("answer % x", h)
		}
		itts = append(itts, h.ITT())
	}
	return itts
}

// WRITEs of one batch whose buffers follow each other under one STag are fetched with one Read. Each has
// a status of its own, and its own bytes.
func TestPullsJoined(t *testing.T) {
	const stag = 0x4711
	data := make([]byte, 5*4096)
	pattern(data, 3)
	t.Run("all", func(t *testing.T) {
		b := newBench(t)
		p := b.raw(false, 1)
		itts := p.writes(stag, stag, stag, stag, stag)
		r := p.ReadRequest()
		if r.Size != 5*4096 || r.SrcSTag != stag || r.SrcTO != 0 {
			t.Fatalf("%+v; want one Read of everything", r)
		}
		p.Write(p.Response(r, data, true))
		if got := p.statuses(5); !slices.Equal(got, itts) {
			t.Errorf("answers for %d, want %d", got, itts)
		}
		if !bytes.Equal(b.contents()[4096:][:len(data)], data) {
			t.Error("not what was written")
		}
	})
	t.Run("other STags", func(t *testing.T) {
		b := newBench(t)
		p := b.raw(false, 1)
		p.writes(stag, stag, 0x4800, 0x4800, 0x4900)
		for _, want := range []ddp.RDMARead{{Size: 8192, SrcSTag: stag}, {Size: 8192, SrcSTag: 0x4800, SrcTO: 8192}, {Size: 4096, SrcSTag: 0x4900, SrcTO: 16384}} {
			r := p.ReadRequest()
			if r.Size != want.Size || r.SrcSTag != want.SrcSTag || r.SrcTO != want.SrcTO {
				t.Fatalf("%+v, want %+v", r, want)
			}
			p.Write(p.Response(r, data[r.SrcTO:][:r.Size], true))
		}
		p.statuses(5)
		if !bytes.Equal(b.contents()[4096:][:len(data)], data) {
			t.Error("not what was written")
		}
	})
	for name, step := range map[string]uint64{"with gaps": 8192, "overlapping": 2048, "the same": 0} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := b.raw(false, 1)
			p.writesApart(step, stag, stag, stag)
			for i := range uint64(3) {
				r := p.ReadRequest()
				if r.Size != 4096 || r.SrcSTag != stag || r.SrcTO != i*step {
					t.Fatalf("%+v, want 4096 octets from %d on", r, i*step)
				}
				p.Write(p.Response(r, data[i*4096:][:4096], true))
			}
			p.statuses(3)
			if !bytes.Equal(b.contents()[4096:][:3*4096], data[:3*4096]) {
				t.Error("not what was written")
			}
		})
	}
	t.Run("one is aborted", func(t *testing.T) {
		const abort = 900
		b := newBench(t)
		p := b.raw(false, 1)
		itts := p.writes(stag, stag, stag)
		r := p.ReadRequest()
		p.Manage(pdu.TaskAbortTask, abort, itts[1], true, 0)
		p.Ping(901) // its answer says that the abort has been taken
		for h, _ := p.Answer(); h.Opcode() != pdu.OpNOPIn; h, _ = p.Answer() {
			t.Logf("% x", h)
		}
		p.Write(p.Response(r, data[:3*4096], true))
		var got []uint32
		for range 3 {
			h, _ := p.Answer()
			if h[2] != 0 || h[3] != 0 && h.Opcode() == pdu.OpSCSIResponse {
				t.Errorf("answer % x", h)
			}
			got = append(got, h.ITT())
		}
		slices.Sort(got)
		if want := []uint32{itts[0], itts[2], abort}; !slices.Equal(got, want) {
			t.Errorf("answers for %d, want %d", got, want)
		}
		want := bytes.Clone(data[:3*4096])
		clear(want[4096:8192])
		if !bytes.Equal(b.contents()[4096:][:len(want)], want) {
			t.Error("the disk has other bytes than those of the two commands that were not aborted")
		}
	})
}

// If a Read that serves several commands does not end well, none of them is executed, whatever has come.
func TestJoinedPullsLost(t *testing.T) {
	b := newBenchOf(t, 22<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
	want := b.contents()
	b.poison([]byte("harm"), 4096)
	for i, e := range endings {
		p := b.raw(false, 1)
		p.writes(0x4711, 0x4711, 0x4711)
		r := p.ReadRequest()
		if r.Size != 3*4096 {
			t.Fatalf("%+v; want one Read of everything", r)
		}
		e.end(b, p, r)
		wait(func() bool { return b.node.Connections() == 0 })
		_ = p.Conn.Close()
		if answered, aborted := b.counted(); answered != 2*uint64(i+1) || aborted != 3*uint64(i+1) {
			t.Fatalf("%s: %d commands answered, %d aborted; want %d and %d", e.name, answered, aborted, 2*(i+1), 3*(i+1))
		}
	}
	if !bytes.Equal(b.contents(), want) {
		t.Error("the disk has changed")
	}
}
