package auth

import "slices"

// MaxMessage is the length of the longest message that is taken.
const MaxMessage = 4096

// kind is what a message is: AUTH_TYPE in the upper byte, AUTH_ID in the lower one.
type kind uint16

const (
	kindNegotiate kind = 0x0000
	kindFailure2  kind = 0x00f0
	kindFailure1  kind = 0x00f1
	kindChallenge kind = 0x0101
	kindReply     kind = 0x0102
	kindSuccess1  kind = 0x0103
	kindSuccess2  kind = 0x0104
)

// Offsets and lengths (Base 2.0 figures 441 to 450).
const (
	offTID       = 4
	offSCC       = 6 // of Negotiate: secure channel concatenation
	offNAPD      = 7 // how many protocols it describes
	offHL        = 6 // of the others: length of hashes
	offHashID    = 8
	offDHGroup   = 9
	offValid     = 8 // CVALID, RVALID
	offDHLen     = 10
	offSeq       = 12
	headLen      = 16
	negotiateLen = 8
	protocolLen  = 64
	failureLen   = 8

	// Of a protocol.
	protocolDHHMACCHAP = 1
	offHashes          = 4
	offGroups          = 34
	listLen            = 30
)

// message is a message of at least 8 bytes: what they all begin with.
type message []byte

func (m message) kind() kind  { return kind(m[0])<<8 | kind(m[1]) }
func (m message) tid() uint16 { return le.Uint16(m[offTID:]) }

// head appends what all messages begin with, and so many zeroes that it has n bytes.
func head(k kind, tid uint16, n int) message {
	m := make(message, n)
	m[0], m[1] = byte(k>>8), byte(k)
	le.PutUint16(m[offTID:], tid)
	return m
}

// parse checks what all messages have.
func parse(b []byte) (message, bool) {
	if len(b) < negotiateLen || len(b) > MaxMessage {
		return nil, false
	}
	return b, true
}

// newNegotiate offers hash functions and groups, at most listLen of each.
func newNegotiate(tid uint16, hashes []Hash, groups []Group) []byte {
	m := head(kindNegotiate, tid, negotiateLen+protocolLen)
	m[offNAPD] = 1
	p := m[negotiateLen:]
	p[0], p[2], p[3] = protocolDHHMACCHAP, byte(len(hashes)), byte(len(groups))
	for i, h := range hashes {
		p[offHashes+i] = byte(h)
	}
	for i, g := range groups {
		p[offGroups+i] = byte(g)
	}
	return m
}

// offer is what Negotiate offers.
type offer struct {
	hashes []Hash
	groups []Group
}

// parseNegotiate reads the protocols of Negotiate; Reason 0: there is a good one.
func parseNegotiate(m message) (offer, Reason) {
	switch n := int(m[offNAPD]); {
	case len(m) != negotiateLen+n*protocolLen || n == 0:
		return offer{}, IncorrectPayload
	case m[offSCC] != 0:
		return offer{}, NoConcatenation
	}
	for p := range slices.Chunk(m[negotiateLen:], protocolLen) {
		if p[0] != protocolDHHMACCHAP {
			continue
		}
		if p[2] > listLen || p[3] > listLen {
			return offer{}, IncorrectPayload
		}
		var o offer
		for _, h := range p[offHashes:][:p[2]] {
			o.hashes = append(o.hashes, Hash(h))
		}
		for _, g := range p[offGroups:][:p[3]] {
			o.groups = append(o.groups, Group(g))
		}
		return o, 0
	}
	return offer{}, NoProtocol
}

// challenge is the message Challenge.
type challenge struct {
	hash   Hash
	group  Group
	seq    uint32 // S1
	c1     []byte
	public []byte // g^x
}

func (c *challenge) message(tid uint16) []byte {
	m := head(kindChallenge, tid, headLen)
	m[offHL], m[offHashID], m[offDHGroup] = byte(len(c.c1)), byte(c.hash), byte(c.group)
	le.PutUint16(m[offDHLen:], uint16(len(c.public)))
	le.PutUint32(m[offSeq:], c.seq)
	return append(append(m, c.c1...), c.public...)
}

func parseChallenge(m message) (challenge, bool) {
	if len(m) < headLen {
		return challenge{}, false
	}
	c := challenge{hash: Hash(m[offHashID]), group: Group(m[offDHGroup]), seq: le.Uint32(m[offSeq:])}
	n := int(m[offHL])
	// What comes from a controller may have zeroes behind it: it fills the buffer that it was given.
	if !c.hash.known() || !c.group.known() || n != c.hash.size() || int(le.Uint16(m[offDHLen:])) != c.group.size() || len(m) < headLen+n+c.group.size() {
		return challenge{}, false
	}
	c.c1, c.public = m[headLen:headLen+n], m[headLen+n:][:c.group.size()]
	return c, true
}

// reply is the message Reply.
type reply struct {
	r1     []byte
	c2     []byte // there even if mutual is false
	mutual bool   // the controller is to prove itself
	seq    uint32 // S2
	public []byte // g^y
}

func (r *reply) message(tid uint16) []byte {
	m := head(kindReply, tid, headLen)
	m[offHL] = byte(len(r.r1))
	if r.mutual {
		m[offValid] = 1
	}
	le.PutUint16(m[offDHLen:], uint16(len(r.public)))
	le.PutUint32(m[offSeq:], r.seq)
	return append(append(append(m, r.r1...), r.c2...), r.public...)
}

// parseReply reads a Reply to a challenge with that hash and group.
func parseReply(m message, h Hash, g Group) (reply, bool) {
	n := h.size()
	if len(m) != headLen+2*n+g.size() || int(m[offHL]) != n || int(le.Uint16(m[offDHLen:])) != g.size() || m[offValid] > 1 {
		return reply{}, false
	}
	return reply{
		mutual: m[offValid] == 1, seq: le.Uint32(m[offSeq:]),
		r1: m[headLen:][:n], c2: m[headLen+n:][:n], public: m[headLen+2*n:],
	}, true
}

// newSuccess1 says that the host has proved itself; r2, unless it is nil, proves the controller, with hash values of n bytes.
func newSuccess1(tid uint16, n int, r2 []byte) []byte {
	m := head(kindSuccess1, tid, headLen)
	m[offHL] = byte(n)
	if r2 == nil {
		return append(m, make([]byte, n)...)
	}
	m[offValid] = 1
	return append(m, r2...)
}

// parseSuccess1 returns R2, or nil if there is none.
func parseSuccess1(m message, n int) (r2 []byte, ok bool) {
	if len(m) < headLen+n || int(m[offHL]) != n || m[offValid] > 1 {
		return nil, false
	}
	if m[offValid] == 1 {
		r2 = m[headLen:][:n]
	}
	return r2, true
}

func newSuccess2(tid uint16) []byte { return head(kindSuccess2, tid, headLen) }

func newFailure(k kind, tid uint16, r Reason) []byte {
	m := head(k, tid, failureLen)
	m[6], m[7] = reasonCodeOfFailed, byte(r)
	return m
}
