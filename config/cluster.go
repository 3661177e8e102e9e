package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Cluster names the nodes that keep records together (package ha/quorum). All of them have the same file.
type Cluster struct {
	Name  string   // empty: there is no cluster
	Pos   Position // of the name
	State string   // path of the directory for the state of this node alone
	// Transport is what mirrors take from node to node, and Device the RDMA device of ClusterVerbs, or AnyDevice.
	Transport ClusterTransport
	Device    string
	Keeper    ClusterKeeper
	Nodes     []ClusterNode

	// Self is the node that this configuration is for, and Parts tell whether others have the same. [Config.On] sets
	// all of these.
	Self   string
	Parts  []Part
	Others []Portal // for initiators, of other nodes
	Moving []Portal // of this node, while it is the primary of their mirrors
	Own    []Portal // for initiators and hosts of NVMe, of this node, whose addresses are its machine's
	// Hosts are those for hosts of NVMe, and Objects those for objects, of other nodes.
	Hosts, Objects []Portal
}

// ClusterNode is a machine of the cluster.
type ClusterNode struct {
	Name    string
	Pos     Position
	Address string // host:port at which the others reach it, and at which it listens
	Witness bool   // it votes, and serves nothing
	Data    string // host:port for the data of mirrors, if the transport needs one, and the node is no witness
	// Fence is a command, with its arguments, by which another node takes the power from this one, when it takes over what this one has served.
	// Nil: none.
	Fence []string
}

// ClusterKeeper is the process that holds the addresses that move on each machine (target keeper).
type ClusterKeeper struct {
	Socket   string // path; empty: there is no keeper, and the daemon holds them itself
	Watchdog string // path of the device that the keeper pets; empty: none
}

// DefaultKeeperSocket is the path of the keeper's socket if the configuration has none. The Debian package's unit makes its directory.
const DefaultKeeperSocket = "/run/oneshot-keeper/keeper.sock"

// ClusterTransport is what takes the data of mirrors from node to node.
type ClusterTransport string

// The transports.
const (
	ClusterTCP   ClusterTransport = "tcp"   // TLS over TCP, as everything else between nodes
	ClusterIWARP ClusterTransport = "iwarp" // RDMA in user space
	ClusterVerbs ClusterTransport = "verbs" // RDMA over a device of the kernel
)

// Part is a part of a configuration, and a digest of what it says.
type Part struct {
	Name string // such as "stores.disk1"
	Sum  [16]byte
}

const (
	clusterPort     = 7260
	dataPort        = 7261
	maxClusterNodes = 15 // ha/quorum has as many members
	maxNodeName     = 64
)

// Node returns the node of that name, or nil.
func (c *Cluster) Node(name string) *ClusterNode {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i]
		}
	}
	return nil
}

func (c *Cluster) names() []string {
	names := make([]string, len(c.Nodes))
	for i := range c.Nodes {
		names[i] = c.Nodes[i].Name
	}
	return names
}

