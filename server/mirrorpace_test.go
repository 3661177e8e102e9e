package server

import (
	"slices"
	"strings"
	"testing"
)

// TestPaceIsThatOfTheFile: each reload brings a mirror to the pace that the file has then, also to the one that it had at the start, and one
// that finds the file as it was changes nothing.
func TestPaceIsThatOfTheFile(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	faster := strings.Replace(text, "type: mirror,", "type: mirror, resync: {min: 64MiB/s},", 1)
	for _, step := range []struct {
		text string
		min  int64 // bytes a second
		done []string
	}{
		{faster, 64 << 20, []string{`copies of the mirror "d" are brought level as fast as can be, and at 64MiB/s while hosts are busy`}},
		{faster, 64 << 20, nil},
		{text, 20 << 20, []string{`copies of the mirror "d" are brought level as fast as can be, and at 20MiB/s while hosts are busy`}},
		{text, 20 << 20, nil},
	} {
		r, err := s.Apply(on(step.text))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.Done, step.done) || len(r.Pending) != 0 {
			t.Errorf("with min %d a reload has done %q, and left %q", step.min, r.Done, r.Pending)
		}
		if st, ok := m.Status(); !ok || st.Pace.Min != step.min {
			t.Errorf("the pace is %+v, and the file has min %d", st.Pace, step.min)
		}
	}
}
