package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"oneshot/partition"
)

// Portal is an address at which the targets of its portal group are reached. A target that names no
// groups is in all of them.
type Portal struct {
	Transport Transport
	Pos       Position // of the listen address
	Node      string   // of the cluster, that alone listens there; empty: each

	// Listen is an address and a port; port 0 lets the system choose one. The
	// zero Addr stands for all addresses of both IP versions.
	Listen netip.AddrPort

	// Socket is the path of the unix socket that programs connect to; empty if the transport is not local. Listen is zero then.
	Socket string

	// Group is from 1 on: the target portal group tag of iSCSI, and that by which portals of NVMe have access states.
	Group uint16

	// Mirror is the mirror with whose primary the address goes: it is added to Interface there, and removed elsewhere. Empty:
	// the address is the machine's.
	Mirror, Interface string

	// Advertise is the address, host:port, that discovery tells initiators; empty: the address that they have
	// reached. It is for networks that translate addresses between them and the daemon.
	Advertise string

	OneShot *OneShot // what initiators may ask for; nil if the transport is not iwarp, or no LUNs are served

	// Serve is what is reached through the portal. A portal for partitions or objects is in no group: Group is 0.
	Serve Served
	// Clients are those who can prove their name to a portal for partitions, or for objects.
	Clients []Client
	// Store is the name of the one that keeps the objects of a portal for objects.
	Store string

	// Device is the kernel's RDMA device that the portal uses, for example rxe0, or "any"; empty
	// if the transport is neither verbs nor nvme-rdma.
	Device string

	// NoPolling has the target sleep at once when the device has no completions, instead of polling for a while.
	// All portals of a device have the same value.
	NoPolling bool

	// NoModeration has a TCP portal handle each batch of commands at once, instead of waiting for more commands of
	// initiators that keep many outstanding.
	NoModeration bool

	// NoCRC lets initiators over iWARP decide whether frames have CRCs (RFC 5044 §7.1.1).
	NoCRC bool
}

// OneShot says how a portal speaks one-shot RDMA with initiators that ask for it.
type OneShot struct {
	Flags, Opcodes bool // encodings that the target agrees to; none: one-shot is off
	Validated      bool // messages that need no STag may leave the field out of their header
	Window         int  // STags that an initiator may have advertised and not closed
}

func defaultOneShot() *OneShot {
	return &OneShot{Flags: true, Opcodes: true, Window: 256}
}

// maxWindow is the largest window. No initiator has that many commands outstanding.
const maxWindow = 4096

// Network returns what net.Listen wants for a TCP portal: "tcp4" for an IPv4
// address, 0.0.0.0 included; "tcp6" for an IPv6 one, [::] included; "tcp", both
// at once, for the zero address; "unixpacket" for a socket.
func (p Portal) Network() string {
	switch {
	case p.Socket != "":
		return "unixpacket"
	case !p.Listen.Addr().IsValid():
		return "tcp"
	case p.Listen.Addr().Is4():
		return "tcp4"
	}
	return "tcp6"
}

// Address returns the address for net.Listen: "127.0.0.1:3260", "[::1]:3260", or
// ":3260" for the zero address. Of a socket it is the path.
func (p Portal) Address() string {
	if p.Socket != "" {
		return p.Socket
	}
	if !p.Listen.Addr().IsValid() {
		return ":" + strconv.Itoa(int(p.Listen.Port()))
	}
	return p.Listen.String()
}

// Shown returns the address as a configuration has it, with "*" for all addresses.
func (p Portal) Shown() string {
	if p.Socket == "" && !p.Listen.Addr().IsValid() {
		return "*" + p.Address()
	}
	return p.Address()
}

// Served says what a portal serves.
type Served string

// What a portal can serve.
const (
	ServeLUNs       Served = "luns"       // LUNs of targets, to initiators
	ServePartitions Served = "partitions" // partitions of stores, to programs
	ServeObjects    Served = "objects"    // objects in a store, to programs
	ServeNamespaces Served = "namespaces" // namespaces of subsystems, to hosts; not written in the file
)

// Client is a program, or a machine, that uses partitions or objects by a name of its own.
type Client struct {
	Name   string // of which access lines of partitions say name:NAME
	Pos    Position
	Secret Secret
}

// Transport says what carries the PDUs.
type Transport string

