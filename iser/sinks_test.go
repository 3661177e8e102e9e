//go:build verbs && !guest && cgo && linux

package iser

import (
	"bytes"
	"testing"
	"unsafe"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs/fake"

	"golang.org/x/sys/unix"
)

// cards are iWARP devices other than siw. Each Read Request of theirs tells the peer an STag that allows it to write. The bare one
// has neither memory windows nor Send with Invalidate and Local Invalidate.
var cards = map[string]fake.Config{
	"bare":         {IWARP: true, NoInvalidate: true},
	"with windows": {IWARP: true, Windows: true},
	"late reads":   {IWARP: true, LateReads: true},
}

// aStore calls writing with each write, before it does it.
type aStore struct {
	backend.Store
	writing func(*backend.Op)
}

func (s *aStore) Submit(op *backend.Op) bool {
	if op.Kind == backend.Write && s.writing != nil {
		s.writing(op)
	}
	return s.Store.Submit(op)
}

// sinkBench serves initiators over a card.
type sinkBench struct {
	*bench
	device rdma.Device
	store  *aStore
	t      *testing.T
	ports  byte
}

func newSinkBench(t *testing.T, c fake.Config) *sinkBench {
	t.Helper()
	d := openFake(t, c)
	inner, err := memory.New(storeSize)
	check(t, err)
	store := &aStore{Store: inner}
	return &sinkBench{bench: newBenchOver(t, 64<<20, d, "127.0.0.1:0", store), device: d, store: store, t: t}
}

// session returns an initiator that has logged in.
func (b *sinkBench) session() *client {
	b.t.Helper()
	c := dialFake(b.bench, b.device)
	b.ports++
	c.isid = b.ports
	c.logIn("")
	c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
	return c
}

// writes has c write n bytes at the beginning of the disk, all of them seed, and waits until the Reads for them are under way,
// which fake.Release ends. It returns the memory that they go to.
func (b *sinkBench) writes(c *client, n int, seed byte) []fake.Sink {
	b.t.Helper()
	fake.HoldReads()
	b.t.Cleanup(fake.Release)
	fill(c.buf[:n], seed)
	c.start(rw16(0x8a, 0, uint32(n/blockSize)), true, false, 0, n, 0)
	return fake.Sinks(n)
}

// good waits for the answer to the command of c under way.
func (b *sinkBench) good(c *client) {
	b.t.Helper()
	if a, ok := c.receive(); !ok || a.h[3] != 0 {
		b.t.Fatalf("the answer to a WRITE: %v % x", ok, a.h)
	}
}

// holds checks that the disk begins with n bytes, all of them seed.
func (b *sinkBench) holds(n int, seed byte) {
	b.t.Helper()
	want := make([]byte, n)
	fill(want, seed)
	if !bytes.Equal(b.contents()[:n], want) {
		b.t.Error("the disk does not hold what was written")
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed
	}
}

// strike has the peer write n bytes to memory of the target, and reports whether it could. If it could not, that was the
// end of its connection.
func (c *client) strike(stag uint32, at uint64, n int) (landed bool) {
	c.t.Helper()
	b := c.buf[bufSize-n:]
	fill(b, 0xee)
	return c.offend(rdma.OpWrite, b, stag, at) && c.struck()
}

const offence = 1 << 40 // the ID of what offend posts

// offend posts an operation on memory of the target. False: the connection is over.
func (c *client) offend(op rdma.Opcode, b []byte, stag uint32, at uint64) bool {
	c.offending = true
	_, err := c.qp.Post([]rdma.Work{{
		ID: offence, Op: op, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: b, Region: c.region}},
		RemoteSTag: rdma.STag(stag), RemoteOffset: at,
	}})
	return err == nil
}

// struck waits until that has ended, and reports how.
func (c *client) struck() (landed bool) {
	for {
		if w := c.completion(); w.ID == offence {
			return w.Status == rdma.StatusOK
		}
	}
}

// address is the tagged offset of memory that a card has registered.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// refused has c write to b by stag, and checks that it cannot, and that nothing has changed.
func (c *client) refused(stag uint32, b []byte) {
	c.t.Helper()
	c.refusedBeside(stag, b, b)
}

// refusedBeside is refused for memory that is the peer's own sink in part, which may be used again, or overwritten, once its connection is lost.
// others is the rest.
func (c *client) refusedBeside(stag uint32, b, others []byte) {
	c.t.Helper()
	before := bytes.Clone(others)
	landed := c.strike(stag, address(b), len(b))
	if changed := !bytes.Equal(others, before); landed || changed {
		c.t.Errorf("a peer has written to memory that is not its own to write: it completed %v, the memory changed %v", landed, changed)
		c.qp.Abort(nil)
	}
	<-c.over
}

func eachCard(t *testing.T, f func(*testing.T, *sinkBench)) {
	for kind, k := range cards {
		t.Run(kind, func(t *testing.T) { f(t, newSinkBench(t, k)) })
	}
}

