//go:build verbs && !guest && cgo && linux

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs/fake"
)

// Constants of libibverbs that tests hand to the fake.
const (
	wrWrite, wrSend, wrRead = 0, 2, 4
	wcRetryExceeded         = 12
	wcGeneralError          = 21
	evCQError, evQPFatal    = 0, 1
	evPortError             = 10
	evDeviceFatal           = 8
)

// side is one end of a connection.
type side struct {
	t      *testing.T
	dev    *Device
	dom    rdma.Domain
	cq     rdma.CompletionQueue
	wake   chan struct{}
	qp     rdma.QueuePair
	mem    rdma.Region
	gone   chan error
	one    [1]rdma.Completion
	closed bool
}

const remote = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSide(t *testing.T, d *Device) *side {
	t.Helper()
	s := &side{t: t, dev: d, wake: make(chan struct{}, 1), gone: make(chan error, 4)}
	var err error
	s.dom, err = d.NewDomain()
	check(t, err)
	s.mem, err = s.dom.Register(make([]byte, 1<<16), remote)
	check(t, err)
	s.cq, err = d.NewCompletionQueue(64, func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	s.qp, err = d.NewQueuePair(rdma.QueuePairConfig{
		Domain: s.dom, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 16, MaxRecv: 16, Disconnected: func(err error) { s.gone <- err },
	})
	check(t, err)
	t.Cleanup(s.close)
	return s
}

// close frees everything of the side. It may be called several times.
func (s *side) close() {
	s.t.Helper()
	if s.closed {
		return
	}
	s.closed = true
	check(s.t, s.qp.Close())
	check(s.t, s.cq.Close())
	check(s.t, s.mem.Deregister())
	check(s.t, s.dom.Close())
}

// next waits for a completion.
func (s *side) next() rdma.Completion {
	for s.cq.Poll(s.one[:]) == 0 {
		if s.cq.Arm() {
			<-s.wake
		}
	}
	return s.one[0]
}

// join connects two sides of a device.
func join(t *testing.T, d *Device) (client, server *side) {
	t.Helper()
	client, server = newSide(t, d), newSide(t, d)
	link(t, d, client.qp, server.qp)
	return client, server
}

// link connects two queue pairs of a device.
func link(t *testing.T, d *Device, client, server rdma.QueuePair) {
	t.Helper()
	l, err := d.Listen(listenAt)
	check(t, err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(server, rdma.ConnParams{})
		}
		accepted <- err
	}()
	check(t, d.Connect(context.Background(), client, l.Addr().String(), rdma.ConnParams{}))
	check(t, <-accepted)
	check(t, l.Close())
}

func (s *side) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: s.mem.Bytes()[off : off+n], Region: s.mem}}
}

func (s *side) work(op rdma.Opcode, id uint64, f rdma.Flags, peer *side, n int) rdma.Work {
	return rdma.Work{
		ID: id, Op: op, Flags: f, SGL: s.sge(0, n), RemoteSTag: peer.mem.STag(), RemoteOffset: peer.mem.Base() + 1<<15,
	}
}

func (s *side) post(ws ...rdma.Work) {
	s.t.Helper()
	if n, err := s.qp.Post(ws); n != len(ws) || err != nil {
		s.t.Fatalf("Post of %d: %d, %v", len(ws), n, err)
	}
}

// TestReadsOvertaken: siw may complete a Write before an earlier Read. The provider completes work after a Read only
// when the Read is complete, also if the Read is not signalled; then its bytes are there.
func TestReadsOvertaken(t *testing.T) {
	for name, signaled := range map[string]rdma.Flags{"signalled": rdma.Signaled, "unsignalled": 0} {
		t.Run(name, func(t *testing.T) {
			fake.BeginTest(t, fake.Config{IWARP: true, Siw: true, LateReads: true})
			client, server := join(t, openFake(t, Config{}))
			for i := range server.mem.Bytes() {
				server.mem.Bytes()[i] = 7
			}
			client.post(client.work(rdma.OpRead, 1, signaled, server, 100), client.work(rdma.OpWrite, 2, rdma.Signaled, server, 0))
			if signaled != 0 {
				if c := client.next(); c.ID != 1 || c.Status != rdma.StatusOK {
					t.Fatalf("%+v completes first", c)
				}
			}
			if c := client.next(); c.ID != 2 || c.Status != rdma.StatusOK {
				t.Fatalf("%+v", c)
			}
			if b := client.mem.Bytes(); b[0] != 7 || b[99] != 7 || b[100] != 0 {
				t.Errorf("the Read has left % x", b[:101])
			}
		})
	}
}

