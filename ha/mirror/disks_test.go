package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
)

// withFaults has the copies of a lab be faulty ones, and returns that of a node's present life.
func (l *lab) withFaults() func(n *node) *faulty.Store {
	stores := map[backend.Store]*faulty.Store{}
	l.wrap = func(s backend.Store) backend.Store {
		stores[s] = faulty.New(s, 1)
		return stores[s]
	}
	return func(n *node) *faulty.Store { return stores[n.disk] }
}

var (
	errDisk       = errors.New("the disk is broken")
	errUnreadable = &backend.MediumError{Kind: backend.Read, Err: errDisk}
)

// misses expects that a read from node n ends with an error of the medium.
func (l *lab) misses(n *node, off, length int64) {
	l.t.Helper()
	err := l.do(n, backend.Op{Kind: backend.Read, Off: off, Len: length, Segs: [][]byte{make([]byte, length)}})
	if _, ok := errors.AsType[*backend.MediumError](err); !ok {
		l.t.Errorf("a read of %d bytes at %d from node %d ends with %v", length, off, n.id, err)
	}
}

// badDisks are what can happen to a disk that writes. break returns what mends it.
var badDisks = map[string]func(s *faulty.Store) (mend func()){
	"fails": func(s *faulty.Store) func() {
		return s.Fail(faulty.Match{Kinds: faulty.Writes}, &backend.MediumError{Kind: backend.Write, Err: errDisk})
	},
	"does not flush": func(s *faulty.Store) func() {
		return s.Fail(faulty.Match{Kinds: []backend.Kind{backend.Flush}}, &backend.MediumError{Kind: backend.Flush, Err: errDisk})
	},
	"is full": func(s *faulty.Store) func() {
		s.Fill(0)
		return func() { s.Fill(-1) }
	},
	"hangs": func(s *faulty.Store) func() { return s.Hold(faulty.Match{Kinds: faulty.Writes}).Release },
	"is slow": func(s *faulty.Store) func() {
		return s.Delay(faulty.Match{Kinds: faulty.Writes}, 7*time.Second)
	},
}

// TestBadDisks: a disk that does not write is left out, and the primary whose disk it is hands over. Hosts see no error, and when the
// disk works again its copy is brought level.
func TestBadDisks(t *testing.T) {
	for what, spoil := range badDisks {
		for victim := range rounds.Of(2, 1) {
			t.Run(fmt.Sprintf("disk of %d %s", victim, what), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t, 2)
					store := l.withFaults()
					l.begin()
					defer l.end()
					a, b := l.nodes[0], l.nodes[1]
					l.written(a, bytesOf(128<<10, 1))
					mend := spoil(store(l.nodes[victim]))
					want := bytesOf(128<<10, 2)
					l.write(a, 64<<10, want)
					go func() { _ = l.do(a, backend.Op{Kind: backend.Flush}) }() // refused if another node takes over meanwhile
					serves := a
					if victim == 0 {
						serves = b
						l.serves(b)
					}
					l.alone(serves)
					l.expect(serves, 64<<10, want)
					more := bytesOf(4096, 3)
					l.write(serves, 1<<20, more)
					l.flush(serves)
					mend()
					l.level(serves)
					other := l.nodes[1-serves.id]
					serves.mirror.push(item{event: replica.Switch{ID: isOrder, To: other.id}})
					l.level(other)
					l.expect(other, 64<<10, want)
					l.expect(other, 1<<20, more)
				})
			})
		}
	}
}

// TestSlowDisk: a disk that is slow, but not too slow, changes nothing.
func TestSlowDisk(t *testing.T) {
	for victim := range 2 {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			store := l.withFaults()
			l.begin()
			defer l.end()
			a := l.nodes[0]
			before := a.mirror.State().View
			mend := store(l.nodes[victim]).Delay(faulty.Match{}, 300*time.Millisecond)
			want := bytesOf(128<<10, 2)
			l.written(a, want)
			l.expect(a, 64<<10, want)
			if s := a.mirror.State(); s.View != before || s.Role != replica.Primary {
				t.Errorf("a slow disk of node %d: %+v, and before %+v", victim, s.View, before)
			}
			mend()
		})
	}
}

