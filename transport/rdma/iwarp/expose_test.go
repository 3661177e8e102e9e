package iwarp

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// shown is an Exposed of memory, with as much beside it at either end, that counts its calls.
type shown struct {
	mu     sync.Mutex
	b      []byte
	from   int64
	reads  int
	writes int
	err    error // of all calls
}

func newShown(n int) *shown { return &shown{b: make([]byte, 3*n), from: int64(n)} }

func (s *shown) ReadAt(b []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	copy(b, s.b[s.from+off:])
	return s.err
}

func (s *shown) WriteAt(b []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	copy(s.b[s.from+off:], b)
	return s.err
}

// octets returns a copy of all, and how often something was written.
func (s *shown) octets() ([]byte, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b), s.writes
}

func expose(t *testing.T, e *end, x rdma.Exposed, n int64, a rdma.Access) rdma.STag {
	t.Helper()
	s, err := e.qp.(rdma.Exposer).Expose(x, n, a)
	check(t, err)
	return s
}

const bothWays = rdma.AccessRemoteRead | rdma.AccessRemoteWrite

// A peer writes and reads what is exposed, in operations that take many FPDUs and in small ones, and sees what it has
// written before.
func TestExposed(t *testing.T) {
	const n = 2 << 20
	for name, s := range map[string]setup{"small FPDUs": {device: Config{MaxULPDU: 1400}}, "large FPDUs": {}} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, s)
			x := newShown(n)
			tag := expose(t, server, x, n, bothWays)
			client.fill(0, n, 5)
			var ws []rdma.Work
			for _, at := range [][2]int{{0, 1 << 20}, {1 << 20, 1}, {1<<20 + 1, 300}, {1<<20 + 301, 1<<20 - 301}} {
				ws = append(ws, rdma.Work{Op: rdma.OpWrite, SGL: client.sge(at[0], at[1]), RemoteSTag: tag, RemoteOffset: uint64(at[0])})
			}
			for i := range 4 {
				ws = append(ws, rdma.Work{
					ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(n+i<<19, 1<<19), RemoteSTag: tag, RemoteOffset: uint64(i << 19),
				})
			}
			client.post(ws...)
			for i := range uint64(4) {
				client.want(rdma.OpRead, i)
			}
			if want := client.mem.Bytes()[:n]; !bytes.Equal(client.mem.Bytes()[n:2*n], want) {
				t.Error("other octets are read than were written")
			}
			got, _ := x.octets()
			if !bytes.Equal(got[n:2*n], client.mem.Bytes()[:n]) || !bytes.Equal(got[:n], make([]byte, n)) || !bytes.Equal(got[2*n:], make([]byte, n)) {
				t.Error("other octets are written than were sent, or elsewhere")
			}
		})
	}
}

// tagged is the FPDU of a Write, with its CRC.
func (p *peer) tagged(s rdma.STag, to uint64, payload []byte) []byte {
	b := ddp.AppendTagged(nil, ddp.Tagged{Control: p.f.Control(ddp.Write, true), STag: uint32(s), TO: to, Payload: len(payload)})
	return ddp.AppendFPDUTrailer(append(b, payload...), 0)
}

