package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"oneshot/bench/harness"
	"oneshot/internal/debian"
	"oneshot/test/vm/machine"
)

// With -failover mirrors lose their primary: how long a host waits, and what is copied when the lost machine is back. The two machines with copies
// have disks that stay; the third one is the host, and has the witness.

const (
	hostAddress  = "10.9.0.3" // of the machine that is the host
	movedAddress = "10.9.0.10"
	vrrpAddress  = "10.9.0.11" // what keepalived moves; DRBD's script moves the address of the portal when the disk is there
	failoverText = "128MiB"
	failoverMiB  = 132 // of a copy: DRBD keeps its own data behind the disk's
)

// storage is a machine with a copy.
type storage struct {
	*guest        // nil: it is off
	name, address string
	number        byte
	dir           string // of its disks, on the host of the machines
}

// site is three machines, and a mirror.
type site struct {
	lan   *machine.Network
	image *machine.Image
	nodes [2]*storage
	bench // of the host of the mirror
	system
}

// system is a kind of mirror.
type system interface {
	disk() contender
	// begin makes the mirror on empty disks, with the first node as the primary.
	begin(s *site) error
	// rejoin starts it on a node that was lost.
	rejoin(s *site, n *storage) error
	// level waits until the copies are level, as a node tells it.
	level(s *site, n *storage) error
}

var systems = []system{&oneshotSystem{}, drbdSystem{}}

// failover is what a turn gives.
type failover struct {
	pause  float64 // seconds in which no write of the host was answered
	copied float64 // MiB that a lost primary got from the network until its copy was level
}

// measureFailovers gives every system its turn in every round, on machines that boot for it.
func measureFailovers(ctx context.Context, o options, dir string) error {
	img, version, err := build(o)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(systems), func(s system) bool { return !o.Only.MatchString(s.disk().String()) })
	if len(chosen) != len(systems) {
		log.Print("there is a report only if all are measured")
	}
	turn := 0
	samples, err := harness.Rounds(ctx, &o.Options, chosen, func(x system) (failover, error) {
		turn++
		f, err := loseTwice(img, filepath.Join(dir, strconv.Itoa(turn)), x)
		if err != nil {
			return f, fmt.Errorf("%s: %w", x.disk(), err)
		}
		log.Printf("%-24s pause %6.2f s, copied %7.2f MiB", x.disk(), f.pause, f.copied)
		return f, nil
	})
	if err != nil || len(chosen) != len(systems) {
		return err
	}
	return writeFailoverReport(o, version, samples)
}

// loseTwice has a mirror lose its primary: once while the host writes one block at a time, and, when that machine is back, once while it writes
// 32 at a time.
func loseTwice(img *machine.Image, dir string, x system) (f failover, err error) {
	s := &site{image: img, system: x}
	defer s.stopAll()
	if err := s.bootAll(dir); err != nil {
		return f, err
	}
	if err := s.begin(s); err != nil {
		return f, s.told(err)
	}
	if err := s.startInitiator("node.session.iscsi.DefaultTime2Wait = 0\n"); err != nil {
		return f, s.told(err)
	}
	disk, err := s.login(x.disk())
	if err != nil {
		return f, s.told(err)
	}
	if _, err := s.fio(disk, "--rw=write", "--bs=256k", "--iodepth=8"); err != nil {
		return f, s.told(err)
	}
	j, err := s.loseUnder(s.nodes[0], disk)
	if err != nil {
		return f, s.told(err)
	}
	f.pause = j.Write.Latency.Max / 1e9
	if err := s.back(s.nodes[0], s.nodes[1]); err != nil {
		return f, s.told(err)
	}
	if err := s.loseWithLoad(s.nodes[1], disk); err != nil {
		return f, s.told(err)
	}
	if err := s.back(s.nodes[1], s.nodes[0]); err != nil {
		return f, s.told(err)
	}
	n, err := s.nodes[1].received()
	f.copied = float64(n) / (1 << 20)
	return f, s.told(err)
}

// told adds what the machines' kernels have said to an error.
func (s *site) told(err error) error {
	if err == nil {
		return nil
	}
	text := s.Log()
	for _, n := range s.nodes {
		if n.guest != nil {
			text += "\n" + n.name + " " + n.Log()
		}
	}
	return fmt.Errorf("%w\n%s", err, text)
}

// loaded is how long the host writes before a node is turned off.
const loaded = 3 * time.Second

