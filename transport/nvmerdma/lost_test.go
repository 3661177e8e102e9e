package nvmerdma

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/nvme"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// fetched are the commands of an I/O queue whose data are fetched, with what would do harm if it were executed. TestFetchedIsAll holds
// them against what the target says that it has.
var fetched = map[string]struct {
	c    nvme.Command
	data []byte
}{
	"Write":                {rw(nvme.Write, 64, 4096), bytes.Repeat([]byte("harm"), 1024)},
	"Write of many Reads":  {rw(nvme.Write, 64, 1<<20), bytes.Repeat([]byte("harm"), 1<<18)},
	"Compare":              {rw(nvme.Compare, 64, 4096), make([]byte, 4096)},
	"Copy":                 {nvme.Command{Opcode: nvme.Copy, NSID: 1, DWords: [6]uint32{64}}, nvme.AppendCopyRange(nil, 128, 8)},
	"Dataset Management":   {nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 4}}, []byte{4: 8, 15: 0}},
	"Reservation Register": {nvme.Command{Opcode: nvme.ReservationRegister, NSID: 1}, nvme.AppendKeys(nil, 0, 7)},
	"Reservation Acquire":  {nvme.Command{Opcode: nvme.ReservationAcquire, NSID: 1, DWords: [6]uint32{1 << 8}}, nvme.AppendKeys(nil, 7, 0)},
	"Reservation Release":  {nvme.Command{Opcode: nvme.ReservationRelease, NSID: 1, DWords: [6]uint32{1 << 8}}, nvme.AppendKeys(nil, 7, 0)[:8]},
}

// A command whose data were not fetched is not executed, whatever its memory holds: here it is what would do harm, from a
// command before. The Reads of every command that fetches end in each way in which they can.
func TestUnfetched(t *testing.T) {
	for name, c := range fetched {
		for _, s := range []rdma.Status{rdma.StatusFlushed, rdma.StatusRemoteAccess, rdma.StatusTransport} {
			t.Run(name+", "+s.String(), func(t *testing.T) {
				b := newBench(t, rdmatest.NewFake())
				p := b.queue()
				good := bytes.Repeat([]byte("good"), 1024)
				b.run(p, rw(nvme.Write, 0, 4096), good, 0)
				b.run(p, rw(nvme.Write, 64, 4096), good, 0)
				p.Say(b.command(c.c, len(c.data)))
				ws := p.Next()
				if len(ws) == 0 {
					t.Fatal("nothing is fetched")
				}
				harm := c.data
				for i := range ws {
					for _, s := range ws[i].SGL {
						harm = harm[copy(s.Bytes, harm):]
					}
				}
				p.Finish(ws, s)
				if s == rdma.StatusFlushed { // as when the connection ends, which the provider tells
					p.End()
				}
				<-p.Over
				for _, at := range []int{0, 64 * 512} {
					if got := b.rig.contents(at, 4096); !bytes.Equal(got, good) {
						t.Errorf("at %d there is % x", at, got[:16])
					}
				}
				// No registration or reservation of the command's is there.
				p.End()
				report := nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{64/4 - 1, 1}}
				io := b.dial(request(2, depth))
				b.run(io, connect(2, depth-1), connectData(b.ctrl), 0)
				if got := b.run(io, report, nil, 64); !bytes.Equal(got, make([]byte, 64)) {
					t.Errorf("the reservation report is % x", got)
				}
			})
		}
	}
}

// TestFetchedIsAll: fetched has every command whose data come from the host. The effects log (Base 2.0 §5.16.1.6) says which commands
// there are, and their opcodes which way the data go (§3.3.3.1).
func TestFetchedIsAll(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	admin, _ := b.queues()
	log := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogEffects) | (nvme.EffectsLen/4-1)<<16}}
	effects := b.run(admin, log, nil, nvme.EffectsLen)
	const io, supported, fromHost = 1024, 1, 1
	tried := make(map[nvme.Opcode]bool)
	for name, c := range fetched {
		op := c.c.Opcode
		if tried[op] = true; effects[io+4*int(op)]&supported == 0 {
			t.Errorf("%s is not there", name)
		}
	}
	for op := range 256 {
		if effects[io+4*op]&supported != 0 && op&fromHost != 0 && !tried[nvme.Opcode(op)] {
			t.Errorf("the command %#02x fetches data, and is not tried without them", op)
		}
	}
}

