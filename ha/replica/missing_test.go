package replica

import (
	"slices"
	"testing"
)

// newStream is the number of the stream of a copy that takes KindLost, and suspects what was compared.
func newStream(id ID) uint64 { return knowsLost | suspectsEqual | streamOf(id) }

// refuses has node 1, outside S, lack granule 0, and node 0's disk refuse the blocks whose bits are set. It returns what is done until
// nothing is left to be read.
func (s *solo) refuses(stream uint64, blocks int) (all []Action) {
	var b Bits
	b.Set(0)
	return s.gives(blocks, s.tell(1, Hello{Version: s.view.Version, Stream: stream, Memory: true, Suspects: b, Sizes: s.sizes()}))
}

func (s *solo) gives(blocks int, all []Action) []Action {
	last := 0
	for i := 0; i < len(all) && last < 40; i++ {
		if load, ok := all[i].(Load); ok {
			failed := false
			for b := load.Off / blockLen; b < (load.Off+load.Len)/blockLen; b++ {
				failed = failed || blocks>>b&1 != 0
			}
			all = append(all, s.do(Done{ID: load.ID, Failed: failed})...)
		}
		if i == len(all)-1 {
			last++
			all = append(all, s.do(Tick{})...)
			all = append(all, s.wait(retryAfter/4)...)
		}
	}
	return all
}

// What the only disk cannot read a copy goes without: a record says so at its place, and the rest of the granule is copied.
func TestGoesWithout(t *testing.T) {
	s := outside(t, 2)
	var kinds []Kind
	all := s.refuses(newStream(1), 0b0100)
	for r := range s.Log {
		if kinds = append(kinds, r.Kind); r.Kind == KindLost && (r.Off != 2*blockLen || r.Len != blockLen || r.Copy != 1) {
			t.Errorf("%+v", r)
		}
	}
	if len(kinds) != 4 || kinds[0] != KindResync || kinds[1] != KindResync || kinds[2] != KindLost || kinds[3] != KindResync {
		t.Fatalf("records %v", kinds)
	}
	if l := only(s, each[Lost](all)); l != (Lost{To: 1, Off: 2 * blockLen, Len: blockLen}) {
		t.Errorf("%+v", l)
	}
	none(s, proposals(s.tell(1, Ack{Stream: newStream(1), Received: s.log.last(), Applied: s.log.last()})), "what the copy goes without is not durable there")
	if s.bitmaps[1].Has(0) {
		t.Error("the granule is not clean, and the copy has what there is of it")
	}
	v := only(s, proposals(s.tell(1, Ack{Stream: newStream(1), Received: s.log.last(), Applied: s.log.last(), Durable: s.log.last()})))
	if v.InSync != NodesOf(0, 1) {
		t.Errorf("%+v", v)
	}
}

// It goes without the blocks that nobody can read, and not without what lies beside them: that a member has, and a host may have written it since.
func TestGoesWithoutBlocks(t *testing.T) {
	s := outside(t, 2)
	s.cfg.Unit = granuleLen
	s.Blocks(blockLen)
	lost := each[Lost](s.refuses(newStream(1), 0b0100))
	if l := only(s, lost); l != (Lost{To: 1, Off: 2 * blockLen, Len: blockLen}) {
		t.Errorf("%+v", l)
	}
	var has Bits
	for r := range s.Log {
		if r.Kind == KindResync {
			for i := r.Off / blockLen; i < (r.Off+r.Len)/blockLen; i++ {
				has.Set(int(i))
			}
		}
	}
	if has.Len() != 3 || has.Has(2) {
		t.Errorf("the blocks %v are copied", has)
	}
}

