package file

import (
	"fmt"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Meter = (*Store)(nil)

// Usage implements backend.Meter. Available is what the file system has left.
func (s *Store) Usage() (used, available int64, err error) {
	const statBlock = 512 // of st_blocks, whatever the file system (stat(2))
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return 0, 0, fmt.Errorf("fstat: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &fs); err != nil {
		return 0, 0, fmt.Errorf("fstatfs: %w", err)
	}
	return st.Blocks * statBlock, int64(fs.Bavail) * fs.Bsize, nil
}