// The transports.
const (
	TransportTCP   Transport = "tcp"   // iSCSI over TCP, RFC 7143
	TransportIWARP Transport = "iwarp" // iSER over RDMA in user space, RFC 7145, RFC 5040
	TransportVerbs Transport = "verbs" // iSER over the kernel's RDMA devices
	TransportLocal Transport = "local" // a unix socket and shared memory, for partitions alone

	TransportNVMeTCP  Transport = "nvme-tcp"  // NVMe over Fabrics over TCP
	TransportNVMeRDMA Transport = "nvme-rdma" // NVMe over Fabrics over the kernel's RDMA devices
)

// NVMe reports whether namespaces are served over t.
func (t Transport) NVMe() bool { return t == TransportNVMeTCP || t == TransportNVMeRDMA }

// Kernel reports whether t is over the RDMA devices of the kernel.
func (t Transport) Kernel() bool { return t == TransportVerbs || t == TransportNVMeRDMA }

// AnyDevice stands for all RDMA devices that the kernel has.
const AnyDevice = "any"

// transports has one row for each transport.
var transports = []Transport{TransportTCP, TransportIWARP, TransportVerbs, TransportLocal, TransportNVMeTCP, TransportNVMeRDMA}

// Transports returns the transports that a configuration can name.
func Transports() []Transport { return slices.Clone(transports) }

// defaultGroup is the tag of portals that are configured without one.
const defaultGroup = 1

// maxPortals bounds the portals: each is compared with all others.
const maxPortals = 1000

// defaultPort is iSCSI's well-known port, RFC 7143 §15.
const defaultPort = 3260

// nvmePort is that of NVMe over Fabrics.
const nvmePort = 4420

// defaultPortals are those of a file that names none. What is said of them is said of the file, which begins at pos.
func defaultPortals(pos Position) []Portal {
	return []Portal{{Pos: pos, Transport: TransportTCP, Group: defaultGroup, Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), defaultPort), Serve: ServeLUNs}}
}

func (d *decoder) portals(root *object) []Portal {
	v := root.take("portals")
	if !root.has("portals") {
		return defaultPortals(root.pos)
	}
	items := v.list("portals")
	if isEmptyList(v) {
		d.errorf(v.at, "there is no portal: add one, such as {transport: tcp, listen: \"127.0.0.1:3260\"}, or remove the key to get that one")
	}
	var portals []Portal
	for i, item := range items {
		if i == maxPortals {
			d.errorf(item.at, "there are more than %d portals: remove this one and what follows", maxPortals)
			break
		}
		p, ok := d.portal(item)
		if !ok {
			d.portalBroken = true
			continue
		}
		if i := slices.IndexFunc(portals, func(q Portal) bool { return mayMeet(p.Node, q.Node) && p.Overlaps(q) }); i >= 0 {
			d.errorf(p.Pos, "line %d already listens at %s: remove one of the two, or choose another %s", portals[i].Pos.Line, portals[i].Shown(), map[bool]string{true: "path", false: "port"}[p.Socket != ""])
		}
		if i := slices.IndexFunc(portals, func(q Portal) bool { return mayMeet(p.Node, q.Node) && p.sharesDevice(q) && p.NoPolling != q.NoPolling }); i >= 0 {
			d.errorf(p.Pos, "the portal in line %d uses the device %s as well, and has another value of polling: write the same in both", portals[i].Pos.Line, portals[i].Device)
		}
		portals = append(portals, p)
	}
	return portals
}