// What is exposed is reached by nobody else, with the rights that were given, within its bounds, and not any more
// when it was withdrawn. The peer hears why, and nothing changes.
func TestExposedRefuses(t *testing.T) {
	const n = 64 << 10
	for name, c := range map[string]struct {
		access rdma.Access
		write  func(p *peer, s rdma.STag) // instead of a Read of 8 octets at 0
		read   int
		alter  func(q *queuePair, x *shown, s rdma.STag) rdma.STag
		cause  ddp.Cause
	}{
		"a Write without the right": {rdma.AccessRemoteRead, func(p *peer, s rdma.STag) { _, _ = p.c.Write(p.tagged(s, 0, []byte("12345678"))) }, 0, nil, ddp.MakeCause((&stag.Error{Op: stag.RemoteWrite, Fault: stag.AccessRights}).Terminate())},
		"a Read without the right":  {rdma.AccessRemoteWrite, nil, 8, nil, ddp.MakeCause((&stag.Error{Op: stag.RemoteRead, Fault: stag.AccessRights}).Terminate())},
		"a Write beyond the end":    {bothWays, func(p *peer, s rdma.STag) { _, _ = p.c.Write(p.tagged(s, n-4, []byte("12345678"))) }, 0, nil, ddp.TaggedBounds},
		"a Write before the start":  {bothWays, func(p *peer, s rdma.STag) { _, _ = p.c.Write(p.tagged(s, 1<<64-4, []byte("1234"))) }, 0, nil, ddp.TaggedBounds},
		"a Read beyond the end":     {bothWays, nil, n + 1, nil, ddp.ProtBounds},
		"another key":               {bothWays, nil, 8, func(_ *queuePair, _ *shown, s rdma.STag) rdma.STag { return s ^ 1 }, ddp.ProtInvalidSTag},
		"withdrawn": {bothWays, nil, 8, func(q *queuePair, _ *shown, s rdma.STag) rdma.STag {
			q.Withdraw(s)
			return s
		}, ddp.ProtInvalidSTag},
		"a Write, withdrawn": {bothWays, func(p *peer, s rdma.STag) { _, _ = p.c.Write(p.tagged(s, 0, []byte("12345678"))) }, 0, func(q *queuePair, _ *shown, s rdma.STag) rdma.STag {
			q.Withdraw(s)
			return s
		}, ddp.TaggedInvalidSTag},
		"a Read that the owner refuses": {bothWays, nil, 8, func(_ *queuePair, x *shown, s rdma.STag) rdma.STag {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.err = errors.New("refused")
			return s
		}, ddp.MakeCause((&stag.Error{Op: stag.RemoteRead, Fault: stag.AccessRights}).Terminate())},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := withPeer(t, setup{}, 0, true)
			x := newShown(n)
			s := expose(t, e, x, n, c.access)
			if c.alter != nil {
				s = c.alter(e.qp.(*queuePair), x, s)
			}
			if c.write != nil {
				c.write(p, s)
			} else {
				p.write(readRequest(1, s, c.read))
			}
			if m := p.terminate(); m.Cause != c.cause {
				t.Errorf("the cause is %v, want %v", m.Cause, c.cause)
			}
			if b, writes := x.octets(); writes != 0 || !bytes.Equal(b, make([]byte, 3*n)) {
				t.Errorf("%d writes", writes)
			}
		})
	}
	// Another connection of the same domain does not reach it.
	client, server := pair(t, setup{})
	other := newEndOn(t, server.dev, setup{})
	defer func() {
		check(t, other.qp.Close())
		check(t, other.cq.Close())
		check(t, other.mem.Deregister())
	}()
	x := newShown(n)
	s := expose(t, other, x, n, bothWays)
	client.post(rdma.Work{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(0, 8), RemoteSTag: s})
	if c := client.next(); c.Status != rdma.StatusRemoteAccess || !errors.Is(<-client.gone, rdma.ErrRemoteAccess) || x.reads > 0 {
		t.Errorf("%+v, %d reads", c, x.reads)
	}
}

// A Write that the network has damaged changes nothing, however its octets come.
func TestExposedDamaged(t *testing.T) {
	const n = 128 << 10
	for name, cut := range map[string]int{"at once": 0, "in parts": 100} {
		t.Run(name, func(t *testing.T) {
			e, p := withPeer(t, setup{}, 0, true)
			x := newShown(n)
			s := expose(t, e, x, n, bothWays)
			payload := bytes.Repeat([]byte{1}, 60<<10)
			good, bad := p.tagged(s, 0, payload), p.tagged(s, 60<<10, payload)
			bad[len(bad)/2] ^= 1
			_, err := p.c.Write(good)
			check(t, err)
			if cut > 0 {
				_, err = p.c.Write(bad[:cut])
				check(t, err)
				p.write() // nothing, but another segment of TCP follows
			}
			_, err = p.c.Write(bad[cut:])
			check(t, err)
			if m := p.terminate(); m.Cause != ddp.MPACRC {
				t.Errorf("%v", m.Cause)
			}
			got, writes := x.octets()
			if want := append(make([]byte, n), payload...); writes != 1 || !bytes.Equal(got[:len(want)], want) || !bytes.Equal(got[len(want):], make([]byte, 3*n-len(want))) {
				t.Errorf("%d writes", writes)
			}
		})
	}
}

// A Read Response that is under way when its STag is withdrawn, and one that has left, cost no STag for good.
func TestExposedFreesSTags(t *testing.T) {
	const n = 4 << 20
	e, p := withPeer(t, setup{device: Config{}}, 0, true)
	x := newShown(n)
	table := e.dev.(*Device).memory.Table
	s := expose(t, e, x, n, rdma.AccessRemoteRead)
	p.write(readRequest(1, s, n))
	first := p.read()
	e.qp.(rdma.Exposer).Withdraw(s)
	for got := first.PayloadLen(); got < n; got += p.read().PayloadLen() {
	}
	var all []stag.STag
	for range 100 {
		s := expose(t, e, x, n, rdma.AccessRemoteRead)
		e.qp.(rdma.Exposer).Withdraw(s)
		all = append(all, stag.STag(s))
	}
	for _, s := range append(all, stag.STag(s)) {
		for table.State(s) != stag.Free {
			runtime.Gosched()
		}
	}
}
