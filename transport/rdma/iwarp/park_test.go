package iwarp

import (
	"bytes"
	"net"
	"runtime"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// crowd is an end with a shared queue of receives, and connections that use it.
type crowd struct {
	*end
	size int // of a receive
}

func newCrowd(t *testing.T, depth, size int) *crowd {
	c := &crowd{newEnd(t, setup{shared: true, depth: depth}), size}
	for i := range depth {
		c.recv(uint64(i), i*size, size)
	}
	t.Cleanup(c.close)
	return c
}

// join adds a connection with a peer whose octets the test writes itself.
func (c *crowd) join(t *testing.T) (*queuePair, *peer) {
	t.Helper()
	qp, err := c.dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: c.dom, SendCQ: c.cq, RecvCQ: c.cq, MaxWork: 16, Receives: c.srq,
	})
	check(t, err)
	ours, theirs := socketPair(t)
	q := qp.(*queuePair)
	check(t, q.claim())
	check(t, q.start(ours, &agreed{crc: true, ird: 16, ord: 16}))
	p := &peer{t: t, c: theirs}
	t.Cleanup(func() {
		theirs.Close()
		check(t, qp.Close())
	})
	return q, p
}

// message waits for the next message, of q, and gives its receive back.
func (c *crowd) message(q *queuePair) []byte {
	c.t.Helper()
	m := c.next()
	if m.Status != rdma.StatusOK || m.Op != rdma.OpReceive || m.QueuePair != q {
		c.t.Fatalf("%+v, want a message", m)
	}
	b := bytes.Clone(c.mem.Bytes()[int(m.ID)*c.size:][:m.Bytes])
	c.recv(m.ID, int(m.ID)*c.size, c.size)
	return b
}

// Unfinished messages keep at most half of the receives, however many connections begin them. Messages that
// end are complete.
func TestUnfinishedMessages(t *testing.T) {
	const depth, size, many = 8, 16 << 10, 30
	whole := make([]byte, 15000)
	for i := range whole {
		whole[i] = byte(i*7 + i>>8)
	}
	segment := func(p *peer, off, n int, last bool) []byte {
		b := p.f.AppendUntagged(nil, ddp.Untagged{
			Control: p.f.Control(ddp.Send, last), MSN: 1, MO: uint32(off), Payload: n,
		})
		return ddp.AppendFPDUTrailer(append(b, whole[off:off+n]...), 0)
	}
	for name, cut := range map[string]struct {
		first func(p *peer) []byte
		rest  func(p *peer) []byte
	}{
		"between segments": {
			func(p *peer) []byte { return segment(p, 0, 700, false) },
			func(p *peer) []byte { return segment(p, 700, len(whole)-700, true) },
		},
		"within a segment": {
			func(p *peer) []byte { return segment(p, 0, len(whole), true)[:6000] },
			func(p *peer) []byte { return segment(p, 0, len(whole), true)[6000:] },
		},
		"within the second segment": {
			func(p *peer) []byte {
				return append(segment(p, 0, 800, false), segment(p, 800, len(whole)-800, true)[:3000]...)
			},
			func(p *peer) []byte { return segment(p, 800, len(whole)-800, true)[3000:] },
		},
		"within a header": {
			func(p *peer) []byte { return segment(p, 0, len(whole), true)[:3] },
			func(p *peer) []byte { return segment(p, 0, len(whole), true)[3:] },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, depth, size)
			good, ours := c.join(t)
			msn := uint32(0)
			hello := func() {
				t.Helper()
				msn++
				ours.write(ours.send(ddp.Send, 0, msn, "good"))
				if b := c.message(good); string(b) != "good" {
					t.Fatalf("%q", b)
				}
			}
			var qs [many]*queuePair
			var ps [many]*peer
			for i := range many {
				qs[i], ps[i] = c.join(t)
				_, err := ps[i].c.Write(cut.first(ps[i]))
				check(t, err)
				hello()
			}
			for range 100 {
				hello()
			}
			r := good.recv
			for i := range many {
				_, err := ps[i].c.Write(cut.rest(ps[i]))
				check(t, err)
				if b := c.message(qs[i]); !bytes.Equal(b, whole) {
					t.Fatalf("message %d is not what was sent", i)
				}
				hello()
			}
			for { // all are back, as soon as the readers have come to rest
				if r.Len() == depth {
					break
				}
				runtime.Gosched()
			}
		})
	}
}

// A connection that waits, in the middle of an FPDU or between two, keeps what has come, not an input buffer.
func TestIdleKeepsNoBuffer(t *testing.T) {
	e := newEnd(t, setup{})
	q := e.qp.(*queuePair)
	ours, theirs := socketPair(t)
	check(t, q.claim())
	check(t, q.open(ours, &agreed{crc: true, ird: 16, ord: 16}))
	e.recv(1, 0, 4096)
	p := &peer{t: t, c: theirs}
	text := bytes.Repeat([]byte("some octets "), 100)
	whole := ddp.AppendFPDUTrailer(p.send(ddp.Send, 0, 1, string(text)), 0)
	for at, cut := 0, 0; at < len(whole); at = cut { // the test does what the reader would
		cut = min(at+500, len(whole))
		_, err := theirs.Write(whole[at:cut])
		check(t, err)
		for drained := false; !drained; {
			drained, err = q.batch()
			check(t, err)
		}
		x := &q.rx
		if x.in != nil {
			t.Fatalf("after %d of %d octets the buffer stays", cut, len(whole))
		}
		if cut < len(whole) && !bytes.Equal(x.rest, whole[:cut]) {
			t.Fatalf("after %d octets %d are kept", cut, len(x.rest))
		}
	}
	e.want(rdma.OpReceive, 1)
	if got := e.mem.Bytes()[:len(text)]; !bytes.Equal(got, text) {
		t.Errorf("%q is received", got)
	}
	go q.run()
	check(t, theirs.Close())
	<-e.gone
	e.close()
}

// New connections end connections that have not sent their Request, the oldest first.
func TestStartingGivesWay(t *testing.T) {
	dev, err := Open(Config{StartupTimeout: time.Hour}) // which ends none
	check(t, err)
	defer dev.Close()
	rl, err := dev.Listen("127.0.0.1:0")
	check(t, err)
	defer rl.Close()
	l := rl.(*listener)
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		check(t, err)
		return c
	}
	const more = 10
	for len(idle) < maxStarting+more {
		idle = append(idle, dial())
	}
	ended := make(chan int)
	for i, c := range idle {
		go func() {
			_, _ = c.Read(make([]byte, 1)) // there is nothing to be read
			ended <- i
		}()
	}
	for range more {
		if i := <-ended; i >= more {
			t.Errorf("connection %d gives way, and %d have to", i, more)
		}
	}
	c := dial()
	defer c.Close()
	if i := <-ended; i != more {
		t.Errorf("connection %d gives way, want %d", i, more)
	}
	_, err = c.Write((&ddp.StartFrame{CRC: true, Revision: 1}).AppendTo(nil))
	check(t, err)
	r, err := l.Accept()
	check(t, err)
	if r.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("%v is accepted, want %v", r.RemoteAddr(), c.LocalAddr())
	}
	check(t, r.Reject(nil))
	for _, c := range idle {
		c.Close()
	}
	for range maxStarting - 1 {
		<-ended
	}
}
