// Package chap computes CHAP responses as iSCSI uses them (RFC 7143 §12.1.3, RFC 1994): a
// leaf that the target's login and the initiator share.
package chap

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"hash"
	"strings"
)

// Credentials are the name and the secret of one direction of CHAP.
type Credentials struct {
	Name   string
	Secret []byte
}

// MaxChallenge is the longest CHAP value that is taken, in bytes (RFC 7143 §12.1.3).
const MaxChallenge = 1024

// Algorithm is a hash function of CHAP_A.
type Algorithm struct {
	Number string // as IANA numbers them for PPP authentication
	new    func() hash.Hash
}

// algorithms are those there are.
var algorithms = []Algorithm{
	{"8", func() hash.Hash { return sha3.New256() }},
	{"7", func() hash.Hash { return sha256.New() }},
	{"6", sha1.New},
	{"5", md5.New},
}

// Offer is the value of CHAP_A with which an initiator offers all algorithms. SHA-256 is the
// last: tgt takes its number for that of SHA-1, and picks the first of the list that it knows.
const Offer = "8,6,5,7"

// Choose returns the first algorithm of a list, which is a value of CHAP_A, that is known here:
// an initiator lists them in its order of preference (RFC 7143 §12.1.3, §6.2.1).
func Choose(list string) (Algorithm, bool) {
	for number := range strings.SplitSeq(list, ",") {
		for _, a := range algorithms {
			if a.Number == number {
				return a, true
			}
		}
	}
	return Algorithm{}, false
}

// Size returns the length of a response, in bytes.
func (a Algorithm) Size() int { return a.new().Size() }

// Respond computes the response to a challenge (RFC 1994 §4.1).
func (a Algorithm) Respond(id byte, secret, challenge []byte) []byte {
	d := a.new()
	d.Write([]byte{id})
	d.Write(secret)
	d.Write(challenge)
	return d.Sum(nil)
}
