//go:build race

package sim

// runs is how many worlds are run. There is one goroutine, so the race detector finds nothing here that the other step
// of `make test` does not, and makes each run cost ten times as much.
const runs = 20
