//go:build !race

package quorum

// simRuns are the runs of each kind.
const simRuns = 10
