package stag

import (
	"errors"
	"fmt"
)

// Op is what a peer does with an STag. The answer to a violation depends on it.
type Op uint8

const (
	RemoteWrite  Op = iota // RDMA Write to a region
	ReadResponse           // placing the answer to an RDMA Read of our own
	RemoteRead             // RDMA Read Request from a region
	Invalidate             // Send with Invalidate
	Close                  // one-shot Send with Close
	Advertise              // one-shot Send with Advertise, at Host 2
	opCount
)

func (o Op) String() string {
	return [...]string{"RDMA Write", "RDMA Read Response", "RDMA Read Request", "Invalidate", "Close", "Advertise"}[o]
}

// Fault says what was wrong, with the names of RFC 5040 §4.8 and RFC 5041 §8.
type Fault uint8

const (
	InvalidSTag      Fault = iota // slot not in use, key wrong, or no longer valid
	WrongStream                   // of another stream or protection domain
	AccessRights                  // the region does not allow the operation
	TOWrap                        // TO plus length exceeds 2^64
	Bounds                        // outside of the region
	NotCloseable                  // not a one-shot STag, or not advertised yet
	NotInvalidatable              // the region does not allow remote invalidation
	AlreadyHeld                   // advertised again before it was closed
	WindowExceeded                // more STags advertised than the window allows
	faultCount
)

func (f Fault) String() string {
	return [...]string{
		"invalid STag", "STag not associated with the stream", "access rights violation", "TO wrap",
		"base or bounds violation", "STag cannot be closed", "STag cannot be invalidated",
		"STag is already advertised", "window of advertised STags exceeded",
	}[f]
}

// lec is layer, error type and code of a Terminate message, a nibble, a nibble and an octet.
type lec uint16

// terminate holds the answer to each violation (iwarp.md §6, one-shot.md §6). The combinations that
// are missing cannot happen.
var terminate = [opCount][faultCount]lec{
	// RFC 5041 has no code for access rights of tagged segments: they count as invalid STag.
	RemoteWrite:  {InvalidSTag: 0x1100, WrongStream: 0x1102, AccessRights: 0x1100, TOWrap: 0x1103, Bounds: 0x1101},
	ReadResponse: {InvalidSTag: 0x1100, WrongStream: 0x1102, AccessRights: 0x1100, TOWrap: 0x1103, Bounds: 0x1101},
	RemoteRead:   {InvalidSTag: 0x0100, WrongStream: 0x0103, AccessRights: 0x0102, TOWrap: 0x0104, Bounds: 0x0101},
	Invalidate:   {InvalidSTag: 0x0209, WrongStream: 0x0109, NotCloseable: 0x0209, NotInvalidatable: 0x0109},
	Close:        {InvalidSTag: 0x0100, WrongStream: 0x0109, NotCloseable: 0x0209},
	Advertise:    {InvalidSTag: 0x0100, AlreadyHeld: 0x0207, WindowExceeded: 0x0207},
}

// Error is a violation by the peer. It is fatal to the stream.
type Error struct {
	Op    Op
	Fault Fault
	STag  STag
}

func (e *Error) Error() string {
	return fmt.Sprintf("stag: %v of STag %08x: %v", e.Op, uint32(e.STag), e.Fault)
}

// Terminate returns layer, error type and error code of the Terminate message that answers the
// violation (RFC 5040 §4.8).
func (e *Error) Terminate() (layer, etype, code uint8) {
	v := terminate[e.Op][e.Fault]
	return uint8(v >> 12), uint8(v>>8) & 0xf, uint8(v)
}

// Errors of local calls, which the peer does not cause.
var (
	ErrTableFull = errors.New("stag: all slots of the table are in use; free STags or make the table larger")
	ErrWindow    = errors.New("stag: window of one-shot STags is used up; queue the command until one is closed")
	ErrEnded     = errors.New("stag: stream has ended")
	ErrRegion    = errors.New("stag: region wraps the 64-bit tagged offset")
	ErrState     = errors.New("stag: STag is not in a state that allows this")
	ErrBusy      = errors.New("stag: memory of the STag is still referenced")
)
