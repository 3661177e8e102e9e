package mirror

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
)

// TestMinCopiesDiffer: min_copies is changed on one node after the other. The copies stay level meanwhile, and who serves goes by its own.
func TestMinCopiesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		least := 1
		l.tune = func(c *replica.Config) { c.MinCopies = least }
		a.start()
		least = 2
		b.start()
		l.level(a)
		want := bytesOf(4096, 1)
		l.write(a, 0, want)
		if err := a.mirror.SwitchTo(t.Context(), b.id); err != nil {
			t.Fatal(err)
		}
		l.level(b)
		a.kill()
		l.alone(b)
		if err := l.do(b, backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{bytesOf(4096, 2)}}); !isMoved(err) {
			t.Errorf("a write to one copy of two ends with %v", err)
		}
		a.start()
		l.level(b)
	})
}

// TestSwitchToOneOf: the first of two other copies does not get durable in time what was flushed. The second one takes over, whether an
// administrator wants it, the node ends or it is drained.
func TestSwitchToOneOf(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, m *Mirror){
		"by order": func(t *testing.T, m *Mirror) {
			if err := m.SwitchTo(t.Context(), 1); !errors.Is(err, ErrTooLate) {
				t.Fatal(err)
			}
			if to, err := m.SwitchToOneOf(t.Context(), replica.NodesOf(0, 1, 2)); to != 2 || err != nil {
				t.Errorf("node %d: %v", to, err)
			}
		},
		"at the end": func(_ *testing.T, m *Mirror) { m.HandOver() },
		"drained":    func(_ *testing.T, m *Mirror) { m.Drain(replica.NodesOf(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 3)
				l.tune = func(c *replica.Config) { c.SlowCopy *= 100 } // the late one stays in S
				store := l.withFaults()
				l.begin()
				defer l.end()
				a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
				hang := store(b).Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
				defer hang.Release()
				l.write(a, 0, bytesOf(4096, 1))
				l.flush(a)
				leave(t, a.mirror)
				l.serves(c)
				hang.Release()
				l.level(c)
			})
		})
	}
	if to, err := new(Mirror).SwitchToOneOf(t.Context(), replica.NodesOf(0)); to != 0 || err != ErrCannotTake {
		t.Errorf("nobody else: %d %v", to, err)
	}
}

// TestEndsBesideAnOrder: a primary ends while it hands over because an administrator has ordered that. It waits until the other one serves.
func TestEndsBesideAnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		hang := store(b).Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
		defer hang.Release()
		l.write(a, 0, bytesOf(4096, 1))
		l.flush(a)
		ordered, ended := make(chan error, 1), make(chan struct{})
		go func() { ordered <- a.mirror.SwitchTo(t.Context(), 1) }()
		synctest.Wait()
		go func() { a.mirror.HandOver(); close(ended) }()
		synctest.Wait()
		hang.Release()
		<-ended
		if b.mirror.Term() == 0 {
			t.Error("it ends, and nobody serves")
		}
		if err := <-ordered; err != nil {
			t.Error(err)
		}
	})
}

// TestSwitchesInARow: switches that follow each other quickly. No copy leaves S, though connections begin anew with each where a device gives keys away.
func TestSwitchesInARow(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		l.begin()
		defer l.end()
		from, to := l.nodes[0], l.nodes[1]
		l.level(from)
		before := from.mirror.State().View
		const switches = 6
		for range switches {
			l.write(from, 0, bytesOf(4096, 1))
			if err := from.mirror.SwitchTo(t.Context(), to.id); err != nil {
				t.Fatal(err)
			}
			l.serves(to)
			from, to = to, from
		}
		l.write(from, 0, bytesOf(4096, 2))
		l.level(from)
		if v := from.mirror.State().View; v.Version != before.Version+switches || v.InSync != before.InSync {
			t.Errorf("%d switches lead from %+v to %+v", switches, before, v)
		}
	})
}

// TestConnectsAgainAtOnce: no host waits for the pause before another connection, where that begins anew with a switch.
func TestConnectsAgainAtOnce(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.steady() // a connection that is younger than dialAgain may wait
		began := time.Now()
		if err := a.mirror.SwitchTo(t.Context(), b.id); err != nil {
			t.Fatal(err)
		}
		l.serves(b)
		l.write(b, 0, bytesOf(4096, 1))
		if took := time.Since(began); took >= dialAgain {
			t.Errorf("a write behind a switch is answered after %v", took)
		}
	})
}

// brief is a connection that ends when something was said behind the greeting.
type brief struct {
	net.Conn
	said atomic.Int32
}

func (b *brief) Write(p []byte) (int, error) {
	if b.said.Add(1) == 2 {
		defer b.Close()
	}
	return b.Conn.Write(p)
}

// dials has the other ends of connections wrapped, makes all anew, and tells of each.
func (l *lab) dials(wrapped func(net.Conn) net.Conn) <-chan struct{} {
	made := make(chan struct{}, 1000) // more than a test waits for
	l.setCut(0, 1, true)
	l.accepted = func(c net.Conn) net.Conn {
		select {
		case made <- struct{}{}:
		default:
		}
		return wrapped(c)
	}
	l.setCut(0, 1, false)
	return made
}

// TestConnectsAgainInTime: connections that end as soon as something was said do not follow each other without a pause.
func TestConnectsAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		const pauses = 20
		began, dials := time.Now(), l.dials(func(c net.Conn) net.Conn { return &brief{Conn: c} })
		for range 2 * (pauses + 1) { // for data, and for beats
			<-dials
		}
		if took := time.Since(began); took < pauses*dialAgain {
			t.Errorf("%d connections were made within %v", 2*(pauses+1), took)
		}
		l.dials(func(c net.Conn) net.Conn { return c })
		l.steady()
	})
}

