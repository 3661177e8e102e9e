package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
)

// Secret is what a host or a controller proves that it knows. It prints and logs as a placeholder.
type Secret struct {
	key  []byte
	hash Hash // that mixes the name of its owner in; 0: none
}

const (
	secretPrefix = "DHHC-1:"
	keySuffix    = "NVMe-over-Fabrics"
)

var errSecretForm = errors.New("a DH-HMAC-CHAP secret is DHHC-1:00:, BASE64 and a colon, as nvme gen-dhchap-key prints it")

// ParseSecret reads the form in which nvme-cli makes secrets (Base 2.0 §8.13.5.8):
//
//	DHHC-1:hh:base64(key ‖ CRC-32 of the key):
//
// hh is 00, or the hash (01, 02, 03) that mixes the name of the secret's owner in. Errors do not repeat the text.
func ParseSecret(text string) (Secret, error) {
	rest, ok := strings.CutPrefix(text, secretPrefix)
	kind, body, two := strings.Cut(rest, ":")
	body, end := strings.CutSuffix(body, ":")
	if !ok || !two || !end {
		return Secret{}, errSecretForm
	}
	var s Secret
	switch kind {
	case "00":
	case "01", "02", "03":
		s.hash = Hash(kind[1] - '0')
	default:
		return Secret{}, fmt.Errorf("%w: what follows DHHC-1: is 00, 01, 02 or 03", errSecretForm)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(body)
	if err != nil || strings.ContainsAny(body, "\r\n") {
		return Secret{}, fmt.Errorf("%w: this is not BASE64", errSecretForm)
	}
	const crcLen = 4
	n := len(b) - crcLen
	switch n {
	case SHA256.size(), SHA384.size(), SHA512.size():
	default:
		return Secret{}, fmt.Errorf("the key of the secret has %d bytes: it has 32, 48 or 64", max(n, 0))
	}
	if s.hash != 0 && n != s.hash.size() {
		return Secret{}, fmt.Errorf("the key of the secret has %d bytes, and DHHC-1:%s: is for %d", n, kind, s.hash.size())
	}
	if crc32.ChecksumIEEE(b[:n]) != le.Uint32(b[n:]) {
		return Secret{}, errors.New("the checksum of the secret does not match: a character was lost or changed")
	}
	s.key = b[:n]
	return s, nil
}

// NewSecret makes a secret whose owner's name h mixes in; 0: as it is, of 32 bytes.
func NewSecret(h Hash) Secret {
	n := SHA256.size()
	if h != 0 {
		n = h.size()
	}
	s := Secret{key: make([]byte, n), hash: h}
	_, _ = rand.Read(s.key)
	return s
}

// Text is what ParseSecret reads.
func (s Secret) Text() string {
	b := le.AppendUint32(append([]byte(nil), s.key...), crc32.ChecksumIEEE(s.key))
	return fmt.Sprintf("%s%02d:%s:", secretPrefix, s.hash, base64.StdEncoding.EncodeToString(b))
}

const redacted = "(secret)"

// String returns a placeholder.
func (Secret) String() string { return redacted }

// GoString returns a placeholder.
func (Secret) GoString() string { return redacted }

// LogValue returns a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// transformed is the key of the owner of that name (Base 2.0 §8.13.5.7).
func (s Secret) transformed(owner string) []byte {
	if s.hash == 0 {
		return s.key
	}
	return s.hash.hmac(s.key, []byte(owner), []byte(keySuffix))
}
