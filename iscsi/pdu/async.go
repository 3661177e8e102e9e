package pdu

import "fmt"

// AsyncEvent is what an Asynchronous Message tells (§11.9.1).
type AsyncEvent uint8

// Asynchronous events. What the parameters mean depends on the event.
const (
	AsyncSCSIEvent          AsyncEvent = 0
	AsyncLogoutRequest      AsyncEvent = 1 // Parameter3: seconds until the target closes
	AsyncConnectionDrop     AsyncEvent = 2 // Parameter1: CID, 2: Time2Wait, 3: Time2Retain
	AsyncAllConnectionsDrop AsyncEvent = 3 // Parameter2: Time2Wait, 3: Time2Retain
	AsyncRenegotiation      AsyncEvent = 4 // Parameter3: seconds until the target closes
	AsyncTaskTermination    AsyncEvent = 5
	AsyncVendor             AsyncEvent = 255
)

var asyncNames = [...]string{
	"SCSI event", "logout request", "connection drop", "all connections drop", "renegotiation", "task termination",
}

// String returns the name of the event.
func (e AsyncEvent) String() string {
	switch {
	case int(e) < len(asyncNames):
		return asyncNames[e]
	case e == AsyncVendor:
		return "vendor-specific event"
	}
	return fmt.Sprintf("asynchronous event %d", uint8(e))
}

const (
	offAsyncEvent = 36
	offAsyncVCode = 37
	offParameter1 = 38
	offParameter2 = 40
	offParameter3 = 42
)

// Async is an Asynchronous Message (§11.9). It uses up a StatSN.
type Async struct{ Header }

// ParseAsync returns b, which it aliases, as an Asynchronous Message.
func ParseAsync(b []byte) (Async, error) {
	h, err := parse(b, OpAsync)
	return Async{h}, err
}

// Event returns what is told.
func (p Async) Event() AsyncEvent { return AsyncEvent(p.Header[offAsyncEvent]) }

// VCode returns the vendor's code, valid with AsyncVendor.
func (p Async) VCode() uint8 { return p.Header[offAsyncVCode] }

// Parameter1 returns the first parameter.
func (p Async) Parameter1() uint16 { return p.u16(offParameter1) }

// Parameter2 returns the second parameter.
func (p Async) Parameter2() uint16 { return p.u16(offParameter2) }

// Parameter3 returns the third parameter.
func (p Async) Parameter3() uint16 { return p.u16(offParameter3) }

// Fields returns all fields of the PDU.
func (p Async) Fields() AsyncFields {
	return AsyncFields{
		DataSegmentLength: p.DataSegmentLen(), LUN: p.LUN(), Sequence: p.Sequence(), Event: p.Event(), VCode: p.VCode(),
		Parameter1: p.Parameter1(), Parameter2: p.Parameter2(), Parameter3: p.Parameter3(),
	}
}

// AsyncFields encodes an Asynchronous Message, whose ITT is always ReservedTag.
type AsyncFields struct {
	DataSegmentLength int // bytes
	LUN               uint64
	Sequence
	Event      AsyncEvent
	VCode      uint8
	Parameter1 uint16
	Parameter2 uint16
	Parameter3 uint16
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *AsyncFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpAsync, false, FlagFinal, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, ReservedTag)
	h.putSequence(f.Sequence)
	h[offAsyncEvent], h[offAsyncVCode] = byte(f.Event), f.VCode
	h.put16(offParameter1, f.Parameter1)
	h.put16(offParameter2, f.Parameter2)
	h.put16(offParameter3, f.Parameter3)
	return b
}
