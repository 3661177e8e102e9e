package iscsi

import "oneshot/internal/invariant"

// connState is the state of a connection (RFC 7143 §7.1.3, the target's side, less what
// only the transport sees).
//
//	           held up ──► reinstate ──┐
//	             ▲  ◄── goes on ──     │ logged in
//	login ───────┴─────────────────────┴──► full feature ── logs out, dropped ──► logout
//	  │ refused ─────────────────────────────────────────────────────────────────►  │
//	  └── lost, from any of these ──► cleanup ── gone ──► free
type connState uint8

const (
	stateNone        connState = iota // of no connection
	stateLogin                        // IN_LOGIN
	stateReinstate                    // IN_LOGIN: the last response waits for an old session, or connection, to end
	stateFullFeature                  // LOGGED_IN
	stateInLogout                     // IN_LOGOUT: the last PDU is on its way
	stateCleanup                      // CLEANUP_WAIT: the transport is gone, tasks are still in stores
	stateFree                         // FREE
	connStates
)

var connStateNames = [connStates]string{"none", "login", "reinstatement", "full feature", "logout", "cleanup", "free"}

func (s connState) String() string { return connStateNames[s] }

// connEvent is what changes the state of a connection.
type connEvent uint8

const (
	eventHeldUp   connEvent = iota // the login has succeeded, but an old session or connection has to end first
	eventGoesOn                    // it has ended
	eventLoggedIn                  // the full feature phase begins
	eventRefused                   // the login has failed
	eventLeaves                    // the initiator has logged out, or we have told it to
	eventLost                      // the transport connection is gone
	eventGone                      // nothing is left in stores
	connEvents
)

// nextState is the one door through which the state of a connection changes. stateNone: the event does
// not occur in this state.
var nextState = [connStates][connEvents]connState{
	stateLogin: {
		eventHeldUp: stateReinstate, eventLoggedIn: stateFullFeature, eventRefused: stateInLogout, eventLost: stateCleanup,
	},
	stateReinstate: {
		eventGoesOn: stateLogin, eventLoggedIn: stateFullFeature, eventLeaves: stateInLogout, eventLost: stateCleanup,
	},
	stateFullFeature: {eventLeaves: stateInLogout, eventLost: stateCleanup},
	stateInLogout:    {eventLost: stateCleanup},
	stateCleanup:     {eventGone: stateFree},
}

// enter changes the state of the connection. An event that does not occur in it is a mistake of ours.
func (c *Conn) enter(e connEvent) {
	next := nextState[c.state][e]
	invariant.Check(next != stateNone, "an event of a connection occurs in its state")
	if next != stateNone {
		c.state = next
	}
}

// checkEnd checks the counts of a connection of which nothing is left.
func (c *Conn) checkEnd() {
	invariant.Check(c.state == stateCleanup, "a connection is gone after it was lost")
	invariant.Check(len(c.tasks) == 0, "a connection that is gone has no tasks outstanding")
	invariant.Check(len(c.hungry) == 0, "a connection that is gone has no tasks that wait for memory")
	if c.live == 0 {
		invariant.Check(c.leased == 0 && c.working == 0 && c.unsent == 0, "memory of tasks comes back with them")
	}
	if s := c.sess; s != nil && s.over {
		invariant.Check(s.active == 0 && s.immediates == 0, "each command that has begun leaves the command window")
		invariant.Check(len(s.Held) == 0, "a session that is over holds no PDUs")
	}
}

// nextTask says which states of a task follow which; the rest are mistakes of ours.
var nextTask = [...][]taskState{
	taskPooled:     {taskHeld},
	taskHeld:       {taskWaiting, taskGone},
	taskWaiting:    {taskWaiting, taskPulling, taskAnswered, taskForgetting, taskGone},
	taskPulling:    {taskWaiting, taskAnswered, taskForgetting, taskGone},
	taskAnswered:   {taskGone},
	taskForgetting: {taskGone},
	taskGone:       {taskPooled},
}

// to changes the state of the task.
func (t *Task) to(s taskState) {
	if invariant.Enabled {
		found := false
		for _, next := range nextTask[t.state] {
			found = found || next == s
		}
		invariant.Check(found, "a task changes to a state that follows its own")
	}
	t.state = s
}
