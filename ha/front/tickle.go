package front

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Tickle makes an initiator look at a connection that the former machine of the address had: the initiator answers an ACK that
// is out of order with the numbers that it expects (RFC 9293 §3.10.7.4), and this kernel, which knows no such connection,
// resets it then. Without that, an initiator that only waits for an answer waits for its own timers. local is the
// moved address, which this machine has.
func Tickle(local, remote netip.AddrPort) error {
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	// With IPPROTO_RAW the packet has the header of IP, too (raw(7)).
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(remote.Addr())}
	if family == unix.AF_INET6 {
		to = &unix.SockaddrInet6{Addr: remote.Addr().As16()}
	}
	return unix.Sendto(fd, appendTickle(nil, local, remote), 0, to)
}

func as4(a netip.Addr) (ip [4]byte) {
	if a.Is4() {
		ip = a.As4()
	}
	return ip
}

const tcpLen = 20

// appendTickle appends an IP packet with an ACK of sequence number 0. The kernel puts the checksum of an IPv4 header in.
func appendTickle(b []byte, local, remote netip.AddrPort) []byte {
	p := make([]byte, tcpLen) // RFC 9293 §3.1
	binary.BigEndian.PutUint16(p, local.Port())
	binary.BigEndian.PutUint16(p[2:], remote.Port())
	p[12], p[13] = tcpLen/4<<4, 0x10 // ACK
	binary.BigEndian.PutUint16(p[16:], checksum(unix.IPPROTO_TCP, local.Addr().AsSlice(), remote.Addr().AsSlice(), p))
	if local.Addr().Is6() {
		return append(appendIPv6(b, unix.IPPROTO_TCP, local.Addr().As16(), remote.Addr().As16(), len(p)), p...)
	}
	from, to := local.Addr().As4(), as4(remote.Addr())
	b = append(b, 0x45, 0, 0, 20+tcpLen, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0)
	b = append(append(b, from[:]...), to[:]...)
	return append(b, p...)
}