// loseUnder has the host write one block at a time, and turns a node off meanwhile.
func (s *site) loseUnder(n *storage, disk string) (j job, err error) {
	if err := s.isPrimary(n); err != nil {
		return j, err
	}
	lost := time.AfterFunc(loaded, n.Stop)
	defer lost.Stop()
	if j, err = s.fio(disk, "--rw=randwrite", "--bs=4k", "--time_based", "--iodepth=1", "--runtime=30s"); err != nil {
		return j, err
	}
	select {
	case <-n.Ended():
		n.guest = nil
		return j, nil
	default:
		return j, errors.New("the load has ended before its machine was lost")
	}
}

// loseWithLoad has the host write 32 blocks at a time, and turns a node off; the load ends with it, before another node is the primary.
func (s *site) loseWithLoad(n *storage, disk string) error {
	if err := s.isPrimary(n); err != nil {
		return err
	}
	c, err := s.Start("bash", "-c", "echo $$ >/tmp/load; exec fio --name=bench --filename=/dev/"+disk+
		" --thread --direct=1 --ioengine=io_uring --rw=randwrite --bs=4k --iodepth=32 --norandommap --time_based --runtime=60s")
	if err != nil {
		return err
	}
	time.Sleep(loaded)
	n.Stop()
	if err := s.must("bash", "-c", "kill -9 $(</tmp/load)"); err != nil {
		return fmt.Errorf("the load has ended before its machine was lost: %w", err)
	}
	n.guest = nil
	_, err = c.Wait(runTime)
	return err
}

// isPrimary makes sure that a node has the address.
func (s *site) isPrimary(n *storage) error {
	out, err := n.run("ip", "addr", "show", "dev", "eth1")
	if err == nil && !strings.Contains(out, movedAddress) {
		err = fmt.Errorf("node %s is not the primary: an emulation that is too slow moves it", n.name)
	}
	return err
}

// back turns a node on, and waits until its copy is level, as the other one tells it.
func (s *site) back(n, other *storage) error {
	if err := s.boot(n); err != nil {
		return err
	}
	if err := s.rejoin(s, n); err != nil {
		return err
	}
	return s.level(s, other)
}

// bootAll makes the disks, and turns the machines on.
func (s *site) bootAll(dir string) (err error) {
	if s.lan, err = machine.NewNetwork(); err != nil {
		return err
	}
	for i, name := range []string{"a", "b"} {
		n := &storage{name: name, address: []string{host, peerHost}[i], number: byte(i + 1), dir: filepath.Join(dir, name)}
		s.nodes[i] = n
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			return err
		}
		if _, err := debian.Run(".", "mkfs.ext4", "-q", filepath.Join(n.dir, "state"), "64M"); err != nil {
			return err
		}
		if _, err := debian.Run(".", "truncate", "-s", fmt.Sprintf("%dM", failoverMiB), filepath.Join(n.dir, "copy")); err != nil {
			return err
		}
		if err := s.boot(n); err != nil {
			return err
		}
	}
	c := filepath.Join(dir, "c")
	if err := os.Mkdir(c, 0o700); err != nil {
		return err
	}
	if s.guest, err = started(s.lan.Boot(s.image, c, 3)); err != nil {
		return err
	}
	return errors.Join(s.onNetwork(hostAddress), s.runAll("mkdir -p /node"))
}

func (g *guest) onNetwork(address string) error {
	return g.runAll("ip link set dev eth1 mtu 9000 up", "ip addr add "+address+"/24 dev eth1")
}

// boot turns a machine with a copy on.
func (s *site) boot(n *storage) (err error) {
	drive := func(name string) string { return "file=" + filepath.Join(n.dir, name) + ",format=raw,if=virtio" }
	if n.guest, err = started(s.lan.Boot(s.image, n.dir, n.number, "-drive", drive("state"), "-drive", drive("copy"))); err != nil {
		return err
	}
	return errors.Join(
		n.write("/proc/sys/kernel/hostname", n.name), n.onNetwork(n.address),
		n.runAll("@mount ext4 /dev/vda /node", "@mount configfs none /sys/kernel/config", "mkdir -p /run /var/lock /var/run/drbd /var/lib/drbd"),
		// A device of device-mapper is known by its UUID, whatever it maps to.
		n.must("dmsetup", "create", "copy", "--uuid", "copy-of-"+n.name, "--noudevsync", "--table", fmt.Sprintf("0 %d linear /dev/vdb 0", failoverMiB<<11)),
	)
}

