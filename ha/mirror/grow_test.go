package mirror

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
)

// growing is a lab whose mirror has half of its disks.
type growing struct {
	*lab
	mu   sync.Mutex
	room map[replica.ID]int64
	told map[replica.ID]int // of another size
	had  int64              // bytes of the mirror before
}

func newGrowing(t *testing.T, n int) *growing {
	g := &growing{lab: newLab(t, n), room: map[replica.ID]int64{}, told: map[replica.ID]int{}, had: testSize / 2}
	g.lab.room = func(n *node) int64 {
		g.mu.Lock()
		defer g.mu.Unlock()
		return max(g.had, g.room[n.id])
	}
	g.lab.resized = func(n *node) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.told[n.id]++
	}
	return g
}

// grow tells a node that the mirror may have all of its disk. Its next life knows that.
func (g *growing) grow(n *node) {
	g.mu.Lock()
	g.room[n.id] = testSize
	g.mu.Unlock()
	n.mirror.Grow(testSize)
}

// has waits until hosts of a node see a size.
func (g *growing) has(n *node, size int64) {
	g.t.Helper()
	for range 600 {
		if n.mirror.Info().Size == size {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	g.t.Fatalf("node %d has %d bytes, and not %d", n.id, n.mirror.Info().Size, size)
}

// TestGrow: hosts see the new size when all copies in sync have it, and not before, on all nodes. A copy that was away
// gets it when it comes back. What is new reads as zeroes, is written and survives a takeover.
func TestGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowing(t, 3)
		g.begin()
		defer g.end()
		a, b, c := g.nodes[0], g.nodes[1], g.nodes[2]
		late := testSize/2 + int64(64<<10)
		w := bytesOf(64<<10, 1)
		write := func() error {
			return g.do(a, backend.Op{Kind: backend.Write, Off: late, Len: int64(len(w)), Segs: [][]byte{w}})
		}
		if write() == nil {
			t.Error("a write behind the end")
		}
		g.write(a, 0, w)
		for _, n := range g.nodes {
			n.mirror.Room(testSize)
		}
		c.kill()
		g.setCut(a.id, b.id, true)
		g.grow(a)
		time.Sleep(10 * time.Millisecond)
		if n := a.mirror.Info().Size; n != testSize/2 {
			t.Errorf("a mirror of %d bytes, and another copy in sync has not grown", n)
		}
		g.setCut(a.id, b.id, false)
		time.Sleep(time.Second)
		if n := a.mirror.Info().Size; n != testSize/2 {
			t.Errorf("a mirror of %d bytes, and another node would not know that in its next life", n)
		}
		g.grow(b)
		g.has(a, testSize)
		g.has(b, testSize)
		g.expect(a, late, make([]byte, 64<<10))
		if err := write(); err != nil {
			t.Fatal(err)
		}
		c.start()
		g.grow(c)
		g.has(c, testSize)
		g.level(a)
		a.kill()
		p := g.primary()
		g.expect(p, late, w)
		a.start()
		g.level(g.primary())
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, n := range []*node{a, b, c} {
			if g.told[n.id] != 1 {
				t.Errorf("node %d told its hosts %d times", n.id, g.told[n.id])
			}
		}
	})
}

// TestGrowInterrupted: the primary is killed as soon as it may grow; whoever is next finishes it.
func TestGrowInterrupted(t *testing.T) {
	for step := range rounds.Of(5, 2) {
		synctest.Test(t, func(t *testing.T) {
			g := newGrowing(t, 2)
			g.begin()
			defer g.end()
			a, b := g.nodes[0], g.nodes[1]
			a.mirror.Room(testSize)
			g.grow(b)
			if step > 0 { // else it has not heard of it
				g.grow(a)
			}
			time.Sleep(time.Duration(step) * 200 * time.Microsecond)
			a.kill()
			g.await(b, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
			g.has(b, testSize)
			w := bytesOf(64<<10, 2)
			g.write(b, testSize-64<<10, w)
			g.mu.Lock()
			g.room[a.id] = testSize
			g.mu.Unlock()
			a.start()
			g.level(b)
			g.has(a, testSize)
			b.kill()
			g.await(a, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
			g.expect(a, testSize-64<<10, w)
			b.start()
			g.level(a)
		})
	}
}

// TestGrownAlone: a copy has grown, and its disk is exchanged before the primary hears of the size, so others bring it level while they are smaller. What
// the disk had behind their end hosts never see, as that copy serves.
func TestGrownAlone(t *testing.T) {
	for _, had := range []int64{testSize / 2, testSize/2 + 4096} { // with the end of a granule, and not
		synctest.Test(t, func(t *testing.T) {
			g := newGrowing(t, 2)
			g.had = had
			ids := g.named()
			g.begin()
			defer g.end()
			a, b := g.nodes[0], g.nodes[1]
			w := bytesOf(4096, 1)
			g.write(a, had-4096, w)
			g.grow(b)
			b.kill()
			g.await(a, "alone", func(s replica.State) bool { return s.View.InSync == replica.NodesOf(0) })
			b.disk, ids[1] = backendtest.DiskOf(bytesOf(testSize, 2), 512), "another"
			b.start()
			g.level(a)
			if n := a.mirror.Info().Size; n != had {
				t.Fatalf("a mirror of %d bytes, and its primary has not heard that it grows", n)
			}
			a.kill()
			g.has(b, testSize)
			g.await(b, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
			g.expect(b, had-4096, w)
			g.expect(b, had, make([]byte, testSize-had))
			a.start()
			g.grow(a)
			g.level(b)
			g.has(a, testSize)
		})
	}
}
