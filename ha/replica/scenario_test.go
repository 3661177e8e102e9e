package replica

import (
	"slices"
	"testing"
	"time"
)

// solo is one core; the test is the world around it. Metadata is saved at once.
type solo struct {
	*testing.T
	*Core
	now   time.Duration
	set   Config
	alive Nodes // who beats, and answers beats
}

const (
	blockLen   = 512
	granuleLen = 4 * blockLen
)

// begin starts node 0 of a set with two stores.
func begin(t *testing.T, copies int, memory *Memory, saved Saved) *solo {
	t.Helper()
	cfg := Config{
		Incarnation: 1, Quorum: 2, MinCopies: 1, Granule: granuleLen, Region: 4 * granuleLen, Heap: 64 * blockLen, Unit: blockLen, Ring: 16,
		Stores:    []Store{{Size: 64 * blockLen}, {Off: 4096 * blockLen, Size: 16 * blockLen, Through: true}},
		Heartbeat: 50 * time.Millisecond, Lease: 250 * time.Millisecond, Grace: 350 * time.Millisecond, Confirm: true,
		SlowCopy: 5 * time.Second, FlushEvery: time.Hour, SaveEvery: time.Hour, Copying: 1,
	}
	for id := range ID(copies) {
		cfg.Copies = cfg.Copies.With(id)
	}
	return &solo{T: t, Core: New(cfg, time.Hour, memory, saved), now: time.Hour, set: cfg, alive: cfg.Copies.Without(0)}
}

// do lets an event happen, and returns what is done.
func (s *solo) do(e Event) []Action {
	s.now += time.Millisecond
	all := slices.Clone(s.Step(s.now, e))
	for i := 0; i < len(all); i++ {
		if save, ok := all[i].(Save); ok {
			all = append(all, s.Step(s.now, Done{ID: save.ID})...)
		}
	}
	return all
}

// tell lets a message come.
func (s *solo) tell(from ID, m Msg) []Action { return s.do(Message{From: from, Msg: m}) }

// wait lets time pass.
func (s *solo) wait(d time.Duration) []Action {
	var all []Action
	for end := s.now + d; s.now < end; {
		s.now += 19 * time.Millisecond
		all = append(all, s.do(Tick{})...)
		for id := range s.alive.All() {
			if s.role == Primary {
				all = append(all, s.proven(id)...)
			} else if id == s.view.Primary {
				all = append(all, s.do(BeatFrom{From: id, Beat: Beat{View: s.view}})...)
			}
		}
	}
	return all
}

// quiet lets time pass in which this node ticks, and hears of nobody.
func (s *solo) quiet(d time.Duration) {
	for last := s.now + d - s.set.Heartbeat/2; s.now < last; {
		s.do(Tick{})
	}
	s.now += s.set.Heartbeat / 2
}

// each returns the actions of a type.
func each[A Action](actions []Action) []A {
	var found []A
	for _, a := range actions {
		if a, ok := as[A](a); ok {
			found = append(found, a)
		}
	}
	return found
}

// said returns the messages of a type.
func said[M Msg](actions []Action) []M {
	var found []M
	var sent []Msg
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			sent = append(sent, a.Msg)
		case *SendAck:
			sent = append(sent, a.Ack)
		}
	}
	for _, m := range sent {
		if m, ok := m.(M); ok {
			found = append(found, m)
		}
	}
	return found
}

// views returns what is proposed.
func proposals(actions []Action) []View {
	var found []View
	for _, a := range each[Propose](actions) {
		found = append(found, a.View)
	}
	return found
}

// of returns the only one that there is.
func only[X any](s *solo, found []X) X {
	s.Helper()
	if len(found) != 1 {
		s.Fatalf("%d of %T, and should be one: %+v", len(found), *new(X), found)
	}
	return found[0]
}

// none fails if there is one.
func none[X any](s *solo, found []X, why string) {
	s.Helper()
	if len(found) > 0 {
		s.Errorf("%T %+v: %s", found[0], found, why)
	}
}

// streamOf is the number of the stream that a member takes in these tests.
func streamOf(id ID) uint64 { return 100 + uint64(id) }

// stands makes node 0 a candidate: it was the primary in a former life.
func stands(t *testing.T, copies int, memory *Memory, saved Saved) *solo {
	t.Helper()
	s := begin(t, copies, memory, saved)
	for id := ID(1); id < ID(copies); id++ {
		s.do(Up{Peer: id})
	}
	if s.role != Candidate {
		t.Fatalf("%v", s.Core)
	}
	return s
}

// firstView is that of a set whose primary has begun anew.
func firstView(copies int) View {
	v := View{Version: 1, Term: 1, First: 1}
	for id := range ID(copies) {
		v.InSync = v.InSync.With(id)
	}
	return v
}

// reigns makes node 0 the primary, with all others as members.
func reigns(t *testing.T, copies int) *solo {
	t.Helper()
	s := stands(t, copies, &Memory{View: firstView(copies)}, Saved{})
	var actions []Action
	for id := ID(1); id < ID(copies); id++ {
		actions = append(actions, s.tell(id, Promise{Version: 1, Stream: streamOf(id), Memory: true})...)
	}
	s.agree(only(s, proposals(actions)))
	if s.role != Primary {
		t.Fatalf("%v", s.Core)
	}
	for id := ID(1); id < ID(copies); id++ {
		s.hello(id, true)
	}
	return s
}

func (s *solo) agree(v View) []Action { return s.do(Agreed{View: v}) }

// hello begins the stream of another node.
func (s *solo) hello(id ID, memory bool) []Action {
	last := s.log.last()
	return s.tell(id, Hello{Version: s.view.Version, Stream: streamOf(id), Memory: memory, Last: last, Applied: last, Durable: last, Sizes: s.sizes()})
}

// ack tells that a member has all up to a number in memory, applied and durable.
func (s *solo) ack(id ID, received, applied, durable uint64) []Action {
	return s.tell(id, Ack{Stream: streamOf(id), Received: received, Applied: applied, Durable: durable})
}

// proven lets a member answer the newest beat.
func (s *solo) proven(id ID) []Action {
	return s.do(EchoFrom{From: id, Echo: Echo{No: s.beatNo, View: s.view, OK: true}})
}

// follows makes node 0 a follower of node 1, and returns the hello.
func follows(t *testing.T, copies int, in Nodes) (*solo, Hello) {
	t.Helper()
	v := firstView(copies)
	v.Primary, v.InSync = 1, in
	s := begin(t, copies, &Memory{View: v}, Saved{})
	return s, only(s, said[Hello](s.do(Up{Peer: 1})))
}

// take takes a Post of node 1.
func (s *solo) take(stream uint64, b Bell, recs ...Record) []Action {
	b.View = s.view
	if len(recs) > 0 {
		b.First = recs[0].Seq
	}
	return s.do(Rang{From: 1, Stream: stream, Recs: recs, Bell: b})
}

// What a disk has refused may be there in part.
func TestRefusedInPart(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	apply := only(s, each[Apply](s.take(h.Stream, Bell{}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: granuleLen, Len: blockLen})))
	s.do(Done{ID: apply.ID, Failed: true})
	v := s.view
	v.Version, v.InSync = 2, NodesOf(1)
	s.agree(v)
	h = only(s, said[Hello](s.wait(retryAfter)))
	if !h.Suspects.Has(1) {
		t.Errorf("a copy outside S suspects %v, and its disk has refused a write of granule 1", h.Suspects)
	}
}

// A primary whose disk refuses does not drop the only other member for a moment's silence: it hands over to it when it is back.
func TestRefusedWaits(t *testing.T) {
	for _, returns := range []bool{true, false} {
		s := reigns(t, 2)
		s.do(Zero{ID: 1, Off: 0, Len: blockLen})
		apply := only(s, each[Apply](s.ack(1, 1, 0, 0)))
		s.alive = 0
		s.do(Down{Peer: 1})
		s.do(Done{ID: apply.ID, Failed: true})
		refuses := func(d time.Duration) (all []Action) {
			for end := s.now + d; s.now < end; {
				more := s.wait(20 * time.Millisecond)
				all = append(all, more...)
				for _, a := range each[Apply](more) {
					all = append(all, s.wait(20*time.Millisecond)...)
					all = append(all, s.do(Done{ID: a.ID, Failed: true})...)
				}
			}
			return all
		}
		none(s, proposals(refuses(s.set.SlowCopy/2)), "node 1 may be back in a moment")
		if !returns {
			if v := proposals(refuses(s.set.SlowCopy)); len(v) == 0 || v[0].InSync != NodesOf(0) {
				t.Errorf("%+v %v", v, s.Core)
			}
			return
		}
		s.do(Up{Peer: 1})
		if v := only(s, proposals(s.tell(1, Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Last: 1, Sizes: s.sizes()}))); !v.Planned || v.Primary != 1 {
			t.Errorf("%+v %v", v, s.Core)
		}
	}
}

// Nor does one whose disk hangs.
func TestHungWaits(t *testing.T) {
	s := reigns(t, 2)
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	only(s, each[Apply](s.ack(1, 1, 1, 0)))
	s.wait(s.set.SlowCopy - 100*time.Millisecond)
	s.alive = 0
	s.do(Down{Peer: 1})
	none(s, proposals(s.wait(s.set.SlowCopy/2)), "node 1 may be back in a moment")
	s.do(Up{Peer: 1})
	hello := Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Last: 1, Applied: 1, Sizes: s.sizes()}
	if v := only(s, proposals(s.tell(1, hello))); !v.Planned || v.Primary != 1 {
		t.Errorf("%+v %v", v, s.Core)
	}
}

// A member whose disk hangs says so, whatever it is that hangs.
func TestHungMember(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	apply := only(s, each[Apply](s.take(h.Stream, Bell{Sync: 1}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen})))
	sync := only(s, each[Sync](s.do(Done{ID: apply.ID})))
	s.do(Tick{}) // it tells what the disk has
	none(s, said[Ack](s.wait(s.set.SlowCopy-100*time.Millisecond)), "the disk has time")
	if a := only(s, said[Ack](s.wait(200*time.Millisecond))); !a.Failed {
		t.Errorf("%+v after %v of a sync", a, s.set.SlowCopy)
	}
	acks := said[Ack](s.do(Done{ID: sync.ID}))
	if a := acks[len(acks)-1]; a.Failed || a.Durable != 1 {
		t.Errorf("%+v after the sync", a)
	}
}