// On returns what one node of the cluster serves: stores, targets, subsystems and portals of others are left out, and a
// witness has none. c must have a cluster, and stays as it is.
func (c *Config) On(name string) (*Config, error) {
	self := c.Cluster.Node(name)
	if self == nil {
		return nil, fmt.Errorf("%s: there is no node %q in the cluster %s: %s; --node, or else the host name, says which node this machine is",
			c.Cluster.Pos, name, c.Cluster.Name, choices(name, c.Cluster.names()))
	}
	on := *c
	on.Cluster.Self, on.Cluster.Parts = name, c.parts()
	for _, p := range c.Portals {
		if p.Node == "" || p.Node == name {
			continue
		}
		switch p.Serve {
		case ServeLUNs:
			on.Cluster.Others = append(on.Cluster.Others, p)
		case ServeNamespaces:
			on.Cluster.Hosts = append(on.Cluster.Hosts, p)
		case ServeObjects:
			on.Cluster.Objects = append(on.Cluster.Objects, p)
		case ServePartitions:
		}
	}
	on.Stores = slices.DeleteFunc(here(c.Stores, self, func(s *Store) *string { return &s.Node }), func(s Store) bool { return s.Mirror != nil && s.Mirror.Copy(name) == nil })
	on.Targets = slices.DeleteFunc(here(c.Targets, self, func(t *Target) *string { return &t.Node }), func(t Target) bool { return !c.mirroredOn(name, t.view()) })
	on.Subsystems = slices.DeleteFunc(here(c.Subsystems, self, func(s *Subsystem) *string { return &s.Node }), func(s Subsystem) bool { return !c.mirroredOn(name, s.view()) })
	for i := range on.Subsystems {
		s := &on.Subsystems[i]
		if mirrors := mirrorsIn(c, s.view()); len(mirrors) > 0 {
			s.CNTLIDs = mirrors[0].Mirror.cntlids(name)
		}
	}
	on.Portals = slices.DeleteFunc(here(c.Portals, self, func(p *Portal) *string { return &p.Node }), func(p Portal) bool {
		return p.Mirror != "" && on.Store(p.Mirror) == nil
	})
	for _, p := range on.Portals {
		switch {
		case p.Mirror != "":
			on.Cluster.Moving = append(on.Cluster.Moving, p)
		case p.Serve == ServeLUNs || p.Serve == ServeNamespaces:
			on.Cluster.Own = append(on.Cluster.Own, p)
		}
	}
	return &on, nil
}

// here returns those of a list that self has.
func here[T any](list []T, self *ClusterNode, node func(*T) *string) (kept []T) {
	for _, x := range list {
		if n := node(&x); !self.Witness && (*n == "" || *n == self.Name) {
			*n = ""
			kept = append(kept, x)
		}
	}
	return kept
}

func (d *decoder) cluster(v value, c *Cluster) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "cluster")
	if o == nil {
		return
	}
	c.Pos = o.pos
	if name := o.take("name"); set(name, &c.Name, "a name", parseNodeName) {
		c.Pos = name.pos()
	} else if !o.has("name") {
		d.errorf(o.pos, "the cluster has no name: add one, such as name: lab")
	}
	if set(o.take("state"), &c.State, "the path of a directory", parsePath) {
		c.State = resolvePath(d.src.file, c.State)
	} else if !o.has("state") {
		d.errorf(o.pos, "the cluster has no directory for what this node has promised: add one, such as state: /var/lib/oneshot/cluster")
	}
	transport := o.take("transport")
	d.clusterTransport(transport, c)
	d.keeper(o.take("keeper"), &c.Keeper)
	d.clusterNodes(o, c)
	o.done()
	if c.Transport != ClusterTCP && len(c.Nodes) > 0 {
		d.warnf(transport.pos(), "the data of mirrors are neither encrypted nor authenticated octet by octet from node to node: give them a network of their own, or WireGuard")
	}
}

// clusterTransport reads iwarp, or {type: verbs, device: rxe0}.
func (d *decoder) clusterTransport(v value, c *Cluster) {
	c.Transport = ClusterTCP
	parse := oneOf(ClusterTCP, ClusterIWARP, ClusterVerbs)
	var device value
	switch v.node.(type) {
	case nil:
		return
	case *ast.MappingNode, *ast.MappingValueNode:
		o := d.object(v.node, "transport")
		if o == nil {
			return
		}
		kind := o.take("type")
		device = o.take("device")
		o.done()
		if !set(kind, &c.Transport, "a transport", parse) {
			if !o.has("type") {
				d.errorf(v.pos(), "the transport has no type: add one, such as type: verbs")
			}
			return
		}
	default:
		set(v, &c.Transport, "a transport", parse)
	}
	if c.Transport == ClusterVerbs {
		c.Device = AnyDevice
		set(device, &c.Device, "an RDMA device such as rxe0, or any", parseDevice)
	} else if device.given() {
		device.errorf("device is for the kernel's RDMA devices, and the transport is %s: remove it, or make that type: verbs", c.Transport)
	}
}

