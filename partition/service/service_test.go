package service_test

import (
	"bytes"
	"errors"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/rdmatest"
)

// Every operation by messages, with data inline and elsewhere.
func TestOperations(t *testing.T) {
	for name, overIWARP := range map[string]bool{"iwarp": true, "pairs": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, overIWARP, plenty, service.Config{})
			c := b.use(0)
			if m := c.info; m.Size != size || m.Unit != 512 || m.Credits != 64 || m.MaxLength != 1<<20 || m.Name != "disk/log" || m.Session == 0 {
				t.Errorf("%+v", m)
			}
			for i := range c.data() {
				c.data()[i] = byte(i * 7)
			}
			want := bytes.Clone(c.data()[:1<<20])
			w := c.do(wire.Request{Op: wire.Write, Tag: 1, Length: 1 << 20, Offset: 4096})
			in := c.do(wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Durable, Tag: 2, Length: 8192, Offset: 2 << 20})
			if w.Status != wire.OK || w.Done != 1<<20 || in.Value != w.Value+1 {
				t.Errorf("%+v, %+v", w, in)
			}
			if f := c.do(wire.Request{Op: wire.Flush, Tag: 3}); f.Status != wire.OK || f.Durable != in.Value {
				t.Errorf("%+v", f)
			}
			if !bytes.Equal(b.store.Crash(4096 + 1<<20)[4096:], want) {
				t.Error("other bytes are durable than were written")
			}
			clear(c.data())
			if r := c.do(wire.Request{Op: wire.Read, Tag: 4, Length: 1 << 20, Offset: 4096}); r.Status != wire.OK || !bytes.Equal(c.data()[:1<<20], want) {
				t.Errorf("%+v, or other bytes", r)
			}
			if r := c.do(wire.Request{Op: wire.Read, Tag: 4, Length: 8192, Offset: 2 << 20}); r.Status != wire.OK || !bytes.Equal(c.data()[:8192], want[:8192]) {
				t.Errorf("%+v, or other bytes", r)
			}
			c.do(wire.Request{Op: wire.Discard, Tag: 5, Length: 512, Offset: 0})
			c.do(wire.Request{Op: wire.Add, Tag: 6, Length: 8, New: 5})
			if r := c.do(wire.Request{Op: wire.Swap, Tag: 7, Length: 8, Compare: 5, New: 9}); r.Value != 5 {
				t.Errorf("%+v", r)
			}
			if r := c.do(wire.Request{Op: wire.Add, Tag: 8, Length: 8}); r.Value != 9 {
				t.Errorf("%+v", r)
			}
			if overIWARP != (len(c.closed) > 0) || overIWARP && len(c.closed) != 3 {
				t.Errorf("%d STags were closed", len(c.closed))
			}
			if r := c.do(wire.Request{Op: wire.Detach, Tag: 9}); r.Status != wire.OK {
				t.Errorf("%+v", r)
			}
			if r := c.do(wire.Request{Op: wire.Flush, Tag: 10}); r.Status != wire.NoHandle {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A client proves that it knows a secret, and learns that the service does.
func TestProof(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	c := b.connect(ins)
	c.hello("owner")
	c.attach(wire.AttachMessage{Partition: "disk/own", Tag: 5}, secret)
	m := c.attached()
	if want := c.g.ServiceProof(secret, &m); m.Status != wire.OK || m.Tag != 5 || !want.Equal(&m.Proof) {
		t.Errorf("%+v", m)
	}
	c.works()
	// It may have more than one partition, and each wants a proof.
	first := c.handle
	c.attach(wire.AttachMessage{Partition: "disk/log"}, secret)
	if m := c.attached(); m.Status != wire.OK || m.Handle == first {
		t.Errorf("%+v", m)
	}
	c.works()
	c.handle = first
	c.works()
	anybody := b.connect(ins)
	anybody.hello("")
	anybody.attach(wire.AttachMessage{Partition: "disk/own"}, nil)
	if m := anybody.attached(); m.Status != wire.NoHandle || m.Proof != (wire.Proof{}) {
		t.Errorf("%+v", m)
	}
}

// A wrong proof is answered late, and nobody else waits for that.
func TestWrongProof(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{Penalty: time.Hour})
	for what, attack := range map[string]func(c *client){
		"another secret": func(c *client) {
			c.hello("owner")
			c.attach(wire.AttachMessage{Partition: "disk/own"}, []byte("guessed"))
		},
		"no proof": func(c *client) {
			c.hello("owner")
			c.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
		},
		"an unknown name": func(c *client) {
			c.hello("nobody")
			c.attach(wire.AttachMessage{Partition: "disk/log"}, c.g.Service[:]) // with the secret that stands in for it
		},
		"a proof without a name": func(c *client) {
			c.hello("")
			c.attach(wire.AttachMessage{Partition: "disk/log"}, secret)
		},
		"a proof of another connection": func(c *client) {
			o := b.connect(ins)
			o.hello("owner")
			c.hello("owner")
			m := wire.AttachMessage{Partition: "disk/own"}
			m.Proof = o.g.ClientProof(secret, &m)
			c.attach(m, nil)
		},
		"a proof for another partition": func(c *client) {
			c.hello("owner")
			m := wire.AttachMessage{Partition: "disk/log"}
			m.Proof = c.g.ClientProof(secret, &m)
			m.Partition = "disk/own"
			c.attach(m, nil)
		},
	} {
		bad := b.connect(ins)
		attack(bad)
		b.use(0).works()
		var one [1]rdma.Completion
		for bad.cq.Poll(one[:]) > 0 {
			if one[0].Op == rdma.OpReceive {
				t.Errorf("%s is answered at once", what)
			}
		}
	}
	quick := newBench(t, false, plenty, service.Config{Penalty: 1})
	bad := quick.connect(ins)
	bad.hello("owner")
	bad.attach(wire.AttachMessage{Partition: "disk/own"}, []byte("guessed"))
	if m := bad.attached(); m.Status != wire.Denied {
		t.Errorf("%+v", m)
	}
	bad.ends("a wrong proof")
}

