// Package latency has the buckets of all histograms of latencies.
package latency

import (
	"math/bits"
	"time"
)

// Buckets is how many there are.
//
// Two buckets lie in each power of two, so that what is read from them is right within a
// third: bucket 0 holds what took less than 4.096 µs, the last one all from 12.9 s on.
const Buckets = 45

// Bucket returns the index for a latency of d nanoseconds.
func Bucket(d int64) int {
	x := uint64(max(d, 0)) >> 11
	if x < 2 {
		return 0
	}
	n := bits.Len64(x)
	half := int(x>>(n-2)) & 1
	return min(1+2*(n-2)+half, Buckets-1)
}

// Bound returns the latency below which everything in bucket i lies. The last bucket
// has no bound; its value is the largest Duration.
func Bound(i int) time.Duration {
	switch {
	case i >= Buckets-1:
		return 1<<63 - 1
	case i == 0:
		return 4096
	case i%2 == 1:
		return 6144 << ((i - 1) / 2)
	}
	return 8192 << ((i - 2) / 2)
}
