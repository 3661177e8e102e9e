package rdmatest

import (
	"encoding/binary"
	"errors"
	"testing"

	"oneshot/transport/rdma"
)

// target is memory of the server that the client must not reach.
type target struct {
	name string
	// make returns an STag and tagged offset, and what frees them after the connection.
	make func(t *testing.T, server *end, p Pair) (s rdma.STag, to uint64, free func())
}

const (
	victim   = 4096 // bytes of the server's memory
	noRights = "no rights"
)

func free() {}

// targets are what goes wrong for Reads and Writes alike; right is the access that the
// operation needs, and wrong one that is not enough.
func targets(right, wrong rdma.Access) []target {
	registered := func(a rdma.Access) func(*testing.T, *end, Pair) (rdma.STag, uint64, func()) {
		return func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			r := server.register(victim, a)
			return r.STag(), r.Base(), func() { check(t, r.Deregister()) }
		}
	}
	at := func(off int64) func(*testing.T, *end, Pair) (rdma.STag, uint64, func()) {
		return func(_ *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			return server.mem.STag(), server.mem.Base() + uint64(off), free
		}
	}
	forged := func(x rdma.STag) func(*testing.T, *end, Pair) (rdma.STag, uint64, func()) {
		return func(_ *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			return server.mem.STag() ^ x, server.mem.Base(), free
		}
	}
	return []target{
		{"wrong key", forged(0x01)},
		{"key of another generation", forged(0xff)},
		{"wrong index", forged(0x00777700)},
		{"STag 0", func(_ *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			return 0, server.mem.Base(), free
		}},
		{"one byte behind the end", at(victim - 99)},
		{"behind the end", at(victim)},
		{"before the beginning", at(-1)},
		{"offset wraps", func(_ *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			return server.mem.STag(), ^uint64(0) - 50, free
		}},
		{noRights, registered(wrong)},
		{"deregistered", func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
			r := server.register(victim, right)
			check(t, r.Deregister())
			return r.STag(), r.Base(), free
		}},
		{"another domain", func(t *testing.T, _ *end, p Pair) (rdma.STag, uint64, func()) {
			d, err := p.Server.NewDomain()
			check(t, err)
			r, err := d.Register(alloc(t, p.Server, victim), right)
			check(t, err)
			return r.STag(), r.Base(), func() {
				same(t, "memory of another domain", r.Bytes(), make([]byte, victim))
				check(t, r.Deregister())
				check(t, d.Close())
			}
		}},
	}
}

// violate posts work that the peer refuses, and checks that the connection ends on both sides
// and that no memory was reached.
func violate(t *testing.T, client, server *end, w rdma.Work) {
	t.Helper()
	fill(client.mem.Bytes(), 1)
	fill(server.mem.Bytes(), 2)
	mine, theirs := append([]byte(nil), client.mem.Bytes()...), append([]byte(nil), server.mem.Bytes()...)
	server.receive(7, 0, 100)
	client.receive(8, 0, 100)
	w.ID, w.Flags = 1, w.Flags|rdma.Signaled
	// The Read behind it cannot be answered any more, and the Send is never delivered.
	behind := []rdma.Work{w, client.read(2, rdma.Signaled, 0, 50, server, 0), client.send(3, rdma.Signaled|rdma.Fence, 0, 50)}
	n, err := client.qp.Post(behind)
	if err != nil || n != len(behind) {
		t.Fatalf("Post: %d, %v", n, err)
	}
	client.bad()
	server.told(server)

	c := client.sends.next()
	switch ok := c.Status == rdma.StatusRemoteAccess; {
	case c.ID != 1:
		t.Errorf("completion %+v", c)
	case w.Op == rdma.OpRead && !ok && (client.dev.Limits().EndTold || c.Status != rdma.StatusFlushed):
		t.Errorf("the Read ends with %v (%v), want %v", c.Status, c.Err, rdma.StatusRemoteAccess)
	case !ok && c.Status != rdma.StatusOK && c.Status != rdma.StatusFlushed:
		// Whether the sender of a Write hears of it is the provider's affair.
		t.Errorf("the %v ends with %v (%v)", w.Op, c.Status, c.Err)
	}
	flushed(t, client.sends, rdma.OpRead, 2)
	flushed(t, client.sends, rdma.OpSend, 3)
	flushed(t, client.recvs, rdma.OpReceive, 8)
	flushed(t, server.recvs, rdma.OpReceive, 7)
	for _, q := range []*queue{client.sends, client.recvs, server.sends, server.recvs} {
		q.none()
	}
	same(t, "memory of the one", client.mem.Bytes(), mine)
	same(t, "memory of the other", server.mem.Bytes(), theirs)
}