// LIST and INFO tell what one may reach, in as many messages as it takes.
func TestList(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	names := func(c *client) (n int) {
		for {
			c.request(wire.Request{Op: wire.List, Offset: uint64(n)})
			r, data, err := wire.ParseResponse(c.next())
			check(t, err)
			for len(data) > 0 {
				if _, data, err = wire.ParseEntry(data); err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n == int(r.Value) || r.Done == 0 {
				return n
			}
		}
	}
	anybody := b.connect(ins)
	anybody.hello("")
	if n := names(anybody); n != 1 {
		t.Errorf("anybody sees %d partitions", n)
	}
	owner := b.connect(ins)
	owner.hello("owner")
	if n := names(owner); n != 1 {
		t.Errorf("one who has only a name sees %d partitions", n)
	}
	owner.attach(wire.AttachMessage{}, secret)
	if m := owner.attached(); m.Status != wire.OK || m.Handle != 0 {
		t.Errorf("%+v", m)
	}
	if n := names(owner); n != 21 {
		t.Errorf("the owner sees %d partitions", n)
	}
	for name, want := range map[string]wire.Status{"disk/log": wire.OK, "uuid:0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15": wire.OK, "disk/lo": wire.NoHandle} {
		r := wire.Request{Op: wire.Info, Flags: wire.Inline, Length: uint32(len(name))}
		owner.send(0, append(r.AppendTo(nil), name...), rdma.Work{})
		if r, _, err := wire.ParseResponse(owner.next()); err != nil || r.Status != want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	c := b.use(0)
	if n := names(c); n != 1 {
		t.Errorf("with a handle: %d", n)
	}
}

// A request that is not allowed ends the use of its handle, and of nothing else.
func TestRefused(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	other, innocent := b.use(0), b.use(0)
	for what, c := range map[string]struct {
		r    wire.Request
		want wire.Status
	}{
		"another's handle":     {wire.Request{Op: wire.Write, Length: 512, Handle: other.handle}, wire.NoHandle},
		"a handle of nobody":   {wire.Request{Op: wire.Flush, Handle: other.handle ^ 1}, wire.NoHandle},
		"outside":              {wire.Request{Op: wire.Read, Length: 512, Offset: size}, wire.Outside},
		"an offset that wraps": {wire.Request{Op: wire.Write, Length: 1024, Offset: 1<<64 - 512}, wire.Outside},
		"odd":                  {wire.Request{Op: wire.Write, Length: 511}, wire.NotUnits},
		"odd offset":           {wire.Request{Op: wire.Discard, Length: 512, Offset: 1}, wire.NotUnits},
		"odd atomic":           {wire.Request{Op: wire.Add, Length: 8, Offset: 4}, wire.NotUnits},
		"no right to write":    {wire.Request{Op: wire.Write, Length: 512}, wire.Denied},
		"no right to flush":    {wire.Request{Op: wire.Flush}, wire.Denied},
		"no right to add":      {wire.Request{Op: wire.Add, Length: 8}, wire.Denied},
	} {
		rights := rdma.AllRights
		if c.want == wire.Denied {
			rights = rdma.RightRead
		}
		bad := b.use(rights)
		if r := bad.do(c.r); r.Status != c.want {
			t.Errorf("%s: %v, want %v", what, r.Status, c.want)
		}
		next := wire.Ended
		if c.want == wire.NoHandle {
			next = wire.OK
		}
		if r := bad.do(wire.Request{Op: wire.Read, Length: 512}); r.Status != next {
			t.Errorf("after %s: %v, want %v", what, r.Status, next)
		}
		// Another handle of the same connection is not touched.
		bad.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
		bad.attached()
		bad.works()
		bad.close()
	}
	innocent.works()
	other.works()
	c := b.use(0)
	b.mu.Lock()
	for _, gone := range b.told {
		gone(errors.New("resized"))
	}
	b.mu.Unlock()
	if r := c.do(wire.Request{Op: wire.Read, Length: 512}); r.Status != wire.Gone {
		t.Errorf("%+v", r)
	}
}

// DETACH is answered when all requests before it are, and so is one more: that the handle is not there any more.
func TestDetachTwice(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	c := b.use(0)
	await, release := b.store.Hold(everything)
	defer release() // if the test ends early
	c.request(wire.Request{Op: wire.Flush, Tag: 1})
	await(1)
	c.request(wire.Request{Op: wire.Detach, Tag: 2})
	c.request(wire.Request{Op: wire.Detach, Tag: 3})
	c.request(wire.Request{Op: wire.List, Tag: 4}) // so all are there
	if r := c.response(); r.Tag != 3 || r.Status != wire.NoHandle {
		t.Errorf("%+v", r)
	}
	if r := c.response(); r.Op != wire.List {
		t.Errorf("%+v", r)
	}
	release()
	for tag := range uint32(2) {
		if r := c.response(); r.Tag != tag+1 || r.Status != wire.OK {
			t.Errorf("%+v", r)
		}
	}
}

// A violation of the protocol ends its connection, and nobody else notices.
func TestOffences(t *testing.T) {
	message := func(change func([]byte)) func(*client) {
		return func(c *client) {
			r := wire.Request{Op: wire.Flush, Tag: 1, Handle: c.handle}
			b := r.AppendTo(nil)
			change(b)
			c.send(1, b, rdma.Work{})
		}
	}
	// fresh says that the connection has no handle.
	fresh := map[string]func(*client){
		"a request before HELLO": message(func([]byte) {}),
		"ATTACH before HELLO":    func(c *client) { c.attach(wire.AttachMessage{Partition: "disk/log"}, nil) },
		"a request before ATTACH": func(c *client) {
			c.hello("")
			message(func([]byte) {})(c)
		},
		"HELLO twice": func(c *client) {
			c.hello("")
			m := wire.HelloMessage{Version: wire.Version}
			c.send(1, m.AppendTo(nil), rdma.Work{})
		},
		"HELLO with a name that is not there": func(c *client) {
			m := wire.HelloMessage{Version: wire.Version, Name: "abc"}
			c.send(1, m.AppendTo(nil)[:50], rdma.Work{})
		},
		"nothing":        func(c *client) { c.send(1, nil, rdma.Work{}) },
		"an iSCSI PDU":   func(c *client) { c.send(1, make([]byte, 48), rdma.Work{}) },
		"a long message": func(c *client) { c.send(1, make([]byte, wire.MaxGreeting+1), rdma.Work{}) },
	}
	attached := map[string]func(*client){
		"an operation that does not exist": message(func(b []byte) { b[1] = 12 }),
		"an answer":                        message(func(b []byte) { b[1] |= 0x80 }),
		"a reserved octet":                 message(func(b []byte) { b[60] = 1 }),
		"HELLO":                            message(func(b []byte) { b[1] = 1 }),
		"half a request":                   func(c *client) { c.send(1, []byte{0xb1, 7, 0, 0}, rdma.Work{}) },
		"a READ without a buffer": func(c *client) {
			r := wire.Request{Op: wire.Read, Handle: c.handle, Length: 512}
			c.send(1, r.AppendTo(nil), rdma.Work{})
		},
		"a WRITE of more than the service takes": func(c *client) {
			c.request(wire.Request{Op: wire.Write, Tag: 1, Length: 1<<20 + 512})
		},
		"a tag twice": func(c *client) {
			await, release := c.b.store.Hold(everything)
			defer release()
			c.request(wire.Request{Op: wire.Flush, Tag: 1})
			await(1)
			c.request(wire.Request{Op: wire.Flush, Tag: 1})
			c.ends("a tag twice")
		},
		"more requests than credits": func(c *client) {
			await, release := c.b.store.Hold(everything)
			defer release()
			for i := range 64 {
				c.request(wire.Request{Op: wire.Flush, Tag: uint32(i)})
			}
			await(64)
			c.request(wire.Request{Op: wire.Flush, Tag: 64})
			c.ends("more requests than credits")
		},
		"an STag that is not there": func(c *client) {
			c.request(wire.Request{Op: wire.Write, Length: 512, STag: uint32(c.mem.STag()) ^ 1})
		},
		"a buffer that ends too early": func(c *client) {
			c.request(wire.Request{Op: wire.Read, Length: 512, STag: uint32(c.mem.STag()), TO: c.mem.Base() + dataAt + dataLen - 511})
		},
		"an ATTACH that cannot be read": func(c *client) { c.send(1, []byte{0xb1, 2}, rdma.Work{}) },
	}
	oneShot := map[string]func(*client){
		"a FLUSH that advertises": func(c *client) {
			r := wire.Request{Op: wire.Flush, Handle: c.handle}
			c.send(1, r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, 512), Access: rdma.AccessRemoteRead})
		},
		"an STag besides the one that is advertised": func(c *client) {
			r := wire.Request{Op: wire.Read, Handle: c.handle, Length: 512, STag: uint32(c.mem.STag())}
			c.send(1, r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, 512), Access: rdma.AccessRemoteWrite})
		},
		"a READ into memory that cannot be written": func(c *client) {
			r := wire.Request{Op: wire.Read, Handle: c.handle, Length: 512}
			c.send(1, r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, 512), Access: rdma.AccessRemoteRead})
		},
		"a WRITE of more than is advertised": func(c *client) {
			r := wire.Request{Op: wire.Write, Handle: c.handle, Length: 1024}
			c.send(1, r.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, 512), Access: rdma.AccessRemoteRead})
		},
		"a greeting that advertises": func(c *client) {
			m := wire.AttachMessage{Partition: "disk/log"}
			c.send(1, m.AppendTo(nil), rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, 512), Access: rdma.AccessRemoteRead})
		},
	}
	for name, overIWARP := range map[string]bool{"iwarp": true, "pairs": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, overIWARP, plenty, service.Config{})
			innocent := b.use(0)
			base := b.pool.Stats().InUse
			for what, offend := range fresh {
				c := b.connect(ins)
				offend(c)
				c.ends(what)
				c.close()
			}
			all := maps.Clone(attached)
			if overIWARP {
				maps.Copy(all, oneShot)
			}
			for what, offend := range all {
				c := b.use(0)
				offend(c)
				c.ends(what)
				innocent.works()
				c.close()
			}
			b.settle(1)
			innocent.works()
			b.returned(base)
		})
	}
}

