package mirror

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// stalling is a store whose next read waits, once, where it is submitted: as does a process that is stopped there.
type stalling struct {
	backend.Store
	next *atomic.Pointer[chan struct{}]
}

func (s *stalling) Submit(op *backend.Op) bool {
	if op.Kind == backend.Read {
		if c := s.next.Swap(nil); c != nil {
			<-*c
		}
	}
	return s.Store.Submit(op)
}

// plain is a disk that takes no memory for an operation.
type plain struct {
	backend.Store
	b []byte
}

func (p *plain) Submit(op *backend.Op) bool {
	b := p.b[op.Off:]
	for _, s := range op.Segs {
		if op.Kind == backend.Read {
			copy(s, b)
		} else {
			copy(b, s)
		}
		b = b[len(s):]
	}
	return true
}

// deaf are views of which nobody learns while cut is set; others tell later.
type deaf struct {
	Views
	cut *atomic.Bool
}

func (d *deaf) Watch(f func(replica.View)) (func(), error) {
	return d.Views.Watch(func(v replica.View) {
		if !d.cut.Load() {
			f(v)
		}
	})
}

// TestReadIsProvenLater: the primary stands still in the middle of what it does, for so long that the other node takes over and
// takes a write. A read that comes then is not answered by what was proven before, neither by answers to beats nor by a lease.
func TestReadIsProvenLater(t *testing.T) {
	for name, test := range map[string]struct{ confirm, now bool }{"confirmed": {confirm: true}, "leased": {}, "leased, and read at once": {now: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { readIsProvenLater(t, test.confirm, test.now) })
		})
	}
}

func readIsProvenLater(t *testing.T, confirm, now bool) {
	l := newLab(t, 2)
	var next atomic.Pointer[chan struct{}]
	l.wrap = func(s backend.Store) backend.Store {
		if now {
			return &prompt{Store: &stalling{s, &next}}
		}
		return &stalling{s, &next}
	}
	l.tune = func(c *replica.Config) { c.Confirm = confirm }
	var cut atomic.Bool
	l.views = func(n *node) Views {
		if n.id == 0 {
			return &deaf{voter{l.register, 0}, &cut}
		}
		return voter{l.register, n.id}
	}
	l.begin()
	former, other := l.nodes[0], l.nodes[1]
	l.write(former, 0, bytesOf(4096, 1))

	read := func() (*backend.Op, waiter) {
		w := make(waiter, 1)
		return &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: w}, w
	}
	still := make(chan struct{})
	next.Store(&still)
	before, began := read()
	go func() {
		if former.mirror.Submit(before) {
			began.OpDone(before)
		}
	}()
	cut.Store(true) // it hears nothing of what follows
	l.setCut(0, 1, true)
	l.await(other, "it takes over", func(s replica.State) bool { return s.Role == replica.Primary })
	if next.Load() != nil {
		t.Fatal("the read has not come to the copy")
	}
	l.write(other, 0, bytesOf(4096, 2))
	after, done := read()
	if former.mirror.Submit(after) {
		t.Fatal("somebody else owns the core")
	}
	close(still)
	<-began // it may have either, for it came before
	synctest.Wait()
	last, gone := read()
	over := former.mirror.Submit(last)
	cut.Store(false)
	l.setCut(0, 1, false)
	<-done
	if !over {
		<-gone
	}
	for _, op := range []*backend.Op{after, last} {
		if op.Err == nil && string(op.Segs[0]) != string(bytesOf(4096, 2)) {
			t.Error("the former primary has answered with what was there before another one's write")
		}
	}
	for _, n := range l.nodes {
		n.kill()
	}
}

