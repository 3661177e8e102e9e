package initiator

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"oneshot/iscsi/chap"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// LoginError is the target's refusal of a login.
type LoginError struct {
	Target, Address string
	Status          pdu.LoginStatus
}

// Error says what the target answers, and what may help.
func (e *LoginError) Error() string {
	s := fmt.Sprintf("the target at %s refuses the login: %v", e.Address, e.Status)
	switch e.Status {
	case pdu.LoginAuthenticationFailure:
		s += "; user or secret of CHAP is missing or wrong (iscsi://user%secret@…, or the environment's)"
	case pdu.LoginAuthorizationFailure:
		s += "; it does not admit this initiator's name"
	case pdu.LoginNotFound:
		s += fmt.Sprintf("; it has no target %q (list them: initiator ls)", e.Target)
	}
	return s
}

// movedError is a login that is to be tried elsewhere.
type movedError struct{ to string }

func (e *movedError) Error() string { return "the target has moved to " + e.to }

// login is the initiator's side of a login (RFC 7143 §6.3) as a step function.
//
//	SecurityNegotiation: AuthMethod ─► [CHAP_A ─► CHAP_N, CHAP_R] ─► LoginOperationalNegotiation ─► FullFeaturePhase
type login struct {
	url       *URL
	opt       *Options
	discovery bool
	isid      pdu.ISID
	tsih      uint16
	stage     pdu.Stage
	sent      bool // the keys of the operational stage
	chap      struct {
		chosen, answered, proved bool
		alg                      chap.Algorithm
		challenge                []byte // ours
		id                       byte
	}
	collected text.Collector
	p         text.Params
	// segment is the longest data segment that the target takes.
	segment uint32
	out     []byte
}

func newLogin(u *URL, o *Options, discovery bool) *login {
	l := &login{url: u, opt: o, discovery: discovery, stage: pdu.StageSecurityNegotiation, p: text.Defaults(), segment: 8192}
	if l.isid = o.ISID; l.isid == (pdu.ISID{}) {
		l.isid = RandomISID()
	}
	return l
}

// RandomISID returns an ISID for a session that ends no other of the same initiator name (RFC 7143
// §11.12.5).
func RandomISID() (id pdu.ISID) {
	id[0] = 0x80
	_, _ = rand.Read(id[1:])
	return id
}

// first returns the keys of the first request.
func (l *login) first() (data []byte, transit bool) {
	l.put("InitiatorName", l.opt.InitiatorName)
	if l.discovery {
		l.put("SessionType", "Discovery")
	} else {
		l.put("SessionType", "Normal")
		l.put("TargetName", l.url.Target)
	}
	if l.url.CHAP == nil {
		l.put("AuthMethod", "None")
		return l.take(), true
	}
	method := "CHAP,None"
	if l.url.Mutual != nil {
		method = "CHAP"
	}
	l.put("AuthMethod", method)
	return l.take(), false
}

func (l *login) put(key, value string) { l.out = text.Append(l.out, key, value) }

func (l *login) take() []byte {
	b := l.out
	l.out = nil
	return b
}

// step takes a response and returns what to send next. done: there is nothing to send, the
// full feature phase has begun.
func (l *login) step(h pdu.LoginResponse, data []byte) (out []byte, transit, done bool, err error) {
	if h.Status() != pdu.LoginSuccess && h.Status().Class() != 1 {
		return nil, false, false, &LoginError{Target: l.url.Target, Address: l.url.Address, Status: h.Status()}
	}
	pairs, err := l.collected.Add(data, h.Continue())
	if err != nil {
		return nil, false, false, fmt.Errorf("login response: %w", err)
	}
	if h.Continue() {
		return nil, false, false, nil
	}
	if h.Status().Class() == 1 {
		return nil, false, false, redirection(pairs)
	}
	if err := l.keys(pairs); err != nil {
		return nil, false, false, err
	}
	if h.Transit() {
		if h.NSG() <= l.stage {
			return nil, false, false, fmt.Errorf("login response: the next stage is %v after %v", h.NSG(), l.stage)
		}
		if err := l.leaveSecurity(); err != nil {
			return nil, false, false, err
		}
		if l.stage = h.NSG(); l.stage == pdu.StageFullFeaturePhase {
			if err := l.agreed(); err != nil {
				return nil, false, false, err
			}
			l.tsih = h.TSIH()
			return nil, false, true, nil
		}
	}
	if l.stage == pdu.StageLoginOperationalNegotiation {
		l.operational()
		return l.take(), true, false, nil
	}
	// Our answer is the last thing to be said, except for what the target answers to it.
	out = l.take()
	return out, !l.chap.chosen || l.chap.answered, false, nil
}

