// Package rounds says how often tests do what they do again and again.
package rounds

import "testing"

// Of returns full, or short in a run of go test -short. The race detector makes a round ten times as expensive, and watches how
// goroutines meet, which they do in a few rounds; many are for what happens rarely. So scripts/test.sh has it watch short runs,
// and does the full ones without it.
func Of(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// Allocations is testing.AllocsPerRun for a round of which other goroutines do a part. What is allocated for good is not the round's: by a
// thread that Go starts, by the first use of one of the objects that are kept for the next time, for more are in use at a time than
// ever before. What each round allocates is there in each of ten measurements.
func Allocations(runs int, round func()) float64 {
	least := testing.AllocsPerRun(runs, round)
	for i := 0; i < 9 && least >= 1; i++ {
		least = min(least, testing.AllocsPerRun(runs, round))
	}
	return least
}
