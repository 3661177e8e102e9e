package iwarp

import "oneshot/internal/invariant"

// state is the state of a queue pair. Only queuePair.become changes it, as the rows of the table
// below allow.
//
//	idle ─► connecting ─► connected ─┬─► leaving ────► left ─┐
//	                                 ├─► terminating ─► told ─┤
//	                                 └─► cut, gone ◄──────────┴─► ended
type state uint8

const (
	idle        state = iota // not connected
	connecting               // exchange of MPA frames
	connected                // both ways
	leaving                  // Disconnect: what is posted is sent, and then our half closed
	left                     // our half is closed, the peer's is not
	terminating              // after an error: a Terminate is sent, if there is one, and then our half is closed
	told                     // the Terminate is sent and our half is closed; what comes from the peer is thrown away
	cut                      // the socket is unusable, and a reset has to tell the peer that this is no orderly end
	gone                     // the socket is unusable
	ended                    // the socket is closed, and everything posted has completed
	states
)

// phase says what is allowed in a state.
type phase struct {
	name   string
	next   uint16 // bit set of the states that may follow
	posts  bool   // Post takes work
	sends  bool   // work leaves
	speaks bool   // work or a Terminate leaves
	lives  bool   // the socket is in use
	drains bool   // received bytes are thrown away
}

var life = [states]phase{
	idle:        {name: "idle", next: 1<<connecting | 1<<ended},
	connecting:  {name: "connecting", next: 1<<connected | 1<<ended},
	connected:   {name: "connected", next: 1<<leaving | 1<<terminating | 1<<cut | 1<<gone, posts: true, sends: true, speaks: true, lives: true},
	leaving:     {name: "leaving", next: 1<<left | 1<<terminating | 1<<cut | 1<<gone, sends: true, speaks: true, lives: true},
	left:        {name: "left", next: 1<<told | 1<<cut | 1<<gone, lives: true},
	terminating: {name: "terminating", next: 1<<told | 1<<gone, speaks: true, lives: true, drains: true},
	told:        {name: "told", next: 1 << gone, lives: true, drains: true},
	cut:         {name: "cut", next: 1 << ended},
	gone:        {name: "gone", next: 1 << ended},
	ended:       {name: "ended"},
}

func (s state) String() string { return life[s].name }

// may reports whether to may follow s.
func (s state) may(to state) bool { return life[s].next&(1<<to) != 0 }

// is returns the phase of the current state. The lock is held.
func (q *queuePair) is() *phase { return &life[q.state] }

// become changes the state. The lock is held.
func (q *queuePair) become(s state) {
	invariant.Check(q.state.may(s), "iwarp: a queue pair's life goes where it may not")
	q.state = s
}

// closed closes our half of the connection: nothing is sent any more. The lock is held.
func (q *queuePair) closed() {
	if q.state == leaving {
		q.become(left)
	} else {
		q.become(told)
	}
}

// useless notes that the socket has become unusable. The lock is held, and the socket lives.
func (q *queuePair) useless(err error) {
	if err != nil && !q.is().drains { // a reset could discard the Terminate before the peer reads it
		q.become(cut)
	} else {
		q.become(gone)
	}
}