func (d *decoder) keeper(v value, k *ClusterKeeper) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "keeper")
	if o == nil {
		return
	}
	k.Socket = DefaultKeeperSocket
	d.socketPath(o.take("socket"), &k.Socket, DefaultKeeperSocket)
	if watchdog := o.take("watchdog"); set(watchdog, &k.Watchdog, "the path of a device such as /dev/watchdog", parsePath) && !filepath.IsAbs(k.Watchdog) {
		watchdog.errorf("watchdog: %q is not the path of a device: write one such as /dev/watchdog", k.Watchdog)
	}
	o.done()
}

func (d *decoder) clusterNodes(cluster *object, c *Cluster) {
	v := cluster.take("nodes")
	if !v.given() {
		if !cluster.has("nodes") {
			d.errorf(cluster.pos, "the cluster has no nodes: add them, such as nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}, w: {address: 10.1.0.3, witness: true}}")
		}
		return
	}
	list := d.object(v.node, "nodes")
	if list == nil {
		return
	}
	at := make(map[string]string) // who has an address
	for i, f := range list.fields {
		if i == maxClusterNodes {
			d.errorf(f.at, "there are more than %d nodes: remove this one and what follows", maxClusterNodes)
			break
		}
		n := ClusterNode{Name: f.key, Pos: f.at}
		if _, err := parseNodeName(f.key); err != nil {
			d.errorf(f.at, "%v", err)
		}
		o := d.object(list.take(f.key).node, "a node")
		if o == nil {
			continue
		}
		address := o.take("address")
		if set(address, &n.Address, "an address such as 10.1.0.1", parseNodeAddress) {
			if other := at[n.Address]; other != "" {
				address.errorf("the node %s has the address %s already: give each its own", other, n.Address)
			}
			at[n.Address] = n.Name
		} else if !o.has("address") {
			d.errorf(f.at, "the node %q has no address: add one, such as address: 10.1.0.1", n.Name)
		}
		o.bool("witness", &n.Witness)
		d.dataOf(c, o, &n, at)
		d.fence(o, &n)
		o.done()
		c.Nodes = append(c.Nodes, n)
	}
	serving := 0
	for _, n := range c.Nodes {
		if !n.Witness {
			serving++
		}
	}
	switch {
	case len(list.fields) == 0 || len(c.Nodes) > 0 && serving == 0:
		d.errorf(cluster.pos, "no node of the cluster serves anything: add one that is no witness")
	case len(c.Nodes) == 2:
		d.warnf(cluster.pos, "of two nodes one alone votes: if that one is lost, the other can change nothing; add a third, which may be a witness")
	}
}

// fence reads a command.
func (d *decoder) fence(o *object, n *ClusterNode) {
	v := o.take("fence")
	for _, word := range v.list("words: a command and its arguments") {
		text, ok := scalarText(word.node)
		if !ok {
			word.errorf("fence: write a word of the command, not %s", kind(word.node))
			return
		}
		n.Fence = append(n.Fence, text)
	}
	switch {
	case !v.given():
	case n.Witness:
		v.errorf("fence: a witness serves no mirror that another node would take over: remove the command")
	case len(n.Fence) == 0 || !filepath.IsAbs(n.Fence[0]):
		v.errorf("fence: the command begins with the path of a program: write it from the root, such as [/usr/local/sbin/fence, %s]", n.Name)
	}
}

