package rdmatest

import (
	"errors"
	"testing"

	"oneshot/transport/rdma"
)

func offer(change ...func(*rdma.OneShotOffer)) *rdma.OneShotOffer {
	o := &rdma.OneShotOffer{Flags: true, Opcodes: true, Advertise: true, Close: true, Window: 16}
	for _, f := range change {
		f(o)
	}
	return o
}

func noFlags(o *rdma.OneShotOffer)     { o.Flags = false }
func noOpcodes(o *rdma.OneShotOffer)   { o.Opcodes = false }
func noAdvertise(o *rdma.OneShotOffer) { o.Advertise = false }
func noClose(o *rdma.OneShotOffer)     { o.Close = false }
func validated(o *rdma.OneShotOffer)   { o.Validated = true }
func window(n uint32) func(*rdma.OneShotOffer) {
	return func(o *rdma.OneShotOffer) { o.Window = n }
}

func testOneShotAgreement(t *testing.T, p Pair) {
	agreed := rdma.OneShot{Advertise: true, Close: true, Window: 16}
	with := func(f func(*rdma.OneShot)) *rdma.OneShot {
		a := agreed
		f(&a)
		return &a
	}
	for _, c := range []struct {
		name           string
		client, server *rdma.OneShotOffer
		want           *rdma.OneShot
	}{
		{"the same", offer(), offer(), &agreed},
		{"one encoding in common", offer(), offer(noFlags), with(func(o *rdma.OneShot) { o.Opcodes = true })},
		{"the client has one", offer(noOpcodes), offer(), &agreed},
		{"no encoding in common", offer(noOpcodes), offer(noFlags), nil},
		{"validated", offer(validated), offer(validated), with(func(o *rdma.OneShot) { o.Validated = true })},
		{"validated by the client alone", offer(validated), offer(), &agreed},
		{"validated by the server alone", offer(), offer(validated), &agreed},
		{"less window", offer(), offer(window(3)), with(func(o *rdma.OneShot) { o.Window = 3 })},
		{"less wanted", offer(window(3)), offer(), with(func(o *rdma.OneShot) { o.Window = 3 })},
		{"no close", offer(noClose), offer(), with(func(o *rdma.OneShot) { o.Close = false })},
		{"no advertise", offer(), offer(noAdvertise), with(func(o *rdma.OneShot) { o.Advertise = false })},
		{"nothing in common", offer(noClose), offer(noAdvertise), nil},
		{"not offered", nil, offer(), nil},
		{"not known", offer(), nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server := connect(t, p, options{client: c.client, server: c.server})
			for _, e := range []*end{client, server} {
				switch got := e.qp.OneShot(); {
				case got == nil && c.want == nil:
				case got == nil || c.want == nil || *got != *c.want:
					t.Errorf("agreed on %+v, want %+v", got, c.want)
				}
			}
			server.receive(1, 0, 100)
			client.post(client.send(1, rdma.Signaled, 0, 100))
			client.sends.want(rdma.OpSend, 1)
			server.recvs.want(rdma.OpReceive, 1)
		})
	}
}

// encodings runs a test with everything that can be agreed on.
func encodings(t *testing.T, f func(*testing.T, options)) {
	for name, change := range map[string]func(*rdma.OneShotOffer){
		"flags": noOpcodes, "opcodes": noFlags, "validated": validated,
	} {
		t.Run(name, func(t *testing.T) {
			f(t, options{client: offer(change), server: offer(change), memory: 1 << 19})
		})
	}
}

// advertise is a Send of n bytes that advertises memory. It is signalled, and has no completion.
func (e *end) advertise(off, n int, a rdma.Access, memory []rdma.SGE) rdma.Work {
	w := e.send(99, rdma.Advertise|rdma.Solicited|rdma.Signaled, off, n)
	w.Access, w.Memory = a, memory
	return w
}

// advertised waits for the Send that advertises s.
func (e *end) advertised(id uint64, s rdma.STag) {
	e.t.Helper()
	if c := e.recvs.want(rdma.OpReceive, id); c.Flags != rdma.Advertised || c.STag != s || s == 0 {
		e.t.Fatalf("%+v, want STag %08x advertised", c, s)
	}
}

