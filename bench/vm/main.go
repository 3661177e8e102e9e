// Command vm measures the target beside LIO and tgt in one virtual machine: Linux's own initiator,
// over iSER on soft-RoCE (rxe) and over TCP. It writes a Markdown table and a picture.
//
//	make bench-vm                   or: go run ./bench/vm [flags]
//
// Initiator, targets and their RAM-backed disks are in one guest under software emulation, all
// over one network interface; every target is logged in to once, at the beginning. In each round every contender
// has its turn with fio, in an order that rotates; the figures are medians of the rounds. Times are
// told and never asserted: compare the columns of one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

type options struct {
	rounds       int
	seconds      float64
	only, points *regexp.Regexp
	out          string
}

func main() {
	log.SetFlags(0)
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "rounds per point")
	flag.Float64Var(&o.seconds, "seconds", 1.5, "seconds per round and contender")
	only := flag.String("only", "", "measure only contenders whose name matches this `regexp`, as `oneshot, rxe`")
	points := flag.String("points", "", "measure only points whose name matches this `regexp`, as `4 KiB random read, depth 1`")
	flag.StringVar(&o.out, "out", "bench/results", "`directory` of the table and the picture")
	flag.Parse()
	o.only, o.points = regexp.MustCompile(*only), regexp.MustCompile(*points)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		stop()
		log.Fatal("bench: ", err)
	}
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
