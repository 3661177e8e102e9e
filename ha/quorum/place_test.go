package quorum

import (
	"reflect"
	"slices"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"oneshot/ha/replica"
)

// idleWorld is one without faults and clients. until runs it until something holds.
func idleWorld(t *testing.T) (w *world, until func(what string, holds func() bool)) {
	cryptotest.SetGlobalRandom(t, 1)
	w = newWorld(1, nil)
	w.setUp()
	w.quiet, w.idle = true, true
	return w, func(what string, holds func() bool) {
		t.Helper()
		if !w.run(w.now+5*time.Minute, holds) || w.bad != "" {
			t.Fatalf("%s: %s", what, w.bad)
		}
	}
}

// TestPlace: a witness leads that is near; else a node that is primary of no mirror, and reaches all; never one that is drained. However figures,
// links and offices change, the lead does so seldom.
func TestPlace(t *testing.T) {
	w, until := idleWorld(t)
	until("three vote", func() bool { return len(w.nodes) == 3 && w.level() && w.led(nil) != nil })
	slices.SortFunc(w.nodes, func(x, y *simNode) int { return int(x.name[0]) - int(y.name[0]) })
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	const rest = (placeRest + 2*steadyTicks) * simTick
	// leads waits until n leads, and sees that it goes on, and that nobody else has led but the one before.
	leads := func(n *simNode, what string) {
		t.Helper()
		was := w.elections
		until(n.name+" leads, "+what, func() bool { return w.led(nil) == n })
		w.run(w.now+rest, nil)
		if w.led(nil) != n || w.elections > was+1 || w.bad != "" {
			t.Fatalf("%s does not go on to lead, %s; there were %d elections: %s", n.name, what, w.elections-was, w.bad)
		}
	}
	store := &Store{Copies: []string{"a", "b"}}
	version := uint64(0)
	serves := func(primary replica.ID) {
		version++
		s := Set{View: replica.View{Version: version, Term: version, Primary: primary, InSync: replica.NodesOf(1, 2)}}
		w.ask("view", func(core *Core) (uint64, error) {
			return core.Put(Key{KindSet, store.SetName("disk")}, version-1, s.Encode())
		}, func(Result) {})
	}
	drains := func(d ...string) {
		w.ask("drain", func(core *Core) (uint64, error) {
			return core.Put(DrainedKey, versionOf(core.state, DrainedKey), Drained(d).Encode())
		}, func(Result) {})
	}
	leads(c, "a witness that is near")
	c.far = 10 * time.Millisecond
	leads(a, "for the witness is far")
	w.ask("store", func(core *Core) (uint64, error) { return core.Put(Key{KindStore, "disk"}, 0, store.Encode()) }, func(Result) {})
	serves(1)
	leads(b, "for a is primary")
	serves(2)
	leads(a, "for b is primary")

	// The office goes to and fro, faster than the lead may.
	n := w.elections
	for i := range 12 {
		serves(replica.ID(i%2 + 1))
		w.run(w.now+(steadyTicks+2*placeTicks)*simTick, nil)
	}
	if w.elections > n+4 {
		t.Errorf("%d elections, while the office goes to and fro", w.elections-n)
	}
	leads(a, "for b is primary again")
	drains("a")
	until("a does not lead", func() bool { return w.led(nil) != nil && w.led(nil) != a })
	was := w.led(nil)
	n = w.elections
	if w.run(w.now+rest, nil); w.led(nil) != was || w.elections != n {
		t.Fatalf("a is drained, and the lead does not stay")
	}
	drains()
	leads(a, "it is not drained any more")

	// The round trip of the witness goes up and down.
	n = w.elections
	for range 60 {
		c.far = w.between(0, 3*time.Millisecond)
		w.run(w.now+w.between(0, 2*time.Second), nil)
	}
	if w.elections > n+3 {
		t.Errorf("%d elections, while the witness is near now and then", w.elections-n)
	}
	c.far = 0
	leads(c, "it is near again")

	// The witness does not hear a any more, so b leads; it is near, but does not lead before it hears all.
	ends := [2]uint64{c.place, a.place}
	w.cut[ends] = true
	leads(b, "who hears all")
	delete(w.cut, ends)
	leads(c, "which hears all again")

	// A primary is lost: who leads goes on.
	_, term := c.core.Leader()
	b.core = nil
	b.life++
	w.run(w.now+rest, nil)
	if leader, now := a.core.Leader(); leader != c.number || now != term {
		t.Errorf("%d leads term %d after the primary's death, and %d did term %d before", leader, now, c.number, term)
	}
}