// dataOf reads where a node takes data of mirrors: at an address of its own, or at the one of the node with another port.
func (d *decoder) dataOf(c *Cluster, o *object, n *ClusterNode, at map[string]string) {
	data := o.take("data")
	switch {
	case n.Witness:
		if data.given() {
			data.errorf("data: a witness takes no data of mirrors: remove the address")
		}
		return
	case c.Transport == ClusterTCP:
		if data.given() {
			data.errorf("data: nothing comes there: it is for transport: iwarp or verbs of the cluster")
		}
		return
	}
	if host, _, err := net.SplitHostPort(n.Address); err == nil {
		n.Data = net.JoinHostPort(host, strconv.Itoa(dataPort))
	}
	set(data, &n.Data, "an address such as 10.2.0.1", func(text string) (string, error) { return parsePeer(text, dataPort) })
	if other := at[n.Data]; other != "" && n.Data != "" {
		d.errorf(n.Pos, "the node %s has the address %s already: give %s its own, such as data: 10.2.0.1", other, n.Data, n.Name)
	}
	at[n.Data] = n.Name
}

func parseNodeName(text string) (string, error) {
	if text == "" || len(text) > maxNodeName {
		return "", fmt.Errorf("the name %q has %d characters: it has 1 to %d", text, len(text), maxNodeName)
	}
	for _, r := range text {
		if r != '.' && r != '-' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z') {
			return "", fmt.Errorf("the name %q holds %q: use letters, digits, dash and dot", text, r)
		}
	}
	return text, nil
}

func parseNodeAddress(text string) (string, error) { return parsePeer(text, clusterPort) }

// parsePeer reads an address at which other nodes find a node.
func parsePeer(text string, port int) (string, error) {
	at, err := parseNode(text, port)
	if err != nil {
		return "", err
	}
	if a, err := netip.ParseAddrPort(at); err == nil && a.Addr().IsUnspecified() {
		return "", errors.New("this stands for all addresses, and the other nodes have to find one: write the one that they reach")
	}
	return at, nil
}

// inNode reads which node has something.
func (d *decoder) inNode(o *object, node *string) {
	v := o.take("node")
	if set(v, node, "the name of a node", parseNodeName) {
		d.nodeUses = append(d.nodeUses, nodeUse{v.pos(), *node, false})
	}
}

// mayMeet reports whether one machine may have two things, of which each is on a node; empty: on all.
func mayMeet(a, b string) bool { return a == "" || b == "" || a == b }

// nodeUse is a place that names a node.
type nodeUse struct {
	pos    Position
	name   string
	copies bool // a mirror has a copy there
}

// checkNodes asks whether each node that is named can serve, and whether it is clear who serves what.
func (d *decoder) checkNodes(c *Config) {
	for _, u := range d.nodeUses {
		switch n := c.Cluster.Node(u.name); {
		case c.Cluster.Pos.Line == 0:
			if !u.copies { // what is said of the mirror is enough
				d.errorf(u.pos, "there is no cluster: remove the node, or add cluster: {name: …, state: …, nodes: …}")
			}
		case n == nil && len(c.Cluster.Nodes) > 0: // else that is what is wrong
			d.errorf(u.pos, "there is no node %q in the cluster: %s", u.name, choices(u.name, c.Cluster.names()))
		case n != nil && n.Witness:
			d.errorf(u.pos, "the node %s is a witness, which serves nothing: name another one", u.name)
		}
	}
	if c.Cluster.Name == "" {
		return
	}
	const say = "every node of the cluster reads this file, and only one may serve it: say which, such as node: %s"
	first := "a"
	if i := slices.IndexFunc(c.Cluster.Nodes, func(n ClusterNode) bool { return !n.Witness }); i >= 0 {
		first = c.Cluster.Nodes[i].Name
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Node == "" && len(mirrorsIn(c, t.view())) == 0 {
			d.errorf(t.Pos, say, first)
		}
		for j := range t.LUNs {
			d.checkNodeOf(c, t.Node, t.LUNs[j].Store, t.LUNs[j].Pos)
		}
	}
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		if s.Node == "" && len(mirrorsIn(c, s.view())) == 0 {
			d.errorf(s.Pos, say, first)
		}
		for _, n := range s.Namespaces {
			d.checkNodeOf(c, s.Node, n.Store, n.Pos)
		}
	}
	for i := range c.Stores {
		s := &c.Stores[i]
		if s.Partitioned && s.Node == "" {
			d.errorf(s.Pos, say, first)
		}
		if s.On != nil && s.On.Node != s.Node {
			d.errorf(s.Pos, "the store %q stands on %q, which is on another node: give both the same node", s.Name, s.On.Name)
		}
	}
}

