package replica

import (
	"slices"
	"testing"
	"time"
)

// ownStream is the number of the stream of a copy whose disk is its own.
func ownStream(id ID) uint64 { return knowsDisk | newStream(id) }

// staysBad has a disk refuse also what was written anew.
const staysBad = 1 << 62

// left has node 1 leave S. It was not known then to have durable what was written to granule 1.
func left(t *testing.T, copies int) *solo {
	t.Helper()
	s := reigns(t, copies)
	for id := ID(1); id < ID(copies); id++ {
		s.ack(id, 0, 0, 0)
	}
	s.do(Zero{ID: 1, Off: granuleLen, Len: blockLen})
	for id := ID(1); id < ID(copies); id++ {
		s.written(s.ack(id, 1, 1, 0))
	}
	s.leave(1)
	return s
}

// leave has a node leave S.
func (s *solo) leave(id ID) []Action {
	v := s.view
	v.Version, v.InSync = v.Version+1, v.InSync.Without(id)
	return append(s.do(Down{Peer: id}), s.agree(v)...)
}

// restarts has a node say hello that has lost its memory, and suspects granules. It returns what is done then.
func (s *solo) restarts(id ID, stream uint64, suspects ...int) []Action {
	var b Bits
	for _, g := range suspects {
		b.Set(g)
	}
	s.do(Up{Peer: id})
	all := s.tell(id, Hello{Version: s.view.Version, Stream: stream, Suspects: b, Sizes: s.sizes()})
	return append(all, s.tell(id, Ack{Stream: stream, Received: s.log.last(), Applied: s.log.last()})...)
}

// asks has the disk refuse blocks, and others, but for kind ones, too what they are asked for. It returns who was asked for which granules, and what
// is lost.
func (s *solo) asks(blocks int, kind Nodes, all []Action) (asked map[ID][]int, lost []int) {
	s.Helper()
	asked = map[ID][]int{}
	for quiet := 0; quiet < 40; {
		quiet++
		for i := 0; i < len(all); i++ {
			var next []Action
			switch a := all[i].(type) {
			case *Apply:
				if a.Rec.HasDataFor(0) && blocks&staysBad == 0 {
					blocks &^= 1 << (a.Rec.Off / blockLen) // of one block
				}
				next = s.do(Done{ID: a.ID})
			case Sync:
				next = s.do(Done{ID: a.ID})
			case Load:
				failed := blocks>>(a.Off/blockLen)&(1<<(a.Len/blockLen)-1) != 0
				next = s.do(Done{ID: a.ID, Failed: failed})
			case Lost:
				lost = append(lost, s.granule(a.Off))
			case Pull:
				next = s.do(Done{ID: a.ID, Sum: 7})
			case Send:
				if l, ok := a.Msg.(Lend); ok {
					asked[a.To] = append(asked[a.To], s.granule(l.Off))
					next = s.tell(a.To, Lent{Job: l.Job, Stream: l.Stream, Sum: 7, Failed: !kind.Has(a.To)})
				}
			case *Post:
				if s.peer[a.To].stream == a.Stream {
					next = s.tell(a.To, Ack{Stream: a.Stream, Received: s.log.last(), Applied: s.log.last()})
				}
			default:
				continue
			}
			all, quiet = append(all, next...), 0
		}
		all = s.do(Tick{})
		all = append(all, s.wait(retryAfter/4)...)
	}
	return asked, lost
}

// What this primary cannot read it takes from the copy that it brings level, if that can only lack there what it did not have when it left S.
func TestKept(t *testing.T) {
	s := left(t, 2)
	asked, lost := s.asks(0b0100, NodesOf(1), s.restarts(1, ownStream(1), 0, 1))
	if !slices.Equal(asked[1], []int{0}) || len(lost) > 0 {
		t.Fatalf("asked for %v, and %v is lost", asked, lost)
	}
	var repaired, copied bool
	for r := range s.Log {
		isIt := r.Kind == KindResync && r.Off == 2*blockLen && r.Len == blockLen
		repaired = repaired || isIt && r.Copy == 0 && r.Sum == 7
		copied = copied || isIt && r.Copy == 1
	}
	if !repaired || !copied || !s.peer[1].todo.Empty() {
		t.Errorf("repaired: %v, copied: %v, left to do: %v", repaired, copied, s.peer[1].todo)
	}

	for _, x := range []struct {
		why         string
		stream      uint64
		asked, lost []int
	}{
		{"granule 1 was not known to be durable there", ownStream(1), []int{0}, []int{0, 1}},
		{"nobody knows what its disk was before", newStream(1), nil, []int{0, 1}},
	} {
		s := left(t, 2)
		asked, lost := s.asks(0b0100_0100, 0, s.restarts(1, x.stream, 0, 1))
		if !slices.Equal(asked[1], x.asked) || !slices.Equal(lost, x.lost) {
			t.Errorf("%s: asked for %v, and %v is lost", x.why, asked, lost)
		}
	}
}