// TestAloneAndFull: when the disk of the only copy is full nothing is flushed, and a host gets no error of a medium, but one that has it
// try again. When there is room everything goes on.
func TestAloneAndFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		b.kill()
		l.alone(a)
		store(a).Fill(0)
		want := bytesOf(128<<10, 2)
		l.write(a, 64<<10, want)
		if err := l.do(a, backend.Op{Kind: backend.Flush}); !isMoved(err) {
			t.Errorf("a flush to a full disk ends with %v", err)
		}
		store(a).Fill(-1)
		l.flush(a)
		l.expect(a, 64<<10, want)
		a.cutPower(nil, 0)
		a.start()
		l.serves(a)
		l.expect(a, 64<<10, want)
		b.start()
		l.level(a)
	})
}

// TestStatusOfBadDisks: while the disk of a node's copy does not take what is written, or does not sync it, the status of that node says so, also if
// that copy is the only one, and in sync; afterwards it does not.
func TestStatusOfBadDisks(t *testing.T) {
	for _, name := range []string{"fails", "does not flush", "is full"} {
		for _, alone := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 2)
				store := l.withFaults()
				l.begin()
				defer l.end()
				a, bad := l.nodes[0], l.nodes[1]
				if alone {
					bad.kill()
					l.alone(a)
					bad = a
				}
				says := func(when string, want bool) {
					t.Helper()
					for range 60 { // seconds, of this bubble
						if st, _ := bad.mirror.Status(); st.Failed != nil == want {
							return
						}
						time.Sleep(time.Second)
					}
					st, _ := bad.mirror.Status()
					t.Errorf("a disk %s, alone %v, %s: %v", name, alone, when, st.Failed)
				}
				says("before that", false)
				mend := badDisks[name](store(bad))
				l.write(a, 64<<10, bytesOf(128<<10, 2))
				says("meanwhile", true)
				if !alone {
					l.alone(a)
					time.Sleep(5 * time.Second) // it is tried again and again
					says("when its copy is not in sync", true)
				}
				mend()
				if alone {
					l.flush(a)
				} else {
					l.level(a)
				}
				says("afterwards", false)
			})
		}
	}
}

// TestFlushAfterKill: a process that ends leaves in the page cache what its disk does not have. The next one answers a flush when the disk
// has that, though the flush is all that it was asked for.
func TestFlushAfterKill(t *testing.T) {
	for nodes := 1; nodes <= 2; nodes++ {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, nodes)
			l.begin()
			defer l.end()
			a := l.nodes[0]
			if nodes == 2 {
				l.nodes[1].kill()
				l.alone(a)
			}
			want := bytesOf(128<<10, 2)
			l.write(a, 64<<10, want)
			l.expect(a, 64<<10, want) // its copy has it
			a.kill()
			a.start()
			l.serves(a)
			l.expect(a, 64<<10, want)
			l.flush(a)
			a.cutPower(nil, 0)
			a.start()
			l.serves(a)
			l.expect(a, 64<<10, want)
			if nodes == 2 {
				l.nodes[1].start()
				l.level(a)
			}
		})
	}
}

// TestNoFlushAtStart: a copy that cannot make durable what it has takes no part.
func TestNoFlushAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1)
		l.begin()
		defer l.end()
		a := l.nodes[0]
		a.kill()
		l.wrap = func(s backend.Store) backend.Store {
			bad := faulty.New(s, 1)
			bad.Fail(faulty.Match{Kinds: []backend.Kind{backend.Flush}}, &backend.MediumError{Kind: backend.Flush, Err: errDisk})
			return bad
		}
		if _, err := a.open(); !errors.Is(err, errDisk) {
			t.Errorf("it opens with %v", err)
		}
		a.closeFabric()
		l.wrap = nil
		a.start()
	})
}

// TestReadError: what the primary's disk cannot read comes from the other copy, and is written anew.
func TestReadError(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		store := l.withFaults()
		l.begin()
		defer l.end()
		a := l.nodes[0]
		want := bytesOf(128<<10, 2)
		l.written(a, want)
		mend := store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: 64 << 10, Len: 4096, Times: 1}, errUnreadable)
		l.expect(a, 64<<10, want)
		mend()
		l.expect(a, 64<<10, want)
		if s := a.mirror.State(); s.Role != replica.Primary || s.View.InSync != replica.NodesOf(0, 1) {
			t.Errorf("a read error has changed %+v", s)
		}
		mendA := store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: 64 << 10, Len: 4096}, errUnreadable)
		mend = store(l.nodes[1]).Fail(faulty.Match{Kinds: faulty.Reads, Off: 64 << 10, Len: 4096}, errUnreadable)
		l.misses(a, 64<<10, 4096)
		mendA()
		mend()
		l.expect(a, 64<<10, want)
	})
}

