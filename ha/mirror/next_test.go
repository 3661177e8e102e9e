package mirror

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// lingering is a connection whose end is not noticed before it may be.
type lingering struct {
	net.Conn
	may chan struct{}
}

func (c *lingering) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		<-c.may
	}
	return n, err
}

// TestNextConnection: what a node says on a connection while the one before has not ended is heard, or a copy would wait for ever for
// the primary to begin.
func TestNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.device = onLocal
		may := make(chan struct{})
		l.accepted = func(c net.Conn) net.Conn { return &lingering{c, may} }
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		if err := a.mirror.SwitchTo(t.Context(), b.id); err != nil {
			t.Fatal(err)
		}
		l.level(b)
		old := connOf(b.mirror, a.id)
		connOf(a.mirror, b.id).close() // and b has not let go of it
		time.Sleep(time.Second)        // another one is there, and a is out of sync
		if connOf(b.mirror, a.id) != old {
			t.Fatal("the connection has ended")
		}
		close(may)
		l.level(b)
	})
}