// It is not asked before it has begun its log anew: until then its memory is that of the log before.
func TestKeptBegun(t *testing.T) {
	s := left(t, 2)
	var b Bits
	b.Set(0)
	s.do(Up{Peer: 1})
	all := s.gives(0b0100, s.tell(1, Hello{Version: s.view.Version, Stream: ownStream(1), Suspects: b, Sizes: s.sizes()}))
	none(s, said[Lend](all), "it may have records in its memory")
	none(s, each[Lost](all), "it may have it")
	only(s, said[Lend](s.gives(0, s.tell(1, Ack{Stream: ownStream(1), Received: 1, Applied: 1}))))
}

// What a copy has told to be on its disk it has, though its mark waits; what came after that it may lack.
func TestKeptOnDisk(t *testing.T) {
	s := reigns(t, 2)
	s.ack(1, 0, 0, 0)
	for seq := range uint64(2) {
		s.do(Zero{ID: seq, Off: int64(seq) * granuleLen, Len: blockLen})
		s.written(s.tell(1, Ack{Stream: streamOf(1), Received: seq + 1, Applied: seq + 1, Synced: 1}))
	}
	s.leave(1)
	if !s.Keeps(1, 0, blockLen) {
		t.Error("it has record 1 on its disk, and is not asked for it")
	}
	if s.Keeps(1, granuleLen, blockLen) {
		t.Error("it may lack record 2, and is asked for it")
	}
}

// What was written while a copy was away, copied, called clean and lost again with its power it does not have.
func TestKeptNotDurable(t *testing.T) {
	s := left(t, 2)
	s.asks(0, 0, s.do(Zero{ID: 2, Off: 0, Len: blockLen}))
	s.asks(0, 0, s.restarts(1, ownStream(1)))
	if s.bitmaps[1].Has(0) {
		t.Fatalf("%v", s.Core)
	}
	s.do(Down{Peer: 1})
	asked, lost := s.asks(0b0100, 0, s.restarts(1, ownStream(1)+1, 0))
	if len(asked[1]) > 0 || len(lost) == 0 {
		t.Errorf("asked for %v, %v is lost", asked, lost)
	}
}

// A copy that has it may return: neither a host nor another copy goes without what this node cannot read. What it has slept meanwhile does not count,
// whatever is the first to come after that.
func TestWaitsAwake(t *testing.T) {
	for _, first := range []Event{Tick{}, Drained{}} {
		s := left(t, 3)
		s.leave(2)
		s.alive = NodesOf(2)
		s.gives(0b0100, s.restarts(2, newStream(2), 0))
		read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 3 * blockLen, Len: blockLen})))
		s.do(Done{ID: read.ID, Failed: true})
		s.now += s.set.SlowCopy
		all := append(s.do(first), s.wait(s.set.Heartbeat)...)
		none(s, each[Load](all), "the copy may return")
		none(s, each[Answer](all), "the copy may return")
		if asked, lost := s.asks(0b0100, NodesOf(1), s.restarts(1, ownStream(1), 0)); len(asked[1]) == 0 || len(lost) > 0 {
			t.Errorf("%T: asked for %v, and %v is lost", first, asked, lost)
		}
	}
}

// Nobody waits for ever for a copy that is heard, and does not return.
func TestHeardAndAway(t *testing.T) {
	s := left(t, 3)
	s.leave(2)
	s.now += time.Hour // it has slept before
	s.alive = NodesOf(1, 2)
	all := s.gives(0b0100, s.restarts(2, newStream(2), 0))
	read := only(s, each[ReadFor](s.do(Read{ID: 1, Off: 3 * blockLen, Len: blockLen})))
	all = append(all, s.gives(0, s.do(Done{ID: read.ID, Failed: true}))...)
	none(s, each[Lost](all), "the copy may return")
	none(s, each[Answer](all), "the copy may return")
	all = s.gives(0b0100, s.wait(s.set.SlowCopy/2))
	only(s, each[Lost](all))
	if a := only(s, each[Answer](all)); a.Status != Failed {
		t.Errorf("%+v", a)
	}
}

// What was known of a copy ends when its disk is not its own any more, and begins when it is in S again.
func TestKeptOfAnotherDisk(t *testing.T) {
	s := left(t, 2)
	s.gives(0, s.restarts(1, newStream(1), 0))
	s.do(Down{Peer: 1})
	if asked, _ := s.asks(0b0100, 0, s.restarts(1, ownStream(1), 0)); len(asked[1]) > 0 {
		t.Errorf("asked for %v, which another disk has not got before", asked)
	}
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0, 1)
	s.agree(v)
	s.leave(1)
	if asked, _ := s.asks(0b0100<<8, 0, s.restarts(1, ownStream(1)+1, 2)); len(asked[1]) == 0 {
		t.Error("it was in S since, and is not asked")
	}

	v = firstView(2)
	v.Primary, v.InSync = 1, NodesOf(1)
	for _, unknown := range []bool{false, true} {
		s := begin(t, 2, nil, Saved{View: v, Unknown: unknown})
		if h := only(s, said[Hello](s.do(Up{Peer: 1}))); h.Stream&knowsDisk == 0 != unknown {
			t.Errorf("its disk is another one: %v. Says hello with stream %#x", unknown, h.Stream)
		}
	}
}