func (g *guest) must(argv ...string) error {
	_, err := g.run(argv...)
	return err
}

// received returns how many bytes have come from the network since the machine was turned on.
func (g *guest) received() (int64, error) {
	out, err := g.run("@cat", "/sys/class/net/eth1/statistics/rx_bytes")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

func (s *site) stopAll() {
	for _, n := range s.nodes {
		if n != nil && n.guest != nil {
			n.Stop()
		}
	}
	if s.guest != nil {
		s.Stop()
	}
	if s.lan != nil {
		s.lan.Close()
	}
}

// oneshotSystem is a mirror of this target, with an address that moves.
type oneshotSystem struct{ c *cluster }

func (*oneshotSystem) disk() contender {
	return contender{target: ours, transport: overMirror, name: iqn + ours, address: movedAddress, port: 3262}
}

func (o *oneshotSystem) begin(s *site) error {
	o.c = &cluster{
		on: map[string]*guest{"a": s.nodes[0].guest, "b": s.nodes[1].guest, "w": s.guest}, dir: "/node", witness: hostAddress + ":7262", size: failoverText,
		portal: fmt.Sprintf(`{mirror: disk, listen: "%s", group: 10, interface: eth1}`, o.disk().portal()),
	}
	return o.c.start()
}

func (o *oneshotSystem) rejoin(_ *site, n *storage) error {
	o.c.on[n.name] = n.guest
	return o.c.serve(n.name)
}

func (o *oneshotSystem) level(_ *site, n *storage) error { return o.c.level(n.name) }

// drbdSystem is DRBD, and keepalived, whose script makes a node the primary, shows the disk by the kernel's target, and then takes the address:
// who is refused meanwhile would try again 3 s later. DRBD makes no node a primary as long as it takes the other one for that: it looks for it each second, as
// keepalived does by default, where its own default is ten.
type drbdSystem struct{}

func (drbdSystem) disk() contender {
	return contender{target: drbd, transport: overMirror, name: iqn + "lio", address: movedAddress, port: 3264}
}

const keepalivedText = `global_defs {
	script_user root
}
vrrp_instance disk {
	state BACKUP
	interface eth1
	virtual_router_id 51
	priority %d
	nopreempt
	advert_int 1
	virtual_ipaddress {
		` + vrrpAddress + `/24
	}
	notify_master "/sbin/bash /tmp/master"
}
`

// masterText is the script. DRBD refuses to be the primary as long as it does not know that the other node is gone.
const masterText = `exec >/tmp/master.log 2>&1
until drbdadm primary r0; do :; done
` + "%s" + `
ip addr add ` + movedAddress + `/24 dev eth1
arping -q -c 1 -A -I eth1 ` + movedAddress + `
`

func (d drbdSystem) begin(s *site) error {
	if err := makeDRBD(s.nodes[0].guest, s.nodes[1].guest, d.config()); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if err := d.keep(n); err != nil {
			return err
		}
		if n == s.nodes[0] {
			if err := n.awaitText(movedAddress, "ip", "addr", "show", "dev", "eth1"); err != nil {
				return err
			}
		}
	}
	return d.level(s, s.nodes[0])
}

func (drbdSystem) config() string { return drbdText("/dev/dm-0", "ping-int 1;") }

func (d drbdSystem) keep(n *storage) error {
	script := lioScript("iblock_0", "echo udev_path=/dev/drbd0 >$core/control", d.disk().portal()) +
		"echo 0 >$tpg/param/DefaultTime2Wait\n"
	err := errors.Join(
		n.write("/tmp/master", fmt.Sprintf(masterText, script)),
		n.write("/tmp/keepalived.conf", fmt.Sprintf(keepalivedText, 110-n.number)),
		n.write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1"), // the portal is there before its address
	)
	if err != nil {
		return err
	}
	_, err = n.Start("keepalived", "--dont-fork", "--log-console", "--use-file=/tmp/keepalived.conf")
	return err
}

func (d drbdSystem) rejoin(_ *site, n *storage) error {
	if err := errors.Join(n.write("/etc/drbd.conf", d.config()), n.runAll("drbdadm up r0")); err != nil {
		return err
	}
	return d.keep(n)
}

func (drbdSystem) level(_ *site, n *storage) error { return levelDRBD(n.guest) }
