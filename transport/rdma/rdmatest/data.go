package rdmatest

import (
	"testing"

	"oneshot/transport/rdma"
)

// sizes are below, at and above what fits into one segment of the providers we know.
var sizes = []int{0, 1, 2, 3, 4, 5, 63, 255, 256, 257, 1420, 1424, 1428, 4095, 4096, 65456, 65460, 65461, 65536, 200001, 1 << 20}

const largest = 1 << 20

func testSendSizes(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: largest + 8})
	for _, way := range [][2]*end{{client, server}, {server, client}} {
		from, to := way[0], way[1]
		for i, n := range sizes {
			id := uint64(i)
			fill(from.bytes(0, n), id)
			fill(to.mem.Bytes(), id+100)
			after := to.bytes(n, 8)
			want := append([]byte(nil), after...)
			to.receive(id, 0, n+i%2) // exactly, or more than enough
			from.post(from.send(id, rdma.Signaled, 0, n))
			c := to.recvs.want(rdma.OpReceive, id)
			if c.Bytes != n || c.QueuePair != to.qp || c.Flags != 0 {
				t.Fatalf("%d bytes: %+v", n, c)
			}
			same(t, "message", to.bytes(0, n), from.bytes(0, n))
			same(t, "memory behind it", after, want)
			if c := from.sends.want(rdma.OpSend, id); c.QueuePair != from.qp {
				t.Fatalf("%+v", c)
			}
		}
	}
}

func testWriteSizes(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: largest + 16})
	for i, n := range sizes {
		fill(client.mem.Bytes(), uint64(i))
		fill(server.mem.Bytes(), uint64(i)+100)
		want := append([]byte(nil), server.mem.Bytes()...)
		copy(want[3:], client.bytes(5, n))
		server.receive(1, 0, 0)
		w := client.write(1, rdma.Signaled, 5, n, server, 3)
		if n == 0 {
			w.RemoteSTag, w.RemoteOffset = 0, 1<<63 // nothing is reached, nothing is checked
		}
		client.post(w, client.send(2, rdma.Signaled, 0, 0))
		client.sends.want(rdma.OpWrite, 1)
		client.sends.want(rdma.OpSend, 2)
		server.recvs.want(rdma.OpReceive, 1)
		same(t, "memory", server.mem.Bytes(), want)
	}
}

func testReadSizes(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: largest + 16})
	for _, way := range [][2]*end{{client, server}, {server, client}} {
		to, from := way[0], way[1]
		for i, n := range sizes {
			fill(from.mem.Bytes(), uint64(i))
			fill(to.mem.Bytes(), uint64(i)+100)
			want := append([]byte(nil), to.mem.Bytes()...)
			copy(want[7:], from.bytes(3, n))
			w := to.read(1, rdma.Signaled, 7, n, from, 3)
			if n == 0 {
				w.RemoteSTag, w.RemoteOffset = 0, 1<<63 // RFC 5040 §5.2: not validated
			}
			if n == 0 && p.Defects.EmptyReads {
				to.refused("an empty Read", w)
				continue
			}
			to.post(w)
			if c := to.sends.want(rdma.OpRead, 1); c.Bytes != n || c.QueuePair != to.qp {
				t.Fatalf("%d bytes: %+v", n, c)
			}
			same(t, "memory", to.mem.Bytes(), want)
		}
	}
}

// A sink of Reads needs no remote access where Limits say so.
func sinkAccess(l rdma.Limits) rdma.Access {
	if l.ReadSinkWrite {
		return rdma.AccessLocalWrite | rdma.AccessRemoteWrite
	}
	return rdma.AccessLocalWrite
}

// list cuts memory into k elements of all sizes, with gaps and, if k > 2, an empty one; it
// returns the memory in one piece as well.
func list(r rdma.Region, k int) (l []rdma.SGE, flat func() []byte) {
	off := 1
	for i := range k {
		n := 1 + (i*37)%200
		if i == 2 {
			n = 0
		}
		l = append(l, sge(r, off, n)...)
		off += n + 3
	}
	return l, func() (b []byte) {
		for _, s := range l {
			b = append(b, s.Bytes...)
		}
		return b
	}
}

