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

// Allocations is testing.AllocsPerRun for a round of which other goroutines do a part. It returns the least of up to ten measurements, because
// some allocations belong to no round: Go starts a thread, or more of the objects that are kept for reuse are in use at a time than ever
// before. What each round allocates is in all ten.
func Allocations(runs int, round func()) float64 {
	least := testing.AllocsPerRun(runs, round)
	for i := 0; i < 9 && least >= 1; i++ {
		least = min(least, testing.AllocsPerRun(runs, round))
	}
	return least
}
