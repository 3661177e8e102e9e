package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"fmt"
	"slices"
)

// Host is the host's side of one authentication of a queue.
type Host struct {
	names Names
	rules Rules
	tid   uint16
	hash  Hash
	r2    []byte // that is expected
	state hostState
}

type hostState uint8

const (
	hostNegotiates hostState = iota // waits for Challenge
	hostReplied                     // waits for Success1
	hostDone
)

// Error is an authentication that has failed.
type Error struct {
	Reason Reason
	Peer   bool // the controller says so
}

func (e *Error) Error() string {
	if e.Peer {
		return fmt.Sprintf("DH-HMAC-CHAP: the controller refuses the host: %v", e.Reason)
	}
	return fmt.Sprintf("DH-HMAC-CHAP: the controller has not proved who it is: %v", e.Reason)
}

// NewHost returns the host's side of the transaction tid, and the message that begins it. With Rules.Controller the controller has to
// prove itself, too.
func NewHost(n Names, r Rules, tid uint16) (*Host, []byte) {
	return &Host{names: n, rules: r, tid: tid}, newNegotiate(tid, r.hashes(), r.groups())
}

// Next takes a message of the controller, and returns what is to be sent next, or nil. It is over when there is an error, or when
// Done says so. What comes with an error is sent, too.
func (h *Host) Next(b []byte) ([]byte, error) {
	m, ok := parse(b)
	switch {
	case !ok || m.tid() != h.tid:
		return h.fail(IncorrectPayload)
	case m.kind() == kindFailure1:
		h.state = hostDone
		return nil, &Error{max(Reason(m[7]), 1), true}
	case h.state == hostNegotiates && m.kind() == kindChallenge:
		return h.challenge(m)
	case h.state == hostReplied && m.kind() == kindSuccess1:
		return h.success(m)
	}
	return h.fail(UnexpectedMessage)
}

// Done reports whether the controller sends nothing more.
func (h *Host) Done() bool { return h.state == hostDone }

func (h *Host) fail(r Reason) ([]byte, error) {
	h.state = hostDone
	return newFailure(kindFailure2, h.tid, r), &Error{r, false}
}

func (h *Host) challenge(m message) ([]byte, error) {
	c, ok := parseChallenge(m)
	switch {
	case !ok:
		return h.fail(IncorrectPayload)
	case !slices.Contains(h.rules.hashes(), c.hash):
		return h.fail(NoHash)
	case !slices.Contains(h.rules.groups(), c.group):
		return h.fail(NoGroup)
	}
	x, public := c.group.newExchange()
	shared, ok := x.shared(c.public)
	if !ok {
		return h.fail(IncorrectPayload)
	}
	h.hash = c.hash
	r := reply{public: public, c2: make([]byte, c.hash.size())}
	r.r1 = c.hash.ofHost(h.rules.Host.transformed(h.names.Host), c.hash.augment(c.c1, shared), c.seq, h.tid, h.names)
	if h.rules.Controller != nil {
		_, _ = rand.Read(r.c2)
		r.mutual, r.seq = true, nextSequence()
		key := h.rules.Controller.transformed(h.names.Subsystem)
		h.r2 = c.hash.ofController(key, c.hash.augment(r.c2, shared), r.seq, h.tid, h.names)
	}
	h.state = hostReplied
	return r.message(h.tid), nil
}

func (h *Host) success(m message) ([]byte, error) {
	r2, ok := parseSuccess1(m, h.hash.size())
	switch {
	case !ok:
		return h.fail(IncorrectPayload)
	case h.r2 == nil:
		h.state = hostDone
		return nil, nil
	case !hmac.Equal(r2, h.r2):
		return h.fail(Failed)
	}
	h.state = hostDone
	return newSuccess2(h.tid), nil
}
