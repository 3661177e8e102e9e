package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"oneshot/bench/harness"
)

const (
	targetCore = 0
	clientCore = 1

	lunSize  = 256 << 20
	lunText  = "256MiB"
	iqn      = "iqn.2026-11.example.bench:disk"
	echoName = harness.RawEcho

	startTimeout = 10 * time.Second
)

// A contender is one thing that can be measured: a URL of a process.
type contender struct {
	name string
	url  string // URL of the logical unit; for the echo, its port
	proc *process
}

// A process is a server that runs during the whole benchmark. It is stopped
// (SIGSTOP) unless it has its turn.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	log    string // path
}

// bench is the state of one benchmark run.
type bench struct {
	options
	tools      tools
	dir        string // in RAM; removed at the end
	processes  []*process
	loops      []*process // of keepAwake
	contenders []contender
}

// startAll starts the contenders, and writes every unit once, so that no
// contender is measured reading holes.
func (b *bench) startAll(ctx context.Context) error {
	for _, start := range []struct {
		name string
		do   func(context.Context) error
	}{
		{echoName, b.startEcho}, {"oneshot", b.startOneshot}, {"tgt", b.startTgt}, {"istgt", b.startIstgt}, {"gotgt", b.startGotgt},
	} {
		if start.name != echoName && !b.Only.MatchString(start.name) {
			continue
		}
		if err := start.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", start.name, err)
		}
	}
	for _, c := range b.contenders {
		if c.name == echoName {
			continue
		}
		if out, err := exec.CommandContext(ctx, b.tools.load, c.url, "fill").CombinedOutput(); err != nil {
			return fmt.Errorf("%s: write the unit once: %w: %s", c.name, err, out)
		}
	}
	for _, p := range b.processes {
		if err := p.pin(targetCore); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) startEcho(ctx context.Context) error {
	_, port, err := freePort()
	if err != nil {
		return err
	}
	p, err := b.start(ctx, "127.0.0.1:"+port, b.tools.echo, "serve", port)
	b.add(echoName, port, p)
	return err
}

func (b *bench) startOneshot(ctx context.Context) error {
	addr, _, err := freePort()
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`
stores:
  memory: {type: memory, size: %[1]s}
  file:   {type: file, path: oneshot.img, size: %[1]s}
targets:
  - {iqn: "%[2]s-memory", luns: {0: memory}}
  - {iqn: "%[2]s-file", luns: {0: file}}
portals:
  - {transport: tcp, listen: "%[3]s"}
`, lunText, iqn, addr)
	path := filepath.Join(b.dir, "oneshot.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	p, err := b.start(ctx, addr, b.binary, "serve", "--config", path)
	b.add("oneshot", "iscsi://"+addr+"/"+iqn+"-memory/0", p)
	b.add("oneshot, file", "iscsi://"+addr+"/"+iqn+"-file/0", p)
	return err
}

func (b *bench) startTgt(ctx context.Context) error {
	addr, _, err := freePort()
	if err != nil {
		return err
	}
	image, err := b.image("tgt.img")
	if err != nil {
		return err
	}
	// The number of its control socket is below 2¹⁵, and differs from that of a tgtd of the system.
	control := strconv.Itoa(1 + os.Getpid()%32766)
	p, err := b.start(ctx, addr, "tgtd", "-f", "-C", control, "--iscsi", "portal="+addr)
	b.add("tgt", "iscsi://"+addr+"/"+iqn+"/1", p)
	if err != nil {
		return err
	}
	for _, args := range []string{
		"--op new --mode target --tid 1 -T " + iqn,
		"--op new --mode logicalunit --tid 1 --lun 1 -b " + image,
		"--op bind --mode target --tid 1 -I ALL",
	} {
		args = "-C " + control + " --lld iscsi " + args
		if out, err := exec.CommandContext(ctx, "tgtadm", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("tgtadm %s: %w: %s", args, err, out)
		}
	}
	return nil
}