// TestLame: a leader whose disk has taken more than a second for a batch hands the lead over, though nobody has missed it. As long as that goes on it is not given
// the lead again, wherever else the best place is.
func TestLame(t *testing.T) {
	w, until := idleWorld(t)
	until("three vote", func() bool { return len(w.nodes) == 3 && w.level() })
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.name == "c" })
	c := w.nodes[i]
	until("the witness leads", func() bool { return w.led(nil) == c })
	c.do(func() { c.core.Saved(lameSync) })
	w.run(w.now+10*time.Second, nil)
	if w.led(nil) != c {
		t.Fatal("it does not lead, though a second is not too long")
	}
	c.do(func() { c.core.Saved(lameSync + 1) })
	if !w.run(w.now+3*time.Second, func() bool { l := w.led(nil); return l != nil && l != c }) {
		t.Fatal("it leads on, though its disk is slow")
	}
	until("it leads again", func() bool { return w.led(nil) == c })

	c.lags, w.idle = 1200*time.Millisecond, false
	until("another one leads", func() bool { l := w.led(nil); return l != nil && l != c })
	n := w.elections
	w.run(w.now+2*lameTicks*simTick, nil)
	if w.elections != n || w.bad != "" {
		t.Errorf("%d elections more, while its disk is slow: %s", w.elections-n, w.bad)
	}
	c.lags = 0
	until("it leads again", func() bool { return w.led(nil) == c })
}

// TestPrimaryLost: over connections, a node leads that is primary of no mirror, and its death costs no election.
func TestPrimaryLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		store := &Store{Copies: []string{"a", "b"}}
		set := Set{View: replica.View{Version: 1, Term: 1, Primary: 1, InSync: replica.NodesOf(1, 2)}}
		for k, v := range map[Key][]byte{{KindStore, "disk"}: store.Encode(), {KindSet, store.SetName("disk")}: set.Encode()} {
			if _, err := l.nodes["b"].Put(l.ctx(), k, 0, v); err != nil {
				t.Fatal(err)
			}
		}
		l.until("b", "the witness leads", func(s *Status) bool { return s.Leader == 3 })
		l.until("w", "the witness knows", func(s *Status) bool { return s.Leader == 3 })
		if err := l.nodes["w"].Close(); err != nil {
			t.Fatal(err)
		}
		delete(l.nodes, "w")
		l.until("b", "b leads", func(s *Status) bool { return s.Leader == 2 })
		l.open("w")
		l.until("b", "the witness leads again", func(s *Status) bool { return s.Leader == 3 })
		term := l.nodes["b"].Status().Term
		if err := l.nodes["a"].Close(); err != nil {
			t.Fatal(err)
		}
		delete(l.nodes, "a")
		time.Sleep(time.Minute)
		if s := l.nodes["b"].Status(); s.Leader != 3 || s.Term != term {
			t.Errorf("%d leads term %d, and 3 did term %d before the primary was lost", s.Leader, s.Term, term)
		}
		l.put("b", "x", 0, "one")
	})
}

// TestBeat: what a member says of itself comes over as it is; what another version says counts for nothing. A round trip is that of two beats of
// one life.
func TestBeat(t *testing.T) {
	b := &beat{Sent: 1, Echo: 2, Held: 3, Report: Report{Near: true, Lame: true, Stuck: true, Pace: 7, Heard: []uint64{1, 9}}}
	if got, err := decodeBeat(b.encode()); err != nil || !reflect.DeepEqual(got, b) {
		t.Errorf("%+v: %v", got, err)
	}
	for _, p := range [][]byte{nil, {2}, b.encode()[:30]} {
		if b, err := decodeBeat(p); err == nil || b != nil {
			t.Errorf("% x is read: %+v", p, b)
		}
	}
	for _, c := range []struct {
		echo, held uint64
		want       time.Duration
	}{
		{1_000_000, 5_000, 1000}, {1_000_000, 6_000, 0}, {1_000_000, 6_001, -1}, {0, 0, -1}, {1 << 62, 0, -1}, {1_006_001, 0, -1},
	} {
		if d := (&beat{Echo: c.echo, Held: c.held}).roundTrip(1_006_000); d != c.want {
			t.Errorf("%+v: %v", c, d)
		}
	}
	if d := (&beat{Echo: 1}).roundTrip(uint64(silence) + 2); d != -1 {
		t.Errorf("a beat of long ago: %v", d)
	}
}
