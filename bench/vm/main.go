// Command vm measures the target beside LIO, tgt and nvmet in one virtual machine: Linux's own initiator,
// over iSER on soft-RoCE (rxe) and over TCP, and Linux's own host of NVMe over both. It writes a Markdown table and a picture.
//
//	make bench-vm                   or: go run ./bench/vm [flags]
//
// Initiator, targets and their RAM-backed disks are in one guest under software emulation, and use one
// network interface. The initiator logs in to every target once, at the beginning. In each round every
// contender has its turn with fio, in an order that rotates; the figures are medians of the rounds. Compare
// the columns of one run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"oneshot/bench/harness"
)

type options struct{ harness.Options }

func main() {
	o := options{harness.Options{Rounds: 3, Seconds: 1.5}}
	harness.Main(&o.Options, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "oneshot-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := start(dir)
	if err != nil {
		return err
	}
	defer g.Stop()
	b := &bench{options: o, guest: g}
	if err := b.startTargets(); err != nil {
		return fmt.Errorf("%w\n%s", err, g.Log())
	}
	results, err := b.measureAll(ctx)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, g.Log())
	}
	return writeReport(o, b.kernel, results)
}
