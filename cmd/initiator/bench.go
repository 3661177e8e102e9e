package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"oneshot/initiator"
	"oneshot/initiator/load"
)

func benchCommand(fl *flags) *cobra.Command {
	block, spanSize := size(4096), size(0)
	cfg := load.Config{}
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Put a load on a disk and say what it took",
		Long: `bench keeps commands outstanding for a while and prints I/Os per second, percentiles of
latency, processor time per I/O, and the crossings per I/O: hand-overs between program and
RDMA device, or system calls over TCP. Targets of this project tell theirs, too.

With --write it overwrites the disk.`,
		Args: cobra.ExactArgs(1),
	}
	p := c.Flags()
	p.IntVar(&cfg.Depth, "depth", 1, "commands outstanding, per session")
	p.IntVar(&cfg.Sessions, "sessions", 1, "sessions side by side")
	p.Var(&block, "size", "bytes per command")
	p.Var(&spanSize, "span", "bytes of the disk that are used, from its start; 0: all")
	p.BoolVar(&cfg.Write, "write", false, "write: the disk's contents are lost")
	p.BoolVar(&cfg.Random, "random", false, "at random offsets, not in sequence")
	p.DurationVar(&cfg.Duration, "duration", 5*time.Second, "how long")
	p.DurationVar(&cfg.Warmup, "warmup", time.Second, "how long before counting begins")
	p.Uint64Var(&cfg.Seed, "seed", 1, "of the random offsets")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if cfg.URL, err = fl.url(args[0]); err != nil {
			return err
		}
		if cfg.Options, err = fl.options(c); err != nil {
			return err
		}
		cfg.Size, cfg.Span = int(block), int64(spanSize)
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

// show prints a result; rdma says that it is one over RDMA.
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
	if r.Target != nil {
		end("target", r.Target)
	} else {
		fmt.Fprintf(t, "target\tdoes not tell\n")
	}
	if err := t.Flush(); err != nil || !rdma {
		return err
	}
	return compare(w, r, write)
}

// compare prints the crossings per I/O beside those of the figures that one-shot RDMA comes from.
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
	_, err := fmt.Fprintln(w, "The figures are of one command by itself: of more than one outstanding, many share a crossing. The target\n"+
		"takes the completion of its answer besides, and the initiator one for every 16 commands.")
	return err
}
