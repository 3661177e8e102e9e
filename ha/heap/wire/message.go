package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// Private is the private data with which a connection for objects is asked for.
const Private = "OSO1"

// Version is that of the messages.
const Version = 1

// Op is what a message is about.
type Op uint8

// The messages of a client. The service answers each with one of the same Op. A connection begins with Hello and Prove; then
// there is one request at a time.
const (
	Hello  Op = 1 + iota // who the client is; the answer has the service's nonce
	Prove                // proof of it; the answer says who is primary
	Join                 // makes the client's ID known
	Insert               // the answer has the pointer
	Update               // the answer has the pointer, which is another one if the object has outgrown its place
	Read                 // the answer has the object
	Delete
	opEnd
)

// Ops is one more than the greatest Op, Statuses one more than the greatest Status.
const (
	Ops      = int(opEnd)
	Statuses = int(statusEnd)
)

var opNames = [...]string{"", "hello", "prove", "join", "insert", "update", "read", "delete"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

// Status says how a request has ended.
type Status uint8

// How requests end. Only OK has changed anything, except Moved, after which nobody knows.
const (
	OK        Status = iota
	Moved            // this node is not the primary, or not any more
	Key              // the pointer is of another heap
	Range            // the pointer names no place of the heap
	Stale            // the object was deleted; its place may have another one
	Changing         // the place is being changed, or damaged
	Full             // there is no place for the object
	TooLong          // the object is longer than MaxObject
	Unknown          // the client ID is not known, or not any more: Join
	Old              // the number is less than that of a request that the client has sent later
	Denied           // the client has not proved its name
	Malformed        // the message cannot be understood
	Busy             // the client has its share of the connections
	statusEnd
)

var statusNames = [...]string{
	"good", "moved", "key", "range", "stale", "changing", "full", "too long", "unknown", "old", "denied", "malformed", "busy",
}

// Name is a word or two for the status, in metrics.
func (s Status) Name() string { return statusNames[s] }

var statusTexts = [...]string{
	"good", "this node is not the primary", "the pointer is of another heap", "the pointer names no place of the heap",
	"the object was deleted", "the place is damaged, or is being changed", "the heap is full", "the object is too long",
	"the client is not known any more", "the request is older than the last one of the client", "the client has not proved its name",
	"the message cannot be understood", "the client has its share of the connections: others have to be closed first",
}

func (s Status) String() string {
	if int(s) < len(statusTexts) {
		return statusTexts[s]
	}
	return "an unknown status"
}

// Message is a message of either side.
//
//	 0  operation   1
//	 1  status      1  of answers
//	 2  zero        2
//	 4  length      4  octets that follow the pointer
//	 8  client      8  its ID
//	16  number      8  of the request
//	24  pointer    16
//	40  data
type Message struct {
	Op      Op
	Status  Status
	Client  uint64
	Number  uint64
	Pointer Pointer
	Data    []byte // aliases what was parsed
}

// MessageLen is the length of a message without data, MaxMessage that of the longest, in octets.
const (
	MessageLen = 40
	MaxMessage = MessageLen + MaxObject
)

// AppendTo appends the message.
func (m *Message) AppendTo(b []byte) []byte {
	b = append(b, byte(m.Op), byte(m.Status), 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Data)))
	b = binary.BigEndian.AppendUint64(b, m.Client)
	b = binary.BigEndian.AppendUint64(b, m.Number)
	b = m.Pointer.AppendTo(b)
	return append(b, m.Data...)
}

var (
	errShort  = errors.New("objects: a message that ends in the middle")
	errFields = errors.New("objects: a message with fields that are not known")
)

// Parse reads a message.
func Parse(b []byte) (m Message, err error) {
	switch {
	case len(b) < MessageLen || uint64(binary.BigEndian.Uint32(b[4:])) != uint64(len(b)-MessageLen):
		return m, errShort
	case b[0] == 0 || Op(b[0]) >= opEnd || Status(b[1]) >= statusEnd || b[2] != 0 || b[3] != 0:
		return m, errFields
	}
	return Message{
		Op: Op(b[0]), Status: Status(b[1]), Client: binary.BigEndian.Uint64(b[8:]), Number: binary.BigEndian.Uint64(b[16:]),
		Pointer: PointerOf(b[24:]), Data: b[MessageLen:],
	}, nil
}

