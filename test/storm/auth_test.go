package storm

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

const (
	hostSecret  = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	ctrlSecret  = "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:"
	wrongSecret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"
)

// authStorm is hosts that have no secret, or a wrong one, and call themselves by the name of one that has.
type authStorm struct {
	*nvmeRig
	good auth.Rules
}

// TestAuthStorm attacks a daemon whose hosts have to prove themselves (DH-HMAC-CHAP), with messages of wrong lengths, in a wrong order,
// of other transactions, with what was said before, and with more of them than it can compute. Nobody gets in. The witness, which
// knows the secret, proves itself again meanwhile.
func TestAuthStorm(t *testing.T) {
	atLength(t)
	rig := startNVMe(t, `, auth: {dhchap_secret: "`+hostSecret+`", dhchap_ctrl_secret: "`+ctrlSecret+`", dhchap_groups: [ffdhe2048]}`,
		host.Options{HostNQN: nvmetest.HostNQN, Secret: secretOf(t, hostSecret), ControllerSecret: secretOf(t, ctrlSecret)})
	s := &authStorm{rig, auth.Rules{Host: secretOf(t, hostSecret), Groups: []auth.Group{auth.FFDHE2048}}}
	s.endures([]assault{
		{"lengths", 40, s.lengths},
		{"order", 40, s.order},
		{"other transactions, and what was said before", 40, s.replayed},
		{"wrong secrets and wrong numbers", 40, s.wrong},
		{"commands without end", 40, s.commandFlood},
		{"more hosts than there is room for", 60, s.flood},
		{"hosts that leave in the middle", 60, s.leaving},
		{"a queue for somebody else's controller", 40, s.foreign},
	}, func(a assault) {
		if err := s.host.Authenticate(t.Context()); err != nil {
			t.Errorf("%s: who knows the secret cannot prove it any more: %v", a.name, err)
		}
	})
}

func secretOf(t *testing.T, text string) *auth.Secret {
	t.Helper()
	s, err := auth.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// stranger connects an admin queue, which wants a proof.
func (s *authStorm) stranger() *nvmetest.Host {
	s.t.Helper()
	h := nvmetest.Dial(s.t, s.addr, pdu.IC{})
	e, _ := h.Must(nvmetest.ConnectCommand(0, 31, 0, 0), nvmetest.ConnectData(nqn, nvme.DynamicController), 0)
	if e.DW0&nvme.ConnectATR == 0 {
		s.t.Fatalf("Connect asks for nothing: %#x", e.DW0)
	}
	h.ID, h.Subsystem = uint16(e.DW0), nqn
	return h
}

func authCommand(ft nvme.FCType, n int) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(ft), DWords: [6]uint32{nvme.AuthDWord10, uint32(n)}}
}

// say sends a message.
func (s *authStorm) say(h *nvmetest.Host, m []byte) {
	s.t.Helper()
	h.Must(authCommand(nvme.AuthSend, len(m)), m, 0)
}

// room is how much a host has for a message.
const room = 2048

// hear fetches one.
func (s *authStorm) hear(h *nvmetest.Host) []byte {
	s.t.Helper()
	_, m := h.Must(authCommand(nvme.AuthReceive, room), nil, room)
	return m
}

// refused wants the controller to say why it does not believe the host, and to end the connection.
func (s *authStorm) refused(name string, h *nvmetest.Host, why ...auth.Reason) {
	s.t.Helper()
	const failure1 = 0x00f1
	m := s.hear(h)
	if k := binary.BigEndian.Uint16(m); k != failure1 || !slices.Contains(why, auth.Reason(m[7])) {
		s.t.Errorf("%s: % x, want a failure with one of %d", name, m[:8], why)
		_ = h.C.Close()
		return
	}
	h.Ended()
	_ = h.C.Close()
}

// Where messages have their parts (Base 2.0 figures 441 to 450), of SHA-512 and ffdhe2048.
const (
	transaction = 5 // of our hosts
	atTID       = 4
	atValues    = 16
	hashLen     = 64
	publicLen   = 256
)

// negotiate begins, and returns the host's side and its message.
func (s *authStorm) negotiate(r auth.Rules) (*auth.Host, []byte) {
	return auth.NewHost(auth.Names{Host: nvmetest.HostNQN, Subsystem: nqn}, r, transaction)
}

// reply goes on to the answer to the challenge, which is not sent.
func (s *authStorm) reply(h *nvmetest.Host, r auth.Rules) (side *auth.Host, challenge, reply []byte) {
	s.t.Helper()
	side, m := s.negotiate(r)
	s.say(h, m)
	challenge = s.hear(h)
	reply, err := side.Next(slices.Clone(challenge[:atValues+hashLen+publicLen]))
	if err != nil {
		s.t.Fatal(err)
	}
	return side, challenge, reply
}

