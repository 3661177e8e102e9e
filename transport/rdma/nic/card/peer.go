package card

import (
	"encoding/binary"
	"errors"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
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
	raw, err := u.SyscallConn()
	if err != nil {
		return p, err
	}
	var e error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); e != nil {
			return
		}
		p.PID, p.UID, p.GIDs = cred.Pid, cred.Uid, []uint32{cred.Gid}
		var more []uint32
		if more, e = peerGroups(fd); e == nil {
			p.GIDs = append(p.GIDs, more...)
		}
	})
	return p, errors.Join(err, e)
}

// peerGroups returns the supplementary groups of who has connected.
func peerGroups(fd uintptr) ([]uint32, error) {
	for n := uint32(64); ; n = maxGroups {
		b := make([]byte, 4*n)
		size := uint32(len(b))
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
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