// closing is a Send that closes s.
func (e *end) closing(id uint64, s rdma.STag, n int) rdma.Work {
	w := e.send(id, rdma.Close|rdma.Signaled, 0, n)
	w.STag = s
	return w
}

func (e *end) closed(id uint64, s rdma.STag) {
	e.t.Helper()
	if c := e.recvs.want(rdma.OpReceive, id); c.Flags != rdma.Closed || c.STag != s {
		e.t.Fatalf("%+v, want STag %08x closed", c, s)
	}
}

// A storage write: the target pulls (one-shot.md §5.1). With the completion memory and STag
// are free, so that the region can be given back at once.
func testPull(t *testing.T, p Pair) {
	encodings(t, func(t *testing.T, o options) {
		client, server := connect(t, p, o)
		for i, n := range []int{1, 512, 4096, 70000, 200000} {
			region := client.register(n+100, rdma.AccessLocalWrite)
			fill(region.Bytes(), uint64(i))
			memory := append(sge(region, 0, n/3), sge(region, n/3+17, n-n/3)...)
			flat := append(append([]byte(nil), memory[0].Bytes...), memory[1].Bytes...)
			server.receive(1, 0, 64)
			client.receive(2, 0, 64)
			s := client.post(client.advertise(0, 48, rdma.AccessRemoteRead, memory))[0].STag
			server.advertised(1, s)
			half := n / 2
			server.post(
				rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(1000, half), RemoteSTag: s},
				rdma.Work{ID: 4, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(1000+half, n-half), RemoteSTag: s, RemoteOffset: uint64(half)},
			)
			server.sends.want(rdma.OpRead, 3)
			server.sends.want(rdma.OpRead, 4)
			same(t, "pulled", server.bytes(1000, n), flat)
			server.post(server.closing(5, s, 48))
			client.closed(2, s)
			check(t, region.Deregister())
			server.sends.want(rdma.OpSend, 5)

			server.receive(1, 0, 64)
			client.post(client.send(6, rdma.Signaled, 0, 48))
			client.sends.want(rdma.OpSend, 6) // nothing is owed before it
			server.recvs.want(rdma.OpReceive, 1)
		}
		client.sends.none()
	})
}

// The list of memory that is advertised need not be registered, nor lie together (one-shot.md §5.1,
// step 1): the call that posts the message makes it reachable, and its close ends that.
func testScattered(t *testing.T, p Pair) {
	encodings(t, func(t *testing.T, o options) {
		client, server := connect(t, p, o)
		region := client.register(9000, rdma.AccessLocalWrite)
		pieces := [][]byte{alloc(t, client.dev, 700), alloc(t, client.dev, 4097), alloc(t, client.dev, 1)}
		for round := range 3 {
			registered := client.dev.Counters().Registrations
			list := []rdma.SGE{
				{Bytes: pieces[0]}, {}, sge(region, 0, 3000)[0], sge(region, 3000, 1000)[0], // one behind the other
				{Bytes: pieces[1]}, {Bytes: pieces[2]}, sge(region, 4100, 900)[0],
			}
			n := 0
			for i := range list {
				fill(list[i].Bytes, uint64(i+round))
				n += len(list[i].Bytes)
			}
			flat := func() (b []byte) {
				for i := range list {
					b = append(b, list[i].Bytes...)
				}
				return b
			}
			server.receive(1, 0, 64)
			client.receive(2, 0, 64)
			s := client.post(client.advertise(0, 48, rdma.AccessRemoteRead, list))[0].STag
			server.advertised(1, s)
			server.post(rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(1000, n), RemoteSTag: s})
			server.sends.want(rdma.OpRead, 3)
			same(t, "pulled", server.bytes(1000, n), flat())
			server.post(server.closing(4, s, 48))
			client.closed(2, s)
			server.sends.want(rdma.OpSend, 4)

			server.receive(1, 0, 64)
			client.receive(2, 0, 64)
			s = client.post(client.advertise(0, 48, rdma.AccessRemoteWrite, list))[0].STag
			server.advertised(1, s)
			fill(server.bytes(1000, n), uint64(100+round))
			server.post(
				rdma.Work{ID: 3, Op: rdma.OpWrite, SGL: server.sge(1000, n/2), RemoteSTag: s},
				rdma.Work{ID: 3, Op: rdma.OpWrite, SGL: server.sge(1000+n/2, n-n/2), RemoteSTag: s, RemoteOffset: uint64(n / 2)},
				server.closing(4, s, 48),
			)
			client.closed(2, s)
			server.sends.want(rdma.OpSend, 4)
			same(t, "pushed", flat(), server.bytes(1000, n))
			if k := client.dev.Counters().Registrations - registered; k != 0 {
				t.Errorf("%d registrations", k)
			}
		}
		check(t, region.Deregister())
		client.sends.none()
	})
}