// TestUnansweredReads: however a connection ends, a Read without an answer completes once, with an error, and so does the
// work after it, signalled or not. The sink of the Read is unchanged.
func TestUnansweredReads(t *testing.T) {
	type ends struct {
		d              *Device
		client, server *side
	}
	endings := map[string]func(*ends){
		"the owner aborts":        func(e *ends) { e.client.qp.Abort(nil) },
		"the owner disconnects":   func(e *ends) { e.client.qp.Disconnect() },
		"the owner closes":        func(e *ends) { check(e.client.t, e.client.qp.Close()) },
		"the peer aborts":         func(e *ends) { e.server.qp.Abort(nil) },
		"the peer disconnects":    func(e *ends) { e.server.qp.Disconnect() },
		"the peer closes":         func(e *ends) { check(e.client.t, e.server.qp.Close()) },
		"the device is removed":   func(*ends) { fake.Removal() },
		"the device leaves sysfs": func(e *ends) { check(e.client.t, os.Remove(e.d.node)) },
		"the device breaks":       func(*ends) { fake.Async(evDeviceFatal) },
		"a completion queue fails": func(e *ends) {
			e.d.endAll(errors.New("no room"), func(q *queuePair) bool { return rdma.QueuePair(q) == e.client.qp })
		},
		"the peer does not answer": func(*ends) { fake.Break(wrRead, wcRetryExceeded); fake.Release() },
		"nothing is completed":     func(e *ends) { fake.LoseQueuePair(); e.client.qp.Abort(nil) },
	}
	for kind, c := range kinds {
		for name, end := range endings {
			t.Run(kind+"/"+name, func(t *testing.T) {
				fake.BeginTest(t, c)
				d := openFake(t, Config{LingerTime: 20 * time.Millisecond})
				server, client := join(t, d) // in this order, so that the client's queue pair is the one made last
				fake.Hold()
				client.post(
					client.work(rdma.OpRead, 1, rdma.Signaled, server, 100), client.work(rdma.OpRead, 2, 0, server, 100),
					client.work(rdma.OpWrite, 3, 0, server, 100), client.work(rdma.OpSend, 4, rdma.Signaled, server, 100))
				end(&ends{d, client, server})
				if name == "the owner disconnects" {
					// Disconnect waits for the work, in vain.
					fake.LoseQueuePair()
				}
				for id := uint64(1); id <= 4; id++ {
					if c := client.next(); c.ID != id || c.Status == rdma.StatusOK || c.QueuePair != client.qp {
						t.Errorf("%d is due, not well: %+v", id, c)
					}
				}
				if err := <-client.gone; err == nil {
					t.Error("the connection ends as if in good order")
				}
				if n := client.cq.Poll(client.one[:]); n != 0 {
					t.Errorf("one more: %+v", client.one[0])
				}
				if i := slices.IndexFunc(client.mem.Bytes(), func(b byte) bool { return b != 0 }); i >= 0 {
					t.Errorf("octet %d of the sink has changed", i)
				}
				if n, err := client.qp.Post([]rdma.Work{client.work(rdma.OpSend, 5, 0, server, 1)}); n != 0 || !errors.Is(err, rdma.ErrDisconnected) {
					t.Errorf("Post: %d, %v", n, err)
				}
				fake.Release()
			})
		}
	}
}

