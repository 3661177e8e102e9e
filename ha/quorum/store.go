package quorum

import "fmt"

// Store is the record of KindStore: what the copies of a mirrored store have in common. Only its size changes.
type Store struct {
	UUID [16]byte
	Size int64 // bytes

	// Sizes are those that it had before it has grown, bytes, oldest first.
	Sizes []int64

	// What the store is like to a host, whichever node serves it. Bytes; as in backend.Info.
	BlockSize, PhysicalBlockSize  int
	DiscardGranularity, OptimalIO int64

	Copies []string // nodes: the place, from 1, is the replica.ID of a node. The mirror begins with the copy of the first
}

// SetName is the name of the set of a mirror, by which its views and its reservations are kept.
func (s *Store) SetName(mirror string) string { return fmt.Sprintf("%s %x", mirror, s.UUID) }

// Encode returns the value of the record.
func (s *Store) Encode() []byte {
	format := byte(1)
	if len(s.Sizes) > 0 {
		format = 2
	}
	b := append([]byte{format}, s.UUID[:]...)
	b = appendU64(b, uint64(s.Size), uint64(s.BlockSize), uint64(s.PhysicalBlockSize), uint64(s.DiscardGranularity), uint64(s.OptimalIO))
	if format == 2 {
		b = appendU64(b, uint64(len(s.Sizes)))
		for _, n := range s.Sizes {
			b = appendU64(b, uint64(n))
		}
	}
	for _, name := range s.Copies {
		b = appendBytes(b, name)
	}
	return b
}

// DecodeStore reads the value of a record.
func DecodeStore(b []byte) (*Store, error) {
	c := cursor{b: b}
	format := c.u8()
	if c.err == nil && format != 1 && format != 2 {
		return nil, fmt.Errorf("a mirrored store has format %d, which this version does not know", format)
	}
	s := &Store{UUID: [16]byte(c.fixed(16)), Size: int64(c.u64())}
	s.BlockSize, s.PhysicalBlockSize = int(c.u64()), int(c.u64())
	s.DiscardGranularity, s.OptimalIO = int64(c.u64()), int64(c.u64())
	if format == 2 {
		for n := c.u64(); n > 0 && c.err == nil; n-- {
			s.Sizes = append(s.Sizes, int64(c.u64()))
		}
	}
	for c.err == nil && len(c.b) > 0 {
		s.Copies = append(s.Copies, c.string())
	}
	return s, c.end()
}