// A member whose disk hangs could serve nobody, and if it went alone nobody else could. So it stands later, and waits longer for promises.
func TestHungStandsLast(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	only(s, each[Apply](s.take(h.Stream, Bell{}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen})))
	s.wait(s.set.SlowCopy + 100*time.Millisecond)
	s.alive = 0
	none(s, said[Ask](s.wait(s.set.Grace+lame-100*time.Millisecond)), "another one may stand")
	if asks := said[Ask](s.wait(150 * time.Millisecond)); len(asks) == 0 {
		t.Errorf("nobody else has, and it does not: %v", s.Core)
	}
	none(s, proposals(s.wait(lame-200*time.Millisecond)), "node 1 may answer")
	s.alone(s.wait(250 * time.Millisecond))
}

// A range that a member could not read, and that nobody is left to repair, is told of as what it is.
func TestNotRepaired(t *testing.T) {
	s := reigns(t, 2)
	s.do(Verify{ID: 1, Repair: true})
	hash := only(s, each[Hash](s.ack(1, 1, 0, 0)))
	s.do(Done{ID: hash.ID, Failed: true})
	f := only(s, each[Found](s.tell(1, Hashed{Seq: 1})))
	if !f.Repair || f.Odd != NodesOf(0) || f.Unreadable != NodesOf(0) {
		t.Errorf("%+v", f)
	}
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	f = only(s, each[Found](s.agree(v)))
	if f.Repair || f.Odd != NodesOf(0) || f.Unreadable != NodesOf(0) {
		t.Errorf("%+v", f)
	}
}

// compares has the first granule compared, and returns what tells that it differs on node 1; node 0 is the one to trust.
func (s *solo) compares() (odd Message) {
	s.Helper()
	s.do(Verify{ID: 1, Repair: true, Trust: NodesOf(0)})
	s.do(Done{ID: only(s, each[Hash](s.ack(1, 1, 0, 0))).ID})
	return Message{From: 1, Msg: Hashed{Seq: 1, Digest: Digest{1}}}
}

// What a member is known to have wrong is not taken from it, though this node cannot read it: not if that was known before the read, nor
// when it waits to ask, nor when the other has read it already. The read fails, and the comparison tells of it and goes on.
func TestOddIsNoSource(t *testing.T) {
	for _, known := range []string{"before", "waiting", "asked"} {
		s := reigns(t, 2)
		var all []Action
		does := func(actions []Action) []Action {
			all = append(all, actions...)
			return actions
		}
		refuses := func() []Lend {
			read := only(s, each[ReadFor](s.do(Read{ID: 2, Off: 0, Len: blockLen})))
			return said[Lend](does(s.do(Done{ID: read.ID, Failed: true})))
		}
		switch known {
		case "before":
			does(s.do(s.compares()))
			none(s, refuses(), "node 1 has it wrong")
		case "waiting":
			odd := s.compares()
			none(s, refuses(), "node 1 has not hashed it")
			does(s.do(odd))
			none(s, said[Lend](does(s.ack(1, 1, 1, 0))), "node 1 has it wrong")
		case "asked":
			lend := only(s, refuses())
			does(s.do(s.compares()))
			pull := only(s, each[Pull](does(s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7}))))
			does(s.do(Done{ID: pull.ID, Sum: 7}))
		}
		does(s.wait(200 * time.Millisecond))
		if a := only(s, each[Answer](all)); a.ID != 2 || a.Status != Failed {
			t.Errorf("%s: %+v", known, a)
		}
		if f := only(s, each[Found](all)); !f.Repair || f.Odd != NodesOf(1) {
			t.Errorf("%s: %+v", known, f)
		}
		actions := s.do(Done{ID: only(s, each[Load](all)).ID, Failed: true})
		if f := only(s, each[Found](actions)); f.Repair || f.Odd != NodesOf(0, 1) || f.Unreadable != NodesOf(0) {
			t.Errorf("%s: %+v", known, f)
		}
		s.do(Tick{})
		if only(s, each[Hash](s.ack(1, 2, 1, 0))).Off == 0 {
			t.Errorf("%s: the comparison does not go on", known)
		}
		for r := range s.Log {
			if r.Kind != KindCheck {
				t.Errorf("%s: %+v", known, r)
			}
		}
	}
}

// A member that leaves S before it was repaired gets, when it returns, what it has wrong.
func TestOddLeaves(t *testing.T) {
	s := reigns(t, 2)
	load := only(s, each[Load](s.do(s.compares())))
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	s.do(Done{ID: load.ID})
	again := only(s, each[Load](s.hello(1, true)))
	if again.Off != 0 || again.Len != granuleLen {
		t.Errorf("%+v", again)
	}
}

// A copy that gets a range after it was hashed, and then is taken in, is not said to differ. It is compared once more.
func TestHashedOutside(t *testing.T) {
	s := reigns(t, 3)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0, 1)
	s.agree(v)
	s.hello(2, true)
	s.do(Verify{ID: 1, Repair: true})
	hash := only(s, each[Hash](s.ack(1, 1, 0, 0)))
	s.tell(2, Hashed{Seq: 1, Digest: Digest{1}})
	s.ack(2, 1, 1, 1)
	v.Version, v.InSync = v.Version+1, NodesOf(0, 1, 2)
	s.agree(v)
	actions := append(s.do(Done{ID: hash.ID}), s.tell(1, Hashed{Seq: 1})...)
	none(s, each[Found](actions), "a copy has been taken in")
	if s.log.entry(2) == nil || s.log.entry(2).Kind != KindCheck || s.log.entry(2).Off != 0 {
		t.Errorf("%v: the range is not hashed again", s.Core)
	}
}

// What a former life has not finished may be there in part.
func TestKilledInPart(t *testing.T) {
	v := View{Version: 2, Term: 1, First: 1, Primary: 1, InSync: NodesOf(0, 1)}
	s := begin(t, 2, &Memory{View: v, Log: []Record{{Term: 1, Seq: 1, Kind: KindZero, Off: granuleLen, Len: blockLen}}}, Saved{})
	v.Version, v.InSync = 3, NodesOf(1)
	s.agree(v)
	if h := only(s, said[Hello](s.do(Up{Peer: 1}))); !h.Suspects.Has(1) {
		t.Errorf("a copy outside S suspects %v, and has begun to write granule 1 in a former life", h.Suspects)
	}
}

// A copy suspects a granule no more when the primary has called it clean, and what has led to that is durable on all of S. Until then a
// break of the connection has it suspect again what the log tells of, and what is called clean is no less suspect than before.
func TestForgetsSuspects(t *testing.T) {
	v := firstView(2)
	v.Primary, v.InSync = 1, NodesOf(1)
	var region Bits
	region.Set(0) // granules 0 to 3
	s := begin(t, 2, &Memory{View: v}, Saved{Regions: region})
	var stream, last uint64
	suspects := func(why string, granules ...int) {
		t.Helper()
		h := only(s, said[Hello](append(s.do(Up{Peer: 1}), s.wait(2*retryAfter)...)))
		if got := slices.Collect(h.Suspects.All()); !slices.Equal(got, granules) {
			t.Errorf("%s: suspects %v, and should %v", why, got, granules)
		}
		stream = h.Stream
		s.take(stream, Bell{Start: &Start{Last: last}})
	}
	post := func(kind Kind, granules ...int) []Action {
		var recs []Record
		for _, g := range granules {
			last++
			recs = append(recs, Record{Term: 1, Seq: last, Kind: kind, Copy: 0, Off: int64(g) * granuleLen, Len: granuleLen})
		}
		return s.take(stream, Bell{}, recs...)
	}
	end := func(actions []Action, failed bool) {
		for _, a := range each[Apply](actions) {
			s.do(Done{ID: a.ID, Failed: failed})
		}
	}
	sync := func() {
		sync := only(s, each[Sync](s.take(stream, Bell{Sync: last})))
		s.do(Done{ID: sync.ID})
	}

	suspects("a former life may have written there", 0, 1, 2, 3)
	end(post(KindResync, 0), true)
	post(KindResync, 1) // the disk is left alone for a while
	s.do(Down{Peer: 1})

	suspects("the disk has refused one, and has not been given the other", 0, 1, 2, 3)
	end(post(KindResync, 0, 1, 2), false)
	post(KindClean, 0, 1, 2)
	s.do(Down{Peer: 1})

	suspects("nothing is durable", 0, 1, 2, 3)
	end(post(KindResync, 0, 1, 2), false)
	post(KindClean, 0, 1, 2)
	sync()
	s.do(Down{Peer: 1})

	suspects("others may not have durable what they were copied from", 0, 1, 2, 3)
	end(post(KindResync, 0, 1, 2), false)
	post(KindClean, 0, 1, 2)
	sync()
	s.take(stream, Bell{Trim: last})
	end(post(KindZero, 2), false)
	s.do(Down{Peer: 1})

	suspects("two are level; one was written since, and one was never copied", 2, 3)
}

// A read that the disk refuses goes to a copy that is proposed as a member: it is level, and perhaps a member already.
func TestReadFromProposed(t *testing.T) {
	s := reigns(t, 2)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	s.hello(1, true)
	if v := only(s, proposals(s.ack(1, 0, 0, 0))); v.InSync != NodesOf(0, 1) {
		t.Fatalf("%+v", v)
	}
	s.bitmaps[1].Set(0) // a host has written there while node 1 was brought level
	read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 0, Len: blockLen})))
	actions := s.do(Done{ID: read.ID, Failed: true})
	none(s, each[Answer](actions), "another can read")
	only(s, said[Lend](actions))
}

