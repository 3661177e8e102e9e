package rdmatest

import (
	"errors"
	"testing"
	"time"

	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// Arm asks for one call of event, and only if there is nothing to poll.
func testArm(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	q := server.recvs
	for i := range 4 {
		server.receive(uint64(i), 0, 10)
	}
	if !q.cq.Arm() {
		t.Fatal("Arm finds completions where there are none")
	}
	if !q.cq.Arm() {
		t.Fatal("Arm again does")
	}
	client.post(client.send(1, rdma.Signaled, 0, 10))
	<-q.wake
	if q.cq.Arm() {
		t.Error("Arm does not see the completion of which event has told")
	}
	q.want(rdma.OpReceive, 0)

	// Not armed: the completion comes without event. A Read behind it tells that it is there.
	client.post(client.send(2, 0, 0, 10), client.read(3, rdma.Signaled, 0, 1, server, 0))
	client.sends.want(rdma.OpSend, 1)
	client.sends.want(rdma.OpRead, 3)
	for q.cq.Poll(q.one[:]) == 0 { // the peer's provider may be a little behind
		client.post(client.read(3, rdma.Signaled, 0, 1, server, 0))
		client.sends.want(rdma.OpRead, 3)
	}
	if n := q.events.Load(); n != 1 {
		t.Errorf("%d calls of event, armed once", n)
	}
	if n := q.cq.Poll(nil); n != 0 {
		t.Errorf("Poll into nothing: %d", n)
	}
}

// Whoever arms and waits is always woken, however close the completion is.
func testNoLostEvent(t *testing.T, p Pair) {
	turns := rounds.Of(1000, 200)
	client, server := connect(t, p, options{})
	done := make(chan error, 1)
	server.receive(0, 0, 8)
	client.receive(0, 0, 8)
	go func() {
		ws := []rdma.Work{server.send(1, 0, 0, 8)}
		rs := []rdma.Receive{{SGL: server.sge(0, 8)}}
		var err error
		for i := 0; i < turns && err == nil; i++ {
			if c := server.recvs.next(); c.Status != rdma.StatusOK {
				err = errors.New(c.Status.String())
			}
			if err == nil {
				_, err = server.qp.PostReceive(rs)
			}
			ws[0].Flags = 0
			if i%16 == 15 {
				ws[0].Flags = rdma.Signaled
			}
			if err == nil {
				_, err = server.qp.Post(ws)
			}
			for server.sends.cq.Poll(server.sends.one[:]) > 0 {
			}
		}
		done <- err
	}()
	for range turns {
		client.post(client.send(1, rdma.Signaled, 0, 8))
		client.recvs.want(rdma.OpReceive, 0)
		client.receive(0, 0, 8)
		client.sends.want(rdma.OpSend, 1)
	}
	check(t, <-done)
}

// An event may poll, post and arm; its calls do not overlap.
func testWorkInEvent(t *testing.T, p Pair) {
	const lanes = 8
	inside, fail := make(chan struct{}, 1), make(chan error, 1)
	echo := func(e *end) {
		select {
		case inside <- struct{}{}:
		default:
			t.Error("calls of event overlap")
			return
		}
		defer func() { <-inside }()
		for {
			for e.recvs.cq.Poll(e.recvs.one[:]) > 0 {
				id := e.recvs.one[0].ID
				if e.recvs.one[0].Status != rdma.StatusOK {
					continue
				}
				_, err1 := e.qp.PostReceive([]rdma.Receive{{ID: id, SGL: e.sge(int(id)*8, 8)}})
				_, err2 := e.qp.Post([]rdma.Work{e.send(id, rdma.Signaled, int(id)*8, 8)})
				if err := errors.Join(err1, err2); err != nil {
					select {
					case fail <- err:
					default:
					}
				}
				for e.sends.cq.Poll(e.sends.one[:]) > 0 {
				}
			}
			if e.recvs.cq.Arm() {
				return
			}
		}
	}
	client := newEnd(t, p.Client, options{})
	server := newEnd(t, p.Server, options{event: echo})
	for i := range lanes {
		server.receive(uint64(i), i*8, 8)
		client.receive(uint64(i), 1024+i*8, 8)
	}
	if !server.recvs.cq.Arm() {
		t.Fatal("Arm finds completions where there are none")
	}
	link(t, p, client, server, options{})
	for r := range rounds.Of(300, 60) {
		fill(client.bytes(0, lanes*8), uint64(r))
		for i := range lanes {
			client.post(client.send(uint64(i), 0, i*8, 8))
		}
		for i := range lanes {
			client.recvs.want(rdma.OpReceive, uint64(i))
			client.receive(uint64(i), 1024+i*8, 8)
		}
		client.post(client.write(9, rdma.Signaled, 0, 1, server, 4096))
		client.sends.want(rdma.OpWrite, 9)
		same(t, "echo", client.bytes(1024, lanes*8), client.bytes(0, lanes*8))
		select {
		case err := <-fail:
			t.Fatal(err)
		default:
		}
	}
}

// Many queue pairs share one completion queue and one queue of receives.
func testOneQueueForAll(t *testing.T, p Pair) {
	const pairs, each = 12, 20
	dom, err := p.Server.NewDomain()
	check(t, err)
	q := newQueue(t, p.Server, pairs*each*2, nil)
	srq, err := p.Server.NewReceiveQueue(dom, pairs*each)
	check(t, err)
	mem, err := dom.Register(alloc(t, p.Server, pairs*each), rdma.AccessLocalWrite)
	check(t, err)
	var rs []rdma.Receive
	for i := range pairs * each {
		rs = append(rs, rdma.Receive{ID: uint64(i), SGL: sge(mem, i, 1)})
	}
	n, err := srq.PostReceive(rs)
	if err != nil || n != len(rs) {
		t.Fatalf("PostReceive: %d, %v", n, err)
	}
	var clients []*end
	var qps []rdma.QueuePair
	for i := range pairs {
		c, s := newEnd(t, p.Client, options{}), &end{t: t, dev: p.Server, dom: dom}
		s.qp, err = p.Server.NewQueuePair(rdma.QueuePairConfig{
			Domain: dom, SendCQ: q.cq, RecvCQ: q.cq, MaxWork: each, Receives: srq, Context: i,
		})
		check(t, err)
		if _, err := s.qp.PostReceive(rs[:1]); err == nil {
			t.Error("a queue pair takes receives of its own besides shared ones")
		}
		link(t, p, c, s, options{})
		clients, qps = append(clients, c), append(qps, s.qp)
		for k := range each {
			c.receive(uint64(k), each+k, 1)
			c.bytes(k, 1)[0] = byte(k)
		}
	}
	for _, c := range clients {
		for k := range each {
			c.post(c.send(uint64(k), rdma.Signaled, k, 1))
		}
	}
	var got, sent [pairs]int
	for range pairs * each * 2 {
		c := q.next()
		i, ok := c.QueuePair.Context().(int)
		if c.Status != rdma.StatusOK || !ok || c.QueuePair != qps[i] {
			t.Fatalf("%+v", c)
		}
		if c.Op == rdma.OpSend {
			if c.ID != uint64(sent[i]) {
				t.Fatalf("queue pair %d: Send %d completes, %d is due", i, c.ID, sent[i])
			}
			sent[i]++
			continue
		}
		if int(mem.Bytes()[c.ID]) != got[i] {
			t.Fatalf("queue pair %d: message %d arrives, %d is due", i, mem.Bytes()[c.ID], got[i])
		}
		if _, err := qps[i].Post([]rdma.Work{{
			ID: uint64(got[i]), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: sge(mem, int(c.ID), 1),
		}}); err != nil {
			t.Fatal(err)
		}
		got[i]++
	}
	for _, c := range clients {
		for k := range each {
			c.recvs.want(rdma.OpReceive, uint64(k))
			c.sends.want(rdma.OpSend, uint64(k))
		}
		same(t, "echo", c.bytes(each, each), c.bytes(0, each))
	}
	if err := srq.Close(); err == nil {
		t.Error("a queue of receives that is in use can be closed")
	}
	for _, qp := range qps {
		check(t, qp.Close())
	}
	check(t, q.cq.Close())
	check(t, srq.Close())
	check(t, mem.Deregister())
	check(t, dom.Close())
}

func testSharedReceives(t *testing.T, p Pair) {
	client, server := connect(t, p, options{shared: true})
	for i := range 64 {
		server.receive(uint64(i), i*100, 100)
	}
	if n, err := server.srq.PostReceive([]rdma.Receive{{SGL: server.sge(0, 1)}}); n != 0 || !errors.Is(err, rdma.ErrFull) {
		t.Errorf("PostReceive: %d, %v; want %v", n, err, rdma.ErrFull)
	}
	fill(client.bytes(0, 6400), 1)
	for i := range 64 {
		client.post(client.send(uint64(i), rdma.Signaled, i*100, 100))
		server.recvs.want(rdma.OpReceive, uint64(i))
		client.sends.want(rdma.OpSend, uint64(i))
	}
	same(t, "messages", server.bytes(0, 6400), client.bytes(0, 6400))
}

// Limits.ReceiveWait: Sends wait for receives, and nothing behind them is lost.
func testReceiveWait(t *testing.T, p Pair) {
	const n = 40
	client, server := connect(t, p, options{shared: true, memory: 1 << 20, maxWork: 2*n + 1})
	fill(client.mem.Bytes(), 1)
	for i := range n {
		client.post(
			client.send(uint64(i), rdma.Signaled, i*100, 100),
			client.write(1, 0, 8192+i*1000, 1000, server, 8192+i*1000),
		)
	}
	server.recvs.none()
	for i := range n {
		server.receive(uint64(i), i*100, 100)
		server.recvs.want(rdma.OpReceive, uint64(i))
		client.sends.want(rdma.OpSend, uint64(i))
	}
	client.post(client.read(1, rdma.Signaled, 1<<19, 8192+n*1000, server, 0))
	client.sends.want(rdma.OpRead, 1)
	same(t, "Sends", server.bytes(0, n*100), client.bytes(0, n*100))
	same(t, "Writes", server.bytes(8192, n*1000), client.bytes(8192, n*1000))
}

// Without it, the connection ends.
func testNoReceive(t *testing.T, p Pair) {
	client, server := connect(t, p, options{shared: true})
	client.post(client.send(1, rdma.Signaled, 0, 100))
	client.told(server)
	server.told(server)
}

// A full queue takes a part, says so, and goes on when something has completed.
func testFull(t *testing.T, p Pair) {
	const total, room, batch = 600, 4, 50
	client, server := connect(t, p, options{maxWork: room, maxRecv: total})
	for i := range total {
		server.receive(uint64(i), 0, 10)
	}
	full, done := 0, 0
	for posted := 0; posted < total; {
		var ws []rdma.Work
		for i := posted; i < min(posted+batch, total); i++ {
			ws = append(ws, client.send(uint64(i), rdma.Signaled, 0, 10))
		}
		n, err := client.qp.Post(ws)
		switch {
		case err == nil && n == len(ws):
		case errors.Is(err, rdma.ErrFull) && n < len(ws):
			full++
		default:
			t.Fatalf("Post of %d: %d, %v", len(ws), n, err)
		}
		posted += n
		for done < posted {
			client.sends.want(rdma.OpSend, uint64(done))
			done++
		}
	}
	if full == 0 {
		t.Error("a queue for 4 has always room for 50")
	}
	for i := range total {
		server.recvs.want(rdma.OpReceive, uint64(i))
	}
}

func testReceivesFull(t *testing.T, p Pair) {
	client, server := connect(t, p, options{maxRecv: 8})
	rs := make([]rdma.Receive, 9)
	for i := range rs {
		rs[i] = rdma.Receive{ID: uint64(i), SGL: server.sge(i, 1)}
	}
	if n, err := server.qp.PostReceive(rs); n != 8 || !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("PostReceive: %d, %v; want 8, %v", n, err, rdma.ErrFull)
	}
	client.post(client.send(1, 0, 0, 1))
	server.recvs.want(rdma.OpReceive, 0)
	if n, err := server.qp.PostReceive(rs[8:]); n != 1 || err != nil {
		t.Fatalf("PostReceive: %d, %v", n, err)
	}
}