// unguarded posts a Read that should be refused and is not, and checks that it stays in its sink.
func unguarded(t *testing.T, client *end, w rdma.Work) {
	t.Helper()
	fill(client.mem.Bytes(), 1)
	mine := append([]byte(nil), client.mem.Bytes()...)
	w.ID, w.Flags = 1, w.Flags|rdma.Signaled
	client.post(w)
	client.sends.want(w.Op, 1)
	copy(mine[1000:1100], make([]byte, 100)) // what the region holds
	same(t, "memory", client.mem.Bytes(), mine)
}

// flushed waits for a completion that says that nothing came of the request.
func flushed(t testT, q *queue, op rdma.Opcode, id uint64) {
	t.Helper()
	if c := q.next(); c.Op != op || c.ID != id || c.Status != rdma.StatusFlushed {
		t.Errorf("completion of %v %d: %v (%v); want that of %v %d, flushed", c.Op, c.ID, c.Status, c.Err, op, id)
	}
}

func violations(t *testing.T, p Pair, op rdma.Opcode, targets []target) {
	for _, x := range targets {
		t.Run(x.name, func(t *testing.T) {
			client, server := connect(t, p, options{memory: victim})
			s, to, free := x.make(t, server, p)
			w := rdma.Work{Op: op, SGL: client.sge(1000, 100), RemoteSTag: s, RemoteOffset: to}
			if x.name == noRights && op == rdma.OpRead && p.Defects.ReadRights {
				unguarded(t, client, w)
			} else {
				violate(t, client, server, w)
			}
			free()
		})
	}
}

func testReadViolations(t *testing.T, p Pair) {
	violations(t, p, rdma.OpRead, targets(rdma.AccessRemoteRead, rdma.AccessLocalWrite|rdma.AccessRemoteWrite))
}

func testWriteViolations(t *testing.T, p Pair) {
	violations(t, p, rdma.OpWrite, targets(rdma.AccessLocalWrite|rdma.AccessRemoteWrite, rdma.AccessLocalWrite|rdma.AccessRemoteRead))
}

// A region that allows it is ended by the peer's Send with Invalidate, or by its owner.
func testRegionInvalidated(t *testing.T, p Pair) {
	for _, local := range []bool{false, true} {
		client, server := connect(t, p, options{memory: victim})
		r := server.register(victim, allRemote|rdma.AccessRemoteInvalidate)
		reach := rdma.Work{Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(0, 100), RemoteSTag: r.STag(), RemoteOffset: r.Base()}
		client.post(reach)
		client.sends.want(rdma.OpRead, 0)
		if local {
			server.post(rdma.Work{ID: 1, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: r.STag()})
			server.sends.want(rdma.OpLocalInvalidate, 1)
		} else {
			w := client.send(2, rdma.Invalidate|rdma.Solicited, 0, 10)
			w.STag = r.STag()
			server.receive(1, 0, 100)
			client.post(w)
			if c := server.recvs.want(rdma.OpReceive, 1); c.Flags != rdma.Invalidated || c.STag != r.STag() || c.Bytes != 10 {
				t.Errorf("%+v; want STag %08x invalidated", c, r.STag())
			}
		}
		violate(t, client, server, reach)
		check(t, r.Deregister())
	}
}