// A client that goes while its Writes are under way leaves nothing behind, and others do not wait.
func TestVanishes(t *testing.T) {
	for name, overIWARP := range map[string]bool{"iwarp": true, "pairs": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, overIWARP, plenty, service.Config{})
			innocent := b.use(0)
			base := b.pool.Stats().InUse
			c := b.use(0)
			await, release := b.store.Hold(everything)
			for i := range 20 {
				c.request(wire.Request{Op: wire.Write, Tag: uint32(i), Length: 256 << 10, Offset: uint64(i) << 12})
			}
			await(1)
			c.qp.Abort(nil)
			release()
			b.settle(1)
			c.close()
			innocent.works()
			b.returned(base)
		})
	}
}

// A client that takes no responses and goes: each command ends once, though a response is several work requests.
func TestVanishesUnanswered(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	innocent := b.use(0)
	base := b.pool.Stats().InUse
	c := b.connect(2) // for the greeting, which are posted again
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
	c.attached()
	for i := range 8 {
		c.request(wire.Request{Op: wire.Read, Tag: uint32(i), Length: 512 << 10})
	}
	for range 20 { // so that there are responses
		innocent.works()
	}
	c.qp.Abort(nil)
	b.settle(1)
	c.close()
	b.returned(base)
}

// Commands hold no more memory than the connection may have, and all are done in the end.
func TestMemory(t *testing.T) {
	const most = 2 << 20
	b := newBench(t, true, 64<<20, service.Config{Memory: most})
	c := b.use(0)
	base := b.pool.Stats().InUse
	await, release := b.store.Hold(everything)
	for i := range 64 {
		op := wire.Read
		if i%2 == 1 {
			op = wire.Write
		}
		c.request(wire.Request{Op: op, Tag: uint32(i), Length: 512 << 10})
	}
	await(4)
	if n := b.pool.Stats().InUse - base; n > most {
		t.Errorf("%d bytes are in use by one connection, allowed are %d", n, most)
	}
	release()
	for range 64 {
		if r := c.response(); r.Status != wire.OK {
			t.Fatalf("%+v", r)
		}
	}
	c.works()
}

