package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// A place is where an object is: a header, the object, and what is left of the capacity. Readers by RDMA Read see it while
// it changes, and tell that by its state and its checksum.
//
//	 0  size        4  octets of the object
//	 4  capacity    4  octets that fit, the header not included
//	 8  generation  4
//	12  checksum    4  CRC32C of the header, with 0 here, and of the object
//	16  sequence    8  of the operation that wrote it
//	24  state       4  odd: it is being changed
//	28  zero        4
const (
	HeaderLen = 32

	placeSize       = 0
	placeCapacity   = 4
	placeGeneration = 8
	placeSum        = 12
	placeSeq        = 16
	placeState      = 24
)

// Places have 64 octets, 128, and so on to 256 KiB. MaxObject is the longest object, in octets.
const (
	Unit      = 64
	Classes   = 13
	MaxPlace  = Unit << (Classes - 1)
	MaxObject = MaxPlace - HeaderLen
)

// State is that of a place.
type State uint32

// The states of places. StateChanging is added to the state while a place is changed.
const (
	StateNone     State = 0
	StateChanging State = 1
	StateUsed     State = 2
	StateFree     State = 4
)

// Header is that of a place.
type Header struct {
	Size, Capacity, Generation, Sum uint32
	Seq                             uint64
	State                           State
}

// HeaderOf reads a header.
func HeaderOf(b []byte) Header {
	return Header{
		binary.BigEndian.Uint32(b[placeSize:]), binary.BigEndian.Uint32(b[placeCapacity:]), binary.BigEndian.Uint32(b[placeGeneration:]),
		binary.BigEndian.Uint32(b[placeSum:]), binary.BigEndian.Uint64(b[placeSeq:]), State(binary.BigEndian.Uint32(b[placeState:])),
	}
}

// ClassOf returns the class of places that an object of so many octets needs.
func ClassOf(size int) int {
	return max(0, bits.Len(uint(size+HeaderLen-1))-bits.Len(uint(Unit-1)))
}

// PlaceLen returns the octets of a place of a class.
func PlaceLen(class int) int { return Unit << class }

// Class returns the class of a place with that header. False: there is no such place.
func (h *Header) Class() (class int, ok bool) {
	n := uint64(h.Capacity) + HeaderLen
	class = bits.Len64(n) - bits.Len(uint(Unit))
	return class, class >= 0 && class < Classes && n == uint64(PlaceLen(class)) && h.Size <= h.Capacity
}

// PutPlace writes header and object into a place. Sum is ignored.
func PutPlace(place []byte, h Header, object []byte) {
	binary.BigEndian.PutUint32(place[placeState:], uint32(StateChanging|StateUsed))
	copy(place[HeaderLen:], object)
	binary.BigEndian.PutUint32(place[placeSize:], uint32(len(object)))
	binary.BigEndian.PutUint32(place[placeCapacity:], h.Capacity)
	binary.BigEndian.PutUint32(place[placeGeneration:], h.Generation)
	binary.BigEndian.PutUint64(place[placeSeq:], h.Seq)
	binary.BigEndian.PutUint32(place[placeState+4:], 0)
	h.Size = uint32(len(object))
	binary.BigEndian.PutUint32(place[placeSum:], sumOf(h, object))
	binary.BigEndian.PutUint32(place[placeState:], uint32(h.State))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf returns the checksum of a place.
func sumOf(h Header, object []byte) uint32 {
	var b [HeaderLen]byte
	binary.BigEndian.PutUint32(b[placeSize:], h.Size)
	binary.BigEndian.PutUint32(b[placeCapacity:], h.Capacity)
	binary.BigEndian.PutUint32(b[placeGeneration:], h.Generation)
	binary.BigEndian.PutUint64(b[placeSeq:], h.Seq)
	binary.BigEndian.PutUint32(b[placeState:], uint32(h.State))
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, object)
}

// ReadPlace reads the object that p names out of its place, or of the first octets of it, and returns a slice of b. OK: the
// object is as somebody has written it. Changing: the place is being changed, or is damaged. Stale: the object was
// deleted. TooLong: b does not hold all of it; size says how long it is.
func ReadPlace(b []byte, p Pointer) (object []byte, size int, s Status) {
	if len(b) < HeaderLen {
		return nil, 0, Range
	}
	h := HeaderOf(b)
	_, isPlace := h.Class()
	switch {
	case h.State&StateChanging != 0 || !isPlace && h.State != StateNone:
		return nil, 0, Changing
	case int(h.Size) > len(b)-HeaderLen && h.State == StateUsed && h.Generation == p.Generation:
		return nil, int(h.Size), TooLong
	case int(h.Size) > len(b)-HeaderLen:
		return nil, 0, Stale
	}
	object = b[HeaderLen : HeaderLen+int(h.Size)]
	switch {
	case h.State != StateNone && sumOf(h, object) != h.Sum:
		return nil, 0, Changing
	case h.State != StateUsed || h.Generation != p.Generation:
		return nil, 0, Stale
	}
	return object, int(h.Size), OK
}