// A Connect whose data were not fetched makes no controller.
func TestUnfetchedConnect(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.dial(request(0, 32))
	p.Say(b.command(connect(0, 31), nvme.ConnectDataLen))
	ws := p.Next()
	copy(ws[0].SGL[0].Bytes, connectData(nvme.DynamicController))
	p.Finish(ws, rdma.StatusRemoteAccess)
	<-p.Over
	p.End()
	if n := b.ControllerCount(); n != 0 {
		t.Errorf("%d controllers", n)
	}
}

// A command that is aborted while its data are fetched is answered when the Reads are over, and its memory is nobody else's
// before.
func TestAbortWhileFetching(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	admin, p := b.queues()
	before := b.rig.pool.Stats().Leases
	p.Say(b.command(rw(nvme.Write, 0, 64<<10), 64<<10))
	cid := b.cid
	reads := p.Next()
	b.run(admin, nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}, nil, 0)
	if ws := p.Next(); len(ws) != 0 {
		t.Fatalf("%d works are posted while Reads are under way", len(ws))
	}
	if n := b.rig.pool.Stats().Leases; n != before+1 {
		t.Errorf("%d leases while Reads are under way, want %d", n, before+1)
	}
	p.fetch(reads, bytes.Repeat([]byte("harm"), 16<<10))
	if _, e, _ := p.answer(); e.CID != cid || e.Status.Code() != nvme.Aborted {
		t.Errorf("%+v", e)
	}
	if n := b.rig.pool.Stats().Leases; n != before {
		t.Errorf("%d leases when the command is over, want %d", n, before)
	}
	if got := b.rig.contents(0, 64<<10); !bytes.Equal(got, make([]byte, 64<<10)) {
		t.Error("the command was executed")
	}
	b.run(p, rw(nvme.Write, 0, 4096), make([]byte, 4096), 0)
}

// Either part of a fused pair has its data fetched into one half of one memory. It is nobody else's before the Reads of both
// are over, whichever is aborted, and whichever ends first.
func TestAbortPairWhileFetching(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		for aborted := range 2 {
			b := newBench(t, rdmatest.NewFake())
			admin, p := b.queues()
			before := b.rig.pool.Stats().Leases
			compare, write := rw(nvme.Compare, 0, 4096), rw(nvme.Write, 0, 4096)
			compare.Fuse, write.Fuse = nvme.FusedFirst, nvme.FusedSecond
			p.Say(b.command(compare, 4096))
			var reads [2][]rdma.Work
			reads[0] = p.Next()
			p.Say(b.command(write, 4096))
			reads[1] = p.Next()
			cid := b.cid - 1 + uint16(aborted)
			b.run(admin, nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}, nil, 0)
			for n, i := range order {
				if ws := p.Next(); len(ws) != 0 {
					t.Fatalf("%d works are posted while Reads of %d are under way", len(ws), 2-n)
				}
				if n := b.rig.pool.Stats().Leases; n != before+1 {
					t.Errorf("%d leases while Reads are under way, want %d", n, before+1)
				}
				p.fetch(reads[i], make([]byte, 4096))
			}
			ws := p.Next()
			if len(ws) != 2 {
				t.Fatalf("%d answers", len(ws))
			}
			for i, want := range []nvme.Status{nvme.Aborted, nvme.FusedFailed} {
				if e := nvme.ParseCQE(ws[i].SGL[0].Bytes); e.Status.Code() != want {
					t.Errorf("command %d: %v, want %v", i, e.Status, want)
				}
			}
			p.Finish(ws, rdma.StatusOK)
			if n := b.rig.pool.Stats().Leases; n != before {
				t.Errorf("%d leases when the pair is over, want %d", n, before)
			}
		}
	}
}

