// Command bench measures the target beside tgt, istgt and gotgt and beside a raw
// TCP echo of the same bytes, and writes a Markdown table and a picture.
//
//	make bench                      or: go run ./bench [flags]
//
// All contenders serve a RAM-backed disk on the loopback interface. The client,
// c/load.c, uses libiscsi, which is not of this project. The targets are pinned
// to one core and the client to another. In every round each contender has its
// turn, in an order that rotates, while the others are stopped with SIGSTOP; the
// figures are medians of the rounds. Compare the rows of one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"

	"oneshot/bench/harness"
)

type options struct {
	harness.Options
	binary string
	awake  bool
}

func main() {
	o := options{Options: harness.Options{Rounds: 3, Seconds: 3}}
	flag.StringVar(&o.binary, "target", "bin/target", "the target's `binary`")
	flag.BoolVar(&o.awake, "awake", true, "keep both cores from halting with loops of idle priority")
	harness.Main(&o.Options, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) error {
	if runtime.NumCPU() <= max(targetCore, clientCore) {
		return fmt.Errorf("needs two cores, one for the targets and one for the client; this machine has %d", runtime.NumCPU())
	}
	dir, err := os.MkdirTemp("/dev/shm", "oneshot-bench-") // RAM
	if err != nil {
		return err
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			log.Print("bench: ", err) // the RAM of the directory stays in use
		}
	}()
	tools, err := buildTools(ctx, dir)
	if err != nil {
		return err
	}
	b := &bench{options: o, tools: tools, dir: dir}
	defer b.stopAll()
	if err := b.startAll(ctx); err != nil {
		return err
	}
	if o.awake {
		if err := b.keepAwake(); err != nil {
			return err
		}
	}
	results, err := harness.Each(&o.Options, points, func(p harness.Point) (result, error) { return b.measure(ctx, p) })
	if err != nil {
		return err
	}
	return writeReport(o, results)
}

// tools holds the paths of the programs of this folder, after they were built.
type tools struct{ load, echo, gotgt string }

func buildTools(ctx context.Context, dir string) (tools, error) {
	t := tools{filepath.Join(dir, "load"), filepath.Join(dir, "echo"), filepath.Join(dir, "gotgt")}
	return t, errors.Join(
		harness.Compile(ctx, t.load, "bench/c/load.c", "-liscsi"),
		harness.Compile(ctx, t.echo, "bench/c/echo.c"),
		harness.Make(ctx, "go", "build", "-C", "bench/gotgt", "-o", t.gotgt, "."),
	)
}
