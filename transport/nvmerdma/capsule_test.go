package nvmerdma

import (
	"bytes"
	"testing"

	"oneshot/backend"
	"oneshot/internal/iostat"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// The data of a Read, and the completion behind them, are one post. The Writes are not signalled.
func TestOnePost(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	want := pattern(1<<20, 1)
	b.run(p, rw(nvme.Write, 0, 1<<20), want, 0)
	p.Posts = nil
	p.Say(b.command(rw(nvme.Read, 0, 1<<20), 1<<20))
	ws := p.Next()
	if len(p.Posts) != 1 || len(ws) != 5 { // of 256 KiB each
		t.Fatalf("posts %v of %d works", p.Posts, len(ws))
	}
	for i := range ws {
		if signaled := ws[i].Flags&rdma.Signaled != 0; signaled != (i == 4) {
			t.Errorf("work %d is signalled: %v", i, signaled)
		}
		if i < 4 && (ws[i].RemoteSTag != memoryKey || ws[i].RemoteOffset != memoryAt+uint64(i)<<18) {
			t.Errorf("work %d goes to %#x of %#x", i, ws[i].RemoteOffset, ws[i].RemoteSTag)
		}
	}
	p.Finish(ws, rdma.StatusOK)
	if got := b.run(p, rw(nvme.Read, 0, 1<<20), nil, 1<<20); !bytes.Equal(got, want) {
		t.Error("other bytes come back")
	}
}

// inCapsule makes a capsule with data.
func (b *bench) inCapsule(c nvme.Command, data []byte) []byte {
	b.cid++
	c.CID, c.SGL = b.cid, nvme.SGL{Length: uint32(len(data)), Type: nvme.SGLInCapsule}
	return append(c.AppendTo(nil), data...)
}

// A completion without data is one work request, which the device copies: the command is over when that is posted. Most of these
// are not signalled, so that no completion wakes the target for nothing.
func TestSilentCompletions(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	data, signalled := pattern(4096, 1), 0
	const writes = 10 * depth
	for i := range writes {
		p.Say(b.inCapsule(rw(nvme.Write, 0, len(data)), data))
		ws := p.Next()
		if len(ws) != 1 || ws[0].Op != rdma.OpSend || nvme.ParseCQE(ws[0].SGL[0].Bytes).Status != nvme.Success {
			t.Fatalf("the answer of write %d: %+v", i, ws)
		}
		if ws[0].Flags&rdma.Signaled != 0 {
			signalled++
			p.Finish(ws, rdma.StatusOK)
		}
	}
	if signalled == 0 || signalled > writes/32 {
		t.Errorf("%d of %d completions are signalled", signalled, writes)
	}
}

// A completion that the device does not take has not left, though nobody waits for its end: the command counts as one without an
// answer, and the connection ends.
func TestSilentCompletionRefused(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	p.Refuses = rdma.ErrDisconnected
	p.Say(b.inCapsule(rw(nvme.Write, 0, 4096), pattern(4096, 1)))
	if s := b.sub.Stats()[0]; s.Failed[iostat.AbortedCommand] != 1 || !p.ended() {
		t.Errorf("%+v; the connection has ended: %v", s.Stats, p.ended())
	}
}

// A host may have a completion, and send the next command, before the device tells the target that the completion has left. So it
// may do with all entries of the queue. It may not send more than these without completions, nor go on if none ever leaves.
func TestNextCommandBeforeSent(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	for range 2 {
		for range depth {
			p.Say(b.command(rw(nvme.Read, 0, 512), 512))
		}
	}
	ws := p.Next()
	if len(ws) != 2*2*depth { // a Write, and a Send
		t.Fatalf("%d work requests for %d reads", len(ws), 2*depth)
	}
	p.Finish(ws, rdma.StatusOK)
	for range depth {
		p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
	}
	if ws = p.Next(); len(ws) != depth {
		t.Fatalf("%d Reads of the data of %d writes", len(ws), depth)
	}
	p.Say(b.command(rw(nvme.Read, 0, 512), 512))
	if !p.ended() {
		t.Error("the queue takes more commands than it has entries")
	}
	p.Finish(ws, rdma.StatusFlushed)
	p = b.queue()
	for range 2 * depth {
		p.Say(b.command(rw(nvme.Read, 0, 512), 512))
	}
	if p.ended() {
		t.Fatal("the connection ends early")
	}
	if p.Say(b.command(rw(nvme.Read, 0, 512), 512)); !p.ended() {
		t.Error("the queue takes commands without end, while no completion leaves")
	}
	p.Finish(p.Next(), rdma.StatusFlushed)
}

// ended reports whether the target has ended the connection.
func (p *fakePair) ended() bool {
	select {
	case <-p.Over:
		return true
	default:
		return false
	}
}

// A key is invalidated by the completion if the host asks for it and the device can do it.
func TestInvalidate(t *testing.T) {
	for _, can := range []bool{true, false} {
		d := rdmatest.NewFake()
		d.Says.SendInvalidate = can
		b := newBench(t, d)
		p := b.queue()
		for _, asks := range []bool{true, false} {
			capsule := b.command(rw(nvme.Read, 0, 512), 512)
			if !asks {
				capsule[39] = nvme.SGLKeyed
			}
			p.Say(capsule)
			_, _, send := p.answer()
			if done := send.Flags&rdma.Invalidate != 0; done != (can && asks) || done && send.STag != memoryKey {
				t.Errorf("the device can: %v, the host asks: %v; flags %#x, key %#x", can, asks, send.Flags, send.STag)
			}
		}
	}
}

// Descriptors that are not those of the transport end the command, and not the connection.
func TestDescriptors(t *testing.T) {
	r := newLocal(t, rigConfig{})
	admin := r.admin()
	h := admin.queue(1)
	for name, c := range map[string]struct {
		op   nvme.Opcode
		s    nvme.SGL
		data int
		want nvme.Status
	}{
		"data of the transport":             {nvme.Write, nvme.SGL{Length: 512, Type: nvme.SGLTransport}, 0, nvme.SGLType},
		"an address without a key":          {nvme.Write, nvme.SGL{Length: 512}, 0, nvme.SGLType},
		"a key of another subtype":          {nvme.Write, nvme.SGL{Length: 512, Type: 0x42}, 0, nvme.SGLType},
		"a segment":                         {nvme.Write, nvme.SGL{Length: 16, Type: 0x20}, 0, nvme.SGLType},
		"more than the capsule may have":    {nvme.Write, nvme.SGL{Length: 8192, Type: nvme.SGLInCapsule}, 4096, nvme.SGLOffset},
		"more than the capsule has":         {nvme.Write, nvme.SGL{Length: 4096, Type: nvme.SGLInCapsule}, 4095, nvme.SGLOffset},
		"an offset":                         {nvme.Write, nvme.SGL{Address: 512, Length: 512, Type: nvme.SGLInCapsule}, 1024, nvme.SGLOffset},
		"a Read into the capsule":           {nvme.Read, nvme.SGL{Length: 512, Type: nvme.SGLInCapsule}, 512, nvme.SGLType},
		"less than the command":             {nvme.Write, nvme.SGL{Length: 512, Type: nvme.SGLInCapsule}, 512, nvme.DataSGLLength},
		"more than the command, with a key": {nvme.Read, nvme.SGL{Length: 1<<24 - 1, Type: nvme.SGLKeyed}, 0, nvme.DataSGLLength},
	} {
		n := 512
		if c.want == nvme.DataSGLLength {
			n = 1024
		}
		h.send(h.capsule(rw(c.op, 0, n), c.s, make([]byte, c.data)))
		if e := h.mustComplete(); e.Status != c.want|nvme.DNR {
			t.Errorf("%s: %v, want %v", name, e.Status, c.want)
		}
	}
	h.works(1)
	// An admin queue takes none in capsules.
	admin.send(admin.capsule(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{0x16}}, nvme.SGL{Length: 512, Type: nvme.SGLInCapsule}, make([]byte, 512)))
	if e := admin.mustComplete(); e.Status != nvme.SGLOffset|nvme.DNR {
		t.Errorf("data in a capsule of an admin queue: %v", e.Status)
	}
}