// A command for which the pool has no memory waits until there is some.
func TestNoMemory(t *testing.T) {
	b := newBench(t, false, 8<<20, service.Config{})
	c := b.use(0)
	release := b.exhaust()
	c.request(wire.Request{Op: wire.Read, Tag: 1, Length: 4096})
	if r := c.do(wire.Request{Op: wire.Flush, Tag: 2}); r.Status != wire.OK { // wants none
		t.Errorf("%+v", r)
	}
	release()
	if r := c.response(); r.Tag != 1 || r.Status != wire.OK {
		t.Errorf("%+v", r)
	}
}

// exhaust takes all memory of the service.
func (b *bench) exhaust() (release func()) {
	var taken []*mem.Lease
	for n := mem.MaxLease; n >= mem.PageSize; {
		if l := b.pool.Lease(n); l != nil {
			taken = append(taken, l)
		} else {
			n /= 2
		}
	}
	return func() {
		for _, l := range taken {
			l.Release()
		}
	}
}

// Connections without a handle are at most half of all, and the oldest gives way.
func TestStarting(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{Connections: 8})
	var idle []*client
	for range 5 {
		c := b.connect(ins)
		c.hello("")
		idle = append(idle, c)
	}
	idle[0].ends("the oldest of too many")
	idle[1].attach(wire.AttachMessage{Partition: "disk/log"}, nil)
	if m := idle[1].attached(); m.Status != wire.OK {
		t.Errorf("%+v", m)
	}
	b.use(0)
	slow := newBench(t, false, plenty, service.Config{StartTimeout: 1})
	slow.connect(ins).ends("one that asks for nothing")
}