// A primary to which another has handed over does not know what the third has.
func TestHandedOver(t *testing.T) {
	s, h := follows(t, 3, NodesOf(0, 1, 2))
	s.do(Up{Peer: 2})
	apply := only(s, each[Apply](s.take(h.Stream, Bell{}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen})))
	s.do(Done{ID: apply.ID})
	v := s.view
	v.Version, v.Term, v.Primary, v.First, v.Planned = 2, 2, 0, 2, true
	s.agree(v)
	s.hello(1, true)
	none(s, proposals(s.tell(1, Ack{Stream: streamOf(1), Received: 1, Failed: true})), "nobody has said that node 2 has record 1")
	s.tell(2, Hello{Version: 2, Stream: streamOf(2), Memory: true})
	if v := only(s, proposals(s.ack(2, 1, 0, 0))); v.InSync != NodesOf(0, 2) {
		t.Errorf("%+v", v)
	}
}

// A primary whose disk hangs has handed over, and so nobody knows what all disks have. Who has it all stays a member: this primary waits until
// the others have told.
func TestHandedOverHung(t *testing.T) {
	s, h := follows(t, 3, NodesOf(0, 1, 2))
	s.do(Up{Peer: 2})
	s.written(s.take(h.Stream, Bell{}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen}))
	s.wait(s.set.SlowCopy)
	v := s.view
	v.Version, v.Term, v.Primary, v.First, v.Planned = 2, 2, 0, 2, true
	none(s, proposals(append(s.agree(v), s.wait(100*time.Millisecond)...)), "nobody has said what it has")
	var actions []Action
	for _, id := range []ID{1, 2} {
		hello := Hello{Version: 2, Stream: streamOf(id), Memory: true, Last: 1, Applied: uint64(id) - 1, Sizes: s.sizes()}
		actions = append(actions, s.tell(id, hello)...)
	}
	if v := only(s, proposals(actions)); v.InSync != NodesOf(0, 2) {
		t.Errorf("%+v", v)
	}
}

// Of three members two are needed: one of them has what was acknowledged.
func TestOnePromiseTooFew(t *testing.T) {
	s := stands(t, 3, &Memory{View: firstView(3)}, Saved{})
	none(s, proposals(s.wait(stuckAfter/2)), "nobody has promised")
	s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true})
	if v := only(s, proposals(s.wait(stuckAfter/10))); v.InSync != NodesOf(0, 1) {
		t.Errorf("%+v", v)
	}
}

// A member whose disk hangs does not keep the others from the office.
func TestCandidateAndHungDisk(t *testing.T) {
	s := stands(t, 2, &Memory{View: firstView(2), Base: 1, Applied: 1}, Saved{Mark: 1})
	s.alive = 0
	p := only(s, each[Post](s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true, Last: 1, Applied: 1})))
	if p.Bell.Sync != 1 {
		t.Errorf("%+v", p)
	}
	none(s, proposals(s.wait(stuckAfter/2-50*time.Millisecond)), "node 1 may have durable what a flush may have promised, in a moment")
	if v := proposals(s.wait(100 * time.Millisecond)); len(v) == 0 || v[0].InSync != NodesOf(0) || v[0].Primary != 0 {
		t.Errorf("%+v %v", v, s.Core)
	}

	// Of three both others are needed, or who has not answered might be the only one that knows of a write.
	s = stands(t, 3, &Memory{View: firstView(3), Base: 1, Applied: 1}, Saved{Mark: 1})
	s.alive = 0
	s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true, Last: 1, Applied: 1})
	for _, v := range proposals(s.wait(stuckAfter - 100*time.Millisecond)) {
		if v.Term > 1 {
			t.Errorf("%+v: node 0 alone is too few", v)
		}
	}
}

// A copy outside S keeps its log until the primary says that it is outside.
func TestKeepsLog(t *testing.T) {
	s, h := follows(t, 2, NodesOf(1))
	apply := only(s, each[Apply](s.take(h.Stream, Bell{Start: &Start{}}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen})))
	s.do(Done{ID: apply.ID})
	s.do(Down{Peer: 1})
	if h = only(s, said[Hello](s.do(Up{Peer: 1}))); !h.Memory || h.Last != 1 {
		t.Errorf("%+v", h)
	}
}

// A node believes no view that is older than the one that it knew in a former life, with its memory or without.
func TestOldView(t *testing.T) {
	v := firstView(2)
	v.Version, v.Primary = 5, 1
	for name, s := range map[string]*solo{
		"killed":         begin(t, 2, &Memory{View: v}, Saved{}),
		"lost its power": begin(t, 2, nil, Saved{View: v}),
	} {
		old := firstView(2)
		old.Version = 3
		s.agree(old)
		if s.view != v {
			t.Errorf("a node that was %s has view %+v", name, s.view)
		}
	}
}

// A copy that is proposed as a member goes on with its log when its connection is another: it may be a member already.
func TestProposedGoesOn(t *testing.T) {
	s := reigns(t, 2)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	s.hello(1, true)
	only(s, proposals(s.ack(1, 0, 0, 0)))
	s.do(Down{Peer: 1})
	s.do(Up{Peer: 1})
	if p := only(s, each[Post](s.hello(1, true))); p.Bell.Start != nil {
		t.Errorf("%+v", p)
	}
}

// A primary that is alone, and has asked for another member, is disputed until it hears that nobody has agreed: that member may be the primary.
func TestDisputedByProposed(t *testing.T) {
	s := reigns(t, 2)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	if at := s.State().Confirmed; at != Undisputed {
		t.Errorf("alone: confirmed at %v", at)
	}
	s.hello(1, true)
	s.proven(1)
	asked := s.now
	only(s, proposals(s.ack(1, 0, 0, 0)))
	s.alive = 0
	s.wait(time.Second)
	if at := s.State().Confirmed; at > asked {
		t.Errorf("confirmed at %v, and node 1 may be a member that was silent since %v", at, asked)
	}
}

// What a member has received does not count when it is not connected: it may have lost its power since.
func TestCommittedByConnected(t *testing.T) {
	s := reigns(t, 3)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	s.hello(1, true)
	s.hello(2, true)
	with1 := only(s, proposals(s.ack(1, 0, 0, 0)))
	s.ack(2, 0, 0, 0)
	none(s, each[*Answer](s.do(Zero{ID: 1, Off: 0, Len: blockLen})), "nobody else has it, and node 1 may be a member")
	s.ack(2, 1, 0, 0)
	with2 := only(s, proposals(s.agree(with1)))
	s.do(Down{Peer: 2})
	none(s, each[*Answer](s.agree(with2)), "node 2 is gone, and node 1 does not have it")
	s.do(Up{Peer: 2})
	only(s, each[*Answer](s.hello(2, true)))
}

// outside makes node 1 a copy outside S that may lack granule 0.
func outside(t *testing.T, copies int) *solo {
	t.Helper()
	s := reigns(t, copies)
	v := s.view
	v.Version, v.InSync = v.Version+1, v.InSync.Without(1)
	s.agree(v)
	return s
}

// A copy outside S whose disk is slow does not keep hosts waiting for memory for longer than a member would: it has to begin again, later.
// If hosts wait for that very copy it may take its time.
func TestSlowOutside(t *testing.T) {
	fills := func(s *solo, least int) {
		s.lacks(0)
		s.written(s.do(Zero{ID: 8, Off: granuleLen, Len: blockLen}))
		s.cfg.MinCopies = least
		for i, n := range []int64{s.set.Heap / 2, s.set.Heap / 4} { // all that hosts have
			id, off := uint64(i), int64(16+32*i)*blockLen
			addr := only(s, each[Answer](s.do(Reserve{ID: id, Len: n}))).Addr
			s.written(s.do(Write{ID: id, Off: off, Len: n, Addr: addr}))
		}
		s.ack(1, s.log.last(), 0, 0)
		none(s, each[Answer](s.do(Reserve{ID: 9, Len: blockLen})), "there is no memory")
	}
	s := outside(t, 2)
	fills(s, 1)
	late := s.set.SlowCopy * 2 / 5
	early := s.wait(late - 100*time.Millisecond)
	none(s, each[Drop](early), "a disk may take so long")
	actions := s.wait(200 * time.Millisecond)
	if d := only(s, each[Drop](actions)); d.Peer != 1 {
		t.Errorf("%+v", d)
	}
	if a := only(s, each[Answer](actions)); a.ID != 9 || a.Status != Good {
		t.Errorf("%+v", a)
	}
	s.do(Down{Peer: 1})
	s.do(Up{Peer: 1})
	none(s, each[Post](append(s.lacks(0), s.wait(s.set.SlowCopy-300*time.Millisecond)...)), "it was slow a moment ago")
	if p := each[Post](s.wait(400 * time.Millisecond)); len(p) == 0 || p[0].Bell.Start == nil {
		t.Errorf("%+v", p)
	}

	s = outside(t, 2)
	fills(s, 2)
	none(s, each[Drop](s.wait(s.set.SlowCopy-200*time.Millisecond)), "hosts wait for it")
}

// Over a slow link a granule that is copied holds up beats. The copy keeps its connection, or it would be given up, and begin again, for ever.
func TestSlowLink(t *testing.T) {
	s := outside(t, 2)
	s.lacks(0)
	s.alive = 0
	late := s.set.SlowCopy * 2 / 5
	none(s, each[Drop](s.wait(late-100*time.Millisecond)), "nobody waits for it")
	if d := only(s, each[Drop](s.wait(200*time.Millisecond))); d.Peer != 1 {
		t.Errorf("%+v", d)
	}
}

// there lets time pass, in which a node is silent and its machine is there.
func (s *solo) there(id ID, d time.Duration) (all []Action) {
	for until := s.now + d; s.now < until; {
		all = append(all, s.wait(s.set.Heartbeat)...)
		all = append(all, s.do(There{Peer: id, Ago: s.set.Heartbeat})...)
	}
	return all
}

// alone sees that a primary proposes to be all of S.
func (s *solo) alone(actions []Action) {
	s.Helper()
	if v := proposals(actions); len(v) == 0 || v[0].InSync != NodesOf(0) {
		s.Errorf("%+v", v)
	}
}

