package iser

import (
	"encoding/binary"
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// FuzzReceive: whatever messages come after a login, and whenever RDMA operations complete,
// the mover neither panics nor keeps memory. The input is a list of messages, each behind a
// byte of flags and two of length; the login is not part of it.
func FuzzReceive(f *testing.F) {
	message := func(flags byte, b []byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{flags}, uint16(len(b))), b...)
	}
	command := func(c pdu.SCSICommandFields, data int) []byte {
		c.Final, c.DataSegmentLength = true, data
		return append(c.AppendTo(nil), make([]byte, data)...)
	}
	read := command(pdu.SCSICommandFields{Read: true, ITT: 2, CmdSN: 1, EDTL: 4096, CDB: rw16(0x88, 0, 8)}, 0)
	write := command(pdu.SCSICommandFields{Write: true, ITT: 3, CmdSN: 1, EDTL: 4096, CDB: rw16(0x8a, 0, 8)}, 512)
	abort := (&pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTask, ITT: 9, ReferencedTaskTag: 3, CmdSN: 2}).AppendTo(nil)
	logout := (&pdu.LogoutRequestFields{ITT: 4, CmdSN: 2}).AppendTo(nil)
	header := append([]byte{opControl<<4 | flagWSV | flagRSV}, make([]byte, headerLen-1)...)
	header[7], header[19] = 5, 6
	framed := func(b []byte) []byte { return append(append([]byte{}, header...), b...) }
	for _, direct := range []byte{0, 1} {
		frame := framed
		if direct == 1 {
			frame = func(b []byte) []byte { return b }
		}
		f.Add(direct, message(1, frame(read)))
		f.Add(direct, append(message(0, frame(write)), message(2, frame(abort))...))
		f.Add(direct, append(message(3, frame(write)), message(2, frame(logout))...))
		f.Add(direct, message(1, frame(make([]byte, 20))))
	}
	b, _ := newFakeBench(f, 64<<20)
	f.Fuzz(func(t *testing.T, mode byte, input []byte) {
		r := &rdmatest.FakeRequest{Data: []byte{noZBVA | mode&2>>1*noInvalidate, 0, 0, 0}}
		m, q := b.moverOf(t, r)
		if mode&1 != 0 {
			q.Shot = &rdma.OneShot{Advertise: true, Close: true, Window: 32}
		}
		say := func(flags byte, octets []byte) {
			var c rdma.Completion
			if flags&1 != 0 {
				c.Flags, c.STag = rdma.Advertised, 7
			}
			q.SayWith(octets, c)
		}
		finish := func() { q.Finish(q.Next(), rdma.StatusOK) }
		say(0, loginMessage(mode&1 != 0))
		finish()
		for len(input) >= 3 {
			n := min(int(binary.BigEndian.Uint16(input[1:])), len(input)-3)
			say(input[0], input[3:3+n])
			if input[0]&2 != 0 {
				finish()
			}
			input = input[3+n:]
		}
		b.end(q)
		if m.QueuePair() != nil {
			t.Fatal("the connection has not ended")
		}
		if n := b.pool.Stats().Leases; n != b.leases {
			t.Fatalf("%d leases, %d before", n, b.leases)
		}
	})
}

func loginMessage(direct bool) []byte {
	text := "InitiatorName=iqn.2026-11.example:fuzz\x00TargetName=" + iqn + "\x00"
	if !direct {
		text += "RDMAExtensions=Yes\x00"
	}
	l := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: 1, ITT: 1, DataSegmentLength: len(text),
	}
	var b []byte
	if !direct {
		b = appendHeader(b)
	}
	return append(l.AppendTo(b), text...)
}
