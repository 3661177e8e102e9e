package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"oneshot/bench/harness"
)

// points lists the points of the project's goals.
var points = []harness.Point{
	{Order: harness.Random, Size: 4096, Depth: 1, Sessions: 1},
	{Order: harness.Random, Write: true, Size: 4096, Depth: 1, Sessions: 1},
	{Order: harness.Random, Size: 4096, Depth: 32, Sessions: 1},
	{Order: harness.Random, Write: true, Size: 4096, Depth: 32, Sessions: 1},
	{Order: harness.Random, Size: 4096, Depth: 32, Sessions: 4},
	{Order: harness.Random, Write: true, Size: 4096, Depth: 32, Sessions: 4},
	{Order: harness.Sequential, Size: 256 << 10, Depth: 8, Sessions: 1},
	{Order: harness.Sequential, Write: true, Size: 256 << 10, Depth: 8, Sessions: 1},
}

// A sample is the result of one run of the load generator.
type sample struct {
	IOPS      float64
	P50, P99  float64 // µs
	CPU       float64 // seconds of the server per million I/Os
	ClientCPU float64 // share of the client's core
	Others    float64 // share of the machine that other processes and the hypervisor took
}

// A row is a contender at a point: medians over the rounds, the extremes, and the
// largest share that others took.
type row struct {
	contender string
	sample
	minIOPS, maxIOPS float64
}

// result is a point with its rows, in the order of the contenders.
type result struct {
	point harness.Point
	rows  []row
}

// row returns the row of a contender, or nil.
func (r result) row(name string) *row {
	for i := range r.rows {
		if r.rows[i].contender == name {
			return &r.rows[i]
		}
	}
	return nil
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point) (result, error) {
	samples, err := harness.Rounds(ctx, &b.Options, b.contenders, func(c contender) (sample, error) {
		s, err := b.quietly(ctx, p, c)
		if err != nil {
			return s, fmt.Errorf("%s, %s: %w", c.name, p, err)
		}
		return s, nil
	})
	if err != nil {
		return result{}, err
	}
	r := result{point: p}
	for i, c := range b.contenders {
		r.rows = append(r.rows, summarize(c.name, samples[i]))
		log.Printf("%-36s %-14s %8.0f IOPS  p99 %6.0f µs  %6.2f CPU s/Mio  others %3.0f %%",
			p, c.name, r.rows[i].IOPS, r.rows[i].P99, r.rows[i].CPU, 100*r.rows[i].Others)
	}
	return r, nil
}

// The share of the machine that others may take during a sample, and how often a
// sample is taken again if they take more. The last try counts in any case; the
// table says how much they took.
const (
	othersAllowed = 0.08
	tries         = 8
	pause         = 2 * time.Second // before the next try
)

// quietly takes a sample while others take little of the machine.
func (b *bench) quietly(ctx context.Context, p harness.Point, c contender) (best sample, err error) {
	best.Others = 2
	for range tries {
		s, err := b.once(ctx, p, c)
		if err != nil {
			return s, err
		}
		if s.Others < best.Others {
			best = s
		}
		if best.Others <= othersAllowed {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return best, ctx.Err()
		}
	}
	return best, nil
}

// once runs the load generator against one contender.
func (b *bench) once(ctx context.Context, p harness.Point, c contender) (sample, error) {
	b.onlyRun(c.proc)
	args := []string{"-c", strconv.Itoa(clientCore)}
	if c.name == echoName {
		args = append(args, harness.EchoLoad(b.tools.echo, c.url, p, b.Seconds)...)
	} else {
		args = append(args, b.tools.load, c.url, p.Mode(), p.Order, strconv.Itoa(p.Size), strconv.Itoa(p.Depth), strconv.Itoa(p.Sessions),
			strconv.FormatFloat(b.Seconds, 'f', -1, 64))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration((b.Seconds+60)*float64(time.Second)))
	defer cancel()
	before, err := b.usage(c.proc)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	cmd := exec.CommandContext(ctx, "taskset", args...)
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return sample{}, fmt.Errorf("%s: %w\n%s", cmd, err, c.proc.lastWords())
	}
	after, err := b.usage(c.proc)
	if err != nil {
		return sample{}, err
	}
	client := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	ours := after.server - before.server + after.loops - before.loops + client
	others := (after.machine - before.machine - ours).Seconds() / time.Since(begin).Seconds() / float64(runtime.NumCPU())
	figures, err := harness.ParseFigures(out)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", cmd, err)
	}
	return sample{
		IOPS: figures.IOs / figures.Seconds, P50: figures.P50, P99: figures.P99,
		CPU:       (after.server - before.server).Seconds() / figures.IOs * 1e6,
		ClientCPU: figures.ClientCPU / figures.Seconds,
		Others:    max(0, others),
	}, nil
}

// usage is the CPU time that was spent so far.
type usage struct{ machine, server, loops time.Duration }

func (b *bench) usage(server *process) (u usage, err error) {
	if _, u.machine, err = harness.MachineCPU(); err != nil {
		return u, err
	}
	if u.server, err = server.cpu(); err != nil {
		return u, err
	}
	for _, l := range b.loops {
		t, err := l.cpu()
		if err != nil {
			return u, err
		}
		u.loops += t
	}
	return u, nil
}

// cpu returns the user and system time of the process so far.
func (p *process) cpu() (time.Duration, error) {
	t, err := harness.ProcessCPU(p.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s ended: %w\n%s", p.name, err, p.lastWords())
	}
	return t, nil
}

func summarize(name string, samples []sample) row {
	median := func(figure func(sample) float64) float64 { return harness.Median(samples, figure) }
	iops := harness.Sorted(samples, func(s sample) float64 { return s.IOPS })
	return row{
		contender: name,
		sample: sample{
			IOPS:      median(func(s sample) float64 { return s.IOPS }),
			P50:       median(func(s sample) float64 { return s.P50 }),
			P99:       median(func(s sample) float64 { return s.P99 }),
			CPU:       median(func(s sample) float64 { return s.CPU }),
			ClientCPU: median(func(s sample) float64 { return s.ClientCPU }),
			Others:    slices.Max(harness.Sorted(samples, func(s sample) float64 { return s.Others })),
		},
		minIOPS: iops[0], maxIOPS: iops[len(iops)-1],
	}
}