// TestDoorbellFails: the library has taken all of the posted work, but cannot tell the kernel, because the queue pair has
// just left the state in which it sends. The connection ends, and everything completes once.
func TestDoorbellFails(t *testing.T) {
	for kind, c := range kinds {
		for name, reason := range map[string]error{"disconnected": syscall.ENOTCONN, "broken": syscall.EIO} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				fake.BeginTest(t, c)
				d := openFake(t, Config{LingerTime: 20 * time.Millisecond})
				server, client := join(t, d)
				fake.Hold()
				client.post(client.work(rdma.OpWrite, 1, 0, server, 100))
				fake.Fail("doorbell", reason, 0)
				client.post(client.work(rdma.OpRead, 2, rdma.Signaled, server, 100),
					client.work(rdma.OpWrite, 3, 0, server, 100), client.work(rdma.OpSend, 4, rdma.Signaled, server, 100))
				for id := uint64(1); id <= 4; id++ {
					if c := client.next(); c.ID != id || c.Status == rdma.StatusOK || c.QueuePair != client.qp {
						t.Errorf("%d is due, not well: %+v", id, c)
					}
				}
				if err := <-client.gone; err == nil || reason == syscall.EIO && !errors.Is(err, syscall.EIO) {
					t.Errorf("the connection ends with %v", err)
				}
				if n := client.cq.Poll(client.one[:]); n != 0 {
					t.Errorf("one more: %+v", client.one[0])
				}
				fake.Fail("doorbell", nil, 0)
				fake.Release()
			})
		}
	}
}

// TestPartOfABatch: the device takes only a part of a batch. The rest was not done, and can be posted again.
func TestPartOfABatch(t *testing.T) {
	for kind, c := range kinds {
		for after := range 5 {
			t.Run(fmt.Sprint(kind, " ", after), func(t *testing.T) {
				fake.BeginTest(t, c)
				client, server := join(t, openFake(t, Config{}))
				receives := make([]rdma.Receive, 5)
				for i := range receives {
					receives[i] = rdma.Receive{ID: uint64(100 + i), SGL: server.sge(i*100, 100)}
				}
				fake.Fail("ibv_post_recv", syscall.ENOMEM, after)
				n, err := server.qp.PostReceive(receives)
				if n != after || !errors.Is(err, rdma.ErrFull) {
					t.Fatalf("PostReceive: %d, %v; want %d, %v", n, err, after, rdma.ErrFull)
				}
				fake.Fail("ibv_post_recv", nil, 0)
				if n, err = server.qp.PostReceive(receives[after:]); n != 5-after || err != nil {
					t.Fatalf("PostReceive of the rest: %d, %v", n, err)
				}
				var ws []rdma.Work
				for i := range 5 {
					ws = append(ws, client.work(rdma.OpSend, uint64(i), rdma.Signaled, server, 10+i))
				}
				fake.Fail("ibv_post_send", syscall.ENOMEM, after)
				if n, err = client.qp.Post(ws); n != after || !errors.Is(err, rdma.ErrFull) {
					t.Fatalf("Post: %d, %v; want %d, %v", n, err, after, rdma.ErrFull)
				}
				fake.Fail("ibv_post_send", syscall.EIO, 0)
				if n, err = client.qp.Post(ws[after:]); n != 0 || !errors.Is(err, syscall.EIO) {
					t.Fatalf("Post: %d, %v; want 0, %v", n, err, syscall.EIO)
				}
				fake.Fail("ibv_post_send", nil, 0)
				client.post(ws[after:]...)
				for i := range 5 {
					if c := client.next(); c.ID != uint64(i) || c.Status != rdma.StatusOK {
						t.Errorf("%+v, want %d", c, i)
					}
					if c := server.next(); c.ID != uint64(100+i) || c.Bytes != 10+i || c.Status != rdma.StatusOK {
						t.Errorf("%+v, want %d of %d bytes", c, 100+i, 10+i)
					}
				}
			})
		}
	}
}

// TestWindowsRefused: what a device does not take, because it has no memory at the moment, can be posted again: a bind of a window, and its
// invalidation.
func TestWindowsRefused(t *testing.T) {
	for kind, c := range kinds {
		t.Run(kind, func(t *testing.T) {
			fake.BeginTest(t, c)
			d := openFake(t, Config{})
			if !d.Limits().Windows {
				return
			}
			client, _ := join(t, d)
			win, err := client.dom.NewWindow()
			check(t, err)
			bind := rdma.Work{ID: 1, Op: rdma.OpBind, Flags: rdma.Signaled, Window: win, SGL: client.sge(0, 4096), Access: rdma.AccessRemoteRead}
			for _, w := range []func() rdma.Work{
				func() rdma.Work { return bind },
				func() rdma.Work {
					return rdma.Work{ID: 2, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: win.STag()}
				},
			} {
				fake.Fail("ibv_post_send", syscall.ENOMEM, 0)
				if n, err := client.qp.Post([]rdma.Work{w()}); n != 0 || !errors.Is(err, rdma.ErrFull) {
					t.Fatalf("Post: %d, %v", n, err)
				}
				fake.Fail("ibv_post_send", nil, 0)
				client.post(w())
				if c := client.next(); c.Status != rdma.StatusOK {
					t.Errorf("%+v", c)
				}
			}
			check(t, win.Free())
		})
	}
}

