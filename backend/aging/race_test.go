//go:build race

package aging

const raceEnabled = true
