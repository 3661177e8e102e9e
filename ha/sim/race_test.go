//go:build race

package sim

// runs is how many worlds are run. There is only one goroutine, so the race detector finds nothing here, and makes
// each run ten times as expensive. The other step of `make test` runs more.
const runs, quorumRuns = 20, 1
