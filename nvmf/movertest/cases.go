package movertest

import (
	"bytes"
	"math/rand/v2"

	"oneshot/internal/rounds"
	"oneshot/nvme"
)

// readsAndWrites moves data of all lengths, in capsules and otherwise (GetData, Answer).
func readsAndWrites(b *bench) {
	h := b.dial()
	model := make([]byte, 4<<20)
	for off := 0; off < len(model); off += longest {
		b.do(h, write(off, model[off:off+longest]))
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range rounds.Of(120, 40) {
		n := min(blockSize<<rnd.IntN(12)+blockSize*rnd.IntN(3), longest)
		off := blockSize * rnd.IntN((len(model)-n)/blockSize)
		if rnd.IntN(2) == 0 {
			data := random(uint64(i), n)
			b.do(h, write(off, data))
			copy(model[off:], data)
			continue
		}
		got := make([]byte, n)
		b.do(h, read(off, got))
		if !bytes.Equal(got, model[off:off+n]) {
			b.Fatalf("%d bytes at %d are not what was written", n, off)
		}
	}
	b.idle()
}

// anyOrder has many commands under way, which end in any order.
func anyOrder(b *bench) {
	const n = 32 << 10
	h := b.dial()
	for round := range rounds.Of(8, 3) {
		var writes, reads []*Command
		for i := range outstanding {
			writes = append(writes, write(i*n, random(uint64(round*outstanding+i), n)))
			reads = append(reads, read(i*n, make([]byte, n)))
		}
		for _, cs := range [][]*Command{writes, reads} {
			over := start(h, cs...)
			for range cs {
				b.good(over)
			}
		}
		for i, c := range reads {
			if !bytes.Equal(c.In, writes[i].Out) {
				b.Fatalf("round %d: other bytes are read at %d than written", round, i*n)
			}
		}
	}
	b.idle()
}

// earlyAnswer has commands answered before their data has been fetched: they are wrong.
func earlyAnswer(b *bench) {
	h := b.dial()
	for range 10 {
		for _, n := range []int{blockSize, 64 << 10, longest} {
			b.refused(h, write(storeSize, make([]byte, n)), nvme.LBAOutOfRange)
			into := bytes.Repeat([]byte{0xaa}, n)
			b.refused(h, read(storeSize, into), nvme.LBAOutOfRange)
			if !bytes.Equal(into, bytes.Repeat([]byte{0xaa}, n)) {
				b.Fatal("a Read that is refused has sent something")
			}
		}
	}
	b.works(h)
	b.idle()
}

// fused has data fetched for both commands of pairs.
func fused(b *bench) {
	h := b.dial()
	pair := func(old, data []byte) <-chan *Command {
		first, second := rw(nvme.Compare, 0, len(old)), write(0, data)
		first.Out, first.Fuse, second.Fuse = old, nvme.FusedFirst, nvme.FusedSecond
		return start(h, first, second)
	}
	for _, n := range []int{blockSize, 64 << 10} {
		old, data, got := random(1, n), random(2, n), make([]byte, n)
		b.do(h, write(0, old))
		wrong := pair(data, data)
		for range 2 {
			want := nvme.CompareFailure
			c := b.end(wrong)
			if c.Fuse == nvme.FusedSecond {
				want = nvme.FusedFailed
			}
			if c.Err != nil || c.CQE.Status.Code() != want {
				b.Fatalf("%d bytes: command %#x of a pair ends with %v, %v", n, c.Opcode, c.CQE.Status, c.Err)
			}
		}
		b.do(h, read(0, got))
		if !bytes.Equal(got, old) {
			b.Fatal("a pair has written that has found something else")
		}
		right := pair(old, data)
		b.good(right)
		b.good(right)
		b.do(h, read(0, got))
		if !bytes.Equal(got, data) {
			b.Fatal("a pair has not written")
		}
	}
	b.idle()
}

// abortInStore aborts commands whose data is in, while the store has them.
func abortInStore(b *bench) {
	gate, ok := b.hold()
	if !ok {
		return
	}
	h := b.dial()
	var cs []*Command
	for i := range 4 {
		cs = append(cs, write(i*128<<10, random(uint64(i), 64<<10)))
	}
	over := start(h, cs...)
	gate.Await(len(cs))
	for _, c := range cs {
		if h.Abort(c) {
			b.Error("a Write is said to be over while the store has it")
		}
	}
	gate.Release()
	for range cs {
		if c := b.end(over); c.Err != nil || c.CQE.Status.Code() != nvme.Aborted {
			b.Errorf("a Write that was aborted in the store ends with %v, %v", c.CQE.Status, c.Err)
		}
	}
	b.works(h)
	b.idle()
}

// abortWithoutMemory aborts commands that wait for memory, with whatever has come of their data. What follows goes on, with the right bytes
// (Forget, Hold). Those that the node has not seen yet it does not abort.
func abortWithoutMemory(b *bench) {
	if b.faults == nil {
		return // it needs no memory
	}
	h := b.dial()
	for _, n := range []int{4 << 10, 512 << 10, longest} {
		b.do(h, write(0, make([]byte, n)))
		feed := b.starve(0)
		var cs []*Command
		for range 3 {
			cs = append(cs, write(0, bytes.Repeat([]byte{0xbb}, n)))
		}
		over := start(h, cs...)
		aborted := map[*Command]bool{}
		for _, c := range cs {
			aborted[c] = h.Abort(c)
		}
		feed()
		wrote := false
		for range cs {
			c := b.end(over)
			code := c.CQE.Status.Code()
			wrote = wrote || code == nvme.Success
			if c.Err != nil || aborted[c] != (code == nvme.Aborted) || !aborted[c] && code != nvme.Success && !isBusy(c) {
				b.Errorf("%d bytes: a Write that is said to be aborted (%t) ends with %v, %v", n, aborted[c], c.CQE.Status, c.Err)
			}
		}
		got := make([]byte, n)
		b.do(h, read(0, got))
		if wrote != bytes.Equal(got, cs[0].Out) || !wrote && !bytes.Equal(got, make([]byte, n)) {
			b.Errorf("%d bytes: that one of them was written is %t, and other bytes are read", n, wrote)
		}
		b.works(h)
	}
	b.idle()
}

// isBusy reports whether there was no memory for a command, which the host is to send again.
func isBusy(c *Command) bool {
	s := c.CQE.Status
	return s&nvme.DNR == 0 && (s.Code() == nvme.Interrupted || s.Code() == nvme.NamespaceNotReady)
}

// load starts Writes and Reads, as many of each.
func load(h Host) <-chan *Command {
	var cs []*Command
	for i := range outstanding {
		c := write(i*64<<10, make([]byte, 128<<10))
		if i%2 == 1 {
			c = read(i*64<<10, make([]byte, 128<<10))
		}
		cs = append(cs, c)
	}
	return start(h, cs...)
}

// underLoad has end end the I/O queue of a controller while commands are in the store, and data on their way. The rest of the controller ends by after. Nothing is
// left of it, and others notice nothing.
func (b *bench) underLoad(end, after func(Host)) {
	other := b.dial()
	for range rounds.Of(6, 2) {
		h := b.dial()
		gate, holds := b.hold()
		over := load(h)
		if holds {
			gate.Await(1)
		}
		end(h)
		if holds {
			gate.Release()
		}
		for range outstanding {
			b.end(over)
		}
		after(h)
		b.until("the controller is gone", func() bool { return b.node.ControllerCount() == 1 && b.node.Connections() == 2 })
		b.works(other)
		b.idle()
	}
}

func nothing(Host) {}

// resetUnderLoad has the host reset the controller. Its admin queue stays.
func resetUnderLoad(b *bench) {
	b.underLoad(Host.Reset, func(h Host) {
		b.until("the I/O queue is gone", func() bool { return b.node.Connections() == 3 })
		h.Cut()
	})
}

// cutUnderLoad has the connections end.
func cutUnderLoad(b *bench) { b.underLoad(Host.Cut, nothing) }

// dropUnderLoad has the node end the controller (Terminate).
func dropUnderLoad(b *bench) {
	b.underLoad(func(Host) {
		list := b.node.Controllers()
		if !b.node.DropController(list[len(list)-1].Number, "the test says so") {
			b.Error("there is no such controller")
		}
	}, nothing)
}

// scarceMemory has more commands wait for memory than it is enough for at once, of several hosts.
func scarceMemory(b *bench) {
	var hosts []Host
	for range 4 {
		hosts = append(hosts, b.dial())
	}
	feed := b.starve(24 << 20) // a command of that size leaves a quarter of all to others
	var all []<-chan *Command
	for range rounds.Of(4, 2) { // the hosts ask for 24 MiB in each
		for i, h := range hosts {
			var cs []*Command
			for k := range 3 {
				cs = append(cs, read(k<<20, make([]byte, longest)), write((4+i%2)<<20, make([]byte, longest)))
			}
			all = append(all, start(h, cs...))
		}
	}
	for _, over := range all {
		for range 6 {
			if c := b.end(over); c.Err != nil || c.CQE.Status != nvme.Success && !isBusy(c) {
				b.Errorf("command %#x ends with %v, %v", c.Opcode, c.CQE.Status, c.Err)
			}
		}
	}
	feed()
	for _, h := range hosts {
		b.works(h)
	}
	b.idle()
}