// prove is a whole authentication.
func (s *authStorm) prove(h *nvmetest.Host) {
	s.t.Helper()
	side, _, m := s.reply(h, s.good)
	s.say(h, m)
	if _, err := side.Next(s.hear(h)); err != nil || !side.Done() {
		s.t.Fatalf("who knows the secret: %v", err)
	}
}

// lengths has the lengths of commands and messages wrong.
func (s *authStorm) lengths() {
	_, m := s.negotiate(s.good)
	for _, n := range []int{1, 7, 8, 9, len(m) - 1} {
		h := s.stranger()
		s.say(h, m[:n])
		s.refused("a part of Negotiate", h, auth.IncorrectPayload)
	}
	for _, n := range []int{1, 7, 8, atValues, atValues + hashLen, -1, 700} {
		h := s.stranger()
		_, _, m := s.reply(h, s.good)
		switch n {
		case -1:
			m = m[:len(m)-1]
		case 700:
			m = append(m, make([]byte, n)...)
		default:
			m = m[:n]
		}
		s.say(h, m)
		s.refused("a Reply of another length", h, auth.IncorrectPayload)
	}
	for _, x := range []struct{ at, v byte }{{6, 0}, {6, 255}, {10, 1}, {11, 0}, {11, 255}} { // the lengths that it says
		h := s.stranger()
		_, _, m := s.reply(h, s.good)
		m[x.at] = x.v
		s.say(h, m)
		s.refused("a Reply that says other lengths", h, auth.IncorrectPayload)
	}
	h := s.stranger()
	for range 200 {
		for _, c := range []struct {
			said, sent int
			want       nvme.Status
		}{{0, 8, nvme.InvalidField}, {auth.MaxMessage + 4, auth.MaxMessage + 4, nvme.InvalidField}, {1 << 30, 8, nvme.InvalidField}, {16, 8, nvme.DataSGLLength}} {
			if e, _ := h.Do(authCommand(nvme.AuthSend, c.said), make([]byte, c.sent), 0); e.Status != c.want|nvme.DNR {
				s.t.Fatalf("%d bytes that are %d: %v", c.said, c.sent, e.Status)
			}
		}
	}
	s.prove(h) // nothing has happened
	_ = h.C.Close()
}

// order has messages come when it is not their turn.
func (s *authStorm) order() {
	type step = func(h *nvmetest.Host, side *auth.Host, negotiate []byte)
	send := func(kind uint16) step {
		return func(h *nvmetest.Host, _ *auth.Host, _ []byte) {
			m := make([]byte, atValues)
			binary.BigEndian.PutUint16(m, kind)
			m[atTID] = transaction
			s.say(h, m)
		}
	}
	begin := func(h *nvmetest.Host, _ *auth.Host, m []byte) { s.say(h, m) }
	fetch := func(h *nvmetest.Host, _ *auth.Host, _ []byte) { s.hear(h) }
	for name, steps := range map[string][]step{
		"Reply at once":                     {send(0x0102)},
		"Success2 at once":                  {send(0x0104)},
		"a controller's message":            {send(0x0101)},
		"Success1 from a host":              {send(0x0103)},
		"no message":                        {send(0x1234)},
		"Negotiate twice":                   {begin, begin},
		"Negotiate for an answer":           {begin, fetch, begin},
		"Success2 for an answer":            {begin, fetch, send(0x0104)},
		"Success1 for an answer":            {begin, fetch, send(0x0103)},
		"an answer that nobody listened to": {begin, send(0x0102)},
	} {
		h := s.stranger()
		side, m := s.negotiate(s.good)
		for _, do := range steps {
			do(h, side, m)
		}
		s.refused(name, h, auth.UnexpectedMessage)
	}
}

// replayed has messages of other transactions, and those of somebody who has proved himself before.
func (s *authStorm) replayed() {
	h := s.stranger()
	_, _, heard := s.reply(h, s.good)
	s.say(h, heard) // good
	s.hear(h)
	_ = h.C.Close()
	for range 20 {
		h = s.stranger()
		_, _, m := s.reply(h, s.good)
		m[atTID]++
		s.say(h, m)
		s.refused("a Reply of another transaction", h, auth.IncorrectPayload)

		h = s.stranger()
		s.reply(h, s.good)
		s.say(h, heard)
		s.refused("a Reply that was right before", h, auth.Failed)

		h = s.stranger()
		_, challenge, m := s.reply(h, s.good)
		copy(m[atValues+hashLen:], challenge[atValues:][:hashLen]) // C2 is C1
		s.say(h, m)
		s.refused("the controller's challenge", h, auth.Failed)
	}
}