// A storage read: the target pushes and closes with one post (one-shot.md §5.3). The message
// and the memory are whole when the completion comes.
func testPush(t *testing.T, p Pair) {
	encodings(t, func(t *testing.T, o options) {
		client, server := connect(t, p, o)
		for i, n := range []int{1, 512, 4096, 70000, 200000} {
			region := client.register(n+100, rdma.AccessLocalWrite)
			memory := append(sge(region, 0, n/3), sge(region, n/3+17, n-n/3)...)
			server.receive(1, 0, 100000)
			client.receive(2, 0, 100000)
			s := client.post(client.advertise(0, 48+i*20000, rdma.AccessRemoteWrite, memory))[0].STag
			server.advertised(1, s)
			fill(server.bytes(0, n), uint64(i))
			half := n / 2
			server.post(
				rdma.Work{Op: rdma.OpWrite, SGL: server.sge(0, half), RemoteSTag: s},
				rdma.Work{Op: rdma.OpWrite, SGL: server.sge(half, n-half), RemoteSTag: s, RemoteOffset: uint64(half)},
				server.closing(5, s, 48+i*20000),
			)
			client.closed(2, s)
			same(t, "pushed", append(append([]byte(nil), memory[0].Bytes...), memory[1].Bytes...), server.bytes(0, n))
			same(t, "message", client.bytes(0, 48+i*20000), server.bytes(0, 48+i*20000))
			same(t, "memory between", region.Bytes()[n/3:n/3+17], make([]byte, 17))
			check(t, region.Deregister())
			server.sends.want(rdma.OpSend, 5)
		}
		client.sends.none()
	})
}

// A whole window is advertised with one post, and closed in another order.
func testOneShotManyOutstanding(t *testing.T, p Pair) {
	encodings(t, func(t *testing.T, o options) {
		const n, size = 16, 1000
		client, server := connect(t, p, o)
		for round := range 20 {
			fill(client.bytes(0, n*size), uint64(round))
			var ws []rdma.Work
			for i := range n {
				server.receive(uint64(i), 100, 48)
				client.receive(uint64(i), n*size+i*8, 8)
				ws = append(ws, client.advertise(i*size, 48, rdma.AccessRemoteRead, client.sge(i*size, size)))
			}
			client.post(ws...)
			seen := make(map[rdma.STag]bool)
			for i, w := range ws {
				server.advertised(uint64(i), w.STag)
				if seen[w.STag] {
					t.Fatalf("STag %08x is advertised twice at a time", w.STag)
				}
				seen[w.STag] = true
			}
			for i, w := range ws {
				server.post(rdma.Work{
					ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(2000+i*size, size), RemoteSTag: w.STag,
				})
			}
			for i := range ws {
				server.sends.want(rdma.OpRead, uint64(i))
			}
			same(t, "pulled", server.bytes(2000, n*size), client.bytes(0, n*size))
			for i := range ws {
				server.post(server.closing(uint64(i), ws[n-1-i].STag, 8))
			}
			for i := range ws {
				client.closed(uint64(i), ws[n-1-i].STag)
				server.sends.want(rdma.OpSend, uint64(i))
			}
		}
	})
}

