package nic

import (
	"slices"

	"oneshot/internal/invariant"
)

// state is the state of a queue pair.
//
//	fresh ─► connected ─► leaving ─► ended ─► closing ─► released
//	  │          └───────────────────► ▲         ▲
//	  ├─ began and ended at once ──────┘         │
//	  └──────────────────────────► unmade ───────┘
type state uint8

const (
	fresh     state = iota
	connected       // the card has said so
	leaving         // Disconnect, Abort or Close was called: Post takes nothing
	ended           // the connection has ended
	unmade          // before a connection had begun, the card has gone or Close was called: there will be none
	closing         // Close waits for calls of Disconnected alone
	released        // mem is not mapped any more
	states
)

// life says which states follow which; the rest are mistakes of ours.
var life = [states][]state{
	fresh:     {connected, ended, unmade},
	connected: {leaving, ended},
	leaving:   {ended, closing},
	ended:     {closing},
	unmade:    {closing},
	closing:   {released},
}

// become changes the state. mu is held.
func (q *queuePair) become(s state) {
	if invariant.Enabled {
		invariant.Check(slices.Contains(life[q.state], s), "nic: a queue pair's life goes where it may not")
	}
	q.state = s
}

// ends notes that there is no connection any more, or will be none if the card has gone. It reports whether Disconnected is to be
// called: if no connection has begun, Connect or Accept tells of it. mu is held.
func (q *queuePair) ends(gone bool) (tell bool) {
	switch q.state {
	case fresh:
		if gone {
			q.become(unmade)
			return false
		}
		q.become(ended)
	case connected, leaving:
		q.become(ended)
	default:
		return false
	}
	return q.cfg.Disconnected != nil
}
