package reservations

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/internal/rounds"
	"oneshot/volume/access"
)

// fence is PREEMPT AND ABORT of the holder of a key.
func fence(key, other uint64) *access.Change {
	return &access.Change{Op: access.PreemptAndAbort, Key: key, NewKey: other, Kind: access.WriteExclusiveRegistrants}
}

func reserve(key uint64) *access.Change {
	return &access.Change{Op: access.Reserve, Key: key, Kind: access.WriteExclusiveRegistrants}
}

// TestOtherNode: what comes through a node that does not serve the volume is enforced by the one that does, before it is
// answered; everybody whom it concerns is told, on all nodes; what it aborts has ended.
func TestOtherNode(t *testing.T) {
	in(t, 1, func(l *lab, a, b *node) {
		good, bad, badOnB := b.login("good"), a.login("bad"), b.login("bad")
		l.want("good registers", good.register(1, false), access.Done)
		l.want("bad registers", bad.register(2, false), access.Done)
		l.want("bad registers on b", badOnB.register(2, false), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		if d, _ := bad.has(); d != 0 {
			t.Errorf("who is registered is denied %#x", d)
		}
		aborted := make(chan func(), 1)
		bad.abort = func(done func()) { aborted <- done }
		var wg sync.WaitGroup
		answered := false
		wg.Go(func() { l.want("good fences", good.do(fence(1, 2)), access.Done); answered = true })
		over := <-aborted
		time.Sleep(time.Second)
		synctest.Wait()
		if answered {
			t.Error("it is answered before what it aborts has ended")
		}
		over()
		wg.Wait()
		for _, s := range []*session{bad, badOnB} {
			if d, e := s.has(); d&access.Writes == 0 || e != access.RegistrationsPreempted {
				t.Errorf("on %s denied %#x, told %#x", s.n.name, d, e)
			}
		}
		if _, e := good.has(); e != 0 {
			t.Errorf("who has done it is told %#x", e)
		}
		look := &access.Change{Op: access.Look}
		l.want("bad looks", bad.do(look), access.Done)
		if s := look.State; len(s.Registrations) != 1 || s.Registrations[0].Key != 1 || s.Generation != 4 || !s.Held(0) {
			t.Errorf("%+v", s)
		}
	})
}

// TestCutOff: a primary that is cut off from consensus, and may serve, keeps its state, and nobody is told of another one. A
// change that nobody could answer, sent again, is not done twice.
func TestCutOff(t *testing.T) {
	in(t, 2, func(l *lab, a, b *node) {
		good, bad := b.login("good"), a.login("bad")
		l.want("good registers", good.register(1, true), access.Done)
		l.want("bad registers", bad.register(2, true), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		l.locked(func() { a.cut = true })
		began := time.Now()
		l.want("good fences while a is cut off", good.do(fence(1, 2)), access.NotNow)
		if took := time.Since(began); took != Patience {
			t.Errorf("it takes %v", took)
		}
		if d, _ := bad.has(); d != 0 {
			t.Errorf("a denies %#x", d)
		}
		l.want("b looks", good.do(&access.Change{Op: access.Look}), access.NotNow)
		look := &access.Change{Op: access.Look}
		l.want("a looks", bad.do(look), access.Done)
		if len(look.State.Registrations) != 2 {
			t.Errorf("a shows %+v", look.State)
		}
		began = time.Now()
		results := make(chan access.Result, 3)
		for range cap(results) { // together, not one after the other
			go func() { results <- bad.register(3, true) }()
		}
		for range cap(results) {
			l.want("a change through a", <-results, access.NotNow)
		}
		if took := time.Since(began); took > Patience {
			t.Errorf("three take %v", took)
		}
		l.locked(func() { a.cut = false })
		l.want("good fences again", good.do(fence(1, 2)), access.Done)
		if d, e := bad.has(); d&access.Writes == 0 || e != access.RegistrationsPreempted {
			t.Errorf("denied %#x, told %#x", d, e)
		}
		l.want("and anew", good.do(fence(1, 2)), access.Conflict)
	})
}

// TestNotAnswered: what nobody could answer is known again when it is sent once more, however often that was in vain before, and whatever others
// have asked for in vain.
func TestNotAnswered(t *testing.T) {
	in(t, 12, func(l *lab, a, b *node) {
		good, other := b.login("good"), b.login("other")
		register := func() access.Result { return good.do(&access.Change{Op: access.Register, NewKey: 1}) }
		l.locked(func() { a.cut = true })
		for range 2 {
			l.want("good registers while a is cut off", register(), access.NotNow)
		}
		l.locked(func() { a.cut = false })
		l.want("other has no key", other.do(reserve(2)), access.Conflict)
		l.want("good registers again", register(), access.Done)
		l.want("and anew", register(), access.Conflict)
	})
}

// TestTakeover: a primary dies with a change that it has not answered. The change is in force when the next one serves,
// and what the former one says of it, or said of another term, counts for nothing.
func TestTakeover(t *testing.T) {
	in(t, 3, func(l *lab, a, b *node) {
		good, bad := b.login("good"), b.login("bad")
		l.want("good registers", good.register(1, false), access.Done)
		l.want("bad registers", bad.register(2, false), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		l.locked(func() { a.cut = true })
		var wg sync.WaitGroup
		wg.Go(func() { l.want("good fences", good.do(fence(1, 2)), access.Done) })
		time.Sleep(time.Second)
		synctest.Wait()
		l.elect("b")
		wg.Wait()
		if d, _ := bad.has(); d&access.Writes == 0 {
			t.Errorf("b denies %#x", d)
		}
		l.want("a, which is a primary of the past, looks", a.login("late").do(&access.Change{Op: access.Look}), access.NotNow)
		look := &access.Change{Op: access.Look}
		l.locked(func() { a.cut = false })
		l.want("a looks when it hears of it", a.login("late").do(look), access.Done)
		if len(look.State.Registrations) != 1 {
			t.Errorf("a shows %+v", look.State)
		}
	})
}

// TestRestarts: what was not to outlive a loss of power ends when all nodes have begun anew, and not before; the rest stays.
func TestRestarts(t *testing.T) {
	for _, persist := range []bool{false, true} {
		in(t, 4, func(l *lab, a, b *node) {
			l.want("registers", a.login("good").register(1, persist), access.Done)
			time.Sleep(time.Second) // b is warm
			restart := func(nodes ...*node) (left int) {
				for _, n := range nodes {
					n.end()
				}
				for _, n := range nodes {
					n.begin()
				}
				time.Sleep(time.Second)
				l.elect("b")
				time.Sleep(time.Second)
				synctest.Wait()
				look := &access.Change{Op: access.Look}
				l.want("look", b.login("good").do(look), access.Done)
				return len(look.State.Registrations)
			}
			for range 2 {
				if n := restart(a); n != 1 {
					t.Errorf("%d registrations after a", n)
				}
				if n := restart(b); n != 1 {
					t.Errorf("%d registrations after b", n)
				}
			}
			want := 0
			if persist {
				want = 1
			}
			if n := restart(a, b); n != want {
				t.Errorf("%d registrations after a loss of power, want %d (kept: %t)", n, want, persist)
			}
		})
	}
}

// TestServedBeforeTheLastIsBack: what was not to outlive a loss of power stays if a node has served the volume since, though the others come back
// later: hosts are using it, and rely on their fences.
func TestServedBeforeTheLastIsBack(t *testing.T) {
	in(t, 13, func(l *lab, a, b *node) {
		good := b.login("good")
		l.want("good registers", good.register(1, false), access.Done)
		l.want("bad registers", b.login("bad").register(2, false), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		l.want("good fences", good.do(fence(1, 2)), access.Done)
		time.Sleep(time.Second) // both are warm
		a.end()
		b.end()
		b.begin()
		time.Sleep(time.Second)
		l.elect("b")
		time.Sleep(time.Second)
		bad := b.login("bad")
		if d, _ := bad.has(); d&access.Writes == 0 {
			t.Fatalf("while b is alone who was fenced is denied %#x", d)
		}
		a.begin()
		time.Sleep(time.Second)
		if d, e := bad.has(); d&access.Writes == 0 || e != 0 {
			t.Errorf("when a is back who was fenced is denied %#x, and told %#x", d, e)
		}
		look := &access.Change{Op: access.Look}
		l.want("look", a.login("good").do(look), access.Done)
		if n := len(look.State.Registrations); n != 1 {
			t.Errorf("%d registrations are left", n)
		}
	})
}

// TestNewLife: a process that begins learns of changes of the past, and tells nobody. What a session does that came meanwhile is not
// aborted because its initiator was fenced before.
func TestNewLife(t *testing.T) {
	in(t, 9, func(l *lab, a, b *node) {
		good := b.login("good")
		l.want("good registers", good.register(1, true), access.Done)
		l.want("bad registers", a.login("bad").register(2, true), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		l.want("good fences", good.do(fence(1, 2)), access.Done)
		a.end()
		a.begin()
		l.elect("a")
		bad := a.login("bad")
		bad.abort = func(done func()) { t.Error("aborted"); done() }
		time.Sleep(time.Second)
		if d, e := bad.has(); d&access.Writes == 0 || e != 0 {
			t.Errorf("denied %#x, told %#x", d, e)
		}
		l.want("bad registers again", bad.register(2, true), access.Done)
		aborted := false
		bad.abort = func(done func()) { aborted = true; done() }
		l.want("good fences again", good.do(fence(1, 2)), access.Done)
		if _, e := bad.has(); !aborted || e != access.RegistrationsPreempted {
			t.Errorf("told %#x, aborted %t", e, aborted)
		}
	})
}

// TestServesBeforeItHasAsked: a new life that serves already, and has not had the answer to what it has asked first, aborts commands as
// any primary does before it says that a change is in force.
func TestServesBeforeItHasAsked(t *testing.T) {
	in(t, 10, func(l *lab, a, b *node) {
		good := b.login("good")
		l.want("good registers", good.register(1, true), access.Done)
		l.want("bad registers", a.login("bad").register(2, true), access.Done)
		l.want("good reserves", good.do(reserve(1)), access.Done)
		a.end()
		l.locked(func() { a.unheard = true })
		a.begin()
		l.elect("a")
		bad := a.login("bad")
		bad.abort = func(done func()) { t.Error("it is aborted for what happened before this life"); done() }
		time.Sleep(time.Second)
		if a.term() == 0 {
			t.Fatal("a does not serve")
		}
		aborted := make(chan func(), 1)
		bad.abort = func(done func()) { aborted <- done }
		answered := make(chan access.Result, 1)
		go func() { answered <- good.do(fence(1, 2)) }()
		time.Sleep(time.Second)
		l.locked(func() { a.unheard = false })
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case over := <-aborted:
			if len(answered) != 0 {
				t.Error("it is answered before what it aborts has ended")
			}
			over()
		default:
			t.Error("the commands of who was fenced go on")
		}
		l.want("good fences", <-answered, access.Done)
	})
}

// TestTooManyWait: a primary that cannot say for a moment that it keeps to a change, or what it begins with, because too many wait for
// consensus, says it later. Nothing else would have it said: a command that is sent again changes nothing more.
func TestTooManyWait(t *testing.T) {
	in(t, 11, func(l *lab, a, b *node) {
		good := b.login("good")
		l.want("good registers", good.register(1, true), access.Done)
		l.locked(func() { a.refused = 2 })
		l.want("good registers anew", good.register(2, true), access.Done)
		a.end()
		l.locked(func() { a.refused = 1 })
		a.begin()
		l.elect("a")
		l.want("good registers in a new life of a", good.register(3, true), access.Done)
	})
}

// TestChangedMeanwhile: what is registered after a loss of power stays when the last node begins anew.
func TestChangedMeanwhile(t *testing.T) {
	in(t, 8, func(l *lab, a, b *node) {
		l.want("registers", a.login("former").register(1, false), access.Done)
		time.Sleep(time.Second)
		a.end()
		b.end()
		a.begin()
		l.elect("a")
		time.Sleep(time.Second)
		l.want("registers", a.login("new").register(2, false), access.Done)
		b.begin()
		time.Sleep(time.Second)
		look := &access.Change{Op: access.Look}
		l.want("look", b.login("new").do(look), access.Done)
		if len(look.State.Registrations) != 2 {
			t.Errorf("%+v", look.State)
		}
	})
}

// TestLost: a change whose success was not learned is not done twice, though others have changed the state since.
func TestLost(t *testing.T) {
	in(t, 7, func(l *lab, a, b *node) {
		l.locked(func() { l.lossy = true })
		var wg sync.WaitGroup
		for _, n := range []*node{a, b} {
			s, other := n.login("good"), n.login("other")
			wg.Go(func() {
				for range 30 {
					l.want("registers", other.register(uint64(n.id)+10, false), access.Done)
					l.want("registers", s.register(uint64(n.id), false), access.Done)
					l.want("fences", s.do(fence(uint64(n.id), uint64(n.id)+10)), access.Done)
				}
			})
		}
		wg.Wait()
		if n := a.table.State().Generation; n != 180 {
			t.Errorf("180 changes count as %d", n)
		}
	})
}

// TestTooLarge: more than a record holds is refused, and changes nothing.
func TestTooLarge(t *testing.T) {
	in(t, 5, func(l *lab, a, _ *node) {
		s := a.login("good")
		var many []access.Initiator
		for i := range 4000 {
			many = append(many, access.Initiator{Protocol: access.ISCSI, Name: fmt.Sprint(strings.Repeat("x", 215), i), Port: "400000000001"})
		}
		l.want("registers too many", s.do(&access.Change{Op: access.Register, NewKey: 1, Others: many, Besides: true}), access.Full)
		l.want("registers half", s.do(&access.Change{Op: access.Register, NewKey: 1, Others: many[:1000], Besides: true}), access.Done)
	})
}

// TestFuture: a node that cannot read the record of a newer version does not say that it keeps to it.
func TestFuture(t *testing.T) {
	in(t, 6, func(l *lab, a, b *node) {
		s := b.login("good")
		l.want("registers", s.register(1, false), access.Done)
		l.locked(func() {
			k := b.res.core.RecordKey()
			l.put(k, l.newest[k].Version, []byte(`{"Format":2}`))
		})
		l.want("registers again", s.register(2, false), access.NotNow)
		l.want("looks", s.do(&access.Change{Op: access.Look}), access.NotNow)
	})
}

// TestJump: who has missed changes tells everybody whom they may have concerned.
func TestJump(t *testing.T) {
	table := access.NewTable(access.Nothing(), nil)
	n := &node{id: 1, table: table}
	bad := n.login("bad")
	bad.abort = func(done func()) { bad.Tell(access.AccessChanged); done() }
	two := access.State{Kind: access.WriteExclusiveRegistrants, Registrations: []access.Registration{{Holder: bad.holder, Key: 2}, {Key: 1, Holder: access.Holder{Port: access.Port{Group: 9}}}}}
	if table.Adopt(&access.Common{Changes: 7, State: two}, true) != nil {
		t.Error("there is something to abort")
	}
	one := access.State{Kind: access.WriteExclusive, Registrations: two.Registrations[1:]}
	table.Adopt(&access.Common{Changes: 9, State: one}, true)(func() {})
	if d, e := bad.has(); d&access.Writes == 0 || e != access.RegistrationsPreempted|access.AccessChanged {
		t.Errorf("denied %#x, told %#x", d, e)
	}
	if table.Adopt(&access.Common{Changes: 8, State: two}, true) != nil || len(table.State().Registrations) != 1 {
		t.Error("an older state is adopted")
	}
}

// TestStorm: nodes are cut off, primaries change, answers get lost, while initiators register with keys that grow. Whoever
// serves has what was answered; what a node shows is in force, and not older than what was answered.
func TestStorm(t *testing.T) {
	for seed := range uint64(rounds.Of(40, 8)) {
		in(t, seed, func(l *lab, a, b *node) {
			l.locked(func() { l.lossy = true })
			nodes := []*node{a, b}
			var mu sync.Mutex
			answered := map[access.Holder]uint64{}
			keyOf := func(s access.State, h access.Holder) uint64 {
				for _, r := range s.Registrations {
					if r.Holder == h {
						return r.Key
					}
				}
				return 0
			}
			// serves has the state of the node that serves, if one does.
			serves := func() (access.State, bool) {
				l.mu.Lock()
				n := l.ids[l.view.Primary]
				is := n.view.Term == l.view.Term
				l.mu.Unlock()
				return n.table.State(), is
			}
			draw := func(n int) int {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.r.IntN(n)
			}
			var wg sync.WaitGroup
			done := 0
			for i := range 6 {
				s := nodes[i%2].login(fmt.Sprint("host", i))
				wg.Go(func() {
					for key := uint64(1); key < 30; key++ {
						time.Sleep(time.Duration(draw(300)) * time.Millisecond)
						if draw(3) == 0 {
							mu.Lock()
							before := map[access.Holder]uint64{}
							for h, k := range answered {
								before[h] = k
							}
							mu.Unlock()
							look := &access.Change{Op: access.Look}
							if s.do(look) != access.Done {
								continue
							}
							for h, k := range before {
								if keyOf(look.State, h) < k {
									t.Errorf("seed %d: %s shows key %d of %v, and %d was answered before", seed, s.n.name, keyOf(look.State, h), h, k)
								}
							}
							if now, is := serves(); is {
								for _, r := range look.State.Registrations {
									if keyOf(now, r.Holder) < r.Key {
										t.Errorf("seed %d: %s shows key %d, which is not in force", seed, s.n.name, r.Key)
									}
								}
							}
							continue
						}
						if s.register(key, true) != access.Done {
							continue
						}
						if now, is := serves(); is && keyOf(now, s.holder) < key {
							t.Errorf("seed %d: key %d is answered on %s, and the primary has %d", seed, key, s.n.name, keyOf(now, s.holder))
						}
						mu.Lock()
						answered[s.holder] = key
						done++
						mu.Unlock()
					}
				})
			}
			for range 20 {
				time.Sleep(time.Duration(draw(1000)) * time.Millisecond)
				n := nodes[draw(2)]
				switch draw(4) {
				case 0:
					l.locked(func() { n.cut = true })
				case 1:
					l.elect(n.name)
				default:
					l.locked(func() { a.cut, b.cut = false, false })
				}
			}
			l.locked(func() { a.cut, b.cut, l.lossy = false, false, false })
			wg.Wait()
			if done < 20 {
				t.Errorf("seed %d: only %d were answered", seed, done)
			}
		})
	}
}

// modes is MODE SELECT.
func modes(n uint32) *access.Change { return &access.Change{Op: access.SetModes, Modes: n} }

// TestModes: mode parameters hold on all nodes, before the command is answered; all but who has changed them are told. They outlive the
// nodes one by one, and end with a loss of power of all, whether or not registrations do.
func TestModes(t *testing.T) {
	for _, persist := range []bool{false, true} {
		in(t, 11, func(l *lab, a, b *node) {
			on := func(n *node, want uint32) {
				t.Helper()
				if got := n.table.Modes(); got != want {
					t.Errorf("on %s they are %d, want %d", n.name, got, want)
				}
			}
			x, y, z := b.login("x"), b.login("y"), a.login("z")
			l.want("x registers", x.register(1, persist), access.Done)
			l.want("x selects", x.do(modes(3)), access.Done)
			on(a, 3)
			on(b, 3)
			for _, s := range []*session{y, z} {
				if _, e := s.has(); e != access.ModesChanged {
					t.Errorf("another session on %s is told %#x", s.n.name, e)
				}
			}
			if _, e := x.has(); e != 0 {
				t.Errorf("who has changed them is told %#x", e)
			}
			l.want("x selects the same", x.do(modes(3)), access.Done)
			if _, e := y.has(); e != 0 {
				t.Errorf("of no change is told %#x", e)
			}
			time.Sleep(time.Second) // both are warm
			for _, n := range []*node{a, b} {
				n.end()
				n.begin()
				time.Sleep(time.Second)
				l.elect("b")
				time.Sleep(time.Second)
				on(a, 3)
				on(b, 3)
			}
			a.end()
			b.end()
			a.begin()
			b.begin()
			time.Sleep(time.Second)
			l.elect("b")
			time.Sleep(time.Second)
			look := &access.Change{Op: access.Look}
			l.want("look", b.login("x").do(look), access.Done)
			if n := len(look.State.Registrations); (n == 1) != persist || look.State.Modes != 0 {
				t.Errorf("after a loss of power: %+v", look.State)
			}
			on(a, 0)
			on(b, 0)
		})
	}
}
