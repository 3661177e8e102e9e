package service_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/volume"
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
		c = b.resume(c, session, 0)
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

// A fence that is answered without being executed, because that was done on an earlier connection, or because of a failure there, is one all
// the same: it waits for what is before it (O5), and of what fails before it the next fence knows nothing (O6).
func TestAgainBehindOthers(t *testing.T) {
	write := func(tag, at int, f wire.Flags) wire.Request {
		return wire.Request{Op: wire.Write, Flags: wire.Inline | f, Tag: uint32(tag), Length: 512, Offset: uint64(at)}
	}
	add := wire.Request{Op: wire.Add, Flags: wire.Fence, Tag: 2, Length: 8, Offset: 4096, New: 5}
	const bad, slow = 8192, 1 << 20 // offsets
	for what, x := range map[string]struct {
		rights rdma.Rights
		before []wire.Request // on the first connection, one after the other
		then   []wire.Request // on the second one
		want   []wire.Status  // of these; the last but one is the fence
	}{
		"done": {
			before: []wire.Request{write(2, 4096, wire.Fence)},
			then: []wire.Request{
				{Op: wire.Read, Tag: 1, Length: 512, Offset: slow},
				{Op: wire.Read, Tag: 3, Length: 512, Offset: bad},
				write(2, 4096, wire.Fence|wire.Again), write(4, 4096, wire.Fence),
			},
			want: []wire.Status{wire.OK, wire.Medium, wire.OK, wire.OK},
		},
		"an atomic operation, done": {
			before: []wire.Request{add},
			then: []wire.Request{
				{Op: wire.Read, Tag: 1, Length: 512, Offset: slow},
				{Op: wire.Read, Tag: 3, Length: 512, Offset: bad},
				{Op: wire.Add, Flags: wire.Fence | wire.Again, Tag: 2, Length: 8, Offset: 4096, New: 5},
				write(4, 4096, wire.Fence),
			},
			want: []wire.Status{wire.OK, wire.Medium, wire.OK, wire.OK},
		},
		"not executed": {
			before: []wire.Request{write(1, bad, 0)},
			then: []wire.Request{
				write(1, bad, wire.Again), write(2, bad, wire.Again), write(3, slow, wire.Again),
				write(4, 4096, wire.Barrier|wire.Again), write(5, 4096, wire.Fence|wire.Again),
			},
			want: []wire.Status{wire.Medium, wire.Medium, wire.OK, wire.Fenced, wire.OK},
		},
		"with the right to add alone": {
			rights: rdma.RightAtomics,
			before: []wire.Request{{Op: wire.Add, Tag: 1, Length: 8, Offset: bad}},
			then: []wire.Request{
				{Op: wire.Add, Flags: wire.Again, Tag: 1, Length: 8, Offset: bad},
				{Op: wire.Add, Tag: 3, Length: 8, Offset: slow},
				{Op: wire.Add, Flags: wire.Fence, Tag: 4, Length: 8},
				{Op: wire.Add, Flags: wire.Fence, Tag: 5, Length: 8},
			},
			want: []wire.Status{wire.Medium, wire.OK, wire.Fenced, wire.OK},
		},
		"with the right to write alone": {
			rights: rdma.RightWrite,
			before: []wire.Request{write(1, bad, 0)},
			then: []wire.Request{
				write(1, bad, wire.Again), write(3, slow, wire.Again), write(4, 4096, wire.Fence|wire.Again), write(5, 4096, wire.Fence|wire.Again),
			},
			want: []wire.Status{wire.Medium, wire.OK, wire.Fenced, wire.OK},
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, false, plenty, service.Config{})
			b.store.Fail(func(op *backend.Op) error {
				if op.Off == bad {
					return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errors.New("broken on purpose")}
				}
				return nil
			})
			c := b.use(x.rights)
			for _, r := range x.before {
				c.do(r)
			}
			session := c.info.Session
			c = b.resume(c, session, x.rights)
			await, release := b.store.Hold(func(op *backend.Op) bool { return op.Off == slow })
			for _, r := range x.then {
				c.request(r)
			}
			await(1)
			c.request(wire.Request{Op: wire.List, Tag: 100}) // so all are there
			got := make(map[uint32]wire.Status)
			for r := c.response(); r.Op != wire.List; r = c.response() {
				got[r.Tag] = r.Status
			}
			if _, early := got[x.then[len(x.then)-2].Tag]; early {
				t.Error("the fence is answered before what is before it")
			}
			release()
			for len(got) < len(x.then) {
				r := c.response()
				got[r.Tag] = r.Status
			}
			for i, r := range x.then {
				if got[r.Tag] != x.want[i] {
					t.Errorf("request %d ends with %v, want %v", r.Tag, got[r.Tag], x.want[i])
				}
			}
		})
	}
}

