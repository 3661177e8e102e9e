package iwarp

import (
	"bytes"
	"testing"

	"oneshot/transport/rdma"
)

var sizes = []int{0, 1, 3, 48, 256, 257, 4096, 65000, 65460, 65461, 300000, 4 << 20}

func setups() map[string]setup {
	return map[string]setup{
		"default":       {},
		"plain":         {device: Config{PlainMPA: true}},
		"noCRC":         {device: Config{NoCRC: true}},
		"ethernet":      {device: Config{MaxULPDU: 1442}},
		"client server": {device: Config{ClientServer: true}},
		"shared":        {shared: true},
	}
}

func TestSend(t *testing.T) {
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, s)
			for i, n := range sizes {
				id := uint64(i)
				b.recv(id, 0, max(n, 1))
				a.fill(0, n, byte(i))
				a.post(rdma.Work{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, n)})
				c := b.want(rdma.OpReceive, id)
				if c.Bytes != n || !bytes.Equal(a.mem.Bytes()[:n], b.mem.Bytes()[:n]) {
					t.Fatalf("%d octets: %d arrive, or others", n, c.Bytes)
				}
				a.want(rdma.OpSend, id)
			}
		})
	}
}

func TestWriteRead(t *testing.T) {
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, s)
			for i, n := range sizes {
				a.fill(0, n, byte(i))
				b.recv(9, memLen-1, 1)
				a.post(
					rdma.Work{ID: 1, Op: rdma.OpWrite, SGL: a.sge(0, n), RemoteSTag: b.mem.STag(), RemoteOffset: b.mem.Base() + 5},
					rdma.Work{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(4<<20, n), RemoteSTag: b.mem.STag(), RemoteOffset: b.mem.Base() + 5},
					rdma.Work{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence},
				)
				if c := a.want(rdma.OpRead, 2); c.Bytes != n {
					t.Fatalf("read %d octets of %d", c.Bytes, n)
				}
				a.want(rdma.OpSend, 3)
				b.want(rdma.OpReceive, 9)
				if !bytes.Equal(a.mem.Bytes()[:n], b.mem.Bytes()[5:n+5]) {
					t.Fatalf("%d octets written are others", n)
				}
				if !bytes.Equal(a.mem.Bytes()[:n], a.mem.Bytes()[4<<20:4<<20+n]) {
					t.Fatalf("%d octets read are others", n)
				}
			}
		})
	}
}

func offer() *rdma.OneShotOffer {
	return &rdma.OneShotOffer{Flags: true, Opcodes: true, Advertise: true, Close: true, Window: 4}
}

func oneShotSetups() map[string]setup {
	flags, opcodes, validated := offer(), offer(), offer()
	flags.Opcodes, opcodes.Flags, validated.Validated = false, false, true
	return map[string]setup{
		"flags":     {client: flags, server: offer()},
		"opcodes":   {client: opcodes, server: offer()},
		"validated": {client: validated, server: validated},
		"ethernet":  {client: offer(), server: offer(), device: Config{MaxULPDU: 1442}},
	}
}

func TestOneShot(t *testing.T) {
	for name, s := range oneShotSetups() {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, s)
			if a.qp.OneShot() == nil || b.qp.OneShot() == nil || *a.qp.OneShot() != *b.qp.OneShot() {
				t.Fatalf("agreed: %+v, %+v", a.qp.OneShot(), b.qp.OneShot())
			}
			const n = 100000
			for i := range 10 {
				id := uint64(i)
				b.recv(id, 0, 4096)
				a.recv(id, 0, 4096)
				a.fill(1<<20, n, byte(i))
				ws := []rdma.Work{{
					Op: rdma.OpSend, Flags: rdma.Advertise | rdma.Solicited, SGL: a.sge(8192, 2000),
					Access: rdma.AccessRemoteRead, Memory: append(a.sge(1<<20, 1000), a.sge(1<<20+1000, n-1000)...),
				}}
				a.post(ws...)
				c := b.want(rdma.OpReceive, id)
				if c.Flags != rdma.Advertised || c.STag != ws[0].STag || c.STag == 0 {
					t.Fatalf("advertised %08x: %+v", ws[0].STag, c)
				}
				b.post(rdma.Work{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.sge(1<<20, n), RemoteSTag: c.STag})
				b.want(rdma.OpRead, 1)
				if !bytes.Equal(a.mem.Bytes()[1<<20:1<<20+n], b.mem.Bytes()[1<<20:1<<20+n]) {
					t.Fatal("read other octets")
				}
				b.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Close | rdma.Signaled, STag: c.STag, SGL: b.sge(0, 48)})
				b.want(rdma.OpSend, 2)
				if c := a.want(rdma.OpReceive, id); c.Flags != rdma.Closed || c.STag != ws[0].STag {
					t.Fatalf("closed %08x: %+v", ws[0].STag, c)
				}
			}
		})
	}
}

func TestDisconnect(t *testing.T) {
	a, b := pair(t, setup{})
	b.recv(1, 0, 100)
	b.recv(2, 0, 100)
	a.post(rdma.Work{ID: 1, Op: rdma.OpSend, SGL: a.sge(0, 10)})
	a.qp.Disconnect()
	b.want(rdma.OpReceive, 1)
	if err := <-b.gone; err != nil {
		t.Fatal(err)
	}
	if err := <-a.gone; err != nil {
		t.Fatal(err)
	}
	if c := b.next(); c.Status != rdma.StatusFlushed || c.ID != 2 {
		t.Fatalf("%+v", c)
	}
}
