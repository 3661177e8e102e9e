package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"oneshot/bench/harness"
)

const (
	host      = "10.9.0.1"
	device    = "rxe0"
	diskBytes = 128 << 20
	diskText  = "128MiB"
	metricsAt = "127.0.0.1:9100"
	iqn       = "iqn.2026-11.example.oneshot:"
	nqn       = "nqn.2026-11.example.oneshot:"

	overRXE     = "rxe"
	overTCP     = "TCP"
	overNVMeRXE = "NVMe, rxe"
	overNVMeTCP = "NVMe, TCP"
	// overAttached is TCP by this project's initiator, whose attach makes a block device of the kernel's nbd.
	overAttached = "TCP attached"
	ours         = "oneshot"
	nvmet        = "nvmet"
)

// A contender is a target and the transport over which its disk is used.
type contender struct {
	target    string
	transport string
	name      string // IQN or NQN
	address   string // of its portal; empty: that of the first machine
	port      int
	disk      string // empty: it has none
}

func (c contender) String() string { return c.target + ", " + c.transport }

// portal is where hosts reach it.
func (c contender) portal() string {
	if c.address == "" {
		c.address = host
	}
	return fmt.Sprintf("%s:%d", c.address, c.port)
}

// iface returns open-iscsi's name of the transport.
func (c contender) iface() string {
	if c.transport == overRXE {
		return "iser"
	}
	return "default"
}

var contenders = []contender{
	{target: ours, transport: overRXE, name: iqn + ours, port: 3261},
	{target: "LIO", transport: overRXE, name: iqn + "lio", port: 3263},
	{target: "tgt", transport: overRXE, name: iqn + "tgt", port: 3260}, // tgt's port for iSER cannot be changed
	{target: ours, transport: overTCP, name: iqn + ours, port: 3262},
	{target: "LIO", transport: overTCP, name: iqn + "lio", port: 3264},
	{target: "tgt", transport: overTCP, name: iqn + "tgt-tcp", port: 3265}, // a target of tgt has one transport
	{target: ours, transport: overAttached, name: iqn + ours, port: 3262},
	{target: ours, transport: overNVMeRXE, name: nqn + "rdma", port: 4421},
	{target: nvmet, transport: overNVMeRXE, name: nqn + "nvmet-rdma", port: 4423},
	{target: ours, transport: overNVMeTCP, name: nqn + "tcp", port: 4422},
	{target: nvmet, transport: overNVMeTCP, name: nqn + "nvmet-tcp", port: 4424},
	rawEcho,
}

// bench is a run.
type bench struct {
	options
	*guest
	peer       *guest // nil: there is one machine
	kernel     string // version
	contenders []contender
	starting   time.Duration // time of the host's processors that one fio without I/O takes
}

// wanted returns the contenders of this run.
func (b *bench) wanted() []contender {
	all := contenders
	if b.mirror {
		all = mirrored
	}
	return slices.DeleteFunc(slices.Clone(all), func(c contender) bool { return !b.Only.MatchString(c.String()) })
}

// wants says whether a target is measured.
func (b *bench) wants(target string) bool {
	return slices.ContainsFunc(b.wanted(), func(c contender) bool { return c.target == target })
}

// startTargets starts network, and the targets that are measured.
func (b *bench) startTargets() error {
	err := b.runAll(
		"ip link add rd0 type dummy",
		"ip link set dev rd0 mtu 9000 up",
		"ip addr add "+host+"/24 dev rd0",
		"rdma link add "+device+" type rxe netdev rd0",
		"@mount configfs none /sys/kernel/config",
	)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		target string
		start  func() error
	}{{ours, b.startOneshot}, {"LIO", b.startLIO}, {"tgt", b.startTgt}, {nvmet, b.startNvmet}, {harness.RawEcho, b.startEcho}} {
		if !b.wants(x.target) {
			continue
		}
		if err := x.start(); err != nil {
			return fmt.Errorf("%s: %w", x.target, err)
		}
	}
	return nil
}