// A member whose machine is there is not dropped at once, for its answers may come late. If they do not come it is; and so is one whose machine is gone,
// as soon as any.
func TestSilentMachine(t *testing.T) {
	s := reigns(t, 2)
	s.alive = 0
	none(s, proposals(s.there(1, 4*s.set.Lease-100*time.Millisecond)), "its machine is there")
	s.alone(s.there(1, 200*time.Millisecond))

	s = reigns(t, 2)
	s.alive = 0
	none(s, proposals(s.there(1, 2*s.set.Lease)), "its machine is there")
	none(s, proposals(s.wait(s.set.Lease-100*time.Millisecond)), "it was there a moment ago")
	s.alone(s.wait(100 * time.Millisecond))
}

// Who would take over waits for a primary whose machine still brings what was sent, but not for longer than hosts may have to.
func TestSilentPrimary(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	s.alive = 0
	s.take(h.Stream, Bell{})
	if s.there(1, 4*s.set.Lease-100*time.Millisecond); s.role != Follower {
		t.Error("the primary's machine is there")
	}
	if s.there(1, 200*time.Millisecond); s.role != Candidate {
		t.Error("it waits on")
	}
}

// What is on its way for long is not late when it has come: a disk can begin only then.
func TestLongOnItsWay(t *testing.T) {
	s := reigns(t, 2)
	s.do(Zero{ID: 7, Off: 0, Len: blockLen})
	none(s, proposals(s.wait(2*s.set.SlowCopy)), "nobody has it but this node")
	actions := s.ack(1, 1, 0, 0)
	s.written(actions)
	none(s, proposals(append(actions, s.wait(s.set.SlowCopy-100*time.Millisecond)...)), "it has just come")
	s.alone(s.wait(200 * time.Millisecond))
}

// A primary that was late itself has asked nobody, so it waits for answers.
func TestLatePrimary(t *testing.T) {
	s := reigns(t, 2)
	s.wait(s.set.Heartbeat)
	s.alive = 0
	s.now += 10 * s.set.Lease
	none(s, proposals(s.do(Tick{})), "nobody was asked")
	none(s, proposals(s.wait(s.set.Lease-100*time.Millisecond)), "it was asked a moment ago")
	s.alone(s.wait(200 * time.Millisecond))
}

// What a power cut of all has left in doubt a copy gets when it returns, and not whenever it returns.
func TestDoubtfulOnce(t *testing.T) {
	var region Bits
	region.Set(0) // granules 0 to 3
	s := begin(t, 2, nil, Saved{View: firstView(2), Mark: 5, Regions: region})
	s.alive = 0
	s.do(Up{Peer: 1})
	s.wait(s.set.Grace + amnesiac + stuckAfter/2)
	s.agree(only(s, proposals(s.tell(1, Promise{Version: 1, Stream: streamOf(1), Last: 4, Durable: 4}))))
	level := func() (granules int) {
		actions := s.hello(1, true)
		for range 10 {
			loads := each[Load](actions)
			granules += len(loads)
			actions = nil
			for _, load := range loads {
				actions = append(actions, s.do(Done{ID: load.ID})...)
			}
			last := s.log.last()
			actions = append(actions, s.ack(1, last, last, last)...)
			if v := proposals(actions); len(v) > 0 {
				s.agree(v[0])
				break
			}
		}
		s.synced(s.do(Flush{ID: 1}))
		s.ack(1, s.log.last(), s.log.last(), s.log.last())
		s.synced(s.wait(markEvery)) // the mark
		if s.view.InSync != NodesOf(0, 1) || s.trim != s.log.last() {
			t.Fatalf("%v", s.Core)
		}
		return granules
	}
	if n := level(); n != 4 {
		t.Errorf("%d granules are copied, and 4 are in doubt", n)
	}
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	if n := level(); n != 0 {
		t.Errorf("%d granules are copied to a copy that has all", n)
	}
}

// lacks says hello as node 1, which lacks a granule.
func (s *solo) lacks(granules ...int) []Action {
	var b Bits
	for _, g := range granules {
		b.Set(g)
	}
	return s.tell(1, Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Suspects: b, Sizes: s.sizes()})
}

// A copy that lacks nothing is taken in when it is known to have begun its log anew, and not before: it may never get the bell that says
// so, and have records of a former reign.
func TestTakenInWithThisLog(t *testing.T) {
	s := outside(t, 2)
	hello := Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Last: 4, Sizes: s.sizes()}
	none(s, proposals(append(s.tell(1, hello), s.wait(200*time.Millisecond)...)), "its log may be that of a former reign")
	only(s, proposals(s.ack(1, 0, 0, 0)))
}

// A copy is taken in when all members have the records before its log, whatever these do: nobody who takes over with that log could give
// them to a member that lacks one.
func TestTakenInBehindAll(t *testing.T) {
	s := outside(t, 3)
	s.do(Verify{ID: 1})
	s.hello(1, true)
	none(s, proposals(append(s.ack(1, 1, 1, 1), s.wait(100*time.Millisecond)...)), "node 2 does not have record 1")
	s.ack(2, 1, 0, 0)
	if v := only(s, proposals(s.do(Tick{}))); v.InSync != NodesOf(0, 1, 2) {
		t.Errorf("%+v", v)
	}
}

// When a quorum has lost its power the log goes on from a lower number. What a copy knew of the numbers behind it is not true of its new log.
func TestLowerLog(t *testing.T) {
	s, h := follows(t, 3, NodesOf(1, 2))
	s.do(Up{Peer: 2})
	s.synced(s.take(h.Stream, Bell{Trim: 40, Freed: 90, Sync: 90, Start: &Start{Last: 90}}))
	s.do(Down{Peer: 1})
	s.flushed = 90 // it was primary before
	v := s.view
	v.Version, v.Term, v.First = 2, 2, 41
	s.agree(v)
	h = only(s, said[Hello](s.do(Up{Peer: 1})))
	write := Record{Term: 2, Seq: 41, Kind: KindWrite, Len: blockLen}
	s.written(s.take(h.Stream, Bell{Trim: 40, Freed: 40, Sync: 41, Start: &Start{Last: 40}}, write))
	v.Version, v.InSync = 3, NodesOf(0, 1, 2)
	s.agree(v)
	v.Version, v.Term, v.Primary, v.First, v.Planned = 4, 3, 0, 42, true
	s.agree(v)
	for id := uint64(1); ; id++ {
		a := each[*Answer](s.do(Reserve{ID: id, Len: blockLen}))
		if len(a) == 0 {
			break
		}
		if a[0].Addr == write.Addr {
			t.Errorf("gives memory %#x, from which the disks of nodes 1 and 2 may still write record 41", write.Addr)
		}
	}
	for _, id := range []ID{1, 2} {
		s.tell(id, Hello{Version: 4, Stream: streamOf(id), Memory: true, Last: 41, Applied: 40, Durable: 40, Sizes: s.sizes()})
	}
	s.tell(1, Ack{Stream: streamOf(1), Received: 41, Failed: true})
	if v := only(s, proposals(s.ack(2, 41, 41, 41))); v.InSync != NodesOf(0, 2) {
		t.Errorf("%+v", v)
	}
}

// A primary to which another has handed over does not know which flushes were answered: what its own disk has durable may be one's.
func TestFlushedBefore(t *testing.T) {
	s, h := follows(t, 3, NodesOf(0, 1, 2))
	s.do(Up{Peer: 2})
	zero := func(seq uint64) Record {
		return Record{Term: 1, Seq: seq, Kind: KindZero, Off: int64(seq) * blockLen, Len: blockLen}
	}
	first := only(s, each[Apply](s.take(h.Stream, Bell{Sync: 1}, zero(1))))
	s.written(s.take(h.Stream, Bell{}, zero(2)))
	s.synced(s.do(Done{ID: first.ID}))
	v := s.view
	v.Version, v.Term, v.Primary, v.First, v.Planned = 2, 2, 0, 3, true
	s.agree(v)
	for _, id := range []ID{1, 2} {
		s.tell(id, Hello{Version: 2, Stream: streamOf(id), Memory: true, Last: 2, Applied: 2, Durable: 1, Sizes: s.sizes()})
	}
	none(s, proposals(s.tell(1, Ack{Stream: streamOf(1), Received: 2, Applied: 2, Durable: 2, Failed: true})), "node 2 has record 2 not durable")
	if v := only(s, proposals(s.ack(2, 2, 2, 2))); v.InSync != NodesOf(0, 2) {
		t.Errorf("%+v", v)
	}
}

// A candidate takes the office when consensus says so, and not by the word of a member that has heard it first: whatever was agreed on before its
// view, such as reservations, its node has learned then.
func TestOfficeByConsensus(t *testing.T) {
	s := stands(t, 3, &Memory{View: firstView(3)}, Saved{})
	actions := s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true})
	v := only(s, proposals(append(actions, s.wait(2*gather)...)))
	if s.tell(2, Deny{View: v}); s.role != Candidate {
		t.Errorf("by the word of node 2: %v", s.Core)
	}
	if s.do(EchoFrom{From: 2, Echo: Echo{View: v}}); s.role != Candidate {
		t.Errorf("by the answer of node 2 to a beat of a former term: %v", s.Core)
	}
	if s.agree(v); s.role != Primary {
		t.Errorf("by consensus: %v", s.Core)
	}
}

// A node that began anew, and has heard of nobody but a candidate, is no successor that knows which memory is free: two of its records may have
// the same. It stands instead.
func TestHandedOverAfterRestart(t *testing.T) {
	v := firstView(3)
	v.Primary = 1
	m := &Memory{View: v, Applied: 2}
	for seq := uint64(1); seq <= 2; seq++ { // the memory of record 1 was free when 2 got it
		m.Log = append(m.Log, Record{Term: 1, Seq: seq, Kind: KindWrite, Off: int64(seq) * blockLen, Len: blockLen})
	}
	s := begin(t, 3, m, Saved{})
	s.do(Up{Peer: 2})
	s.quiet(s.set.Grace)
	p := only(s, said[Promise](s.tell(2, Ask{Version: 1})))
	s.do(Rang{From: 2, Stream: p.Stream, Bell: Bell{View: v, First: 3, Sync: 2}})
	v.Version, v.Term, v.Primary, v.First, v.Planned = 2, 2, 0, 3, true
	if s.agree(v); s.role != Candidate {
		t.Errorf("%v", s.Core)
	}
}