// What is wrong with a request is told by Post; those before it are done, and those after it
// can be posted.
func testWrongWork(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	other, err := p.Client.NewDomain()
	check(t, err)
	foreign, err := other.Register(alloc(t, p.Client, 64), allRemote)
	check(t, err)
	readOnly := client.register(64, rdma.AccessRemoteRead)
	stag, base := server.mem.STag(), server.to(0)
	mem := client.sge(0, 8)
	for _, c := range []struct {
		what string
		w    rdma.Work
	}{
		{"no region", rdma.Work{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: make([]byte, 8)}}}},
		{"outside of the region", rdma.Work{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: make([]byte, 8), Region: client.mem}}}},
		{"another domain", rdma.Work{Op: rdma.OpSend, SGL: sge(foreign, 0, 8)}},
		{"another domain, Write", rdma.Work{Op: rdma.OpWrite, SGL: sge(foreign, 0, 8), RemoteSTag: stag, RemoteOffset: base}},
		{"sink that cannot be written", rdma.Work{Op: rdma.OpRead, SGL: sge(readOnly, 0, 8), RemoteSTag: stag, RemoteOffset: base}},
		{"Invalidate of STag 0", rdma.Work{Op: rdma.OpSend, SGL: mem, Flags: rdma.Invalidate}},
		{"Write that invalidates", rdma.Work{Op: rdma.OpWrite, SGL: mem, Flags: rdma.Invalidate, STag: 1, RemoteSTag: stag, RemoteOffset: base}},
		{"Read that advertises", rdma.Work{Op: rdma.OpRead, SGL: mem, Flags: rdma.Advertise, RemoteSTag: stag, RemoteOffset: base}},
		{"two meanings of STag", rdma.Work{Op: rdma.OpSend, SGL: mem, Flags: rdma.Invalidate | rdma.Close, STag: 1}},
		{"invalidation of what cannot be", rdma.Work{Op: rdma.OpLocalInvalidate, STag: client.mem.STag()}},
		{"Receive", rdma.Work{Op: rdma.OpReceive, SGL: mem}},
		{"Flush", rdma.Work{Op: rdma.OpFlush}},
		{"CompareSwap", rdma.Work{Op: rdma.OpCompareSwap, SGL: mem, RemoteSTag: stag, RemoteOffset: base}},
		{"FetchAdd", rdma.Work{Op: rdma.OpFetchAdd, SGL: mem, RemoteSTag: stag, RemoteOffset: base}},
		{"Discard", rdma.Work{Op: rdma.OpDiscard, Length: 8, RemoteSTag: stag, RemoteOffset: base}},
		{"Barrier", rdma.Work{Op: rdma.OpWrite, Flags: rdma.Barrier, SGL: mem, RemoteSTag: stag, RemoteOffset: base}},
		{"durable Write", rdma.Work{Op: rdma.OpWrite, Flags: rdma.Durable, SGL: mem, RemoteSTag: stag, RemoteOffset: base}},
		{"unknown operation", rdma.Work{Op: 200}},
	} {
		server.receive(1, 0, 100)
		server.receive(2, 0, 100)
		ok := client.send(1, rdma.Signaled, 0, 10)
		n, err := client.qp.Post([]rdma.Work{ok, c.w, ok})
		w, is := errors.AsType[*rdma.WorkError](err)
		if n != 1 || !is || w.Index != 1 || w.What == "" {
			t.Errorf("%s: Post: %d, %v; want 1 and a WorkError of the second", c.what, n, err)
		}
		if n > 1 {
			t.FailNow()
		}
		client.sends.want(rdma.OpSend, 1)
		client.post(ok)
		client.sends.want(rdma.OpSend, 1)
		server.recvs.want(rdma.OpReceive, 1)
		server.recvs.want(rdma.OpReceive, 2)
	}
	check(t, foreign.Deregister())
	check(t, readOnly.Deregister())
	check(t, other.Close())
}

