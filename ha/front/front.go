// Package front holds the addresses that go with a mirror's primary: they are on the interface of one machine at a time, and
// hosts and switches learn at once that they have moved.
//
//	Add ──────────► the kernel has the address, for Lifetime ── no Add in time ──► gone
//	 │
//	 ├─ Announce ─► gratuitous ARP, or an unsolicited neighbour advertisement: the address has this MAC
//	 └─ Tickle ───► an initiator that waits for an answer of the former machine learns that its connection is no more
//
// A Watch hears that another machine has announced an address.
//
// Addresses are set by netlink (github.com/vishvananda/netlink, which the initiator uses already). Frames and packets
// are made here: each is a few fixed fields, and golang.org/x/sys has the sockets.
package front

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Lifetime is how long the kernel keeps an address that is not added again: it is gone soon after the daemon that has
// added it, whatever has ended that or stopped it.
const Lifetime = 2 * time.Second

// Now is the clock of leases and lifetimes, the same in all processes of a machine: it goes on while the machine sleeps.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // Linux has it since 2.6.39
	return time.Duration(t.Nano())
}

// Address is an address that moves, and the interface of this machine that it is on.
type Address struct {
	IP        netip.Addr
	Interface string
}

func (a Address) String() string { return fmt.Sprintf("%v on %s", a.IP, a.Interface) }

// family is that of the address, as netlink numbers it.
func (a Address) family() int {
	if a.IP.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// link returns the interface.
func (a Address) link() (netlink.Link, error) {
	l, err := netlink.LinkByName(a.Interface)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, fmt.Errorf("this machine has no interface %s: \"ip link\" lists those that it has", a.Interface)
	}
	return l, err
}

// find returns the address as it is on the interface for a time, as Add puts it there; nil: it is not. good is that of the same IP that is
// there for good, with another prefix perhaps; nil: there is none.
func (a Address) find(l netlink.Link) (own, good *netlink.Addr, err error) {
	list, err := netlink.AddrList(l, a.family())
	if err != nil {
		return nil, nil, err
	}
	for i := range list {
		if ip, ok := netip.AddrFromSlice(list[i].IP); !ok || ip.Unmap() != a.IP {
			continue
		}
		if uint32(list[i].ValidLft) == forever {
			good = &list[i]
		} else {
			own = &list[i]
		}
	}
	return own, good, nil
}

// forever is the lifetime of an address that the administrator has set.
const forever = 1<<32 - 1

// Check reports what keeps Add from working: no such interface, or an address that is there for good.
func (a Address) Check() error {
	l, err := a.link()
	if err != nil {
		return err
	}
	return a.check(l)
}

func (a Address) check(l netlink.Link) error {
	_, good, err := a.find(l)
	if good != nil {
		err = fmt.Errorf("%v is on the interface for good, and is to move with the mirror's primary: remove it (ip address del %v dev %s), and from the network's configuration", a, good.IPNet, a.Interface)
	}
	return err
}

// Add puts the address on the interface for Lifetime, or prolongs its stay. One that is there for good stays so: it is the administrator's,
// and perhaps the one by which the machine is reached.
func (a Address) Add() error {
	l, err := a.link()
	if err != nil {
		return err
	}
	if err := a.check(l); err != nil {
		return err
	}
	own := &netlink.Addr{IPNet: a.net(), ValidLft: int(Lifetime / time.Second), PreferedLft: int(Lifetime / time.Second)}
	if a.IP.Is6() {
		// It was seen to be nobody else's by consensus, and duplicate address detection would take a second (RFC 4862 §5.4).
		// An address without preferred lifetime is no source for what this machine begins itself.
		own.Flags, own.PreferedLft = unix.IFA_F_NODAD, 0
	}
	if err := netlink.AddrReplace(l, own); err != nil {
		return fmt.Errorf("%v cannot be added: %w", a, err)
	}
	return nil
}

// Remove takes the address from the interface, if it is there for a time.
func (a Address) Remove() error {
	l, err := a.link()
	if err != nil {
		return err
	}
	own, _, err := a.find(l)
	if err != nil || own == nil {
		return err
	}
	if err := netlink.AddrDel(l, own); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("%v cannot be removed: %w", a, err)
	}
	return nil
}

// net is the address alone: what the machine reaches it does by an address of its own.
func (a Address) net() *net.IPNet {
	return &net.IPNet{IP: a.IP.AsSlice(), Mask: net.CIDRMask(a.IP.BitLen(), a.IP.BitLen())}
}

// HasCarrier reports whether the interface is up, and has a link to something.
func (a Address) HasCarrier() (bool, error) {
	l, err := a.link()
	if err != nil {
		return false, err
	}
	return hasCarrier(l), nil
}

func hasCarrier(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 }

// Unlinked returns the name of the interface that has an address of this machine, if that has no link to anything. Empty: an interface that has one has the
// address, or none has it, as none has that which stands for all.
func Unlinked(ip netip.Addr) (name string, err error) {
	if !ip.IsValid() || ip.IsUnspecified() {
		return "", nil
	}
	list, err := netlink.AddrList(nil, Address{IP: ip}.family())
	for i := range list {
		if other, ok := netip.AddrFromSlice(list[i].IP); !ok || other.Unmap() != ip.WithZone("") {
			continue
		}
		l, err := netlink.LinkByIndex(list[i].LinkIndex)
		if err != nil {
			return "", err
		}
		if at := l.Attrs().Name; ip.Zone() != "" && ip.Zone() != at {
			continue
		} else if name = at; hasCarrier(l) {
			return "", nil
		}
	}
	return name, err
}

// Missing lists the capabilities that this process lacks to hold addresses.
func Missing() (names []string) {
	var h unix.CapUserHeader
	var data [2]unix.CapUserData
	h.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&h, &data[0]); err != nil {
		return nil // then Add tells
	}
	for _, c := range [...]struct {
		bit  uint
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}} {
		if data[0].Effective&(1<<c.bit) == 0 {
			names = append(names, c.name)
		}
	}
	return names
}
