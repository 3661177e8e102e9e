package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"slices"
	"sync/atomic"
)

// Rules are what one side demands of the other.
type Rules struct {
	Host       *Secret // that the host proves to know
	Controller *Secret // that the controller proves to know; nil: it cannot, or need not
	Hashes     []Hash  // that are allowed, the best first; empty: all
	Groups     []Group // that are allowed, the best first; empty: all but Null
}

func (r *Rules) hashes() []Hash {
	if len(r.Hashes) == 0 {
		return Hashes
	}
	return r.Hashes
}

func (r *Rules) groups() []Group {
	if len(r.Groups) == 0 {
		return Groups[:len(Groups)-1]
	}
	return r.Groups
}

// Controller is the controller's side of one authentication of a queue. Send may take tens of milliseconds.
//
//	waiting ─ Negotiate ► negotiated ─ Challenge ► challenged ─ Reply ► replied ─ Success1 ► proved? ─ Success2 ► over
//	    └───────────────────────┴── what is wrong ─► failing ─ Failure1 ► over
type Controller struct {
	names Names
	rules Rules
	state controllerState
	tid   uint16
	challenge
	exchange *exchange
	r2       []byte
	reason   Reason // 0: nothing is wrong
	byHost   bool   // the host has ended it
}

type controllerState uint8

const (
	waiting    controllerState = iota // for Negotiate
	negotiated                        // the challenge is to be fetched
	challenged                        // for Reply
	replied                           // Success1 is to be fetched
	proved                            // for Success2
	failing                           // Failure1 is to be fetched
	over
)

// NewController returns the controller's side for a host with that secret.
func NewController(n Names, r Rules) *Controller { return &Controller{names: n, rules: r} }

// Over reports whether it has ended: Failure says how. A host that is told of a failure has to be sent what Receive returns, before.
func (c *Controller) Over() bool { return c.state == over }

// Failure returns why it has failed, and whether the host says so; 0: it has not.
func (c *Controller) Failure() (why Reason, byHost bool) { return c.reason, c.byHost }

// Mutual reports whether the controller has proved itself, too.
func (c *Controller) Mutual() bool { return c.r2 != nil }

// Description says how it was done: hash and group.
func (c *Controller) Description() string { return c.hash.String() + " " + c.group.String() }

// sequence is the last sequence number.
var sequence = func() *atomic.Uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	n := new(atomic.Uint32)
	n.Store(le.Uint32(b[:]))
	return n
}()

// nextSequence is never 0.
func nextSequence() uint32 {
	for {
		if n := sequence.Add(1); n != 0 {
			return n
		}
	}
}

// Send takes a message of the host, which it does not keep.
func (c *Controller) Send(b []byte) {
	m, ok := parse(b)
	switch {
	case c.state == over || c.state == failing:
	case !ok:
		c.fail(IncorrectPayload)
	case c.state != waiting && m.tid() != c.tid:
		c.fail(IncorrectPayload)
	case m.kind() == kindFailure2:
		c.reason, c.byHost, c.state = max(Reason(m[7]), 1), true, over
	case c.state == waiting && m.kind() == kindNegotiate:
		c.negotiate(m)
	case c.state == challenged && m.kind() == kindReply:
		c.reply(m)
	case c.state == proved && m.kind() == kindSuccess2 && len(m) == headLen:
		c.state = over
	default:
		c.fail(UnexpectedMessage)
	}
}

func (c *Controller) fail(r Reason) { c.reason, c.state = r, failing }

// negotiate chooses the best hash function and the best group that both allow.
func (c *Controller) negotiate(m message) {
	c.tid = m.tid()
	o, r := parseNegotiate(m)
	if r != 0 {
		c.fail(r)
		return
	}
	h := slices.IndexFunc(c.rules.hashes(), func(h Hash) bool { return slices.Contains(o.hashes, h) })
	g := slices.IndexFunc(c.rules.groups(), func(g Group) bool { return slices.Contains(o.groups, g) })
	switch {
	case h < 0:
		c.fail(NoHash)
		return
	case g < 0:
		c.fail(NoGroup)
		return
	}
	c.hash, c.group = c.rules.hashes()[h], c.rules.groups()[g]
	c.seq, c.c1 = nextSequence(), make([]byte, c.hash.size())
	_, _ = rand.Read(c.c1)
	c.exchange, c.public = c.group.newExchange()
	c.state = negotiated
}

// reply checks what the host has answered.
func (c *Controller) reply(m message) {
	r, ok := parseReply(m, c.hash, c.group)
	if !ok {
		c.fail(IncorrectPayload)
		return
	}
	shared, ok := c.exchange.shared(r.public)
	switch {
	case !ok, r.mutual && r.seq == 0:
		c.fail(IncorrectPayload)
		return
	case bytes.Equal(r.c2, c.c1): // somebody who knows nothing sends back what we have said
		c.fail(Failed)
		return
	}
	want := c.hash.ofHost(c.rules.Host.transformed(c.names.Host), c.hash.augment(c.c1, shared), c.seq, c.tid, c.names)
	if !hmac.Equal(want, r.r1) {
		c.fail(Failed)
		return
	}
	if r.mutual {
		if c.rules.Controller == nil {
			c.fail(Failed)
			return
		}
		key := c.rules.Controller.transformed(c.names.Subsystem)
		c.r2 = c.hash.ofController(key, c.hash.augment(r.c2, shared), r.seq, c.tid, c.names)
	}
	c.state = replied
}

// Pending is the length of the message that Receive returns; 0: it is not the controller's turn.
func (c *Controller) Pending() int {
	switch c.state {
	case negotiated:
		return headLen + len(c.c1) + len(c.public)
	case replied:
		return headLen + c.hash.size()
	case failing:
		return failureLen
	}
	return 0
}

// Receive returns the message that the host is to get; nil: it is not the controller's turn.
func (c *Controller) Receive() []byte {
	switch c.state {
	case negotiated:
		c.state = challenged
		return c.challenge.message(c.tid)
	case replied:
		if c.state = proved; c.r2 == nil {
			c.state = over
		}
		return newSuccess1(c.tid, c.hash.size(), c.r2)
	case failing:
		c.state = over
		return newFailure(kindFailure1, c.tid, c.reason)
	}
	return nil
}