// wrong has other secrets, and public numbers that make what both sides share one of a few.
func (s *authStorm) wrong() {
	bad := s.good
	bad.Host = secretOf(s.t, wrongSecret)
	for range 20 {
		h := s.stranger()
		_, _, m := s.reply(h, bad)
		s.say(h, m)
		s.refused("a wrong secret", h, auth.Failed)
	}
	zero, one, most := make([]byte, publicLen), make([]byte, publicLen), make([]byte, publicLen)
	one[publicLen-1] = 1
	for i := range most {
		most[i] = 255
	}
	for _, public := range [][]byte{zero, one, most} {
		h := s.stranger()
		_, _, m := s.reply(h, s.good)
		copy(m[atValues+2*hashLen:], public)
		s.say(h, m)
		s.refused("a public number that is none", h, auth.IncorrectPayload)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		h := s.stranger()
		m := make([]byte, 1+r.IntN(600))
		for i := range m {
			m[i] = byte(r.Uint32())
		}
		s.say(h, m)
		s.refused("garbage", h, auth.IncorrectPayload, auth.UnexpectedMessage)
	}
}

// commandFlood asks for messages that there are none of, again and again, and sends many at once.
func (s *authStorm) commandFlood() {
	h := s.stranger()
	for range 2000 {
		if e, _ := h.Do(authCommand(nvme.AuthReceive, room), nil, room); e.Status != nvme.CommandSequence|nvme.DNR {
			s.t.Fatalf("a message for nothing: %v", e.Status)
		}
	}
	_ = h.C.Close()
	_, m := s.negotiate(s.good)
	for range 20 {
		h := s.stranger()
		for range 30 {
			h.Start(authCommand(nvme.AuthSend, len(m)), m, 0)
		}
		taken := 0
		for range 30 {
			b, _ := h.PDU()
			switch e := nvme.ParseCQE(b[pdu.CommonLen:]); e.Status {
			case nvme.Success:
				taken++
			case nvme.CommandSequence | nvme.DNR:
			default:
				s.t.Fatalf("one of many: %v", e.Status)
			}
		}
		if taken == 0 {
			s.t.Error("none of many messages is taken")
		}
		_ = h.C.Close()
	}
}

// flood has the controller compute for hosts that stay, more than there may be, and for one that fails as often as it can.
func (s *authStorm) flood() {
	_, m := s.negotiate(s.good)
	var open []*nvmetest.Host
	for range 400 {
		h := s.stranger()
		h.Start(authCommand(nvme.AuthSend, len(m)), m, 0)
		open = append(open, h)
	}
	for _, h := range open {
		_ = h.C.Close()
	}
}

// leaving has hosts go while the controller computes, and in the middle of a message.
func (s *authStorm) leaving() {
	_, m := s.negotiate(s.good)
	for i := range 60 {
		h := s.stranger()
		switch i % 3 {
		case 0:
			h.Start(authCommand(nvme.AuthSend, len(m)), m, 0)
		case 1:
			_, _, m := s.reply(h, s.good)
			h.Start(authCommand(nvme.AuthSend, len(m)), m, 0)
		default:
			c := authCommand(nvme.AuthSend, len(m))
			c.SGL = nvme.SGL{Type: nvme.SGLInCapsule, Length: uint32(len(m))}
			h.Send(h.Capsule(&c, m)[:pdu.CapsuleCmdLen+10])
		}
		_ = h.C.Close()
	}
}

// foreign makes an I/O queue of a controller whose host has proved itself, and fails to do so for the queue.
func (s *authStorm) foreign() {
	admin := s.stranger()
	s.prove(admin)
	admin.Must(nvmetest.PropertySet(nvme.PropCC, 0x460001), nil, 0)
	for range 20 {
		h := nvmetest.Dial(s.t, s.addr, pdu.IC{})
		e, _ := h.Do(nvmetest.ConnectCommand(1, 31, 0, 0), nvmetest.ConnectData(nqn, admin.ID), 0)
		if e.Status != nvme.Success || e.DW0&nvme.ConnectATR == 0 {
			s.t.Fatal("an I/O queue needs no proof")
		}
		if e, _ := h.Do(nvmetest.RW(nvme.Read, 0, 1), nil, 512); e.Status != nvme.AuthenticationRequired|nvme.DNR {
			s.t.Fatalf("who has proved nothing reads: %v", e.Status)
		}
		bad := s.good
		bad.Host = secretOf(s.t, wrongSecret)
		_, _, m := s.reply(h, bad)
		s.say(h, m)
		s.refused("a wrong secret", h, auth.Failed)
		admin.Must(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil, 0)
	}
	_ = admin.C.Close()
}
