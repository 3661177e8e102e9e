package mirror

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend/faulty"
)

// TestPowerCutUnderWrites: the primary loses its power while hosts write all over the disk. When it is back it gets what differs, though all of it may.
func TestPowerCutUnderWrites(t *testing.T) {
	seed := faulty.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		r := rand.New(rand.NewPCG(seed, 0))
		workers, steps, end := l.hosts(r, 5*time.Millisecond, func(i int) (blocks []int64) {
			for off := int64(i) * workBlock; off < testSize; off += 4 * workBlock {
				blocks = append(blocks, off)
			}
			return blocks
		})
		for range 1000 {
			<-steps
		}
		a.cutPower(r, 0.5)
		l.alone(b)
		end()
		for range 10 {
			if err := workers[0].step(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // until the disk has what was written
		differ, granule := int64(0), Usual(testSize).Granule
		x, y := a.disk.Crash(nil, 1), b.disk.Crash(nil, 1)
		for off := int64(0); off < testSize; off += granule {
			if !bytes.Equal(x[off:off+granule], y[off:off+granule]) {
				differ += granule
			}
		}
		if differ == 0 || differ == testSize {
			t.Fatalf("%d bytes of %d differ: the test is for some", differ, testSize)
		}
		a.start()
		l.level(b)
		if copied := b.mirror.copied; copied != differ {
			t.Errorf("%d bytes of %d were copied, and %d differed", copied, testSize, differ)
		}
		a.kill()
		l.alone(b)
		for _, w := range workers {
			for i := range w.blocks {
				if err := w.look(i); err != nil {
					t.Error(err)
				}
			}
		}
		b.kill()
		if !bytes.Equal(a.disk.Crash(nil, 1), b.disk.Crash(nil, 1)) {
			t.Error("the copies differ")
		}
	})
}
