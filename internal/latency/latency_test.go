package latency

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Every latency lies below the bound of its bucket and not below that of the one before.
func TestBuckets(t *testing.T) {
	check := func(d int64) {
		t.Helper()
		i := Bucket(d)
		if time.Duration(d) >= Bound(i) || i > 0 && time.Duration(d) < Bound(i-1) {
			t.Errorf("%d ns is in bucket %d, %d to %d ns", d, i, Bound(max(i-1, 0)), Bound(i))
		}
	}
	for i := range Buckets - 1 {
		check(int64(Bound(i)))
		check(int64(Bound(i)) - 1)
	}
	for range 10000 {
		check(rand.Int64N(1 << (1 + rand.IntN(62))))
	}
	if got := Bucket(-5); got != 0 {
		t.Errorf("a clock that stands still gives bucket %d", got)
	}
	if got := Bound(Buckets - 2); got < 12*time.Second || got > 13*time.Second {
		t.Errorf("the last bound is %v", got)
	}
}
