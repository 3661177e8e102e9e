package server

import (
	"strings"
	"testing"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/volume/access"
)

// TestUnreadableReservations: a node of a former version cannot read which reservations are in force. It does not serve by those of before, and wants another
// node to serve.
func TestUnreadableReservations(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	is := func(want access.GroupState) func() bool {
		return func() bool { return m.table.Group(1).State == want }
	}
	until(t, "it serves", is(access.ActiveOptimized))
	key := quorum.Key{Kind: quorum.KindUnit, Name: m.record.SetName(m.name)}
	var readable []byte
	put := func(value []byte) {
		t.Helper()
		if err := s.member.node.Update(t.Context(), key, func(old []byte) ([]byte, error) {
			if readable == nil {
				readable = append(readable, old...)
			}
			return value, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte(`{"Format":99}`))
	until(t, "it does not serve", is(access.Transitioning))
	if st := m.State(); st.Role != replica.Primary {
		t.Errorf("there is nobody else: %+v", st)
	}
	if c := s.clusterStatus(); !strings.Contains(c.Mirrors[0].Trouble, "format 99") {
		t.Errorf("status says %q", c.Mirrors[0].Trouble)
	}
	put(readable)
	until(t, "it serves again", is(access.ActiveOptimized))
	if c := s.clusterStatus(); c.Mirrors[0].Trouble != "" {
		t.Errorf("status says %q", c.Mirrors[0].Trouble)
	}
}