// memoryOfBefore makes node 0 a primary whose log began anew, behind record 4, while it was a copy: the disks of the other members have
// applied 3.
func memoryOfBefore(t *testing.T, copies int) *solo {
	t.Helper()
	s, h := follows(t, copies, NodesOf(1, 2))
	s.do(Up{Peer: 2})
	s.synced(s.take(h.Stream, Bell{First: 5, Trim: 3, Freed: 3, Sync: 4, Start: &Start{Last: 4}}))
	v := s.view
	v.Version, v.InSync = 2, NodesOf(0, 1, 2)
	s.agree(v)
	v.Version, v.Term, v.Primary, v.First, v.Planned = 3, 2, 0, 5, true
	s.agree(v)
	return s
}

// greeted says hello for them.
func (s *solo) greeted() {
	for _, id := range []ID{1, 2} {
		s.tell(id, Hello{Version: 3, Stream: streamOf(id), Memory: true, Last: 4, Applied: 3, Durable: 3, Sizes: s.sizes()})
	}
}

// A primary whose log began anew while it was a copy gives no memory until all have applied the records before that log: a disk may still
// write from theirs. Who does not come so far is dropped.
func TestMemoryOfBefore(t *testing.T) {
	for name, let := range map[string]func(s *solo) []Action{
		"applied": func(s *solo) []Action {
			s.ack(1, 4, 4, 3)
			none(s, each[*Answer](s.do(Tick{})), "the disk of node 2 has not written record 4")
			s.ack(2, 4, 4, 3)
			return s.do(Tick{})
		},
		"dropped": func(s *solo) []Action {
			s.ack(1, 4, 4, 4)
			actions := s.wait(s.set.SlowCopy - 100*time.Millisecond)
			none(s, append(proposals(actions), proposals(s.ack(2, 4, 3, 3))...), "a disk may take so long")
			v := proposals(s.wait(200 * time.Millisecond))
			if len(v) == 0 || v[0].InSync != NodesOf(0, 1) {
				s.Fatalf("%+v %v", v, s.Core)
			}
			return s.agree(v[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := memoryOfBefore(t, 3)
			none(s, each[*Answer](s.do(Reserve{ID: 1, Len: blockLen})), "memory that the disks of nodes 1 and 2 may still write from")
			s.greeted()
			only(s, each[*Answer](let(s)))
		})
	}
}

// Nor does it take such memory itself: to bring a copy level, to repair a range of its own disk, or one of a member's.
func TestMemoryOfBeforeForCopies(t *testing.T) {
	s := memoryOfBefore(t, 4)
	s.greeted()
	var all []Action
	does := func(actions []Action) []Action {
		for _, load := range each[Load](actions) {
			all = append(all, load)
		}
		for _, lend := range said[Lend](actions) {
			all = append(all, Send{Msg: lend})
		}
		return actions
	}
	var lacks Bits
	lacks.Set(2)
	does(s.tell(3, Hello{Version: 3, Stream: streamOf(3), Memory: true, Suspects: lacks, Sizes: s.sizes()}))
	read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 3 * granuleLen, Len: blockLen})))
	does(s.do(Done{ID: read.ID, Failed: true}))
	s.do(Verify{ID: 2, Repair: true, Trust: NodesOf(0)})
	hash := only(s, each[Hash](s.ack(1, 5, 3, 3)))
	s.do(Done{ID: hash.ID})
	for _, id := range []ID{1, 2} {
		does(s.tell(id, Hashed{Seq: 5, Digest: Digest{1}}))
	}
	does(s.do(Tick{}))
	none(s, all, "memory that the disks of nodes 1 and 2 may still write from")
	for _, id := range []ID{1, 2, 3} {
		does(s.ack(id, 5, 5, 5))
	}
	does(s.do(Tick{}))
	if len(each[Load](all)) != 2 || len(said[Lend](all)) != 1 {
		t.Errorf("%+v", all)
	}
}

// What was read to be copied, for a copy outside S, for a member that has it wrong, or from a member for this disk, or to be compared, and
// finds no room in the log, is read again when there is room, and not until then: a disk that answers at once would do nothing else.
func TestNoRoomForCopies(t *testing.T) {
	fills := func(s *solo) {
		for i := int64(0); s.hasRoom(); i++ {
			s.do(Zero{ID: uint64(100 + i), Off: (32 + i) * blockLen, Len: blockLen})
		}
	}
	// room lets the disks have all that is in the log, durably.
	room := func(s *solo) (all []Action) {
		last := s.log.last()
		all = s.do(Flush{ID: 99})
		for ; s.base < last; all = append(all, s.do(Tick{})...) {
			for id := range s.alive.All() {
				all = append(all, s.ack(id, last, last, last)...)
			}
			for i := range s.places {
				if p := &s.places[i]; p.work.kind == workApply || p.work.kind == workSync {
					all = append(all, s.do(Done{ID: p.id})...)
				}
			}
		}
		return all
	}

	s := outside(t, 2)
	load := only(s, each[Load](s.lacks(0)))
	fills(s)
	none(s, each[Load](s.do(Done{ID: load.ID})), "there is no room for the copy's")
	only(s, each[Load](room(s)))

	s = reigns(t, 2)
	load = only(s, each[Load](s.do(s.compares())))
	fills(s)
	none(s, each[Load](s.do(Done{ID: load.ID})), "there is no room for the member's")
	only(s, each[Load](room(s)))

	s = refused(t)
	lend := only(s, said[Lend](s.ack(1, 1, 1, 0)))
	pull := only(s, each[Pull](s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7})))
	fills(s)
	none(s, said[Lend](s.do(Done{ID: pull.ID, Sum: 7})), "there is no room for this disk's")
	only(s, said[Lend](room(s)))

	s = reigns(t, 2)
	s.do(Reserve{ID: 1, Len: blockLen})
	compare := only(s, each[Compare](s.do(Swap{ID: 1, Key: 1, Off: 0, Len: blockLen})))
	fills(s)
	none(s, each[Compare](s.do(Done{ID: compare.ID, Equal: true})), "there is no room for what a host swaps")
	only(s, each[Compare](room(s)))
}

// A node lets nobody write into its memory while its disk does, on behalf of a reign that is over.
func TestLoadsForNobody(t *testing.T) {
	s := outside(t, 3)
	load := only(s, each[Load](s.lacks(0)))
	v := s.view
	v.Version, v.Term, v.Primary = v.Version+1, v.Term+1, 2
	none(s, said[Hello](s.agree(v)), "its disk still writes into its memory")
	only(s, said[Hello](s.do(Done{ID: load.ID})))
}

// Who cannot take records because its disk hangs gives no lease: the primary would take it for a member that is about to return.
func TestHungLease(t *testing.T) {
	s := outside(t, 3)
	load := only(s, each[Load](s.lacks(0)))
	v := s.view
	v.Version, v.Term, v.Primary = v.Version+1, v.Term+1, 2
	s.agree(v)
	lease := func() bool {
		return only(s, each[SendEcho](s.do(BeatFrom{From: 2, Beat: Beat{View: v}}))).Echo.OK
	}
	if !lease() {
		t.Error("its disk has time")
	}
	s.now += s.set.SlowCopy
	s.do(Tick{})
	if lease() {
		t.Error("its disk hangs, and it gives a lease")
	}
	h := only(s, said[Hello](s.do(Done{ID: load.ID})))
	s.do(Rang{From: 2, Stream: h.Stream, Bell: Bell{View: v}})
	if !lease() {
		t.Error("its disk goes on")
	}
}

// A read and a flush are answered when it is known that no other node was primary.
func TestProof(t *testing.T) {
	s := reigns(t, 2)
	read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 0, Len: blockLen})))
	none(s, each[Answer](s.do(Done{ID: read.ID})), "nobody has said that this is the primary still")
	if a := only(s, each[Answer](s.proven(1))); a.ID != 1 || a.Status != Good {
		t.Errorf("%+v", a)
	}
	asked := s.do(Flush{ID: 2})
	none(s, each[Answer](asked), "nobody has said that this is the primary still")
	only(s, each[SendBeat](asked))
	if a := only(s, each[Answer](s.proven(1))); a.ID != 2 || a.Status != Good {
		t.Errorf("%+v", a)
	}
}

// Who has given a lease promises nothing before it has run out.
func TestLeaseOrPromise(t *testing.T) {
	s, _ := follows(t, 3, NodesOf(0, 1, 2))
	s.do(BeatFrom{From: 1, Beat: Beat{View: s.view}})
	none(s, said[Promise](s.tell(2, Ask{Version: 1})), "there is a lease")
	s.quiet(s.set.Grace)
	only(s, said[Promise](s.tell(2, Ask{Version: 1})))
}

// A node whose ticks are late has slept in between: that time says nothing about the primary, the rest does.
func TestLateTicks(t *testing.T) {
	s, _ := follows(t, 2, NodesOf(0, 1))
	s.do(BeatFrom{From: 1, Beat: Beat{View: s.view}})
	s.now += time.Minute
	if s.do(Tick{}); s.role != Follower {
		t.Errorf("stands for what it has slept: %v", s.Core)
	}
	for range 20 {
		s.now += 2 * s.set.Heartbeat
		s.do(Tick{})
	}
	if s.role != Candidate {
		t.Errorf("never stands: %v", s.Core)
	}
}

// Who has lost its memory gives no lease: it may know an old view only.
func TestAmnesiacLease(t *testing.T) {
	v := firstView(2)
	v.Primary = 1
	s := begin(t, 2, nil, Saved{View: v})
	if e := only(s, each[SendEcho](s.do(BeatFrom{From: 1, Beat: Beat{View: v}}))); e.Echo.OK {
		t.Errorf("%+v", e)
	}
}

// Hosts may take all memory that is theirs; copying goes on.
func TestMemoryForCopies(t *testing.T) {
	s := outside(t, 2)
	for i, n := range []int64{2, 4} { // quarters
		only(s, each[Answer](s.do(Reserve{ID: uint64(i), Len: s.set.Heap / n})))
	}
	none(s, each[Answer](s.do(Reserve{ID: 9, Len: blockLen})), "there is no memory")
	only(s, each[Load](s.lacks(0)))
}

