// Package wire has the messages with which partitions are used across a wire. It knows octets only: no
// sockets, no queue pairs.
//
//	1 client ─ HELLO ────────► service   version, nonce, name of the client
//	2        ◄───── CHALLENGE ─          nonce
//	3        ─ ATTACH ───────►           partition, rights, proof
//	4        ◄────── ATTACHED ─          handle, size, credits, proof of the service
//	5        ─ READ, WRITE … ►           64 octets, and perhaps data
//	6        ◄────── response ─          32 octets, and perhaps data
//
// All numbers are big-endian. The first octet of every message is 0xb1, which no iSCSI PDU and no iSER header
// begins with; the second is the operation, in an answer with 0x80 added.
//
//	hello.go    1 to 4, and what is proved with them
//	command.go  5 and 6
//	entry.go    what LIST and INFO tell of a partition
package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Magic is the first octet of every message.
const Magic = 0xb1

// Private is the private data of a connection for partitions, where iSER has its header.
const Private = "OSP1"

// Version is that of HELLO.
const Version = 1

// Op is what a message is about.
type Op uint8

// The operations.
const (
	Hello   Op = 1
	Attach  Op = 2
	List    Op = 3
	Info    Op = 4
	Read    Op = 5
	Write   Op = 6
	Flush   Op = 7
	Swap    Op = 8 // compare and swap
	Add     Op = 9
	Discard Op = 10
	Detach  Op = 11

	answer = 0x80
)

var opNames = [...]string{
	Hello: "HELLO", Attach: "ATTACH", List: "LIST", Info: "INFO", Read: "READ", Write: "WRITE", Flush: "FLUSH",
	Swap: "CAS", Add: "ADD", Discard: "DISCARD", Detach: "DETACH",
}

func (o Op) String() string {
	if int(o) < len(opNames) && o > 0 {
		return opNames[o]
	}
	return fmt.Sprintf("operation %#x", uint8(o))
}

// Status is how a request has ended.
type Status uint16

// The statuses. Those marked with an asterisk end the use of the handle.
const (
	OK        Status = 0
	Malformed Status = 1   // * the connection ends, too
	NoHandle  Status = 2   // * no such handle, or no such partition
	Denied    Status = 3   // * no right to do that, or a wrong proof
	Outside   Status = 4   // * outside of the partition
	NotUnits  Status = 5   // * not of whole units
	Medium    Status = 6   // Value is the offset of the first octet that failed
	NoSpace   Status = 7   //
	Lost      Status = 8   // durability was lost earlier
	Fenced    Status = 9   // not executed: a request before it has failed
	Busy      Status = 0xa // try again
	Gone      Status = 0xb // * the partition has changed, or has gone
	Ended     Status = 0xc // not executed: the use of the handle had ended
	Replaced  Status = 0xd // * the same user changes the partition from elsewhere now
	statuses         = 0xe // how many there are
)

var statusNames = [...]string{
	"ok", "request malformed", "no such partition or handle", "denied", "outside of the partition", "not of whole units",
	"medium error", "no space", "durability was lost earlier", "fenced: a request before it has failed", "busy",
	"the partition has changed or gone", "the use of the partition has ended",
	"the same user writes to the partition from elsewhere now",
}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %#x", uint16(s))
}

// Error says what is wrong with a message.
type Error struct{ What string }

func (e *Error) Error() string { return "partition message: " + e.What }

var (
	errShort    = &Error{"too short"}
	errLength   = &Error{"its length is not that of its kind"}
	errMagic    = &Error{"it does not begin with 0xb1"}
	errOp       = &Error{"an operation that does not exist or does not belong here"}
	errReserved = &Error{"an octet that is reserved is not 0"}
	errFlags    = &Error{"flags that its operation may not have"}
	errStatus   = &Error{"a status that does not exist"}
	errName     = &Error{"a name of a length that does not exist"}
	errText     = &Error{"a name with characters that cannot be printed"}
	errRights   = &Error{"rights that do not exist"}
)

// Kind returns the operation of a message, and whether it is an answer.
func Kind(b []byte) (o Op, isAnswer bool, err error) {
	switch {
	case len(b) < 2:
		return 0, false, errShort
	case b[0] != Magic:
		return 0, false, errMagic
	}
	o = Op(b[1] &^ answer)
	if o < Hello || o > Detach {
		return 0, false, errOp
	}
	return o, b[1]&answer != 0, nil
}

// is returns why b is no message of that kind with n octets or more, or nil.
func is(b []byte, second byte, n int) error {
	switch {
	case len(b) < n:
		return errShort
	case b[0] != Magic:
		return errMagic
	case b[1] != second:
		return errOp
	}
	return nil
}

// zero reports whether all octets are 0.
func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

var be = binary.BigEndian

// printable reports whether the name of a partition can be shown to people: one that a service has made up could otherwise tell their terminals
// what to do.
func printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}