// Orders that the device does not have are refused, not ignored; an ordinary peer is no endpoint.
func testOrders(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	for _, e := range []*end{client, server} {
		if p := e.qp.Endpoint(); p != nil {
			t.Errorf("an ordinary peer is the endpoint %+v", p)
		}
	}
	c := rdma.QueuePairConfig{Domain: client.dom, SendCQ: client.sends.cq, RecvCQ: client.recvs.cq, MaxWork: 4, MaxRecv: 4}
	for o := rdma.Order(1); o < 2*rdma.FreeFinish; o++ {
		if o&^p.Client.Limits().Orders == 0 {
			continue
		}
		c.Order = o
		if _, err := p.Client.NewQueuePair(c); !errors.Is(err, rdma.ErrUnsupported) {
			t.Errorf("a queue pair of order %d: %v, want %v", o, err, rdma.ErrUnsupported)
		}
	}
}

func testWrongReceive(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	readOnly := server.register(64, rdma.AccessRemoteRead)
	for what, sgl := range map[string][]rdma.SGE{
		"memory that cannot be written": sge(readOnly, 0, 8),
		"no region":                     {{Bytes: make([]byte, 8)}},
	} {
		n, err := server.qp.PostReceive([]rdma.Receive{
			{ID: 1, SGL: server.sge(0, 10)}, {ID: 2, SGL: sgl}, {ID: 3, SGL: server.sge(0, 10)},
		})
		w, is := errors.AsType[*rdma.WorkError](err)
		if n != 1 || !is || w.Index != 1 || w.Op != rdma.OpReceive {
			t.Errorf("%s: PostReceive: %d, %v; want 1 and a WorkError of the second", what, n, err)
		}
		client.post(client.send(1, 0, 0, 10))
		server.recvs.want(rdma.OpReceive, 1)
	}
	check(t, readOnly.Deregister())
}