// refused lets the disk of node 0 refuse a read of block 0, which record 1 has written; node 1 has it in memory.
func refused(t *testing.T) *solo {
	t.Helper()
	s := reigns(t, 2)
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	apply := only(s, each[Apply](s.ack(1, 1, 0, 0)))
	s.do(Done{ID: apply.ID})
	read := only(s, each[ReadFor](s.do(Read{ID: 2, Off: 0, Len: blockLen})))
	none(s, said[Lend](s.do(Done{ID: read.ID, Failed: true})), "node 1 has not applied record 1")
	return s
}

// What a disk refuses to read is fetched from a member that has applied what this one has.
func TestRepair(t *testing.T) {
	s := refused(t)
	lend := only(s, said[Lend](s.ack(1, 1, 1, 0)))
	pull := only(s, each[Pull](s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7})))
	p := only(s, each[Post](s.do(Done{ID: pull.ID, Sum: 7})))
	if r := p.Recs[0]; r.Kind != KindResync || r.Copy != 0 || r.Addr != lend.Addr || r.Len != lend.Len {
		t.Errorf("%+v", r)
	}
}

// What the disk refuses to read the host gets from the member, as it was fetched: the disk is not asked again, for it may not keep what it is given. It is
// asked for the next read. A COMPARE AND WRITE compares with what was fetched, and its write goes to the disk.
func TestDiskRefusesForGood(t *testing.T) {
	s := refused(t)
	fetch := func(lend Lend) []Action {
		pull := only(s, each[Pull](s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7})))
		return s.do(Done{ID: pull.ID, Sum: 7})
	}
	kept := func(actions []Action, seq uint64) []Action {
		actions = append(actions, s.ack(1, seq, seq, 0)...)
		return append(actions, s.do(Done{ID: only(s, each[Apply](actions)).ID})...)
	}
	lend := only(s, said[Lend](s.ack(1, 1, 1, 0)))
	actions := fetch(lend)
	if d := only(s, each[Deliver](actions)); d != (Deliver{Req: 2, Off: 0, Len: blockLen, Addr: lend.Addr}) {
		t.Errorf("%+v", d)
	}
	actions = append(kept(actions, 2), s.proven(1)...)
	none(s, each[ReadFor](actions), "its disk may refuse again")
	if a := only(s, each[Answer](actions)); a.ID != 2 || a.Status != Good {
		t.Errorf("%+v", a)
	}

	read := only(s, each[ReadFor](s.do(Read{ID: 3, Off: 0, Len: blockLen})))
	if a := only(s, each[Answer](append(s.do(Done{ID: read.ID}), s.proven(1)...))); a.ID != 3 || a.Status != Good {
		t.Errorf("%+v", a)
	}

	s.do(Reserve{ID: 4, Len: blockLen})
	compare := only(s, each[Compare](s.do(Swap{ID: 4, Key: 1, Off: 0, Len: blockLen, Sum: 9})))
	actions = fetch(only(s, said[Lend](s.do(Done{ID: compare.ID, Failed: true}))))
	if d := only(s, each[Deliver](actions)); compare.Delivered || d.Req != 4 {
		t.Errorf("%+v %+v", compare, d)
	}
	compare = only(s, each[Compare](kept(actions, 3)))
	if p := only(s, each[Post](s.do(Done{ID: compare.ID, Equal: true}))); !compare.Delivered || p.Recs[0].Key != 1 || p.Recs[0].Sum != 9 {
		t.Errorf("%+v %+v", compare, p)
	}
}

// A member whose data never arrive whole is given up, and its data are not fetched for ever.
func TestRepairTorn(t *testing.T) {
	s := refused(t)
	lend := only(s, said[Lend](s.ack(1, 1, 1, 0)))
	for range maxTorn {
		pull := only(s, each[Pull](s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7})))
		actions := append(s.do(Done{ID: pull.ID, Sum: 8}), s.proven(1)...)
		if a := each[*Answer](actions); len(a) == 1 && a[0].Status == Failed {
			return
		}
		lend = only(s, said[Lend](actions))
	}
	t.Errorf("%v", s.Core)
}

// A copy that was late for a moment has left S, and what the primary cannot read it has: the read waits until it is back. If it does not
// come back in time, or was not heard for long, nobody can read.
func TestReadWaitsForCopy(t *testing.T) {
	reads := func(s *solo, id uint64) []Action {
		read := only(s, each[ReadFor](s.do(Read{ID: id, Off: 0, Len: blockLen})))
		return s.do(Done{ID: read.ID, Failed: true})
	}
	leaves := func(s *solo) {
		s.alive = 0
		actions := s.wait(s.set.Lease)
		v := proposals(actions)[0]
		if v.InSync != NodesOf(0) {
			t.Fatalf("%+v", v)
		}
		actions = append(actions, s.agree(v)...)
		none(s, each[Answer](append(actions, s.wait(time.Second)...)), "the copy may return")
	}

	s := reigns(t, 2)
	only(s, said[Lend](reads(s, 1)))
	leaves(s)
	s.alive = NodesOf(1)
	actions := append(s.hello(1, true), s.wait(s.set.Heartbeat)...)
	actions = append(actions, s.ack(1, 0, 0, 0)...)
	v := proposals(actions)[0]
	if v.InSync != NodesOf(0, 1) {
		t.Fatalf("%+v", v)
	}
	lend := said[Lend](append(actions, s.agree(v)...)) // perhaps as soon as it is proposed
	pull := only(s, each[Pull](s.tell(1, Lent{Stream: only(s, lend).Stream, Job: lend[0].Job, Sum: 7})))
	if p := only(s, each[Post](s.do(Done{ID: pull.ID, Sum: 7}))); p.Recs[0].Kind != KindResync || p.Recs[0].Copy != 0 {
		t.Errorf("%+v", p.Recs[0])
	}

	s = reigns(t, 2)
	only(s, said[Lend](reads(s, 1)))
	leaves(s)
	none(s, each[Answer](s.wait(s.set.SlowCopy-s.set.Lease-1200*time.Millisecond)), "the copy may return")
	if a := only(s, each[Answer](s.wait(400*time.Millisecond))); a.ID != 1 || a.Status != Failed {
		t.Errorf("%+v", a)
	}
	if a := only(s, each[Answer](append(reads(s, 2), s.wait(200*time.Millisecond)...))); a.ID != 2 || a.Status != Failed {
		t.Errorf("%+v", a)
	}
}

// Where W disks have to have what is read, a read does not wait for records that change nothing on this copy: those that have brought
// another one level.
func TestReadBehindCopying(t *testing.T) {
	s := outside(t, 2)
	const off = 4096 * blockLen
	load := only(s, each[Load](s.lacks(off/granuleLen)))
	s.do(Done{ID: load.ID})
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0, 1)
	if actions := s.ack(1, 1, 1, 1); only(s, each[Post](actions)).Recs[0].Kind != KindClean || only(s, proposals(actions)) != v {
		t.Fatalf("%+v", actions)
	}
	s.agree(v)
	only(s, each[ReadFor](s.do(Read{ID: 1, Off: off, Len: blockLen})))
}

// Of granules that were sent, and that a copy does not have yet, no more are on their way than the configuration allows (one, here): what calls them
// clean comes behind them, and a connection over a slow link may end before.
func TestCopyingWaits(t *testing.T) {
	s := outside(t, 2)
	load := only(s, each[Load](s.lacks(0, 1)))
	none(s, each[Load](s.do(Done{ID: load.ID})), "the copy does not have the first granule")
	none(s, each[Load](s.ack(1, 1, 0, 0)), "its disk does not have it")
	only(s, each[Load](s.ack(1, 1, 1, 0)))
}

// What a primary before has written there may not be on W disks, and its host may be gone. A read asks for it.
func TestReadAsksForSync(t *testing.T) {
	const off = 4096 * blockLen
	m := &Memory{View: firstView(2), Applied: 1, Log: []Record{{Term: 1, Seq: 1, Kind: KindZero, Off: off, Len: blockLen}}}
	s := stands(t, 2, m, Saved{})
	s.agree(only(s, proposals(s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true, Last: 1}))))
	s.tell(1, Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Last: 1, Applied: 1, Sizes: s.sizes()})
	actions := s.do(Read{ID: 1, Off: off, Len: blockLen})
	if p := only(s, each[Post](actions)); p.Bell.Sync != 1 {
		t.Errorf("%+v", p.Bell)
	}
	none(s, each[ReadFor](append(actions, s.synced(actions)...)), "node 1 does not have it durable")
	only(s, each[ReadFor](s.ack(1, 1, 1, 1)))
}

// When another node takes over, reads that the disk is at end as all others do.
func TestReadsMove(t *testing.T) {
	s := reigns(t, 2)
	reading := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 0, Len: blockLen})))
	proving := only(s, each[ReadFor](s.do(Read{ID: 2, Off: 0, Len: blockLen})))
	none(s, each[Answer](s.do(Done{ID: proving.ID})), "nobody has confirmed that this node is the primary")
	v := s.view
	v.Version, v.Term, v.Primary = v.Version+1, v.Term+1, 1
	moved := map[uint64]int{}
	for _, a := range each[Answer](append(s.agree(v), s.do(Done{ID: reading.ID})...)) {
		if moved[a.ID]++; a.Status != Moved {
			t.Errorf("%+v", a)
		}
	}
	if moved[1] != 1 || moved[2] != 1 {
		t.Errorf("answers by request: %v", moved)
	}
}

// A primary does not hand over while another reads into memory that it has allocated.
func TestRepairBeforeSwitch(t *testing.T) {
	s := refused(t)
	lend := only(s, said[Lend](s.ack(1, 1, 1, 0)))
	none(s, proposals(s.do(Switch{To: 1})), "node 1 reads for this one")
	pull := only(s, each[Pull](s.tell(1, Lent{Stream: streamOf(1), Job: lend.Job, Sum: 7})))
	if v := only(s, proposals(s.do(Done{ID: pull.ID, Sum: 7}))); !v.Planned || v.Primary != 1 {
		t.Errorf("%+v", v)
	}
}