// TestBadForGood: a place of the primary's disk cannot be read, whatever is written there. Hosts get the bytes of the other copy, again and again, also in
// pieces with what only this disk can read, and what they write there is there. So it is in the next term of this node. When the other
// copy is lost, and not before, a read there ends with an error of the medium, and nothing beside it does.
func TestBadForGood(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		const granule, bad, other = 1 << 20, 1<<20 + 8192, 1<<20 + 16384
		store := l.withFaults()
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 2)
		l.write(a, granule, want)
		l.expect(a, granule, want) // its disk has it
		spoil := func(n *node, off int64) (mend func()) {
			return store(n).Fail(faulty.Match{Kinds: faulty.Reads, Off: off, Len: 512}, errUnreadable)
		}
		mend := spoil(a, bad)
		spoil(b, other) // until it ends
		for range 5 {
			l.expect(a, granule, want)
			l.expect(a, bad, want[8192:][:512])
		}
		more := bytesOf(4096, 3)
		l.write(a, bad-1024, more)
		copy(want[8192-1024:], more)
		l.expect(a, granule, want)
		before := a.mirror.State().View
		if before.Primary != 0 || before.InSync != replica.NodesOf(0, 1) {
			t.Errorf("%+v", before)
		}

		for _, n := range []*node{b, a} { // it comes back to the office, and remembers nothing
			a.mirror.push(item{event: replica.Switch{ID: isOrder, To: n.id}})
			b.mirror.push(item{event: replica.Switch{ID: isOrder, To: n.id}})
			l.serves(n)
			l.level(n)
			l.expect(n, granule, want)
		}

		time.Sleep(time.Minute) // all is durable, and this node knows that
		b.kill()
		l.alone(a)
		l.misses(a, bad, 512)
		l.expect(a, granule, want[:8192])
		l.expect(a, other, want[16384:])
		b.start()
		l.level(a)
		l.expect(a, granule, want)
		mend()
		l.end()
	})
}

// TestNotWrittenEither: a place of the primary's disk can neither be read nor written. A read there gets the bytes of the other copy; the node of that
// serves from then on, alone, for the bad disk does not take what is to be repaired. Nothing that was acknowledged is lost, and the disk's
// node does not serve before it has all, on another disk.
func TestNotWrittenEither(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		const granule, bad = 1 << 20, 1<<20 + 8192
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(64<<10, 2)
		l.write(a, granule, want)
		l.expect(a, granule, want)
		mend := store(a).Fail(faulty.Match{Kinds: append(faulty.Reads, faulty.Writes...), Off: bad, Len: 512}, errUnreadable)
		l.expect(a, granule, want)
		l.alone(b)
		l.expect(b, granule, want)
		more := bytesOf(512, 3)
		l.write(b, bad, more)
		copy(want[8192:], more)
		time.Sleep(time.Minute) // its node asks again and again to be brought level
		if s, _ := b.mirror.Status(); s.View.InSync != replica.NodesOf(1) || s.Lacks[0] == 0 {
			t.Errorf("%+v: its copy lacks %d bytes", s.View, s.Lacks[0])
		}
		mend()
		l.level(b)
		b.cutPower(nil, 0)
		l.serves(a)
		l.expect(a, granule, want)
		b.start()
		l.level(a)
	})
}

// TestNotWrittenAmongDrained: the same, and the other node is drained. It serves all the same, for the first one answers nothing there, and no flush, and
// the bad disk's node leaves S before it would get the office back.
func TestNotWrittenAmongDrained(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		const granule, bad = 1 << 20, 1<<20 + 8192
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(64<<10, 2)
		l.write(a, granule, want)
		l.expect(a, granule, want)
		for _, n := range l.nodes {
			n.mirror.Drain(replica.NodesOf(b.id))
		}
		mend := store(a).Fail(faulty.Match{Kinds: append(faulty.Reads, faulty.Writes...), Off: bad, Len: 512}, errUnreadable)
		l.expect(a, granule, want)
		l.alone(b)
		if s := b.mirror.State(); s.View.Term != 3 {
			t.Errorf("the office went to and fro: %+v", s.View)
		}
		l.expect(b, granule, want)
		mend()
		l.level(a) // and it has the office again
		l.expect(a, granule, want)
	})
}