// TestReceivesAreCounted: a queue always takes as many receives as its depth, whatever has become of earlier receives,
// and gives each back once.
func TestReceivesAreCounted(t *testing.T) {
	for _, kind := range []string{"InfiniBand", "InfiniBand, cleans"} {
		t.Run(kind, func(t *testing.T) { receivesAreCounted(t, kinds[kind]) })
	}
}

func receivesAreCounted(t *testing.T, kind fake.Config) {
	const depth = 16
	fake.BeginTest(t, kind)
	d := openFake(t, Config{})
	owner := newSide(t, d)
	q, err := d.NewReceiveQueue(owner.dom, depth)
	check(t, err)
	room := depth
	fill := func() {
		t.Helper()
		rs := make([]rdma.Receive, room+1)
		for i := range rs {
			rs[i] = rdma.Receive{ID: uint64(i), SGL: owner.sge(i*100, 100)}
		}
		if n, err := q.PostReceive(rs); n != room || !errors.Is(err, rdma.ErrFull) {
			t.Fatalf("PostReceive: %d, %v; there is room for %d", n, err, room)
		}
		room = 0
	}
	for round := range 10 { // in the last ones messages are longer than their receives
		fill()
		client := newSide(t, d)
		qp, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: owner.dom, SendCQ: owner.cq, RecvCQ: owner.cq, MaxWork: 4, Receives: q})
		check(t, err)
		link(t, d, client.qp, qp)
		for i := range round + 1 {
			_, err := client.qp.Post([]rdma.Work{client.work(rdma.OpSend, uint64(i), rdma.Signaled, owner, 100+round/8)})
			if round < 8 || !errors.Is(err, rdma.ErrDisconnected) { // which the first that is too long has brought about
				check(t, err)
			}
		}
		if round%2 == 1 {
			check(t, qp.Close())
		}
		client.close()
		check(t, qp.Close())
		for owner.cq.Poll(owner.one[:]) > 0 {
			if owner.one[0].Op == rdma.OpReceive {
				room++
			}
		}
		if room == 0 {
			t.Fatal("no message has come")
		}
	}
	check(t, q.Close())
}

// TestSharedReceivesAreKept: a connection that ends gives back each shared receive that it has taken: those whose messages
// nobody has polled, and the one of a message that has come in part, which the device completes late. So more connections
// than there are receives can follow one another.
func TestSharedReceivesAreKept(t *testing.T) {
	const depth = 8
	endings := map[string]func(client, server rdma.QueuePair){
		"the owner aborts":      func(_, server rdma.QueuePair) { server.Abort(nil) },
		"the owner disconnects": func(_, server rdma.QueuePair) { server.Disconnect() },
		"the peer disconnects":  func(client, _ rdma.QueuePair) { client.Disconnect() },
		"it is closed":          func(rdma.QueuePair, rdma.QueuePair) {},
	}
	for kind, c := range kinds {
		if c.LateFlush || c.IWARP {
			continue // LateFlush flushes nothing; over iWARP nobody uses shared receives (Limits.ReceiveWait)
		}
		for name, end := range endings {
			t.Run(kind+"/"+name, func(t *testing.T) {
				fake.BeginTest(t, c)
				d := openFake(t, Config{LingerTime: 2 * time.Second})
				owner := newSide(t, d)
				q, err := d.NewReceiveQueue(owner.dom, depth)
				check(t, err)
				free := make(map[uint64]bool) // receives that are not posted
				for i := range uint64(depth) {
					free[i] = true
				}
				for round := range 2 * depth {
					for id := range free {
						_, err := q.PostReceive([]rdma.Receive{{ID: id, SGL: owner.sge(int(id)*100, 100)}})
						check(t, err)
					}
					clear(free)
					gone := make(chan error, 1)
					client := newSide(t, d)
					qp, err := d.NewQueuePair(rdma.QueuePairConfig{
						Domain: owner.dom, SendCQ: owner.cq, RecvCQ: owner.cq, MaxWork: 4, Receives: q, Disconnected: func(err error) { gone <- err },
					})
					check(t, err)
					link(t, d, client.qp, qp)
					client.post(client.work(rdma.OpSend, 1, rdma.Signaled, owner, 50), client.work(rdma.OpSend, 2, rdma.Signaled, owner, 50))
					if !fake.Part() {
						t.Fatalf("round %d: no receive is left", round)
					}
					end(client.qp, qp)
					if name != "it is closed" {
						<-gone
					}
					check(t, qp.Close())
					client.close()
					for owner.cq.Poll(owner.one[:]) > 0 {
						if c := owner.one[0]; c.Op == rdma.OpReceive {
							free[c.ID] = true
						}
					}
					if len(free) != 3 {
						t.Fatalf("round %d: receives %v have come back, want 3", round, free)
					}
				}
				check(t, q.Close())
			})
		}
	}
}

