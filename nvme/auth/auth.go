// Package auth is DH-HMAC-CHAP, by which a host of NVMe over Fabrics and a controller prove to each other that they know a
// secret (NVM Express Base Specification 2.0 §8.13.5): secrets, messages, and both sides as step functions. It is a
// leaf that nvmf and the initiator share.
//
//	Host                                     Controller
//	Negotiate ── hashes, groups ──────────►
//	          ◄────────── challenge C1, g^x ─ Challenge
//	Reply ───── R1, g^y, challenge C2 ────►
//	          ◄──────────────────────── R2 ─ Success1
//	Success2 ──── if R2 was asked for ────►
//
// Either side ends it with Failure1 (the controller's) or Failure2 (the host's).
package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
)

var le = binary.LittleEndian

// Hash is a hash function.
type Hash uint8

// Hash functions (Base 2.0 figure 446).
const (
	SHA256 Hash = 1
	SHA384 Hash = 2
	SHA512 Hash = 3
)

var hashes = map[Hash]struct {
	name string
	new  func() hash.Hash
}{
	SHA256: {"sha256", sha256.New}, SHA384: {"sha384", sha512.New384}, SHA512: {"sha512", sha512.New},
}

// Hashes are all there are, the strongest first.
var Hashes = []Hash{SHA512, SHA384, SHA256}

// String returns the name in configurations.
func (h Hash) String() string { return hashes[h].name }

// known reports whether there is such a function.
func (h Hash) known() bool { return slices.Contains(Hashes, h) }

// size is the length of its values in bytes.
func (h Hash) size() int { return hashes[h].new().Size() }

func (h Hash) sum(b []byte) []byte {
	d := hashes[h].new()
	d.Write(b)
	return d.Sum(nil)
}

func (h Hash) hmac(key []byte, parts ...[]byte) []byte {
	d := hmac.New(hashes[h].new, key)
	for _, p := range parts {
		d.Write(p)
	}
	return d.Sum(nil)
}

// Reason says why an authentication has failed (Base 2.0 figure 450).
type Reason uint8

// Reasons.
const (
	Failed             Reason = 1 // a response is wrong, or there is no secret
	NoProtocol         Reason = 2
	NoConcatenation    Reason = 3 // of a secure channel
	NoHash             Reason = 4
	NoGroup            Reason = 5
	IncorrectPayload   Reason = 6
	UnexpectedMessage  Reason = 7
	reasonCodeOfFailed        = 1 // RCODE of all of them
)

var reasons = map[Reason]string{
	Failed: "the response is wrong", NoProtocol: "no protocol that both sides know", NoConcatenation: "a secure channel was asked for, or not",
	NoHash: "no hash function that both sides allow", NoGroup: "no DH group that both sides allow", IncorrectPayload: "a message that breaks the rules",
	UnexpectedMessage: "a message out of turn",
}

// String says it in words.
func (r Reason) String() string {
	if text := reasons[r]; text != "" {
		return text
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Names are the two who authenticate.
type Names struct{ Host, Subsystem string }

// response is what proves the knowledge of a key: R1 of the host, and R2 of the controller (Base 2.0 §8.13.5.4, §8.13.5.5).
func (h Hash) response(role string, key, challenge []byte, seq uint32, tid uint16, prover, other string) []byte {
	const noSecureChannel = 0
	var numbers [7]byte
	le.PutUint32(numbers[:], seq)
	le.PutUint16(numbers[4:], tid)
	numbers[6] = noSecureChannel
	return h.hmac(key, challenge, numbers[:], []byte(role), []byte(prover), []byte{0}, []byte(other))
}

func (h Hash) ofHost(key, challenge []byte, seq uint32, tid uint16, n Names) []byte {
	return h.response("HostHost", key, challenge, seq, tid, n.Host, n.Subsystem)
}

func (h Hash) ofController(key, challenge []byte, seq uint32, tid uint16, n Names) []byte {
	return h.response("Controller", key, challenge, seq, tid, n.Subsystem, n.Host)
}

// augment binds a challenge to the secret that the two have agreed on (Base 2.0 §8.13.5.4); nil: they have none.
func (h Hash) augment(challenge, shared []byte) []byte {
	if shared == nil {
		return challenge
	}
	return h.hmac(h.sum(shared), challenge)
}
