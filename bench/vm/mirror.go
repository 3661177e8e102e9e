package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"oneshot/bench/harness"
)

const (
	overMirror = "TCP, mirrored"
	drbd       = "DRBD"
	peerHost   = "10.9.0.2" // of the machine with the second copies
	mirrorText = "32MiB"
	// copyBytes are those of a copy: DRBD keeps its own data behind the disk's.
	copyBytes = 36 << 20
)

// mirrored are the contenders of a run with -mirror: the disk of each has a copy on each of two machines.
var mirrored = []contender{
	{target: ours, transport: overMirror, name: iqn + ours, port: 3262},
	{target: drbd, transport: overMirror, name: iqn + "lio", port: 3264},
	rawEcho,
}

var mirrorPoints = []harness.Point{
	{Order: harness.Random, Write: true, Size: 4 << 10, Depth: 1},
	{Order: harness.Random, Write: true, Size: 4 << 10, Depth: 32},
	{Order: harness.Sequential, Write: true, Size: 256 << 10, Depth: 8},
	{Order: harness.Random, Write: true, FUA: true, Size: 4 << 10, Depth: 1},
	{Order: harness.Random, Size: 4 << 10, Depth: 1},
	{Order: harness.Random, Size: 4 << 10, Depth: 32},
}

// startMirrors starts the mirrors on both machines, and the initiator on the first one, where the primaries are.
func (b *bench) startMirrors() error {
	for i, g := range []*guest{b.guest, b.peer} {
		name, address := "a", host
		if i == 1 {
			name, address = "b", peerHost
		}
		err := errors.Join(
			g.write("/proc/sys/kernel/hostname", name),
			g.runAll("ip link set dev eth1 mtu 9000 up", "ip addr add "+address+"/24 dev eth1"),
		)
		_, ended := g.run("@module", "/brd.ko", fmt.Sprintf("rd_nr=2 rd_size=%d", copyBytes/1024)) // in KiB
		err = errors.Join(err, ended)
		for n := range 2 { // a copy of ours needs a device that has a name of its own
			table := fmt.Sprintf("0 %d linear /dev/ram%d 0", copyBytes/512, n)
			_, ended := g.run("dmsetup", "create", fmt.Sprintf("copy%d", n), "--uuid", fmt.Sprintf("bench-%s%d", name, n), "--noudevsync", "--table", table)
			err = errors.Join(err, ended)
		}
		if err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
	}
	if err := b.runAll("@mount configfs none /sys/kernel/config"); err != nil {
		return err
	}
	for _, x := range []struct {
		target string
		start  func() error
	}{{ours, b.startCluster}, {drbd, b.startDRBD}, {harness.RawEcho, b.startEcho}} {
		if !b.wants(x.target) {
			continue
		}
		if err := x.start(); err != nil {
			return fmt.Errorf("%s: %w", x.target, err)
		}
	}
	return nil
}

// cluster is a cluster of this target: two nodes with copies, and a witness. DRBD encrypts nothing, so the mirror's data go over a
// transport that does not either. Reads are as on machines that are no virtual ones: DRBD, too, answers them without asking the other node.
type cluster struct {
	on      map[string]*guest // by the names a, b and w
	dir     string            // of the state and the configuration, on each machine
	witness string            // its address and port
	size    string            // of the disk
	portal  string            // a line of YAML
}

func (c *cluster) text(name string) string {
	return fmt.Sprintf(`cluster:
  name: bench
  state: %[1]s/%[2]s
  transport: iwarp
  nodes:
    a: {address: "`+host+`:7260"}
    b: {address: "`+peerHost+`:7260"}
    w: {address: "%[3]s", witness: true}
stores:
  disk: {type: mirror, size: %[4]s, reads: leased, copies: {a: {type: device, path: /dev/dm-0}, b: {type: device, path: /dev/dm-0}}}
targets: [{iqn: "%[5]s", luns: {0: disk}}]
portals: [%[6]s]
management: {socket: /tmp/%[2]s.sock}
`, c.dir, name, c.witness, c.size, iqn+ours, c.portal)
}

func (c *cluster) config(name string) string { return c.dir + "/" + name + ".yaml" }

var tokenLine = regexp.MustCompile(`--node (\w) --token (\S+)`)