// A primary that has handed over is told so though it learns only of a later view of its successor; not if that one has taken the office by
// itself.
func TestSwitchJumpedOver(t *testing.T) {
	for _, life := range []uint32{0, 5} {
		s := reigns(t, 3)
		v := only(s, proposals(s.do(Switch{ID: 7, To: 1})))
		if !v.Planned || v.Primary != 1 {
			t.Fatalf("%+v", v)
		}
		v.Version, v.InSync, v.Planned, v.Life = v.Version+1, NodesOf(0, 1), false, life
		want := Good
		if life != 0 {
			want = Moved
		}
		if a := only(s, each[Answer](s.agree(v))); a.ID != 7 || a.Status != want {
			t.Errorf("life %d: %+v", life, a)
		}
	}
}

// A switch to a member that does not get all is given up, and told; the primary goes on.
func TestSwitchGivenUp(t *testing.T) {
	s := reigns(t, 3)
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	s.ack(2, 1, 1, 1)
	none(s, proposals(s.do(Switch{ID: 7, To: 1})), "node 1 does not have record 1")
	if a := only(s, each[Answer](s.do(Switch{ID: 8, To: 2}))); a.ID != 8 || a.Status != Refused {
		t.Errorf("the second switch: %+v", a)
	}
	if a := only(s, each[Answer](s.wait(stuckAfter+100*time.Millisecond))); a.ID != 7 || a.Status != Failed {
		t.Errorf("the first one: %+v", a)
	}
	s.do(Zero{ID: 2, Off: 0, Len: blockLen})
	if a := only(s, each[Answer](s.ack(2, 2, 1, 1))); a.ID != 2 || a.Status != Good {
		t.Errorf("a write after it: %+v", a)
	}
}

// A node that is drained after a switch to it was ordered does not get the office.
func TestSwitchToDrained(t *testing.T) {
	s := reigns(t, 3)
	s.do(Down{Peer: 1})
	none(s, each[Answer](s.do(Switch{ID: 7, To: 1})), "node 1 is a member, and may come back")
	s.do(Drained{Nodes: NodesOf(1)})
	s.do(Up{Peer: 1})
	none(s, proposals(s.hello(1, true)), "node 1 is drained")
	if a := only(s, each[Answer](s.wait(stuckAfter+100*time.Millisecond))); a.ID != 7 || a.Status != Failed {
		t.Errorf("%+v", a)
	}
}

// A verification that is to stop finishes what it has begun, and begins nothing more.
func TestStopVerify(t *testing.T) {
	s := reigns(t, 2)
	s.do(Verify{ID: 7})
	hash := only(s, each[Hash](s.ack(1, 1, 0, 0)))
	s.do(Done{ID: hash.ID})
	none(s, each[Answer](s.do(StopVerify{})), "node 1 has not hashed")
	if a := only(s, each[Answer](s.tell(1, Hashed{Seq: 1}))); a.ID != 7 || a.Status != Good {
		t.Errorf("%+v", a)
	}
	if bytes, of := s.Verified(); bytes != granuleLen || of != 80*blockLen {
		t.Errorf("%d of %d were compared", bytes, of)
	}
}

// A node that is drained while the primary waits for it to have all does not get the office.
func TestDrainedWhileSealed(t *testing.T) {
	s := reigns(t, 2)
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	none(s, proposals(s.do(Switch{ID: 2, To: 1})), "node 1 does not have record 1")
	if a := only(s, each[*Answer](s.do(Drained{Nodes: NodesOf(1)}))); a.ID != 2 || a.Status != Refused {
		t.Errorf("%+v", a)
	}
	none(s, proposals(s.ack(1, 1, 0, 0)), "node 1 is drained")
}

// A primary whose disk refuses hands over to a node that is drained if there is no other one: it would serve nobody.
func TestBadDiskAmongDrained(t *testing.T) {
	s := reigns(t, 2)
	s.do(Drained{Nodes: NodesOf(1)})
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	apply := only(s, each[Apply](s.ack(1, 1, 1, 1)))
	if v := only(s, slices.Compact(proposals(append(s.do(Done{ID: apply.ID, Failed: true}), s.wait(retryAfter)...)))); !v.Planned || v.Primary != 1 {
		t.Errorf("%+v %v", v, s.Core)
	}

	// Who has got the office so has the other one say first that its disk is bad.
	office := func() *solo {
		s, h := follows(t, 2, NodesOf(0, 1))
		s.take(h.Stream, Bell{})
		s.do(Drained{Nodes: NodesOf(0)})
		v := s.view
		v.Version, v.Term, v.Primary, v.First, v.Planned = 2, 2, 0, 1, true
		if s.agree(v); s.role != Primary {
			t.Fatalf("%v", s.Core)
		}
		s.hello(1, true)
		none(s, proposals(s.wait(handAgainAfter/2)), "the disk of node 1 may be bad")
		return s
	}
	s = office()
	if v := only(s, proposals(s.tell(1, Ack{Stream: streamOf(1), Failed: true}))); v.InSync != NodesOf(0) {
		t.Errorf("%+v", v)
	}
	s = office()
	if v := only(s, slices.Compact(proposals(s.wait(handAgainAfter)))); !v.Planned || v.Primary != 1 {
		t.Errorf("%+v", v)
	}
}

// A candidate that is drained lets others stand: what it was promised is void.
func TestCandidateDrained(t *testing.T) {
	s := stands(t, 3, &Memory{View: firstView(3)}, Saved{})
	want := s.view
	want.Version++
	if v := only(s, proposals(s.do(Drained{Nodes: NodesOf(0)}))); v != want {
		t.Errorf("proposes %+v", v)
	}
	for id := ID(1); id < 3; id++ {
		none(s, proposals(s.tell(id, Promise{Version: 1, Stream: streamOf(id), Memory: true})), "node 0 is drained")
	}
	s.agree(want)
	s.alive = 0
	none(s, proposals(s.wait(time.Second)), "nodes 1 and 2 may stand")
	s.do(Drained{Nodes: NodesOf(0, 1, 2)})
	s.wait(time.Second)
	if s.role != Candidate {
		t.Errorf("all are drained, and node 0 does not stand: %v", s.Core)
	}
}

// A member that is drained takes the office when the one that is not has lost its memory, and so cannot: when that one has tried, and
// says so. It does not if the other is away, or remembers.
func TestDrainedAlone(t *testing.T) {
	v := firstView(2)
	v.Primary = 1
	s := begin(t, 2, &Memory{View: v}, Saved{})
	s.do(Drained{Nodes: NodesOf(0)})
	s.alive = 0
	s.do(Up{Peer: 1})
	none(s, said[Ask](s.wait(2*handAgainAfter)), "nobody has said that node 1 cannot serve")
	try := func() []Ask {
		only(s, said[Promise](s.tell(1, Ask{Version: v.Version})))
		v.Version++
		return said[Ask](append(s.agree(v), s.wait(stuckAfter/2)...))
	}
	if len(try()) == 0 {
		t.Fatalf("%v", s.Core)
	}
	again := v
	again.Version++
	if v := only(s, proposals(s.tell(1, Promise{Version: v.Version, Stream: streamOf(1), Memory: true}))); v != again {
		t.Errorf("%+v, and node 1 remembers", v)
	}
	v.Version++
	s.agree(v)
	s.wait(stuckAfter * 3 / 2)
	if s.role != Candidate {
		t.Fatalf("%v", s.Core)
	}
	got := only(s, proposals(s.tell(1, Promise{Version: v.Version, Stream: streamOf(1)})))
	if got.Primary != 0 || got.Term != 2 || got.InSync != NodesOf(0) {
		t.Errorf("%+v", got)
	}
}

// What a primary has copied to one node alone is not in the memory of its successor, who does not hand it on.
func TestHandedOn(t *testing.T) {
	s := stands(t, 2, &Memory{View: firstView(2), Log: []Record{{Term: 1, Seq: 1, Kind: KindResync, Copy: 1, Off: 0, Len: granuleLen}}}, Saved{})
	p := only(s, each[Post](s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true})))
	if len(p.Recs) != 1 || p.Recs[0].Kind != KindNone {
		t.Errorf("%+v", p)
	}
}

// A candidate that has lost its memory, and hears from enough who remember, lets them stand.
func TestAmnesiacCandidate(t *testing.T) {
	v := firstView(3)
	v.Primary = 2
	s := begin(t, 3, nil, Saved{View: v})
	s.alive = 0
	s.do(Up{Peer: 1})
	if len(said[Ask](s.wait(time.Second))) == 0 {
		t.Fatalf("%v", s.Core)
	}
	s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true})
	s.do(Up{Peer: 2})
	v.Version++
	if got := only(s, proposals(s.tell(2, Promise{Version: 1, Stream: streamOf(2), Memory: true}))); got != v {
		t.Errorf("proposes %+v", got)
	}
}

// A node takes what it has proposed in a former life for another's.
func TestFormerLife(t *testing.T) {
	s := stands(t, 2, &Memory{View: firstView(2)}, Saved{})
	v := only(s, proposals(s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true})))
	v.Life = s.set.Incarnation - 1
	s.agree(v)
	if s.role == Primary {
		t.Errorf("%v", s.Core)
	}
}

// Who goes on alone has durable what others have, who do not remember more.
func TestAloneAndDurable(t *testing.T) {
	m := &Memory{View: firstView(3), Base: 1, Applied: 3}
	for seq := uint64(2); seq <= 3; seq++ {
		m.Log = append(m.Log, Record{Term: 1, Seq: seq, Kind: KindZero, Off: 0, Len: blockLen})
	}
	s := stands(t, 3, m, Saved{Mark: 1})
	s.tell(1, Promise{Version: 1, Stream: streamOf(1), Last: 2, Durable: 2})
	actions := s.tell(2, Promise{Version: 1, Stream: streamOf(2), Last: 1, Durable: 1})
	none(s, proposals(actions), "record 2 is durable only on node 1")
	if v := only(s, proposals(s.do(Done{ID: only(s, each[Sync](actions)).ID}))); v.InSync != NodesOf(0) {
		t.Errorf("%+v", v)
	}
}