func testLists(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	cl, sl := p.Client.Limits(), p.Server.Limits()
	// Two regions, of which one can do no more than it must.
	least := client.register(defaultMemory, sinkAccess(cl))
	for k := 1; k <= cl.MaxSGE; k++ {
		fill(client.mem.Bytes(), uint64(k))
		fill(server.mem.Bytes(), uint64(k)+100)
		src, flat := list(client.mem, k)
		want := flat()
		sink, got := list(server.mem, min(k, sl.MaxSGE))
		sink[0] = sge(server.mem, 32768, len(want))[0] // room for the rest
		_, err := server.qp.PostReceive([]rdma.Receive{{ID: 1, SGL: sink}})
		check(t, err)
		client.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: src})
		if c := server.recvs.want(rdma.OpReceive, 1); c.Bytes != len(want) {
			t.Fatalf("%d bytes, want %d", c.Bytes, len(want))
		}
		client.sends.want(rdma.OpSend, 2)
		same(t, "message", got()[:len(want)], want)

		w := client.write(3, rdma.Signaled, 0, 0, server, 50)
		w.SGL = src
		client.post(w)
		client.sends.want(rdma.OpWrite, 3)
		sink, got = list(least, min(k, cl.MaxReadSGE))
		r := client.read(4, rdma.Signaled, 0, 0, server, 50)
		r.SGL = sink
		client.post(r)
		client.sends.want(rdma.OpRead, 4)
		same(t, "read back", got(), want[:len(got())])
	}
	check(t, least.Deregister())

	over, _ := list(client.mem, cl.MaxSGE+1)
	client.refused("one element too many", rdma.Work{Op: rdma.OpSend, SGL: over})
	over, _ = list(client.mem, cl.MaxReadSGE+1)
	client.refused("one element too many", rdma.Work{Op: rdma.OpRead, SGL: over, RemoteSTag: server.mem.STag()})
}

// A batch is taken with one call, and everything in it happens in order.
func testBatch(t *testing.T, p Pair) {
	const n, size = 60, 100
	client, server := connect(t, p, options{})
	fill(client.mem.Bytes(), 1)
	rs := make([]rdma.Receive, n)
	ws := make([]rdma.Work, n)
	for i := range n {
		rs[i] = rdma.Receive{ID: uint64(i), SGL: server.sge(i*size, size)}
		ws[i] = client.send(uint64(i), rdma.Signaled, i*size, size)
	}
	k, err := server.qp.PostReceive(rs)
	if err != nil || k != n {
		t.Fatalf("PostReceive: %d, %v", k, err)
	}
	client.post(ws...)
	for i := range n {
		server.recvs.want(rdma.OpReceive, uint64(i))
		client.sends.want(rdma.OpSend, uint64(i))
	}
	same(t, "messages", server.bytes(0, n*size), client.bytes(0, n*size))
	if n, err := client.qp.Post(nil); n != 0 || err != nil {
		t.Errorf("Post of nothing: %d, %v", n, err)
	}
}

// Without RelaxedOrder requests of one queue pair complete in order, whatever they are.
func testCompletionOrder(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: 1 << 20})
	for round := range 20 {
		var ws []rdma.Work
		ops := []rdma.Opcode{rdma.OpRead, rdma.OpSend, rdma.OpWrite, rdma.OpRead, rdma.OpRead, rdma.OpSend, rdma.OpWrite}
		for i, op := range ops {
			id, n := uint64(i), 1+(round*i*1117)%50000
			switch op {
			case rdma.OpRead:
				ws = append(ws, client.read(id, rdma.Signaled, i*65536, n, server, 0))
			case rdma.OpWrite:
				ws = append(ws, client.write(id, rdma.Signaled, i*65536, n, server, i*65536))
			default:
				server.receive(id, 1000000, 1000)
				ws = append(ws, client.send(id, rdma.Signaled, i*65536, n%1000))
			}
		}
		client.post(ws...)
		for i, op := range ops {
			client.sends.want(op, uint64(i))
			if op == rdma.OpSend {
				server.recvs.want(rdma.OpReceive, uint64(i))
			}
		}
	}
}

// Unsignalled requests have no completion; a later one stands for them, and makes room.
func testUnsignaled(t *testing.T, p Pair) {
	const round = 16
	client, server := connect(t, p, options{maxWork: round})
	fill(client.mem.Bytes(), 5)
	for r := range 10 {
		var ws []rdma.Work
		for i := range round - 1 {
			switch i % 3 {
			case 0:
				ws = append(ws, client.write(1, 0, i*100, 100, server, i*100))
			case 1:
				ws = append(ws, client.read(1, 0, 32768+i*100, 100, server, 32768))
			default:
				server.receive(uint64(i), 40000, 100)
				ws = append(ws, client.send(1, 0, 0, 100))
			}
		}
		ws = append(ws, client.write(uint64(1000+r), rdma.Signaled, 0, 1, server, 0))
		client.post(ws...)
		client.sends.want(rdma.OpWrite, uint64(1000+r))
		client.sends.none()
		for i := 2; i < round-1; i += 3 {
			server.recvs.want(rdma.OpReceive, uint64(i))
		}
	}
}

// Inline memory is free when Post returns, and needs no region.
func testInline(t *testing.T, p Pair) {
	most := p.Client.Limits().MaxInline
	client, server := connect(t, p, options{})
	for n := range most + 1 {
		b := filled(n, uint64(n))
		want := append([]byte(nil), b...)
		server.receive(1, 0, 1024)
		client.post(
			rdma.Work{
				Op: rdma.OpWrite, Flags: rdma.Inline, SGL: []rdma.SGE{{Bytes: b}},
				RemoteSTag: server.mem.STag(), RemoteOffset: server.to(2048),
			},
			rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Inline | rdma.Signaled, SGL: []rdma.SGE{{Bytes: b[:n/2]}, {Bytes: b[n/2:]}}},
		)
		clear(b)
		server.recvs.want(rdma.OpReceive, 1)
		client.sends.want(rdma.OpSend, 2)
		same(t, "inline Send", server.bytes(0, n), want)
		same(t, "inline Write", server.bytes(2048, n), want)
	}
	client.refused("too long to be inline", rdma.Work{
		Op: rdma.OpSend, Flags: rdma.Inline, SGL: []rdma.SGE{{Bytes: make([]byte, most+1)}},
	})
	client.refused("an inline Read", client.read(1, rdma.Inline, 0, 1, server, 0))
}

