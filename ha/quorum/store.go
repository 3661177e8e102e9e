package quorum

import "fmt"

// Store is the record of KindStore: what the copies of a mirrored store have in common. It does not change.
type Store struct {
	UUID [16]byte
	Size int64 // bytes

	// What the store is like to a host, whichever node serves it. Bytes; as in backend.Info.
	BlockSize, PhysicalBlockSize  int
	DiscardGranularity, OptimalIO int64

	Copies []string // nodes: the place, from 1, is the replica.ID of a node. The mirror begins with the copy of the first
}

// Encode returns the value of the record.
func (s *Store) Encode() []byte {
	b := append([]byte{1}, s.UUID[:]...)
	b = appendU64(b, uint64(s.Size), uint64(s.BlockSize), uint64(s.PhysicalBlockSize), uint64(s.DiscardGranularity), uint64(s.OptimalIO))
	for _, name := range s.Copies {
		b = appendBytes(b, name)
	}
	return b
}

// DecodeStore reads the value of a record.
func DecodeStore(b []byte) (*Store, error) {
	c := cursor{b: b}
	if v := c.u8(); c.err == nil && v != 1 {
		return nil, fmt.Errorf("a mirrored store has format %d, which this version does not know", v)
	}
	s := &Store{UUID: [16]byte(c.fixed(16)), Size: int64(c.u64())}
	s.BlockSize, s.PhysicalBlockSize = int(c.u64()), int(c.u64())
	s.DiscardGranularity, s.OptimalIO = int64(c.u64()), int64(c.u64())
	for c.err == nil && len(c.b) > 0 {
		s.Copies = append(s.Copies, c.string())
	}
	return s, c.end()
}
