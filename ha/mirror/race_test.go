//go:build race

package mirror

// forcedRounds is how many worlds TestForced runs: fewer, for each takes ten times as long.
const forcedRounds, raceEnabled = 2, true
