package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func loadCluster(t *testing.T) *Config {
	t.Helper()
	c, err := Load("../configs/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOn: each node has what is its own, and what belongs to nobody; a witness has nothing.
func TestOn(t *testing.T) {
	c := loadCluster(t)
	for node, want := range map[string]string{
		"a": "disk-a; iqn.2026-11.example.oneshot:a; ; 192.0.2.1:3260",
		"b": "disk-b; iqn.2026-11.example.oneshot:b; nqn.2026-11.example.oneshot:b; 192.0.2.2:3260 192.0.2.2:4420",
		"w": "; ; ; ",
	} {
		on, err := c.On(node)
		if err != nil {
			t.Fatal(err)
		}
		var stores, targets, subsystems, portals []string
		for _, s := range on.Stores {
			stores = append(stores, s.Name+s.Node)
		}
		for _, s := range on.Targets {
			targets = append(targets, s.Name+s.Node)
		}
		for _, s := range on.Subsystems {
			subsystems = append(subsystems, s.NQN+s.Node)
		}
		for _, p := range on.Portals {
			portals = append(portals, p.Address()+p.Node)
		}
		if got := fmt.Sprintf("%s; %s; %s; %s", strings.Join(stores, " "), strings.Join(targets, " "), strings.Join(subsystems, " "), strings.Join(portals, " ")); got != want {
			t.Errorf("%s has %s, and should have %s", node, got, want)
		}
		if on.Cluster.Self != node || on.Store("disk-a") != nil && on.Store("disk-a").Name != "disk-a" {
			t.Errorf("%s: %+v", node, on.Cluster)
		}
	}
	if c.Targets[0].Node != "a" || c.Cluster.Self != "" || len(c.Portals) != 3 {
		t.Errorf("On has changed the configuration: %+v", c)
	}
	if _, err := c.On("host7"); err == nil || !strings.Contains(err.Error(), "cluster.yaml:8:9: there is no node \"host7\" in the cluster lab: known are a, b, w; --node, or else the host name, says which") {
		t.Error(err)
	}
}

// TestOnMirrors: what shows a mirror is on each node with a copy, and there its controllers have identifiers that no other node gives,
// in whatever order the copies are written.
func TestOnMirrors(t *testing.T) {
	for _, copies := range []string{"a: {type: file, path: x}, b: {type: file, path: x}, c: {type: file, path: x}", "c: {type: file, path: x}, a: {type: file, path: x}, b: {type: file, path: x}"} {
		c, err := Parse("x.yaml", []byte(`
cluster: {name: lab, state: /s, nodes: {d: {address: 10.1.0.1}, c: {address: 10.1.0.2}, b: {address: 10.1.0.3}, a: {address: 10.1.0.4}}}
stores: {m: {type: mirror, size: 1GiB, copies: {`+copies+`}}, d: {node: d, type: memory, size: 1MiB}}
subsystems: [{nqn: "nqn.2026-11.example:m", namespaces: {1: m}}, {node: d, nqn: "nqn.2026-11.example:d", cntlids: 5-6, namespaces: {1: d}}]
portals: [{transport: nvme-tcp, listen: "*:4420"}]
`))
		if err != nil {
			t.Fatal(err)
		}
		for node, want := range map[string]string{
			"a": "[{nqn.2026-11.example:m [1 21839]}]", "b": "[{nqn.2026-11.example:m [21840 43678]}]", "c": "[{nqn.2026-11.example:m [43679 65517]}]",
			"d": "[{nqn.2026-11.example:d [5 6]}]",
		} {
			on, err := c.On(node)
			if err != nil {
				t.Fatal(err)
			}
			type gives struct {
				nqn string
				ids [2]uint16
			}
			var list []gives
			for _, s := range on.Subsystems {
				list = append(list, gives{s.NQN, s.CNTLIDs})
			}
			if got := fmt.Sprint(list); got != want {
				t.Errorf("%s gives %s, want %s", node, got, want)
			}
		}
	}
}

// TestParts: nodes with the same file have equal parts, whoever they are and wherever the file is; another value is
// another part, and each is named.
func TestParts(t *testing.T) {
	parts := func(text string, node string) []Part {
		t.Helper()
		c, err := Parse(map[bool]string{true: "/etc/x.yaml", false: "/opt/y.yaml"}[node == "a"], []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if c, err = c.On(node); err != nil {
			t.Fatal(err)
		}
		return c.Cluster.Parts
	}
	const text = `
cluster: {name: lab, state: here, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}, w: {address: 10.1.0.3, witness: true}}}
stores: {d: {type: memory, size: 1MiB}, e: {type: memory, size: 2MiB}}
targets: [{node: a, iqn: "iqn.2026-11.example.oneshot:a", luns: {0: e}, auth: {chap: {user: u, secret: twelve-letters}}}]
subsystems: [{node: b, nqn: "nqn.2026-11.example:b", namespaces: {}}]
portals: [{listen: "127.0.0.1:3260"}, {transport: nvme-tcp, listen: "127.0.0.1:4420"}]
`
	a := parts(text, "a")
	if d := Differences(a, parts("# a comment\n"+strings.ReplaceAll(text, "{name: lab", "{ name:  lab"), "w")); d != nil {
		t.Errorf("equal ones differ in %v", d)
	}
	for _, c := range []struct{ old, new, want string }{
		{"10.1.0.3", "10.1.0.4", "cluster"},
		{"state: here", "state: there", "cluster"},
		{"size: 1MiB", "size: 3MiB", "stores.d"},
		{"e: {", "f: {", "stores.e targets.iqn.2026-11.example.oneshot:a stores.f"},
		{"twelve-letters", "twelve-numbers", "targets.iqn.2026-11.example.oneshot:a"},
		{"4420", "4421", "portals"},
		{"namespaces: {}", "serial: x", "subsystems.nqn.2026-11.example:b"},
		{"\nstores", "\nlog: {level: debug}\nstores", "log"},
		{"\nstores", "\nlimits: {commands: 7}\nstores", "limits"},
		{"\nstores", "\nmanagement: {socket: /x}\nstores", "management"},
		{"\nstores", "\nmetrics: {listen: \"127.0.0.1:9\"}\nstores", "metrics"},
		{"\nstores", "\nstate: /x\nstores", "state"},
		{"\nstores", "\nisns: {server: x}\nstores", "isns"},
		{"\nstores", "\ndiscovery: {auth: {chap: {user: u, secret: twelve-letters}}}\nstores", "discovery"},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if c.old == "e: {" {
			changed = strings.Replace(changed, "0: e", "0: f", 1) // who shows it
		}
		if got := strings.Join(Differences(a, parts(changed, "a")), " "); got != c.want {
			t.Errorf("%s for %s: %q differs, and %q should", c.new, c.old, got, c.want)
		}
	}
	if names := Differences(nil, a); len(names) != len(a) || !slices.Contains(names, "discovery") {
		t.Errorf("%v", names)
	}
}

// TestDataOfNodes: with a transport that needs one each node that serves has an address for data, and a warning says what goes there.
// TestNodePorts: a portal cannot listen where its node does for the other nodes, at an address of its own or at all of them.
func TestNodePorts(t *testing.T) {
	const text = `cluster: {name: lab, state: /s, transport: iwarp, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2, data: "10.2.0.2:99"}, c: {address: host7}, w: {address: 10.1.0.3, witness: true}}}
stores: {d: {type: memory, size: 1MiB}}
targets: [{node: a, iqn: iqn.2026-11.com.example:d, luns: {0: d}}]
portals: [{%stransport: %s, listen: "%s"}]
`
	for _, c := range []struct{ node, transport, listen, want string }{
		{"node: a, ", "iwarp", "10.1.0.1:7261", "4:47: the node a listens for the other nodes there already (data: 10.1.0.1:7261)"},
		{"node: a, ", "tcp", "*:7260", "the node a listens for the other nodes there already (address: 10.1.0.1:7260)"},
		{"node: b, ", "nvme-tcp", "0.0.0.0:99", "the node b listens for the other nodes there already (data: 10.2.0.2:99)"},
		{"node: a, ", "tcp", "10.1.0.2:7260", ""}, // is not that of the node
		{"node: b, ", "tcp", "10.2.0.2:7261", ""},
		{"node: a, ", "tcp", "[::]:7260", ""}, // is IPv6 alone
		{"node: a, ", "verbs", "10.1.0.1:7261", ""},
		{"node: c, ", "tcp", "*:7260", ""},
		{"", "tcp", "10.1.0.3:7260", ""}, // a witness has no portals
	} {
		_, err := Parse("x.yaml", fmt.Appendf(nil, text, c.node, c.transport, c.listen))
		if said := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(said, c.want) && c.want != "" {
			t.Errorf("%s (%s%s): %v; want %q", c.listen, c.node, c.transport, err, c.want)
		}
	}
}

func TestDataOfNodes(t *testing.T) {
	parse := func(transport, a string) (*Config, error) {
		return Parse("x.yaml", []byte("cluster: {name: lab, state: /s"+transport+", nodes: {a: {address: 10.1.0.1"+a+"}, b: {address: host7:99}, w: {address: 10.1.0.3, witness: true}}}\nstores: {d: {type: memory, size: 1MiB}}\ntargets: [{node: a, iqn: iqn.2026-11.com.example:d, luns: {0: d}}]"))
	}
	c, err := parse(", transport: iwarp", ", data: 10.2.0.1")
	if err != nil {
		t.Fatal(err)
	}
	var data []string
	for _, n := range c.Cluster.Nodes {
		data = append(data, n.Data)
	}
	if got := strings.Join(data, " "); got != "10.2.0.1:7261 host7:7261 " || c.Cluster.Transport != ClusterIWARP {
		t.Errorf("%s: data go to %q", c.Cluster.Transport, got)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Message, "neither encrypted nor authenticated") {
		t.Errorf("warnings %v", c.Warnings)
	}
	if c, err := parse("", ""); err != nil || c.Cluster.Transport != ClusterTCP || c.Cluster.Nodes[0].Data != "" || len(c.Warnings) != 0 {
		t.Errorf("without a transport: %+v, %v", c, err)
	}
}

func TestTransportOfCluster(t *testing.T) {
	for text, want := range map[string]string{
		"verbs":                       "verbs any",
		"{type: verbs, device: rxe0}": "verbs rxe0",
		"{type: verbs}":               "verbs any",
		"{type: iwarp}":               "iwarp ",
		"{device: rxe0}":              "the transport has no type",
		"{type: iwarp, device: rxe0}": "device is for the kernel's RDMA devices, and the transport is iwarp",
		"{type: verbs, device: a/b}":  `"a/b" is not the name of an RDMA device`,
		"{type: ib}":                  `"ib" is not known`,
		"{type: verbs, port: 1}":      "port",
	} {
		c, err := Parse("x.yaml", []byte("cluster: {name: lab, state: /s, transport: "+text+", nodes: {a: {address: 10.1.0.1}}}\nstores: {d: {type: memory, size: 1MiB}}\ntargets: [{node: a, iqn: iqn.2026-11.com.example:d, luns: {0: d}}]"))
		got := fmt.Sprint(err)
		if err == nil {
			got = string(c.Cluster.Transport) + " " + c.Cluster.Device
			if c.Cluster.Nodes[0].Data != "10.1.0.1:7261" {
				t.Errorf("%s: data go to %q", text, c.Cluster.Nodes[0].Data)
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
}
