package card

import (
	"encoding/binary"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/peercred"
)

// Peer is the process of a program, as the kernel says (SO_PEERCRED, SO_PEERGROUPS: socket(7)): as it was when it connected.
type Peer struct {
	PID  int32
	UID  uint32
	GIDs []uint32 // its group and its supplementary groups
}

// maxGroups is how many supplementary groups a process has at most (NGROUPS_MAX).
const maxGroups = 1 << 16

// peerOf returns who has connected.
func peerOf(u *net.UnixConn) (p Peer, err error) {
	cred, err := peercred.Of(u)
	if err != nil {
		return p, err
	}
	more, err := peerGroups(u)
	return Peer{cred.Pid, cred.Uid, append([]uint32{cred.Gid}, more...)}, err
}

// peerGroups returns the supplementary groups of who has connected.
func peerGroups(u *net.UnixConn) ([]uint32, error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	for n := uint32(64); ; n = maxGroups {
		b := make([]byte, 4*n)
		size := uint32(len(b))
		var e unix.Errno
		err := raw.Control(func(fd uintptr) {
			_, _, e = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&size)), 0)
		})
		switch {
		case err != nil:
			return nil, err
		case e == unix.ERANGE && n < maxGroups:
			continue
		case e != 0:
			return nil, e
		}
		list := make([]uint32, size/4)
		for i := range list {
			list[i] = binary.NativeEndian.Uint32(b[4*i:])
		}
		return list, nil
	}
}
