package tcp

import (
	"io"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// BenchmarkRead is bursts of small commands: what a PDU costs weighs more in them than what a system call costs.
func BenchmarkRead(b *testing.B) { benchmark(b, true) }

// BenchmarkWrite is BenchmarkRead with immediate data.
func BenchmarkWrite(b *testing.B) { benchmark(b, false) }

func benchmark(b *testing.B, read bool) {
	const burst, n = 16, 512
	p := newBenchOf(b, newMemory(b), nil, true).dial("InitialR2T=No")
	f := pdu.SCSICommandFields{Final: true, Read: read, Write: !read, ITT: 5, EDTL: n, CDB: rw16(0x8a, 8192, n)}
	out, back := n, pdu.BHSLen
	if read {
		f.CDB[0], out, back = 0x88, 0, pdu.BHSLen+n
	}
	f.DataSegmentLength = out
	request := make([]byte, burst*(pdu.BHSLen+out))
	answer := make([]byte, burst*back)
	b.ReportAllocs()
	for i := 0; i < b.N; i += burst {
		for k := range burst {
			f.CmdSN = serial.SN(p.cmdSN)
			p.cmdSN++
			f.AppendTo(request[k*(pdu.BHSLen+out):][:0])
		}
		if _, err := p.c.Write(request); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(p.c, answer); err != nil {
			b.Fatal(err)
		}
	}
}
