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
