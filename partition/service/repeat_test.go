package service_test

import (
	"slices"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// A client repeats requests in the order in which it has posted them, and they may have been done in another one. None is done
// again, also when it loses the second connection, too, in the middle of that.
func TestAgainInAnyOrder(t *testing.T) {
	s, err := memory.New(size)
	check(t, err)
	b := &bench{t: t, pool: mem.NewPool(plenty), late: make(chan func(), 64)}
	b.serve(s, false, service.Config{})
	write := func(tag int, f wire.Flags) wire.Request {
		return wire.Request{Op: wire.Write, Flags: wire.Inline | f, Tag: uint32(tag), Length: 512, Offset: uint64(tag%64) << 12}
	}
	c := b.use(0)
	session := c.info.Session
	values := map[uint32]uint64{}
	takes := func(n int) {
		t.Helper()
		for range n {
			r := c.response()
			if was, ok := values[r.Tag]; r.Status != wire.OK || ok && was != r.Value {
				t.Errorf("request %d has the result %v, number %d; it was number %d", r.Tag, r.Status, r.Value, was)
			}
			values[r.Tag] = r.Value
		}
	}
	resume := func() {
		t.Helper()
		c.close()
		c = b.connect(ins)
		c.hello("")
		c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, nil)
		if m := c.attached(); !m.Known {
			t.Fatalf("%+v", m)
		}
	}
	for i := range 64 {
		c.request(write(i, 0))
	}
	var ends []func()
	for range 64 {
		ends = append(ends, <-b.late)
	}
	for _, end := range slices.Backward(ends) { // the store does the last one first
		end()
	}
	takes(64)

	count := make(chan int)
	go func() {
		n := 0
		for end := range b.late {
			n++
			end()
		}
		count <- n
	}()

	resume() // the client has heard of none
	for i := range 64 {
		c.request(write(i, wire.Again))
	}
	takes(64)
	for i := range 32 {
		c.request(write(64+i, 0))
		takes(1)
	}

	resume() // it has heard of the first 32 that were repeated
	for i := range 64 {
		c.request(write(32+i, wire.Again))
	}
	takes(64)
	close(b.late)
	if n := <-count; n != 32 {
		t.Errorf("%d requests are done that had not been done, want 32", n)
	}
}

// A request whose data never come is not done, and nothing that has to come behind it: neither a fence, nor, on a strict handle,
// any other request. Otherwise a client that dies in the middle of a log's body would leave its commit record.
func TestNothingBehindLostData(t *testing.T) {
	for what, x := range map[string]struct {
		order  rdma.Order
		behind wire.Flags
	}{
		"a fence":          {rdma.FreeStart | rdma.FreeFinish, wire.Fence},
		"a strict handle":  {rdma.OrderStrict, 0},
		"a durable record": {rdma.OrderStrict, wire.Barrier},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, false, plenty, service.Config{Memory: 1 << 20})
			c := b.connect(ins)
			c.hello("")
			c.attach(wire.AttachMessage{Partition: "disk/log", Order: uint16(x.order)}, nil)
			c.attached()
			await, release := b.store.Hold(everything)
			c.request(wire.Request{Op: wire.Read, Tag: 1, Length: 1 << 20}) // takes all memory
			await(1)
			c.request(wire.Request{Op: wire.Write, Tag: 2, Length: 64 << 10, Offset: 1 << 20, STag: 1 << 8}) // there is no such memory
			c.data()[0] = 1
			c.request(wire.Request{Op: wire.Write, Flags: wire.Inline | x.behind, Tag: 3, Length: 512, Offset: 2 << 20})
			c.do(wire.Request{Op: wire.List, Tag: 4}) // so both are there
			release()
			for c.next() != nil { // until the connection has ended
			}
			b.settle(0)
			c.close()
			c = b.use(0)
			c.data()[0] = 9
			if r := c.do(wire.Request{Op: wire.Read, Tag: 5, Length: 512, Offset: 2 << 20}); r.Status != wire.OK || c.data()[0] != 0 {
				t.Errorf("%v, and the first octet is %d, want 0", r.Status, c.data()[0])
			}
		})
	}
}

// When a connection has ended all that it has used is given up, though something hangs in the store.
func TestGivenUpAtOnce(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	b.quits = make(chan struct{}, 4)
	c := b.use(0)
	handles := []uint32{c.handle}
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3}, nil)
	handles = append(handles, c.attached().Handle)
	await, release := b.store.Hold(everything)
	for i, h := range handles {
		c.handle = h
		c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: uint32(i), Length: 512, Offset: uint64(i) << 12})
	}
	await(2)
	c.close()
	for range handles {
		select {
		case <-b.quits:
		case <-time.After(patience):
			t.Error("an endpoint of a connection that has ended is not given up")
		}
	}
	release()
}

// Who hears that his connection has ended may come back at once, by a way of which this service does not hear: a portal that was made anew
// meanwhile. All that the connection has used is given up by then.
func TestGivenUpBefore(t *testing.T) {
	for _, overIWARP := range []bool{false, true} {
		b := newBench(t, overIWARP, plenty, service.Config{})
		b.quits = make(chan struct{}, 1)
		c := b.use(0)
		await, release := b.store.Hold(everything)
		c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 1, Length: 512})
		await(1)
		c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 1, Length: 512})
		c.ends("a tag that is in use")
		select {
		case <-b.quits:
		default:
			t.Error("the client hears of the end, and what hangs in the store has not been given up")
			<-b.quits
		}
		release()
	}
}

// A Write that has waited here for long, behind a request that waits for memory, is not done over what somebody else has been told is written
// since: his client may have been given up. If nobody has written there, it is done.
func TestOverdue(t *testing.T) {
	for overtaken, want := range map[bool]wire.Status{false: wire.OK, true: wire.Ended} {
		b := newBench(t, false, plenty, service.Config{Memory: 1 << 20})
		c := b.connect(ins)
		c.hello("")
		c.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
		c.attached()
		await, release := b.store.Hold(func(op *backend.Op) bool { return op.Kind == backend.Read })
		c.request(wire.Request{Op: wire.Read, Tag: 1, Length: 1 << 20}) // takes all memory
		await(1)
		c.request(wire.Request{Op: wire.Read, Tag: 2, Length: 512})
		c.data()[0] = 1
		c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 3, Length: 512, Offset: 2 << 20})
		c.do(wire.Request{Op: wire.List, Tag: 4}) // so all are there
		for range 3 {
			b.svc.Tick()
		}
		other := b.use(0)
		if overtaken {
			other.data()[0] = 2
			if r := other.do(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 1, Length: 512, Offset: 2 << 20}); r.Status != wire.OK {
				t.Fatalf("%+v", r)
			}
		}
		release()
		for range 3 {
			r := c.response()
			if r.Tag == 3 && r.Status != want || r.Tag != 3 && r.Status != wire.OK {
				t.Errorf("overtaken %v: %+v", overtaken, r)
			}
		}
		first := byte(1)
		if overtaken {
			first = 2
		}
		if r := other.do(wire.Request{Op: wire.Read, Tag: 2, Length: 512, Offset: 2 << 20}); r.Status != wire.OK || other.data()[0] != first {
			t.Errorf("overtaken %v: %v, and the first octet is %d", overtaken, r.Status, other.data()[0])
		}
		if r := c.do(wire.Request{Op: wire.Read, Tag: 5, Length: 512}); r.Status != want {
			t.Errorf("overtaken %v: the next request ends with %v", overtaken, r.Status)
		}
	}
}