// TestRefusedCopyRests: a copy whose disk takes nothing begins anew again and again, each time with all that is known of what it lacks, and not as often as it can.
func TestRefusedCopyRests(t *testing.T) {
	for _, kind := range []backend.Kind{backend.Write, backend.Flush} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			store := l.withFaults()
			l.begin()
			defer l.end()
			a, b := l.nodes[0], l.nodes[1]
			began, dials := time.Now(), l.dials(func(c net.Conn) net.Conn { return c })
			mend := store(b).Fail(faulty.Match{Kinds: []backend.Kind{kind}}, errDisk)
			const pauses = 20
			for i := range 3 * pauses { // for data, and for beats, and more often at first
				l.write(a, 0, bytesOf(4096, byte(i)))
				<-dials
			}
			if took := time.Since(began); took < pauses*dialAgainMost {
				t.Errorf("%v: %d connections were made within %v", kind, 3*pauses, took)
			}
			mend()
			l.level(a)
		})
	}
}

// failing are views of nodes of which one hangs in the moment in which another one gives it the office. Who is deaf does not learn of that.
type failing struct {
	voter
	hang func()
	deaf *atomic.Bool
}

func (f failing) Watch(take func(replica.View)) (stop func(), err error) {
	return f.voter.Watch(func(v replica.View) {
		if !v.Planned || !f.deaf.Load() {
			take(v)
		}
	})
}

func (f failing) Propose(v replica.View) {
	if v.Planned {
		f.hang()
	}
	f.voter.Propose(v)
}

// labThatFails begins copies of which the second one hangs when the office is given to it, as SIGSTOP has it, until goOn is called. The
// first one may be deaf.
func labThatFails(t *testing.T, copies int) (l *lab, deaf *atomic.Bool, goOn func()) {
	l, deaf = newLab(t, copies), new(atomic.Bool)
	hung := make(chan struct{})
	hang := sync.OnceFunc(func() { l.nodes[1].mirror.push(item{call: func() { <-hung }}) })
	l.views = func(n *node) Views {
		f := failing{voter{l.register, n.id}, hang, new(atomic.Bool)}
		if n.id == 0 {
			f.deaf = deaf
		}
		return f
	}
	l.begin()
	return l, deaf, sync.OnceFunc(func() { close(hung) })
}

// TestSuccessor: who has handed over learns who serves: the one that was given the office, or, if that hangs, who has taken over since.
func TestSuccessor(t *testing.T) {
	for _, c := range []struct {
		name          string
		deaf, drained bool
		want          replica.ID
	}{
		{name: "it serves", want: 1},
		{name: "it hangs", want: 0},
		{name: "it hangs, and this one learns late that it has the office", deaf: true, want: 0},
		{name: "it hangs, and this one is drained", drained: true, want: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, deaf, goOn := labThatFails(t, 3)
				defer l.end()
				defer goOn()
				deaf.Store(c.deaf)
				l.setCut(0, 2, c.deaf)
				a := l.nodes[0].mirror
				if c.want == 1 {
					goOn()
				}
				if err := a.SwitchTo(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				l.setCut(0, 2, false)
				if c.drained {
					a.Drain(replica.NodesOf(0))
				}
				if id, err := a.Successor(t.Context()); id != c.want || err != nil {
					t.Errorf("node %d serves: %v", id, err)
				}
				l.serves(l.nodes[c.want])
				goOn()
				l.level(l.nodes[c.want])
			})
		})
	}
	t.Run("a primary of former times beats", func(t *testing.T) {
		o, says := office{given: 5}, make(chan replica.ID, 1)
		o.tellOfSuccessor(says, 1)
		if o.heardOf(2, 4); len(says) > 0 {
			t.Errorf("node %d serves, by a beat of a term before", <-says)
		}
		if o.heardOf(1, 5); len(says) != 1 || <-says != 1 {
			t.Error("nobody serves")
		}
	})
	t.Run("it hangs, and this one takes part no more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, goOn := labThatFails(t, 2)
			defer l.end()
			a, b := l.nodes[0], l.nodes[1]
			if err := a.mirror.SwitchTo(t.Context(), b.id); err != nil {
				t.Fatal(err)
			}
			a.mirror.Retire()
			if id, err := a.mirror.Successor(t.Context()); err != ErrSilent {
				t.Errorf("node %d serves: %v", id, err)
			}
			goOn()
			l.alone(b)
		})
	})
}

// TestEndsWithSuccessorThatHangs: a primary ends in good order, and the node to which it hands over hangs just then. A third copy serves, with what was acknowledged;
// if there is none that one does when it goes on, for it stays in sync.
func TestEndsWithSuccessorThatHangs(t *testing.T) {
	for copies := 2; copies <= 3; copies++ {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, goOn := labThatFails(t, copies)
				defer l.end()
				defer goOn()
				a, next := l.nodes[0], l.nodes[copies-1]
				want := bytesOf(128<<10, 1)
				l.write(a, 0, want)
				began := time.Now()
				a.mirror.HandOver()
				if took := time.Since(began); took > SuccessorWithin {
					t.Errorf("it has waited for %v", took)
				}
				if err := a.mirror.Close(); err != nil {
					t.Error(err)
				}
				a.mirror = nil
				if copies == 2 {
					goOn()
				}
				l.alone(next)
				l.expect(next, 0, want)
				goOn()
				a.start()
				l.level(next)
			})
		})
	}
}