// loginAll starts the initiator, logs in to all targets and writes every disk once, so that no contender is measured reading holes.
func (b *bench) loginAll() error {
	if err := b.startInitiator(""); err != nil {
		return err
	}
	for _, c := range b.wanted() {
		var err error
		if c.disk, err = b.login(c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if c.disk != "" && !b.filled(c.name) {
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

// filled reports whether the disk of the target of that name has been written, over any transport.
func (b *bench) filled(name string) bool {
	return slices.ContainsFunc(b.contenders, func(c contender) bool { return c.name == name })
}

// startOneshot starts the daemon and waits for its portals.
func (b *bench) startOneshot() error {
	config := fmt.Sprintf(`stores:
  disk: {type: memory, size: %[1]s}
  rdma: {type: memory, size: %[1]s}
  tcp: {type: memory, size: %[1]s}
targets: [{iqn: "%[2]s", luns: {0: disk}}]
subsystems:
  - {nqn: "%[5]srdma", namespaces: {1: rdma}}
  - {nqn: "%[5]stcp", namespaces: {1: tcp}}
portals:
  - {transport: verbs, listen: "%[3]s:3261", device: %[4]s}
  - {transport: tcp, listen: "%[3]s:3262"}
  - {transport: nvme-rdma, listen: "%[3]s:4421", device: %[4]s}
  - {transport: nvme-tcp, listen: "%[3]s:4422"}
metrics: {listen: "%[6]s"}
`, diskText, iqn+ours, host, device, nqn, metricsAt)
	if err := b.write("/tmp/target.yaml", config); err != nil {
		return err
	}
	daemon, err := b.Start("target", "serve", "--config", "/tmp/target.yaml")
	if err != nil {
		return err
	}
	var said strings.Builder
	for portals := 0; portals < 4; {
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

// startLIO configures the kernel's target: a RAM disk, and a portal for each transport.
func (b *bench) startLIO() error {
	if err := b.showByLIO("rd_mcp_0", fmt.Sprintf("echo rd_pages=%d >$core/control", diskBytes/4096), 3263, 3264); err != nil {
		return err
	}
	return b.write(fmt.Sprintf("/sys/kernel/config/target/iscsi/%slio/tpgt_1/np/%s:3263/iser", iqn, host), "1")
}

// showByLIO makes a disk of the kernel's target by the commands of setUp, and shows it to everybody through portals over TCP.
func (b *bench) showByLIO(core, setUp string, ports ...int) error {
	portals := make([]string, len(ports))
	for i, port := range ports {
		portals[i] = fmt.Sprintf("%s:%d", host, port)
	}
	_, err := b.run("bash", "-c", lioScript(core, setUp, portals...))
	return err
}

// lioScript is what showByLIO runs.
func lioScript(core, setUp string, portals ...string) string {
	return fmt.Sprintf(`set -e
core=/sys/kernel/config/target/core/%s/disk
mkdir -p $core
%s
echo 1 >$core/enable
tpg=/sys/kernel/config/target/iscsi/%slio/tpgt_1
mkdir -p $tpg/lun/lun_0 %s
ln -s $core $tpg/lun/lun_0/disk
for no in authentication demo_mode_write_protect; do echo 0 >$tpg/attrib/$no; done
for yes in generate_node_acls cache_dynamic_acls; do echo 1 >$tpg/attrib/$yes; done
echo 1 >$tpg/enable
`, core, setUp, iqn, "$tpg/np/"+strings.Join(portals, " $tpg/np/"))
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

// startNvmet configures the kernel's target for NVMe: a RAM disk, shown by a subsystem for each transport, so that the host takes
// them for disks of their own.
func (b *bench) startNvmet() error {
	if err := b.runAll(fmt.Sprintf("@module /brd.ko rd_nr=1 rd_size=%d", diskBytes/1024)); err != nil { // in KiB
		return err
	}
	const script = `set -e
cd /sys/kernel/config/nvmet
port=4423
for t in rdma tcp; do
	s=subsystems/%[1]snvmet-$t
	mkdir $s $s/namespaces/1 ports/$port
	echo 1 >$s/attr_allow_any_host
	echo -n /dev/ram0 >$s/namespaces/1/device_path
	echo 1 >$s/namespaces/1/enable
	echo ipv4 >ports/$port/addr_adrfam
	echo $t >ports/$port/addr_trtype
	echo %[2]s >ports/$port/addr_traddr
	echo $port >ports/$port/addr_trsvcid
	ln -s $PWD/$s ports/$port/subsystems/
	port=$((port + 1))
done
`
	_, err := b.run("bash", "-c", fmt.Sprintf(script, nqn, host))
	return err
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

// startInitiator starts it with more settings.
func (b *bench) startInitiator(more string) error {
	return errors.Join(
		b.write("/etc/iscsi/iscsid.conf", settings+more),
		b.write("/etc/iscsi/initiatorname.iscsi", "InitiatorName="+initiator+"\n"),
		b.runAll("iscsid"),
	)
}

var diskLine = regexp.MustCompile(`Attached scsi disk (\w+)\s+State: running`)

// login logs in and returns the disk that appears, if there is one, set up like every other.
func (b *bench) login(c contender) (string, error) {
	switch c.transport {
	case overNothing:
		return "", nil
	case overAttached:
		return b.attach(c)
	case overNVMeRXE, overNVMeTCP:
		return b.connect(c)
	}
	node := fmt.Sprintf("iscsiadm -m node -T %s -p %s -I %s", c.name, c.portal(), c.iface())
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

// connect has Linux' host of NVMe make a controller with its defaults, a queue for each processor, and returns its disk.
func (b *bench) connect(c contender) (string, error) {
	kind := "rdma"
	if c.transport == overNVMeTCP {
		kind = "tcp"
	}
	out, err := b.run("nvme", "connect", "-t", kind, "-a", host, "-s", fmt.Sprint(c.port), "-n", c.name, "-o", "json",
		"--hostnqn=nqn.2014-08.org.nvmexpress:uuid:"+hostID, "--hostid="+hostID)
	if err != nil {
		return "", err
	}
	var made struct{ Device string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Device == "" {
		return "", fmt.Errorf("nvme connect says %q", out)
	}
	// nvme3n1 is the disk of all paths, and nvme3c3n1 the path, which has the queue.
	disk, path := made.Device+"n1", made.Device+"c"+strings.TrimPrefix(made.Device, "nvme")+"n1"
	for deadline := time.Now().Add(runTime); time.Now().Before(deadline); {
		if _, err = b.run("@cat", "/sys/block/"+disk+"/size"); err == nil {
			return disk, b.tuneQueue(path)
		}
	}
	return "", fmt.Errorf("no disk appears: %w", err)
}

// hostID identifies the host to targets for NVMe.
const hostID = "6d1e2f3a-4b5c-4d6e-8f70-8192a3b4c5d6"

// attach has attach make a device, and returns it.
func (b *bench) attach(c contender) (string, error) {
	a, err := b.Start("initiator", "attach", fmt.Sprintf("iscsi://%s:%d/%s/0", host, c.port, c.name))
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
