package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	host      = "10.9.0.1"
	device    = "rxe0"
	diskBytes = 128 << 20
	diskText  = "128MiB"
	iqn       = "iqn.2026-11.example.oneshot:"

	overRXE = "rxe"
	overTCP = "TCP"
	// overAttached is TCP by this project's initiator, whose attach makes a block device of the kernel's nbd.
	overAttached = "TCP attached"
	ours         = "oneshot"
)

// A contender is a target and the transport over which its disk is used.
type contender struct {
	target    string
	transport string
	iqn       string
	port      int // of its portal
	disk      string
}

func (c contender) String() string { return c.target + ", " + c.transport }

// iface returns open-iscsi's name of the transport.
func (c contender) iface() string {
	if c.transport == overRXE {
		return "iser"
	}
	return "default"
}

var contenders = []contender{
	{target: ours, transport: overRXE, iqn: iqn + ours, port: 3261},
	{target: "LIO", transport: overRXE, iqn: iqn + "lio", port: 3263},
	{target: "tgt", transport: overRXE, iqn: iqn + "tgt", port: 3260}, // tgt's port for iSER cannot be changed
	{target: ours, transport: overTCP, iqn: iqn + ours, port: 3262},
	{target: "LIO", transport: overTCP, iqn: iqn + "lio", port: 3264},
	{target: "tgt", transport: overTCP, iqn: iqn + "tgt-tcp", port: 3265}, // a target of tgt has one transport
	{target: ours, transport: overAttached, iqn: iqn + ours, port: 3262},
}

// bench is a run.
type bench struct {
	options
	*guest
	contenders []contender
	starting   time.Duration // time of the host's processors that one fio without I/O takes
}

