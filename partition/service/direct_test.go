package service_test

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/backend/slice"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// directly runs a test over the devices that clients reach memory over without requests: iWARP, and pairs inside of the process, as programs
// of this machine have them.
func directly(t *testing.T, f func(t *testing.T, overIWARP bool)) {
	t.Run("iwarp", func(t *testing.T) { f(t, true) })
	t.Run("pairs", func(t *testing.T) { f(t, false) })
}

// newMemoryBench serves the middle of three parts of memory. It returns all of the memory.
func newMemoryBench(t testing.TB, overIWARP bool) (*bench, *memory.Store) {
	t.Helper()
	s, err := memory.New(3 * size)
	check(t, err)
	part, err := slice.New(s, size, size)
	check(t, err)
	b := &bench{t: t, pool: mem.NewPool(plenty), lends: true}
	b.serve(part, overIWARP, service.Config{})
	return b, s
}

// octets returns what a store has.
func octets(t testing.TB, s backend.Store) []byte {
	t.Helper()
	b := make([]byte, s.Info().Size)
	op := backend.Op{Kind: backend.Read, Len: int64(len(b)), Segs: [][]byte{b}}
	if !s.Submit(&op) || op.Err != nil {
		t.Fatal("memory cannot be read: ", op.Err)
	}
	return b
}

// reach posts an RDMA Read or Write of n octets of data.
func (c *client) reach(op rdma.Opcode, s rdma.STag, to uint64, n int) {
	c.t.Helper()
	w := rdma.Work{ID: 1 << 41, Op: op, SGL: c.sge(dataAt, n), RemoteSTag: s, RemoteOffset: to}
	if _, err := c.qp.Post([]rdma.Work{w}); err != nil && !errors.Is(err, rdma.ErrDisconnected) {
		c.t.Fatal(err)
	}
}

// A request that follows an RDMA Write finds what that has written, whoever sends it; an RDMA Read finds what a WRITE
// has written; and a DISCARD removes it.
func TestDirect(t *testing.T) { directly(t, testDirect) }

func testDirect(t *testing.T, overIWARP bool) {
	b, s := newMemoryBench(t, overIWARP)
	c, other := b.use(0), b.use(rdma.RightRead)
	tag, to := rdma.STag(c.info.STag), c.info.TO
	if tag == 0 || other.info.STag == 0 || other.info.STag == c.info.STag {
		t.Fatalf("%+v, %+v", c.info, other.info)
	}
	const n = 100 << 10
	for i := range n {
		c.data()[i] = byte(i*7 + i>>8)
	}
	want := bytes.Clone(c.data()[:n])
	c.reach(rdma.OpWrite, tag, to+4096, n)
	if r := c.do(wire.Request{Op: wire.Read, Tag: 1}); r.Status != wire.OK || r.Value != 0 {
		t.Errorf("%+v", r)
	}
	if r := other.do(wire.Request{Op: wire.Read, Tag: 1, Length: 1 << 20, Offset: 0}); r.Status != wire.OK || !bytes.Equal(other.data()[4096:4096+n], want) {
		t.Errorf("%+v, or other octets", r)
	}
	all := octets(t, s)
	if !bytes.Equal(all[size+4096:size+4096+n], want) || !zeroes(all[:size+4096]) || !zeroes(all[size+4096+n:]) {
		t.Error("other octets have changed")
	}
	clear(other.data())
	other.reach(rdma.OpRead, rdma.STag(other.info.STag), to+4096, n)
	if r := other.do(wire.Request{Op: wire.Read, Tag: 2}); r.Status != wire.OK {
		t.Errorf("%+v", r)
	}
	for !bytes.Equal(other.data()[:n], want) { // the response may be sent before the Read Response
		if r := other.do(wire.Request{Op: wire.Read, Tag: 3}); r.Status != wire.OK {
			t.Fatalf("%+v", r)
		}
	}
	if r := c.do(wire.Request{Op: wire.Discard, Tag: 4, Length: size}); r.Status != wire.OK {
		t.Errorf("%+v", r)
	}
	if !zeroes(octets(t, s)) {
		t.Error("what was written without a request outlives a DISCARD")
	}
	if c := newBench(t, overIWARP, plenty, service.Config{}).use(0); c.info.STag != 0 {
		t.Errorf("a store that is not memory is reached directly: %+v", c.info)
	}
}

var nothing [3 * size]byte

func zeroes(b []byte) bool { return bytes.Equal(b, nothing[:len(b)]) }

// A client that guesses an STag, uses one that has ended, or goes beyond the partition or its rights loses its
// connection. It neither changes nor sees an octet, of its neighbours or of the partition.
func TestDirectRefused(t *testing.T) { directly(t, testDirectRefused) }