// It does not go without what a host has written since its stream began: it has got that, though the disk of the primary does not keep it. Of what was
// written in part it goes without.
func TestGoesWithWritten(t *testing.T) {
	s := outside(t, 2)
	s.cfg.Unit = granuleLen
	s.Blocks(2 * blockLen)
	var b Bits
	b.Set(0)
	all := s.tell(1, Hello{Version: s.view.Version, Stream: newStream(1), Memory: true, Suspects: b, Sizes: s.sizes()})
	all = append(all, s.do(Zero{ID: 1, Off: 0, Len: 2 * blockLen})...) // waits until the granule is free
	all = append(all, s.do(Zero{ID: 2, Off: 2 * blockLen, Len: blockLen})...)
	for i := 0; i < len(all) && i < 1000; i++ {
		switch a := all[i].(type) {
		case *Apply:
			all = append(all, s.do(Done{ID: a.ID})...)
		case Load:
			all = append(all, s.do(Done{ID: a.ID, Failed: true})...)
		}
		if i == len(all)-1 {
			all = append(all, s.wait(retryAfter/4)...)
		}
	}
	var lost []int64
	for _, l := range each[Lost](all) {
		lost = append(lost, l.Off/blockLen)
	}
	if !slices.Equal(lost, []int64{2}) {
		t.Errorf("it goes without blocks %v", lost)
	}
	s.tell(1, Ack{Stream: newStream(1), Received: s.log.last(), Applied: s.log.last()})
	if s.bitmaps[1].Has(0) {
		t.Error("the granule is not clean, and the copy has what there is of it")
	}
	if w := s.peer[1].wrote; w.chunks != 0 {
		t.Error("what was noted of a granule stays when the copy has it")
	}
	s.peer[1].wrote.set(1, 3)
	s.do(Down{Peer: 1})
	if s.peer[1].wrote.chunks != 0 {
		t.Error("another stream begins with what was noted in this one")
	}
}

// What hosts write while a copy is brought level takes a bounded amount of memory, and what is forgotten makes room.
func TestWroteIsBounded(t *testing.T) {
	var w wrote
	const last = maxWrote - 1
	for i := range maxWrote + 2 {
		w.set(chunkAt(i))
	}
	at := func(i int) (region, first, end int) { return i / 8, i % 8 * chunkBits, i%8*chunkBits + 1 }
	if w.chunks != maxWrote || !w.has(at(last)) || w.has(at(last+1)) {
		t.Fatalf("%d chunks", w.chunks)
	}
	w.forget(0, 0, 8*chunkBits)
	if w.chunks != maxWrote-8 || w.has(at(3)) {
		t.Fatalf("%d chunks without a region", w.chunks)
	}
	if w.set(chunkAt(last + 1)); !w.has(at(last + 1)) {
		t.Fatal("what was forgotten made no room")
	}
	w.forget(last/8+9, 0, 1) // nobody has written there
}

// chunkAt is the first block of a chunk; a region has eight.
func chunkAt(i int) (region, block int) { return i / 8, i % 8 * chunkBits }

// A copy of a version that does not know of KindLost goes without nothing, and so does one for which too much is not there.
func TestGoesWithoutNothing(t *testing.T) {
	s := outside(t, 2)
	none(s, each[Lost](s.refuses(streamOf(1), 0b0100)), "the copy would take it for something else")

	s = outside(t, 2)
	s.hello(1, true)
	s.refuses(newStream(1), 0)
	s.tell(1, Ack{Stream: newStream(1), Received: s.log.last(), Applied: s.log.last()})
	s.peer[1].losses = (maxLosses - 1) * blockLen
	s.bitmaps[1].Set(0)
	s.peer[1].todo.Set(0)
	s.peer[1].hard.Set(0)
	if n := len(each[Lost](s.gives(0b1111, s.do(Tick{})))); n != 1 {
		t.Errorf("the copy goes without %d pieces, and one more is allowed", n)
	}
}

