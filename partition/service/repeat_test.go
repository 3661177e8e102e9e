package service_test

import (
	"slices"
	"testing"

	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/partition/wire"
)

// A client repeats requests in the order in which it has posted them, and they may have been done in another one. None is done
// again, also when it loses the second connection, too, in the middle of that.
func TestAgainInAnyOrder(t *testing.T) {
	s, err := memory.New(size)
	check(t, err)
	b := &bench{t: t, pool: mem.NewPool(32 << 20), late: make(chan func(), 64)}
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
