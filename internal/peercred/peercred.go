// Package peercred asks the kernel who is at the other end of a unix socket.
package peercred

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Of returns the process, user and group that have connected, or listened, as they were then (SO_PEERCRED, unix(7)).
func Of(c syscall.Conn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return nil, e
	}
	return peer, err
}