// A peer that has learned the STag of another connection's Read cannot write there.
func TestCardSinkOfAnother(t *testing.T) {
	eachCard(t, func(t *testing.T, b *sinkBench) {
		victim, thief := b.session(), b.session()
		for _, s := range b.writes(victim, 256<<10, 1) {
			thief.refused(s.STag, s.Memory)
			thief = b.session()
		}
		fake.Release()
		b.good(victim)
		b.holds(256<<10, 1)
	})
}

// A peer whose own Read has ended cannot write to its memory any more: neither while the store takes the bytes, which the target
// may have looked at, nor later, when the memory is another's.
func TestCardSinkAfterRead(t *testing.T) {
	const n = 64 << 10
	for when, late := range map[string]bool{"while the store writes": false, "after the answer": true} {
		t.Run(when, func(t *testing.T) {
			eachCard(t, func(t *testing.T, b *sinkBench) {
				c := b.session()
				sinks := b.writes(c, n, 1)
				s := sinks[len(sinks)-1]
				if !late {
					b.store.writing = func(op *backend.Op) {
						b.store.writing = nil
						if !bytes.Equal(op.Segs[len(op.Segs)-1], s.Memory) {
							t.Error("the store writes from other memory")
						}
						c.refused(s.STag, s.Memory)
					}
				}
				fake.Release()
				if late {
					b.good(c)
					next := b.session()
					b.writes(next, n, 2) // the memory is in use again
					c.refused(s.STag, s.Memory)
					fake.Release()
					b.good(next)
					b.holds(n, 2)
					return
				}
				wait(func() bool { return b.node.Connections() == 0 })
				b.holds(n, 1)
			})
		})
	}
}

// The STag of a Read reaches no more than its sink, though the memory around it lies in the same arena, and page.
func TestCardSinkBeyond(t *testing.T) {
	const n = blockSize
	for where, at := range map[string]struct{ off, own int }{"behind": {n, 0}, "across the end": {n - 1, 1}, "in front": {-8, 0}} {
		t.Run(where, func(t *testing.T) {
			eachCard(t, func(t *testing.T, b *sinkBench) {
				c := b.session()
				other := b.session()
				s := b.writes(c, n, 1)[0]
				if len(s.Memory) != n {
					t.Fatalf("the sink of %d bytes is %d long", n, len(s.Memory))
				}
				near := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s.Memory)), at.off)), 8)
				c.refusedBeside(s.STag, near, near[at.own:])
				fake.Release()
				wait(func() bool { return b.node.Connections() == 1 })
				other.do(make([]byte, 6), false, false, 0, 0)
			})
		})
	}
}

// The memory of a Read, which holds what another initiator had there before, cannot be read by its peer.
func TestCardSinkNotRead(t *testing.T) {
	eachCard(t, func(t *testing.T, b *sinkBench) {
		former, c := b.session(), b.session()
		b.writes(former, 4096, 1)
		fake.Release()
		b.good(former)
		s := b.writes(c, 4096, 2)[0]
		stolen := c.buf[bufSize-8:]
		if !c.offend(rdma.OpRead, stolen, s.STag, address(s.Memory)) {
			t.Fatal("the connection is over")
		}
		fake.Release() // of that Read, too, and of it first
		if c.struck() {
			t.Errorf("a peer has read % x", stolen)
			c.qp.Abort(nil)
		}
		<-c.over
	})
}

// siw lets a peer read all memory of its domain whose STag it knows, and each Read Request tells it that of a sink. It finds nothing of
// others there, and nothing else by that STag.
func TestSiwSinkNotRead(t *testing.T) {
	const n = 4096
	for where, f := range map[string]struct {
		off    int
		thief  bool // another peer
		late   bool // after the Read
		landed bool
	}{
		"in the sink":       {landed: true},
		"behind it":         {off: n},
		"of another":        {thief: true},
		"when it has ended": {late: true},
	} {
		t.Run(where, func(t *testing.T) {
			b := newSinkBench(t, fake.Config{IWARP: true, Siw: true})
			reader, c := b.session(), b.session()
			if !f.thief {
				reader = c
			}
			b.writes(c, n, 1)
			fake.Release()
			b.good(c)
			s := b.writes(c, n, 2)[0] // where the first one was
			if len(s.Memory) != n || !bytes.Equal(s.Memory, make([]byte, n)) {
				t.Errorf("a sink of %d bytes is %d long, or holds something", n, len(s.Memory))
			}
			if f.late {
				fake.Release()
				b.good(c)
			}
			stolen := c.buf[bufSize-8:]
			if f.thief {
				stolen = reader.buf[bufSize-8:]
			}
			if !reader.offend(rdma.OpRead, stolen, s.STag, address(s.Memory)+uint64(f.off)) {
				t.Fatal("the connection is over")
			}
			fake.Release() // of that Read, too, and of it first
			if landed := reader.struck(); landed != f.landed {
				t.Errorf("a peer has read % x: %v, want %v", stolen, landed, f.landed)
			}
		})
	}
}

