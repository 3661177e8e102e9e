package replica

import (
	"slices"
	"testing"
	"time"
)

// manyGranules is what node 1 lacks in these tests.
const manyGranules = 1000

// level is a primary that brings node 1 level, at a pace. Its disk and the other nodes do at once what they get, but for what hosts ask for.
type level struct {
	*solo
	copied int // granules that were read to be copied
	hashed int // ranges that were read to be compared
	hosts  []uint64
}

// brings begins. What hosts ask for this node's disk does when the test says so.
func brings(t *testing.T, copies int, p Pace) *level {
	t.Helper()
	l := &level{solo: outside(t, copies)}
	l.cfg.Ring, l.cfg.Copying, l.stores[0].Size = 16*manyGranules, 4, 2*manyGranules*granuleLen
	l.spare = newHeap(l.forHosts(), 2*manyGranules*granuleLen, blockLen)
	l.alive = l.view.InSync.Without(0)
	l.step(p)
	var lacks Bits
	for g := range manyGranules {
		lacks.Set(g)
	}
	l.step(Message{From: 1, Msg: Hello{Version: l.view.Version, Stream: newStream(1), Memory: true, Suspects: lacks, Sizes: l.sizes()}})
	return l
}

// step lets an event happen, and what follows from it, in no time.
func (l *level) step(e Event) {
	for events := []Event{e}; len(events) > 0; events = events[1:] {
		for _, a := range slices.Clone(l.Step(l.now, events[0])) {
			events = l.follow(events, a)
		}
	}
}

// follow adds what follows from an action.
func (l *level) follow(events []Event, a Action) []Event {
	switch a := a.(type) {
	case Load:
		l.copied++
		return append(events, Done{ID: a.ID})
	case Hash:
		l.hashed++
		return append(events, Done{ID: a.ID})
	case *Post:
		for _, r := range a.Recs {
			if r.Kind == KindCheck {
				events = append(events, Message{From: a.To, Msg: Hashed{Seq: r.Seq}})
			}
		}
		if n := len(a.Recs); n > 0 {
			last := a.Recs[n-1].Seq
			return append(events, Message{From: a.To, Msg: Ack{Stream: a.Stream, Received: last, Applied: last, Durable: last}})
		}
		return append(events, Message{From: a.To, Msg: Ack{Stream: a.Stream, Received: l.peer[a.To].received, Applied: l.peer[a.To].applied, Durable: l.peer[a.To].applied}})
	case Save:
		return append(events, Done{ID: a.ID})
	case *Apply:
		l.hosts = append(l.hosts, a.ID)
	case *ReadFor:
		l.hosts = append(l.hosts, a.ID)
	case Sync:
		l.hosts = append(l.hosts, a.ID)
	}
	return events
}

// answered has the disk do what hosts wait for.
func (l *level) answered() {
	for _, id := range l.hosts {
		l.step(Done{ID: id})
	}
	l.hosts = nil
}

// pass lets time pass, and returns how many granules and ranges were read.
func (l *level) pass(d time.Duration) (copied, hashed int) {
	c, h := l.copied, l.hashed
	for end := l.now + d; l.now < end; {
		l.now += 5 * time.Millisecond
		l.step(Tick{})
		l.step(Message{From: 1, Msg: Ack{Stream: newStream(1), Received: l.peer[1].received, Applied: l.peer[1].applied, Durable: l.peer[1].durable}})
		for id := range l.alive.All() {
			l.step(EchoFrom{From: id, Echo: Echo{No: l.beatNo, View: l.view, OK: true}})
		}
	}
	return l.copied - c, l.hashed - h
}

// about fails if a number of granules is not that of a rate, but for what may be made up for.
func (l *level) about(got int, perSecond int64, d time.Duration, when string) {
	l.Helper()
	want := int(perSecond * int64(d) / int64(time.Second))
	burst := int(perSecond * int64(paceBurst*l.set.Heartbeat) / int64(time.Second))
	if got < want-1 || got > want+burst+1 {
		l.Errorf("%s: %d granules in %v, and should be %d", when, got, d, want)
	}
}

// A pace is a bound, which changes at once. Without one a copy gets all as fast as can be.
func TestPaceBound(t *testing.T) {
	l := brings(t, 2, Pace{Rate: 100 * granuleLen, Min: 50 * granuleLen})
	n, _ := l.pass(time.Second)
	l.about(n, 100, time.Second, "at 100 a second")
	l.step(Pace{Rate: 400 * granuleLen, Min: 50 * granuleLen})
	n, _ = l.pass(500 * time.Millisecond)
	l.about(n, 400, 500*time.Millisecond, "at 400 a second")
	l.step(Pace{Min: 50 * granuleLen})
	if l.copied != manyGranules {
		t.Errorf("without a bound %d of %d were copied", l.copied, manyGranules)
	}
}