// TestCallsFail: if a call of the libraries fails, the function that needs it fails with a reason, and nothing is left.
func TestCallsFail(t *testing.T) {
	try := func(t *testing.T, call string, do func() error) {
		t.Helper()
		fake.Fail(call, syscall.EIO, 0)
		err := do()
		fake.Fail(call, nil, 0)
		told := strings.Contains(call, "_") // the other names fail by an event, or by a missing event
		if err == nil || told && !errors.Is(err, syscall.EIO) {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	t.Run("Open", func(t *testing.T) {
		fake.BeginTest(t, fake.Config{})
		for _, call := range []string{
			"ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_alloc_pd", "ibv_create_cq", "ibv_create_qp",
			"rdma_create_event_channel",
		} {
			try(t, call, func() error {
				d, err := Open(Config{Name: fake.Name})
				if d != nil && err != nil {
					t.Errorf("%s fails: there is a device", call)
				}
				return err
			})
		}
		if _, err := Open(Config{Name: "fake1"}); err == nil {
			t.Error("a device that is not there is opened")
		}
	})
	for kind, c := range kinds {
		t.Run(kind, func(t *testing.T) {
			fake.BeginTest(t, c)
			d := openFake(t, Config{})
			s := newSide(t, d)
			try(t, "ibv_alloc_pd", func() error { _, err := d.NewDomain(); return err })
			try(t, "ibv_reg_mr", func() error { _, err := s.dom.Register(make([]byte, 1), 0); return err })
			for _, call := range []string{"ibv_create_comp_channel", "ibv_create_cq", "ibv_req_notify_cq"} {
				try(t, call, func() error { _, err := d.NewCompletionQueue(4, nil); return err })
			}
			try(t, "ibv_create_srq", func() error { _, err := d.NewReceiveQueue(s.dom, 4); return err })
			calls := []string{"ibv_create_qp", "ibv_modify_qp"}
			if c.Siw {
				calls = append(calls, "ibv_reg_mr")
			}
			for _, call := range calls {
				try(t, call, func() error {
					_, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: s.dom, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 4, MaxRecv: 4})
					return err
				})
			}
			for _, call := range []string{"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr", "rdma_listen"} {
				try(t, call, func() error { _, err := d.Listen(listenAt); return err })
			}
			l, err := d.Listen(listenAt)
			check(t, err)
			calls = []string{"rdma_create_id", "rdma_resolve_addr", "address", "rdma_resolve_route", "route", "rdma_connect"}
			for _, call := range calls {
				own := newSide(t, d)
				try(t, call, func() error { return d.Connect(context.Background(), own.qp, l.Addr().String(), rdma.ConnParams{}) })
				own.close()
			}
			impatient := openFake(t, Config{ConnectTimeout: 20 * time.Millisecond})
			own := newSide(t, impatient)
			try(t, "silence", func() error {
				return impatient.Connect(context.Background(), own.qp, l.Addr().String(), rdma.ConnParams{})
			})
			own.close()
			calls = []string{"rdma_init_qp_attr", "rdma_accept"}
			if !c.IWARP {
				calls = append(calls, "ibv_modify_qp")
			}
			for _, call := range calls {
				here, there := newSide(t, d), newSide(t, d)
				refused := make(chan error, 1)
				go func() { refused <- d.Connect(context.Background(), there.qp, l.Addr().String(), rdma.ConnParams{}) }()
				r, err := l.Accept()
				check(t, err)
				try(t, call, func() error { return r.Accept(here.qp, rdma.ConnParams{}) })
				if err := <-refused; err == nil {
					t.Errorf("%s fails: the peer is connected", call)
				}
				here.close()
				there.close()
			}
			check(t, l.Close())
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept of a listener that is closed: %v", err)
			}
		})
	}
}