func (b *bench) startIstgt(ctx context.Context) error {
	addr, _, err := freePort()
	if err != nil {
		return err
	}
	control, _, err := freePort()
	if err != nil {
		return err
	}
	image, err := b.image("istgt.img")
	if err != nil {
		return err
	}
	auth, path := filepath.Join(b.dir, "auth.conf"), filepath.Join(b.dir, "istgt.conf")
	config := fmt.Sprintf(`[Global]
  NodeBase "iqn.2026-11.example.bench"
  PidFile %[1]s/istgt.pid
  AuthFile %[2]s
  MediaDirectory %[1]s
  LogFacility "local7"
  DiscoveryAuthMethod Auto
  MaxSessions 16
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
[UnitControl]
  AuthMethod Auto
  Portal UC1 %[3]s
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 %[4]s
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8
[LogicalUnit1]
  TargetName %[5]s
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod Auto
  UseDigest Auto
  UnitType Disk
  QueueDepth 128
  LUN0 Storage %[6]s Auto
`, b.dir, auth, control, addr, iqn, image)
	if err := errors.Join(os.WriteFile(auth, nil, 0o600), os.WriteFile(path, []byte(config), 0o600)); err != nil {
		return err
	}
	p, err := b.start(ctx, addr, "istgt", "-D", "-c", path)
	b.add("istgt", "iscsi://"+addr+"/"+iqn+"/0", p)
	return err
}

func (b *bench) startGotgt(ctx context.Context) error {
	addr, port, err := freePort()
	if err != nil {
		return err
	}
	image, err := b.image("gotgt.img")
	if err != nil {
		return err
	}
	p, err := b.start(ctx, addr, b.tools.gotgt, port, iqn, image)
	b.add("gotgt", "iscsi://"+addr+"/"+iqn+"/0", p)
	return err
}

func (b *bench) add(name, url string, p *process) {
	if name == echoName || b.Only.MatchString(name) {
		b.contenders = append(b.contenders, contender{name, url, p})
	}
}

func (b *bench) image(name string) (string, error) {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", err
	}
	return path, os.Truncate(path, lunSize)
}

// freePort returns a port on which nobody listens.
func freePort() (addr, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer l.Close()
	_, port, err = net.SplitHostPort(l.Addr().String())
	return l.Addr().String(), port, err
}

// start runs a server and returns when it accepts connections on addr.
func (b *bench) start(ctx context.Context, addr, name string, args ...string) (*process, error) {
	p, err := b.spawn(name, args...)
	if err != nil {
		return nil, err
	}
	b.processes = append(b.processes, p)
	return p, p.awaitPort(ctx, addr)
}

// spawn starts a process that stopAll ends.
func (b *bench) spawn(name string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(name), exited: make(chan struct{})}
	p.log = filepath.Join(b.dir, p.name+".log")
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(name, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process, for which stopAll waits
		_ = p.cmd.Wait() // a process that ends by itself is noticed by awaitPort
		close(p.exited)
	}()
	return p, nil
}

// keepAwake keeps the cores from halting with loops of the idle scheduling
// class, which yield to everything else. In a virtual machine, waking a halted
// core costs tens of microseconds, and at depth 1 nothing else would be visible.
func (b *bench) keepAwake() error {
	for _, core := range []int{targetCore, clientCore} {
		p, err := b.spawn("chrt", "-i", "0", "taskset", "-c", strconv.Itoa(core), "sh", "-c", "while :; do :; done")
		if err != nil {
			return err
		}
		b.loops = append(b.loops, p)
	}
	return nil
}

func (p *process) awaitPort(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("%s ended before it listened on %s\n%s", p.name, addr, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on %s: %w\n%s", p.name, addr, err, p.lastWords())
		}
	}
}

func (p *process) lastWords() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return text[max(0, len(text)-2000):]
}

// pin moves every thread of the process to one core.
func (p *process) pin(core int) error {
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if out, err := exec.Command("taskset", "-a", "-p", "-c", strconv.Itoa(core), pid).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset %s: %w: %s", p.name, err, out)
	}
	return nil
}

// onlyRun lets one process run and stops the others.
func (b *bench) onlyRun(running *process) {
	for _, p := range b.processes {
		if p != running {
			p.signal(syscall.SIGSTOP)
		}
	}
	if running != nil {
		running.signal(syscall.SIGCONT)
	}
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		log.Printf("bench: %v to %s: %v", s, p.name, err)
	}
}

// stopAll kills every process: tgtd ignores SIGTERM while it has a target, and
// the data of the processes is not needed any more.
func (b *bench) stopAll() {
	for _, p := range slices.Concat(b.loops, b.processes) {
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}
