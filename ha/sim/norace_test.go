//go:build !race

package sim

// runs is how many worlds are run.
const runs, quorumRuns = 200, 10
