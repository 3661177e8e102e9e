// Package null is a block store that keeps nothing: reads are zeroes, writes are dropped. It
// shows what everything but the medium costs.
package null

import (
	"fmt"
	"sync/atomic"

	"oneshot/backend"
)

const blockSize = 512

// Store is a store without medium.
type Store struct{ size atomic.Int64 } // bytes

var _ backend.Resizer = (*Store)(nil)

// New returns a store of size bytes, a multiple of 512.
func New(size int64) (*Store, error) {
	s := &Store{}
	if err := s.Resize(size); err != nil {
		return nil, err
	}
	return s, nil
}

// Resize makes the store larger; see backend.Resizer. 0 leaves it as it is.
func (s *Store) Resize(size int64) error {
	have := s.size.Load()
	if size == 0 && have > 0 {
		return nil
	}
	if size <= 0 || size%blockSize != 0 || size < have {
		return fmt.Errorf("null store: a size of %d bytes is not a positive multiple of %d, or less than the %d bytes that are served", size, blockSize, have)
	}
	s.size.Store(size)
	return nil
}

// Info describes the store.
func (s *Store) Info() backend.Info {
	return backend.Info{Size: s.size.Load(), BlockSize: blockSize}
}

// Submit does op at once.
func (s *Store) Submit(op *backend.Op) bool {
	size := s.size.Load()
	if op.Err = op.Check(size); op.Err != nil {
		return true
	}
	switch op.Kind {
	case backend.Read:
		for _, seg := range op.Segs {
			clear(seg) // what the memory held before belongs to somebody else
		}
	case backend.Status:
		op.Mapped, op.Extent = true, min(max(op.Len, blockSize), size-op.Off)
	}
	return true
}

// Close does nothing.
func (s *Store) Close() error { return nil }
