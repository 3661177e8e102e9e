package sim

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestQueue: what is to happen is taken out by its time, and in the order of making at the same time, whatever is put in meanwhile.
func TestQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		w := world{r: r}
		made, taken := 0, 0
		var last happening
		for most := 1 + r.IntN(100); taken < most; {
			if made < most && (made == taken || r.IntN(2) == 0) {
				made++
				w.after(time.Duration(r.IntN(10)), func() { taken++ })
				continue
			}
			h := w.queue[0]
			if h.before(&last) {
				t.Fatalf("%d of %v comes after %d of %v", h.n, h.at, last.n, last.at)
			}
			last = h
			if !w.step(time.Hour) {
				t.Fatalf("%d of %d were taken out, and nothing is left", taken, made)
			}
		}
		if len(w.queue) > 0 {
			t.Fatalf("%d are left", len(w.queue))
		}
	}
}