// A device that takes only the first of the work requests of an answer reads its memory until the queue pair is gone. Nobody else has that
// memory before, whether all of the answer was to be posted or not.
func TestHalfPosted(t *testing.T) {
	for name, room := range map[string]int{"all of it": 1000, "a part of it": 3} {
		t.Run(name, func(t *testing.T) {
			d := rdmatest.NewFake()
			d.Says.MaxWork = room
			b := newBench(t, d)
			p := b.queue()
			before := b.rig.pool.Stats().Leases
			p.Refuses, p.Takes = rdma.ErrFull, 1
			p.Say(b.command(rw(nvme.Read, 0, 1<<20), 1<<20))
			<-p.Over
			if n := b.rig.pool.Stats().Leases; n != before+1 {
				t.Errorf("%d leases while the device has an RDMA Write, want %d", n, before+1)
			}
			p.End()
			until(t, "the memory is given back", func() bool { return b.rig.pool.Stats().Leases == before && b.Connections() == 1 })
		})
	}
}

// Connections that have receives of their own get no more of the memory than leaves enough for every command that Identify allows.
func TestReceivesLeaveMemory(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.ReceiveWait = false
	b := newBench(t, d)
	first := b.queue()
	var queues int
	for err := error(nil); err == nil; {
		admin := &rdmatest.FakeRequest{Data: request(0, 32)}
		if err = b.target.accept(admin, 1); err != nil {
			break
		}
		p := &fakePair{admin.Pair, t}
		b.pairs = append(b.pairs, p)
		p.Say(b.command(connect(0, 31), nvme.ConnectDataLen))
		p.fetch(p.Next(), connectData(nvme.DynamicController))
		_, e, _ := p.answer()
		b.run(p, propertySet(nvme.PropCC, 0x460001), nil, 0)
		for qid := uint16(1); qid <= 64 && err == nil; qid++ {
			io := &rdmatest.FakeRequest{Data: request(qid, depth)}
			if err = b.target.accept(io, 1); err != nil {
				break
			}
			p := &fakePair{io.Pair, t}
			b.pairs = append(b.pairs, p)
			b.run(p, connect(qid, depth-1), connectData(uint16(e.DW0)), 0)
			queues++
		}
	}
	if queues < 50 {
		t.Errorf("only %d queues find memory", queues)
	}
	const n = 2 << 20 // as much as a command can have
	first.Say(b.command(rw(nvme.Write, 0, n), n))
	reads := first.Next()
	if len(reads) == 0 {
		t.Fatalf("with %d queues, a command waits for memory that nobody gives back", queues)
	}
	first.fetch(reads, pattern(n, 1))
	if _, e, _ := first.answer(); e.Status != nvme.Success {
		t.Error(e.Status)
	}
}

// The connection ends while data are fetched and answers wait: nothing is left.
func TestEndInTheMiddle(t *testing.T) {
	b := newBench(t, rdmatest.NewFake())
	p := b.queue()
	before := b.rig.pool.Stats().Leases
	for i := range 8 {
		p.Say(b.command(rw(nvme.Write, uint64(i*128), 64<<10), 64<<10))
		p.Say(b.command(rw(nvme.Read, uint64(i*128), 64<<10), 64<<10))
	}
	p.End()
	until(b.t, "the queue is gone", func() bool { return b.rig.pool.Stats().Leases == before && b.Connections() == 1 })
	if got := b.rig.contents(0, 512<<10); !bytes.Equal(got, make([]byte, 512<<10)) {
		t.Error("a command was executed")
	}
}