// Without the right to it, an Invalidate ends the connection and not the region.
func testInvalidateRefused(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	third, fourth := connect(t, p, options{})
	d := server.register(victim, allRemote)
	w := client.send(1, rdma.Invalidate, 0, 10)
	w.STag = d.STag()
	server.receive(7, 0, 100)
	client.post(w)
	server.told(server)
	client.told(server)
	if c := server.recvs.next(); c.ID != 7 || c.Status == rdma.StatusOK {
		t.Errorf("%+v", c)
	}
	check(t, d.Deregister())

	third.post(third.read(1, rdma.Signaled, 0, 10, fourth, 0)) // others go on
	third.sends.want(rdma.OpRead, 1)
}

// testNoRegionInvalidate is for devices whose regions nobody invalidates.
func testNoRegionInvalidate(t *testing.T, p Pair) {
	e := newEnd(t, p.Server, options{})
	if _, err := e.dom.Register(alloc(t, p.Server, 10), allRemote|rdma.AccessRemoteInvalidate); p.Server.Limits().RegionInvalidate {
		t.Error("regions can be invalidated, but Sends cannot do it")
	} else if !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("Register: %v, want %v", err, rdma.ErrUnsupported)
	}
}

// testInvalidateUnguarded is for devices that cannot post an Invalidate, or that obey every one:
// what the peer did not name is left alone even then.
func testInvalidateUnguarded(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: victim})
	third, fourth := connect(t, p, options{})
	d := server.register(victim, allRemote)
	w := client.send(1, rdma.Invalidate|rdma.Signaled, 0, 10)
	w.STag = d.STag()
	if !p.Client.Limits().SendInvalidate {
		client.refused("an Invalidate", w)
		check(t, d.Deregister())
		return
	}
	if p.Client.Limits().MaxInline >= 10 {
		w.Flags |= rdma.Inline
	}
	fill(client.bytes(0, 10), 1)
	server.receive(7, 0, 100)
	client.post(w)
	if c := server.recvs.want(rdma.OpReceive, 7); c.Bytes != 10 {
		t.Errorf("%+v", c)
	}
	same(t, "message", server.bytes(0, 10), client.bytes(0, 10))
	client.sends.want(rdma.OpSend, 1)
	client.post(client.read(1, rdma.Signaled, 0, 10, server, 0)) // another region of the domain
	client.sends.want(rdma.OpRead, 1)
	violate(t, client, server, rdma.Work{Op: rdma.OpRead, SGL: client.sge(1000, 100), RemoteSTag: d.STag(), RemoteOffset: d.Base()})
	third.post(third.read(1, rdma.Signaled, 0, 10, fourth, 0))
	third.sends.want(rdma.OpRead, 1)
	check(t, d.Deregister())
}

func testMessageTooLong(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	fill(server.mem.Bytes(), 1)
	want := append([]byte(nil), server.bytes(10, 90)...)
	server.receive(7, 0, 10)
	server.receive(8, 10, 10)
	client.post(client.send(1, 0, 0, 11))
	server.told(server)
	client.told(server)
	if c := server.recvs.next(); c.ID != 7 || c.Status != rdma.StatusLocalLength {
		t.Errorf("%+v; want %v", c, rdma.StatusLocalLength)
	}
	flushed(t, server.recvs, rdma.OpReceive, 8)
	same(t, "memory behind the receive", server.bytes(10, 90), want)
}

// bind binds w to n bytes of e's memory at off, and returns the STag and tagged offset.
func (e *end) bind(w rdma.Window, off, n int, a rdma.Access) (rdma.STag, uint64) {
	e.t.Helper()
	ws := e.post(rdma.Work{ID: 77, Op: rdma.OpBind, Flags: rdma.Signaled, SGL: e.sge(off, n), Access: a, Window: w})
	e.sends.want(rdma.OpBind, 77)
	if ws[0].STag == 0 || ws[0].STag != w.STag() || ws[0].STag == e.mem.STag() {
		e.t.Fatalf("bound: Post says STag %08x, the window %08x, its region is %08x", ws[0].STag, w.STag(), e.mem.STag())
	}
	return ws[0].STag, e.to(off)
}

func newWindow(t *testing.T, e *end) rdma.Window {
	t.Helper()
	w, err := e.dom.NewWindow()
	check(t, err)
	return w
}

