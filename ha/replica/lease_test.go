package replica

import (
	"testing"
	"time"
)

// leased is a primary of two whose reads need no more than a lease.
func leased(t *testing.T) *solo {
	s := reigns(t, 2)
	s.cfg.Confirm = false
	return s
}

// reads has the host read, and the disk as well, and returns the answers.
func (s *solo) reads() []Answer {
	s.Helper()
	all := s.do(Read{ID: 7, Off: 0, Len: blockLen})
	return each[Answer](append(all, s.do(Done{ID: only(s, each[ReadFor](all)).ID})...))
}

// A beat that was sent before a read came does not prove it, however late its answer is. One that was sent with it does, so
// nobody waits for the disk first.
func TestProvenByLaterBeat(t *testing.T) {
	s := reigns(t, 2)
	s.wait(s.set.Heartbeat)
	before := s.beatNo
	s.alive = 0
	asked := s.do(Read{ID: 7, Off: 0, Len: blockLen})
	beat := only(s, each[SendBeat](asked))
	echo := func(no uint64) []Action {
		return s.do(EchoFrom{From: 1, Echo: Echo{No: no, View: s.view, OK: true}})
	}
	none(s, each[Answer](echo(before)), "the disk has not read")
	none(s, each[Answer](s.do(Done{ID: only(s, each[ReadFor](asked)).ID})), "only an older beat was answered")
	none(s, each[Answer](echo(before)), "it was sent before the read came")
	if a := only(s, each[Answer](echo(beat.Beat.No))); a.Status != Good {
		t.Errorf("%+v", a)
	}
}

// A lease begins when the beat was sent that was answered, not when the answer came.
func TestLease(t *testing.T) {
	s := leased(t)
	s.alive = 0
	s.wait(s.set.Lease) // the last one is over
	s.now += s.set.Heartbeat
	s.do(Tick{})
	sent, no := s.now, s.beatNo
	s.now += 100 * time.Millisecond
	s.do(EchoFrom{From: 1, Echo: Echo{No: no, View: s.view, OK: true}})
	if got := len(s.reads()); got != 1 {
		t.Errorf("%d answers with a lease", got)
	}
	s.now = sent + s.set.Lease - 2*time.Millisecond // each event takes one
	none(s, s.reads(), "the lease is over, though the answer to the beat came later")
}

// A proposal to hand over ends the lease: the other one may be primary already.
func TestLeaseHandedOver(t *testing.T) {
	s := leased(t)
	s.wait(s.set.Heartbeat)
	if got := len(s.reads()); got != 1 {
		t.Fatalf("%d answers with a lease", got)
	}
	all := s.do(Switch{ID: 1, To: 1})
	all = append(all, s.ack(1, s.log.last(), s.log.last(), s.log.last())...)
	if v := only(s, proposals(all)); !v.Planned {
		t.Fatalf("%+v", v)
	}
	none(s, s.reads(), "the successor may be primary")
}

// What a member's disk has is told with what comes next, with a tick, or when it has become much.
func TestAppliedIsToldLater(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	seq := uint64(0)
	take := func(n int64) []Action {
		seq++
		all := s.take(h.Stream, Bell{}, Record{Term: 1, Seq: seq, Kind: KindWrite, Off: 0, Len: n})
		if a := only(s, said[Ack](all)); a.Received != seq {
			t.Errorf("%+v", a)
		}
		return all
	}
	s.do(Done{ID: only(s, each[Apply](take(blockLen))).ID})
	if a := only(s, said[Ack](s.do(Tick{}))); a.Applied != 1 {
		t.Errorf("%+v after a tick", a)
	}
	none(s, said[Ack](s.do(Done{ID: only(s, each[Apply](take(blockLen))).ID})), "nobody waits for it")
	big := take(4 * blockLen) // a sixteenth of the heap
	if a := only(s, said[Ack](big)); a.Applied != 2 {
		t.Errorf("%+v with what came next", a)
	}
	if a := only(s, said[Ack](s.do(Done{ID: only(s, each[Apply](big)).ID}))); a.Applied != 3 {
		t.Errorf("%+v, and the primary may wait for the memory", a)
	}
}
