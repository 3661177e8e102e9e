package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

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
		return show(c.OutOrStdout(), r)
	}
	return c
}

func show(w io.Writer, r *load.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "I/Os per second\t%.0f\t(%.1f MB/s)\n", r.IOPS, r.MBps)
	fmt.Fprintf(t, "latency\tmean %.1f µs\tp50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f µs\n", r.Mean, r.P50, r.P90, r.P99, r.P999, r.Max)
	end := func(name string, e *load.End) {
		fmt.Fprintf(t, "%s\t%.2f crossings\t%.2f µs of processor time per I/O\n", name, e.Crossings, e.CPU)
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
	return t.Flush()
}