// A granule behind the end of a store is not copied, and not waited for.
func TestBehindTheEnd(t *testing.T) {
	s := outside(t, 2)
	none(s, each[Load](s.lacks(100)), "there is nothing")
	if v := only(s, proposals(s.ack(1, 0, 0, 0))); v.InSync != NodesOf(0, 1) {
		t.Errorf("%+v", v)
	}
}

// A disk that is not the one of the log and the metadata is no source: its node stands for nothing, leaves S, and
// suspects all of it. Only then is the disk known, as that of a copy that has to be brought level.
func TestUnknownDisk(t *testing.T) {
	v := firstView(2)
	v.Primary = 1
	m := &Memory{View: v, Base: 6, Applied: 7, Log: []Record{{Term: 1, Seq: 7, Kind: KindZero, Off: 0, Len: blockLen}}}
	s := begin(t, 2, m, Saved{View: v, Mark: 6, Unknown: true})
	s.alive = 0
	none(s, said[Ask](s.wait(2*time.Second)), "the disk is unknown")
	p := only(s, said[Promise](s.tell(1, Ask{Version: 1})))
	if p.Memory || p.Last > 0 || p.Durable > 0 {
		t.Errorf("%+v", p)
	}
	v.Version, v.Term, v.InSync = 2, 2, NodesOf(1)
	if saves := each[Save](s.agree(v)); slices.ContainsFunc(saves, func(a Save) bool { return a.Known }) || s.disk.set.Len() != 5 {
		t.Errorf("%+v, regions: %v", saves, s.disk.set)
	}
	h := only(s, said[Hello](s.do(Up{Peer: 1})))
	if h.Memory || h.Suspects.Len() != 20 {
		t.Errorf("%+v", h)
	}
	if save := only(s, each[Save](s.take(h.Stream, Bell{Start: &Start{Last: 7}}))); !save.Known || save.View != v || len(save.Clear) > 0 {
		t.Errorf("%+v", save)
	}
	alone := firstView(1)
	s = begin(t, 2, &Memory{View: alone}, Saved{View: alone, Unknown: true})
	none(s, proposals(s.wait(2*time.Second)), "the only copy is unknown")
}

// A sync that has begun before a copy's log begins anew says nothing of the new log.
func TestSyncOfBefore(t *testing.T) {
	s, h := follows(t, 2, NodesOf(1))
	rec := Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen}
	apply := only(s, each[Apply](s.take(h.Stream, Bell{Start: &Start{}, Sync: 1}, rec)))
	s.do(Down{Peer: 1})
	s.do(Up{Peer: 1})
	actions := s.do(Done{ID: apply.ID})
	h, sync := only(s, said[Hello](actions)), only(s, each[Sync](actions))
	s.take(h.Stream, Bell{Start: &Start{}}, rec)
	for _, a := range said[Ack](s.do(Done{ID: sync.ID})) {
		t.Errorf("%+v, and record 1 is not even applied", a)
	}
	if s.disk.durable > 0 {
		t.Errorf("%v", s.Core)
	}
}

// TestGrownAlone: this copy has done a growth that was given up. A host that asks for that size gets it when the others have it, too.
func TestGrownAlone(t *testing.T) {
	s := reigns(t, 2)
	const off = 4096 * blockLen
	s.do(Down{Peer: 1})
	s.do(Up{Peer: 1})
	none(s, each[*Answer](s.do(Grow{ID: 1, Off: off, Size: 16 * blockLen})), "it is not known how large the store is at the other copy")
	last := s.log.last()
	actions := s.tell(1, Hello{
		Version: s.view.Version, Stream: streamOf(1), Memory: true, Last: last, Applied: last, Durable: last, Sizes: []int64{64 * blockLen, 15 * blockLen},
	})
	posts := each[*Post](actions)
	if len(posts) != 1 || len(posts[0].Recs) != 1 {
		t.Fatalf("%+v", actions)
	}
	if r := posts[0].Recs[0]; r.Kind != KindFit || r.Copy != 1 || r.Off != off+15*blockLen || r.Len != blockLen {
		t.Errorf("%+v", r)
	}
	actions = s.synced(actions)
	none(s, each[*Answer](actions), "the other copy has not done it")
	actions = s.ack(1, last+1, last+1, last+1)
	if a := only(s, each[*Answer](append(actions, s.synced(actions)...))); a.ID != 1 || a.Status != Good {
		t.Errorf("%+v", a)
	}
}

// TestLargerCopy: a copy outside S has done a growth that was given up, and suspects what it has there, for its disk was set back. It gets zeroes
// before it is in S, also where nobody can read what comes before them.
func TestLargerCopy(t *testing.T) {
	const first, has, size = 12, 14, 22 // blocks of the second store
	const off, end = 4096 * blockLen, (4096 + has) * blockLen
	for _, refuses := range []bool{false, true} {
		s := outside(t, 3)
		s.stores[1].Size = has * blockLen
		s.cfg.Unit, s.cfg.Copying = granuleLen, 3
		s.Blocks(blockLen)
		s.CompareFirst(10)
		s.tell(2, Hello{Version: s.view.Version, Stream: newStream(2), Memory: true, Sizes: s.sizes()})
		ack := func(id ID, durable uint64) []Action {
			return s.tell(id, Ack{Stream: newStream(id), Received: s.log.last(), Applied: s.log.last(), Durable: durable})
		}
		var b Bits
		s.mark(&b, off+first*blockLen, (size-first)*blockLen)
		all := s.tell(1, Hello{Version: s.view.Version, Stream: newStream(1), Memory: true, Suspects: b, Sizes: []int64{s.stores[0].Size, size * blockLen}})
		for i, waits := 0, 0; i < len(all) && waits < 20; i++ {
			switch a := all[i].(type) {
			case Load:
				if behind := min(a.Len, max(0, a.Off+a.Len-end)); a.Behind != behind {
					t.Errorf("%+v, and %d bytes lie behind the end", a, behind)
				}
				all = append(all, s.do(Done{ID: a.ID, Failed: refuses && a.Behind < a.Len})...)
			case Hash:
				t.Errorf("%+v is compared, and this node has not all of it", a)
			case Send:
				if l, ok := a.Msg.(Lend); ok && l.Off+l.Len > end {
					t.Errorf("%+v is asked of another one, whose store ends before that", l)
				} else if ok {
					all = append(all, s.tell(a.To, Lent{Job: l.Job, Stream: l.Stream, Failed: true})...)
				}
			}
			if i == len(all)-1 {
				waits++
				all = append(all, s.wait(retryAfter/4)...)
			}
		}
		var gets [size]Kind
		for r := range s.Log {
			for i := r.Off; i < r.Off+r.Len; i += blockLen {
				gets[(i-off)/blockLen] = r.Kind
			}
		}
		for i, got := range gets[first:] {
			want := KindResync
			if refuses && first+i < has {
				want = KindLost
			}
			if got != want {
				t.Errorf("refuses: %v: of block %d it gets a record of kind %d, and should one of kind %d", refuses, first+i, got, want)
			}
		}
		ack(2, 0)
		none(s, proposals(ack(1, 0)), "it does not have that durably")
		ack(2, 0)
		only(s, proposals(ack(1, s.log.last())))
		if !s.bitmaps[1].Empty() {
			t.Errorf("%v is not clean", s.bitmaps[1])
		}
	}
}

// written lets the disk do what it has got, and make it durable if that is asked for.
func (s *solo) written(actions []Action) {
	for _, apply := range each[Apply](actions) {
		s.written(s.do(Done{ID: apply.ID}))
	}
	s.synced(actions)
}

// synced lets all syncs succeed, and returns what follows.
func (s *solo) synced(actions []Action) []Action {
	var all []Action
	for _, sync := range each[Sync](actions) {
		more := s.do(Done{ID: sync.ID})
		all = append(append(all, more...), s.synced(more)...)
	}
	return all
}

// applies lets the disk write all records, and returns what was done and what follows. keeps has it make them durable, too.
func (s *solo) applies(all []Action) []Action {
	for i := 0; i < len(all); i++ {
		if a, ok := all[i].(*Apply); ok {
			all = append(all, s.do(Done{ID: a.ID})...)
		}
	}
	return all
}

func (s *solo) keeps(all []Action) []Action {
	for i := 0; i < len(all); i++ {
		switch a := all[i].(type) {
		case *Apply:
			all = append(all, s.do(Done{ID: a.ID})...)
		case Sync:
			all = append(all, s.do(Done{ID: a.ID})...)
		}
	}
	return all
}

// TestDurableGoesWithTheRecord: of what is to be durable soon the other copy hears with the record itself. Its flush tells it nothing more.
func TestDurableGoesWithTheRecord(t *testing.T) {
	for _, durable := range []bool{false, true} {
		s := reigns(t, 2)
		seq := s.log.last() + 1
		p := only(s, each[Post](s.do(Zero{ID: 1, Off: 0, Len: blockLen, Durable: durable})))
		if asked := p.Bell.Sync >= seq; len(p.Recs) != 1 || asked != durable {
			t.Errorf("durable: %v: %+v", durable, p)
		}
		s.ack(1, seq, seq, 0)
		if posts := each[Post](s.do(Flush{ID: 2})); len(posts) == 0 != durable {
			t.Errorf("durable: %v: with the flush it is told %+v", durable, posts)
		}
	}
}

// TestSyncsWhatThereIs: a log that is shorter than what was asked to be durable, for its end has been lost, is durable all the same when a host asks.
func TestSyncsWhatThereIs(t *testing.T) {
	s := reigns(t, 2)
	s.syncTo = s.log.last() + 5
	seq := s.log.last() + 1
	all := s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	all = append(all, s.ack(1, seq, seq, 0)...)
	all = append(s.applies(all), s.do(Flush{ID: 2})...)
	if syncs := each[Sync](all); len(syncs) == 0 {
		t.Error("nothing becomes durable before the log is as long as it was")
	}
}
