package replica

import (
	"slices"
	"testing"
)

// levels goes on until a copy is level: granules of equal have the same hash there, and those of failing cannot be read by one of the two. It returns which granules
// were hashed, which were read to be copied, and which are clean.
func (s *solo) levels(all []Action, equal, failing []int, byCopy bool) (hashed, loaded, clean []int) {
	s.Helper()
	for quiet := 0; quiet < 20; {
		quiet++
		for i := 0; i < len(all); i++ {
			var next []Action
			switch a := all[i].(type) {
			case Hash:
				g := s.granule(a.Off)
				hashed = append(hashed, g)
				failed, d := slices.Contains(failing, g), Digest{1}
				if !slices.Contains(equal, g) && !failed {
					d = Digest{2}
				}
				h := Hashed{Seq: s.checkOf(a.Off), Digest: d, Failed: failed && byCopy}
				next = append(s.do(Done{ID: a.ID, Digest: Digest{1}, Failed: failed && !byCopy}), s.tell(1, h)...)
			case Load:
				loaded = append(loaded, s.granule(a.Off))
				next = s.do(Done{ID: a.ID, Sum: 7})
			case *Apply:
				next = s.do(Done{ID: a.ID})
			case Sync:
				next = s.do(Done{ID: a.ID})
			case Save:
				next = s.do(Done{ID: a.ID})
			case *Post:
				next = s.tell(1, Ack{Stream: a.Stream, Received: s.log.last(), Applied: s.log.last()})
			default:
				continue
			}
			all, quiet = append(all, next...), 0
		}
		s.now += s.set.Heartbeat / 3
		all = append(s.do(Tick{}), s.tell(1, Ack{Stream: s.peer[1].stream, Received: s.log.last(), Applied: s.log.last()})...)
	}
	for r := range s.Log {
		if r.Kind == KindClean && r.Copy == 1 {
			clean = append(clean, s.granule(r.Off))
		}
	}
	return hashed, loaded, clean
}

// checkOf is the newest record that has a place hashed.
func (s *solo) checkOf(off int64) (seq uint64) {
	for r := range s.Log {
		if r.Kind == KindCheck && r.Off == off {
			seq = r.Seq
		}
	}
	return seq
}

// A copy that comes back is compared first. What it has it keeps, and what differs, or cannot be read, it gets.
func TestCompareFirst(t *testing.T) {
	for _, byCopy := range []bool{false, true} {
		s := left(t, 2)
		s.CompareFirst(10)
		hashed, loaded, clean := s.levels(s.restarts(1, ownStream(1), 3, 5, 7), []int{1, 5}, []int{7}, byCopy)
		if !slices.Equal(hashed, []int{1, 3, 5, 7}) || !slices.Equal(loaded, []int{3, 7}) {
			t.Errorf("hashed %v, copied %v", hashed, loaded)
		}
		if slices.Sort(clean); !slices.Equal(clean, []int{1, 3, 5, 7}) || !s.bitmaps[1].Empty() {
			t.Errorf("clean are %v; %v are not", clean, s.bitmaps[1])
		}
	}
}

// As many granules as the patience allows are read twice in vain, and what is equal makes up for that.
func TestCompareFirstPatience(t *testing.T) {
	all := []int{1, 2, 3, 4, 5, 6, 7}
	for _, x := range []struct {
		patience int
		equal    []int
		hashed   []int
	}{
		{0, all, nil},
		{1, nil, all[:1]},
		{1, all, all},
		{2, []int{2}, all[:4]},
	} {
		s := left(t, 2)
		s.cfg.Copying = 1 // one after the other
		s.CompareFirst(x.patience)
		if hashed, _, _ := s.levels(s.restarts(1, ownStream(1), all...), x.equal, nil, false); !slices.Equal(hashed, x.hashed) {
			t.Errorf("patience %d, equal %v: compared are %v, and should be %v", x.patience, x.equal, hashed, x.hashed)
		}
	}
}

// A copy that is lost and comes back is compared anew: what was on its way says nothing.
func TestCompareFirstAgain(t *testing.T) {
	s := left(t, 2)
	s.CompareFirst(10)
	h := only(s, each[Hash](s.restarts(1, ownStream(1))))
	seq := s.checkOf(h.Off)
	s.do(Down{Peer: 1})
	s.do(Done{ID: h.ID, Digest: Digest{1}})
	again := only(s, each[Hash](s.restarts(1, ownStream(1)+1)))
	s.tell(1, Hashed{Seq: seq, Digest: Digest{1}})
	s.do(Done{ID: again.ID, Digest: Digest{1}})
	for r := range s.Log {
		if r.Kind == KindClean {
			t.Errorf("%+v by a hash of before", r)
		}
	}
}

// A copy of a former version is not compared: see suspectsEqual.
func TestCompareFirstFormer(t *testing.T) {
	s := left(t, 2)
	s.CompareFirst(10)
	if hashed, loaded, _ := s.levels(s.restarts(1, ownStream(1)&^suspectsEqual, 3), nil, nil, false); hashed != nil || !slices.Equal(loaded, []int{1, 3}) {
		t.Errorf("hashed %v, copied %v", hashed, loaded)
	}
}

// What was found to be equal a copy suspects when it has lost the primary, until all of S have it durable: the next primary may not have it. A member that
// was compared with others does not.
func TestSuspectsEqual(t *testing.T) {
	for _, x := range []struct {
		name     string
		in       Nodes
		trim     uint64
		suspects bool
	}{
		{"outside S", NodesOf(1), 0, true},
		{"all of S have it", NodesOf(1), 2, false},
		{"a member", NodesOf(0, 1), 0, false},
	} {
		s, h := follows(t, 2, x.in)
		var b Bell
		if !x.in.Has(0) {
			b.Start = &Start{}
		}
		check := Record{Term: 1, Seq: 1, Kind: KindCheck, Off: granuleLen, Len: granuleLen}
		clean := check
		clean.Seq, clean.Kind = 2, KindClean
		s.do(Done{ID: only(s, each[Hash](s.take(h.Stream, b, check, clean))).ID})
		s.keeps(s.take(h.Stream, Bell{Sync: 2, Trim: x.trim}))
		s.do(Down{Peer: 1})
		v := s.view
		v.Version, v.InSync = v.Version+1, NodesOf(1)
		s.agree(v)
		h = only(s, said[Hello](s.do(Up{Peer: 1})))
		if h.Stream&suspectsEqual == 0 || h.Suspects.Has(1) != x.suspects {
			t.Errorf("%s: suspects %v (stream %x)", x.name, h.Suspects, h.Stream)
		}
	}
}