// TestNobodyCanRead: a copy gets in sync without what the only disk that has it cannot read. A read there fails, and shows nothing older,
// whoever serves, also after power cuts; what is around it is there. What is written there later is there on both copies.
func TestNobodyCanRead(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		const granule, bad = 1 << 20, 1<<20 + 8192
		store := l.withFaults()
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		old, want := bytesOf(64<<10, 1), bytesOf(64<<10, 2)
		l.write(a, granule, old)
		b.kill()
		l.alone(a)
		l.write(a, granule, want)
		l.expect(a, granule, want) // its disk has it
		mend := store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: bad, Len: 512}, errUnreadable)
		b.start()
		l.level(a)
		if s, _ := a.mirror.Status(); s.Lost != 512 || s.Missing != 0 {
			t.Errorf("node 0 has let its peer go without %d bytes, and goes without %d; should be 512 and 0", s.Lost, s.Missing)
		}
		l.misses(a, bad, 512)
		others := func(n *node) {
			t.Helper()
			l.expect(n, granule, want[:8192])
			l.expect(n, granule+8704, want[8704:])
		}
		others(a)
		a.cutPower(nil, 0)
		l.alone(b)
		l.misses(b, bad, 512)
		others(b)
		b.cutPower(nil, 0)
		if kept, err := Inspect(b.files); err != nil || kept.Missing != 512 {
			t.Errorf("the metadata of node 1 tell %+v, %v", kept, err)
		}
		b.start()
		l.serves(b)
		l.misses(b, granule, 64<<10)
		l.misses(b, bad-512, 1024)
		others(b)
		if s, _ := b.mirror.Status(); s.Missing != 512 {
			t.Errorf("node 1 goes without %d bytes, and should without 512", s.Missing)
		}
		more := bytesOf(512, 3)
		l.write(b, bad, more)
		l.expect(b, bad, more)
		l.flush(b)
		b.cutPower(nil, 0)
		mend()
		b.start()
		l.serves(b)
		l.expect(b, bad, more)
		others(b)
		a.start()
		l.level(b)
		b.cutPower(nil, 0)
		l.serves(a)
		l.expect(a, bad, more)
		others(a)
		b.start()
		l.level(a)
		l.end()
	})
}

// TestLatentBlock: the primary's disk cannot read a block that was written long ago, and another copy, which has it, was restarted and suspects
// all of the region. That copy keeps the block, also if the primary's disk does not keep what is written anew. So it does if it was the primary.
func TestLatentBlock(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		const at = 1 << 20
		store := l.withFaults()
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(64<<10, 2)
		l.write(a, at, want)
		l.flush(a)
		for _, x := range []struct{ serves, restarts *node }{{a, b}, {b, a}} {
			time.Sleep(5 * time.Second) // all have it durable, and know that
			l.write(a, at+512<<10, bytesOf(512, 3))
			x.restarts.cutPower(nil, 0)
			l.alone(x.serves)
			mend := store(x.serves).Fail(faulty.Match{Kinds: faulty.Reads, Off: at + 8192, Len: 512}, errUnreadable)
			x.restarts.start()
			l.level(x.serves)
			if s, _ := x.serves.mirror.Status(); s.Lost != 0 {
				t.Errorf("a copy goes without %d bytes", s.Lost)
			}
			x.serves.cutPower(nil, 0)
			l.alone(x.restarts)
			l.expect(x.restarts, at, want)
			mend()
			x.serves.start()
			l.level(x.restarts)
			if x.restarts == b {
				b.mirror.push(item{event: replica.Switch{ID: isOrder, To: 0}})
				l.serves(a)
				l.level(a)
			}
		}
		l.end()
	})
}

// lossLines are the lines of a log that name what is lost.
type lossLines struct {
	slog.Handler
	mu    *sync.Mutex
	lines *[]string
}

func (h lossLines) Enabled(context.Context, slog.Level) bool { return true }
func (h lossLines) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h lossLines) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "ranges" {
			h.mu.Lock()
			*h.lines = append(*h.lines, a.Value.String())
			h.mu.Unlock()
		}
		return true
	})
	return nil
}

// TestLossesAreNamed: the log names all that no copy can read, with many ranges in a line, neighbours as one.
func TestLossesAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		var mu sync.Mutex
		var lines []string
		l.log = slog.New(lossLines{mu: &mu, lines: &lines})
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		b.kill()
		l.alone(a)
		l.write(a, 1<<20, bytesOf(128<<10, 2))
		want, off := "", int64(1<<20)
		var mends []func()
		for i := range namedLosses + 1 {
			n := int64(512 + 512*(i%2))
			want += fmt.Sprintf(" %d+%d", off, n)
			mend := store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: off, Len: n}, errUnreadable)
			mends = append(mends, mend)
			off += n + 512
		}
		b.start()
		l.level(a)
		time.Sleep(2 * gatherLosses)
		for _, mend := range mends {
			mend()
		}
		if _, err := a.mirror.Verify(t.Context(), true, 0); err != nil {
			t.Error(err)
		}
		l.end()
		if got := strings.Join(lines, " "); got != want[1:] || len(lines) > 3 {
			t.Errorf("%d lines name %s, and should %s", len(lines), got, want)
		}
	})
}