// No client has the connections of all: of what he has by name, by user or by host there is a share, whose size comes from the number of
// connections or from the memory for their receives. Who begins many does not disturb who begins one.
func TestShares(t *testing.T) {
	const receives = 10 * 128 << 10 // of a connection with a partition
	user := func(uid uint32) partition.Identity { return partition.Identity{Local: true, UID: uid} }
	for _, row := range []struct {
		connections int
		pool        int64
	}{{8, plenty}, {0, 2 * 8 * receives}} {
		var who partition.Identity
		b := newBench(t, false, row.pool, service.Config{
			Connections: row.connections, Memory: 64 << 10, Identify: func(rdma.Request) partition.Identity { return who },
		})
		uses := func(id partition.Identity, want wire.Status) *client {
			t.Helper()
			who = id
			c := b.connect(ins)
			name, proof := "", []byte(nil)
			if id.Name != "" {
				name, proof = "owner", secret
			}
			c.hello(name)
			c.attach(wire.AttachMessage{Partition: "disk/log"}, proof)
			if m := c.attached(); m.Status != want {
				t.Errorf("%v: %v, want %v", id, m.Status, want)
			}
			return c
		}
		leave := func(c *client) {
			n := b.svc.Connections()
			c.close()
			b.settle(n - 1)
		}
		var all []*client
		for range 4 {
			all = append(all, uses(user(5), wire.OK))
		}
		leave(uses(user(5), wire.Busy))
		all = append(all, uses(partition.Identity{Host: "a"}, wire.OK), uses(partition.Identity{Host: "a"}, wire.OK))
		leave(uses(partition.Identity{Host: "a"}, wire.Busy))
		all = append(all, uses(user(6), wire.OK))
		leave(all[0])
		all[0] = uses(user(5), wire.OK)
		for _, c := range append(all[1:], all[0]) { // of whom the first is of 5
			leave(c)
		}
		for range 4 {
			all = append(all, uses(partition.Identity{Name: "owner"}, wire.OK))
		}
		leave(uses(partition.Identity{Name: "owner", Host: "a"}, wire.Busy))
	}
	var who partition.Identity
	b := newBench(t, false, plenty, service.Config{Connections: 8, Identify: func(rdma.Request) partition.Identity { return who }})
	who = user(5)
	c := b.connect(ins)
	who = user(6)
	for range 20 {
		b.connect(ins)
	}
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
	if m := c.attached(); m.Status != wire.OK {
		t.Errorf("%v", m.Status)
	}
}

// Who has his share, of the connections or of the endpoints, and comes back while one of his connections is on its way out, does not hear
// that there is no place, but waits for that one. Nobody else does, and who has all of them in use is told so at once.
func TestComesBack(t *testing.T) {
	for _, most := range []int{0, 5} { // endpoints
		var who partition.Identity
		b := newBench(t, false, plenty, service.Config{Connections: 8, Identify: func(rdma.Request) partition.Identity { return who }})
		asks := func(uid uint32) *client {
			who = partition.Identity{Local: true, UID: uid}
			c := b.connect(ins)
			c.hello("")
			c.attach(wire.AttachMessage{Partition: "disk/log"}, nil)
			return c
		}
		wants := func(c *client, want wire.Status) {
			t.Helper()
			if m := c.attached(); m.Status != want {
				t.Fatalf("%v, want %v", m.Status, want)
			}
		}
		lost := asks(5)
		wants(lost, wire.OK)
		for range 3 {
			wants(asks(5), wire.OK)
		}
		wants(asks(6), wire.OK)
		none := asks(5)
		wants(none, wire.Busy)
		none.close()
		b.settle(5)
		b.most = most
		await, release := b.store.Hold(everything)
		lost.request(wire.Request{Op: wire.Flush, Tag: 1})
		await(1)
		lost.close()
		for b.svc.Dead() == 0 {
			runtime.Gosched()
		}
		back := asks(5)
		if most == 0 {
			wants(asks(6), wire.OK)
		}
		release()
		wants(back, wire.OK)
		if r := back.do(wire.Request{Op: wire.Flush, Tag: 2}); r.Status != wire.OK {
			t.Errorf("%+v", r)
		}
	}
}

// A client that takes no responses is ended, and one that is only idle is not.
func TestTakesNothing(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	idle, c := b.use(0), b.connect(2)
	c.hello("")
	m := wire.AttachMessage{Partition: "disk/log"}
	c.send(0, m.AppendTo(nil), rdma.Work{})
	b0 := c.next()
	am, err := wire.ParseAttached(b0)
	check(t, err)
	c.handle = am.Handle
	for i := range 8 { // there are two receives, which nobody posts again
		c.request(wire.Request{Op: wire.Flush, Tag: uint32(i)})
	}
	deadline := time.Now().Add(patience)
	for b.svc.Connections() > 1 {
		b.svc.Look()
		if time.Now().After(deadline) {
			t.Fatal("it is not ended")
		}
		time.Sleep(time.Millisecond)
	}
	idle.works()
}

// A session goes on with on another connection when nothing of the old one is under way any more.
func TestSession(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	old := b.use(0)
	await, release := b.store.Hold(everything)
	old.request(wire.Request{Op: wire.Flush, Tag: 1})
	await(1)
	c := b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Session: old.info.Session}, nil)
	old.ends("a session that goes on elsewhere")
	var one [1]rdma.Completion
	for c.cq.Poll(one[:]) > 0 {
		if one[0].Op == rdma.OpReceive {
			t.Error("the partition is attached while the store is at an operation of the old connection")
		}
	}
	release()
	if m := c.attached(); m.Status != wire.OK {
		t.Errorf("%+v", m)
	}
	c.works()
	// Another's session is not ended, though somebody knows its number.
	thief := b.connect(ins)
	thief.hello("owner")
	thief.attach(wire.AttachMessage{Partition: "disk/log", Session: c.info.Session}, secret)
	if m := thief.attached(); m.Status != wire.OK {
		t.Errorf("%+v", m)
	}
	c.works()
}

