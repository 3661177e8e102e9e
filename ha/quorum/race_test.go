//go:build race

package quorum

// simRuns are the runs of each kind; the race detector makes them slow.
const simRuns = 1