func testWindow(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	w := newWindow(t, server)
	seen := make(map[rdma.STag]bool)
	before := server.qp.Counters()
	const rounds = 10
	for i := range rounds {
		fill(client.mem.Bytes(), uint64(i))
		s, to := server.bind(w, 1000+i, 500, rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
		if seen[s] {
			t.Errorf("STag %08x again", s)
		}
		seen[s] = true
		client.post(
			rdma.Work{ID: 1, Op: rdma.OpWrite, SGL: client.sge(0, 500), RemoteSTag: s, RemoteOffset: to},
			rdma.Work{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(2000, 499), RemoteSTag: s, RemoteOffset: to + 1},
		)
		client.sends.want(rdma.OpRead, 2)
		same(t, "written", server.bytes(1000+i, 500), client.bytes(0, 500))
		same(t, "read back", client.bytes(2000, 499), client.bytes(1, 499))
		server.post(rdma.Work{ID: 3, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: s})
		server.sends.want(rdma.OpLocalInvalidate, 3)
	}
	if c := server.qp.Counters().Sub(before); c.Binds != rounds || c.Invalidations != rounds {
		t.Errorf("%d binds and %d invalidations counted, want %d", c.Binds, c.Invalidations, rounds)
	}
	check(t, w.Free())
}

// The peer ends a window without having been given that right in particular, for that is what
// windows are for.
func testWindowRemoteInvalidate(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	w := newWindow(t, server)
	for range 10 {
		s, to := server.bind(w, 100, 50, rdma.AccessRemoteWrite)
		server.receive(1, 0, 100)
		done := client.send(2, rdma.Invalidate|rdma.Signaled, 0, 48)
		done.STag = s
		client.post(rdma.Work{Op: rdma.OpWrite, SGL: client.sge(0, 50), RemoteSTag: s, RemoteOffset: to}, done)
		client.sends.want(rdma.OpSend, 2)
		if c := server.recvs.want(rdma.OpReceive, 1); c.Flags != rdma.Invalidated || c.STag != s || c.Bytes != 48 {
			t.Fatalf("%+v; want STag %08x invalidated", c, s)
		}
	}
	check(t, w.Free())
}

func testWindowViolations(t *testing.T, p Pair) {
	const both = rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite} {
		wrong := rdma.AccessRemoteWrite
		if op == rdma.OpWrite {
			wrong = rdma.AccessRemoteRead
		}
		bound := func(a rdma.Access, off int) func(*testing.T, *end, Pair) (rdma.STag, uint64, func()) {
			return func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
				w := newWindow(t, server)
				s, to := server.bind(w, 1000, 500, a)
				return s, to + uint64(off), func() { check(t, w.Free()) }
			}
		}
		if !p.Defects.WindowRange {
			violations(t, p, op, []target{
				{op.String() + " before the window", bound(both, -1)},
				{op.String() + " behind the window", bound(both, 401)},
			})
		}
		violations(t, p, op, []target{
			{op.String() + " behind the region", bound(both, victim-1000-99)},
			{op.String() + " before the region", bound(both, -1001)},
			{op.String() + " without rights", bound(wrong, 0)},
			{op.String() + " invalidated", func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
				w := newWindow(t, server)
				s, to := server.bind(w, 1000, 500, both)
				server.post(rdma.Work{ID: 3, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: s})
				server.sends.want(rdma.OpLocalInvalidate, 3)
				return s, to, func() { check(t, w.Free()) }
			}},
			{op.String() + " bound again", func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
				w := newWindow(t, server)
				s, to := server.bind(w, 1000, 500, both)
				server.post(rdma.Work{Op: rdma.OpLocalInvalidate, STag: s})
				if again, _ := server.bind(w, 1000, 500, both); again == s {
					t.Errorf("bound again with the same STag %08x", s)
				}
				return s, to, func() { check(t, w.Free()) }
			}},
			{op.String() + " freed", func(t *testing.T, server *end, _ Pair) (rdma.STag, uint64, func()) {
				w := newWindow(t, server)
				s, to := server.bind(w, 1000, 500, both)
				check(t, w.Free())
				return s, to, free
			}},
			{op.String() + " of another queue pair", func(t *testing.T, server *end, p Pair) (rdma.STag, uint64, func()) {
				// In the same domain, bound on another connection.
				c, s := newEnd(t, p.Client, options{}), newEnd(t, p.Server, options{})
				check(t, s.qp.Close())
				var err error
				s.qp, err = p.Server.NewQueuePair(rdma.QueuePairConfig{
					Domain: server.dom, SendCQ: s.sends.cq, RecvCQ: s.recvs.cq, MaxWork: 4, MaxRecv: 4,
					Disconnected: func(err error) { s.ends.Add(1); s.gone <- err },
				})
				check(t, err)
				link(t, p, c, s, options{})
				w := newWindow(t, server)
				ws := s.post(rdma.Work{
					ID: 1, Op: rdma.OpBind, Flags: rdma.Signaled, SGL: server.sge(1000, 500), Access: both, Window: w,
				})
				s.sends.want(rdma.OpBind, 1)
				return ws[0].STag, server.to(1000), func() { check(t, w.Free()) }
			}},
		})
	}
}