// If the device does not end the access to a sink, its memory is nobody else's before its connection has ended, and with it all
// access. Then the device is asked once more.
func TestCardSinkStays(t *testing.T) {
	eachCard(t, func(t *testing.T, b *sinkBench) {
		c, other := b.session(), b.session()
		sinks := b.writes(c, 64<<10, 1)
		before := b.pool.Stats().Leases
		fake.Fail("ibv_dereg_mr", unix.EIO, 0)
		fake.KeepQueuePairs()
		t.Cleanup(fake.Forget)
		fake.Release()
		fake.AwaitKept()                              // the target ends the connection
		other.do(make([]byte, 6), false, false, 0, 0) // on which nothing is done
		b.node.Tick()                                 // takes the lock of the connection
		if n := b.pool.Stats().Leases; n != before {
			t.Errorf("%d leases, want %d: memory that a peer can write to was given back", n, before)
		}
		if s := sinks[0]; !c.strike(s.STag, address(s.Memory), 8) {
			t.Error("the sink does not stay")
		}
		fake.Fail("ibv_dereg_mr", nil, 0)
		fake.Forget()
		<-c.over
		wait(func() bool { return b.node.Connections() == 1 && b.pool.Stats().Leases < before })
		b.holds(64<<10, 0) // nothing is written of which the peer could change bytes
		other.do(make([]byte, 6), false, false, 0, 0)
	})
}

// A device that has no room for a sink ends the connection, and nothing stays registered.
func TestCardNoRoomForSinks(t *testing.T) {
	const n = 64 << 10
	eachCard(t, func(t *testing.T, b *sinkBench) {
		other := b.session()
		leases := b.pool.Stats().Leases
		c := b.session()
		b.writes(c, n, 1) // the arenas are registered, too
		fake.Release()
		b.good(c)
		fake.Fail("ibv_reg_mr", unix.ENOMEM, 0)
		fill(c.buf[:n], 2)
		c.offending = true
		c.start(rw16(0x8a, 0, n/blockSize), true, false, 0, n, 0)
		if a, ok := c.receive(); ok {
			t.Fatalf("an answer: % x", a.h)
		}
		<-c.over
		fake.Fail("ibv_reg_mr", nil, 0)
		wait(func() bool { return b.node.Connections() == 1 && b.pool.Stats().Leases <= leases })
		b.holds(n, 1)
		other.do(make([]byte, 6), false, false, 0, 0)
	})
}

// A connection that ends when the sinks are registered and the Reads have not come takes them along.
func TestCardEndsBeforeRead(t *testing.T) {
	for how, end := range map[string]func(*client){
		"the peer leaves":       func(c *client) { c.qp.Disconnect() },
		"the peer breaks off":   func(c *client) { c.qp.Abort(nil) },
		"no Read can be posted": nil,
	} {
		t.Run(how, func(t *testing.T) {
			eachCard(t, func(t *testing.T, b *sinkBench) {
				other := b.session()
				leases := b.pool.Stats().Leases
				const n = 64 << 10
				c := b.session()
				if end != nil {
					s := b.writes(c, n, 1)[0]
					end(c)
					<-c.over
					wait(func() bool { return b.node.Connections() == 1 && b.pool.Stats().Leases == leases })
					fake.Release()
					other.refused(s.STag, s.Memory)
				} else {
					fake.Fail("ibv_post_send", unix.EINVAL, 1) // the client's Send goes
					c.offending = true
					c.start(rw16(0x8a, 0, n/blockSize), true, false, 0, n, 0)
					<-c.over
					fake.Fail("ibv_post_send", nil, 0)
					wait(func() bool { return b.node.Connections() == 1 && b.pool.Stats().Leases == leases })
				}
				b.holds(n, 0)
			})
		})
	}
}

// A card without Send with Invalidate answers with plain Sends, also to an initiator that lets the target invalidate.
func TestCardWithoutInvalidation(t *testing.T) {
	b := newSinkBench(t, cards["bare"])
	c := dialSaying(b.bench, b.device, noZBVA)
	c.inval = false // as is not to be expected
	c.logIn("")
	c.do(make([]byte, 6), false, false, 0, 0)
	fill(c.buf[:4096], 1)
	c.do(rw16(0x8a, 0, 4096/blockSize), true, false, 4096, 0)
	b.holds(4096, 1)
	fill(c.buf[:4096], 0)
	c.do(rw16(0x88, 0, 4096/blockSize), false, true, 4096, 0)
	if !bytes.Equal(c.buf[:4096], b.contents()[:4096]) {
		t.Error("a READ brings other bytes than were written")
	}
}
