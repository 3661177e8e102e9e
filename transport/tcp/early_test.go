package tcp

import (
	"bytes"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/scsi"
)

// half sends a PDU with its digests, but only the first n bytes of it, and returns the rest.
func (p *peer) half(bhs, data []byte, n int) (rest []byte) {
	b := bytes.Clone(bhs)
	if p.header {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	b = append(b, data...)
	if p.data {
		b = pdu.Digest(0).Update(data).AppendTo(b)
	}
	if p.corruptData {
		b[len(b)-1] ^= 1
	}
	if _, err := p.c.Write(b[:n]); err != nil {
		p.t.Fatal(err)
	}
	return b[n:]
}

// A command can be answered while its immediate data is still half on the way: it waited for its
// turn in the task set, and turned out to be wrong. What comes afterwards is nobody's. It used to
// be placed into memory that the task had given back, which ended the daemon; and a bad digest of
// it was held against the next command that used the same task.
func TestAnsweredInMidSegment(t *testing.T) {
	for name, keys := range map[string][]string{
		"plain":      {"InitialR2T=No"},
		"bad digest": {"InitialR2T=No", "DataDigest=CRC32C"},
	} {
		t.Run(name, func(t *testing.T) {
			const n, wanted = 64 << 10, 64 << 10
			b := newBench(t, newMemory(t), nil)
			first, p := b.dial(), b.dial(keys...)

			// An ORDERED command that waits for its data holds back all that come later.
			f := pdu.SCSICommandFields{
				Final: true, Write: true, Attr: pdu.AttrOrdered, ITT: 1000, EDTL: 4096, CDB: rw16(0x8a, 0, 4096),
				CmdSN: serial.SN(first.cmdSN),
			}
			first.cmdSN++
			first.send(f.AppendTo(nil), nil)
			r2t, _ := first.receive()

			// Beyond the end of the store.
			bad := pdu.SCSICommandFields{
				Final: true, Write: true, Attr: pdu.AttrSimple, ITT: 2000, EDTL: wanted, CDB: rw16(0x8a, storeSize, wanted),
				CmdSN: serial.SN(p.cmdSN), DataSegmentLength: n,
			}
			p.cmdSN++
			p.corruptData = p.data
			rest := p.half(bad.AppendTo(nil), make([]byte, n), n/2)
			b.until(func() bool { // its data has a place
				for _, s := range b.node.Sessions() {
					if s.Buffers >= wanted {
						return true
					}
				}
				return false
			})
			first.sequence(1000, r2t.TTT(), make([]byte, 4096), 0, 4096)
			first.finish(1000, nil)
			if status, _, _ := p.finish(2000, nil); status != byte(scsi.CheckCondition) {
				t.Fatalf("status %#x of a WRITE beyond the end", status)
			}
			p.corruptData = false
			if _, err := p.c.Write(rest); err != nil {
				t.Fatal(err)
			}
			if p.data {
				if h, _ := p.receive(); h.Opcode() != pdu.OpReject {
					t.Fatalf("%v for a bad digest", h.Opcode())
				}
			}
			data := random(3, 4096)
			p.write(8192, data, 2048, 0)
			if !bytes.Equal(p.read(8192, 4096), data) {
				t.Error("other bytes than written")
			}
		})
	}
}