// The other odd member has left S: what it has wrong it lends nobody.
func TestKeptOdd(t *testing.T) {
	s := reigns(t, 2)
	load := only(s, each[Load](s.do(s.compares())))
	s.leave(1)
	s.do(Done{ID: load.ID})
	asked, lost := s.asks(0b0100, 0, s.restarts(1, ownStream(1), 0))
	if len(asked[1]) > 0 || len(lost) == 0 {
		t.Errorf("asked for %v, which is odd there; %v is lost", asked, lost)
	}
}

// Another copy outside S has what was copied to it.
func TestKeptByThird(t *testing.T) {
	for _, lacks := range []bool{false, true} {
		s := left(t, 3)
		v := s.view
		v.Version, v.InSync = v.Version+1, NodesOf(0)
		s.agree(v)
		s.kept = kept{} // it has reigned for longer
		all := s.restarts(2, newStream(2))
		if lacks {
			s.do(Down{Peer: 2})
			all = s.restarts(2, newStream(2), 0)
		}
		asked, lost := s.asks(0b0100, 0, append(all, s.restarts(1, newStream(1), 0)...))
		if has := len(asked[2]) > 0; has == lacks || len(lost) == 0 {
			t.Errorf("node 2 lacks it: %v. Asked for %v, %v is lost", lacks, asked, lost)
		}
	}
}

// ousts has node 0 take over from node 1, which is lost. Of records up to 2 all have the first durable.
func ousts(t *testing.T, copies int, v View, memory bool) *solo {
	t.Helper()
	var m *Memory
	if memory {
		m = &Memory{View: v, Base: 1, Applied: 2, Trim: 1, Log: []Record{{Term: 1, Seq: 2, Kind: KindZero, Off: granuleLen, Len: blockLen}}}
	}
	s := begin(t, copies, m, Saved{View: v, Mark: 1})
	s.alive = 0
	for id := ID(1); id < ID(copies); id++ {
		s.do(Up{Peer: id})
	}
	all := s.wait(s.set.Grace + amnesiac + 5*turn)
	var last uint64
	if memory {
		last = 2
	}
	for id := ID(1); id < ID(copies); id++ {
		if id != 1 || !memory {
			all = append(all, s.tell(id, Promise{Version: v.Version, Stream: streamOf(id), Memory: memory, Last: last, Applied: last, Durable: last / 2})...)
		}
	}
	all = append(all, s.wait(100*time.Millisecond)...)
	for _, v := range proposals(all) {
		if v.Primary == 0 && v.Term > 1 {
			s.agree(v)
			break
		}
	}
	if s.role != Primary {
		t.Fatalf("%v", s.Core)
	}
	return s
}

// A primary that was lost has on its disk what was committed, so it lends that to its successor. It does not if this one may not have had all of
// that, nor where it writes before that is committed; and no other member lends what was before this reign.
func TestKeptByPrimary(t *testing.T) {
	v := firstView(2)
	v.Primary = 1
	const second = 4096 / (granuleLen / blockLen)
	s := ousts(t, 2, v, true)
	asked, lost := s.asks(0b0100_0100, 0, s.restarts(1, ownStream(1), 0, 1))
	if !slices.Equal(asked[1], []int{0}) || !slices.Equal(lost, []int{0, 1}) {
		t.Errorf("asked for %v, %v is lost", asked, lost)
	}
	if s := ousts(t, 2, v, true); s.Keeps(1, second*granuleLen, blockLen) || !s.Keeps(1, 0, blockLen) {
		t.Error("takes from it what it may have written before it was committed")
	}
	if s := ousts(t, 2, v, false); s.Keeps(1, 0, blockLen) {
		t.Error("takes from it what nobody knows: all have lost their memory")
	}
	v = firstView(3)
	v.Primary = 1
	s = ousts(t, 3, v, true)
	s.leave(2)
	if !s.Keeps(1, 0, blockLen) || !s.Keeps(2, 0, blockLen) {
		t.Error("does not take from others what they have")
	}
}

// Nor does a candidate write on its disk what nobody else may have: as the primary before, it lends what it has.
func TestCandidateWritesNothing(t *testing.T) {
	s := stands(t, 2, &Memory{View: firstView(2), Base: 1, Applied: 1, Log: []Record{{Term: 1, Seq: 2, Kind: KindZero, Off: 0, Len: blockLen}}}, Saved{Mark: 1})
	all := s.wait(stuckAfter / 2)
	only(s, proposals(all)[:1])
	none(s, each[Apply](all), "it is not committed")
}
