package shm

import (
	"encoding/binary"
	"math/bits"
)

const (
	// SlotLen is the length of a descriptor, SpillLen that of the memory behind it; octets.
	SlotLen  = 64
	SpillLen = PageSize
	pieceLen = 16
	piecesAt = 32
	// InSlot is how many pieces a slot has room for, MaxPieces how many its spill has.
	InSlot    = (SlotLen - piecesAt) / pieceLen
	MaxPieces = 255
	// MaxInline is how many octets of inline data a request can have.
	MaxInline = 256
)

// Queue is a ring of descriptors, with the driver's tail and the card's count of what is done.
type Queue struct {
	seg  *Segment
	n    uint32 // slots, a power of two
	Tail *Word  // the driver's
	Done *Word  // the card's: so many requests are done, and their completions were put before
}

// QueueLen returns how many octets a queue of depth requests has.
func QueueLen(depth int) int { return 2*PageSize + slots(depth)*(SlotLen+SpillLen) }

// slots returns how many slots a queue has; whole pages of them.
func slots(depth int) int { return max(PageSize/SlotLen, 1<<bits.Len(uint(depth-1))) }

// NewQueue lays out a segment of QueueLen(depth) octets, which it owns from then on.
func NewQueue(s *Segment, depth int) *Queue {
	return &Queue{seg: s, n: uint32(slots(depth)), Tail: word(s.b, 0), Done: word(s.b, PageSize)}
}

// Slots returns how many slots there are.
func (q *Queue) Slots() uint32 { return q.n }

// Slot returns the slot at pos.
func (q *Queue) Slot(pos uint32) []byte {
	return q.seg.b[2*PageSize+int(pos&(q.n-1))*SlotLen:][:SlotLen:SlotLen]
}

// Spill returns the memory behind the slot at pos.
func (q *Queue) Spill(pos uint32) []byte {
	return q.seg.b[2*PageSize+int(q.n)*SlotLen+int(pos&(q.n-1))*SpillLen:][:SpillLen:SpillLen]
}

// Close unmaps the segment.
func (q *Queue) Close() error { return q.seg.Close() }

// Descriptor is a request, a receive or a command.
//
//	0  operation, elements of the scatter/gather list, flags (2)
//	4  STag: remote; meant by Invalidate, Close, OpLocalInvalidate; chosen for Advertise, OpBind
//	8  token of a receive; tag of a command
//	16 tagged offset; number of the window of OpBind
//	24 elements of the list of memory to advertise (2), access, zero
//	28 octets of inline data, which are in the spill
//	32 pieces, if there are no more than two; otherwise all are in the spill
type Descriptor struct {
	Op     uint8
	SGL    uint8
	Flags  uint16
	STag   uint32
	Token  uint64
	Offset uint64
	Memory uint16
	Access uint8
	Inline uint32
}

// Put writes the descriptor to a slot, without its pieces.
func (d *Descriptor) Put(b []byte) {
	_ = b[SlotLen-1]
	b[0], b[1] = d.Op, d.SGL
	binary.NativeEndian.PutUint16(b[2:], d.Flags)
	binary.NativeEndian.PutUint32(b[4:], d.STag)
	binary.NativeEndian.PutUint64(b[8:], d.Token)
	binary.NativeEndian.PutUint64(b[16:], d.Offset)
	binary.NativeEndian.PutUint16(b[24:], d.Memory)
	b[26], b[27] = d.Access, 0
	binary.NativeEndian.PutUint32(b[28:], d.Inline)
}

// Get reads the descriptor of a slot that was copied to private memory.
func (d *Descriptor) Get(b *[SlotLen]byte) {
	*d = Descriptor{
		Op: b[0], SGL: b[1], Flags: binary.NativeEndian.Uint16(b[2:]), STag: binary.NativeEndian.Uint32(b[4:]),
		Token: binary.NativeEndian.Uint64(b[8:]), Offset: binary.NativeEndian.Uint64(b[16:]),
		Memory: binary.NativeEndian.Uint16(b[24:]), Access: b[26], Inline: binary.NativeEndian.Uint32(b[28:]),
	}
}

// Pieces returns how many pieces the descriptor has.
func (d *Descriptor) Pieces() int { return int(d.SGL) + int(d.Memory) }

// Piece is a piece of memory: of a region, or of an arena if Arena is set in its number.
type Piece struct {
	Region uint32
	Len    uint32
	Offset uint64
}

// Arena marks the number of an arena.
const Arena = 1 << 31

// PutPiece writes piece i of the n that the descriptor at slot and spill has.
func PutPiece(slot, spill []byte, i, n int, p Piece) {
	b := slot[piecesAt:]
	if n > InSlot {
		b = spill
	}
	b = b[i*pieceLen:][:pieceLen]
	binary.NativeEndian.PutUint32(b, p.Region)
	binary.NativeEndian.PutUint32(b[4:], p.Len)
	binary.NativeEndian.PutUint64(b[8:], p.Offset)
}

// GetPiece reads piece i of n, at most MaxPieces.
func GetPiece(slot *[SlotLen]byte, spill []byte, i, n int) Piece {
	var b [pieceLen]byte
	if n > InSlot {
		copy(b[:], spill[i*pieceLen:])
	} else {
		copy(b[:], slot[piecesAt+i*pieceLen:])
	}
	return Piece{binary.NativeEndian.Uint32(b[:]), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint64(b[8:])}
}

// Operations of commands.
const (
	// CommandRegister: piece 0 is memory of an arena, STag the number of the domain, Offset that of the region to be
	// made, Access what may be done with it. The answer has the STag.
	CommandRegister uint8 = iota + 1
	// CommandDeregister: Offset is the region.
	CommandDeregister
	// CommandNewWindow: Offset is the number of the window to be made, STag the domain.
	CommandNewWindow
	// CommandFreeWindow: Offset is the window.
	CommandFreeWindow
	// CommandRevoke: Offset is the queue pair. The answer comes at once, KindRevoked when it is done.
	CommandRevoke
)

// MaxObjects bounds the numbers of regions, windows, arenas and domains.
const MaxObjects = 1 << 16
