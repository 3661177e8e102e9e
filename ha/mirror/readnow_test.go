package mirror

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// prompt is a store that does reads at once, and counts those.
type prompt struct {
	backend.Store
	reads atomic.Int32
	in    func() // called in ReadNow before it reads; nil: nothing is
}

func (p *prompt) ReadNow(op *backend.Op) bool {
	if p.in != nil {
		p.in()
	}
	p.reads.Add(1)
	return p.Submit(op)
}

var _ backend.Prompt = (*prompt)(nil)

// promptLab has leases, and copies that do reads at once. It returns that of the primary.
func promptLab(t *testing.T, wrap func(backend.Store) backend.Store) (*lab, *prompt) {
	l := newLab(t, 2)
	p := &prompt{}
	l.tune = func(c *replica.Config) { c.Confirm = false }
	l.wrap = func(s backend.Store) backend.Store {
		if p.Store != nil {
			return &prompt{Store: s}
		}
		if p.Store = s; wrap != nil {
			p.Store = wrap(s)
		}
		return p
	}
	l.begin()
	time.Sleep(2 * l.nodes[0].mirror.cfg.Heartbeat)
	synctest.Wait()
	return l, p
}

// readOf starts a read of 4 KiB, and says whether it was over at once.
func readOf(n *node, off int64, flags backend.Flags, term uint64) (*backend.Op, waiter, bool) {
	w := make(waiter, 1)
	op := &backend.Op{Kind: backend.Read, Off: off, Len: 4096, Flags: flags, Term: term, Segs: [][]byte{make([]byte, 4096)}, Done: w}
	return op, w, n.mirror.Submit(op)
}

// idle changes what the core's owner reads, while nobody owns the core.
func idle(n *node, change func()) {
	synctest.Wait()
	n.mirror.mu.Lock()
	defer n.mirror.mu.Unlock()
	change()
}

// TestReadNow: what the copy has in memory is read where the host asks for it, if that is what the host is to get.
func TestReadNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holding{}
		l, p := promptLab(t, func(s backend.Store) backend.Store { h.Store = s; return h })
		n := l.nodes[0]
		h.mu.Lock()
		h.lets = true
		h.mu.Unlock()
		l.write(n, 0, bytesOf(4096, 1))
		l.expect(n, 0, bytesOf(4096, 1)) // the core is told that the disk has it
		h.mu.Lock()
		h.lets = false
		h.mu.Unlock()
		now := func(what string, want bool, off int64, flags backend.Flags, term uint64, seed byte) {
			t.Helper()
			synctest.Wait() // nobody owns the core
			before := p.reads.Load()
			op, w, over := readOf(n, off, flags, term)
			if at := p.reads.Load() > before; at != want {
				t.Errorf("%s: read at once: %v", what, at)
			}
			if flags&backend.More != 0 {
				n.mirror.Kick()
			}
			if over != want && want {
				t.Errorf("%s: it is not over", what)
			}
			if !over {
				select {
				case <-w:
				case <-time.After(5 * time.Second):
					h.letGo()
					<-w
				}
			}
			if op.Err != nil || op.Segs[0][0] != bytesOf(4096, seed)[0] {
				t.Errorf("%s: %v, byte %#x", what, op.Err, op.Segs[0][0])
			}
		}
		term := n.mirror.Term()
		now("nothing is under way", true, 0, 0, 0, 1)
		now("in a batch", true, 0, backend.More, 0, 1)
		now("in its term", true, 0, 0, term, 1)
		now("of the medium", false, 0, backend.FUA, 0, 1)
		op, w, over := readOf(n, 0, 0, term+1)
		if !over {
			<-w
		}
		if op.Err == nil {
			t.Error("a read in a term that has not begun is done")
		}
		l.write(n, 0, bytesOf(4096, 2)) // both memories have it, and the primary's disk does not
		now("the disk has what is elsewhere", true, 1<<20, 0, 0, 0)
		now("the disk has it not yet", false, 0, 0, 0, 2)
		h.letGo()
		idle(n, func() { n.mirror.kept = []span{{2048, 512}} }) // of an atomic write, which the disk may have in part
		now("the journal has a part", false, 0, 0, 0, 2)
		l.end()
	})
}

// TestReadNowNotHere: where reads are confirmed, and on a node that is not the primary, no read is done at once. See TestReadIsProvenLater for a lease that
// is over.
func TestReadNowNotHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := promptLab(t, nil)
		n, other := l.nodes[0], l.nodes[1]
		l.write(n, 0, bytesOf(4096, 1))
		l.expect(n, 0, bytesOf(4096, 1))
		if op, w, over := readOf(other, 0, 0, 0); !over {
			<-w
			if op.Err == nil {
				t.Error("the other node serves")
			}
		}
		idle(n, func() { n.mirror.cfg.Confirm = true })
		before := p.reads.Load()
		l.expect(n, 0, bytesOf(4096, 1))
		if p.reads.Load() != before {
			t.Error("reads are confirmed, and one was done at once")
		}
		idle(n, func() { n.mirror.cfg.Confirm = false })
		l.end()
	})
}

// TestReadNowLeavesNothing: what others bring while a read is done at once is done when it is over.
func TestReadNowLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := promptLab(t, nil)
		n := l.nodes[0]
		wrote := make(chan error, 1)
		p.in = func() {
			p.in = nil
			go func() {
				wrote <- l.do(n, backend.Op{Kind: backend.Write, Off: 1 << 20, Len: 4096, Segs: [][]byte{bytesOf(4096, 3)}})
			}()
			time.Sleep(time.Millisecond) // it has left its operation to who owns the core
			if _, w, over := readOf(n, 0, 0, 0); over {
				t.Error("two own the core")
			} else {
				go func() { <-w }()
			}
		}
		m := n.mirror
		m.mu.Lock()
		m.ticker.Stop() // nothing else comes by
		m.mu.Unlock()
		if _, _, over := readOf(n, 0, 0, 0); !over {
			t.Error("it is not read at once")
		}
		synctest.Wait()
		m.mu.Lock()
		left := len(m.inbox)
		m.ticker.Reset(time.Millisecond)
		m.mu.Unlock()
		if left != 0 {
			t.Errorf("%d things that were brought meanwhile are left", left)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		l.end()
	})
}
