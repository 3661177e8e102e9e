// Command vm measures the target beside LIO, tgt and nvmet in one virtual machine: Linux's own initiator,
// over iSER on soft-RoCE (rxe) and over TCP, and Linux's own host of NVMe over both. It writes a Markdown table and a picture.
//
//	make bench-vm                   or: go run ./bench/vm [flags]
//	make bench-drbd                 or: go run ./bench/vm -mirror [flags]
//	make bench-failover             or: go run ./bench/vm -failover [flags]
//
// With -mirror it measures mirrors, beside DRBD with LIO, in two machines that have a copy each; initiator and primary are in the
// first one. With -failover it turns off the machine of the primary, and measures for how long a host of a third machine waits, and how much
// is copied later. Both take root, for the network between machines is a bridge of the host's kernel.
//
// Initiator, targets and their RAM-backed disks are in one guest under software emulation, and use one
// network interface. The initiator logs in to every target once, at the beginning. In each round every
// contender has its turn with fio, in an order that rotates; the figures are medians of the rounds. Compare
// the columns of one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"oneshot/bench/harness"
	"oneshot/test/vm/machine"
)

type options struct {
	harness.Options
	mirror, failover bool
}

func main() {
	o := options{Options: harness.Options{Rounds: 3, Seconds: 1.5}}
	flag.BoolVar(&o.mirror, "mirror", false, "measure mirrors in two machines")
	flag.BoolVar(&o.failover, "failover", false, "measure what mirrors in two machines do when one of these is lost, with a third one as the host")
	harness.Main(&o.Options, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "oneshot-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.failover {
		return measureFailovers(ctx, o, dir)
	}
	b := &bench{options: o}
	defer b.stop()
	if err := b.boot(dir); err != nil {
		return err
	}
	results, err := b.measureAll(ctx)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, b.Log())
	}
	if o.mirror {
		return writeMirrorReport(o, b.kernel, results)
	}
	return writeReport(o, b.kernel, results)
}

// boot starts the machines, and in them what is measured.
func (b *bench) boot(dir string) (err error) {
	img, version, err := build(b.options)
	if err != nil {
		return err
	}
	b.kernel = version
	if !b.mirror {
		if b.guest, err = started(machine.Boot(img, dir)); err != nil {
			return err
		}
		return b.ready(b.startTargets())
	}
	second := filepath.Join(dir, "b")
	if err := os.Mkdir(second, 0o700); err != nil {
		return err
	}
	lan, err := machine.NewNetwork()
	if err != nil {
		return err
	}
	defer lan.Close()
	if b.guest, err = started(lan.Boot(img, dir, 1)); err != nil {
		return err
	}
	if b.peer, err = started(lan.Boot(img, second, 2)); err != nil {
		return err
	}
	return b.ready(b.startMirrors())
}

// ready logs in to all targets, if they have been started.
func (b *bench) ready(err error) error {
	if err == nil {
		err = b.loginAll()
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, b.Log())
	}
	return nil
}

func (b *bench) stop() {
	for _, g := range []*guest{b.peer, b.guest} {
		if g != nil {
			g.Stop()
		}
	}
}
