// Command endpoint measures partitions as endpoints beside what a program would do without them: memory beside
// memcpy, a file beside fio with io_uring, and the log beside pwrite and fdatasync with the same grouping. Over
// iWARP on the loopback interface it measures them beside a LUN on the same partition (remote.go). It writes a
// Markdown table and a picture.
//
//	make bench-endpoint                 or: go run ./bench/endpoint [flags]
//
// Everything is in one process, but fio. In each round every contender of a point has its turn, in an order
// that rotates; the figures are medians of the rounds. Times are told and never asserted. The files are in the
// directory of -dir, which has to be on the disk in question.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"

	"oneshot/bench/harness"
)

type options struct {
	harness.Options
	dir string
}

func main() {
	o := options{Options: harness.Options{Rounds: 5, Seconds: 1}}
	flag.StringVar(&o.dir, "dir", ".", "`directory` of the files that are read and written")
	harness.Main(&o.Options, func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "bench-endpoint-")
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil { // for a configuration: its paths begin where the file is
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var results []result
	for _, p := range o.selected() {
		r, err := measure(ctx, &o, p, dir)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return errors.New("no point matches")
	}
	return o.WriteReport("endpoint", table(o, results), picture(results))
}

// selected are the points that the flags select, each with the contenders that they select.
func (o *options) selected() (ps []point) {
	for _, p := range points {
		p.contenders = slices.DeleteFunc(slices.Clone(p.contenders), func(c contender) bool { return !o.Only.MatchString(c.name) })
		if o.Points.MatchString(p.name) && len(p.contenders) > 0 {
			ps = append(ps, p)
		}
	}
	return ps
}

// point is a kind of load, and who does it; the first is ours, the second what it is compared with, and a third shows what is possible.
type point struct {
	name       string
	goal       float64 // the ratio of operations per second; 0: there is none
	contenders []contender
}

// contender makes a load for some time.
type contender struct {
	name string
	run  func(ctx context.Context, dir string, seconds float64) (sample, error)
}

// sample is what one turn gives.
type sample struct {
	rate   float64 // operations a second
	cpu    float64 // µs of processor time per operation
	copies float64 // of payload by the processor per operation
	syncs  float64 // flushes and durable writes, or calls of fdatasync, per operation
}

type result struct {
	point   point
	samples [][]sample // by contender
}

// base is the rate that others are compared with. With -only it may be our own.
func (r result) base() float64 { return harness.Median(r.samples[min(1, len(r.samples)-1)], rate) }

func measure(ctx context.Context, o *options, p point, dir string) (r result, err error) {
	r.point = p
	r.samples, err = harness.Rounds(ctx, &o.Options, p.contenders, func(c contender) (sample, error) {
		return c.run(ctx, dir, o.Seconds)
	})
	return r, err
}
