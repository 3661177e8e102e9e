package partition

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// UUID is a random one, of version 4 (RFC 9562 §5.4).
type UUID [16]byte

func newUUID() (u UUID) {
	rand.Read(u[:]) // it never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// MarshalText implements encoding.TextMarshaler.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText takes what String prints, of version 4 alone.
func (u *UUID) UnmarshalText(text []byte) error {
	var b UUID
	if s := string(text); len(s) == 36 {
		if _, err := hex.Decode(b[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err == nil &&
			b.String() == s && b[6]>>4 == 4 && b[8]>>6 == 2 {
			*u = b
			return nil
		}
	}
	return fmt.Errorf("%q is not a UUID of version 4 in small letters", text)
}
