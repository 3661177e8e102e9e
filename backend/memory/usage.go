package memory

import (
	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Meter = (*Store)(nil)

// Usage implements backend.Meter. Available is what the machine has free.
func (s *Store) Usage() (used, available int64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, 0, err
	}
	return s.mapped.count() * pageSize, int64(info.Freeram) * int64(info.Unit), nil
}
