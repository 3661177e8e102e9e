package replica

import (
	"testing"
	"time"
)

// due fails if the node does not want its next tick after that time.
func (s *solo) due(in time.Duration, when string) {
	s.Helper()
	if got := s.Due() - s.now; got != in {
		s.Errorf("%s it wants a tick in %v, and should in %v", when, got, in)
	}
}

func TestDuePrimary(t *testing.T) {
	s := reigns(t, 2)
	beat, third := s.set.Heartbeat, s.set.Heartbeat/3
	s.wait(beat)
	if s.Due() != s.beatAt+beat {
		t.Errorf("the last beat went at %v, and the next tick is at %v", s.beatAt, s.Due())
	}
	s.do(Zero{ID: 1, Off: 0, Len: blockLen})
	s.due(third, "while a write waits")
	s.do(Read{ID: 2, Off: 0, Len: blockLen})
	s.due(third, "while a read waits")
	s = reigns(t, 2)
	v := s.view
	v.Version, v.InSync = v.Version+1, NodesOf(0)
	s.agree(v)
	s.due(s.beatAt+beat-s.now, "alone")
	s.hello(1, true)
	s.due(third, "while it brings a copy level")
}

func TestDueMember(t *testing.T) {
	s, h := follows(t, 2, NodesOf(0, 1))
	beat, third := s.set.Heartbeat, s.set.Heartbeat/3
	s.due(third, "before the first bell")
	s.take(h.Stream, Bell{})
	s.do(BeatFrom{From: 1, Beat: Beat{View: s.view}})
	s.due(beat, "in peace")
	s.alive = 0
	s.wait(2 * beat)
	s.due(third, "when a beat is missing")
}
