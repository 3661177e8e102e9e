//go:build verbs && !guest && cgo && linux

package iser

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
	"oneshot/transport/rdma/verbs/fake"
)

// These tests run over the devices of package fake: what is said of the provider in user space holds over the kernel's
// devices, too.

func init() { fake.Install() }

// fakes are the kinds of device whose differences matter here.
var fakes = map[string]fake.Config{
	"InfiniBand": {}, "InfiniBand, cleans": {Clean: true}, "iWARP card": {IWARP: true}, "siw": {IWARP: true, Siw: true},
}

// openFake opens the device of a test, which closes it, and checks at the end of the test that no object is left.
func openFake(t *testing.T, c fake.Config) rdma.Device {
	t.Helper()
	fake.BeginTest(t, c)
	d, err := verbs.Open(verbs.Config{
		Name: fake.Name, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), LingerTime: 50 * time.Millisecond,
	})
	check(t, err)
	return d
}

// dialFake connects to b over its own device. Answers do not invalidate the client's STag, which not every device could.
func dialFake(b *bench, d rdma.Device) *client {
	b.t.Helper()
	return dialSaying(b, d, noZBVA|noInvalidate)
}

// dialSaying is dialFake with flags of the private data.
func dialSaying(b *bench, d rdma.Device, flags byte) *client {
	b.t.Helper()
	c := dial(b.t, keptDevice{d}, b.l.Addr().String(), rdma.ConnParams{PrivateData: []byte{flags, 0, 0, 0}})
	if c.window != nil {
		check(b.t, c.window.Free())
		c.window = nil
	}
	return c
}

func TestVerbsNewSessionFindsNoReservation(t *testing.T) {
	for kind, c := range fakes {
		t.Run(kind, func(t *testing.T) {
			d := openFake(t, c)
			l := &late{Device: d, told: make(chan struct{})}
			b := newBenchOn(t, 64<<20, l, "127.0.0.1:0")
			newSessionFindsNoReservation(t, l, func() *client { return dialFake(b, d) })
		})
	}
}

// TestVerbsReadsWithoutAnswer: an initiator that answers no RDMA Read loses its connection, and the target has the memory
// back, also where nobody is pinged.
func TestVerbsReadsWithoutAnswer(t *testing.T) {
	const readTimeout = 20
	for kind, k := range fakes {
		t.Run(kind, func(t *testing.T) {
			d := openFake(t, k)
			b := newBenchOn(t, 64<<20, d, "127.0.0.1:0")
			b.node.SetLimits(iscsi.Limits{Connections: 10, Sessions: 10, LoginTimeout: 15, ReadTimeout: readTimeout})
			c := dialFake(b, d)
			c.logIn("")
			c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
			fake.HoldReads()
			t.Cleanup(fake.Release)
			c.start(rw16(0x8a, 0, 8), true, false, 0, 4096, 0)
			c.do(make([]byte, 6), false, false, 0, 0) // the target has taken the WRITE before this
			for range readTimeout {
				b.node.Tick()
			}
			c.do(make([]byte, 6), false, false, 0, 0)
			b.node.Tick()
			for {
				if _, ok := c.receive(); !ok {
					break
				}
			}
			<-c.over
			wait(func() bool { return b.node.Connections() == 0 && b.pool.Stats().Leases == b.leases })
		})
	}
}

