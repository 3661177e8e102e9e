package iser

import (
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// late is a device whose provider is late to tell of the ends of connections: not before told is closed.
type late struct {
	rdma.Device
	told chan struct{}
}

func (l *late) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	if ended := c.Disconnected; ended != nil {
		c.Disconnected = func(err error) {
			go func() {
				<-l.told
				ended(err)
			}()
		}
	}
	return l.Device.NewQueuePair(c)
}

// reserve6 is RESERVE(6) (SPC-2 §7.21).
var reserve6 = []byte{0x16, 0, 0, 0, 0, 0}

// TestNewSessionFindsNoReservation: an initiator whose connection is over, and which logs in again as another port before
// the target has been told of that, does not meet the reservation of its former session.
func TestNewSessionFindsNoReservation(t *testing.T) {
	for framing, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(framing, func(t *testing.T) {
			target, err := iwarp.Open(iwarp.Config{})
			check(t, err)
			l := &late{Device: target, told: make(chan struct{})}
			b := newBenchOn(t, 64<<20, l, "127.0.0.1:0")
			newSessionFindsNoReservation(t, l, func() *client { return b.dial(direct) })
		})
	}
}

func newSessionFindsNoReservation(t *testing.T, l *late, dial func() *client) {
	t.Helper()
	defer close(l.told)
	var port byte
	login := func() *client {
		port++
		c := dial()
		c.isid = port
		c.logIn("")
		c.do(make([]byte, 6), false, false, 0, 0) // takes the unit attention
		return c
	}
	const good, conflict = 0, 0x18
	write := func(c *client, want int) {
		t.Helper()
		if r := c.do(rw16(0x8a, 0, 8), true, false, 4096, 0); int(r.Status()) != want {
			t.Errorf("status of a WRITE %#x, want %#x", r.Status(), want)
		}
	}
	first := login()
	if r := first.do(reserve6, false, false, 0, 0); r.Status() != good {
		t.Fatalf("status of RESERVE(6) %#x", r.Status())
	}
	other := login()
	write(other, conflict)
	check(t, first.qp.Close())
	write(login(), good)
}