// checkNodePorts refuses portals where a node listens for the others. A node whose address is a name is left alone: only the machine
// itself knows what that means.
func (d *decoder) checkNodePorts(c *Config) {
	for _, n := range c.Cluster.Nodes {
		for _, a := range []struct{ key, address string }{{"address", n.Address}, {"data", n.Data}} {
			at, err := netip.ParseAddrPort(a.address)
			if err != nil || n.Witness {
				continue
			}
			for _, p := range c.Portals {
				if mayMeet(p.Node, n.Name) && p.Overlaps(Portal{Listen: at}) {
					d.errorf(p.Pos, "the node %s listens for the other nodes there already (%s: %s): choose another port for one of the two", n.Name, a.key, a.address)
				}
			}
		}
	}
}

// checkNodeOf refuses to show a store of another node.
func (d *decoder) checkNodeOf(c *Config, node, store string, pos Position) {
	if s := c.Store(store); s != nil && s.Node != "" && node != "" && s.Node != node {
		d.errorf(pos, "the store %q is on node %s, and this is served by %s: name a store of that node", store, s.Node, node)
	}
}

// parts returns digests of what c says, by parts. Positions and warnings do not count, nor who reads it. Paths in the
// directory of the file are relative to it.
func (c *Config) parts() (list []Part) {
	add := func(name string, v any) {
		h := sha256.New()
		digest(h, filepath.Dir(c.File)+string(filepath.Separator), reflect.ValueOf(v))
		list = append(list, Part{name, [16]byte(h.Sum(nil))})
	}
	add("cluster", c.Cluster)
	add("log", c.Log)
	for i := range c.Stores {
		add("stores."+c.Stores[i].Name, c.Stores[i])
	}
	for i := range c.Targets {
		add("targets."+c.Targets[i].Name, c.Targets[i])
	}
	for i := range c.Subsystems {
		add("subsystems."+c.Subsystems[i].NQN, c.Subsystems[i])
	}
	add("portals", c.Portals)
	add("discovery", c.Discovery)
	add("limits", c.Limits)
	add("state", c.State)
	add("isns", c.ISNS)
	add("metrics", c.Metrics)
	add("management", c.Management)
	return list
}

// digest writes a value of a configuration, each with its type and length before it, so that no two look alike.
func digest(h hash.Hash, dir string, v reflect.Value) {
	switch x := v.Interface().(type) {
	case Position:
		return
	case Secret:
		fmt.Fprintf(h, "secret %d:%s;", len(x.Bytes()), x.Bytes())
		return
	case netip.AddrPort:
		fmt.Fprintf(h, "%q;", x)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			digest(h, dir, v.Field(i))
		}
	case reflect.Slice:
		fmt.Fprintf(h, "list %d:", v.Len())
		for i := range v.Len() {
			digest(h, dir, v.Index(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			_, _ = io.WriteString(h, "nil;") // a hash takes all
			return
		}
		digest(h, dir, v.Elem())
	case reflect.String:
		fmt.Fprintf(h, "%q;", strings.TrimPrefix(v.String(), dir))
	default:
		fmt.Fprintf(h, "%q;", fmt.Sprint(v.Interface()))
	}
}

// Differences returns the names of the parts in which two configurations differ, in the order of the first, and then
// those that only the second has.
func Differences(a, b []Part) (names []string) {
	for _, p := range a {
		if !slices.Contains(b, p) {
			names = append(names, p.Name)
		}
	}
	for _, p := range b {
		if !slices.ContainsFunc(a, func(q Part) bool { return q.Name == p.Name }) {
			names = append(names, p.Name)
		}
	}
	return slices.Compact(names)
}
