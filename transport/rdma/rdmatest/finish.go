package rdmatest

import (
	"errors"
	"testing"

	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// Disconnect ends in good order: all that is posted arrives, both ends hear that it was good,
// and what was left is flushed.
func testDisconnect(t *testing.T, p Pair) {
	const n, size = 40, 3000
	for _, fromServer := range []bool{false, true} {
		from, to := connect(t, p, options{memory: 2 * n * size})
		if fromServer {
			from, to = to, from
		}
		fill(from.mem.Bytes(), 1)
		var ws []rdma.Work
		for i := range n {
			to.receive(uint64(i), i*size, size)
			ws = append(ws, from.send(uint64(i), rdma.Signaled, i*size, size))
		}
		to.receive(n, 0, 10)
		from.receive(9, n*size, 10)
		from.post(ws...)
		from.post(from.read(n, rdma.Signaled, n*size, size, to, n*size))
		from.qp.Disconnect()
		for i := range n {
			to.recvs.want(rdma.OpReceive, uint64(i))
			from.sends.want(rdma.OpSend, uint64(i))
		}
		from.sends.want(rdma.OpRead, n)
		same(t, "messages", to.bytes(0, n*size), from.bytes(0, n*size))
		from.good()
		to.good()
		flushed(t, to.recvs, rdma.OpReceive, n)
		flushed(t, from.recvs, rdma.OpReceive, 9)
		for _, e := range []*end{from, to} {
			if n, err := e.qp.Post([]rdma.Work{e.send(1, 0, 0, 1)}); n != 0 || !errors.Is(err, rdma.ErrDisconnected) {
				t.Errorf("Post: %d, %v; want %v", n, err, rdma.ErrDisconnected)
			}
			e.qp.Disconnect() // to no effect
			e.qp.Abort(nil)
		}
	}
}

// Receives of a shared queue stay when a connection ends, and serve the next.
func testDisconnectKeepsShared(t *testing.T, p Pair) {
	client, server := connect(t, p, options{shared: true})
	server.receive(1, 0, 10)
	server.receive(2, 0, 10)
	client.post(client.send(1, rdma.Signaled, 0, 10))
	server.recvs.want(rdma.OpReceive, 1)
	client.qp.Disconnect()
	client.good()
	server.good()
	check(t, server.qp.Close())
	server.recvs.none()

	again := newEnd(t, p.Client, options{})
	next := &end{t: t, dev: p.Server}
	var err error
	next.qp, err = p.Server.NewQueuePair(rdma.QueuePairConfig{
		Domain: server.dom, SendCQ: server.sends.cq, RecvCQ: server.recvs.cq, MaxWork: 4, Receives: server.srq,
	})
	check(t, err)
	link(t, p, again, next, options{})
	again.post(again.send(1, rdma.Signaled, 0, 10))
	if c := server.recvs.want(rdma.OpReceive, 2); c.QueuePair != next.qp {
		t.Errorf("%+v", c)
	}
	check(t, next.qp.Close())
}

// Abort is told to the peer, with a reason if there is one, and is no good end.
func testAbort(t *testing.T, p Pair) {
	for _, why := range []error{nil, terminate{}} {
		client, server := connect(t, p, options{})
		for i := range 5 {
			server.receive(uint64(i), 0, 10)
			client.receive(uint64(i), 0, 10)
		}
		client.post(client.send(1, rdma.Signaled, 0, 1)) // the server may speak from now on
		client.sends.want(rdma.OpSend, 1)
		server.recvs.want(rdma.OpReceive, 0)
		server.qp.Abort(why)
		client.told(server)
		server.bad()
		for i := range 5 {
			flushed(t, client.recvs, rdma.OpReceive, uint64(i))
		}
		for i := 1; i < 5; i++ {
			flushed(t, server.recvs, rdma.OpReceive, uint64(i))
		}
		if _, err := client.qp.Post([]rdma.Work{client.send(1, 0, 0, 1)}); !errors.Is(err, rdma.ErrDisconnected) {
			t.Errorf("Post: %v, want %v", err, rdma.ErrDisconnected)
		}
	}
}

// terminate is an error that knows what the peer is told: remote operation, catastrophic.
type terminate struct{}

func (terminate) Error() string                         { return "the owner has seen enough" }
func (terminate) Terminate() (layer, etype, code uint8) { return 0, 2, 7 }

const dying, dyingSize = 30, 1 << 18

// load posts Reads and Writes that take a while.
func load(client, server *end) {
	client.t.Helper()
	var ws []rdma.Work
	for i := range dying {
		if i%3 == 2 {
			ws = append(ws, client.write(uint64(i), rdma.Signaled, 0, dyingSize, server, dyingSize))
		} else {
			ws = append(ws, client.read(uint64(i), rdma.Signaled, dyingSize, dyingSize, server, 0))
		}
	}
	client.post(ws...)
	client.sends.want(rdma.OpRead, 0) // it is under way
}

// rest waits until the others have completed, each once and in order: good ones first, then
// those that were cut off, if there are any.
func rest(t *testing.T, q *queue) (cut bool) {
	t.Helper()
	for i := 1; i < dying; i++ {
		c := q.next()
		if c.ID != uint64(i) || cut && c.Status == rdma.StatusOK {
			t.Fatalf("%d is due, %+v completes", i, c)
		}
		cut = cut || c.Status != rdma.StatusOK
	}
	q.none()
	return cut
}

func testPeerDiesDuringReads(t *testing.T, p Pair) {
	for range rounds.Of(10, 4) {
		client, server := connect(t, p, options{memory: 2 * dyingSize, reads: 8})
		load(client, server)
		server.qp.Abort(nil)
		if rest(t, client.sends) {
			client.bad()
		} else { // all was done before the Abort
			client.told(server)
		}
		server.bad()
	}
}

// Close in the middle: everything is in the queue when it returns, and the memory is free.
func testCloseDuringReads(t *testing.T, p Pair) {
	for i := range rounds.Of(10, 4) {
		client, server := connect(t, p, options{memory: 2 * dyingSize, reads: 8})
		load(client, server)
		if i%2 == 0 {
			check(t, client.qp.Close())
			rest(t, client.sends)
			continue
		}
		check(t, server.qp.Close())
		check(t, client.qp.Close())
		rest(t, client.sends)
	}
}

func testCloseUnpolled(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	for i := range 10 {
		server.receive(uint64(i), 0, 10)
	}
	var ws []rdma.Work
	for i := range 10 {
		ws = append(ws, client.send(uint64(i), rdma.Signaled, 0, 10))
	}
	client.post(ws...)
	check(t, server.qp.Close())
	check(t, client.qp.Close())
	check(t, client.qp.Close()) // to no effect
	for _, q := range []*queue{client.sends, server.recvs} {
		for i := range 10 {
			if q.cq.Poll(q.one[:]) != 1 || q.one[0].ID != uint64(i) {
				t.Fatalf("request %d is due, %+v is in the queue", i, q.one[0])
			}
		}
		q.none()
	}
}