// A key that is not, or no longer, the host's ends its connection, and nothing else.
func TestStaleKey(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		admin := r.admin()
		innocent := admin.queue(1)
		innocent.works(1)
		for i, op := range []nvme.Opcode{nvme.Write, nvme.Read} {
			h := admin.queue(uint16(2 + i))
			h.works(2)
			s := h.key(4096)
			h.register() // the old key is gone
			h.send(h.capsule(rw(op, 0, 4096), s, nil))
			h.over()
			if got := r.contents(0, 4096); !bytes.Equal(got, make([]byte, 4096)) {
				t.Error("the command was executed")
			}
		}
		beyond := admin.queue(4)
		s := beyond.key(4096)
		s.Address += dataLen - 512
		beyond.send(beyond.capsule(rw(nvme.Write, 0, 4096), s, nil))
		beyond.over()
		wraps := admin.queue(5)
		s = wraps.key(4096)
		s.Address = 1<<64 - 512
		wraps.send(wraps.capsule(rw(nvme.Write, 0, 4096), s, nil))
		wraps.over()
		if got := r.contents(0, 4096); !bytes.Equal(got, make([]byte, 4096)) {
			t.Error("the command was executed")
		}
		innocent.works(3)
	})
}

// A host that answers no RDMA Read is dropped when its time is over, and has no part in what others do.
func TestReadsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, rdmatest.NewFake())
		_, p := b.queues()
		idle := b.dial(request(2, depth))
		b.run(idle, connect(2, depth-1), connectData(b.ctrl), 0)
		b.run(idle, rw(nvme.Write, 0, 4096), make([]byte, 4096), 0)
		start := time.Now()
		p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
		first := p.Next()
		p.Say(b.command(rw(nvme.Write, 0, 4096), 4096))
		time.Sleep(readTimeout - time.Second)
		p.fetch(first, make([]byte, 4096))
		<-p.Over
		if d := time.Since(start); d < 2*readTimeout-time.Second || d > 2*readTimeout+2*time.Second {
			t.Errorf("dropped after %v", d)
		}
		select {
		case <-idle.Over:
			t.Error("a host that has answered all Reads is dropped")
		default:
		}
	})
}

// The Reads of one command may be more than the queue pair takes at once. Each of them that is answered shows that the host goes on:
// the time begins anew.
func TestReadsInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := rdmatest.NewFake()
		d.Says.MaxWork = 2
		b := newBench(t, d)
		p := b.queue()
		const n = 1 << 20
		p.Say(b.command(rw(nvme.Write, 0, n), n))
		want := pattern(n, 1)
		for left := want; len(left) > 0; {
			time.Sleep(readTimeout - time.Second)
			reads := p.Next()
			if len(reads) == 0 || len(reads) > 2 {
				t.Fatalf("%d Reads are posted, with %d bytes to go", len(reads), len(left))
			}
			size := 0
			for i := range reads {
				for _, s := range reads[i].SGL {
					size += len(s.Bytes)
				}
			}
			p.fetch(reads, left[:size])
			left = left[size:]
		}
		if _, e, _ := p.answer(); e.Status != nvme.Success {
			t.Error(e.Status)
		}
		if got := b.rig.contents(0, n); !bytes.Equal(got, want) {
			t.Error("the command has written other bytes")
		}
	})
}

// A connection that is to end while it is being made ends when it is made. Otherwise nobody would end it but its peer, and who closes
// the target would wait for that.
func TestEndWhileMade(t *testing.T) {
	for name, end := range map[string]func(b *bench) (undo func()){
		"others come": func(b *bench) func() {
			const share = 500 // of all connections
			for range share {
				if !b.Admit() {
					b.t.Fatal("there is no room")
				}
			}
			return func() {
				for range share {
					b.Dismiss()
				}
			}
		},
		"shutdown": func(b *bench) func() {
			over := make(chan error)
			go func() { over <- b.Shutdown(context.Background()) }()
			synctest.Wait() // it has asked the connection to leave
			return func() { check(b.t, <-over) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, rdmatest.NewFake())
				var undo func()
				r := &rdmatest.FakeRequest{Data: request(0, 32)}
				r.Meanwhile = func() { undo = end(b) }
				check(t, b.target.accept(r, 1))
				select {
				case <-r.Pair.Over:
				default:
					t.Error("the device is not told to end the connection")
				}
				r.Pair.End()
				undo()
			})
		})
	}
}
