package nvmerdma

import (
	"bytes"
	"testing"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/rdma/cm"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// Where the sink of a Read has to allow remote writes, it does so only while the Read is under way, and is as long as the
// Read. Nothing else of the I/O memory can be written to by a peer, ever.
func TestReadSinks(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.ReadSinkWrite, d.Says.ReceiveWait = true, false
	b := newBench(t, d)
	p := b.queue()
	p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
	reads := p.Next()
	if n := d.Writable(); n != 1 || len(reads) != 1 || len(reads[0].SGL[0].Region.Bytes()) != 4096 {
		t.Fatalf("%d regions allow remote writes, %+v", n, reads)
	}
	want := pattern(4096, 1)
	p.fetch(reads, want)
	if n := d.Writable(); n != 0 {
		t.Errorf("%d regions allow remote writes after the Read", n)
	}
	if _, e, _ := p.answer(); e.Status != nvme.Success || !bytes.Equal(b.rig.contents(0, 4096), want) {
		t.Error(e.Status)
	}
	// A Read that is cut short ends its access, too.
	p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
	p.End()
	until(b.t, "the queue is gone", func() bool { return b.Connections() == 1 })
	if n := d.Writable(); n != 0 {
		t.Errorf("%d regions allow remote writes after the end", n)
	}
}

// Where peers can invalidate any region of their protection domain, each connection has a domain of its own.
func TestDomains(t *testing.T) {
	for _, unguarded := range []bool{false, true} {
		d := rdmatest.NewFake()
		d.Says.UnguardedInvalidate = unguarded
		b := newBench(t, d)
		p := b.queue()
		want := pattern(4096, 1)
		b.run(p, rw(nvme.Write, 0, 4096), want, 0)
		if got := b.run(p, rw(nvme.Read, 0, 4096), nil, 4096); !bytes.Equal(got, want) {
			t.Error("other bytes come back")
		}
		most := 1
		if unguarded {
			most = 2
		}
		if _, n := d.Registered(); n != most {
			t.Errorf("%d domains of 2 connections", n)
		}
	}
}

// A device that copies no memory sends completions from registered memory, which is there again when they have left.
func TestNoInline(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.MaxInline = 0
	b := newBench(t, d)
	p := b.queue()
	for range 200 { // more than there are slots
		p.Say(b.command(nvme.Command{Opcode: nvme.Flush, NSID: 1}, 0))
		_, e, send := p.answer()
		if e.Status != nvme.Success || send.Flags&rdma.Inline != 0 || send.SGL[0].Region == nil {
			t.Fatalf("%v, %+v", e.Status, send)
		}
	}
	// Others can connect when all other memory is in use.
	var hog []*mem.Lease
	for n := 1 << 20; n >= 1<<12; n /= 2 {
		for l := b.rig.pool.Lease(n); l != nil; l = b.rig.pool.Lease(n) {
			hog = append(hog, l)
		}
	}
	b.run(b.dial(request(2, depth)), connect(2, depth-1), connectData(b.ctrl), 0)
	for _, l := range hog {
		l.Release()
	}
}

// A message that no receive can hold ends its connection, but takes nothing from the receives that connections share.
func TestReceivesComeBack(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	for _, s := range []rdma.Status{rdma.StatusOK, rdma.StatusLocalLength, rdma.StatusFlushed} {
		p := b.dial(request(0, 32))
		before := p.Posted()
		p.Fail(s)
		if got := p.Posted(); got != before {
			t.Errorf("%v: %d receives are posted, %d before", s, got, before)
		}
	}
}

// Connections that have not sent Connect give way to others, where they take memory or receives from them, and so do those of discovery
// controllers, which anybody may have.
func TestStarting(t *testing.T) {
	for name, change := range map[string]func(*rdma.Limits){
		"receives of their own":    func(l *rdma.Limits) { l.ReceiveWait = false },
		"parts that take receives": func(l *rdma.Limits) { l.PartTakesReceive = true },
	} {
		for what, begin := range map[string]func(b *bench, p *fakePair){
			"nothing": func(*bench, *fakePair) {},
			"discovery": func(b *bench, p *fakePair) {
				f := nvme.ConnectFields{HostID: [16]byte{2}, CNTLID: nvme.DynamicController, SubNQN: nvme.DiscoveryNQN, HostNQN: hostNQN}
				b.run(p, connect(0, 31), f.AppendTo(nil), 0)
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				d := rdmatest.NewFake()
				change(&d.Says)
				b := newBench(t, d)
				p := b.queue()
				before := b.rig.pool.Stats().InUse
				var gone int
				for range 200 {
					r := &rdmatest.FakeRequest{Data: request(0, 32)}
					if err := b.target.accept(r, 1); err != nil {
						break // the connections are used up, or too many are giving way
					}
					x := &fakePair{r.Pair, t}
					b.pairs = append(b.pairs, x)
					begin(b, x)
				}
				for _, x := range b.pairs[2:] {
					select {
					case <-x.Over:
						gone++
					default:
					}
				}
				most := b.rig.pool.Stats().Limit/8 + 1<<20
				if used := b.rig.pool.Stats().InUse - before; used > most {
					t.Errorf("%d bytes are in use of connections that have proved nothing, want at most %d", used, most)
				}
				if gone == 0 {
					t.Error("no connection has given way")
				}
				select {
				case <-p.Over:
					t.Error("a connected queue has given way")
				default:
				}
				b.run(p, rw(nvme.Write, 0, 4096), make([]byte, 4096), 0)
			})
		}
	}
}