// start makes the cluster, starts its nodes, and waits until the copies are level.
func (c *cluster) start() error {
	for name, g := range c.on {
		if err := errors.Join(g.write(c.config(name), c.text(name)), g.runAll("@sync")); err != nil { // it outlives a power cut
			return err
		}
	}
	said, err := c.on["a"].run("target", "ha", "init", "--config", c.config("a"), "--node", "a")
	if err != nil {
		return err
	}
	tokens := map[string]string{}
	for _, m := range tokenLine.FindAllStringSubmatch(said, -1) {
		tokens[m[1]] = m[2]
	}
	for _, name := range []string{"a", "b", "w"} {
		if name != "a" {
			if _, err := c.on[name].run("target", "ha", "join", "--config", c.config(name), "--node", name, "--token", tokens[name]); err != nil {
				return err
			}
		}
		if err := c.serve(name); err != nil {
			return err
		}
	}
	return c.level("a")
}

// serve starts a node.
func (c *cluster) serve(name string) error {
	command := "serve"
	if name == "w" {
		command = "witness"
	}
	daemon, err := c.on[name].Start("target", command, "--config", c.config(name), "--node", name)
	if err != nil {
		return err
	}
	if err := awaitLine(daemon.Lines, "service open"); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// level waits until the copies are, as a node tells it.
func (c *cluster) level(name string) error {
	return c.on[name].awaitText("a in sync, b in sync", "target", "ha", "status", "--socket", "/tmp/"+name+".sock")
}

// startCluster starts a node on each machine, and the witness on the second one.
func (b *bench) startCluster() error {
	c := &cluster{
		on: map[string]*guest{"a": b.guest, "b": b.peer, "w": b.peer}, dir: "/tmp", witness: peerHost + ":7262", size: mirrorText,
		portal: `{node: a, listen: "` + host + `:3262"}`,
	}
	return c.start()
}

// awaitLine waits until a program has said something.
func awaitLine(lines <-chan string, text string) error {
	var said strings.Builder
	for line := range lines {
		if strings.Contains(line, text) {
			return nil
		}
		said.WriteString(line + "\n")
	}
	return fmt.Errorf("it ends: %s", said.String())
}

// awaitText runs a command again and again, until it says something. In a machine that is emulated a start takes more than what it
// waits for, so there is a pause between two.
func (g *guest) awaitText(text string, argv ...string) error {
	for deadline := time.Now().Add(runTime); ; {
		said, err := g.run(argv...)
		if err == nil && strings.Contains(said, text) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%s never says %q: %s", strings.Join(argv, " "), text, said), err)
		}
		time.Sleep(2 * time.Second)
	}
}

// drbdText is the resource: protocol C, as a write of ours is answered when both nodes have it. What is not said is DRBD's default.
func drbdText(disk, net string) string {
	return `global { usage-count no; }
resource r0 {
	protocol C;
	device /dev/drbd0;
	disk ` + disk + `;
	meta-disk internal;
	net { ` + net + ` }
	on a { address ` + host + `:7789; }
	on b { address ` + peerHost + `:7789; }
}
`
}

// startDRBD makes the mirror, and shows it by the kernel's target.
func (b *bench) startDRBD() error {
	if err := makeDRBD(b.guest, b.peer, drbdText("/dev/dm-1", "")); err != nil {
		return err
	}
	if err := becomePrimary(b.guest); err != nil {
		return err
	}
	return b.showByLIO("iblock_0", "echo udev_path=/dev/drbd0 >$core/control", 3264)
}

// makeDRBD makes a mirror without copying, since both disks are empty.
func makeDRBD(a, b *guest, text string) error {
	for _, g := range []*guest{a, b} {
		err := errors.Join(g.write("/etc/drbd.conf", text), g.runAll(
			"mkdir -p /var/lock /var/run/drbd /var/lib/drbd", "drbdadm create-md --force r0", "drbdadm up r0",
		))
		if err != nil {
			return err
		}
	}
	if err := a.awaitText("Connected", "drbdadm", "cstate", "r0"); err != nil {
		return err
	}
	return a.runAll("drbdadm new-current-uuid --clear-bitmap r0/0")
}

func becomePrimary(g *guest) error {
	if err := g.runAll("drbdadm primary r0"); err != nil {
		return err
	}
	return levelDRBD(g)
}

// levelDRBD waits until both copies are.
func levelDRBD(g *guest) error { return g.awaitText("UpToDate/UpToDate", "drbdadm", "dstate", "r0") }