// No more STags are advertised than the peer allows; a close makes room for the next.
func testOneShotWindow(t *testing.T, p Pair) {
	const most = 3
	client, server := connect(t, p, options{client: offer(), server: offer(window(most))})
	w := client.advertise(0, 48, rdma.AccessRemoteRead, client.sge(0, 100))
	for i := range 60 {
		server.receive(uint64(i), 0, 48)
		client.receive(uint64(i), 0, 48)
	}
	n, err := client.qp.Post([]rdma.Work{w, w, w, w, w})
	if n != most || !errors.Is(err, rdma.ErrWindow) {
		t.Fatalf("Post: %d, %v; want %d, %v", n, err, most, rdma.ErrWindow)
	}
	for i := range 50 {
		s := server.recvs.want(rdma.OpReceive, uint64(i)).STag
		if n, err := client.qp.Post([]rdma.Work{w}); n != 0 || !errors.Is(err, rdma.ErrWindow) {
			t.Fatalf("Post: %d, %v; want %v", n, err, rdma.ErrWindow)
		}
		server.post(server.closing(1, s, 0))
		client.closed(uint64(i), s)
		client.post(w) // at once: the server may not know yet that its close has left
		server.sends.want(rdma.OpSend, 1)
	}
}

// Both ends take back what will not be closed (R4); for the peer it is as if it had never been.
func testRevoke(t *testing.T, p Pair) {
	client, server := connect(t, p, options{client: offer(window(2)), server: offer(window(2)), memory: victim})
	var s rdma.STag
	for range 20 {
		region := client.register(100, rdma.AccessLocalWrite)
		server.receive(1, 0, 48)
		s = client.post(client.advertise(0, 48, rdma.AccessRemoteRead, sge(region, 0, 100)))[0].STag
		server.advertised(1, s)
		for _, e := range []*end{server, client} {
			done := make(chan struct{})
			check(t, e.qp.Revoke(s, func() { close(done) }))
			<-done
		}
		check(t, region.Deregister())
		if client.qp.Revoke(s, func() { t.Error("done") }) == nil {
			t.Error("an STag is revoked twice")
		}
	}
	if client.qp.Revoke(0, func() { t.Error("done") }) == nil {
		t.Error("STag 0 is revoked")
	}
	violate(t, server, client, rdma.Work{Op: rdma.OpRead, SGL: server.sge(0, 10), RemoteSTag: s})
}

// What the flags ask for has to make sense, here and now.
func testOneShotRefused(t *testing.T, p Pair) {
	client, server := connect(t, p, options{client: offer(), server: offer()})
	other, err := p.Client.NewDomain()
	check(t, err)
	foreign, err := other.Register(alloc(t, p.Client, 64), allRemote)
	check(t, err)
	readOnly := client.register(64, rdma.AccessRemoteRead)
	mem := client.sge(0, 100)
	for what, w := range map[string]rdma.Work{
		"no memory":             client.advertise(0, 1, rdma.AccessRemoteRead, nil),
		"no access":             client.advertise(0, 1, 0, mem),
		"local access":          client.advertise(0, 1, rdma.AccessLocalWrite, mem),
		"another domain":        client.advertise(0, 1, rdma.AccessRemoteRead, sge(foreign, 0, 10)),
		"cannot be written":     client.advertise(0, 1, rdma.AccessRemoteWrite, sge(readOnly, 0, 10)),
		"Host 1 closes":         client.closing(1, 0x100, 1),
		"advertise, invalidate": {Op: rdma.OpSend, Flags: rdma.Advertise | rdma.Invalidate, STag: 1, Access: rdma.AccessRemoteRead, Memory: mem},
	} {
		client.refused(what, w)
	}
	server.refused("Host 2 advertises", server.advertise(0, 1, rdma.AccessRemoteRead, server.sge(0, 10)))
	server.refused("STag that is not advertised", server.closing(1, client.mem.STag(), 1))
	server.refused("STag 0", server.closing(1, 0, 1))
	check(t, foreign.Deregister())
	check(t, readOnly.Deregister())
	check(t, other.Close())

	// R2: a close does not overtake Reads; nothing comes after a close.
	server.receive(1, 0, 100)
	client.receive(2, 0, 100)
	s := client.post(client.advertise(0, 48, rdma.AccessRemoteRead, mem))[0].STag
	server.advertised(1, s)
	read := rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(0, 100), RemoteSTag: s}
	for what, ws := range map[string][]rdma.Work{
		"close while a Read is outstanding": {read, server.closing(4, s, 1)},
	} {
		n, err := server.qp.Post(ws)
		if w, ok := errors.AsType[*rdma.WorkError](err); n != 1 || !ok || w.Index != 1 {
			t.Fatalf("%s: Post: %d, %v", what, n, err)
		}
		server.sends.want(rdma.OpRead, 3)
	}
	n, err := server.qp.Post([]rdma.Work{server.closing(4, s, 1), read})
	if w, ok := errors.AsType[*rdma.WorkError](err); n != 1 || !ok || w.Index != 1 {
		t.Fatalf("Read behind the close: Post: %d, %v", n, err)
	}
	server.sends.want(rdma.OpSend, 4)
	client.closed(2, s)
	server.refused("closed twice", server.closing(5, s, 1))
}