// FuzzCapsule: whatever messages come, and whenever what was posted ends, the mover neither panics nor keeps memory. The input
// is a list of messages, each behind a byte that says whether what was posted ends, and one of how many bytes more than an entry
// it has.
func FuzzCapsule(f *testing.F) {
	add := func(flags, more byte, c nvme.Command) []byte {
		return append(append([]byte{flags, more}, c.AppendTo(nil)...), make([]byte, more)...)
	}
	keyed := func(c nvme.Command, n int) nvme.Command {
		c.SGL = nvme.SGL{Address: memoryAt, Length: uint32(n), Key: memoryKey, Type: nvme.SGLKeyedInvalidate}
		return c
	}
	f.Add(append(add(1, 0, keyed(rw(nvme.Write, 0, 4096), 4096)), add(0, 0, keyed(rw(nvme.Read, 0, 4096), 4096))...))
	inCapsule := rw(nvme.Write, 0, 512)
	inCapsule.SGL = nvme.SGL{Length: 128, Type: nvme.SGLInCapsule}
	f.Add(add(0, 128, inCapsule))
	first, second := keyed(rw(nvme.Compare, 0, 512), 512), keyed(rw(nvme.Write, 0, 512), 512)
	first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
	f.Add(append(add(0, 0, first), add(2, 0, second)...))
	f.Add(add(3, 0, keyed(fetched["Reservation Acquire"].c, 16)))
	f.Add([]byte{0, 0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, input []byte) {
		b := newBench(t, rdmatest.NewFake()) // looks for what is left
		p := b.queue()
		for len(input) >= 2 {
			flags, n := input[0], min(nvme.SQELen+int(input[1]), len(input)-2)
			select {
			case <-p.Over:
				return
			default:
			}
			p.Say(input[2 : 2+n])
			input = input[2+n:]
			if flags&1 != 0 {
				p.Finish(p.Next(), rdma.StatusOK)
			}
			if flags&2 != 0 {
				p.Finish(p.Next(), rdma.StatusRemoteAccess)
			}
		}
	})
}

// A shared receive that the device does not take ends the connection that gives it back. The next connection posts it.
func TestSharedReceiveRefused(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	before := p.Posted()
	p.RefuseReceives(rdma.ErrFull)
	p.Say(b.command(rw(nvme.Read, 0, 512), 512))
	<-p.Over
	p.RefuseReceives(nil)
	p.End()
	if n := b.dial(request(2, depth)).Posted(); n != before {
		t.Errorf("%d receives are posted, want %d", n, before)
	}
}

// A connection for whose receives there is no memory is refused, and keeps no place.
func TestNoMemoryForReceives(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.ReceiveWait = false
	b := newBench(t, d)
	var hog []*mem.Lease
	for n := 1 << 20; n >= 1<<12; n /= 2 {
		for l := b.rig.pool.Lease(n); l != nil; l = b.rig.pool.Lease(n) {
			hog = append(hog, l)
		}
	}
	r := &rdmatest.FakeRequest{Data: request(0, 32)}
	err := b.target.accept(r, 1)
	if s, ok := cm.ParseReject(r.No); err == nil || !ok || s != cm.NoResources {
		t.Errorf("%v, refused with % x", err, r.No)
	}
	if n := b.Connections(); n != 0 {
		t.Errorf("%d connections", n)
	}
	for _, l := range hog {
		l.Release()
	}
	b.queue()
}