// settled waits until counters are as they are to be, for what has left may be there before it is counted. If they
// never are, the test says so.
func settled(there func() bool) {
	for late := time.Now().Add(10 * time.Second); !there() && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
}

// What crosses the interface is counted as it is, on the queue pair and on the device.
func testCounters(t *testing.T, p Pair) {
	client, server := connect(t, p, options{})
	before, after := [4]rdma.Counters{}, [4]rdma.Counters{}
	counters := func(c *[4]rdma.Counters) {
		*c = [4]rdma.Counters{client.qp.Counters(), server.qp.Counters(), p.Client.Counters(), p.Server.Counters()}
	}
	client.receive(1, 0, 10) // what belongs to the start of the connection is over after this
	server.post(server.read(1, rdma.Signaled, 0, 1, client, 0), server.send(2, rdma.Signaled|rdma.Fence, 0, 1))
	server.sends.want(rdma.OpRead, 1)
	server.sends.want(rdma.OpSend, 2)
	client.recvs.want(rdma.OpReceive, 1)
	settled(func() bool {
		counters(&before)
		return !p.Client.Limits().CountsRemote || !p.Server.Limits().CountsRemote ||
			before[0].MessagesOut == before[1].MessagesIn && before[1].MessagesOut == before[0].MessagesIn
	})
	server.receive(1, 0, 1000)
	server.receive(2, 0, 1000)
	client.post(
		client.write(1, 0, 0, 3000, server, 0),
		client.send(2, rdma.Signaled, 0, 500),
		client.read(3, rdma.Signaled, 0, 2000, server, 0),
	)
	client.post(client.send(4, 0, 0, 0))
	client.sends.want(rdma.OpSend, 2)
	client.sends.want(rdma.OpRead, 3)
	server.recvs.want(rdma.OpReceive, 1)
	server.recvs.want(rdma.OpReceive, 2)
	r := client.register(100, rdma.AccessRemoteRead)
	remote := func(l rdma.Limits, n uint64) uint64 { // what only some devices see
		if l.CountsRemote {
			return n
		}
		return 0
	}
	cl, sl := p.Client.Limits(), p.Server.Limits()
	var c, s rdma.Counters
	settled(func() bool {
		counters(&after)
		c, s = after[0].Sub(before[0]), after[1].Sub(before[1])
		return c.MessagesOut >= 4 && s.MessagesOut >= remote(sl, 1)
	})
	check(t, r.Deregister())

	for _, x := range []struct {
		what      string
		got, want uint64
	}{
		{"Posts", c.Posts, 2},
		{"Works", c.Works, 4},
		{"Completions", c.Completions, 2},
		{"Polls", c.Polls, 2},
		{"Reads", c.Reads, 1},
		{"MessagesOut", c.MessagesOut, 4},
		{"MessagesIn", c.MessagesIn, remote(cl, 1)},
		{"BytesOut", c.BytesOut, 3500},
		{"BytesIn", c.BytesIn, 2000},
		{"Terminates", c.Terminates, 0},
		{"peer's ReceivePosts", s.ReceivePosts, 2},
		{"peer's Receives", s.Receives, 2},
		{"peer's Completions", s.Completions, 2},
		{"peer's Posts", s.Posts, 0},
		{"peer's MessagesOut", s.MessagesOut, remote(sl, 1)},
		{"peer's MessagesIn", s.MessagesIn, 2 + remote(sl, 2)},
		{"peer's BytesIn", s.BytesIn, 500 + remote(sl, 3000)},
		{"peer's BytesOut", s.BytesOut, remote(sl, 2000)},
		{"peer's Reads", s.Reads, 0},
		{"Registrations", after[2].Sub(before[2]).Registrations, 1},
	} {
		if x.got != x.want {
			t.Errorf("%s: %d, want %d", x.what, x.got, x.want)
		}
	}
	if c.Doorbells == 0 {
		t.Error("no doorbell was counted")
	}
	dc, ds := after[2].Sub(before[2]), after[3].Sub(before[3])
	if p.Client == p.Server {
		c.Works += s.Works
	}
	if dc.Works != c.Works || ds.BytesIn < s.BytesIn {
		t.Errorf("the device counts %+v and %+v", dc, ds)
	}
}
