package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"oneshot/initiator"
	"oneshot/initiator/host"
	"oneshot/initiator/load"
)

func benchCommand(fl *flags) *cobra.Command {
	block, spanSize := size(4096), size(0)
	cfg := load.Config{}
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Put a load on a disk and measure it",
		Long: `bench reads from a disk for some seconds with a fixed number of commands outstanding. It prints
I/Os per second, percentiles of the latency, processor time per I/O, and crossings per I/O.
Crossings are hand-overs between the program and its RDMA device; over TCP they are system
calls. Over iSCSI, targets of this project report their own processor time and crossings, too.

A session is a connection. Over NVMe there is one controller, and each session is one of its I/O
queues.

With --write it writes, which destroys the content of the disk.`,
		Example: `  initiator bench iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0
  initiator bench --depth 32 --random --size 64KiB --duration 10s iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0`,
		Args: cobra.ExactArgs(1),
	}
	p := c.Flags()
	p.IntVar(&cfg.Depth, "depth", 1, "`N` commands outstanding in each session")
	p.IntVar(&cfg.Sessions, "sessions", 1, "`N` sessions side by side")
	p.Var(&block, "size", "`BYTES` per command, such as 64KiB")
	p.Var(&spanSize, "span", "use only the first `BYTES` of the disk, such as 1GiB; 0: all of it")
	p.BoolVar(&cfg.Write, "write", false, "write instead of read: the content of the disk is lost")
	p.BoolVar(&cfg.FUA, "fua", false, "have each write durable before its answer (FUA); needs --write")
	p.BoolVar(&cfg.Random, "random", false, "use random offsets instead of a sequence")
	p.DurationVar(&cfg.Duration, "duration", 5*time.Second, "`TIME` to measure")
	p.DurationVar(&cfg.Warmup, "warmup", time.Second, "`TIME` of load before measuring begins")
	p.Uint64Var(&cfg.Seed, "seed", 1, "`SEED` of the random offsets")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if host.IsURL(args[0]) {
			u, err := parseNVMe(args[0])
			if err != nil {
				return err
			}
			cfg.NVMe = &u
			if cfg.Host, err = fl.hostOptions(c); err != nil {
				return err
			}
		} else {
			if cfg.URL, err = fl.url(args[0]); err != nil {
				return err
			}
			if cfg.Options, err = fl.options(c, cfg.URL); err != nil {
				return err
			}
		}
		cfg.Size, cfg.Span = int(block), int64(spanSize)
		if err := cfg.Check(); err != nil {
			return &usageError{err}
		}
		r, err := load.Run(c.Context(), cfg)
		if err != nil {
			return err
		}
		if fl.json {
			return printJSON(c.OutOrStdout(), r)
		}
		return show(c.OutOrStdout(), r, cfg.URL.Transport != initiator.TCP, cfg.Write)
	}
	return c
}

// show prints a result. rdma is true for a result over RDMA.
func show(w io.Writer, r *load.Result, rdma, write bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "I/Os per second\t%.0f\t(%.1f MB/s)\n", r.IOPS, r.MBps)
	fmt.Fprintf(t, "latency\tmean %.1f µs\tp50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f µs\n", r.Mean, r.P50, r.P90, r.P99, r.P999, r.Max)
	end := func(name string, e *load.End) {
		fmt.Fprintf(t, "%s\t%.2f crossings\t(%.2f to the device, %.2f from it)\t%.2f µs of processor time per I/O\n",
			name, e.Crossings, e.CrossingsOut, e.CrossingsIn, e.CPU)
		names := make([]string, 0, len(e.Counts))
		for n := range e.Counts {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			fmt.Fprintf(t, "\t  %s\t%.3f\n", n, e.Counts[n])
		}
	}
	end("initiator", &r.Initiator)
	if r.Card > 0 {
		fmt.Fprintf(t, "card\t\t\t%.2f µs of processor time per I/O\n", r.Card)
	}
	if r.Target != nil {
		end("target", r.Target)
	} else {
		fmt.Fprintf(t, "target\tdoes not report its crossings\n")
	}
	if err := t.Flush(); err != nil || !rdma {
		return err
	}
	return compare(w, r, write)
}

// compare prints the measured crossings per I/O beside those of figures 2 to 4 (docs/protocols/one-shot.md §7).
func compare(w io.Writer, r *load.Result, write bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\ncrossings per I/O\tinitiator out\tin\tboth\ttarget out\tin\tboth\tin all\t\n")
	i, g := &r.Initiator, r.Target
	fmt.Fprintf(t, "measured\t%.2f\t%.2f\t%.2f\t", i.CrossingsOut, i.CrossingsIn, i.Crossings)
	if g != nil {
		fmt.Fprintf(t, "%.2f\t%.2f\t%.2f\t%.2f\t\n", g.CrossingsOut, g.CrossingsIn, g.Crossings, i.Crossings+g.Crossings)
	} else {
		fmt.Fprintf(t, "?\t?\t?\t?\t\n")
	}
	for _, f := range load.Figures(write) {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
			f.Name, f.InitiatorOut, f.InitiatorIn, f.Initiator(), f.TargetOut, f.TargetIn, f.Target(), f.Sum())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "The figures count the crossings of one command by itself. With several commands outstanding, many share a crossing.\n"+
		"Besides, the target takes the completion of its answer, and the initiator one completion for every 16 commands.")
	return err
}