// Overlaps reports whether the two portals cannot listen at the same time. The kernel's RDMA devices have a
// port space of their own. (iWARP cards use TCP's; such a collision shows only when the portal is opened.)
func (p Portal) Overlaps(q Portal) bool {
	if p.Socket != "" || q.Socket != "" {
		return p.Socket == q.Socket
	}
	a, b := p.Listen, q.Listen
	if a.Port() != b.Port() || a.Port() == 0 || p.Transport.Kernel() != q.Transport.Kernel() {
		return false
	}
	if !a.Addr().IsValid() || !b.Addr().IsValid() || a.Addr() == b.Addr() {
		return true
	}
	return a.Addr().Is4() == b.Addr().Is4() && (a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// parseTransport reads a transport. It knows what people call the transports otherwise.
func parseTransport(text string) (Transport, error) {
	switch strings.ToLower(text) {
	case "iser", "rdma":
		return "", fmt.Errorf("%q is not known: iSER is %s in user space, and %s over the kernel's RDMA devices", text, TransportIWARP, TransportVerbs)
	case "iscsi":
		return "", fmt.Errorf("%q is not known: did you mean %q?", text, TransportTCP)
	case "nvme", "nvmf":
		return "", fmt.Errorf("%q is not known: did you mean %q or %q?", text, TransportNVMeTCP, TransportNVMeRDMA)
	}
	return oneOf(transports...)(text)
}

func (d *decoder) portal(v value) (Portal, bool) {
	o := d.object(v.node, "a portal")
	if o == nil {
		return Portal{}, false
	}
	p := Portal{Transport: TransportTCP, Pos: o.pos, Group: defaultGroup, Serve: ServeLUNs}
	d.inNode(o, &p.Node)
	ok := set(o.take("transport"), &p.Transport, "a transport", parseTransport) || !o.has("transport")
	listen := o.take("listen")
	switch {
	case p.Transport == TransportLocal:
		p.Serve = ServePartitions
		ok = d.socket(listen, o.has("listen"), &p) && ok
	case listen.given():
		p.Pos = listen.pos()
		port := defaultPort
		if p.Transport.NVMe() {
			port = nvmePort
		}
		ok = set(listen, &p.Listen, "an address such as 127.0.0.1:3260", func(text string) (netip.AddrPort, error) { return parseListenAt(text, port) }) && ok
	case !o.has("listen"):
		d.errorf(o.pos, "the portal has no address: add listen: \"127.0.0.1:3260\", or \"*:3260\" for all addresses")
		ok = false
	}
	ok = (set(o.take("serve"), &p.Serve, "what a portal serves", oneOf(ServeLUNs, ServePartitions, ServeObjects)) || !o.has("serve")) && ok
	ok = (set(o.take("group"), &p.Group, "a portal group", parseGroup) || !o.has("group")) && ok
	ok = d.moving(o, &p) && ok
	ok = d.advertise(o.take("advertise"), &p) && ok
	oneShot := o.take("one_shot")
	switch {
	case p.Transport == TransportIWARP:
		p.OneShot = d.oneShot(oneShot)
	case oneShot.given():
		oneShot.errorf("one_shot is for RDMA in user space, and the transport is %s: remove it, or make that transport: iwarp", p.Transport)
		ok = false
	}
	ok = d.switchedOff(o.take("crc"), &p.NoCRC, p.Transport == TransportIWARP, crcIsFor, &p) && ok
	ok = d.device(o.take("device"), &p) && ok
	ok = d.switchedOff(o.take("polling"), &p.NoPolling, p.Transport.Kernel(), pollingIsFor, &p) && ok
	ok = d.switchedOff(o.take("moderation"), &p.NoModeration, p.Transport == TransportTCP, moderationIsFor, &p) && ok
	ok = d.clients(o.take("clients"), &p) && ok
	if p.Transport == TransportLocal && p.Serve != ServePartitions {
		o.take("serve").errorf("a portal with transport: local serves partitions, and nothing else: write serve: partitions")
		ok = false
	}
	ok = (p.Serve != ServePartitions || d.servePartitions(o, &p)) && ok
	ok = d.serveObjects(o, &p) && ok
	ok = (!p.Transport.NVMe() || d.nvmePortal(o, &p)) && ok
	o.done()
	return p, ok
}

// DefaultPartitionSocket is where programs look for the partitions of this host (package endpoint).
const DefaultPartitionSocket = "/run/oneshot/rdma.sock"

// socket reads listen: PATH of a local portal.
func (d *decoder) socket(v value, given bool, p *Portal) bool {
	if !given {
		p.Socket = DefaultPartitionSocket
		return true
	}
	if !d.socketPath(v, &p.Socket, DefaultPartitionSocket) {
		return false
	}
	p.Pos = v.pos()
	return true
}

// moving reads mirror: disk1, and interface: eth0.
func (d *decoder) moving(o *object, p *Portal) bool {
	mirror, nic := o.take("mirror"), o.take("interface")
	if !mirror.given() && !nic.given() {
		return true
	}
	if !mirror.given() || !nic.given() {
		d.errorf(p.Pos, "an address goes with a mirror's primary, from the interface of one machine to that of another: give both, mirror: disk1 and interface: eth0, or remove the other one, too")
		return false
	}
	ok := set(mirror, &p.Mirror, "the name of a mirror", func(text string) (string, error) { return text, checkStoreName(text) })
	ok = set(nic, &p.Interface, "a network interface such as eth0", parseInterface) && ok
	switch a := p.Listen.Addr(); {
	case p.Transport != TransportTCP && p.Transport != TransportIWARP || p.Serve != ServeLUNs:
		mirror.errorf("addresses that move are for initiators over tcp and iwarp: remove mirror and interface, or make the transport one of these, without serve")
		return false
	case !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != "" || a.IsLinkLocalUnicast():
		d.errorf(p.Pos, "the address goes with the primary of %q: write one that no machine has for good, such as 192.0.2.10:3260", p.Mirror)
		return false
	case p.Listen.Port() == 0:
		d.errorf(p.Pos, "the address goes from machine to machine, and its port with it: write one, such as 3260")
		return false
	case p.Node != "":
		d.errorf(p.Pos, "the address goes with the primary of %q: remove node: %s", p.Mirror, p.Node)
		return false
	}
	return ok
}

// parseInterface reads the name of a network interface, which the kernel bounds to 15 bytes.
func parseInterface(text string) (string, error) {
	if text == "" || len(text) > 15 || strings.ContainsAny(text, "/ \t\n:") {
		return "", fmt.Errorf("%q is not the name of a network interface: write one that \"ip link\" lists, such as eth0", text)
	}
	return text, nil
}

// servePartitions finishes a portal for partitions.
func (d *decoder) servePartitions(o *object, p *Portal) bool {
	ok := true
	if p.Transport == TransportTCP || p.Transport.NVMe() {
		o.take("serve").errorf("partitions are served over RDMA, and the transport is %s: make it transport: iwarp, which needs no device, or verbs, or local for programs of this machine", p.Transport)
		ok = false
	}
	if p.Transport == TransportLocal && len(p.Clients) > 0 {
		o.take("clients").errorf("clients prove their names, and who connects to a socket is known already: remove it, and grant rights to uid:N or gid:N")
		ok = false
	}
	for _, key := range []string{"group", "advertise", "one_shot"} {
		if o.has(key) {
			o.take(key).errorf("%s is for initiators, and a portal with serve: partitions is not: remove it", key)
			ok = false
		}
	}
	p.Group, p.OneShot = 0, nil
	return ok
}

// clients reads {db1: SECRET}.
func (d *decoder) clients(v value, p *Portal) bool {
	if !v.given() {
		return true
	}
	if p.Serve == ServeLUNs {
		v.errorf("clients are those of partitions or objects, and the portal serves LUNs: remove it, or add serve: partitions")
		return false
	}
	o := d.object(v.node, "clients")
	if o == nil {
		return false
	}
	ok := true
	for _, f := range o.fields {
		c := Client{Name: f.key, Pos: f.at}
		if _, err := partition.ParseWho("name:" + c.Name); err != nil {
			d.errorf(f.at, "%q is not the name of a client: write at most 223 printable characters without blanks", c.Name)
			ok = false
		}
		var good bool
		c.Secret, good = d.secret(o.take(f.key))
		ok = ok && good
		p.Clients = append(p.Clients, c)
	}
	return ok
}

// advertise reads advertise: storage.example.com. Without a port it gets the port of the portal.
func (d *decoder) advertise(v value, p *Portal) bool {
	if !v.given() {
		return true
	}
	port := int(cmp.Or(p.Listen.Port(), defaultPort))
	return set(v, &p.Advertise, "an address such as storage.example.com:3260", func(text string) (string, error) { return parseNode(text, port) })
}

// switchedOff reads a key that is true unless it is given, and is for some transports only.
func (d *decoder) switchedOff(v value, off *bool, fits bool, isFor string, p *Portal) bool {
	switch {
	case !v.given():
		return true
	case !fits:
		v.errorf(isFor, p.Transport)
		return false
	}
	on := true
	ok := set(v, &on, "true or false", parseBool)
	*off = !on
	return ok
}

// What the keys are for.
const (
	crcIsFor        = "crc is for iWARP, and the transport is %s: remove it; an iSCSI initiator asks for digests itself"
	pollingIsFor    = "polling is for the kernel's RDMA devices, and the transport is %s: remove it, or make that transport: verbs or nvme-rdma"
	moderationIsFor = "moderation is for iSCSI over TCP, and the transport is %s: remove it, or make that transport: tcp"
)

// sharesDevice reports whether both portals use, or may use, the same device of the kernel.
func (p Portal) sharesDevice(q Portal) bool {
	return p.Device != "" && q.Device != "" && (p.Device == q.Device || p.Device == AnyDevice || q.Device == AnyDevice)
}

// device reads device: rxe0.
func (d *decoder) device(v value, p *Portal) bool {
	switch {
	case p.Transport.Kernel():
		p.Device = AnyDevice
		return !v.given() || set(v, &p.Device, "an RDMA device such as rxe0, or any", parseDevice)
	case v.given():
		v.errorf("device is for the kernel's RDMA devices, and the transport is %s: remove it, or make that transport: verbs or nvme-rdma", p.Transport)
		return false
	}
	return true
}

func parseDevice(text string) (string, error) {
	if text == "" || strings.ContainsAny(text, "/ \t\n") {
		return "", fmt.Errorf("%q is not the name of an RDMA device: write one that the command rdma lists, such as rxe0, or any", text)
	}
	return text, nil
}

// oneShot reads {encodings: [flags, opcodes], header: every, window: 256}.
func (d *decoder) oneShot(v value) *OneShot {
	s := defaultOneShot()
	if !v.given() {
		return s
	}
	o := d.object(v.node, "one_shot")
	if o == nil {
		return s
	}
	if list := o.take("encodings"); list.given() {
		s.Flags, s.Opcodes = false, false
		for _, item := range list.list("encodings") {
			var e string
			if set(item, &e, "an encoding", oneOf("flags", "opcodes")) {
				s.Flags, s.Opcodes = s.Flags || e == "flags", s.Opcodes || e == "opcodes"
			}
		}
	}
	header := "every"
	set(o.take("header"), &header, "a header mode", oneOf("every", "validated"))
	s.Validated = header == "validated"
	set(o.take("window"), &s.Window, "a number of STags", parseWindow)
	o.done()
	return s
}

func parseWindow(text string) (int, error) {
	n, err := parseInteger(text)
	if err == nil && (n < 1 || n > maxWindow) {
		return 0, fmt.Errorf("%d is out of range: write a number from 1 to %d", n, maxWindow)
	}
	return n, err
}

// parseListen reads ADDRESS:PORT, ADDRESS or :PORT, where * is the same as no
// address and an IPv6 address with a port stands in brackets.
func parseListen(text string) (netip.AddrPort, error) { return parseListenAt(text, defaultPort) }

// parseListenAt is parseListen where none is the port of an address without one.
func parseListenAt(text string, none int) (netip.AddrPort, error) {
	host, port := splitPort(text, strconv.Itoa(none))
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q has no valid port: write a number from 1 to 65535 after the last colon", text)
	}
	if host == "" || host == "*" {
		return netip.AddrPortFrom(netip.Addr{}, uint16(number)), nil
	}
	addr, err := netip.ParseAddr(host)
	if n, e := strconv.ParseUint(text, 10, 16); e == nil && n > 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is a port without an address: write 127.0.0.1:%s, or *:%s for all addresses", text, text, text)
	}
	if a, p, ok := ambiguous(text); ok {
		return netip.AddrPort{}, fmt.Errorf("%q may be an address, or an address and a port: write [%s]:%s if %s is the port, else [%s]", text, a, p, p, text)
	}
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("%q is not an IP address: write one of this machine, such as 127.0.0.1:3260 or [::1]:3260, or *:3260 for all", host)
	case addr.Is4In6():
		addr = addr.Unmap()
	}
	return netip.AddrPortFrom(addr, uint16(number)), nil
}

// ambiguous splits an IPv6 address without brackets if its end could also be a port.
func ambiguous(text string) (address, port string, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", "", false
	}
	address, port = text[:i], text[i+1:]
	addr, err := netip.ParseAddr(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return address, port, err == nil && addr.Is6() && portErr == nil && n > 0
}

// splitPort separates an address from its port, which is none if it is missing.
func splitPort(text, none string) (host, port string) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, after, closed := strings.Cut(rest, "]")
		switch {
		case closed && after == "":
			return host, none
		case closed && after[0] == ':':
			return host, after[1:]
		}
		return text, none
	}
	if i := strings.LastIndexByte(text, ':'); i >= 0 && i == strings.IndexByte(text, ':') {
		return text[:i], text[i+1:]
	}
	return text, none // an IPv4 address, or an IPv6 one without brackets
}
