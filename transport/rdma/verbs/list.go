package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"oneshot/transport/rdma"
)

// Info describes a device.
type Info struct {
	Name      string
	Driver    string // rdma_rxe, siw, mlx5_core; empty if the kernel does not say
	Ports     []Port
	Limits    rdma.Limits // zero if the device cannot be opened
	Transport string      // "RoCE", "iWARP", "InfiniBand" or "unknown"
	// Problems lists what prevents the use of the device, and what to do about it.
	Problems []string
}

// Port is a port of a device.
type Port struct {
	Number    int
	State     string // in the kernel's words: ACTIVE, DOWN, INIT, ARMED
	LinkLayer string // Ethernet or InfiniBand
	Rate      string
	NetDev    string // the network interface; empty: none
}

const sysfs = "/sys/class/infiniband"

// OpenOnly opens the device that c names, or, if c names none, the only one of this machine.
func OpenOnly(c Config) (rdma.Device, error) {
	if c.Name == "" {
		all, err := Devices()
		if err != nil {
			return nil, err
		}
		if len(all) != 1 {
			return nil, fmt.Errorf("this machine has %d RDMA devices; name one: ?device=rxe0", len(all))
		}
		c.Name = all[0].Name
	}
	return Open(c)
}

// Devices lists the kernel's RDMA devices. It fails if the kernel has no RDMA.
func Devices() ([]Info, error) {
	entries, err := os.ReadDir(sysfs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this kernel has no RDMA (there is no " + sysfs + "): load the driver of the card, or make a soft-RoCE device of a network interface with \"rdma link add rxe0 type rxe netdev eth0\"")
	}
	if err != nil {
		return nil, err
	}
	list := make([]Info, 0, len(entries))
	for _, e := range entries {
		list = append(list, inspect(e.Name()))
	}
	return list, nil
}

// Names lists the names of the kernel's RDMA devices, without opening them.
func Names() []string {
	entries, _ := os.ReadDir(sysfs) // fails if the kernel has no RDMA, and then there is no device
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func inspect(name string) Info {
	i := Info{Name: name, Transport: "unknown"}
	dir := filepath.Join(sysfs, name)
	if link, err := filepath.EvalSymlinks(filepath.Join(dir, "device/driver")); err == nil {
		i.Driver = filepath.Base(link)
	}
	ports, _ := os.ReadDir(filepath.Join(dir, "ports"))
	active := false
	for _, e := range ports {
		p := inspectPort(filepath.Join(dir, "ports", e.Name()))
		active = active || p.State == "ACTIVE"
		i.Ports = append(i.Ports, p)
	}
	switch kind := line(filepath.Join(dir, "node_type")); {
	case strings.Contains(kind, "RNIC"):
		i.Transport = "iWARP"
	case len(i.Ports) > 0 && i.Ports[0].LinkLayer == "Ethernet":
		i.Transport = "RoCE"
	case strings.Contains(kind, "CA"):
		i.Transport = "InfiniBand"
	}
	if !active {
		i.Problems = append(i.Problems, "no port is active: bring the network interface up (ip link set dev "+i.netdev()+" up), or plug the cable in")
	}
	i.checkNodes(dir)
	examine(&i)
	return i
}

// netdev returns the name of the network interface, or a placeholder.
func (i *Info) netdev() string {
	for _, p := range i.Ports {
		if p.NetDev != "" {
			return p.NetDev
		}
	}
	return "NETDEV"
}

func inspectPort(dir string) Port {
	p := Port{LinkLayer: line(filepath.Join(dir, "link_layer")), Rate: line(filepath.Join(dir, "rate"))}
	p.Number, _ = strconv.Atoi(filepath.Base(dir))
	_, p.State, _ = strings.Cut(line(filepath.Join(dir, "state")), ": ")
	p.NetDev = line(filepath.Join(dir, "gid_attrs/ndevs/0"))
	return p
}

// checkNodes checks the files in /dev through which programs reach the device.
func (i *Info) checkNodes(dir string) {
	nodes, _ := filepath.Glob(filepath.Join(dir, "device/infiniband_verbs/uverbs*"))
	all, _ := filepath.Glob("/sys/class/infiniband_verbs/uverbs*")
	for _, u := range all {
		if line(filepath.Join(u, "ibdev")) == i.Name {
			nodes = append(nodes, u)
		}
	}
	if len(nodes) == 0 {
		i.Problems = append(i.Problems, "programs cannot reach it: load ib_uverbs (modprobe ib_uverbs)")
		return
	}
	for _, file := range []string{"/dev/infiniband/" + filepath.Base(nodes[0]), "/dev/infiniband/rdma_cm"} {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
			continue
		}
		hint := "give the container the devices of /dev/infiniband, or load rdma_ucm and ib_uverbs"
		if errors.Is(err, fs.ErrPermission) {
			hint = "run as root, or give this user the file"
		}
		i.Problems = append(i.Problems, fmt.Sprintf("%v: %s", err, hint))
	}
}

// line returns the first line of a file, or "".
func line(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	text, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(text)
}
