package file

import (
	"fmt"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Resizer = (*Store)(nil)

// Resize grows the store; see backend.Resizer. The new size is durable when it returns.
func (s *Store) Resize(size int64) error {
	s.resize.Lock()
	defer s.resize.Unlock()
	if err := s.grow(size); err != nil {
		return fmt.Errorf("file store %s: %w", s.Path(), err)
	}
	return nil
}

func (s *Store) grow(size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return err
	}
	info := s.Info()
	size, err := sizeOf(Config{Path: s.Path(), Size: size}, st.Size, int64(info.BlockSize))
	switch {
	case err != nil:
		return err
	case size < info.Size:
		return fmt.Errorf("%d bytes are served and %d are left of the file: initiators would lose what is beyond; take the LUN away first", info.Size, size)
	}
	if s.readOnly && size > st.Size {
		return errReadOnly
	}
	changed, err := allocate(s.sparse || s.readOnly, s.fd, st.Size, size)
	if err != nil {
		return err
	}
	if changed {
		if err := s.Durably(func() error { return fsync(s.fd) }); err != nil {
			return fmt.Errorf("make the size of the file durable: %w", err)
		}
	}
	s.SetSize(size)
	return nil
}
