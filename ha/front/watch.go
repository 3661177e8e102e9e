package front

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Watch hears when another machine announces an address on the interface. Next and Close may be called by different goroutines.
type Watch struct {
	address Address
	own     [macLen]byte // the MAC of this machine
	f       *os.File
}

// Watch begins to hear. It needs CAP_NET_RAW.
func (a Address) Watch() (*Watch, error) {
	l, err := a.link()
	if err != nil {
		return nil, err
	}
	w := &Watch{address: a}
	copy(w.own[:], l.Attrs().HardwareAddr)
	// Without a protocol it gets nothing before the filter is there (packet(7)); with one it gets nothing that this machine sends.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	protocol := uint16(unix.ETH_P_ARP)
	if a.IP.Is6() {
		protocol = unix.ETH_P_IPV6
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(advertisements)), Filter: &advertisements[0]})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol)), Ifindex: l.Attrs().Index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	w.f = os.NewFile(uintptr(fd), "announcements")
	return w, nil
}

// advertisements is a filter (BPF, Linux, Documentation/networking/filter.rst) for neighbour advertisements: next header 58, type 136.
var advertisements = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.IPPROTO_ICMPV6},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 40},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: 136},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
	{Code: unix.BPF_RET | unix.BPF_K},
}

// Next waits until another machine announces the address. An error says that nothing more is heard: Close was called, or the interface has gone.
func (w *Watch) Next() error {
	var b [256]byte
	for {
		n, err := w.f.Read(b[:])
		if err != nil {
			return err
		}
		if mac, ip, ok := announced(b[:n]); ok && ip == w.address.IP && mac != w.own {
			return nil
		}
	}
}

// Close ends it.
func (w *Watch) Close() error { return w.f.Close() }

// announced reads who says in a packet of ARP (RFC 826), whether it asks or answers, or in a neighbour advertisement (RFC 4861 §4.4, §7.1.2) with
// the option of its MAC first, that it has which address.
func announced(b []byte) (mac [macLen]byte, ip netip.Addr, ok bool) {
	const arpLen, advertisementLen, hopLimit = 28, 40 + 24 + 8, 255
	switch {
	case len(b) >= arpLen && string(b[:6]) == "\x00\x01\x08\x00\x06\x04":
		return [macLen]byte(b[8:14]), netip.AddrFrom4([4]byte(b[14:18])), true
	case len(b) >= advertisementLen && b[0]>>4 == 6 && b[6] == unix.IPPROTO_ICMPV6 && b[7] == hopLimit && b[40] == 136 && b[64] == 2 && b[65] == 1:
		return [macLen]byte(b[66:72]), netip.AddrFrom16([16]byte(b[48:64])), true
	}
	return mac, ip, false
}