// Where nothing is agreed, neither flag can be used; it is also the test of devices that know
// nothing of it.
func testNoOneShot(t *testing.T, p Pair) {
	o := options{client: offer()}
	if !p.Client.Limits().OneShot || !p.Server.Limits().OneShot {
		o.server = offer() // to no effect
	}
	client, server := connect(t, p, o)
	for _, e := range []*end{client, server} {
		if e.qp.OneShot() != nil {
			t.Errorf("agreed on %+v", e.qp.OneShot())
		}
		e.refused("advertise", e.advertise(0, 1, rdma.AccessRemoteRead, e.sge(0, 10)))
		e.refused("close", e.closing(1, 0x100, 1))
	}
	server.receive(1, 0, 100)
	client.post(client.send(1, rdma.Signaled, 0, 100))
	client.sends.want(rdma.OpSend, 1)
	if c := server.recvs.want(rdma.OpReceive, 1); c.Flags != 0 || c.STag != 0 {
		t.Errorf("%+v", c)
	}
}

// What the target must not do with memory that was advertised to it.
func testOneShotViolations(t *testing.T, p Pair) {
	const both = rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite} {
		right, wrong := rdma.AccessRemoteRead, rdma.AccessRemoteWrite
		if op == rdma.OpWrite {
			right, wrong = wrong, right
		}
		for _, c := range []struct {
			name   string
			access rdma.Access
			forge  rdma.STag
			to     uint64
			closed bool
			other  bool
		}{
			{name: "without rights", access: wrong},
			{name: "over the end", access: both, to: 401},
			{name: "behind the end", access: right, to: 500},
			{name: "offset wraps", access: right, to: ^uint64(0) - 10},
			{name: "wrong key", access: both, forge: 1},
			{name: "closed", access: both, closed: true},
			{name: "another connection", access: both, other: true},
		} {
			t.Run(op.String()+" "+c.name, func(t *testing.T) {
				o := options{client: offer(), server: offer(), memory: victim}
				client, server := connect(t, p, o)
				from, to := client, server
				if c.other {
					from, to = connect(t, p, o)
				}
				to.receive(1, 0, 48)
				s := from.post(from.advertise(0, 0, c.access, from.sge(1000, 500)))[0].STag
				to.advertised(1, s)
				if c.closed {
					from.receive(2, 0, 48)
					to.post(to.closing(3, s, 0))
					from.closed(2, s)
					to.sends.want(rdma.OpSend, 3)
				}
				violate(t, server, client, rdma.Work{Op: op, SGL: server.sge(0, 100), RemoteSTag: s ^ c.forge, RemoteOffset: c.to})
			})
		}
	}
}

// Advertise without Close: the target ends the STag with a Send with Invalidate (R6).
func testAdvertiseThenInvalidate(t *testing.T, p Pair) {
	client, server := connect(t, p, options{client: offer(noClose, window(2)), server: offer(window(2))})
	server.refused("close", server.closing(1, 0x100, 1))
	for i := range 20 {
		region := client.register(100, rdma.AccessLocalWrite)
		server.receive(1, 0, 48)
		client.receive(2, 0, 48)
		s := client.post(client.advertise(0, 48, rdma.AccessRemoteWrite, sge(region, 0, 100)))[0].STag
		server.advertised(1, s)
		fill(server.bytes(100, 100), uint64(i))
		w := server.send(3, rdma.Invalidate|rdma.Signaled, 0, 48)
		w.STag = s
		server.post(rdma.Work{Op: rdma.OpWrite, SGL: server.sge(100, 100), RemoteSTag: s}, w)
		server.sends.want(rdma.OpSend, 3)
		if c := client.recvs.want(rdma.OpReceive, 2); c.Flags != rdma.Invalidated || c.STag != s {
			t.Fatalf("%+v, want STag %08x invalidated", c, s)
		}
		same(t, "pushed", region.Bytes(), server.bytes(100, 100))
		check(t, region.Deregister())
	}
}