// TestFailsWithoutReason: siw's library may fail to make a queue without setting errno. That is an error nevertheless.
func TestFailsWithoutReason(t *testing.T) {
	fake.BeginTest(t, kinds["siw"])
	d := openFake(t, Config{})
	s := newSide(t, d)
	for call, do := range map[string]func() error{
		"ibv_create_cq": func() error { _, err := d.NewCompletionQueue(4, nil); return err },
		"ibv_create_qp": func() error {
			_, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: s.dom, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 4, MaxRecv: 4})
			return err
		},
	} {
		fake.Fail(call, syscall.ESTALE, 0)
		if err := do(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s fails: %v", call, err)
		}
		fake.Fail(call, nil, 0)
	}
}

// TestPortTaken: the connection manager draws a port that some TCP socket has, which siw says when it connects. Another
// port is drawn, and the queue pair is connected.
func TestPortTaken(t *testing.T) {
	fake.BeginTest(t, kinds["siw"])
	d := openFake(t, Config{})
	l, err := d.Listen(listenAt)
	check(t, err)
	here, there := newSide(t, d), newSide(t, d)
	fake.Fail("rdma_connect", syscall.EADDRINUSE, 0)
	connected := make(chan error, 1)
	go func() { connected <- d.Connect(context.Background(), there.qp, l.Addr().String(), rdma.ConnParams{}) }()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(here.qp, rdma.ConnParams{})
		}
		accepted <- err
	}()
	err = <-connected
	fake.Fail("rdma_connect", nil, 0)
	check(t, l.Close())
	if accepted := <-accepted; err != nil || accepted != nil {
		t.Errorf("connect: %v; accept: %v", err, accepted)
	}
	here.close()
	there.close()
}

// TestLost: when a device is gone, its connections and listeners end, its owner is told once, and it can be closed.
func TestLost(t *testing.T) {
	for name, lose := range map[string]func(*Device){
		"sysfs":                  func(d *Device) { _ = os.Remove(d.node) },
		"connection manager":     func(*Device) { fake.Removal() },
		"fatal error":            func(*Device) { fake.Async(evDeviceFatal) },
		"all at once, and twice": func(d *Device) { fake.Async(evDeviceFatal); _ = os.Remove(d.node); fake.Removal(); fake.Removal() },
	} {
		t.Run(name, func(t *testing.T) {
			fake.BeginTest(t, fake.Config{})
			var mu sync.Mutex
			var times int
			lost := make(chan error, 8)
			d := openFake(t, Config{Lost: func(err error) {
				mu.Lock()
				times++
				mu.Unlock()
				lost <- err
			}})
			l, err := ListenAll([]rdma.Device{d}, listenAt)
			check(t, err)
			client, server := join(t, d)
			if name != "sysfs" {
				fake.Async(evPortError) // is only told
			}
			lose(d)
			for _, s := range []*side{client, server} {
				if err := <-s.gone; err == nil {
					t.Error("the connection ends as if in good order")
				}
			}
			if err := <-lost; err == nil {
				t.Error("no reason is given")
			}
			if _, err := l[0].Accept(); err == nil || errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept: %v", err)
			}
			if _, err := d.Listen(listenAt); err == nil {
				t.Error("one can listen on a device that is gone")
			}
			check(t, l[0].Close()) // waits for the device, which closes it, too
			mu.Lock()
			defer mu.Unlock()
			if times != 1 {
				t.Errorf("Lost was called %d times", times)
			}
		})
	}
}

