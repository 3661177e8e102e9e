//go:build !race

package targettest

const raceEnabled = false
