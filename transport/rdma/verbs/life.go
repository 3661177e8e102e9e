//go:build verbs && cgo && linux

package verbs

import (
	"slices"

	"oneshot/internal/invariant"
)

// state is the state of a queue pair.
//
//	fresh ─► connecting ─► connected ─► closing ─► ended
//	             │             │                     ▲
//	             └─────────────┴─► unconnected ──────┘
//
// What is lost, or closed before it was connected, ends without the states between.
type state uint8

const (
	fresh state = iota
	connecting
	connected
	closing // Disconnect was called: posted work is still done
	ended
	unconnected // Connect or Accept has failed, for good
	states
)

// life says which states follow which; the rest are mistakes of ours.
var life = [states][]state{
	fresh:       {connecting, ended},
	connecting:  {connected, unconnected, ended},
	connected:   {closing, ended, unconnected}, // the last if the kernel does not accept: it was connected too early
	closing:     {ended},
	unconnected: {ended},
}

// become changes the state. mu is held.
func (q *queuePair) become(s state) {
	if invariant.Enabled {
		invariant.Check(slices.Contains(life[q.state], s), "verbs: a queue pair's life goes where it may not")
	}
	q.state = s
}
