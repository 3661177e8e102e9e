package front

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Announcements are when an address is announced, after it was added: again, because frames are lost, switches learn, and
// hosts may ignore what comes soon after another answer (locktime of neighbour entries, a second).
var Announcements = [...]time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}

// Announce tells the network of the interface, once, that the address has the interface's MAC.
func (a Address) Announce() (err error) {
	l, err := a.link()
	if err != nil {
		return err
	}
	mac := l.Attrs().HardwareAddr
	if len(mac) != macLen || l.Attrs().Flags&net.FlagLoopback != 0 {
		return nil // nobody there keeps MACs
	}
	frame := announcement([macLen]byte(mac), a.IP)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	to := &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: macLen}
	copy(to.Addr[:], frame)
	return unix.Sendto(fd, frame, 0, to)
}

const macLen = 6

// announcement returns an Ethernet frame.
func announcement(mac [macLen]byte, ip netip.Addr) []byte {
	if ip.Is4() {
		return appendARP(nil, mac, ip.As4())
	}
	return appendAdvertisement(nil, mac, ip.As16())
}

// appendARP appends an ARP announcement (RFC 5227 §2.3, RFC 826): a request for the sender's own address, to all.
//
//	destination 6, source 6, type 0806 | Ethernet 0001, IPv4 0800, lengths 6 4, request 0001 | MAC, IP | 0, IP
func appendARP(b []byte, mac [macLen]byte, ip [4]byte) []byte {
	b = append(b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	b = append(b, mac[:]...)
	b = append(b, 0x08, 0x06, 0, 1, 0x08, 0, macLen, 4, 0, 1)
	b = append(append(b, mac[:]...), ip[:]...)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, ip[:]...)
}

// appendAdvertisement appends an unsolicited neighbour advertisement (RFC 4861 §4.4, §7.2.6) with the Override flag, to all nodes.
//
//	destination 33:33:0:0:0:1, source, type 86dd | IPv6, hop limit 255 | type 136, code, checksum, flags 20…, address | option 2, MAC
func appendAdvertisement(b []byte, mac [macLen]byte, ip [16]byte) []byte {
	b = append(b, 0x33, 0x33, 0, 0, 0, 1)
	b = append(b, mac[:]...)
	b = append(b, 0x86, 0xdd)
	all := netip.MustParseAddr("ff02::1").As16()
	m := []byte{136, 0, 0, 0, 0x20, 0, 0, 0}
	m = append(m, ip[:]...)
	m = append(append(m, 2, 1), mac[:]...)
	binary.BigEndian.PutUint16(m[2:], checksum(unix.IPPROTO_ICMPV6, ip[:], all[:], m))
	b = appendIPv6(b, unix.IPPROTO_ICMPV6, ip, all, len(m))
	return append(b, m...)
}

// appendIPv6 appends the header of a packet with n bytes after it (RFC 8200 §3).
func appendIPv6(b []byte, next byte, from, to [16]byte, n int) []byte {
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, next, 255)
	b = append(b, from[:]...)
	return append(b, to[:]...)
}

// checksum is that of a transport's packet, with the pseudo-header of its IP (RFC 9293 §3.1, RFC 8200 §8.1).
func checksum(protocol byte, from, to, packet []byte) uint16 {
	sum := uint64(protocol) + uint64(len(packet))
	for _, part := range [...][]byte{from, to, packet} { // only the last one has an odd length
		for len(part) > 1 {
			sum += uint64(binary.BigEndian.Uint16(part))
			part = part[2:]
		}
		if len(part) == 1 {
			sum += uint64(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
