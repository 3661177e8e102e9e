package mirror

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
)

// mute are views of nodes that nobody hears while silent is set.
type mute struct {
	voter
	silent *[2]atomic.Bool
}

func (m mute) Propose(v replica.View) {
	if !m.silent[m.node].Load() {
		m.voter.Propose(v)
	}
}

// TestHold: without the other copy and without a majority nothing can be answered, and a host gets an error before it
// gives up by itself. What was asked for takes no memory for ever, and everything goes on when the nodes meet again.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent [2]atomic.Bool
		l := newLab(t, 2)
		l.views = func(n *node) Views { return mute{voter{l.register, n.id}, &silent} }
		l.tune = func(c *replica.Config) { c.Heap, c.FlushEvery = 1<<20, time.Second }
		l.begin()
		defer l.end()
		a := l.nodes[0]
		l.write(a, 0, bytesOf(4096, 1))
		silent[0].Store(true)
		silent[1].Store(true)
		l.setCut(0, 1, true)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 32 { // more than there is memory for
			wg.Go(func() {
				op := backend.Op{Kind: backend.Write, Off: int64(i) * (64 << 10), Len: 64 << 10, Segs: [][]byte{bytesOf(64<<10, 2)}}
				if i%8 == 7 {
					op.Kind, op.Off, op.Segs = backend.Read, 0, [][]byte{make([]byte, 64<<10)} // waits for the first write
				}
				err := l.do(a, op)
				if took := time.Since(began); !isMoved(err) || took < usualHold || took > usualHold+2*time.Second {
					t.Errorf("%v after %v: %v", op.Kind, took, err)
				}
			})
		}
		wg.Wait()
		waiting := make(chan int)
		a.mirror.push(item{call: func() { waiting <- a.mirror.core.Waiting() }})
		if n := <-waiting; n != 0 {
			t.Errorf("%d requests wait of which hosts have heard the end", n)
		}
		silent[0].Store(false)
		l.await(a, "alone", func(s replica.State) bool { return s.View.InSync == replica.NodesOf(0) })
		for i := range 32 {
			l.write(a, int64(i)*(64<<10), bytesOf(64<<10, byte(i)))
		}
		silent[1].Store(false)
		l.setCut(0, 1, false)
		l.level(a)
		for i := range 32 {
			l.expect(a, int64(i)*(64<<10), bytesOf(64<<10, byte(i)))
		}
		l.await(a, "no memory in use", func(s replica.State) bool { return s.HeapUsed == 0 })
	})
}

func isMoved(err error) bool {
	_, ok := errors.AsType[*backend.MovedError](err)
	return ok
}

// isLeft reports whether a comparison has ended because a copy has left.
func isLeft(err error) bool {
	_, ok := errors.AsType[*LeftError](err)
	return ok
}

// TestTerm: what was begun in one term does not take place in another one, though the node serves again.
func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		write := func(n *node, term uint64, seed byte) error {
			return l.do(n, backend.Op{Kind: backend.Write, Term: term, Len: 4096, Segs: [][]byte{bytesOf(4096, seed)}})
		}
		old := a.mirror.Term()
		if b.mirror.Term() != 0 || old == 0 {
			t.Fatalf("terms %d and %d", old, b.mirror.Term())
		}
		if err := write(a, old, 1); err != nil {
			t.Fatal(err)
		}
		if err := write(a, old+1, 2); !isMoved(err) {
			t.Errorf("a write of a term that has not begun: %v", err)
		}
		a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
		l.level(b)
		if err := write(b, b.mirror.Term(), 3); err != nil {
			t.Fatal(err)
		}
		b.mirror.push(item{event: replica.Switch{ID: isOrder, To: 0}})
		l.level(a)
		if err := write(a, old, 1); !isMoved(err) {
			t.Errorf("a write of a term that is over: %v", err)
		}
		l.expect(a, 0, bytesOf(4096, 3))
	})
}

// TestReadMoves: a read that the copy is at when another node takes over ends as moved as soon as the copy lets its memory go.
func TestReadMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.write(a, 0, bytesOf(4096, 1))
		gate := store(a).Hold(faulty.Match{Kinds: faulty.Reads})
		end := make(chan error, 1)
		go func() { end <- l.do(a, backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}}) }()
		gate.Await(1)
		a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
		l.level(b)
		synctest.Wait()
		select {
		case err := <-end:
			t.Errorf("%v, and the copy has the host's memory still", err)
		default:
		}
		released := time.Now()
		gate.Release()
		if err := <-end; !isMoved(err) || time.Since(released) > time.Second {
			t.Errorf("%v after %v", err, time.Since(released))
		}
		l.expect(b, 0, bytesOf(4096, 1))
	})
}
