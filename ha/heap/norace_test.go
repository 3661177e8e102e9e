//go:build !race

package heap

// crashRounds and modelRounds are how much is done.
const crashRounds, modelRounds = 500, 3000
