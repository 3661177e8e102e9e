package mirror

import (
	"testing"
	"testing/synctest"

	"oneshot/ha/replica"
)

// TestClosedWhileItHandsOver: a node that ends in good order while another one takes its place has nothing to regret.
func TestClosedWhileItHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 1)
		l.write(a, 0, want)
		m := a.mirror
		m.push(item{event: replica.Switch{ID: isOrder, To: 1}})
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		a.mirror = nil
		l.await(b, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
		l.expect(b, 0, want)
	})
}