// TestEndsWhileMade: what ends a connection while it is being made ends it as soon as it is made.
func TestEndsWhileMade(t *testing.T) {
	for name, end := range map[string]func(client, server *side) (ended *side){
		"queue pair": func(client, _ *side) *side {
			fake.Async(evQPFatal) // of the client's, which is made last
			for q := client.qp.(*queuePair); ; runtime.Gosched() {
				q.mu.Lock()
				known := q.early != nil
				q.mu.Unlock()
				if known {
					return client
				}
			}
		},
		"device": func(_, server *side) *side {
			server.dev.removed()
			return server
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake.BeginTest(t, fake.Config{})
			d := openFake(t, Config{})
			far := d
			if name == "device" { // only that of the server goes
				far = openFake(t, Config{})
			}
			l, err := far.Listen(listenAt)
			check(t, err)
			server, client := newSide(t, far), newSide(t, d)
			connected := make(chan error, 1)
			go func() { connected <- d.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{}) }()
			r, err := l.Accept()
			check(t, err)
			ended := end(client, server)
			check(t, r.Accept(server.qp, rdma.ConnParams{}))
			check(t, <-connected)
			for _, s := range []*side{client, server} {
				if err := <-s.gone; err == nil && s == ended {
					t.Error("the connection ends as if in good order")
				}
			}
			check(t, l.Close())
		})
	}
}

// TestQueuePairEvent: an asynchronous event of one queue pair ends only that queue pair.
func TestQueuePairEvent(t *testing.T) {
	fake.BeginTest(t, fake.Config{})
	d := openFake(t, Config{})
	first, _ := join(t, d)
	_, second := join(t, d) // made last
	fake.Async(evQPFatal)
	if err := <-second.gone; err == nil {
		t.Error("the connection ends as if in good order")
	}
	select {
	case err := <-first.gone:
		t.Errorf("another connection ends with %v", err)
	default:
	}
}

// TestReasonOfOffence: the completion of a receive that is too short says why a connection has ended, whatever the provider
// hears first.
func TestReasonOfOffence(t *testing.T) {
	for kind, c := range kinds {
		for _, first := range []string{"completion", "event or end"} {
			t.Run(kind+"/"+first, func(t *testing.T) {
				fake.BeginTest(t, c)
				d := openFake(t, Config{})
				client, server := join(t, d)
				_, err := server.qp.PostReceive([]rdma.Receive{{ID: 1, SGL: server.sge(0, 8)}})
				check(t, err)
				q, cq := server.qp.(*queuePair), server.cq.(*completionQueue)
				d.mu.Lock() // ends by events wait
				cq.mu.Lock()
				client.post(client.work(rdma.OpSend, 2, 0, server, 9))
				if first == "completion" {
					for q.failure.Load() == nil {
						cq.harvest()
					}
					cq.mu.Unlock()
					d.mu.Unlock()
				} else {
					d.mu.Unlock()
					for !q.hasEnded() {
						runtime.Gosched()
					}
					cq.mu.Unlock()
				}
				if err := <-server.gone; err == nil || !strings.Contains(err.Error(), "Receive: ") {
					t.Errorf("the connection ends with %v", err)
				}
			})
		}
	}
}

func (q *queuePair) hasEnded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state == ended
}

// TestPeerEnded: a queue pair knows that its peer has ended the connection as soon as the connection manager has the
// event, even if the goroutine that waits for events has not read it yet.
func TestPeerEnded(t *testing.T) {
	for kind, c := range kinds {
		for name, end := range map[string]func(q rdma.QueuePair){
			"aborts": func(q rdma.QueuePair) { q.Abort(nil) }, "disconnects": func(q rdma.QueuePair) { q.Disconnect() },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				fake.BeginTest(t, c)
				client, server := join(t, openFake(t, Config{LingerTime: time.Millisecond})) // the client waits for the peer in vain
				q := server.qp.(rdma.PeerEnder)
				if q.PeerEnded() {
					t.Error("the peer has ended, with the connection open")
				}
				fake.Mute()
				end(client.qp)
				<-client.gone // Disconnected was called
				if !q.PeerEnded() {
					t.Error("the peer is there, after it has ended the connection")
				}
				fake.Unmute()
				<-server.gone
				if !q.PeerEnded() {
					t.Error("the peer is there, with the connection closed")
				}
			})
		}
	}
}