func testDirectRefused(t *testing.T, overIWARP bool) {
	b, s := newMemoryBench(t, overIWARP)
	secretly := bytes.Repeat([]byte("not for you "), 3*size/12+1)[:3*size]
	op := backend.Op{Kind: backend.Write, Len: 3 * size, Segs: [][]byte{secretly}}
	if !s.Submit(&op) || op.Err != nil {
		t.Fatal(op.Err)
	}
	victim := b.use(0)
	own := func(c *client) rdma.STag { return rdma.STag(c.info.STag) }
	for what, c := range map[string]struct {
		rights rdma.Rights
		attack func(c *client, op rdma.Opcode)
	}{
		"another key":      {0, func(c *client, op rdma.Opcode) { c.reach(op, own(c)^1, 0, 512) }},
		"the next STag":    {0, func(c *client, op rdma.Opcode) { c.reach(op, own(c)+256, 0, 512) }},
		"another client's": {0, func(c *client, op rdma.Opcode) { c.reach(op, own(victim), 0, 512) }},
		"beyond the end":   {0, func(c *client, op rdma.Opcode) { c.reach(op, own(c), size-256, 512) }},
		"behind the end":   {0, func(c *client, op rdma.Opcode) { c.reach(op, own(c), size, 512) }},
		"before the start": {0, func(c *client, op rdma.Opcode) { c.reach(op, own(c), 1<<64-512, 512) }},
		"without a right":  {rdma.RightAtomics | rdma.RightFlush, func(c *client, op rdma.Opcode) { c.reach(op, own(c)|1, 0, 512) }},
		"detached": {0, func(c *client, op rdma.Opcode) {
			c.do(wire.Request{Op: wire.Detach, Tag: 1})
			c.reach(op, own(c), 0, 512)
		}},
		"of the connection before": {0, func(c *client, op rdma.Opcode) {
			again := b.connect(ins)
			again.hello("")
			again.attach(wire.AttachMessage{Partition: "disk/log", Session: c.info.Session}, nil)
			again.attached()
			again.reach(op, own(c), 0, 512)
			again.ends("an STag of the connection before")
		}},
	} {
		for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead} {
			attacker := b.use(c.rights)
			if (attacker.info.STag == 0) != (c.rights != 0) {
				t.Errorf("%s: %+v", what, attacker.info)
			}
			c.attack(attacker, op)
			attacker.ends(what)
			if !zeroes(attacker.data()) {
				t.Errorf("%s, %v: the client has read something", what, op)
			}
			attacker.close()
		}
	}
	for r, op := range map[rdma.Rights]rdma.Opcode{rdma.RightRead: rdma.OpWrite, rdma.RightWrite: rdma.OpRead} {
		attacker := b.use(r)
		attacker.reach(op, own(attacker), 0, 512)
		attacker.ends("without the right")
		if !zeroes(attacker.data()) {
			t.Error("the client has read something")
		}
	}
	if !bytes.Equal(octets(t, s), secretly) {
		t.Error("an octet has changed")
	}
	victim.works()
}

// Rights that are revoked end at once, while operations of the endpoint are under way, with a request and without.
// The endpoint is closed when all of them are done.
//
// It is for iWARP: the ends of a pair have one lock, so the client's works wait with the one that the store holds up.
func TestDirectRevoked(t *testing.T) {
	b, s := newMemoryBench(t, true)
	b.late = make(chan func(), 2)
	revoke := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, told := range b.told {
			told(errors.New("revoked"))
		}
		b.told = nil
	}
	c := b.use(0)
	tag := rdma.STag(c.info.STag)
	c.data()[0] = 1
	c.request(wire.Request{Op: wire.Write, Flags: wire.Inline, Tag: 1, Length: 512})
	finish := <-b.late
	revoke()
	c.reach(rdma.OpWrite, tag, 4096, 4096) // behind the WRITE that hangs
	c.ends("revoked, with a request under way")
	finish()
	b.settle(0)
	if all := octets(t, s); all[size] != 1 || !zeroes(all[size+1:]) {
		t.Error("something was written after the right was revoked")
	}
	c = b.use(0)
	c.data()[0] = 1
	c.reach(rdma.OpWrite, rdma.STag(c.info.STag), 4096, 512)
	finish = <-b.late
	revoke()
	for range 1000 { // in which the endpoint would be closed
		runtime.Gosched()
	}
	finish()
	c.reach(rdma.OpRead, rdma.STag(c.info.STag), 0, 4096)
	c.ends("revoked, with a Write under way")
	b.settle(0)
	if all := octets(t, s); all[size+4096] != 1 {
		t.Error("a Write that was under way is not done")
	}
}
