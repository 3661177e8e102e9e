package replica

import "testing"

// A step looks at as many records as are on their way, not at all that the log has: else a large copy, whose records stay until
// they are durable, would take longer with each granule, and the node would miss its beats.
func TestWorkOfACopy(t *testing.T) {
	const granules = 1000
	s := outside(t, 2)
	s.cfg.Ring, s.stores[0].Size = 8*granules, granules*granuleLen
	var lacks Bits
	for g := range granules {
		lacks.Set(g)
	}
	const most = 100 // four granules are on their way, each a record or two
	took := func(e Event) []Action {
		before := s.looks
		all := s.do(e)
		if n := s.looks - before; n > most {
			t.Fatalf("a step has looked at %d records; the log has %d", n, len(s.entries))
		}
		return all
	}
	hello := Hello{Version: s.view.Version, Stream: streamOf(1), Memory: true, Suspects: lacks, Sizes: s.sizes()}
	for pending := took(Message{From: 1, Msg: hello}); len(pending) > 0; {
		var next []Action
		for _, l := range each[Load](pending) {
			next = append(next, took(Done{ID: l.ID, Sum: 7})...)
		}
		for _, p := range each[Post](pending) {
			for _, r := range p.Recs {
				next = append(next, took(Message{From: 1, Msg: Ack{Stream: streamOf(1), Received: r.Seq, Applied: r.Seq}})...)
			}
		}
		pending = next
	}
	if !s.bitmaps[1].Empty() || len(s.entries) < 2*granules {
		t.Errorf("%d records for %d granules; what is missing: %v", len(s.entries), granules, s.bitmaps[1])
	}
}

// The same for what hosts write.
func TestWorkOfWrites(t *testing.T) {
	s := reigns(t, 2)
	s.cfg.Ring = 8192
	const most = 50
	for i := range uint64(2000) {
		before := s.looks
		s.do(Zero{ID: i, Off: int64(i%64) * blockLen, Len: blockLen})
		for _, a := range each[Apply](s.ack(1, i+1, i+1, 0)) {
			s.do(Done{ID: a.ID})
		}
		if n := s.looks - before; n > most {
			t.Fatalf("write %d has taken looks at %d records; the log has %d", i, n, len(s.entries))
		}
	}
	if len(s.entries) != 2000 {
		t.Errorf("%d records", len(s.entries))
	}
}

// A granule that cannot be read has the others wait for a moment. No step looks at all of them meanwhile: a large copy lacks millions.
func TestWorkAfterAReadError(t *testing.T) {
	const granules = 1000
	s := outside(t, 2)
	s.stores[0].Size = granules * granuleLen
	var lacks Bits
	for g := range granules {
		lacks.Set(g)
	}
	hello := Hello{Version: s.view.Version, Stream: newStream(1), Memory: true, Suspects: lacks, Sizes: s.sizes()}
	s.cfg.Copying = 4
	loads := each[Load](s.tell(1, hello))
	took := func(e Event) {
		before := s.looks
		none(s, each[Load](s.do(e)), "the disk has just refused to read")
		if n := s.looks - before; n > 100 {
			t.Errorf("%T has taken %d looks", e, n)
		}
	}
	for i, l := range loads {
		took(Done{ID: l.ID, Failed: i == 0})
	}
	took(Tick{})
	if len(loads) != 4 {
		t.Errorf("%d granules were read", len(loads))
	}
}

// What a copy misses elsewhere does not make each read look at all records.
func TestWorkOfMissing(t *testing.T) {
	s := reigns(t, 2)
	s.cfg.Ring = 8192
	s.sectors.Set(63)
	const records = 1000
	for i := range uint64(records) {
		s.do(Zero{ID: i, Off: 0, Len: blockLen})
		for _, a := range each[Apply](s.ack(1, i+1, i+1, 0)) {
			s.do(Done{ID: a.ID})
		}
	}
	before := s.looks
	only(s, each[ReadFor](s.do(Read{ID: records, Off: 0, Len: blockLen})))
	if n := s.looks - before; n > 50 || len(s.entries) != records {
		t.Errorf("a read has taken looks at %d records; the log has %d", n, len(s.entries))
	}
	if !s.Misses(60*blockLen, 4*blockLen) {
		t.Error("what is missing is there")
	}
}
