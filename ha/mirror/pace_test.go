package mirror

import (
	"testing"
	"testing/synctest"
	"time"

	"oneshot/ha/replica"
)

// TestPace: a copy gets what it lacks as fast as the primary was told, in the life in which it was told and in those that begin with a pace. Another pace is
// in force at once.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		const slow = testSize / 10 // all of it takes 10 s
		returns := func(n, back *node, meanwhile func()) time.Duration {
			back.kill()
			l.alone(n)
			for off := int64(0); off < testSize; off += 64 << 10 {
				l.write(n, off, bytesOf(4096, byte(off>>16)))
			}
			began := time.Now()
			back.start()
			meanwhile()
			l.level(n)
			return time.Since(began)
		}
		a.mirror.SetPace(replica.Pace{Rate: slow, Min: slow})
		if took := returns(a, b, func() {}); took < 9*time.Second || took > 14*time.Second {
			t.Errorf("a copy was level after %v, and should be after 10 s", took)
		}
		took := returns(a, b, func() {
			time.Sleep(2 * time.Second)
			s, ok := a.mirror.Status()
			if !ok || s.Pace != (replica.Pace{Rate: slow, Min: slow}) || s.Lacks[1] < testSize/2 {
				t.Errorf("after 2 s: %+v", s)
			}
			a.mirror.SetPace(replica.Pace{Min: slow})
		})
		if took > 5*time.Second {
			t.Errorf("a copy was level after %v; from 2 s on nothing should have held it back", took)
		}
		l.pace = replica.Pace{Rate: slow, Min: slow}
		if took := returns(a, b, func() {}); took > 5*time.Second {
			t.Errorf("a copy was level after %v, and its primary has no bound", took)
		}
		a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
		l.level(b)
		if took := returns(b, a, func() {}); took < 9*time.Second {
			t.Errorf("a copy was level after %v, and the life of its primary has begun with that pace", took)
		}
	})
}
