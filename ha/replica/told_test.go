package replica

import "testing"

// TestToldTogether: what is told together goes to a member in one post, and its acknowledgements and the disk's are settled once.
func TestToldTogether(t *testing.T) {
	s := reigns(t, 2)
	tell := func(events ...Event) []Action {
		for _, e := range events {
			s.Tell(s.now, e)
		}
		return s.Settle()
	}
	granted := each[Answer](tell(Reserve{ID: 1, Len: blockLen}, Reserve{ID: 2, Len: blockLen}, Reserve{ID: 3, Len: blockLen}))
	if len(granted) != 3 {
		t.Fatalf("%d of 3 requests got memory", len(granted))
	}
	var writes []Event
	for _, a := range granted {
		writes = append(writes, Write{ID: a.ID, Off: int64(a.ID) * blockLen, Len: blockLen, Addr: a.Addr})
	}
	actions := tell(writes...)
	if p := only(s, each[Post](actions)); len(p.Recs) != 3 {
		t.Errorf("a post has %d of 3 records", len(p.Recs))
	}
	last := s.log.last()
	actions = tell(Message{From: 1, Msg: Ack{Stream: streamOf(1), Received: last}}, Read{ID: 4, Off: blockLen, Len: blockLen})
	none(s, each[ReadFor](actions), "the disk does not have what the host has written")
	if s.IsIdle() {
		t.Error("a read waits for a record, and nobody knows")
	}
	if n := len(each[Answer](actions)); n != 3 {
		t.Errorf("%d of 3 writes are answered", n)
	}
	var ends []Event
	for _, a := range each[Apply](tell(Done{ID: only(s, each[Save](actions)).ID})) {
		ends = append(ends, Done{ID: a.ID})
	}
	if len(ends) != 3 {
		t.Fatalf("%d of 3 records are applied", len(ends))
	}
	only(s, each[ReadFor](tell(ends...)))
	if s.disk.applied != last || !s.IsIdle() {
		t.Errorf("%d of %d records are applied, idle: %v", s.disk.applied, last, s.IsIdle())
	}
	actions = tell(Reserve{ID: 5, Len: blockLen})
	tell(Write{ID: 5, Off: blockLen, Len: blockLen, Addr: only(s, each[Answer](actions)).Addr})
	tell(Message{From: 1, Msg: Ack{Stream: streamOf(1), Received: s.log.last()}})
	if !s.IsIdle() {
		t.Error("nothing waits for the only record")
	}
	actions = tell(Reserve{ID: 6, Len: blockLen})
	tell(Write{ID: 6, Off: blockLen, Len: blockLen, Addr: only(s, each[Answer](actions)).Addr})
	tell(Message{From: 1, Msg: Ack{Stream: streamOf(1), Received: s.log.last()}})
	if s.IsIdle() {
		t.Error("a record waits for an earlier one, and nobody knows")
	}
}
