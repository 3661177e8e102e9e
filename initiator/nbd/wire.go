package nbd

import (
	"encoding/binary"
	"fmt"
)

// Type is what a request asks for.
type Type uint16

const (
	Read       Type = 0
	Write      Type = 1
	Disconnect Type = 2
	Flush      Type = 3
	Trim       Type = 4
)

var typeNames = [...]string{"READ", "WRITE", "DISCONNECT", "FLUSH", "TRIM"}

// String returns the name of the type.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint16(t))
}

// FlagFUA in a WRITE: it is durable when it is answered.
const FlagFUA = 1 << 0

// Sizes of headers, in bytes.
const (
	RequestLen = 28
	ReplyLen   = 16
)

const (
	requestMagic = 0x25609513
	replyMagic   = 0x67446698
)

// Offsets in a request ("Request message"); all numbers are big-endian.
const (
	offFlags  = 4
	offType   = 6
	offCookie = 8
	offOffset = 16
	offLength = 24
)

// Request is the header of a request.
type Request struct {
	Flags  uint16
	Type   Type
	Cookie uint64 // returns in the reply
	Offset uint64 // bytes
	Length uint32 // bytes
}

// ParseRequest reads a header of RequestLen bytes.
func ParseRequest(b []byte) (r Request, err error) {
	b = b[:RequestLen]
	if m := binary.BigEndian.Uint32(b); m != requestMagic {
		return r, fmt.Errorf("a request begins with %#08x, not with %#08x", m, requestMagic)
	}
	return Request{
		Flags: binary.BigEndian.Uint16(b[offFlags:]), Type: Type(binary.BigEndian.Uint16(b[offType:])),
		Cookie: binary.BigEndian.Uint64(b[offCookie:]), Offset: binary.BigEndian.Uint64(b[offOffset:]),
		Length: binary.BigEndian.Uint32(b[offLength:]),
	}, nil
}

// AppendTo appends the header to b.
func (r *Request) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, requestMagic)
	b = binary.BigEndian.AppendUint16(b, r.Flags)
	b = binary.BigEndian.AppendUint16(b, uint16(r.Type))
	b = binary.BigEndian.AppendUint64(b, r.Cookie)
	b = binary.BigEndian.AppendUint64(b, r.Offset)
	return binary.BigEndian.AppendUint32(b, r.Length)
}

// Errors of replies ("Error values"). Linux makes EIO of any.
const (
	errnoNone = 0
	errnoIO   = 5
)

// Reply is the header of a simple reply. Data of a READ without an error follows it.
type Reply struct {
	Errno  uint32
	Cookie uint64
}

// ParseReply reads a header of ReplyLen bytes.
func ParseReply(b []byte) (r Reply, err error) {
	b = b[:ReplyLen]
	if m := binary.BigEndian.Uint32(b); m != replyMagic {
		return r, fmt.Errorf("a reply begins with %#08x, not with %#08x", m, replyMagic)
	}
	return Reply{Errno: binary.BigEndian.Uint32(b[4:]), Cookie: binary.BigEndian.Uint64(b[8:])}, nil
}

// AppendTo appends the header to b.
func (r *Reply) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, replyMagic)
	b = binary.BigEndian.AppendUint32(b, r.Errno)
	return binary.BigEndian.AppendUint64(b, r.Cookie)
}