// What a disk does not keep, though it was written anew, the copy gets from the one that has it.
func TestDiskKeepsNothing(t *testing.T) {
	s := left(t, 3)
	asked, lost := s.asks(staysBad|0b0100, NodesOf(2), s.restarts(1, newStream(1), 0))
	if !slices.Equal(asked[2], []int{0, 0}) || len(lost) > 0 {
		t.Fatalf("asked for %v, %v is lost", asked, lost)
	}
	var copied []int64
	for r := range s.Log {
		if r.Kind == KindResync && r.Copy == 1 {
			copied = append(copied, r.Off/blockLen)
			if r.Off == 2*blockLen && r.Sum != 7 {
				t.Errorf("%+v", r)
			}
		}
	}
	if !slices.Equal(copied, []int64{0, 1, 2, 3, 4}) || s.peer[1].copying > 0 || !s.peer[1].todo.Empty() || s.bitmaps[1].Has(0) {
		t.Errorf("blocks %v are copied; %d granules are under way", copied, s.peer[1].copying)
	}

	// A member was asked in vain. A host has written in the granule since, so the copy has that, and nobody is asked again.
	s = left(t, 3)
	s.peer[2].stream |= knowsLost
	times := 0
	all := s.restarts(1, newStream(1), 0)
	for range 20 {
		for i := 0; i < len(all); i++ {
			switch a := all[i].(type) {
			case *Apply:
				all = append(all, s.do(Done{ID: a.ID})...)
			case Load:
				all = append(all, s.do(Done{ID: a.ID, Failed: a.Off <= 2*blockLen && a.Off+a.Len > 2*blockLen})...)
			case Pull:
				all = append(all, s.do(Done{ID: a.ID, Sum: 7})...)
			case Send:
				if l, ok := a.Msg.(Lend); ok {
					if times++; times == 1 {
						s.do(Zero{ID: 9, Off: 2 * blockLen, Len: blockLen}) // waits until the range is free
					}
					all = append(all, s.tell(a.To, Lent{Job: l.Job, Stream: l.Stream, Sum: 7, Failed: times == 1})...)
				}
			case *Post:
				all = append(all, s.tell(a.To, Ack{Stream: a.Stream, Received: s.log.last(), Applied: s.log.last()})...)
			case Lost:
				t.Errorf("%+v", a)
			}
		}
		all = s.wait(s.set.Heartbeat)
	}
	if times != 1 || s.bitmaps[1].Has(0) {
		t.Errorf("asked %d times; %v", times, s.Core)
	}

	// The copy has begun anew meanwhile: it gets all of the granule once more.
	s = left(t, 3)
	var fetched []Action
	for all := s.restarts(1, newStream(1), 0); len(fetched) == 0; all = s.wait(retryAfter / 4) {
		for i := 0; i < len(all); i++ {
			switch a := all[i].(type) {
			case *Apply:
				all = append(all, s.do(Done{ID: a.ID})...)
			case Load:
				all = append(all, s.do(Done{ID: a.ID, Failed: a.Off <= 3*blockLen && a.Off+a.Len > 3*blockLen})...)
			case Pull:
				if s.peer[1].sift.mended {
					s.do(Down{Peer: 1})
					s.restarts(1, newStream(1)+1, 0)
					fetched = append(fetched, s.do(Done{ID: a.ID, Sum: 7})...)
					continue
				}
				all = append(all, s.do(Done{ID: a.ID, Sum: 7})...)
			case Send:
				if l, ok := a.Msg.(Lend); ok {
					all = append(all, s.tell(a.To, Lent{Job: l.Job, Stream: l.Stream, Sum: 7})...)
				}
			case *Post:
				all = append(all, s.tell(a.To, Ack{Stream: a.Stream, Received: s.log.last(), Applied: s.log.last()})...)
			}
		}
	}
	if p := &s.peer[1]; len(p.clean) > 0 || p.copying != 1 && !p.todo.Has(0) {
		t.Errorf("%d granules are taken for copied; on their way are %d", len(p.clean), p.copying)
	}
}

// takes is a copy outside S that has taken a record of what nobody can read. Its disk has it durably up to there.
func takes(t *testing.T, recs ...Record) (s *solo, last *Save) {
	t.Helper()
	s, h := follows(t, 3, NodesOf(1))
	if h.Stream&knowsLost == 0 {
		t.Errorf("stream %#x does not say that it takes KindLost", h.Stream)
	}
	for _, save := range each[Save](s.keeps(s.take(h.Stream, Bell{Start: &Start{}, Sync: recs[len(recs)-1].Seq}, recs...))) {
		if save.Missing != nil {
			last = &save
		}
	}
	if s.durable != recs[len(recs)-1].Seq {
		t.Fatalf("%v", s.Core)
	}
	return s, last
}

