package card

import (
	"net"
	"sync/atomic"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// crowd is a listener that so many want a connection from.
type crowd struct {
	rdma.Listener
	left     int
	rejected atomic.Int32
}

func (l *crowd) Accept() (rdma.Request, error) {
	if l.left == 0 {
		return nil, net.ErrClosed
	}
	l.left--
	return stranger{crowd: l}, nil
}

type stranger struct {
	rdma.Request
	crowd *crowd
}

func (s stranger) PeerData() []byte     { return nil }
func (s stranger) LocalAddr() net.Addr  { return new(net.TCPAddr) }
func (s stranger) RemoteAddr() net.Addr { return new(net.TCPAddr) }
func (s stranger) Reject([]byte) error  { s.crowd.rejected.Add(1); return nil }

// TestCrowd: more strangers want a connection than there may be messages, while the program is held up and reads none. It stays, there is
// room for the ends of its connections and for answers, and who is not waiting was rejected.
func TestCrowd(t *testing.T) {
	p := newProgram(t, false, false)
	defer p.close()
	const n = 2 * maxOutgoing
	l := &crowd{left: n}
	p.c.accepting(1, l)
	if p.c.gone.Load() {
		t.Fatal("strangers have ended the program: ", p.c.why)
	}
	for range maxPairs + maxPending {
		p.c.tell(&shm.Message{Op: shm.OpEnded})
	}
	if p.c.gone.Load() {
		t.Fatal("strangers have taken the room of others: ", p.c.why)
	}
	if got := int(l.rejected.Load()) + len(p.c.requests); got != n {
		t.Errorf("%d of %d are rejected or wait", got, n)
	}
}