// leaveSecurity checks that the target has proved what it had to.
func (l *login) leaveSecurity() error {
	switch {
	case l.stage != pdu.StageSecurityNegotiation || l.url.Mutual == nil:
	case l.chap.challenge == nil:
		return errors.New("the target asks for no CHAP, and so cannot prove who it is (target_user)")
	case !l.chap.proved:
		return errors.New("the target has not proved who it is: no CHAP_R from it")
	}
	return nil
}

func redirection(pairs []text.Pair) error {
	for _, p := range pairs {
		if p.Key == "TargetAddress" {
			to, _, _ := strings.Cut(p.Value, ",")
			return &movedError{to}
		}
	}
	return errors.New("the target says that it has moved, and not where to")
}

// keys takes the keys of a response.
func (l *login) keys(pairs []text.Pair) error {
	if err := l.authenticate(pairs); err != nil {
		return err
	}
	for _, p := range pairs {
		if err := l.negotiated(p.Key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

func value(pairs []text.Pair, key string) (string, bool) {
	for _, p := range pairs {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// authenticate is CHAP (RFC 7143 §12.1.3).
func (l *login) authenticate(pairs []text.Pair) error {
	if method, ok := value(pairs, "AuthMethod"); ok {
		switch {
		case method == "CHAP" && l.url.CHAP != nil:
			l.chap.chosen = true
			l.put("CHAP_A", chap.Offer)
		case method != "None":
			return fmt.Errorf("the target wants AuthMethod=%s; give user and secret of CHAP", clip(method))
		}
	}
	if a, ok := value(pairs, "CHAP_A"); ok {
		return l.answer(a, pairs)
	}
	if r, ok := value(pairs, "CHAP_R"); ok {
		return l.verify(r, pairs)
	}
	return nil
}

// answer answers the target's challenge, and challenges it in turn if it has to prove itself.
func (l *login) answer(a string, pairs []text.Pair) error {
	alg, ok := chap.Choose(a)
	i, _ := value(pairs, "CHAP_I")
	c, _ := value(pairs, "CHAP_C")
	id, okID := text.Number(i)
	challenge, okC := text.Binary(c)
	if !ok || !okID || id > 255 || !okC || len(challenge) == 0 || len(challenge) > chap.MaxChallenge || !l.chap.chosen {
		return errors.New("the target's CHAP challenge is malformed")
	}
	l.chap.alg, l.chap.answered = alg, true
	l.put("CHAP_N", l.url.CHAP.Name)
	l.put("CHAP_R", text.FormatBinary(alg.Respond(byte(id), l.url.CHAP.Secret, challenge)))
	if l.url.Mutual == nil {
		l.chap.proved = true
		return nil
	}
	l.chap.challenge = make([]byte, alg.Size())
	var random [1]byte
	_, _ = rand.Read(l.chap.challenge)
	_, _ = rand.Read(random[:])
	l.chap.id = random[0]
	if bytes.Equal(challenge, l.chap.challenge) {
		return errors.New("the target's CHAP challenge is our own")
	}
	l.put("CHAP_I", strconv.Itoa(int(l.chap.id)))
	l.put("CHAP_C", text.FormatBinary(l.chap.challenge))
	return nil
}

// verify checks the target's answer.
func (l *login) verify(r string, pairs []text.Pair) error {
	name, _ := value(pairs, "CHAP_N")
	got, ok := text.Binary(r)
	if l.chap.challenge == nil || !ok {
		return errors.New("the target answers a CHAP challenge that was not made")
	}
	want := l.chap.alg.Respond(l.chap.id, l.url.Mutual.Secret, l.chap.challenge)
	if subtle.ConstantTimeCompare(got, want) != 1 || name != l.url.Mutual.Name {
		return errors.New("the target does not prove who it is: its CHAP name or secret is not the one given (target_user, target_password)")
	}
	l.chap.proved = true
	return nil
}
