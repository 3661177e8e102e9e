package mirror

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// longer is a connection that says once, when it is due, that a frame of the primary is longer than it is.
type longer struct {
	net.Conn
	due *atomic.Bool
}

func (c *longer) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n >= prefixLen && frameKind(b[12]) == framePost && c.due.CompareAndSwap(true, false) {
		b[1] ^= 1 // 64 KiB
	}
	return n, err
}

// TestDamagedLength: a node takes what others say for the rest of a frame whose length was damaged. The connection ends, for too little comes,
// and the copy comes back.
func TestDamagedLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		var due atomic.Bool
		l.accepted = func(c net.Conn) net.Conn { return &longer{c, &due} }
		l.begin()
		defer l.end()
		p := l.primary()
		due.Store(true)
		l.write(p, 0, bytesOf(4096, 1))
		if due.Load() {
			t.Fatal("no frame of the primary was damaged")
		}
		l.level(p)
		l.expect(p, 0, bytesOf(4096, 1))
	})
}
