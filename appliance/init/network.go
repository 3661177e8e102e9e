package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// cmdline returns the parameters of the kernel's command line that begin with "oneshot.", by the rest of their names.
func cmdline() map[string]string {
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		say("%v", err)
	}
	return ownWords(string(b))
}

func ownWords(line string) map[string]string {
	words := make(map[string]string)
	for w := range strings.FieldsSeq(line) {
		if own, ok := strings.CutPrefix(w, "oneshot."); ok {
			key, value, _ := strings.Cut(own, "=")
			words[key] = value
		}
	}
	return words
}

// nicTime is how long an interface may take to appear, dhcpTime how long DHCP may take.
const (
	nicTime  = 5 * time.Second
	dhcpTime = "20"
)

// network sets up the loopback interface, one other interface, and soft-RoCE on it.
func network(words map[string]string) error {
	if err := up("lo"); err != nil {
		return err
	}
	nic, err := findNIC(words["nic"])
	if err != nil {
		return err
	}
	if text, ok := words["mtu"]; ok {
		mtu, err := strconv.Atoi(text)
		if err == nil {
			err = setMTU(nic, mtu)
		}
		if err != nil {
			say("oneshot.mtu=%s: %v", text, err)
		}
	}
	if err := up(nic); err != nil {
		return err
	}
	if err := address(nic, cmp.Or(words["ip"], "dhcp")); err != nil {
		say("the address of %s: %v", nic, err)
	}
	if words["rxe"] == "no" {
		return nil
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", nic); err != nil {
		return fmt.Errorf("no soft-RoCE on %s: %w", nic, err)
	}
	say("soft-RoCE device rxe0 on %s", nic)
	return nil
}

// findNIC returns the interface of that name, or the first one except the loopback.
func findNIC(name string) (string, error) {
	for deadline := time.Now().Add(nicTime); ; time.Sleep(50 * time.Millisecond) {
		all, err := net.Interfaces()
		if err != nil {
			return "", err
		}
		for _, i := range all {
			if i.Name == name || name == "" && i.Flags&net.FlagLoopback == 0 {
				return i.Name, nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("there is no network interface %s: is its driver in the appliance?", name)
		}
	}
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func setMTU(name string, mtu int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, mtu)
}

// address gives the interface an address: by DHCP, or ADDRESS/LENGTH[,GATEWAY].
func address(nic, text string) error {
	if text == "dhcp" {
		out, err := exec.Command("dhclient", "-ipv6=false", "-timeout", dhcpTime, nic).CombinedOutput()
		if err != nil {
			return fmt.Errorf("dhclient: %w: %s", err, out)
		}
		addrs, err := tellAddresses(nic)
		if err == nil && !anyIPv4(addrs) { // dhclient ends with 0 all the same
			err = fmt.Errorf("DHCP has given none; in a virtual machine it needs a source of random numbers, such as -cpu max of QEMU; oneshot.ip=ADDRESS/LENGTH[,GATEWAY] sets one: %s", out)
		}
		return err
	}
	own, gateway, hasGateway := strings.Cut(text, ",")
	a, err := netlink.ParseAddr(own)
	if err != nil {
		return fmt.Errorf("oneshot.ip=%s: %w", text, err)
	}
	l, err := netlink.LinkByName(nic)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return err
	}
	if hasGateway {
		g := net.ParseIP(gateway)
		if g == nil {
			return fmt.Errorf("oneshot.ip=%s: the gateway is not an address", text)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: g}); err != nil {
			return err
		}
	}
	_, err = tellAddresses(nic)
	return err
}

// anyIPv4 says whether one of the addresses of an interface is of IPv4: those of IPv6 come without being asked for.
func anyIPv4(addrs []net.Addr) bool {
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.To4() != nil
	})
}

func tellAddresses(nic string) ([]net.Addr, error) {
	i, err := net.InterfaceByName(nic)
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	say("%s has %v", nic, addrs)
	return addrs, nil
}
