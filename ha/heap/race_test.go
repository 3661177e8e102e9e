//go:build race

package heap

// crashRounds and modelRounds are how much is done. A Core has one goroutine, so the race detector finds nothing in it.
const crashRounds, modelRounds = 30, 200