// TestMissingIsTriedAgain: what a copy goes without is copied when it is brought level again, and a disk can read it by then. Hosts that
// read it before get it from the disk that can.
func TestMissingIsTriedAgain(t *testing.T) {
	for _, how := range []string{"returns", "read", "verify"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			store := l.withFaults()
			l.begin()
			defer l.end()
			a, b := l.nodes[0], l.nodes[1]
			want := bytesOf(64<<10, 2)
			b.kill()
			l.alone(a)
			l.write(a, 1<<20, want)
			mend := store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: 1 << 20, Len: 64 << 10}, errUnreadable)
			b.start()
			l.level(a)
			mend()
			missing := func() int64 { s, _ := b.mirror.Status(); return s.Missing }
			if n := missing(); n != 64<<10 {
				t.Fatalf("node 1 goes without %d bytes", n)
			}
			switch how {
			case "returns":
				b.cutPower(nil, 0)
				l.alone(a)
				b.start()
				l.level(a)
			case "read":
				a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
				l.level(b)
				l.expect(b, 1<<20, want)
				l.expect(b, 1<<20, want) // when the repair is on its disk
				l.flush(b)
			case "verify":
				if v, err := a.mirror.Verify(t.Context(), true, 0); err != nil || v.Unreadable != 1 || v.Repaired != 1 || v.Found[0].Unreadable != replica.NodesOf(1) {
					t.Errorf("a comparison: %+v, %v", v, err)
				}
				l.flush(a)
			}
			if n := missing(); n != 0 {
				t.Errorf("%s: node 1 goes without %d bytes still", how, n)
			}
		})
	}
}

// TestReadErrorsOnBoth: what both copies together have is read, though neither can read all of it.
func TestReadErrorsOnBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 2)
		l.written(a, want)
		l.expect(a, 64<<10, want)
		bad := func(n *node, off int64) (mend func()) {
			return store(n).Fail(faulty.Match{Kinds: faulty.Reads, Off: off, Len: 4096}, errUnreadable)
		}
		mendB := bad(b, 80<<10)
		mendA := bad(a, 72<<10)
		l.expect(a, 64<<10, want) // it is written anew, and this disk still refuses
		mendA()
		l.expect(a, 64<<10, want)
		store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: 72 << 10, Len: 4096, Times: 2}, errUnreadable)
		l.expect(a, 64<<10, want)
		// Of one piece each lacks another block. This disk refuses the request, the piece and the block.
		store(a).Fail(faulty.Match{Kinds: faulty.Reads, Off: 88<<10 + 512, Len: 512, Times: 3}, errUnreadable)
		mendBlock := store(b).Fail(faulty.Match{Kinds: faulty.Reads, Off: 88<<10 + 1024, Len: 512}, errUnreadable)
		l.expect(a, 64<<10, want)
		mendBlock()
		mendA = bad(a, 80<<10)
		l.misses(a, 64<<10, 64<<10)
		l.expect(a, 64<<10, want[:16<<10])
		mendA()
		mendB()
	})
}

// TestUnsaved: status says that the metadata of the only copy in sync cannot be saved, though nobody has written anything, until they can.
func TestUnsaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		defer l.end()
		l.begin()
		a := l.nodes[0]
		l.nodes[1].kill()
		l.alone(a)
		until := func(text string) {
			t.Helper()
			for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
				st, _ := a.mirror.Status()
				if text == "" && st.Unsaved == nil || text != "" && st.Unsaved != nil && strings.Contains(st.Unsaved.Error(), text) {
					return
				}
				if time.Since(began) > 15*time.Second {
					t.Fatalf("want %q: %v", text, st.Unsaved)
				}
			}
		}
		full := func(is bool) {
			a.files.mu.Lock()
			defer a.files.mu.Unlock()
			a.files.full = is
		}
		until("")
		full(true)
		until("no space left")
		full(false)
		until("")
		goOn := a.files.stall()
		defer goOn()
		until("the disk has not answered for 5s")
		goOn()
		until("")
		l.nodes[1].start()
		l.level(a)
	})
}
