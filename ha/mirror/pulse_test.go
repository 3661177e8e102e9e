package mirror

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/ha/replica"
)

// narrow is a connection that brings so many bytes in a second.
type narrow struct {
	net.Conn
	rate *atomic.Int64
}

func (c *narrow) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(int64(n) * int64(time.Second) / c.rate.Load()))
	return n, err
}

// newNarrowLab has two nodes that are level, and how many bytes a second connections bring from now on.
func newNarrowLab(t *testing.T) (*lab, *atomic.Int64) {
	l := newLab(t, 2)
	rate := new(atomic.Int64)
	rate.Store(1 << 30)
	l.accepted = func(c net.Conn) net.Conn { return &narrow{c, rate} }
	l.begin()
	return l, rate
}

// TestBeatsBesideData: a write is on its way for longer than a member may be silent, and than a connection may bring nothing. The member stays.
func TestBeatsBesideData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, rate := newNarrowLab(t)
		defer l.end()
		a := l.nodes[0]
		time.Sleep(time.Second) // the connection for beats is there
		rate.Store(256 << 10)
		version, began := a.mirror.State().View.Version, time.Now()
		var hosts sync.WaitGroup
		for i := range int64(2) {
			hosts.Go(func() { l.write(a, i<<20, bytesOf(1<<20, byte(i))) })
		}
		hosts.Wait()
		if took := time.Since(began); took < 3*a.mirror.silence() {
			t.Fatalf("2 MiB were on their way for %v", took)
		}
		if s := a.mirror.State(); s.View.Version != version || s.Role != replica.Primary {
			t.Errorf("a copy has left: %+v", s.View)
		}
	})
}

// TestOnlyBeats: a connection for beats on which something else comes ends, and the one for data stays.
func TestOnlyBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		data := connOf(b.mirror, a.id)
		c := l.intruderOf(greetingMagicBeats, a, b)
		kind, head := message(replica.Ask{Version: 1})
		if _, err := c.Write(appendFrame(nil, new(coder), kind, 0, head)); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); err == nil; {
			_, err = c.Read(make([]byte, 1<<10))
		}
		if connOf(b.mirror, a.id) != data {
			t.Error("the connection for data has ended")
		}
		l.level(a)
	})
}

// TestLevelInParts: connections end before a copy can be brought level over any one of them. What it got over each counts.
func TestLevelInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, rate := newNarrowLab(t)
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		b.kill()
		for i := range int64(testSize >> 20) {
			l.write(a, i<<20, bytesOf(1<<20, byte(i)))
		}
		rate.Store(256 << 10)
		b.start()
		for range 4 { // 4 MiB take 16 s
			time.Sleep(12 * time.Second)
			if a.mirror.State().View.InSync.Len() == 2 {
				return
			}
			l.setCut(a.id, b.id, true)
			l.setCut(a.id, b.id, false)
		}
		s, _ := a.mirror.Status()
		t.Errorf("it lacks %d octets, and %d were sent", s.Lacks[b.id], s.Copied)
	})
}
