//go:build !race

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// segment is machines that are network namespaces, with a switch between them. The test itself is a host at the switch.
//
//	test 192.0.2.100, 2001:db8::64 ── br0 ──┬── a 192.0.2.1 eth0
//	                                        ├── b 192.0.2.2 eth0
//	                                        └── w 192.0.2.3 eth0
type segment struct {
	t     *testing.T
	inner map[string]int // descriptors of the namespaces
}

// inSegment runs a test in a process with a network of its own, and reports whether this is that one.
func inSegment(t *testing.T) bool {
	const key = "ONESHOT_TEST_SEGMENT"
	if os.Getenv(key) != "" {
		return true
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), key+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	err := cmd.Start()
	if os.Geteuid() != 0 && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC)) {
		t.Skipf("this test needs network namespaces: %v", err)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Error(err)
	}
	return false
}

func newSegment(t *testing.T, names ...string) *segment {
	n := &segment{t: t, inner: map[string]int{}}
	up := func(name string, addresses ...string) {
		l, err := netlink.LinkByName(name)
		n.must(err)
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			n.must(err)
			a.Flags = unix.IFA_F_NODAD
			n.must(netlink.AddrAdd(l, a))
		}
		n.must(netlink.LinkSetUp(l))
	}
	n.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	up("lo")
	up("br0", "192.0.2.100/24", "2001:db8::64/64")
	bridge, err := netlink.LinkByName("br0")
	n.must(err)
	for i, name := range names {
		outer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-" + name, MasterIndex: bridge.Attrs().Index}, PeerName: "in-" + name}
		n.must(netlink.LinkAdd(outer))
		n.inner[name] = n.fresh()
		inner, err := netlink.LinkByName("in-" + name)
		n.must(err)
		n.must(netlink.LinkSetNsFd(inner, n.inner[name]))
		up("to-" + name)
		n.inside(name, func() {
			n.must(netlink.LinkSetName(inner, "eth0"))
			up("lo")
			up("eth0", fmt.Sprintf("192.0.2.%d/24", i+1), fmt.Sprintf("2001:db8::%d/64", i+1))
		})
	}
	return n
}

func (n *segment) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// fresh makes a namespace, and returns a descriptor of it.
func (n *segment) fresh() int {
	made := make(chan int)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its goroutine
		fd := -1
		if err := unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fd, _ = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- fd
	}()
	fd := <-made
	if fd < 0 {
		n.t.Fatal("no namespace can be made")
	}
	return fd
}

// inside calls f in the namespace of a machine.
func (n *segment) inside(name string, f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(n.inner[name], unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		done <- err
	}()
	n.must(<-done)
}

// cable puts a machine's cable in, or takes it out.
func (n *segment) cable(name string, in bool) {
	l, err := netlink.LinkByName("to-" + name)
	n.must(err)
	if in {
		n.must(netlink.LinkSetUp(l))
	} else {
		n.must(netlink.LinkSetDown(l))
	}
}

// has says whether a machine has an address.
func (n *segment) has(name, address string) (is bool) {
	n.inside(name, func() {
		l, err := netlink.LinkByName("eth0")
		n.must(err)
		list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		n.must(err)
		is = slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(net.ParseIP(address)) })
	})
	return is
}

// trusting has the test's machine believe what it knows of its neighbours for as long as nobody tells it otherwise.
func (n *segment) trusting() {
	for _, family := range []string{"ipv4", "ipv6"} {
		for key, value := range map[string]string{"base_reachable_time_ms": "36000000", "delay_first_probe_time": "36000", "gc_stale_time": "36000"} {
			n.must(os.WriteFile("/proc/sys/net/"+family+"/neigh/br0/"+key, []byte(value), 0o644))
		}
	}
}

// mac returns the neighbour that the test's machine has for an address.
func (n *segment) mac(address string) string {
	l, err := netlink.LinkByName("br0")
	n.must(err)
	list, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	n.must(err)
	for _, x := range list {
		if a, ok := netip.AddrFromSlice(x.IP); ok && a.Unmap().String() == address {
			return x.HardwareAddr.String()
		}
	}
	return ""
}
