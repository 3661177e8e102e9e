package gotgt

import (
	"fmt"

	"oneshot/backend"
)

// do does op with calls of the plugin, which may panic.
func (s *Store) do(op *backend.Op) error {
	if err := s.settle(op); err != nil {
		return err
	}
	var err error
	switch op.Kind {
	case backend.Read:
		return s.read(op)
	case backend.Write:
		err = s.write(op)
	case backend.Discard, backend.WriteZeroes:
		err = s.clear(op.Off, op.Len)
	case backend.Status:
		op.Mapped, op.Extent = true, min(max(op.Len, blockSize), s.size-op.Off)
		return nil
	default: // Flush: settled
		return nil
	}
	if err == nil && op.Flags&(backend.FUA|backend.Barrier) != 0 {
		err = s.door.Sync()
	}
	return err
}

// settle makes durable what has to be so before op starts.
func (s *Store) settle(op *backend.Op) error {
	fuaRead := op.Kind == backend.Read && op.Flags&backend.FUA != 0
	if op.Kind == backend.Flush || fuaRead || op.Flags&backend.Barrier != 0 {
		return s.door.Sync()
	}
	return nil
}

// read copies what the plugin returns. What it leaves out at the end is zeroes, as gotgt has
// it; only with an error it is one.
func (s *Store) read(op *backend.Op) error {
	b, err := s.plugin.Read(op.Off, op.Len)
	switch {
	case err != nil:
		return err
	case int64(len(b)) > op.Len:
		return fmt.Errorf("the plugin returned %d bytes for %d", len(b), op.Len)
	}
	for _, seg := range op.Segs {
		n := copy(seg, b)
		clear(seg[n:])
		b = b[n:]
	}
	return nil
}

// write hands the bytes over in one call, as some plugins write whole objects.
func (s *Store) write(op *backend.Op) error {
	if op.Len == 0 {
		return nil
	}
	b := op.Segs[0]
	if len(op.Segs) > 1 {
		b = make([]byte, 0, op.Len)
		for _, seg := range op.Segs {
			b = append(b, seg...)
		}
	}
	return s.plugin.Write(b, op.Off)
}

// zeroes are written and never written to.
var zeroes [maxZeroes]byte

func (s *Store) clear(off, n int64) error {
	for n > 0 {
		k := min(n, maxZeroes)
		if err := s.plugin.Write(zeroes[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