// A client that may only write and add tells the service of a fence by a Write of no octets. That takes no place among the results, which all
// are those of requests that the client has had no response to.
func TestFenceTakesNoPlace(t *testing.T) {
	const rights = rdma.RightWrite | rdma.RightAtomics
	b := newBench(t, false, plenty, service.Config{})
	c := b.use(rights)
	add := func(tag uint32, f wire.Flags) wire.Response {
		return c.do(wire.Request{Op: wire.Add, Flags: f, Tag: tag, Length: 8, New: 1})
	}
	for tag := range uint32(64) {
		add(tag, 0)
	}
	c = b.resume(c, c.info.Session, rights)
	c.do(wire.Request{Op: wire.Write, Flags: wire.Fence, Tag: 64})
	for tag := range uint32(64) {
		if r := add(tag, wire.Again); r.Status != wire.OK || r.Value != uint64(tag) {
			t.Fatalf("request %d is answered by %+v", tag, r)
		}
	}
	if r := add(65, 0); r.Value != 64 {
		t.Errorf("64 requests have added 1, and the sum is %d", r.Value)
	}
}

// The result of a request that waits for its fence once more is kept, though on a handle on which works start freely more requests pass it than results
// are kept, and the connection is lost again before it is answered.
func TestResultOfAFenceThatWaits(t *testing.T) {
	const slow = 1 << 20 // an offset
	write := wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Fence, Tag: 3, Length: 512}
	add := wire.Request{Op: wire.Add, Flags: wire.Fence, Tag: 3, Length: 8, New: 5}
	for what, x := range map[string]struct{ first, then wire.Request }{
		"a Write":             {write, write},
		"an atomic operation": {add, add},
		"a Write, asked for with one of no octets": {write, wire.Request{Op: wire.Write, Flags: wire.Fence, Tag: 3}},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, false, plenty, service.Config{})
			c := b.use(0)
			was := c.do(x.first)
			x.then.Flags |= wire.Again
			session := c.info.Session
			c = b.resume(c, session, 0)
			await, release := b.store.Hold(func(op *backend.Op) bool { return op.Off == slow })
			c.request(wire.Request{Op: wire.Read, Tag: 1, Length: 512, Offset: slow})
			await(1)
			c.request(x.then)
			for tag := range uint32(64) {
				c.do(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 10 + tag, Length: 512, Offset: 4096})
			}
			release()
			c = b.resume(c, session, 0)
			if r := c.do(x.then); r.Status != was.Status || r.Value != was.Value {
				t.Errorf("repeated for the second time it has the result %v, %d; it was %v, %d", r.Status, r.Value, was.Status, was.Value)
			}
		})
	}
}

// What was done before the partition has gone is answered as done, not as refused.
func TestDoneBeforeItHasGone(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	c := b.use(0)
	add := wire.Request{Op: wire.Add, Tag: 1, Length: 8, New: 5}
	fenced := wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Fence, Tag: 2, Length: 512, Offset: 4096}
	c.do(add)
	c.do(fenced)
	c = b.resume(c, c.info.Session, 0)
	b.mu.Lock()
	gone := b.told[len(b.told)-1]
	b.mu.Unlock()
	gone(errors.New("the partition is renamed"))
	if r := c.do(wire.Request{Op: wire.Read, Tag: 3, Length: 512}); r.Status != wire.Gone {
		t.Errorf("%+v", r)
	}
	add.Flags |= wire.Again
	fenced.Flags |= wire.Again
	if r := c.do(add); r.Status != wire.OK || r.Value != 0 {
		t.Errorf("%+v", r)
	}
	if r := c.do(fenced); r.Status != wire.OK {
		t.Errorf("%+v", r)
	}
	fenced.Tag = 4
	if r := c.do(fenced); r.Status != wire.Gone {
		t.Errorf("%+v", r)
	}
}