// A client that loses a connection while it attaches comes back on a third one, while the service is still opening the partition for
// the second. The session is that of the third one, with what was done.
func TestSessionOfTheLast(t *testing.T) {
	b := &bench{t: t, pool: mem.NewPool(plenty), store: rdmatest.NewVolatile(size, 1), doors: make(chan chan struct{}, 1)}
	b.serve(b.store, false, service.Config{})
	attach := func(session uint64) (*client, chan struct{}) {
		c := b.connect(ins)
		c.hello("")
		c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, nil)
		return c, <-b.doors
	}
	first, door := attach(0)
	close(door)
	session := first.attached().Session
	add := wire.Request{Op: wire.Add, Tag: 1, Length: 8, New: 5}
	first.do(add)
	first.close()
	b.settle(0)
	second, door2 := attach(session)
	third, door3 := attach(session)
	close(door2)
	if m := second.attached(); !m.Known || m.Session != session {
		t.Errorf("%+v", m)
	}
	close(door3)
	if m := third.attached(); !m.Known || m.Session != session {
		t.Errorf("%+v", m)
	}
	second.ends("a session that goes on elsewhere")
	add.Flags |= wire.Again
	if r := third.do(add); r.Status != wire.OK || r.Value != 0 {
		t.Errorf("%+v", r)
	}
	if r := third.do(wire.Request{Op: wire.Add, Tag: 2, Length: 8}); r.Value != 5 {
		t.Errorf("5 was added once, and the sum is %d", r.Value)
	}
}

// A client that has lost a connection again, while the service waits for the end of what the first one has left in the store, has only the
// next one: nothing is opened for that which is lost.
func TestNothingForALostConnection(t *testing.T) {
	b := &bench{t: t, pool: mem.NewPool(plenty), store: rdmatest.NewVolatile(size, 1), doors: make(chan chan struct{}, 4)}
	b.serve(b.store, false, service.Config{})
	first := b.connect(ins)
	first.hello("")
	attach := wire.AttachMessage{Partition: "disk/log", Order: 3}
	first.attach(attach, nil)
	close(<-b.doors)
	attach.Session = first.attached().Session
	await, release := b.store.Hold(everything)
	first.request(wire.Request{Op: wire.Flush, Tag: 1})
	await(1)
	second := b.connect(ins)
	second.hello("")
	second.attach(attach, nil)
	first.ends("a session that goes on elsewhere")
	second.close()
	third := b.connect(ins)
	third.hello("")
	for deadline := time.Now().Add(patience); b.svc.Dead() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the service does not see that connections have ended")
		}
	}
	release()
	for b.svc.Connections() != 1 {
		select {
		case door := <-b.doors:
			close(door)
			t.Error("a partition is opened for a connection that is lost")
		case <-time.After(time.Millisecond):
		}
	}
	third.attach(attach, nil)
	close(<-b.doors)
	if m := third.attached(); !m.Known {
		t.Errorf("%+v", m)
	}
}

// However many sessions a client leaves behind, and whatever many leave that only read, those of others are remembered.
func TestSessionsOfOthers(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	c := b.use(0)
	session := c.info.Session
	c.close()
	b.settle(0)
	for i := range 300 {
		o := b.connect(ins)
		o.hello("owner")
		o.attach(wire.AttachMessage{Partition: "disk/log", Order: 3}, secret)
		if m := o.attached(); m.Status != wire.OK {
			t.Fatalf("%d: %+v", i, m)
		}
		o.close()
		b.settle(0)
		o = b.use(rdma.RightRead)
		o.close()
		b.settle(0)
	}
	c = b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, nil)
	if m := c.attached(); !m.Known {
		t.Errorf("%+v", m)
	}
}

// Who the device knows without a name has sessions of his own: another user does not go on with them. What he proves is known besides.
func TestUsersOfDevice(t *testing.T) {
	users := make(map[*local.Device]partition.Identity)
	b := newBench(t, false, plenty, service.Config{Identify: func(r rdma.Request) partition.Identity { return users[local.Origin(r)] }})
	wire0 := b.wire
	as := func(uid uint32, name string, session uint64) wire.AttachedMessage {
		t.Helper()
		d := local.Open(local.Config{})
		users[d] = partition.Identity{Local: true, UID: uid}
		b.wire = d
		defer func() { b.wire = wire0 }()
		c := b.connect(ins)
		c.hello(name)
		proof := []byte(nil)
		if name != "" {
			proof = secret
		}
		c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, proof)
		m := c.attached()
		c.close()
		b.settle(0)
		check(t, d.Close())
		if who := b.asked(); m.Status != wire.OK || !who.Local || who.UID != uid || who.Name != name {
			t.Errorf("uid %d, name %q: %+v, of %+v", uid, name, m, who)
		}
		return m
	}
	session := as(5, "", 0).Session
	if as(6, "", session).Known || as(5, "owner", session).Known {
		t.Error("somebody goes on with the session of another one")
	}
	if !as(5, "", session).Known {
		t.Error("the session of a user is forgotten")
	}
}