// Capsules that are none end their connection, and nothing else.
func TestCapsules(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		admin := r.admin()
		innocent := admin.queue(1)
		for i, n := range []int{0, 1, nvme.SQELen - 1, nvme.SQELen + capsule + 1} {
			h := admin.queue(uint16(2 + i))
			h.send(make([]byte, n))
			h.over()
			innocent.works(i)
		}
	})
}

// More commands than a queue has entries end the connection.
func TestTooMany(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	for range depth {
		p.Say(b.command(rw(nvme.Write, 0, 4096), 4096)) // nothing is answered before its data are fetched
	}
	select {
	case <-p.Over:
		t.Error("the connection has ended with as many commands as the queue has entries")
	default:
	}
	p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
	<-p.Over
	if n := b.Counters().ProtocolErrors.Load(); n != 1 {
		t.Errorf("%d protocol errors are counted", n)
	}
}

// ordinary is a store that lends no memory, as those on disks.
type ordinary struct{ backend.Store }

// The data of a capsule for a store that lends no memory are copied to the command's own.
func TestCapsuleForOrdinaryStore(t *testing.T) {
	r := newLocal(t, rigConfig{store: ordinary{newStore(t)}})
	h := r.admin().queue(1)
	for i, n := range []int{512, capsule} {
		want := pattern(n, i)
		h.send(h.capsule(rw(nvme.Write, 64, n), nvme.SGL{Length: uint32(n), Type: nvme.SGLInCapsule}, want))
		if e := h.mustComplete(); e.Status != nvme.Success {
			t.Fatal(e.Status)
		}
		if got := r.contents(64*512, n); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: others were written", n)
		}
	}
}

