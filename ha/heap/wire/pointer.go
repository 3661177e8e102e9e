// Package wire has what users of a heap of objects and its service agree on: pointers, places, and messages.
//
// All numbers are big-endian.
package wire

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Pointer names an object. It is the same on every node, and after a failover.
type Pointer struct {
	Addr       uint64 // tagged offset of the place's header, in the memory of the heap
	Key        uint32 // STag of that memory
	Generation uint32 // how often the place was given to an object; 0: no object
}

const scheme = "os1:"

// String returns the text of a pointer: os1:ADDRESS:KEY:GENERATION, the first two in hexadecimal.
func (p Pointer) String() string {
	return fmt.Sprintf("%s%x:%x:%d", scheme, p.Addr, p.Key, p.Generation)
}

// ParsePointer reads what String writes, and nothing else.
func ParsePointer(text string) (p Pointer, err error) {
	wrong := func() (Pointer, error) {
		return Pointer{}, fmt.Errorf("%q is not a pointer to an object: it has the form os1:ADDRESS:KEY:GENERATION, such as os1:500000000040:fff1a3b7:7", text)
	}
	rest, ok := strings.CutPrefix(text, scheme)
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 3 {
		return wrong()
	}
	addr, err1 := strconv.ParseUint(parts[0], 16, 64)
	key, err2 := strconv.ParseUint(parts[1], 16, 32)
	generation, err3 := strconv.ParseUint(parts[2], 10, 32)
	p = Pointer{addr, uint32(key), uint32(generation)}
	if err1 != nil || err2 != nil || err3 != nil || p.String() != text {
		return wrong()
	}
	return p, nil
}

// AppendTo appends the pointer's 16 octets.
func (p Pointer) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, p.Addr)
	b = binary.BigEndian.AppendUint32(b, p.Key)
	return binary.BigEndian.AppendUint32(b, p.Generation)
}

// PointerOf reads 16 octets.
func PointerOf(b []byte) Pointer {
	return Pointer{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}
