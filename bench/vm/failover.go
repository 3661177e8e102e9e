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
