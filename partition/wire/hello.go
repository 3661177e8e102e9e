package wire

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Lengths in octets.
const (
	NonceLen      = 32
	ProofLen      = 32
	MaxName       = 223 // of a client, as of an iSCSI name (RFC 7143 §4.2.7.1)
	MaxPartition  = 255 // of a partition: STORE/PARTITION, or uuid:UUID
	helloLen      = 48
	challengeLen  = 40
	attachLen     = 64
	attachedLen   = 144
	MaxGreeting   = attachLen + MaxPartition // the longest message before a handle is there
	MaxAttached   = attachedLen + MaxPartition
	attachProof   = 32
	attachedProof = 96
)

// Nonce is a number used once.
type Nonce [NonceLen]byte

// Proof shows that its sender knows a secret.
type Proof [ProofLen]byte

// HelloMessage is the first message of a client.
//
//	0   b1, 1, version (2)
//	4   features (4): 0
//	8   nonce (32)
//	28  length of the name (1), 0 (7)
//	30  name: empty for one who is anonymous
type HelloMessage struct {
	Version uint16
	Nonce   Nonce
	Name    string // of the client
}

// AppendTo appends the message. The name has at most MaxName octets.
func (m *HelloMessage) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(Hello))
	b = be.AppendUint16(b, m.Version)
	b = be.AppendUint32(b, 0)
	b = append(b, m.Nonce[:]...)
	b = append(b, byte(len(m.Name)), 0, 0, 0, 0, 0, 0, 0)
	return append(b, m.Name...)
}

// ParseHello reads the message.
func ParseHello(b []byte) (m HelloMessage, err error) {
	if err := is(b, byte(Hello), helloLen); err != nil {
		return m, err
	}
	n := int(b[40])
	switch {
	case n > MaxName:
		return m, errName
	case len(b) != helloLen+n:
		return m, errLength
	case !zero(b[4:8]) || !zero(b[41:48]):
		return m, errReserved
	}
	return HelloMessage{Version: be.Uint16(b[2:]), Nonce: Nonce(b[8:40]), Name: string(b[helloLen:])}, nil
}

// ChallengeMessage answers HELLO.
//
//	0   b1, 81, status (2)
//	4   features (4): 0
//	8   nonce (32)
type ChallengeMessage struct {
	Status Status // Malformed: the version is not known
	Nonce  Nonce
}

// AppendTo appends the message.
func (m *ChallengeMessage) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(Hello)|answer)
	b = be.AppendUint16(b, uint16(m.Status))
	b = be.AppendUint32(b, 0)
	return append(b, m.Nonce[:]...)
}

// ParseChallenge reads the message.
func ParseChallenge(b []byte) (m ChallengeMessage, err error) {
	if err := is(b, byte(Hello)|answer, challengeLen); err != nil {
		return m, err
	}
	m = ChallengeMessage{Status: Status(be.Uint16(b[2:])), Nonce: Nonce(b[8:40])}
	switch {
	case len(b) != challengeLen:
		return m, errLength
	case !zero(b[4:8]):
		return m, errReserved
	case m.Status >= statuses:
		return m, errStatus
	}
	return m, nil
}

// AttachMessage asks for the use of a partition.
//
//	0   b1, 2, order (2): 1 free start, 2 free finish
//	4   tag (4)
//	8   rights wanted (4): 0 for all that there are. 80, besides or alone, is the wish to be the only one of this name who changes octets
//	c   length of the partition's name (1), 0 (3)
//	10  session that goes on (8): 0 for a new one
//	18  0 (8)
//	20  proof (32): zero for one who is anonymous
//	40  partition: STORE/PARTITION or uuid:UUID; empty proves the name for LIST and INFO, and gives no handle
type AttachMessage struct {
	Order     uint16
	Tag       uint32
	Rights    uint32
	Session   uint64
	Proof     Proof
	Partition string
}

// AppendTo appends the message. The partition's name has at most MaxPartition octets.
func (m *AttachMessage) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(Attach))
	b = be.AppendUint16(b, m.Order)
	b = be.AppendUint32(b, m.Tag)
	b = be.AppendUint32(b, m.Rights)
	b = append(b, byte(len(m.Partition)), 0, 0, 0)
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint64(b, 0)
	b = append(b, m.Proof[:]...)
	return append(b, m.Partition...)
}

// ParseAttach reads the message.
func ParseAttach(b []byte) (m AttachMessage, err error) {
	if err := is(b, byte(Attach), attachLen); err != nil {
		return m, err
	}
	switch {
	case len(b) != attachLen+int(b[12]):
		return m, errLength
	case !zero(b[13:16]) || !zero(b[24:32]):
		return m, errReserved
	case be.Uint16(b[2:]) > 3:
		return m, errFlags
	case be.Uint32(b[8:]) > 0xff: // or rights of which none exists would be none, which stands for all
		return m, errRights
	}
	return AttachMessage{
		Order: be.Uint16(b[2:]), Tag: be.Uint32(b[4:]), Rights: be.Uint32(b[8:]), Session: be.Uint64(b[16:]),
		Proof: Proof(b[attachProof:attachLen]), Partition: string(b[attachLen:]),
	}, nil
}

