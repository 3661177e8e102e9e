package nvmetcp

import (
	"io"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

// exchange sends octets and reads as many as answer has room for. It allocates nothing.
func exchange(t testing.TB, h *nvmetest.Host, request, answer []byte) {
	if _, err := h.C.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(h.C, answer); err != nil {
		t.Fatal(err)
	}
}

// capsule is a command about n bytes with the SGL of that type, and the data that go with it.
func capsule(h *nvmetest.Host, op nvme.Opcode, n int, sgl uint8, data []byte) []byte {
	return capsuleOf(h, 7, op, n, sgl, data)
}

func capsuleOf(h *nvmetest.Host, cid uint16, op nvme.Opcode, n int, sgl uint8, data []byte) []byte {
	c := nvmetest.RW(op, 8, uint32(n/512))
	c.CID, c.SGL = cid, nvme.SGL{Length: uint32(n), Type: sgl}
	return h.Capsule(&c, data)
}

// A command of the hot path allocates nothing in the target, whichever way its data go. Nor does the host of the test, so
// that what the process allocates is the target's.
func TestAllocations(t *testing.T) {
	r := newRig(t, rigConfig{})
	h := r.admin(pdu.IC{}, subNQN).Queue(1, 0)
	const n = 4096
	data := pattern(n, 3)
	read := capsule(h, nvme.Read, n, nvme.SGLTransport, nil)
	write := capsule(h, nvme.Write, n, nvme.SGLInCapsule, data)
	announce := capsule(h, nvme.Write, n, nvme.SGLTransport, nil)
	head := make([]byte, 0, pdu.DataLen)
	const burst, short = 64, 512
	var announces []byte
	for cid := range uint16(burst) {
		announces = append(announces, capsuleOf(h, cid, nvme.Write, short, nvme.SGLTransport, nil)...)
	}
	readies, sent := make([]byte, burst*pdu.R2TLen), make([]byte, 0, burst*(pdu.DataLen+short))
	back := make([]byte, pdu.DataLen+n+pdu.CapsuleRespLen)
	for _, tt := range []struct {
		name string
		once func()
	}{
		{"Read", func() { exchange(t, h, read, back) }},
		{"Write in a capsule", func() { exchange(t, h, write, back[:pdu.CapsuleRespLen]) }},
		{"Write with R2T", func() {
			exchange(t, h, announce, back[:pdu.R2TLen])
			ready := pdu.ParseReady(back)
			d := pdu.Data{CID: ready.CID, Tag: ready.Tag, Len: n}
			head = d.AppendTo(head[:0], pdu.H2CData, pdu.FlagLast, pdu.DataLen)
			exchange(t, h, head, nil)
			exchange(t, h, data, back[:pdu.CapsuleRespLen])
		}},
		{"a burst of Writes with R2T", func() {
			exchange(t, h, announces, readies)
			sent = sent[:0]
			for off := 0; off < len(readies); off += pdu.R2TLen {
				ready := pdu.ParseReady(readies[off:])
				d := pdu.Data{CID: ready.CID, Tag: ready.Tag, Len: short}
				sent = append(d.AppendTo(sent, pdu.H2CData, pdu.FlagLast, pdu.DataLen), data[:short]...)
			}
			exchange(t, h, sent, back[:burst*pdu.CapsuleRespLen])
		}},
	} {
		if got := testing.AllocsPerRun(2000, tt.once); got > 0.1 {
			t.Errorf("%s allocates %.2f times", tt.name, got)
		}
	}
}

// BenchmarkRead is bursts of small commands: what a PDU costs weighs more in them than what a system call costs.
func BenchmarkRead(b *testing.B) { benchmark(b, nvme.Read) }

// BenchmarkWrite is BenchmarkRead with data in the capsules.
func BenchmarkWrite(b *testing.B) { benchmark(b, nvme.Write) }

func benchmark(b *testing.B, op nvme.Opcode) {
	const burst, n = 64, 512
	h := newRig(b, rigConfig{}).admin(pdu.IC{}, subNQN).Queue(1, 0)
	var data []byte
	sgl, back := nvme.SGLTransport, pdu.DataLen+n+pdu.CapsuleRespLen
	if op == nvme.Write {
		data, sgl, back = pattern(n, 1), nvme.SGLInCapsule, pdu.CapsuleRespLen
	}
	var request []byte
	for range burst {
		request = append(request, capsule(h, op, n, sgl, data)...)
	}
	answer := make([]byte, burst*back)
	b.ReportAllocs()
	for i := 0; i < b.N; i += burst {
		exchange(b, h, request, answer)
	}
}
