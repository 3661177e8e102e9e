// Package isns tells an Internet Storage Name Service (RFC 4171) which targets there are and
// where they are reached, so that initiators that ask it find them. It is the client's side, as
// far as a target needs it: registration, its renewal, and deregistration.
//
//	Client.Run ── TCP ──► iSNS server
//	  DevAttrReg   at the start, after every change, and before the registration expires
//	  DevDereg     at the end
package isns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Message (RFC 4171 §5.1), all numbers big-endian:
//
//	 0  iSNSP version = 1     2  function
//	 4  length of the payload 6  flags
//	 8  transaction           10 sequence
//	12  payload
const (
	headerLen  = 12
	version    = 1
	maxPayload = 65532

	functionReg   = 0x0001 // DevAttrReg (§5.6.5.1)
	functionDereg = 0x0004 // DevDereg (§5.6.5.4)
	response      = 0x8000 // added to the function

	flagClient  = 0x8000
	flagReplace = 0x1000
	flagLast    = 0x0800
	flagFirst   = 0x0400
)

// Attributes (§6.1), and values of theirs.
const (
	tagDelimiter  = 0
	tagEntity     = 1
	tagProtocol   = 2
	tagPeriod     = 6 // Registration Period, in seconds
	tagPortalIP   = 16
	tagPortalPort = 17
	tagName       = 32
	tagNodeType   = 33
	tagAlias      = 34
	tagGroupIP    = 49
	tagGroupPort  = 50
	tagGroupTag   = 51

	protocolISCSI = 2
	nodeTarget    = 1
)

// message is a message in the making.
type message struct{ b []byte }

func newMessage(function, flags, transaction uint16) *message {
	m := &message{make([]byte, headerLen, 512)}
	binary.BigEndian.PutUint16(m.b, version)
	binary.BigEndian.PutUint16(m.b[2:], function)
	binary.BigEndian.PutUint16(m.b[6:], flags|flagClient|flagFirst|flagLast)
	binary.BigEndian.PutUint16(m.b[8:], transaction)
	return m
}

// bytes finishes the message.
func (m *message) bytes() ([]byte, error) {
	n := len(m.b) - headerLen
	if n > maxPayload {
		return nil, fmt.Errorf("isns: a registration of %d bytes, where %d are the most: there are too many targets and portals", n, maxPayload)
	}
	binary.BigEndian.PutUint16(m.b[4:], uint16(n))
	return m.b, nil
}

// attribute appends tag, length and value (§5.3), padded to four bytes.
func (m *message) attribute(tag uint32, value []byte) {
	m.b = binary.BigEndian.AppendUint32(m.b, tag)
	m.b = binary.BigEndian.AppendUint32(m.b, uint32(len(value)))
	m.b = append(m.b, value...)
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) delimiter() { m.attribute(tagDelimiter, nil) }

func (m *message) number(tag, n uint32) {
	m.attribute(tag, binary.BigEndian.AppendUint32(nil, n))
}

// text appends a string, which ends with a NUL and is padded with more of them.
func (m *message) text(tag uint32, s string) {
	b := append([]byte(s), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	m.attribute(tag, b)
}

// address appends an IP address as one of IPv6, into which those of IPv4 are mapped (§6.3.1).
func (m *message) address(tag uint32, a netip.Addr) {
	b := a.As16()
	m.attribute(tag, b[:])
}

// StatusError is the server's refusal (§5.4).
type StatusError struct{ Status uint32 }

var statuses = map[uint32]string{
	1: "unknown error", 2: "message format error", 3: "invalid registration", 5: "invalid query", 6: "source unknown",
	7: "source absent", 8: "source unauthorized", 9: "no such entry", 10: "version not supported", 11: "internal error", 12: "busy",
	13: "option not understood", 14: "invalid update", 15: "message not supported", 16: "SCN event rejected", 17: "SCN registration rejected",
	18: "attribute not implemented", 19: "FC domain ID not available", 20: "FC domain ID not allocated", 21: "ESI not available",
	22: "invalid deregistration", 23: "registration feature not supported",
}

// Error says what the server answers.
func (e *StatusError) Error() string {
	if s := statuses[e.Status]; s != "" {
		return "the iSNS server answers: " + s
	}
	return fmt.Sprintf("the iSNS server answers with status %d", e.Status)
}

// readResponse reads the response to a message, all its parts, and returns its attributes.
func readResponse(r io.Reader, function, transaction uint16) (attributes []byte, err error) {
	h := make([]byte, headerLen)
	first := true
	for {
		if _, err := io.ReadFull(r, h); err != nil {
			return nil, err
		}
		payload := make([]byte, binary.BigEndian.Uint16(h[4:]))
		if _, err := io.ReadFull(r, payload); err != nil {
			return nil, err
		}
		switch {
		case binary.BigEndian.Uint16(h) != version, binary.BigEndian.Uint16(h[2:]) != function|response,
			binary.BigEndian.Uint16(h[8:]) != transaction:
			return nil, errors.New("isns: the server answers something else than it was asked")
		case first && len(payload) < 4:
			return nil, errors.New("isns: the server answers without a status")
		}
		if first {
			if status := binary.BigEndian.Uint32(payload); status != 0 {
				return nil, &StatusError{status}
			}
			payload = payload[4:]
		}
		attributes, first = append(attributes, payload...), false
		if binary.BigEndian.Uint16(h[6:])&flagLast != 0 || len(attributes) > maxAnswer {
			return attributes, nil
		}
	}
}

// maxAnswer bounds what is kept of an answer: only its period counts.
const maxAnswer = 1 << 20

// period returns the registration period that the attributes say, 0 if none.
func period(attributes []byte) uint32 {
	for b := attributes; len(b) >= 8; {
		tag, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if uint64(n) > uint64(len(b)-8) {
			return 0
		}
		if tag == tagPeriod && n == 4 {
			return binary.BigEndian.Uint32(b[8:])
		}
		b = b[8+n:]
		b = b[min(len(b), int(-n&3)):]
	}
	return 0
}