// Nonce is a number that is used once.
type Nonce [16]byte

// Greeting is what both ends have said before the proofs.
type Greeting struct {
	Name            string // of the client; empty: none
	Client, Service Nonce
}

// Proof shows that an end knows the secret of the client.
type Proof [sha256.Size]byte

// Equal takes the same time whatever the proofs are.
func (p *Proof) Equal(q *Proof) bool { return hmac.Equal(p[:], q[:]) }

// Proofs returns the proof of the client, and that of the service.
func (g *Greeting) Proofs(secret []byte) (client, service Proof) {
	for _, side := range []struct {
		label string
		to    *Proof
	}{{"oneshot objects client", &client}, {"oneshot objects service", &service}} {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(side.label))
		h.Write([]byte{byte(len(g.Name))})
		h.Write([]byte(g.Name))
		h.Write(g.Client[:])
		h.Write(g.Service[:])
		h.Sum(side.to[:0])
	}
	return client, service
}

// MaxName bounds the name of a client, MaxNodes the nodes that a Welcome names.
const (
	MaxName  = 223
	MaxNodes = 16
)

// HelloData returns the data of a Hello: version, nonce, and name.
func HelloData(name string, n Nonce) []byte {
	return append(append([]byte{Version}, n[:]...), name...)
}

// ParseHello reads the data of a Hello. ok is false if the version is another one.
func ParseHello(b []byte) (name string, n Nonce, ok bool) {
	if len(b) < 1+len(n) || len(b) > 1+len(n)+MaxName || b[0] != Version {
		return "", n, false
	}
	copy(n[:], b[1:])
	return string(b[1+len(n):]), n, true
}

// Welcome is the data of the answer to Prove.
type Welcome struct {
	Proof   Proof
	Primary bool     // this node serves the heap
	Base    uint64   // of the memory that Pointers point to: where it begins, if Primary
	Length  uint64   // octets of it
	Key     uint32   // its STag
	Nodes   []string // HOST:PORT of the other nodes, the primary first if it is known
}

const welcomeLen = sha256.Size + 24

// AppendTo appends the welcome: proof, base, length, key, primary (1 octet), zero (2), nodes (1), and for each its length (1) and
// its address.
func (w *Welcome) AppendTo(b []byte) []byte {
	b = append(b, w.Proof[:]...)
	b = binary.BigEndian.AppendUint64(b, w.Base)
	b = binary.BigEndian.AppendUint64(b, w.Length)
	b = binary.BigEndian.AppendUint32(b, w.Key)
	primary := byte(0)
	if w.Primary {
		primary = 1
	}
	b = append(b, primary, 0, 0, byte(len(w.Nodes)))
	for _, n := range w.Nodes {
		b = append(append(b, byte(len(n))), n...)
	}
	return b
}

// ParseWelcome reads what AppendTo writes.
func ParseWelcome(b []byte) (w Welcome, err error) {
	if len(b) < welcomeLen {
		return w, errShort
	}
	copy(w.Proof[:], b)
	at := b[sha256.Size:]
	w.Base, w.Length, w.Key = binary.BigEndian.Uint64(at), binary.BigEndian.Uint64(at[8:]), binary.BigEndian.Uint32(at[16:])
	w.Primary = at[20] == 1
	if at[20] > 1 || at[21] != 0 || at[22] != 0 || at[23] > MaxNodes {
		return w, errFields
	}
	rest := at[24:]
	for range at[23] {
		if len(rest) == 0 || len(rest)-1 < int(rest[0]) {
			return w, errShort
		}
		w.Nodes = append(w.Nodes, string(rest[1:1+rest[0]]))
		rest = rest[1+rest[0]:]
	}
	if len(rest) != 0 {
		return w, errFields
	}
	return w, nil
}
