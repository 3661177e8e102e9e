package machine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is an Ethernet that machines are plugged in to: a bridge of the host's kernel, in a network namespace of its own. What is sent to
// a machine that is stopped is dropped when its interface has no more room, as on a cable: nobody waits for it. (QEMU's own networks
// between machines make the sender wait, or lose packets under load.) It is gone when it is closed, and the machines and
// processes on it have ended, and with this process. Its methods may be called by several goroutines at once.
type Network struct{ run chan func() }

// jumbo is the MTU of all interfaces.
const jumbo = 9000

// NewNetwork makes a network on which the host has addresses with their prefixes, if any. That takes root, and /dev/net/tun.
func NewNetwork(addresses ...string) (*Network, error) {
	n := &Network{run: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread, which is in the namespace, ends with its goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = bridge(addresses)
		}
		ready <- err
		for f := range n.run {
			f()
		}
	}()
	if err := <-ready; err != nil {
		n.Close()
		return nil, fmt.Errorf("a network for machines: %w", err)
	}
	return n, nil
}

// Close has the network go when nobody uses it any more.
func (n *Network) Close() { close(n.run) }

// Within calls f on a thread that is in the namespace: what f connects, and the processes that it starts, are there. One f runs at a time.
func (n *Network) Within(f func()) {
	done := make(chan struct{})
	n.run <- func() { defer close(done); f() }
	<-done
}

const bridgeName = "lan"

// bridge makes the bridge in the namespace of the thread.
func bridge(addresses []string) error {
	a := netlink.NewLinkAttrs()
	a.Name = bridgeName
	a.HardwareAddr = hardware(0) // else that of some machine, which comes and goes
	b := &netlink.Bridge{LinkAttrs: a}
	if err := netlink.LinkAdd(b); err != nil {
		return err
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err == nil {
			err = netlink.AddrAdd(b, address)
		}
		if err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(b), netlink.LinkSetUp(lo))
}

// hardware is the address of the interface of a machine that has that number, which is not 0.
func hardware(number byte) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 9, 0, number} }

// Cable is the end of a cable into which a machine is plugged. It ends with the machine.
type Cable struct {
	File *os.File // of the tap device; QEMU gets it as descriptor 3
	Args []string // QEMU's arguments for the interface; its network is called lan
}

// Cable returns one for a machine that has that number on the network, 1 or more. The caller closes the file when QEMU has it.
func (n *Network) Cable(number byte) (c *Cable, err error) {
	n.Within(func() { c, err = cable(number) })
	if err != nil {
		return nil, fmt.Errorf("a cable for a machine: %w", err)
	}
	return c, nil
}

func cable(number byte) (*Cable, error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0) // Go's poller would see the error of a file that is no device yet
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	f := os.NewFile(uintptr(fd), device)
	name, err := tap(f)
	if err == nil {
		err = plug(name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Cable{f, []string{
		"-netdev", "tap,id=lan,fd=3", "-device", fmt.Sprintf("virtio-net-pci,netdev=lan,mac=%v,host_mtu=%d", hardware(number), jumbo),
	}}, nil
}

// tap makes a file a tap device, and returns its name. Packets have a header for what virtio leaves to the receiver.
func tap(f *os.File) (string, error) {
	r, err := unix.NewIfreq("tap%d")
	if err != nil {
		return "", err
	}
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	err = unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, r)
	return r.Name(), err
}

// plug plugs a device in to the bridge.
func plug(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	b, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMTU(l, jumbo), netlink.LinkSetMaster(l, b), netlink.LinkSetUp(l))
}

// Boot is the function of that name for a machine with one more network interface, eth1, which has that number on the network.
func (n *Network) Boot(img *Image, dir string, number byte, more ...string) (*Machine, error) {
	c, err := n.Cable(number)
	if err != nil {
		return nil, err
	}
	defer c.File.Close()
	return boot(img, dir, []*os.File{c.File}, append(c.Args, more...))
}