// A request behind a fence does not pass it, even if its data has come and that of the fenced request has not.
// Otherwise a failure of the later request would count as one before the fence.
func TestFenceWithoutMemory(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{Memory: 1 << 20})
	c := b.use(0)
	await, release := b.store.Hold(everything)
	c.request(wire.Request{Op: wire.Read, Tag: 1, Length: 1 << 20}) // takes all memory
	await(1)
	c.request(wire.Request{Op: wire.Write, Flags: wire.Fence, Tag: 2, Length: 512, Offset: 512})
	c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 3, Length: 512, Offset: 4096})
	c.request(wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Fence, Tag: 4, Length: 512, Offset: 512})
	b.store.Fail(func(op *backend.Op) error {
		if op.Kind == backend.Write && op.Off == 4096 {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errors.New("broken on purpose")}
		}
		return nil
	})
	release()
	want := map[uint32]wire.Status{1: wire.OK, 2: wire.OK, 3: wire.Medium, 4: wire.Fenced}
	for range want {
		if r := c.response(); r.Status != want[r.Tag] || r.Status == wire.Medium && r.Value != 4096 {
			t.Errorf("%+v, want %v", r, want[r.Tag])
		}
	}
}

// A FLUSH on a strict handle answers for all that came before it, whether it is relaxed or not (O8): it does not pass a WRITE whose data
// has not come.
func TestFlushBehindData(t *testing.T) {
	b := newBench(t, false, 8<<20, service.Config{})
	c := b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: uint16(rdma.FreeFinish)}, nil)
	c.attached()
	release := b.exhaust()
	c.data()[0] = 5
	c.request(wire.Request{Op: wire.Write, Tag: 1, Length: 512})
	c.request(wire.Request{Op: wire.Flush, Flags: wire.Relaxed, Tag: 2})
	c.request(wire.Request{Op: wire.Flush, Tag: 3, Handle: c.handle + 1}) // answered at once
	for _, want := range []struct {
		tag uint32
		is  wire.Status
	}{{3, wire.NoHandle}, {1, wire.OK}, {2, wire.OK}} {
		if r := c.response(); r.Tag != want.tag || r.Status != want.is {
			t.Errorf("%+v, want %+v", r, want)
		}
		if want.tag == 3 {
			release()
		}
	}
	if b.store.Crash(1)[0] != 5 {
		t.Error("what was flushed is not durable")
	}
}

// knock asks for a connection with some private data, and closes it if it gets one.
func (b *bench) knock(private string) error {
	b.t.Helper()
	dom, err := b.wire.NewDomain()
	check(b.t, err)
	cq, err := b.wire.NewCompletionQueue(4, nil)
	check(b.t, err)
	qp, err := b.wire.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 1, MaxRecv: 1})
	check(b.t, err)
	err = b.wire.Connect(b.t.Context(), qp, b.l.Addr().String(), rdma.ConnParams{PrivateData: []byte(private)})
	check(b.t, qp.Close())
	check(b.t, cq.Close())
	return err
}

// Programs that know nothing of partitions, such as rping and those of librpma, ask for a connection without private data,
// or with data of their own. They are rejected at once, and others are served.
func TestStrangers(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{Connections: 2})
	for range 4 { // more than there may be
		for _, private := range []string{"", "OSP", "\xc0\x00\x00\x00", "osp1", " OSP1"} {
			if _, ok := errors.AsType[*rdma.RejectedError](b.knock(private)); !ok {
				t.Fatalf("private data %q: not rejected", private)
			}
		}
	}
	b.use(0).works()
}

// Changed limits hold for new connections, and as far as possible for those that exist.
func TestLimitsChange(t *testing.T) {
	uid := uint32(0)
	b := newBench(t, false, plenty, service.Config{Connections: 2, Identify: func(rdma.Request) partition.Identity {
		uid++
		return partition.Identity{Local: true, UID: uid}
	}})
	b.use(0)
	b.use(0)
	tooMany := func() error { return b.knock(wire.Private) }
	if tooMany() == nil {
		t.Error("a third connection of two")
	}
	b.svc.SetLimits(service.Limits{Connections: 3})
	c := b.use(0)
	b.svc.SetLimits(service.Limits{Connections: 1})
	if tooMany() == nil {
		t.Error("another connection, when there are more than the limit")
	}
	c.works()
	b.svc.SetLimits(service.Limits{Connections: 8, StartTimeout: 1})
	b.connect(ins).ends("one that asks for nothing")
}

// A change of how long a client may leave responses untaken holds at once, even if the service has begun to wait for
// longer.
func TestPatienceChanges(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{Patience: time.Hour})
	c := b.connect(2)
	c.hello("")
	m := wire.AttachMessage{Partition: "disk/log"}
	c.send(0, m.AppendTo(nil), rdma.Work{})
	am, err := wire.ParseAttached(c.next())
	check(t, err)
	c.handle = am.Handle
	for tag := range uint32(10) { // more responses than it has receives for
		c.request(wire.Request{Op: wire.Flush, Tag: tag})
	}
	b.svc.SetLimits(service.Limits{Patience: time.Millisecond})
	b.settle(0)
}

// unguarded is a device at which a peer may end any registration of its domain.
type unguarded struct {
	rdma.Device

	mu   sync.Mutex
	qps  map[rdma.Domain]int // queue pairs of each domain
	open int                 // domains
}

func (d *unguarded) Limits() rdma.Limits {
	l := d.Device.Limits()
	l.UnguardedInvalidate = true
	return l
}

func (d *unguarded) NewDomain() (rdma.Domain, error) {
	dom, err := d.Device.NewDomain()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &counted{dom, d}, err
}