// A window is bound again only after its access was taken away; both may be in one batch.
func testWindowBoundTwice(t *testing.T, p Pair) {
	_, server := connect(t, p, options{})
	w := newWindow(t, server)
	s, _ := server.bind(w, 0, 100, rdma.AccessRemoteRead)
	bind := rdma.Work{ID: 1, Op: rdma.OpBind, Flags: rdma.Signaled, SGL: server.sge(0, 100), Access: rdma.AccessRemoteRead, Window: w}
	server.refused("bound while it is", bind)
	server.post(rdma.Work{Op: rdma.OpLocalInvalidate, STag: s}, bind)
	server.sends.want(rdma.OpBind, 1)
	if w.STag() == s {
		t.Errorf("bound again with the same STag %08x", s)
	}
	if n, err := server.qp.Post([]rdma.Work{{Op: rdma.OpBind, SGL: server.sge(0, 1), Access: rdma.AccessRemoteRead}}); n != 0 || err == nil {
		t.Errorf("Bind of no window: %d, %v", n, err)
	}
	check(t, w.Free())
}

// A message names a window that is bound in the same batch: Post has stamped it, in registered
// memory or in memory that it copies. The client reads through the name.
func testWindowStamped(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	w := newWindow(t, server)
	for i, inline := range []bool{false, true} {
		fill(server.mem.Bytes(), uint64(i))
		client.receive(5, 0, 64)
		message := server.send(2, rdma.Signaled, 4000, 8)
		if inline && server.dev.Limits().MaxInline >= 8 {
			message.Flags |= rdma.Inline
			message.SGL = []rdma.SGE{{Bytes: make([]byte, 8)}}
		}
		b := message.SGL[0].Bytes
		ws := server.post(
			rdma.Work{Op: rdma.OpBind, SGL: server.sge(100, 50), Access: rdma.AccessRemoteRead, Window: w, Stamp: b[2:6]},
			message,
		)
		server.sends.want(rdma.OpSend, 2)
		client.recvs.want(rdma.OpReceive, 5)
		s := rdma.STag(binary.BigEndian.Uint32(client.bytes(2, 4)))
		if s == 0 || s != ws[0].STag || s != w.STag() {
			t.Fatalf("the message names %08x, Post says %08x, the window %08x", s, ws[0].STag, w.STag())
		}
		client.post(rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(1000, 50), RemoteSTag: s, RemoteOffset: server.to(100)})
		client.sends.want(rdma.OpRead, 3)
		same(t, "what was read through the window", client.bytes(1000, 50), server.bytes(100, 50))
		server.post(rdma.Work{ID: 4, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: s})
		server.sends.want(rdma.OpLocalInvalidate, 4)
	}
	check(t, w.Free())
}

// testNoWindows is for devices without.
func testNoWindows(t *testing.T, p Pair) {
	e := newEnd(t, p.Server, options{})
	if _, err := e.dom.NewWindow(); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("NewWindow: %v, want %v", err, rdma.ErrUnsupported)
	}
}
