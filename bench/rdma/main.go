// Command rdma measures the flows of RDMA side by side: one workload over the same provider,
// with memory registered for each command, registered once, and advertised in the command's
// header (one-shot). For comparison it also measures iSCSI over TCP. It writes a Markdown table and a
// picture.
//
//	make bench-rdma                 or: go run ./bench/rdma [flags]
//	make bench-nic                  or: go run ./bench/rdma -nic [flags]
//
// With -nic it measures some of the flows with the RDMA device in the client's process and in another
// one, where each hand-over is one (nic.go).
//
// One daemon serves a RAM-backed disk on the loopback interface over all of them; the client is
// this project's initiator. The daemon is pinned to one core and the client to another. In each
// round every contender has its turn, in an order that rotates; the figures are medians of the
// rounds. Compare the rows of one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"oneshot/bench/harness"
)

const (
	targetCore = 0
	clientCore = 1
)

type options struct {
	harness.Options
	target, initiator string
	nic               bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == streamArg {
		log.Fatal(serveStream())
	}
	o := options{Options: harness.Options{Rounds: 3, Seconds: 0.7}}
	flag.StringVar(&o.target, "target", "bin/target", "the target's `binary`")
	flag.StringVar(&o.initiator, "initiator", "bin/initiator", "the initiator's `binary`")
	flag.BoolVar(&o.nic, "nic", false, "measure with the RDMA device in another process, too")
	harness.Main(&o.Options, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	if runtime.NumCPU() <= max(targetCore, clientCore) {
		return fmt.Errorf("needs two cores, one for the target and one for the client; this machine has %d", runtime.NumCPU())
	}
	dir, err := os.MkdirTemp("", "oneshot-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{options: o}
	defer b.stop()
	if err := b.start(dir); err != nil {
		return err
	}
	// The first write of a page of a memory store allocates it, which must not be measured.
	if err := b.fill(ctx); err != nil {
		return err
	}
	points, contenders, write := points(), contenders, writeReport
	if o.nic {
		points, contenders, write = nicPoints(), nicContenders(dir), writeNICReport
		if err := b.cards(dir); err != nil {
			return err
		}
	}
	results, err := harness.Each(&o.Options, points, func(p harness.Point) (result, error) { return b.measure(ctx, p, contenders) })
	if err != nil {
		return err
	}
	return write(o, results)
}

const (
	iqn      = "iqn.2026-11.example.oneshot:bench"
	tcpAt    = "127.0.0.1:24001"
	rdmaAt   = "127.0.0.1:24002"
	diskText = "256MiB"
)

// bench is a run.
type bench struct {
	options
	processes []*exec.Cmd
}

// start starts the daemon, the server of the raw stream, and the loops that keep the cores awake.
func (b *bench) start(dir string) error {
	config := filepath.Join(dir, "bench.yaml")
	text := fmt.Sprintf(`log: {level: warn}
limits: {memory_per_connection: 128MiB}
stores: {disk: {type: memory, size: %s}}
targets: [{iqn: %s, luns: {0: disk}}]
portals:
  - {transport: tcp, listen: "%s"}
  - {transport: iwarp, listen: "%s"}
`, diskText, iqn, tcpAt, rdmaAt)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	core := fmt.Sprint(targetCore)
	return errors.Join(
		b.spawn("taskset", "-c", core, b.target, "serve", "--config", config),
		b.spawn("taskset", "-c", core, self, streamArg),
		b.awake(targetCore), b.awake(clientCore),
		wait("tcp", tcpAt), wait("tcp", streamAt),
	)
}

// fill writes the whole disk.
func (b *bench) fill(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, b.initiator, "bench", "--write", "--size", "1MiB", "--depth", "4", "--warmup", "0s", "--duration", "2s",
		"iscsi://"+tcpAt+"/"+iqn+"/0").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// awake keeps a core from halting with a loop of idle priority, because waking a halted core takes a time
// that depends on the hypervisor.
func (b *bench) awake(core int) error {
	return b.spawn("taskset", "-c", fmt.Sprint(core), "chrt", "--idle", "0", "sh", "-c", "while :; do :; done")
}

func (b *bench) spawn(args ...string) error {
	c := exec.Command(args[0], args[1:]...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%s: %w (run it in the root of the checkout, after `make build`)", args[2], err)
	}
	b.processes = append(b.processes, c)
	return nil
}

func (b *bench) stop() {
	for _, c := range b.processes {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// wait waits until somebody listens at addr. Nobody tells when that is.
func wait(network, addr string) (err error) {
	for range 200 {
		if err = knock(network, addr); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