// AttachedMessage answers ATTACH.
//
//	0   b1, 82, status (2)
//	4   tag (4)
//	8   handle (4)
//	c   rights granted (4)
//	10  size in octets (8)
//	18  unit in octets (4)
//	1c  durability (1): 0 none, 1 process, 2 medium; length of the name (1); inline limit (2)
//	20  direct STag (4): that of the partition, for RDMA Read and Write as far as the rights go; 0: there is none
//	24  credits (4)
//	28  direct tagged offset (8): of the partition's first octet; 0 without an STag
//	30  number of the last write (8); its upper 16 bits are another generation after a restart
//	38  watermark (8)
//	40  session (8): who knows it can go on with it on another connection
//	48  longest READ or WRITE (4)
//	4c  aging time in milliseconds (4)
//	50  UUID (16): zero if the partition has none
//	60  proof of the service (32): zero if the client is anonymous
//	80  flags (4): 1: the session goes on, and requests of it that come with Again are done once
//	84  0 (12)
//	90  name: STORE/PARTITION
type AttachedMessage struct {
	Status     Status
	Tag        uint32
	Handle     uint32
	Rights     uint32
	Size       uint64
	Unit       uint32
	Durability uint8
	Inline     uint16
	STag       uint32
	Credits    uint32
	TO         uint64
	Sequence   uint64
	Durable    uint64
	Session    uint64
	MaxLength  uint32
	AgingMS    uint32
	UUID       [16]byte
	Proof      Proof
	Known      bool // the session goes on
	Name       string
}

// AppendTo appends the message. The name has at most MaxPartition octets.
func (m *AttachedMessage) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(Attach)|answer)
	b = be.AppendUint16(b, uint16(m.Status))
	b = be.AppendUint32(b, m.Tag)
	b = be.AppendUint32(b, m.Handle)
	b = be.AppendUint32(b, m.Rights)
	b = be.AppendUint64(b, m.Size)
	b = be.AppendUint32(b, m.Unit)
	b = append(b, m.Durability, byte(len(m.Name)))
	b = be.AppendUint16(b, m.Inline)
	b = be.AppendUint32(b, m.STag)
	b = be.AppendUint32(b, m.Credits)
	b = be.AppendUint64(b, m.TO)
	b = be.AppendUint64(b, m.Sequence)
	b = be.AppendUint64(b, m.Durable)
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint32(b, m.MaxLength)
	b = be.AppendUint32(b, m.AgingMS)
	b = append(b, m.UUID[:]...)
	b = append(b, m.Proof[:]...)
	known := uint32(0)
	if m.Known {
		known = 1
	}
	b = be.AppendUint32(b, known)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return append(b, m.Name...)
}

// ParseAttached reads the message.
func ParseAttached(b []byte) (m AttachedMessage, err error) {
	if err := is(b, byte(Attach)|answer, attachedLen); err != nil {
		return m, err
	}
	m = AttachedMessage{
		Status: Status(be.Uint16(b[2:])), Tag: be.Uint32(b[4:]), Handle: be.Uint32(b[8:]), Rights: be.Uint32(b[12:]),
		Size: be.Uint64(b[16:]), Unit: be.Uint32(b[24:]), Durability: b[28], Inline: be.Uint16(b[30:]),
		STag: be.Uint32(b[32:]), Credits: be.Uint32(b[36:]), TO: be.Uint64(b[40:]), Sequence: be.Uint64(b[48:]), Durable: be.Uint64(b[56:]), Session: be.Uint64(b[64:]),
		MaxLength: be.Uint32(b[72:]), AgingMS: be.Uint32(b[76:]), UUID: [16]byte(b[80:96]),
		Proof: Proof(b[attachedProof : attachedProof+ProofLen]), Known: b[131] == 1, Name: string(b[attachedLen:]),
	}
	switch {
	case len(m.Name) != int(b[29]):
		return m, errLength
	case m.STag == 0 && m.TO != 0 || !zero(b[128:131]) || b[131] > 1 || !zero(b[132:144]):
		return m, errReserved
	case m.Status >= statuses || m.Durability > 2:
		return m, errStatus
	case !printable(m.Name):
		return m, errText
	}
	return m, nil
}

// Greeting is what both ends know before a proof is made. It makes a proof good for one connection only.
type Greeting struct {
	Name            string // of the client
	Client, Service Nonce
}

// ClientProof is the proof that an ATTACH has if the client knows secret.
func (g *Greeting) ClientProof(secret []byte, m *AttachMessage) Proof {
	x := *m
	x.Proof = Proof{}
	return g.proof(secret, "osp client", x.AppendTo(nil))
}

// ServiceProof is the proof that an ATTACHED has if the service knows secret.
func (g *Greeting) ServiceProof(secret []byte, m *AttachedMessage) Proof {
	x := *m
	x.Proof = Proof{}
	return g.proof(secret, "osp server", x.AppendTo(nil))
}

// proof is HMAC-SHA256(secret, role, nonces, length of the name, name, message without its proof).
func (g *Greeting) proof(secret []byte, role string, message []byte) (p Proof) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(role))
	h.Write(g.Client[:])
	h.Write(g.Service[:])
	h.Write([]byte{byte(len(g.Name))})
	h.Write([]byte(g.Name))
	h.Write(message)
	h.Sum(p[:0])
	return p
}

// Equal compares proofs in a time that does not depend on them.
func (p *Proof) Equal(q *Proof) bool { return hmac.Equal(p[:], q[:]) }
