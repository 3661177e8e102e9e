//go:build !race

package iser

// kills is how many connections are killed.
const kills = 1200
