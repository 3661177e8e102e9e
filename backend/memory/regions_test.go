package memory

import "testing"

// The locks of a range are those of the regions that have bytes of it, whether it has one or all.
func TestRegions(t *testing.T) {
	const size = 1 << regionShift
	var r regions
	for _, first := range []int64{0, 5, regionCount - 1, regionCount, 3*regionCount - 2} {
		for _, in := range []int64{0, 1, size - 1} {
			for _, n := range []int64{1, 2, size - 1, size, size + 1, 3*size + 2, regionCount * size, (regionCount + 1) * size} {
				off := first*size + in
				want := map[int64]bool{}
				for i := first; i*size < off+n; i++ {
					want[i%regionCount] = true
				}
				r.lock(off, n)
				for i := range r {
					if (r[i].locked.Load() == 1) != want[int64(i)] {
						t.Fatalf("%d bytes at %d: lock %d is %d", n, off, i, r[i].locked.Load())
					}
				}
				r.unlock(off, n)
				for i := range r {
					if r[i].locked.Load() != 0 {
						t.Fatalf("%d bytes at %d: lock %d is still held", n, off, i)
					}
				}
			}
		}
	}
}
