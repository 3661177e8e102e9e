package replica

import "testing"

// flushes begins a write and a Flush behind it, has the disk do both, and returns the write's number and what is done.
func (s *solo) flushes() (seq uint64, all []Action) {
	s.Helper()
	seq = s.log.last() + 1
	all = append(all, s.do(Zero{ID: 1, Off: 0, Len: blockLen})...)
	all = append(all, s.tell(1, Ack{Stream: streamOf(1), Received: seq})...)
	all = append(all, s.do(Flush{ID: 7})...)
	return seq, s.keeps(all)
}

// flushed says whether the Flush has been answered in what was done, or is when the members have answered a beat.
func (s *solo) isFlushed(all []Action) bool {
	s.Helper()
	for id := range s.alive.All() {
		all = append(all, s.proven(id)...)
	}
	for _, a := range each[*Answer](all) {
		if a.ID == 7 && a.Status == Good {
			return true
		}
	}
	return false
}

// TestAnswerAhead: a Flush is answered when all of S have everything on their disks, though no mark is saved yet; if one of them has it in memory only, when W
// have saved theirs.
func TestAnswerAhead(t *testing.T) {
	s := reigns(t, 2)
	seq, all := s.flushes()
	if s.isFlushed(all) {
		t.Error("it is answered, and the other disk does not have it")
	}
	for _, save := range each[Save](all) {
		if save.Mark == seq {
			t.Error("the mark may wait")
		}
	}
	if !s.isFlushed(s.tell(1, Ack{Stream: streamOf(1), Received: seq, Applied: seq, Synced: seq})) {
		t.Error("both disks have it, and it is not answered")
	}
	if save := only(s, each[Save](s.wait(markEvery))); save.Mark != seq {
		t.Errorf("%+v", save)
	}

	s = reigns(t, 3)
	seq, all = s.flushes()
	if saves := each[Save](all); saves[len(saves)-1].Mark != seq {
		t.Errorf("%+v: W are not all of S", saves)
	}
	all = append(all, s.tell(2, Ack{Stream: streamOf(2), Received: seq})...)
	all = append(all, s.tell(1, Ack{Stream: streamOf(1), Received: seq, Applied: seq, Synced: seq})...)
	if s.isFlushed(all) {
		t.Error("it is answered with one mark, and one disk does not have it")
	}
	if !s.isFlushed(s.tell(1, Ack{Stream: streamOf(1), Received: seq, Applied: seq, Durable: seq, Synced: seq})) {
		t.Error("two have saved their marks, and it is not answered")
	}
}

// TestMarkWaits: a member's mark waits if its primary looks at what it has on its disk, and if W are all of S. The next promise does not wait.
func TestMarkWaits(t *testing.T) {
	for _, test := range []struct {
		copies int
		in     Nodes
		tells  bool
		waits  bool
	}{
		{2, NodesOf(0, 1), true, true},
		{2, NodesOf(0, 1), false, false}, // a former version
		{3, NodesOf(0, 1, 2), true, false},
		{3, NodesOf(0, 1), true, true},
	} {
		s, h := follows(t, test.copies, test.in)
		if h.Stream&tellsSynced == 0 {
			t.Fatal("the node does not say that it takes Bell.Synced")
		}
		all := s.take(h.Stream, Bell{Sync: 1, Synced: test.tells}, Record{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen})
		all = append(all, s.do(Done{ID: only(s, each[Apply](all)).ID})...)
		all = s.do(Done{ID: only(s, each[Sync](all)).ID})
		saves := each[Save](all)
		if waits := len(saves) == 0; waits != test.waits {
			t.Errorf("%+v: the mark waits: %v", test, waits)
		}
		acks := each[SendAck](all)
		if a := acks[len(acks)-1].Ack; a.Synced != map[bool]uint64{true: 1}[test.tells] || a.Durable == 1 == test.waits {
			t.Errorf("%+v: %+v", test, a)
		}
		if test.waits {
			if a := only(s, each[SendAck](s.wait(markEvery))).Ack; a.Durable != 1 {
				t.Errorf("%+v: %+v when the mark has waited", test, a)
			}
		}
	}
}

// TestMissingIsNotAhead: what a copy goes without it has with its mark only, or a power cut would leave what is older. So that mark does not wait.
func TestMissingIsNotAhead(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	all := s.take(h.Stream, Bell{Sync: 1, Synced: true}, Record{Term: 1, Seq: 1, Kind: KindLost, Off: 0, Len: blockLen})
	s.saving = true // the metadata take their time
	s.keeps(all)
	if s.Core.synced != 1 || s.onDisk() != 0 {
		t.Errorf("the disk is at %d, and the copy says %d", s.Core.synced, s.onDisk())
	}
	s.saving = false
	if save := only(s, each[Save](s.do(Tick{}))); save.Mark != 1 || s.now-s.markedAt >= markEvery {
		t.Errorf("%+v", save)
	}
}

// TestHandsOverAhead: the successor needs no mark; its disk has what was promised.
func TestHandsOverAhead(t *testing.T) {
	s := reigns(t, 2)
	seq, _ := s.flushes()
	if !s.isFlushed(s.tell(1, Ack{Stream: streamOf(1), Received: seq, Applied: seq, Synced: seq})) {
		t.Fatal("the flush is not answered")
	}
	if v := only(s, proposals(s.do(Switch{ID: 9, To: 1}))); v.Primary != 1 {
		t.Errorf("%+v", v)
	}
}

// TestDurableHoldsNobodyUp: a record that is to be durable and that nobody else gets, one with FUA or one that goes through, keeps this disk from no sync that
// is needed to go on alone.
func TestDurableHoldsNobodyUp(t *testing.T) {
	through := int64(4096 * blockLen)
	for _, off := range []int64{blockLen, through} {
		s := reigns(t, 2)
		first := s.log.last() + 1
		all := s.do(Zero{ID: 1, Off: 0, Len: blockLen})
		all = append(all, s.ack(1, first, first, 0)...)
		s.applies(all)
		s.flushed = first // as of a primary before, which has handed over
		s.do(Zero{ID: 2, Off: 2 * blockLen, Len: blockLen})
		all = s.do(Zero{ID: 3, Off: off, Len: blockLen, Durable: off != through})
		if off != through {
			none(s, each[Sync](all), "nobody asks for what is before it")
		}
		s.do(Down{Peer: 1})
		s.alive = 0
		all = s.synced(append(append(all, s.hello(1, false)...), s.do(Tick{})...)) // it has lost its memory
		if v := only(s, proposals(append(all, s.do(Tick{})...))); v.InSync != NodesOf(0) {
			t.Errorf("%+v", v)
		}
	}
}

// TestCandidateSyncs: a candidate makes durable what somebody else has so, though it was told of more that its disk does not get before it is the primary.
func TestCandidateSyncs(t *testing.T) {
	s := stands(t, 2, &Memory{View: firstView(2), Log: []Record{
		{Term: 1, Seq: 1, Kind: KindZero, Off: 0, Len: blockLen}, {Term: 1, Seq: 2, Kind: KindZero, Off: blockLen, Len: blockLen},
	}}, Saved{})
	s.syncTo = 2
	all := s.tell(1, Promise{Version: 1, Stream: streamOf(1), Memory: true, Last: 2, Applied: 1, Durable: 1})
	for range 5 {
		all = append(all, s.do(Tick{})...)
	}
	all = append(s.applies(all), s.do(Tick{})...)
	if len(each[Sync](all)) == 0 {
		t.Errorf("nothing becomes durable: %v", s.Core)
	}
}