// startTargets starts network, targets and initiator, logs in to all targets and writes every disk once,
// so that no contender is measured reading holes.
func (b *bench) startTargets() error {
	err := b.runAll(
		"ip link add rd0 type dummy",
		"ip link set dev rd0 mtu 9000 up",
		"ip addr add "+host+"/24 dev rd0",
		"rdma link add "+device+" type rxe netdev rd0",
	)
	if err != nil {
		return err
	}
	for _, start := range []func() error{b.startOneshot, b.startLIO, b.startTgt, b.startInitiator} {
		if err := start(); err != nil {
			return err
		}
	}
	for _, c := range contenders {
		if !b.Only.MatchString(c.String()) {
			continue
		}
		if c.disk, err = b.login(c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if !b.filled(c.target) {
			if _, err := b.fio(c.disk, "--rw=write", "--bs=256k", "--iodepth=8"); err != nil {
				return fmt.Errorf("%s: write the disk once: %w", c, err)
			}
		}
		b.contenders = append(b.contenders, c)
	}
	if len(b.contenders) == 0 {
		return errors.New("no contender matches")
	}
	return nil
}

// filled reports whether a target's disk has been written, over either transport.
func (b *bench) filled(target string) bool {
	return slices.ContainsFunc(b.contenders, func(c contender) bool { return c.target == target })
}

// startOneshot starts the daemon and waits for its portals.
func (b *bench) startOneshot() error {
	config := fmt.Sprintf(`stores: {disk: {type: memory, size: %s}}
targets: [{iqn: %q, luns: {0: disk}}]
portals:
  - {transport: verbs, listen: "%s:3261", device: %s}
  - {transport: tcp, listen: "%[3]s:3262"}
`, diskText, iqn+ours, host, device)
	if err := b.write("/tmp/target.yaml", config); err != nil {
		return err
	}
	daemon, err := b.Start("target", "serve", "--config", "/tmp/target.yaml")
	if err != nil {
		return err
	}
	var said strings.Builder
	for portals := 0; portals < 2; {
		line, more := <-daemon.Lines
		if !more {
			return fmt.Errorf("the target ends with %d: %s", daemon.Exit, said.String())
		}
		said.WriteString(line + "\n")
		if strings.Contains(line, "portal open") {
			portals++
		}
	}
	return nil
}

// startLIO configures the kernel's target: a RAM disk, a portal for each transport, and access for
// everybody.
func (b *bench) startLIO() error {
	if _, err := b.run("@mount", "configfs", "none", "/sys/kernel/config"); err != nil {
		return err
	}
	script := fmt.Sprintf(`set -e
core=/sys/kernel/config/target/core/rd_mcp_0/disk
mkdir -p $core
echo rd_pages=%d >$core/control
echo 1 >$core/enable
tpg=/sys/kernel/config/target/iscsi/%slio/tpgt_1
mkdir -p $tpg/lun/lun_0 $tpg/np/%s:3263 $tpg/np/%[3]s:3264
ln -s $core $tpg/lun/lun_0/disk
echo 1 >$tpg/np/%[3]s:3263/iser
for no in authentication demo_mode_write_protect; do echo 0 >$tpg/attrib/$no; done
for yes in generate_node_acls cache_dynamic_acls; do echo 1 >$tpg/attrib/$yes; done
echo 1 >$tpg/enable
`, diskBytes/4096, iqn, host)
	_, err := b.run("bash", "-c", script)
	return err
}

// startTgt starts tgt with a file in RAM.
func (b *bench) startTgt() error {
	if err := b.runAll("mkdir -p /var/run/tgtd", fmt.Sprintf("truncate -s %d /tmp/tgt.img", diskBytes)); err != nil {
		return err
	}
	// By default its buffers for RDMA take 1 GiB; these are more than all commands of a session can fill.
	if _, err := b.Start("tgtd", "-f", "--iscsi", "portal="+host+":3265", "--iser", "pool_sz_mb=128"); err != nil {
		return err
	}
	const adm = "tgtadm --op new --mode target --lld iser --tid 1 -T " + iqn + "tgt"
	for deadline := time.Now().Add(runTime); ; { // tgtd accepts commands some time after its start
		err := b.runAll(adm)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
	}
	return b.runAll(
		"tgtadm --op new --mode logicalunit --lld iser --tid 1 --lun 1 -b /tmp/tgt.img",
		"tgtadm --op bind --mode target --lld iser --tid 1 -I ALL",
		"tgtadm --op bind --mode target --lld iser --tid 1 -Q "+initiator,
		"tgtadm --op new --mode target --lld iscsi --tid 2 -T "+iqn+"tgt-tcp",
		"tgtadm --op new --mode logicalunit --lld iscsi --tid 2 --lun 1 -b /tmp/tgt.img",
		"tgtadm --op bind --mode target --lld iscsi --tid 2 -I ALL",
	)
}

const initiator = "iqn.2026-11.example.clients:guest"

// settings of open-iscsi are the same for all contenders: its defaults, whose queue depth is 32, without pings.
const settings = `
node.startup = manual
node.session.initial_login_retry_max = 8
node.session.cmds_max = 128
node.session.queue_depth = 32
node.conn[0].timeo.noop_out_interval = 0
node.conn[0].timeo.noop_out_timeout = 0
`

func (b *bench) startInitiator() error {
	return errors.Join(
		b.write("/etc/iscsi/iscsid.conf", settings),
		b.write("/etc/iscsi/initiatorname.iscsi", "InitiatorName="+initiator+"\n"),
		b.runAll("iscsid"),
	)
}

var diskLine = regexp.MustCompile(`Attached scsi disk (\w+)\s+State: running`)

// login logs in and returns the disk that appears, set up like every other.
func (b *bench) login(c contender) (string, error) {
	if c.transport == overAttached {
		return b.attach(c)
	}
	node := fmt.Sprintf("iscsiadm -m node -T %s -p %s:%d -I %s", c.iqn, host, c.port, c.iface())
	if err := b.runAll(node+" -o new", node+" --login"); err != nil {
		return "", err
	}
	for deadline := time.Now().Add(runTime); time.Now().Before(deadline); {
		out, err := b.run("iscsiadm", "-m", "session", "-P", "3")
		if err != nil {
			return "", err
		}
		for _, m := range diskLine.FindAllStringSubmatch(out, -1) {
			if !b.taken(m[1]) {
				return m[1], b.tune(m[1])
			}
		}
	}
	return "", errors.New("no disk appears")
}

// attach has attach make a device, and returns it.
func (b *bench) attach(c contender) (string, error) {
	a, err := b.Start("initiator", "attach", fmt.Sprintf("iscsi://%s:%d/%s/0", host, c.port, c.iqn))
	if err != nil {
		return "", err
	}
	var said strings.Builder
	for line := range a.Lines {
		if disk, ok := strings.CutPrefix(line, "/dev/"); ok {
			return disk, b.tuneQueue(disk)
		}
		said.WriteString(line + "\n")
	}
	return "", fmt.Errorf("attach ends with %d: %s", a.Exit, said.String())
}

func (b *bench) taken(disk string) bool {
	return slices.ContainsFunc(b.contenders, func(c contender) bool { return c.disk == disk })
}

// queue holds the settings of the block queue of every disk.
var queue = [][2]string{{"scheduler", "none"}, {"max_sectors_kb", "256"}, {"nr_requests", "64"}, {"rq_affinity", "1"}, {"nomerges", "0"}}

func (b *bench) tuneQueue(disk string) error {
	var errs []error
	for _, q := range queue {
		errs = append(errs, b.write("/sys/block/"+disk+"/queue/"+q[0], q[1]))
	}
	return errors.Join(errs...)
}

func (b *bench) tune(disk string) error {
	queues := b.tuneQueue(disk)
	depth, err := b.run("@cat", "/sys/block/"+disk+"/device/queue_depth")
	if strings.TrimSpace(depth) != "32" && err == nil {
		err = fmt.Errorf("the depth of the queue is %q", depth)
	}
	return errors.Join(queues, err)
}
