//go:build !race

package iser

import (
	"encoding/binary"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// TestAllocations: a READ and a WRITE of 4 KiB through one-shot RDMA allocate nothing, on both
// sides of the wire together.
func TestAllocations(t *testing.T) {
	b := newBench(t)
	c := b.dial(true)
	c.logIn("")
	c.do(make([]byte, 6), false, false, 0, 0)
	for name, op := range map[string]byte{"READ": 0x88, "WRITE": 0x8a} {
		f := pdu.SCSICommandFields{Final: true, Read: op == 0x88, Write: op == 0x8a, CDB: rw16(op, 0, 8), EDTL: 4096}
		message := f.AppendTo(c.out[:0])
		access := rdma.AccessRemoteRead
		if f.Read {
			access = rdma.AccessRemoteWrite
		}
		w := []rdma.Work{{
			Op: rdma.OpSend, Flags: rdma.Advertise, SGL: []rdma.SGE{{Bytes: message, Region: c.region}},
			Memory: []rdma.SGE{{Bytes: c.buf[:4096], Region: c.region}}, Access: access,
		}}
		receive := make([]rdma.Receive, 1)
		sgl := make([]rdma.SGE, 1)
		receive[0].SGL = sgl
		once := func() {
			c.itt++
			binary.BigEndian.PutUint32(message[16:], c.itt)
			binary.BigEndian.PutUint32(message[24:], uint32(c.cmdSN))
			c.cmdSN += serial.SN(1)
			if _, err := c.qp.Post(w); err != nil {
				t.Fatal(err)
			}
			done := c.completion()
			if done.Flags != rdma.Closed || done.STag != w[0].STag || c.slot(int(done.ID)).Bytes[3] != 0 {
				t.Fatalf("%s: %+v", name, done)
			}
			receive[0].ID, sgl[0] = done.ID, c.slot(int(done.ID))
			if _, err := c.qp.PostReceive(receive); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 { // until pools have grown
			once()
		}
		if n := testing.AllocsPerRun(500, once); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