// What a copy goes without is in the metadata with the mark, and what is written there is not any more, but not before it is durable: a
// power cut would leave what is older.
func TestMissingIsDurable(t *testing.T) {
	lost := Record{Term: 1, Seq: 1, Kind: KindLost, Copy: 0, Off: blockLen, Len: 2 * blockLen}
	s, save := takes(t, lost)
	if save == nil || save.Missing.Len() != 2 || !save.Missing.Has(1) || !save.Missing.Has(2) || save.Mark != 1 {
		t.Fatalf("saved is %+v", save)
	}
	all := s.take(s.stream, Bell{}, Record{Term: 1, Seq: 2, Kind: KindZero, Off: 2 * blockLen, Len: blockLen})
	apply := only(s, each[*Apply](all))
	if !s.Misses(2*blockLen, blockLen) {
		t.Error("a block is there before its disk has it")
	}
	s.do(Done{ID: apply.ID})
	if s.Misses(2*blockLen, blockLen) || !s.Misses(blockLen, 2*blockLen) {
		t.Errorf("the block that was written is missing: %v; the other one: %v", s.Misses(2*blockLen, blockLen), s.Misses(blockLen, blockLen))
	}
	far := Record{Term: 1, Seq: 3, Kind: KindZero, Off: 32 * blockLen, Len: blockLen}
	for _, save := range each[Save](s.take(s.stream, Bell{}, far)) { // of a region
		if save.Missing != nil {
			t.Errorf("a write that is not durable is: %+v", save)
		}
	}
	sync := only(s, each[Sync](s.take(s.stream, Bell{Sync: 2})))
	saves := each[Save](s.do(Done{ID: sync.ID}))
	if len(saves) != 1 || saves[0].Missing == nil || saves[0].Missing.Len() != 1 || saves[0].Mark < 2 {
		t.Errorf("%+v", saves)
	}

	// In another life it is as it was, and outside S it is tried once more.
	v := firstView(3)
	v.Primary, v.InSync = 1, NodesOf(1)
	var missing Bits
	missing.Set(5)
	again := begin(t, 3, nil, Saved{View: v, Mark: 1, Missing: missing})
	if !again.Misses(5*blockLen, blockLen) || again.Misses(4*blockLen, blockLen) || again.Missing() != blockLen {
		t.Errorf("in another life %d bytes are missing", again.Missing())
	}
	if h := only(again, said[Hello](again.do(Up{Peer: 1}))); !h.Suspects.Has(1) || h.Suspects.Len() != 1 {
		t.Errorf("suspects %v", h.Suspects)
	}
}

// What is missing is not read, lent or hashed, though the disk reads something.
func TestMissingIsNotShown(t *testing.T) {
	lost := Record{Term: 1, Seq: 1, Kind: KindLost, Copy: 0, Off: blockLen, Len: blockLen}
	s, _ := takes(t, lost)
	v := s.view
	v.Version, v.InSync = 2, NodesOf(0, 1)
	s.agree(v)
	load := only(s, each[Load](s.tell(1, Lend{Stream: s.stream, Job: 1, Off: 0, Len: granuleLen})))
	if l := only(s, said[Lent](s.do(Done{ID: load.ID}))); !l.Failed {
		t.Errorf("lends %+v", l)
	}
	load = only(s, each[Load](s.tell(1, Lend{Stream: s.stream, Job: 2, Off: 2 * blockLen, Len: blockLen})))
	if l := only(s, said[Lent](s.do(Done{ID: load.ID}))); l.Failed {
		t.Errorf("what it has it does not lend: %+v", l)
	}
	hash := only(s, each[Hash](s.take(s.stream, Bell{}, Record{Term: 1, Seq: 2, Kind: KindCheck, Len: granuleLen})))
	if h := only(s, said[Hashed](s.do(Done{ID: hash.ID}))); !h.Failed {
		t.Errorf("hashes %+v", h)
	}
	v.Version, v.Term, v.Primary, v.InSync, v.First, v.Planned = 3, 2, 0, NodesOf(0), 3, true
	s.agree(v)
	if s.role != Primary {
		t.Fatalf("%v", s.Core)
	}
	read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 0, Len: granuleLen})))
	answers := func(actions []Action) (list []Answer) {
		for _, a := range each[*Answer](append(actions, s.wait(s.set.SlowCopy+retryAfter)...)) {
			list = append(list, *a)
		}
		return list
	}
	if a := only(s, answers(s.do(Done{ID: read.ID}))); a.ID != 1 || a.Status != Failed {
		t.Errorf("a read ends with %+v", a)
	}
	s.do(Reserve{ID: 2, Len: blockLen})
	compare := only(s, each[Compare](s.do(Swap{ID: 2, Key: 1, Off: blockLen, Len: blockLen})))
	if a := only(s, answers(s.do(Done{ID: compare.ID, Equal: true}))); a.ID != 2 || a.Status != Failed {
		t.Errorf("a COMPARE AND WRITE ends with %+v", a)
	}
}