// When the connection ends, advertised memory is free with the queue pair; nobody claims that
// it was closed.
func testOneShotEnd(t *testing.T, p Pair) {
	client, server := connect(t, p, options{client: offer(), server: offer()})
	region := client.register(1000, rdma.AccessLocalWrite)
	for i := range 3 {
		server.receive(uint64(i), 0, 48)
		client.receive(uint64(i), 0, 48)
		s := client.post(client.advertise(0, 48, rdma.AccessRemoteRead, sge(region, 0, 1000)))[0].STag
		server.advertised(uint64(i), s)
	}
	server.qp.Abort(nil)
	client.bad()
	server.bad()
	for i := range 3 {
		flushed(t, client.recvs, rdma.OpReceive, uint64(i))
	}
	check(t, client.qp.Close())
	check(t, region.Deregister())
	client.sends.none()
}

// The counts that one-shot is about (one-shot.md §7).
func testCrossings(t *testing.T, p Pair) {
	const n = 50
	client, server := connect(t, p, options{client: offer(), server: offer()})
	io := func(access rdma.Access) (c, s rdma.Counters) {
		c, s = client.qp.Counters(), server.qp.Counters()
		for range n {
			server.receive(1, 0, 48)
			client.receive(2, 0, 48)
			tag := client.post(client.advertise(0, 48, access, client.sge(100, 1000)))[0].STag
			server.advertised(1, tag)
			shut := server.closing(5, tag, 48)
			shut.Flags &^= rdma.Signaled
			if access == rdma.AccessRemoteRead {
				server.post(rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(100, 1000), RemoteSTag: tag})
				server.sends.want(rdma.OpRead, 3)
				server.post(shut)
			} else {
				server.post(rdma.Work{Op: rdma.OpWrite, SGL: server.sge(100, 1000), RemoteSTag: tag}, shut)
			}
			client.closed(2, tag)
		}
		server.receive(1, 0, 48)
		client.post(client.send(1, rdma.Signaled, 0, 1)) // so that all of it is counted
		server.recvs.want(rdma.OpReceive, 1)
		client.sends.want(rdma.OpSend, 1)
		return client.qp.Counters().Sub(c), server.qp.Counters().Sub(s)
	}
	for _, access := range []rdma.Access{rdma.AccessRemoteRead, rdma.AccessRemoteWrite} {
		pull := uint64(0)
		if access == rdma.AccessRemoteRead {
			pull = n
		}
		c, s := io(access)
		for _, x := range []struct {
			what      string
			got, want uint64
		}{
			{"initiator's Posts", c.Posts, n + 1},
			{"initiator's Works", c.Works, n + 1},
			{"initiator's Completions", c.Completions, n + 1},
			{"initiator's Receives", c.Receives, n},
			{"initiator's Registrations, Binds and Invalidations", c.Registrations + c.Binds + c.Invalidations, 0},
			{"initiator's Advertises", c.Advertises, n},
			{"initiator's Closes", c.Closes, n},
			{"initiator's MessagesOut", c.MessagesOut, n + pull + 1},
			{"initiator's MessagesIn", c.MessagesIn, 2 * n},
			{"target's Posts", s.Posts, n + pull},
			{"target's Works", s.Works, 2 * n},
			{"target's Completions", s.Completions, n + pull + 1},
			{"target's Receives", s.Receives, n + 1},
			{"target's Registrations, Binds and Invalidations", s.Registrations + s.Binds + s.Invalidations, 0},
			{"target's Advertises", s.Advertises, n},
			{"target's Closes", s.Closes, n},
			{"target's Reads", s.Reads, pull},
			{"target's MessagesOut", s.MessagesOut, 2 * n},
		} {
			if x.got != x.want {
				t.Errorf("access %d: %s: %d for %d I/Os, want %d", access, x.what, x.got, n, x.want)
			}
		}
	}
}
