package login

import (
	"crypto/subtle"
	"io"
	"slices"
	"strconv"
	"strings"

	"oneshot/iscsi/chap"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// Credentials are the name and the secret of one direction of CHAP.
type Credentials = chap.Credentials

// chapState says which message comes next.
type chapState uint8

const (
	authNone     chapState = iota // AuthMethod has not been offered
	authOpen                      // AuthMethod=None was agreed
	authChosen                    // AuthMethod=CHAP was agreed; CHAP_A is to come
	authAsked                     // our challenge is out; the answer is to come
	authAccepted                  // the initiator knows the secret
)

// auth is the authentication of one login (RFC 7143 §12.1, RFC 1994).
type auth struct {
	state     chapState
	alg       chap.Algorithm
	id        byte
	challenge []byte
}

// idle reports whether the initiator has not even begun.
func (a *auth) idle() bool { return a.state == authNone || a.state == authOpen }

// finished reports whether the security negotiation may be left.
func (a *auth) finished(l *Login) bool { return l.found.CHAP == nil || a.state == authAccepted }

// begin answers AuthMethod.
func (a *auth) begin(l *Login, pairs []text.Pair) *failure {
	offer, ok := find(pairs, "AuthMethod")
	if !ok {
		return nil
	}
	want := "None"
	if l.found.CHAP != nil {
		want = "CHAP"
	}
	if !slices.Contains(strings.Split(offer, ","), want) {
		return fail(pdu.LoginAuthenticationFailure, "it offers AuthMethod=%s where the target wants %s", offer, want)
	}
	l.put("AuthMethod", want)
	a.state = authOpen
	if want == "CHAP" {
		a.state = authChosen
	}
	return nil
}

// step handles the CHAP keys of one request.
func (a *auth) step(l *Login, pairs []text.Pair) *failure {
	list, hasA := find(pairs, "CHAP_A")
	response, hasR := find(pairs, "CHAP_R")
	switch {
	case hasA && a.state == authChosen:
		return a.ask(l, list)
	case hasR && a.state == authAsked:
		return a.check(l, pairs, response)
	case hasA || hasR:
		return fail(pdu.LoginAuthenticationFailure, "CHAP keys out of order")
	}
	return nil
}

// ask picks an algorithm and sends the challenge.
func (a *auth) ask(l *Login, list string) *failure {
	alg, ok := chap.Choose(list)
	if !ok {
		return fail(pdu.LoginAuthenticationFailure, "none of its CHAP algorithms (%s) is known here", list)
	}
	random := make([]byte, 1+alg.Size())
	if _, err := io.ReadFull(l.rand, random); err != nil {
		return fail(pdu.LoginTargetError, "no random bytes for a challenge: %v", err)
	}
	a.alg, a.id, a.challenge = alg, random[0], random[1:]
	l.put("CHAP_A", alg.Number)
	l.put("CHAP_I", strconv.Itoa(int(a.id)))
	l.put("CHAP_C", text.FormatBinary(a.challenge))
	a.state = authAsked
	return nil
}

// check verifies the initiator's answer, and answers its challenge if it sent one.
func (a *auth) check(l *Login, pairs []text.Pair, response string) *failure {
	name, _ := find(pairs, "CHAP_N")
	got, ok := text.Binary(response)
	want := a.alg.Respond(a.id, l.found.CHAP.Secret, a.challenge)
	known := subtle.ConstantTimeCompare([]byte(name), []byte(l.found.CHAP.Name)) == 1
	right := ok && subtle.ConstantTimeCompare(got, want) == 1
	if !known || !right {
		return fail(pdu.LoginAuthenticationFailure, "CHAP name %q or its secret is wrong", clip(name))
	}
	a.state = authAccepted
	id, hasI := find(pairs, "CHAP_I")
	challenge, hasC := find(pairs, "CHAP_C")
	if !hasI && !hasC {
		return nil
	}
	return a.prove(l, id, challenge)
}

// prove answers the initiator's challenge (mutual CHAP).
func (a *auth) prove(l *Login, id, challenge string) *failure {
	if l.found.Mutual == nil {
		return fail(pdu.LoginAuthenticationFailure, "it asks the target to authenticate itself, for which the target has no secret (auth.mutual)")
	}
	n, okI := text.Number(id)
	c, okC := text.Binary(challenge)
	switch {
	case !okI || n > 255 || !okC || len(c) == 0 || len(c) > chap.MaxChallenge:
		return fail(pdu.LoginAuthenticationFailure, "CHAP_I or CHAP_C is malformed")
	case subtle.ConstantTimeCompare(c, a.challenge) == 1:
		// RFC 7143 §9.2.1: our own challenge comes back to be answered.
		return fail(pdu.LoginAuthenticationFailure, "its challenge is the target's own: a reflection attack")
	}
	l.put("CHAP_N", l.found.Mutual.Name)
	l.put("CHAP_R", text.FormatBinary(a.alg.Respond(byte(n), l.found.Mutual.Secret, c)))
	return nil
}

func find(pairs []text.Pair, key string) (string, bool) {
	for _, p := range pairs {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

func clip(s string) string { return s[:min(len(s), 64)] }