// keptOpen is a store that outlives its volume.
type keptOpen struct{ backend.Store }

func (keptOpen) Close() error { return nil }

// When the store was opened anew, the service does not say of what was done before that it is done: it may be gone.
func TestResultsOfAStoreOpenedAnew(t *testing.T) {
	s := rdmatest.NewVolatile(size, 1)
	t.Cleanup(func() { check(t, s.Close()) })
	b := &bench{t: t, pool: mem.NewPool(plenty)}
	b.serve(keptOpen{s}, false, service.Config{})
	c := b.use(0)
	w := wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 1, Length: 512}
	c.data()[0] = 1
	c.do(w)
	session := c.info.Session
	c.close()
	b.settle(0)
	number := b.v.Open(nil)
	before := rdma.Generation(number.Sequence().Count())
	number.Close()
	for generation := before; generation == before; generation = rdma.Generation(number.Sequence().Count()) { // chance chooses it
		check(t, b.v.Close())
		v, err := volume.New(volume.Config{Store: keptOpen{s}})
		check(t, err)
		b.v = v
		number = v.Open(nil)
		number.Close()
	}
	c = b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, nil)
	if m := c.attached(); m.Status != wire.OK || m.Known || m.Session == session {
		t.Errorf("%+v", m)
	}
	w.Flags |= wire.Again
	c.data()[0] = 2
	c.do(w)
	if r := c.do(wire.Request{Op: wire.Read, Tag: 2, Length: 512}); r.Status != wire.OK || c.data()[0] != 2 {
		t.Errorf("a Write is said to be done (%v), and was not: %d", r.Status, c.data()[0])
	}
}

// What a fence has kept from being executed is not executed on another connection either: what came behind it was executed there, and was told
// to be the last.
func TestFencedForGood(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	fails := func(op *backend.Op) error {
		if op.Kind == backend.Read && op.Off == 8192 {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errors.New("broken on purpose")}
		}
		return nil
	}
	b.store.Fail(fails)
	c := b.use(0)
	requests := []wire.Request{{Op: wire.Read, Tag: 1, Length: 512, Offset: 8192}}
	for tag := range uint32(3) {
		requests = append(requests, wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Fence, Tag: 2 + tag, Length: 512})
	}
	wants := func(of ...wire.Status) {
		t.Helper()
		for i, want := range of {
			c.data()[0] = byte(1 + i)
			if r := c.do(requests[i]); r.Status != want {
				t.Errorf("request %d ends with %v, want %v", r.Tag, r.Status, want)
			}
		}
	}
	wants(wire.Medium, wire.Fenced, wire.OK)
	b.store.Fail(nil)
	session := c.info.Session
	c = b.resume(c, session, 0)
	requests[1].Flags |= wire.Again
	requests[2].Flags |= wire.Again
	wants(wire.OK, wire.Fenced, wire.OK)
	if r := c.do(wire.Request{Op: wire.Read, Tag: 9, Length: 512}); r.Status != wire.OK || c.data()[0] != 3 {
		t.Errorf("%v: what is there is of request %d, want 3", r.Status, c.data()[0])
	}
	// A request of no octets asks for a result. That of one which was not done has no number.
	for tag, done := range map[uint32]bool{3: true, 64: false} {
		r := c.do(wire.Request{Op: wire.Write, Flags: wire.Fence | wire.Again, Tag: tag})
		if r.Status != wire.OK || (r.Value != 0) != done {
			t.Errorf("asked for the result of request %d, the service says %+v", tag, r)
		}
	}
	wants(wire.OK, wire.Fenced)
	if r := c.do(requests[3]); r.Status != wire.OK { // it is no failure, and its fence counts as seen
		t.Errorf("the next fence ends with %v", r.Status)
	}
}