// While something of hosts is under way copies get the least of their pace, and never less. So they do for a moment after that.
func TestPaceYields(t *testing.T) {
	const least = 40
	for _, x := range []struct {
		what string
		ask  func(l *level)
	}{
		{"read", func(l *level) { l.step(Read{ID: 1, Off: 0, Len: blockLen}) }},
		{"write", func(l *level) { l.step(Zero{ID: 1, Off: 0, Len: blockLen}) }},
		{"flush", func(l *level) { l.step(Zero{ID: 1, Off: 0, Len: blockLen}); l.answered(); l.step(Flush{ID: 2}) }},
	} {
		l := brings(t, 2, Pace{Rate: 100 * granuleLen, Min: least * granuleLen})
		l.pass(time.Second)
		x.ask(l)
		if len(l.hosts) != 1 {
			t.Fatalf("a %s is on the disk %d times", x.what, len(l.hosts))
		}
		n, _ := l.pass(time.Second)
		if _, yields := l.Paced(); !yields {
			t.Errorf("while a %s is on the disk it does not give way", x.what)
		}
		l.about(n, least, time.Second, "while a "+x.what+" is on the disk")
		l.step(Pace{Min: least * granuleLen})
		l.answered()
		after := yieldMost*l.set.Heartbeat - 5*time.Millisecond
		n, _ = l.pass(after)
		l.about(n, least, after, "just after a "+x.what)
		l.pass(10 * time.Millisecond)
		if l.copied != manyGranules {
			t.Errorf("hosts are idle after a %s, and %d of %d were copied", x.what, l.copied, manyGranules)
		}
	}
}

// Hosts that wait for memory are given way to, too: a copy that is slow holds it.
func TestPaceYieldsMemory(t *testing.T) {
	l := brings(t, 2, Pace{Rate: 100 * granuleLen, Min: 40 * granuleLen})
	for id := range uint64(2) {
		l.step(Reserve{ID: id, Len: l.forHosts() / 2})
	}
	l.pass(time.Second)
	l.step(Reserve{ID: 3, Len: blockLen})
	n, _ := l.pass(time.Second)
	l.about(n, 40, time.Second, "while a host waits for memory")
}

// Who has waited for a moment only is given way to for a moment only.
func TestPaceYieldsShortly(t *testing.T) {
	l := brings(t, 2, Pace{Rate: granuleLen, Min: granuleLen})
	l.step(Read{ID: 1, Off: 0, Len: blockLen})
	l.now += 5 * time.Millisecond
	l.step(Pace{Min: granuleLen})
	l.answered()
	if n, _ := l.pass(15 * time.Millisecond); n > 1 {
		t.Errorf("%d granules within 15 ms of a read that has taken 5", n)
	}
	if l.pass(10 * time.Millisecond); l.copied != manyGranules {
		t.Errorf("%d of %d granules 25 ms after a read that has taken 5", l.copied, manyGranules)
	}
}

// Hosts that wait until there are enough copies wait for just the one that would give way.
func TestPaceHeld(t *testing.T) {
	l := brings(t, 2, Pace{Rate: 1000 * granuleLen, Min: granuleLen})
	l.cfg.MinCopies = 2
	l.step(Zero{ID: 1, Off: 0, Len: blockLen})
	n, _ := l.pass(500 * time.Millisecond)
	l.about(n, 1000, 500*time.Millisecond, "while writes wait for this copy")
}

// A comparison has its part of the same pace: what is left by copies that are brought level.
func TestPaceOfVerify(t *testing.T) {
	l := brings(t, 3, Pace{Rate: 1000 * granuleLen, Min: 100 * granuleLen})
	l.step(Verify{ID: 1})
	copied, hashed := l.pass(500 * time.Millisecond)
	l.about(copied+hashed, 1000, 500*time.Millisecond, "both together")
	if copied < 3*hashed {
		t.Errorf("%d granules were copied, and %d compared meanwhile", copied, hashed)
	}
	l.pass(time.Second)
	if l.copied != manyGranules {
		t.Fatalf("%d of %d were copied", l.copied, manyGranules)
	}
	_, hashed = l.pass(500 * time.Millisecond)
	l.about(hashed, 1000, 500*time.Millisecond, "when no copy waits")
	l.step(Read{ID: 2, Off: 0, Len: blockLen})
	_, hashed = l.pass(500 * time.Millisecond)
	l.about(hashed, 100, 500*time.Millisecond, "while a read is on the disk")
}

// What this disk cannot read as a whole is copied in pieces, at the same pace.
func TestPaceOfPieces(t *testing.T) {
	l := brings(t, 2, Pace{Rate: 100 * granuleLen, Min: granuleLen})
	l.pass(100 * time.Millisecond)
	all := l.peer[1].todo.Len()
	for g := range l.peer[1].todo.All() {
		l.peer[1].hard.Set(g)
	}
	n, _ := l.pass(time.Second)
	l.about(n/(granuleLen/blockLen), 100, time.Second, "in pieces")
	if left := l.peer[1].todo.Len(); all-left < 90 {
		t.Errorf("%d granules of %d were copied", all-left, all)
	}
}
