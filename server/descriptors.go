package server

import (
	"os"

	"golang.org/x/sys/unix"

	"oneshot/backend/fdio"
)

// spareDescriptors is the number of descriptors that connections leave free: for states and journals that
// are being written, for stores that a reload opens, and for connections of the administrator.
const spareDescriptors = 64

// connectionLimit returns limits.connections, or less if the process may not have that many
// descriptors besides those of its stores, which may take some more (fdio.MayOpen). So a connection too many is refused, and nothing else
// fails for lack of a descriptor. The log says so once. mu is held.
func (s *Server) connectionLimit(want int) int {
	limit, used, err := descriptors()
	if err != nil {
		return want // there may be no /proc; portals cope with a lack of descriptors
	}
	others := used - s.node.Connections() - s.nvme.Connections() + fdio.MayOpen() + spareDescriptors
	room := max(1, limit-others)
	if room >= want {
		s.scarce = false
		return want
	}
	if !s.scarce {
		s.scarce = true
		s.log.Warn("the process has too few descriptors for limits.connections: raise LimitNOFILE= of the unit (ulimit -n), or lower limits.connections",
			"connections", room, "configured", want, "descriptors", limit, "needed", want+others)
	}
	return room
}

// descriptors returns how many descriptors this process may have, and how many it has open.
func descriptors() (limit, used int, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, 0, err
	}
	open, err := os.ReadDir("/proc/self/fd")
	return int(min(l.Cur, 1<<30)), len(open), err
}