// TestLease: with a lease the primary answers a read at once, without another node.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.wrap = func(s backend.Store) backend.Store { return &plain{s, make([]byte, testSize)} }
		l.tune = func(c *replica.Config) { c.Confirm = false }
		l.begin()
		n := l.nodes[0]
		time.Sleep(2 * n.mirror.cfg.Heartbeat)
		synctest.Wait()
		read := func(buf []byte) (now bool) {
			w := make(waiter, 1)
			op := &backend.Op{Kind: backend.Read, Len: int64(len(buf)), Segs: [][]byte{buf}, Done: w}
			now = n.mirror.Submit(op)
			if !now {
				<-w
			}
			if op.Err != nil {
				t.Error(op.Err)
			}
			return now
		}
		if !read(make([]byte, 4096)) {
			t.Error("a read with a lease waits for somebody")
		}
		l.end()
	})
}

// TestSleepIsNoticed: who relies on a lease, and who gives one, asks a clock that has gone on while the machine slept. Ticks note how
// long that was, for everything else.
func TestSleepIsNoticed(t *testing.T) {
	read, write := item{op: &backend.Op{Kind: backend.Read}}, item{op: &backend.Op{Kind: backend.Write}}
	for name, test := range map[string]struct {
		confirm bool
		asking  int
		items   []item
		notices bool
	}{
		"a leased read":              {false, 0, []item{write, read}, true},
		"one under way":              {false, 1, []item{write}, true},
		"a confirmed read":           {true, 1, []item{read}, false},
		"a write":                    {false, 0, []item{write}, false},
		"a beat":                     {true, 0, []item{{frame: &received{kind: frameBeat}}}, true},
		"an answer to a beat":        {true, 0, []item{{frame: &received{kind: frameEcho}}}, false},
		"a tick":                     {true, 0, []item{{event: replica.Tick{}}}, true},
		"a write that reads, as FUA": {false, 0, []item{{op: &backend.Op{Kind: backend.Write, Flags: backend.FUA}}}, true},
	} {
		m := &Mirror{cfg: replica.Config{Confirm: test.confirm}, clock: newClock(nil), asking: test.asking}
		awake := m.clock.exact()
		m.clock.ahead -= time.Hour // it has slept since
		if now := m.look(test.items); (now >= awake) != test.notices {
			t.Errorf("%s: the clock shows %v, and before it slept %v", name, now, awake)
		}
	}
}

// TestAtMost: the clock that a read goes by that is done at once is not behind, whether the machine has slept, somebody has set its time of day, or its process
// stood still while the clock was read.
func TestAtMost(t *testing.T) {
	for name, since := range map[string]func(c *clock){
		"nothing":             func(*clock) {},
		"a sleep":             func(c *clock) { c.most, c.wall = c.most-time.Hour, c.wall-time.Hour },
		"a short sleep":       func(c *clock) { c.most, c.wall = c.most-slept*9/10, c.wall-slept*9/10 },
		"the time of day set": func(c *clock) { c.wall -= time.Hour },
		"set back":            func(c *clock) { c.wall += time.Hour },
		"a sleep, and so set": func(c *clock) { c.most, c.wall = c.most-time.Hour, c.wall+time.Hour },
		"a stop":              func(c *clock) { c.ahead -= time.Hour },
	} {
		c := newClock(nil)
		c.exact()
		since(&c)
		before := bootTime()
		if now := c.atMost(); now < before || now > bootTime()+2*slept {
			t.Errorf("%s: the clock shows %v, and it is %v", name, now, before)
		}
	}
}

func TestIsReal(t *testing.T) {
	for cpuinfo, want := range map[string]bool{
		"processor\t: 0\nflags\t\t: fpu vme sse\n":                true,
		"processor\t: 0\nflags\t\t: fpu vme hypervisor sse\n":     false,
		"flags\t\t: fpu\nprocessor\t: 1\nflags\t\t: hypervisor\n": false,
		"processor\t: 0\nFeatures\t: fp asimd\n":                  false,
		"":                                                        false,
	} {
		if isReal(cpuinfo) != want {
			t.Errorf("%q: %v", cpuinfo, !want)
		}
	}
}