// TestVerbsReasonOfOffence: the log says why a connection has ended with a message that is longer than any receive, also if
// the target notices first that it cannot send any more, or that the queue pair has failed.
func TestVerbsReasonOfOffence(t *testing.T) {
	for kind, k := range fakes {
		for first, notice := range map[string]func(m *Mover){
			"completion": func(m *Mover) {
				m.conn.Unlock()
				defer m.conn.Lock()
				wait(func() bool {
					m.conn.Lock()
					defer m.conn.Unlock()
					return m.Dead()
				})
			},
			"end of the connection": func(m *Mover) {
				wait(m.QueuePair().(rdma.PeerEnder).PeerEnded)
			},
			"refused send": func(m *Mover) {
				wait(m.QueuePair().(rdma.PeerEnder).PeerEnded)
				wait(func() bool {
					m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
					m.Flush()
					return m.Dead()
				})
			},
		} {
			t.Run(kind+"/"+first, func(t *testing.T) {
				d := openFake(t, k)
				b := newBenchOn(t, 64<<20, d, "127.0.0.1:0")
				own, err := d.Listen("127.0.0.1:0") // whose connections the test accepts
				check(t, err)
				serving := b.l
				b.l = own
				accepted := make(chan *Mover, 1)
				go func() {
					req, err := own.Accept()
					if err != nil || !b.node.Admit() {
						close(accepted)
						return
					}
					m := b.target.newMover(req)
					_ = m.accept(req, nil, nil)
					accepted <- m
				}()
				c := dialFake(b, d)
				b.l = serving
				check(t, own.Close())
				m := <-accepted
				m.conn.Lock()
				_, err = c.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: c.buf[:slotLen+1], Region: c.region}}}})
				check(t, err)
				notice(m)
				m.conn.Unlock()
				wait(func() bool { return b.node.Connections() == 0 })
				if said := b.said.String(); !strings.Contains(said, `msg="connection lost"`) || !strings.Contains(said, "Receive: ") {
					t.Errorf("the log does not say what was wrong with the message:\n%s", said)
				}
			})
		}
	}
}

// TestVerbsConnections: more connections without login than there are shared receives, each of which takes one for a
// message whose rest never comes, and more than limits.memory has receives for, where each connection has its own. A
// session goes on, and others log in.
func TestVerbsConnections(t *testing.T) {
	const (
		many   = 1100
		memory = 64 << 20
		share  = memory / 8              // of the receives of those that have not logged in
		most   = share + share/4 + 1<<20 // with those that give way, and what the session uses
	)
	for kind, k := range fakes {
		t.Run(kind, func(t *testing.T) {
			d := openFake(t, k)
			b := newBenchOn(t, memory, d, "127.0.0.1:0")
			b.node.SetLimits(iscsi.Limits{Connections: 4096, Sessions: 100, LoginTimeout: 3600, ReadTimeout: 70})
			session := func(port byte) *client {
				c := dialFake(b, d)
				c.isid = port
				c.logIn("")
				c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
				return c
			}
			works := func(c *client, seed byte) {
				t.Helper()
				const n = 64 << 10
				pattern(c.buf[:n], seed)
				want := bytes.Clone(c.buf[:n])
				if r := c.do(rw16(0x8a, 0, n/blockSize), true, false, n, 0); r.Status() != 0 {
					t.Fatalf("status of a WRITE: %#x", r.Status())
				}
				clear(c.buf[:n])
				if r := c.do(rw16(0x88, 0, n/blockSize), false, true, n, 0); r.Status() != 0 || !bytes.Equal(c.buf[:n], want) {
					t.Fatalf("status of a READ: %#x; or other bytes than written", r.Status())
				}
			}
			innocent := session(1)
			works(innocent, 0)
			before := b.pool.Stats().InUse

			domain, err := d.NewDomain()
			check(t, err)
			cq, err := d.NewCompletionQueue(4*many, nil)
			check(t, err)
			peers := make([]rdma.QueuePair, 0, many)
			t.Cleanup(func() {
				for _, p := range peers {
					_ = p.Close()
				}
				_ = cq.Close()
				_ = domain.Close()
			})
			for i := range many {
				p, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: domain, SendCQ: cq, RecvCQ: cq, MaxWork: 1, MaxRecv: 1})
				check(t, err)
				peers = append(peers, p)
				if d.Connect(t.Context(), p, b.l.Addr().String(), rdma.ConnParams{}) != nil {
					continue // too many are giving way
				}
				if b.target.Limits().ReceiveWait && !fake.Part() {
					t.Fatalf("no receive is left for others after %d connections", i)
				}
				if more := b.pool.Stats().InUse - before; more > most {
					t.Fatalf("%d connections without login have %d bytes of I/O memory, want %d at most", i, more, most)
				}
				if i%100 == 0 {
					works(innocent, byte(i))
				}
			}
			starting := 128
			if !b.target.Limits().ReceiveWait {
				starting = share / mem.RoundUp(b.target.cfg.receives()*slotLen)
			}
			wait(func() bool { return b.node.Connections() <= 1+starting }) // the others have given way
			for port := range byte(5) {
				works(session(10+port), port)
			}
			works(innocent, 1)
		})
	}
}
