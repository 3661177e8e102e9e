package remote

import (
	"slices"

	"oneshot/internal/invariant"
)

// state is how far a queue pair has come.
//
//	idle ─► connecting ─► connected ─► ending ─► ended
//	  └─────────┴── closed, refused ────►
type state uint8

const (
	idle state = iota
	connecting
	connected
	ending // finish is under way
	ended
	states
)

// life says which states follow which; the rest are mistakes of ours.
var life = [states][]state{
	idle:       {connecting, ending},
	connecting: {connected, ending},
	connected:  {ending},
	ending:     {ended},
}

// become changes the state. mu is held.
func (q *queuePair) become(s state) {
	if invariant.Enabled {
		invariant.Check(slices.Contains(life[q.state], s), "remote: a queue pair's life goes where it may not")
	}
	q.state = s
}
