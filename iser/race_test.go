//go:build race

package iser

// kills is how many connections are killed. The detector makes each cost ten times as much.
const kills = 240