// The data of a capsule are copied once, to where the store keeps them: that takes no I/O memory, of which there may be none left.
func TestCapsuleWithoutMemory(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	var hog []*mem.Lease
	for n := 1 << 20; n >= 1<<12; n /= 2 {
		for l := b.rig.pool.Lease(n); l != nil; l = b.rig.pool.Lease(n) {
			hog = append(hog, l)
		}
	}
	for i, n := range []int{512, capsule} {
		want := pattern(n, i)
		c := rw(nvme.Write, uint64(i*8), n)
		b.cid++
		c.CID, c.SGL = b.cid, nvme.SGL{Length: uint32(n), Type: nvme.SGLInCapsule}
		p.Say(append(c.AppendTo(nil), want...))
		if _, e, _ := p.answer(); e.CID != b.cid || e.Status != nvme.Success {
			t.Errorf("%d bytes: %+v", n, e)
		}
		if got := b.rig.contents(i*8*512, n); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: others were written", n)
		}
	}
	for _, l := range hog {
		l.Release()
	}
}

// The descriptor of the second of a pair is looked at as any other. What the capsule does not have is not taken from memory that has held
// something else before.
func TestDescriptorOfSecond(t *testing.T) {
	for name, c := range map[string]struct {
		s    nvme.SGL
		data int
		want nvme.Status
	}{
		"more than the capsule has": {nvme.SGL{Length: 4096, Type: nvme.SGLInCapsule}, 100, nvme.SGLOffset},
		"an offset":                 {nvme.SGL{Address: 512, Length: 4096, Type: nvme.SGLInCapsule}, 4096, nvme.SGLOffset},
		"data of the transport":     {nvme.SGL{Length: 4096, Type: nvme.SGLTransport}, 0, nvme.SGLType},
	} {
		b := newBench(t, rdmatest.NewFake())
		p := b.queue()
		var used []*mem.Lease
		for range 256 {
			l := b.rig.pool.Lease(8192)
			copy(l.Bytes(), bytes.Repeat([]byte("harm"), 2048))
			used = append(used, l)
		}
		for _, l := range used {
			l.Release()
		}
		compare, write := rw(nvme.Compare, 0, 4096), rw(nvme.Write, 0, 4096)
		compare.Fuse, write.Fuse = nvme.FusedFirst, nvme.FusedSecond
		p.Say(b.command(compare, 4096))
		reads := p.Next()
		b.cid++
		write.CID, write.SGL = b.cid, c.s
		p.Say(append(write.AppendTo(nil), make([]byte, c.data)...))
		p.fetch(reads, make([]byte, 4096))
		ws := p.Next()
		got := map[uint16]nvme.Status{}
		for _, w := range ws {
			if w.Op == rdma.OpSend {
				e := nvme.ParseCQE(w.SGL[0].Bytes)
				got[e.CID] = e.Status
			}
		}
		if len(ws) != 2 || got[b.cid-1].Code() != nvme.FusedFailed || got[b.cid].Code() != c.want {
			t.Errorf("%s: %v, want %v, and %v of the first", name, got, c.want, nvme.FusedFailed)
		}
		p.Finish(ws, rdma.StatusOK)
		if got := b.rig.contents(0, 4096); !bytes.Equal(got, make([]byte, 4096)) {
			t.Errorf("%s: % x … are written", name, got[:8])
		}
	}
}
