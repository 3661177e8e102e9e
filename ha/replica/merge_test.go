package replica

import (
	"slices"
	"testing"
)

// both is a world of two members: both disks refuse blocks, until these are written, and that of this node for good if they are staysBad. It does what follows from all, and returns the other actions.
func (s *solo) both(mine, others *int, all []Action) (rest []Action) {
	s.Helper()
	refused := func(blocks *int, off, n int64) bool { return *blocks>>(off/blockLen)&(1<<(n/blockLen)-1) != 0 }
	seen := s.log.base
	for quiet := 0; quiet < 5; {
		quiet++
		for i := 0; i < len(all); i++ {
			var next []Action
			switch a := all[i].(type) {
			case *Apply:
				if a.Rec.HasDataFor(0) && *mine&staysBad == 0 {
					*mine &^= (1<<(a.Rec.Len/blockLen) - 1) << (a.Rec.Off / blockLen)
				}
				next = s.do(Done{ID: a.ID})
			case *ReadFor:
				next = s.do(Done{ID: a.ID, Failed: refused(mine, a.Off, a.Len)})
			case Load:
				next = s.do(Done{ID: a.ID, Failed: refused(mine, a.Off, a.Len)})
			case Hash:
				next = s.do(Done{ID: a.ID, Failed: refused(mine, a.Off, a.Len)})
			case Sync:
				next = s.do(Done{ID: a.ID})
			case Pull:
				next = s.do(Done{ID: a.ID, Sum: 7})
			case Send:
				if l, ok := a.Msg.(Lend); ok {
					next = s.tell(a.To, Lent{Job: l.Job, Stream: l.Stream, Sum: 7, Failed: refused(others, l.Off, l.Len)})
				}
			case *Post:
				for seq := seen + 1; seq <= s.log.last(); seq++ {
					seen = seq
					switch r := s.entry(seq).Record; {
					case r.Kind == KindCheck:
						next = append(next, s.tell(1, Hashed{Seq: seq, Failed: refused(others, r.Off, r.Len)})...)
					case r.HasDataFor(1):
						*others &^= (1<<(r.Len/blockLen) - 1) << (r.Off / blockLen)
					}
				}
				next = append(next, s.ack(1, seen, seen, seen)...)
			default:
				rest = append(rest, a)
				continue
			}
			all, quiet = append(all, next...), 0
		}
		all = s.wait(s.set.Heartbeat)
	}
	return rest
}

// together is a primary and a member, whose pieces have several blocks.
func together(t *testing.T) *solo {
	s := reigns(t, 2)
	s.cfg.Unit = granuleLen
	s.Blocks(blockLen)
	s.stores = s.stores[:1]
	s.stores[0].Size = 4 * granuleLen
	return s
}

// Of one piece each copy may have the blocks that the other one lacks: then it is read, whether this disk keeps what it is given or not. What neither
// has is not.
func TestReadMergesBlocks(t *testing.T) {
	for _, x := range []struct {
		mine, others int
		status       Status
	}{{0b0010, 0b1000, Good}, {0b0110, 0b1000, Good}, {0b1010, 0b1000, Failed}, {staysBad | 0b0110, 0b1000, Good}, {staysBad | 0b0110, 0, Good}} {
		s := together(t)
		mine, others := x.mine, x.others
		all := s.both(&mine, &others, s.do(Read{ID: 1, Off: 0, Len: granuleLen}))
		left := x.mine & x.others
		if x.mine&staysBad != 0 {
			left = x.mine
		}
		if a := only(s, each[Answer](all)); a.Status != x.status || mine != left {
			t.Errorf("%+v: ends with %v, this disk refuses %b still", x, a.Status, mine)
		}
		var at int64
		for _, d := range each[Deliver](all) {
			if d.Req != 1 || d.Off != at {
				t.Errorf("%+v: %+v comes behind the first %d bytes", x, d, at)
			}
			at += d.Len
		}
		if (at == granuleLen) != (x.status == Good) {
			t.Errorf("%+v: %d bytes are delivered", x, at)
		}
	}
}

// A comparison repairs what each copy lacks from the other one. What neither has it tells of, and of nothing beside it; and so it does if it is to
// repair nothing, by granules.
func TestVerifyMerges(t *testing.T) {
	s := together(t)
	mine, others := 0b0010_0011_0000_0010, 0b0100_1001_0000_1000
	all := s.both(&mine, &others, s.do(Verify{ID: 1, Repair: true}))
	if a := only(s, each[Answer](all)); a.Status != Good || mine != 0b0001<<8 || others != 0b0001<<8 {
		t.Errorf("ends with %v, this disk refuses %b still, and the other one %b", a.Status, mine, others)
	}
	var lost []int64
	for _, f := range each[Found](all) {
		if !f.Repair {
			lost = append(lost, f.Off/blockLen, f.Len/blockLen)
		}
	}
	if !slices.Equal(lost, []int64{8, 1}) {
		t.Errorf("is said to be lost: %v", lost)
	}

	s = together(t)
	mine, others = 0b0010, 0b1000
	if f := only(s, each[Found](s.both(&mine, &others, s.do(Verify{ID: 1})))); f.Len != granuleLen || f.Repair || f.Unreadable != NodesOf(0, 1) {
		t.Errorf("%+v", f)
	}

	// One that is told to stop does all of what it has begun.
	s = together(t)
	s.do(Verify{ID: 1, Repair: true})
	s.do(Done{ID: only(s, each[Hash](s.ack(1, 1, 0, 0))).ID, Failed: true})
	all = append(s.tell(1, Hashed{Seq: 1, Failed: true}), s.do(StopVerify{})...)
	if a := only(s, each[Answer](s.both(&mine, &others, all))); a.Status != Good || mine|others != 0 {
		t.Errorf("ends with %v, this disk refuses %b still, and the other one %b", a.Status, mine, others)
	}
}