func testSolicited(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	server.receive(1, 0, 10)
	server.receive(2, 0, 10)
	client.post(client.send(1, rdma.Solicited|rdma.Signaled, 0, 10), client.send(2, rdma.Signaled, 0, 10))
	server.recvs.want(rdma.OpReceive, 1)
	server.recvs.want(rdma.OpReceive, 2)
	client.sends.want(rdma.OpSend, 1)
	client.sends.want(rdma.OpSend, 2)
}

// When a Send has arrived, what was written before it is there (RFC 5040 §5.5).
func testWriteBeforeSend(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: 1 << 18})
	for i, n := range []int{1, 100, 4096, 65536, 200000, 3, 70000, 5000} {
		fill(client.mem.Bytes(), uint64(i))
		server.receive(1, 1<<18-1, 1)
		client.post(
			client.write(1, 0, 0, n, server, 0),
			client.write(1, 0, n, n/8, server, n),
			client.send(2, rdma.Signaled, 0, 1),
		)
		server.recvs.want(rdma.OpReceive, 1)
		same(t, "what was written", server.bytes(0, n+n/8), client.bytes(0, n+n/8))
		client.sends.want(rdma.OpSend, 2)
	}
}

// More Reads can be posted than may be outstanding.
func testManyReads(t *testing.T, p Pair) {
	const n, size = 60, 5000
	client, server := connect(t, p, options{memory: n * size, reads: 2})
	if k := client.qp.Reads(); k < 1 || k > 2 {
		t.Fatalf("%d Reads outstanding, asked for 2", k)
	}
	fill(server.mem.Bytes(), 9)
	var ws []rdma.Work
	for i := range n {
		ws = append(ws, client.read(uint64(i), rdma.Signaled, i*size, size, server, i*size))
	}
	client.post(ws...)
	for i := range n {
		client.sends.want(rdma.OpRead, uint64(i))
		same(t, "what was read", client.bytes(i*size, size), server.bytes(i*size, size))
	}
	if k := client.qp.Counters().Reads; k < n {
		t.Errorf("%d Reads counted, %d made", k, n)
	}
}

// A fence waits for the Reads before it (RFC 5040 §5.5 rule 12).
func testFence(t *testing.T, p Pair) {
	client, server := connect(t, p, options{memory: 1 << 19})
	for i, n := range []int{1, 5000, 100000, 64} {
		fill(server.bytes(0, n), uint64(i))
		want := append([]byte(nil), server.bytes(0, n)...)
		server.receive(1, 1<<18, n)
		client.post(
			client.read(1, 0, 0, n, server, 0),
			client.send(2, rdma.Fence, 0, n),
			client.read(3, 0, 1<<18, n, server, 0),
			client.write(4, rdma.Fence|rdma.Signaled, n, n, server, 0),
		)
		server.recvs.want(rdma.OpReceive, 1)
		same(t, "what was read and sent", server.bytes(1<<18, n), want)
		client.sends.want(rdma.OpWrite, 4)
		same(t, "what was read before it was written", client.bytes(1<<18, n), want)
		client.post(client.read(5, rdma.Signaled, 1<<18, n, server, 0))
		client.sends.want(rdma.OpRead, 5)
		same(t, "what was written", client.bytes(1<<18, n), client.bytes(n, n))
	}
}

// Large messages of all kinds in both directions at a time get into nobody's way.
func testBothWays(t *testing.T, p Pair) {
	const n, rounds = 150000, 8
	client, server := connect(t, p, options{memory: 8 * n})
	ends := [2]*end{client, server}
	for i, e := range ends {
		fill(e.bytes(0, n), uint64(i))
	}
	for range rounds {
		for i, e := range ends {
			o := ends[1-i]
			e.receive(1, n, n)
			o.post( // Reads and Writes touch what the other messages do not
				o.read(2, rdma.Signaled, 2*n, n, e, 0),
				o.write(3, rdma.Signaled, 0, n, e, 3*n),
				o.send(4, rdma.Signaled, 0, n),
			)
		}
		for i, e := range ends {
			o := ends[1-i]
			e.sends.want(rdma.OpRead, 2)
			e.sends.want(rdma.OpWrite, 3)
			e.sends.want(rdma.OpSend, 4)
			e.recvs.want(rdma.OpReceive, 1)
			for part := range 3 {
				same(t, "message, Read or Write", e.bytes((part+1)*n, n), o.bytes(0, n))
				clear(e.bytes((part+1)*n, n))
			}
		}
	}
}