// TestDisconnectWaits: Disconnect waits for posted work, also if the last element is not signalled, but no longer than
// LingerTime.
func TestDisconnectWaits(t *testing.T) {
	for kind, c := range kinds {
		t.Run(kind+"/in time", func(t *testing.T) {
			fake.BeginTest(t, c)
			client, server := join(t, openFake(t, Config{}))
			fake.Hold()
			client.post(client.work(rdma.OpWrite, 1, 0, server, 100))
			client.mem.Bytes()[0] = 9
			client.qp.Disconnect()
			fake.Release()
			if err := <-client.gone; err != nil {
				t.Errorf("the connection ends with %v", err)
			}
			if server.mem.Bytes()[1<<15] != 9 {
				t.Error("what was posted before is not done")
			}
		})
		t.Run(kind+"/late", func(t *testing.T) {
			fake.BeginTest(t, c)
			client, server := join(t, openFake(t, Config{LingerTime: time.Millisecond}))
			fake.Hold()
			client.post(client.work(rdma.OpWrite, 1, rdma.Signaled, server, 100))
			client.qp.Disconnect()
			if err := <-client.gone; err == nil {
				t.Error("the connection ends as if in good order, with work under way")
			}
			fake.Release()
		})
	}
}

// TestLastReceiveUntold: a device does not say that a queue pair has taken its last shared receive. The connection ends
// after LingerTime, and the log says what may be lost.
func TestLastReceiveUntold(t *testing.T) {
	fake.BeginTest(t, fake.Config{LateFlush: true})
	d := openFake(t, Config{LingerTime: time.Millisecond})
	var log bytes.Buffer // written to before Disconnected is called
	d.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	owner, client := newSide(t, d), newSide(t, d)
	receives, err := d.NewReceiveQueue(owner.dom, 4)
	check(t, err)
	gone := make(chan error, 1)
	qp, err := d.NewQueuePair(rdma.QueuePairConfig{
		Domain: owner.dom, SendCQ: owner.cq, RecvCQ: owner.cq, MaxWork: 4, Receives: receives, Disconnected: func(err error) { gone <- err },
	})
	check(t, err)
	link(t, d, client.qp, qp)
	qp.Abort(nil)
	<-gone
	if !strings.Contains(log.String(), "shared receives may be lost") {
		t.Errorf("the log: %s", log.String())
	}
	check(t, qp.Close())
	check(t, receives.Close())
}

// TestPolling: before it sleeps, the goroutine of an armed queue polls as long as completions come quickly, unless
// polling is switched off. The counters say so.
func TestPolling(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one nobody polls
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			fake.BeginTest(t, fake.Config{})
			d := openFake(t, Config{Spin: 20 * time.Millisecond})
			SetPolling(d, on)
			client, server := join(t, d)
			ask := func() {
				client.post(client.work(rdma.OpWrite, 1, rdma.Signaled, server, 8))
				if c := client.next(); c.Status != rdma.StatusOK {
					t.Fatalf("%+v", c)
				}
			}
			for n := 0; n < 3 || on && d.Counters().PollingInVain == 0; n++ { // until a completion has come soon after a sleep
				ask()
				// It may sleep already, and does so until it is asked again.
				for sleeps, wait := d.Counters().Sleeps, 0; d.Counters().Sleeps == sleeps && client.cq.Arm() && wait < 100; wait++ {
					time.Sleep(time.Millisecond)
				}
			}
			c := d.Counters()
			if c.Sleeps == 0 || (c.PollingInVain > 0) != on {
				t.Errorf("%d sleeps, polled %d times with success and %d in vain", c.Sleeps, c.PollingFound, c.PollingInVain)
			}
		})
	}
}

// TestMostProcessorsAreLeft: at most half of the processors poll.
func TestMostProcessorsAreLeft(t *testing.T) {
	fake.BeginTest(t, fake.Config{})
	d := openFake(t, Config{Spin: time.Hour})
	c, err := d.NewCompletionQueue(4, nil)
	check(t, err)
	spinning.Add(1 << 20)
	defer spinning.Add(-1 << 20)
	if c.(*completionQueue).poll() {
		t.Error("it has found something")
	}
	check(t, c.Close())
}

// TestInUse: objects that are in use cannot be closed.
func TestInUse(t *testing.T) {
	fake.BeginTest(t, fake.Config{})
	d := openFake(t, Config{})
	s := newSide(t, d)
	q, err := d.NewReceiveQueue(s.dom, 4)
	check(t, err)
	qp, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: s.dom, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 4, Receives: q})
	check(t, err)
	for what, close := range map[string]func() error{"the device": d.Close, "a completion queue": s.cq.Close, "a receive queue": q.Close, "a domain": s.dom.Close} {
		if err := close(); err == nil {
			t.Errorf("%s is closed, and in use", what)
		}
	}
	check(t, qp.Close())
	check(t, q.Close())
}
