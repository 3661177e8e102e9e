// Package text is the key=value text of iSCSI login and text requests (RFC 7143 §6): its
// encoding, and the negotiation of each key.
package text

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Limits of what is taken from a peer (RFC 7143 §6.1).
const (
	MaxKey      = 63       // bytes
	MaxValue    = 8 << 10  // bytes: lists and binary values may be longer than the 255 of others
	MaxSequence = 16 << 10 // bytes of text in one sequence of PDUs; 8192 have to be taken
)

// Pair is a key and its value.
type Pair struct{ Key, Value string }

// Append appends key=value and the NUL that ends it.
func Append(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, 0)
}

// Parse splits a complete text. Empty pairs, which some initiators pad with, are passed over.
func Parse(b []byte) ([]Pair, error) {
	var pairs []Pair
	for len(b) > 0 {
		kv, rest, ended := bytes.Cut(b, []byte{0})
		b = rest
		if len(kv) == 0 {
			continue
		}
		key, value, ok := bytes.Cut(kv, []byte{'='})
		switch {
		case !ended:
			return nil, fmt.Errorf("the text ends without NUL after %q", clip(kv))
		case !ok:
			return nil, fmt.Errorf("no '=' in %q", clip(kv))
		case len(key) == 0 || len(key) > MaxKey:
			return nil, fmt.Errorf("a key of %d bytes in %q", len(key), clip(kv))
		case len(value) > MaxValue:
			return nil, fmt.Errorf("a value of %d bytes for %s", len(value), key)
		case !validKey(key):
			return nil, fmt.Errorf("%q is no key", clip(key))
		}
		pairs = append(pairs, Pair{string(key), string(value)})
	}
	return pairs, nil
}

// validKey holds a key against RFC 7143 §6.1: letters, digits, and a few signs, the first a
// capital letter. sENDtARGETS is a key all the same, one that nobody knows.
func validKey(key []byte) bool {
	for _, c := range key {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte(".-+@_/#", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// clip shortens what a peer sent for an error message.
func clip(b []byte) string { return string(b[:min(len(b), 40)]) }

// Collector joins the text of a sequence of PDUs with the C bit (RFC 7143 §6.2). The zero
// value is ready for use.
type Collector struct {
	// Max bounds the text in bytes; 0 means MaxSequence.
	Max int

	buf []byte
}

// Add takes the data segment of one PDU. When more is false, the text is complete and its
// pairs are returned.
func (c *Collector) Add(data []byte, more bool) ([]Pair, error) {
	if most := cmp.Or(c.Max, MaxSequence); len(c.buf)+len(data) > most {
		return nil, fmt.Errorf("more than %d bytes of text in one sequence", most)
	}
	if !more && len(c.buf) == 0 {
		return Parse(data)
	}
	c.buf = append(c.buf, data...)
	if more {
		return nil, nil
	}
	text := c.buf
	c.buf = nil
	return Parse(text)
}

// Number reads a decimal or hexadecimal constant (RFC 7143 §6.1).
func Number(s string) (uint32, bool) {
	base := 10
	if h, ok := cutPrefixFold(s, "0x"); ok {
		s, base = h, 16
	}
	if s == "" || s[0] == '+' || strings.Contains(s, "_") {
		return 0, false
	}
	n, err := strconv.ParseUint(s, base, 32)
	return uint32(n), err == nil
}

// Bool reads Yes or No.
func Bool(s string) (value, ok bool) { return s == "Yes", s == "Yes" || s == "No" }

// FormatBool is the reverse of Bool.
func FormatBool(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

// Binary reads a hexadecimal (0x) or base64 (0b) constant (RFC 7143 §6.1).
func Binary(s string) ([]byte, bool) {
	if h, ok := cutPrefixFold(s, "0x"); ok {
		if len(h)%2 == 1 {
			h = "0" + h
		}
		b, err := hex.DecodeString(h)
		return b, err == nil
	}
	if e, ok := cutPrefixFold(s, "0b"); ok {
		b, err := base64.StdEncoding.Strict().DecodeString(e)
		if err != nil {
			b, err = base64.RawStdEncoding.Strict().DecodeString(e)
		}
		return b, err == nil
	}
	return nil, false
}

// FormatBinary writes a hexadecimal constant.
func FormatBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return s[len(prefix):], true
	}
	return s, false
}
