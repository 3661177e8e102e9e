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

// clusterText is the configuration of a cluster whose witness is on the second machine. DRBD encrypts nothing, so the mirror's data go over a
// transport that does not either. Reads are as on machines that are no virtual ones: DRBD, too, answers them without asking the other node.
const clusterText = `cluster:
  name: bench
  state: /tmp/%[1]s
  transport: iwarp
  nodes:
    a: {address: "` + host + `:7260"}
    b: {address: "` + peerHost + `:7260"}
    w: {address: "` + peerHost + `:7262", witness: true}
stores:
  disk: {type: mirror, size: %[2]s, reads: leased, copies: {a: {type: device, path: /dev/dm-0}, b: {type: device, path: /dev/dm-0}}}
targets: [{iqn: "%[3]s", luns: {0: disk}}]
portals: [{node: a, listen: "` + host + `:3262"}]
management: {socket: /tmp/%[1]s.sock}
`

var tokenLine = regexp.MustCompile(`--node (\w) --token (\S+)`)

// startCluster starts a node on each machine, and a witness, and waits until the copies are level.
func (b *bench) startCluster() error {
	on := map[string]*guest{"a": b.guest, "b": b.peer, "w": b.peer}
	for name, g := range on {
		if err := g.write("/tmp/"+name+".yaml", fmt.Sprintf(clusterText, name, mirrorText, iqn+ours)); err != nil {
			return err
		}
	}
	said, err := b.run("target", "ha", "init", "--config", "/tmp/a.yaml", "--node", "a")
	if err != nil {
		return err
	}
	tokens := map[string]string{}
	for _, m := range tokenLine.FindAllStringSubmatch(said, -1) {
		tokens[m[1]] = m[2]
	}
	for _, name := range []string{"a", "b", "w"} {
		if name != "a" {
			if _, err := on[name].run("target", "ha", "join", "--config", "/tmp/"+name+".yaml", "--node", name, "--token", tokens[name]); err != nil {
				return err
			}
		}
		command := "serve"
		if name == "w" {
			command = "witness"
		}
		daemon, err := on[name].Start("target", command, "--config", "/tmp/"+name+".yaml", "--node", name)
		if err != nil {
			return err
		}
		if err := awaitLine(daemon.Lines, "service open"); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return b.awaitText("a in sync, b in sync", "target", "ha", "status", "--socket", "/tmp/a.sock")
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
const drbdText = `global { usage-count no; }
resource r0 {
	protocol C;
	device /dev/drbd0;
	disk /dev/dm-1;
	meta-disk internal;
	on a { address ` + host + `:7789; }
	on b { address ` + peerHost + `:7789; }
}
`

// startDRBD makes the mirror without copying, since both disks are empty, and shows it by the kernel's target.
func (b *bench) startDRBD() error {
	for _, g := range []*guest{b.guest, b.peer} {
		err := errors.Join(g.write("/etc/drbd.conf", drbdText), g.runAll(
			"mkdir -p /var/lock /var/run/drbd /var/lib/drbd", "drbdadm create-md --force r0", "drbdadm up r0",
		))
		if err != nil {
			return err
		}
	}
	if err := b.awaitText("Connected", "drbdadm", "cstate", "r0"); err != nil {
		return err
	}
	if err := b.runAll("drbdadm new-current-uuid --clear-bitmap r0/0", "drbdadm primary r0"); err != nil {
		return err
	}
	if err := b.awaitText("UpToDate/UpToDate", "drbdadm", "dstate", "r0"); err != nil {
		return err
	}
	return b.showByLIO("iblock_0", "echo udev_path=/dev/drbd0 >$core/control", 3264)
}
