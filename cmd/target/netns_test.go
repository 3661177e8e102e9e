package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart has this process be the one of a test that has a network, mounts and, if need be, users of its own.
const apart = "ONESHOT_TEST_APART"

// isApart says whether the test runs in namespaces of its own. If it does not, it is run there, to its end, by another process.
func isApart(t *testing.T) bool {
	if os.Getenv(apart) == t.Name() {
		if err := up("lo"); err != nil {
			t.Fatal(err)
		}
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), apart+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	c.Stdout, c.Stderr = t.Output(), t.Output()
	if err := c.Run(); err != nil {
		t.Errorf("in namespaces of its own: %v", err)
	}
	return false
}

// isApartBeside is isApart for a test that runs beside others.
func isApartBeside(t *testing.T) bool {
	if os.Getenv(apart) != t.Name() {
		t.Parallel()
	}
	return isApart(t)
}

// network connects three machines with each other, by one switch, and two of them with this process, by another one. Each machine is a
// namespace; it ends with its last process and with the test.
type network struct {
	t      *testing.T
	spaces map[string]int // descriptors
}

// The machines have these addresses: 10.1.0.N between each other, 10.2.0.N for the host, which is 10.2.0.9.
var machines = []string{"a", "b", "w"}

func (n *network) site(text string) *site {
	s := newSiteAt(n.t, text, []string{"10.1.0.1:7260", "10.1.0.2:7260", "10.1.0.3:7260", "10.2.0.1:3260", "10.2.0.2:3260"})
	s.within = n.within
	return s
}

// hardware is the address of a machine's port at a switch; no machine has that of number 99.
func hardware(net, number int) net.HardwareAddr {
	return []byte{2, 0, 0, 0, byte(net), byte(number)}
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t, spaces: map[string]int{}}
	for net := 1; net <= 2; net++ {
		a := netlink.NewLinkAttrs()
		a.Name = fmt.Sprint("switch", net)
		n.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: a}))
		n.must(up(a.Name))
	}
	n.must(address("switch2", 2, 9))
	for i, name := range machines {
		n.open(name)
		n.plug(name, 1, i+1)
		if name != "w" {
			n.plug(name, 2, i+1)
		}
	}
	for from := range machines {
		for to := range machines {
			if from != to {
				n.lose(machines[from], machines[to], false)
			}
		}
	}
	return n
}

// must ends the test if something does not work. It is for its goroutine.
func (n *network) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// open makes the namespace of a machine.
func (n *network) open(name string) {
	n.t.Helper()
	var fd int
	var err error
	thread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return
		}
		if fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			err = up("lo")
		}
	})
	n.must(err)
	n.spaces[name] = fd
	n.t.Cleanup(func() { _ = unix.Close(fd) })
}

// thread calls f on a thread of its own, which ends with f: so f may give it another namespace.
func thread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		f()
	}()
	<-done
}

// within calls f on a thread in the namespace of a machine. What f starts is there as well.
func (n *network) within(name string, f func()) {
	n.t.Helper()
	var err error
	thread(func() {
		if err = unix.Setns(n.spaces[name], unix.CLONE_NEWNET); err == nil {
			f()
		}
	})
	n.must(err)
}

// plug connects a machine with a switch.
func (n *network) plug(name string, net, number int) {
	n.t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name = fmt.Sprint("port", net, name)
	n.must(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: a, PeerName: fmt.Sprint("eth", net), PeerHardwareAddr: hardware(net, number), PeerNamespace: netlink.NsFd(n.spaces[name]),
	}))
	port, err := netlink.LinkByName(a.Name)
	n.must(err)
	to, err := netlink.LinkByName(fmt.Sprint("switch", net))
	n.must(err)
	n.must(netlink.LinkSetMaster(port, to))
	n.must(netlink.LinkSetUp(port))
	n.within(name, func() {
		if err = address(fmt.Sprint("eth", net), net, number); err == nil {
			err = up(fmt.Sprint("eth", net))
		}
	})
	n.must(err)
}

func up(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func address(link string, net, number int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(fmt.Sprintf("10.%d.0.%d/24", net, number))
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, a)
}

// pull takes the cable of a machine out of a switch, or puts it back.
func (n *network) pull(name string, net int, out bool) {
	n.t.Helper()
	port, err := netlink.LinkByName(fmt.Sprint("port", net, name))
	n.must(err)
	if out {
		n.must(netlink.LinkSetDown(port))
		return
	}
	n.must(netlink.LinkSetUp(port))
}

// lose lets everything that one machine sends to another one be lost, or arrive again: it goes to an address that nobody has.
func (n *network) lose(from, to string, lost bool) {
	n.t.Helper()
	number := strings.Index("abw", to) + 1
	at := hardware(1, number)
	if lost {
		at = hardware(1, 99)
	}
	var err error
	n.within(from, func() {
		var l netlink.Link
		if l, err = netlink.LinkByName("eth1"); err == nil {
			err = netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 1, 0, byte(number)), HardwareAddr: at,
			})
		}
	})
	n.must(err)
}
