package nvmerdma

import (
	"bytes"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/rdma/cm"
	"oneshot/transport/rdma"
)

// Bytes of every length and through every way are what they were: by Reads and Writes of the host's memory, and in the
// capsule. Keys are invalidated if, and only if, the host asks for it.
func TestIO(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		h := r.admin().queue(1)
		for i, n := range []int{512, 4096, 8192, 256 << 10, 1 << 20} {
			for _, inval := range []bool{false, true} {
				if inval && !h.canInvalidate() {
					continue
				}
				h.inval = inval
				want := pattern(n, i)
				s := h.key(n)
				copy(h.data, want)
				h.send(h.capsule(rw(nvme.Write, 8, n), s, nil))
				e := h.mustComplete()
				if e.Status != nvme.Success || inval != (h.invalidated == rdma.STag(s.Key)) || !inval && h.invalidated != 0 {
					t.Fatalf("%d bytes: %v, invalidated %#x", n, e.Status, h.invalidated)
				}
				if got := r.contents(8*512, n); !bytes.Equal(got, want) {
					t.Fatalf("%d bytes: other ones are written", n)
				}
				if inval {
					h.register()
				}
				clear(h.data)
				h.must(rw(nvme.Read, 8, n), nil, n)
				if !bytes.Equal(h.data[:n], want) {
					t.Fatalf("%d bytes: other ones come back", n)
				}
				if inval {
					h.register()
				}
			}
		}
		h.inval = false
		for i, n := range []int{512, 4096} {
			want := pattern(n, 77+i)
			h.send(h.capsule(rw(nvme.Write, 64, n), nvme.SGL{Length: uint32(n), Type: nvme.SGLInCapsule}, want))
			if e := h.mustComplete(); e.Status != nvme.Success {
				t.Fatal(e.Status)
			}
			if got := r.contents(64*512, n); !bytes.Equal(got, want) {
				t.Fatalf("%d bytes in a capsule: other ones are written", n)
			}
		}
	})
}

// As many commands as the queue has entries are under way at once, which end in any order.
func TestDepth(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		h := r.admin().queue(1)
		const n = 16 << 10
		for i := range depth {
			copy(h.data[i*n:], pattern(n, i))
		}
		for _, op := range []nvme.Opcode{nvme.Write, nvme.Read} {
			if op == nvme.Read {
				clear(h.data)
			}
			for i := range depth {
				s := h.key(n)
				s.Address += uint64(i * n)
				h.send(h.capsule(rw(op, uint64(i*n/512), n), s, nil))
			}
			for range depth {
				if e, ok := h.completion(); !ok || e.Status != nvme.Success {
					t.Fatal(e.Status, ok)
				}
			}
		}
		for i := range depth {
			if !bytes.Equal(h.data[i*n:][:n], pattern(n, i)) {
				t.Fatalf("command %d: other bytes come back", i)
			}
		}
	})
}

// Identify says what capsules the queue takes, and that memory has keys.
func TestIdentify(t *testing.T) {
	r := newLocal(t, rigConfig{})
	h := r.admin()
	h.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nil, nvme.IdentifyLen)
	ioccsz, iorcsz := uint32(h.data[1792])|uint32(h.data[1793])<<8, h.data[1796]
	if icdoff, msdbd := h.data[1800], h.data[1803]; ioccsz != (64+4096)/16 || iorcsz != 1 || icdoff != 0 || msdbd != 1 {
		t.Errorf("IOCCSZ %d, IORCSZ %d, ICDOFF %d, MSDBD %d", ioccsz, iorcsz, icdoff, msdbd)
	}
	sgls := uint32(h.data[536]) | uint32(h.data[537])<<8 | uint32(h.data[538])<<16
	if want := uint32(nvme.SGLSSupported | nvme.SGLSKeyed | nvme.SGLSOffset); sgls != want {
		t.Errorf("SGLS %#x, want %#x", sgls, want)
	}
}

// RDMA 1.0 §3.5: what a host says that asks for a connection.
func TestPrivateData(t *testing.T) {
	r := newLocal(t, rigConfig{})
	format := request(0, 32)
	format[0] = 1
	for name, c := range map[string]struct {
		private []byte
		want    cm.Status
	}{
		"none":                   {nil, cm.InvalidLength},
		"short":                  {request(0, 32)[:cm.RequestLen-1], cm.InvalidLength},
		"another format":         {format, cm.InvalidFormat},
		"queue 65":               {request(65, 32), cm.InvalidQID},
		"admin queue of 33":      {request(0, 33), cm.InvalidHSQSize},
		"I/O queue over its":     {request(1, depth+1), cm.InvalidHSQSize},
		"queue of one":           {request(1, 1), cm.InvalidHSQSize},
		"too few receives":       {cm.Request{QID: 1, HRQ: 9, HSQ: 10}.AppendTo(nil), cm.InvalidHRQSize},
		"admin queue":            {request(0, 32), 0},
		"padded by the network":  {append(request(0, 32), make([]byte, 24)...), 0},
		"a receive for each but": {cm.Request{QID: 64, HRQ: depth - 1, HSQ: depth - 1}.AppendTo(nil), 0},
	} {
		if got := r.refusal(c.private); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	h := r.mustDial(request(1, depth))
	if n, ok := cm.ParseAccept(h.qp.PeerData()); !ok || n != depth {
		t.Errorf("the target has receives for %d commands (%v), want %d", n, ok, depth)
	}
}

// A connection for which there is no place is refused with a status of the transport.
func TestNoPlace(t *testing.T) {
	r := newLocal(t, rigConfig{connections: 2})
	first := r.admin()
	first.queue(1)
	if got := r.refusal(request(0, 32)); got != cm.NoResources {
		t.Errorf("%v, want %v", got, cm.NoResources)
	}
}

// Connect has to say what the connection was made for.
func TestPromise(t *testing.T) {
	r := newLocal(t, rigConfig{})
	admin := r.admin()
	const ctrl, entry = 1 << 16, 0
	for name, c := range map[string]struct {
		said    cm.Request
		command nvme.Command
		cntlid  uint16
		want    uint32 // dword 0; 0: it is good
	}{
		"another queue":      {cm.Request{QID: 2, HRQ: 64, HSQ: 63}, connect(1, 63), admin.id, entry | nvme.OffConnectQID},
		"an admin queue":     {cm.Request{QID: 1, HRQ: 32, HSQ: 31}, connect(0, 31), nvme.DynamicController, entry | nvme.OffConnectQID},
		"a larger queue":     {cm.Request{QID: 1, HRQ: 32, HSQ: 31}, connect(1, 32), admin.id, entry | nvme.OffConnectSQSize},
		"another controller": {cm.Request{QID: 1, HRQ: 32, HSQ: 31, CNTLID: admin.id + 1}, connect(1, 31), admin.id, ctrl | nvme.OffCNTLID},
		"a smaller queue":    {cm.Request{QID: 1, HRQ: 32, HSQ: 31, CNTLID: admin.id}, connect(1, 15), admin.id, 0},
	} {
		h := r.mustDial(c.said.AppendTo(nil))
		e := h.do(c.command, connectData(c.cntlid), 0)
		switch {
		case c.want == 0 && e.Status != nvme.Success:
			t.Errorf("%s: %v", name, e.Status)
		case c.want != 0 && (e.Status.Code() != nvme.ConnectInvalid || e.DW0 != c.want):
			t.Errorf("%s: %v with %#x, want %#x", name, e.Status, e.DW0, c.want)
		}
	}
}
