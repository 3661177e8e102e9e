//go:build !race

package mirror

// forcedRounds is how many worlds TestForced runs.
const forcedRounds, raceEnabled = 6, false