func (d *unguarded) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	d.mu.Lock()
	d.qps[c.Domain]++
	d.mu.Unlock()
	c.Domain = c.Domain.(*counted).Domain
	return d.Device.NewQueuePair(c)
}

type counted struct {
	rdma.Domain
	d *unguarded
}

func (c *counted) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.open--
	return c.Domain.Close()
}

// Where a peer may end any registration of its domain, each connection has a domain of its own for as long as it
// lasts.
func TestUnguardedInvalidate(t *testing.T) {
	b := &bench{t: t, pool: mem.NewPool(plenty), store: rdmatest.NewVolatile(size, 1)}
	dev := &unguarded{qps: make(map[rdma.Domain]int)}
	b.device = func(d rdma.Device) rdma.Device {
		dev.Device = d
		return dev
	}
	b.serve(b.store, false, service.Config{})
	var all []*client
	for range 3 {
		c := b.use(0)
		c.works()
		all = append(all, c)
	}
	dev.mu.Lock()
	for _, n := range dev.qps {
		if n != 1 || len(dev.qps) != 3 {
			t.Errorf("%d domains, one of them with %d queue pairs", len(dev.qps), n)
		}
	}
	dev.mu.Unlock()
	for _, c := range all {
		c.close()
	}
	b.settle(0)
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if dev.open != 1 {
		t.Errorf("%d domains are left without connections, want that of the service", dev.open)
	}
}

// A request that comes again on another connection of its session has the result that it had, and is not executed
// again. What has failed there is known to the next fence here (O6).
func TestAgain(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{})
	c := b.use(0)
	b.store.Fail(func(op *backend.Op) error {
		if op.Kind == backend.Write && op.Off == 512 {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errors.New("broken on purpose")}
		}
		return nil
	})
	add := wire.Request{Op: wire.Add, Tag: 1, Length: 8, New: 5}
	bad := wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 2, Length: 512, Offset: 512}
	c.do(add)
	c.do(bad)
	b.store.Fail(nil)
	session := c.info.Session
	c = b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Session: session}, nil)
	if m := c.attached(); !m.Known || m.Session != session {
		t.Errorf("%+v", m)
	}
	add.Flags |= wire.Again
	bad.Flags |= wire.Again
	if r := c.do(add); r.Status != wire.OK || r.Value != 0 {
		t.Errorf("%+v", r)
	}
	if r := c.do(bad); r.Status != wire.Medium || r.Value != 512 {
		t.Errorf("%+v", r)
	}
	fenced := wire.Request{Op: wire.Write, Flags: wire.Inline | wire.Fence, Tag: 3, Length: 512, Offset: 4096}
	for _, want := range []wire.Status{wire.Fenced, wire.OK} {
		if r := c.do(fenced); r.Status != want {
			t.Errorf("%+v, want %v", r, want)
		}
		fenced.Tag++
	}
	add.Tag = 64 // it has not come before
	if r := c.do(add); r.Status != wire.OK || r.Value != 5 {
		t.Errorf("%+v", r)
	}
	// Another client, another partition and a client that has detached cannot go on with the session.
	c.close()
	b.settle(0)
	for what, attach := range map[string]func(c *client){
		"another client": func(c *client) {
			c.hello("owner")
			c.attach(wire.AttachMessage{Partition: "disk/log", Session: session}, secret)
		},
		"another partition": func(x *client) {
			x.hello("owner")
			x.attach(wire.AttachMessage{Partition: "disk/own", Session: session}, secret)
		},
	} {
		x := b.connect(ins)
		attach(x)
		if m := x.attached(); m.Status != wire.OK || m.Known || m.Session == session {
			t.Errorf("%s: %+v", what, m)
		}
	}
	c = b.connect(ins)
	c.hello("")
	for _, known := range []bool{true, false} {
		c.attach(wire.AttachMessage{Partition: "disk/log", Session: session}, nil)
		if m := c.attached(); m.Status != wire.OK || m.Known != known {
			t.Errorf("%+v, want one that is known: %v", m, known)
		}
		c.do(wire.Request{Op: wire.Detach, Tag: 9})
	}
}

// Before it has a partition, no more is taken of a client that takes no answers than answers have room. When it takes them, it gets all.
func TestGreetingNotTaken(t *testing.T) {
	b := newBench(t, false, plenty, service.Config{StartTimeout: time.Hour})
	c := b.connect(1)
	m := wire.HelloMessage{Version: wire.Version}
	c.send(0, m.AppendTo(nil), rdma.Work{})
	const lists = 200
	r := wire.Request{Op: wire.List}
	list := r.AppendTo(nil)
	c.send(1, list, rdma.Work{})
	for range lists - 1 {
		c.post(1, len(list), rdma.Work{})
	}
	for b.svc.Unsent() < 4 {
		runtime.Gosched()
	}
	for range 1000 { // in which it would take more
		runtime.Gosched()
	}
	if n := b.svc.Unsent(); n > 4 {
		t.Errorf("%d answers wait for a client that takes none", n)
	}
	c.next() // CHALLENGE
	for i := 1; i < ins; i++ {
		c.receive(i)
	}
	for range lists {
		if r := c.response(); r.Op != wire.List || r.Status != wire.OK {
			t.Fatalf("%+v", r)
		}
	}
}
