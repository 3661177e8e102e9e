package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"oneshot/endpoint"
	"oneshot/endpoint/load"
	"oneshot/transport/rdma"
)

// Environment variables, which other users cannot see.
const (
	envPartitionUser   = "ONESHOT_PARTITION_USER"
	envPartitionSecret = "ONESHOT_PARTITION_SECRET"
)

func partitionCommand(fl *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "partition",
		Short: "Use partitions of a target without SCSI",
		Long: `partition lists, reads, writes and measures partitions that a target serves at a portal with
"serve: partitions". A URL has the form

  oneshot+iwarp://[user[%secret]@]host[:port]/STORE/PARTITION   over TCP, port 3262
  rdma+verbs://…?device=rxe0                                    over an RDMA device of the kernel
  rdma+local:///STORE/PARTITION?socket=PATH                     the daemon of this machine

and uuid:UUID may stand in place of STORE/PARTITION. Without a user it is anybody who asks; the
daemon of this machine knows which user of the machine it is. Other
users can see the command line but not the environment, so put user and secret into
` + envPartitionUser + ` and ` + envPartitionSecret + `.`,
		Example: `  initiator partition ls oneshot+iwarp://127.0.0.1
  initiator partition read --length 1MiB oneshot+iwarp://127.0.0.1/disk1/log | hexdump -C | head`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return misused(c, "nothing to do: name a command, such as ls or read")
		},
	}
	c.AddCommand(partitionList(fl), partitionRead(fl), partitionWrite(fl), partitionBench(fl))
	return c
}

// partitionOptions are those of the library.
func (fl *flags) partitionOptions(c *cobra.Command) (o endpoint.Options, err error) {
	for _, name := range []string{"initiator-name", "host-nqn", "flow", "opcodes", "immediate", "verbose"} {
		if c.Flags().Changed(name) {
			return o, &usageError{fmt.Errorf("--%s is for disks, not for partitions", name)}
		}
	}
	o.User, o.Secret = os.Getenv(envPartitionUser), []byte(os.Getenv(envPartitionSecret))
	return o, nil
}

// partitionURL checks the URL of a partition, so that a wrong one is a matter of usage, and opens the card of --nic.
func (fl *flags) partitionURL(arg string, o *endpoint.Options) error {
	u, err := endpoint.ParseURL(arg)
	return fl.through(u, err, o)
}

// through has what u names be reached through the card of --nic, if there is one. err is what was wrong with u.
func (fl *flags) through(u endpoint.URL, err error, o *endpoint.Options) error {
	switch {
	case err != nil:
		return &usageError{err}
	case fl.nic == "":
		return nil
	case u.Scheme != endpoint.OneShot:
		return &usageError{fmt.Errorf("--nic is for oneshot+iwarp://; the URL says %v", u.Scheme)}
	}
	o.Network, err = fl.card(nil)
	return err
}

// partition opens a partition of which the user has the rights in need, and calls f with it.
func (fl *flags) partition(c *cobra.Command, arg string, o endpoint.Options, need rdma.Rights, f func(context.Context, *endpoint.Endpoint) error) (err error) {
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	e, err := endpoint.Open(ctx, arg, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if i := e.Info(); i.Rights&need != need {
		return &endpoint.RightsError{Name: i.Name, Want: need, Have: i.Rights}
	}
	return f(c.Context(), e)
}

// listed is a row of partition ls.
type listed struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	Size       int64  `json:"size"` // bytes
	Unit       int    `json:"unit"` // bytes
	Rights     string `json:"rights"`
	Durability string `json:"durability"`
}

func partitionList(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "ls URL",
		Short: "List the partitions that a user may use",
		Long: `ls lists the partitions of a service of which the user has any right: size, unit (offsets and
lengths are multiples of it), rights, and what a flush outlives: a power cut (medium), the end of
the daemon (process), or nothing (none). The URL names no partition.`,
		Example: `  initiator partition ls oneshot+iwarp://127.0.0.1
  initiator partition ls --json oneshot+iwarp://db1@192.0.2.1:3262`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := fl.partitionOptions(c)
			if err != nil {
				return err
			}
			u, err := endpoint.ParseServiceURL(args[0])
			if err := fl.through(u, err, &o); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
			defer cancel()
			list, err := endpoint.List(ctx, args[0], o)
			if err != nil {
				return err
			}
			rows := []listed{}
			for _, p := range list {
				rows = append(rows, listed{p.Name, p.UUID, p.Size, p.Unit, p.Rights.String(), p.Durability.String()})
			}
			if fl.json {
				return printJSON(c.OutOrStdout(), rows)
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PARTITION\tSIZE\tUNIT\tRIGHTS\tOUTLIVES\tUUID")
			for _, r := range rows {
				n := size(r.Size)
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", r.Name, n.String(), r.Unit, r.Rights, r.Durability, r.UUID)
			}
			return w.Flush()
		},
	}
}

func partitionRead(fl *flags) *cobra.Command {
	var sp span
	c := &cobra.Command{
		Use:   "read URL [FILE]",
		Short: "Copy a partition to a file or standard output",
		Long: `read copies a partition, or a part of it, to FILE, and syncs the file. Without FILE, or with "-",
it copies to standard output. It overwrites a FILE that exists.`,
		Example: `  initiator partition read oneshot+iwarp://127.0.0.1/disk1/log copy.img
  initiator partition read --offset 1MiB --length 4096 oneshot+iwarp://127.0.0.1/disk1/log | hexdump -C`,
		Args: cobra.RangeArgs(1, 2),
	}
	sp.flags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		o, err := fl.partitionOptions(c)
		if err != nil {
			return err
		}
		if err := fl.partitionURL(args[0], &o); err != nil {
			return err
		}
		return fl.partition(c, args[0], o, rdma.RightRead, func(ctx context.Context, e *endpoint.Endpoint) (err error) {
			n := e.Info().Size - int64(sp.offset)
			if sp.length > 0 {
				n = int64(sp.length)
			}
			if err := sp.fits("partition", n, e.Info().Size); err != nil { // before FILE is overwritten
				return err
			}
			taken, err := copyTo(c, args[1:], func(w io.Writer) error {
				bar := newBar(c.ErrOrStderr(), n)
				defer bar.end()
				return e.CopyTo(ctx, w, int64(sp.offset), n, bar.set)
			})
			return fl.told(c, copied{n}, err, taken)
		})
	}
	return c
}

func partitionWrite(fl *flags) *cobra.Command {
	var sp span
	var durable, noFlush bool
	c := &cobra.Command{
		Use:   "write URL [FILE]",
		Short: "Copy a file or standard input to a partition",
		Long: `write copies FILE to a partition, and flushes it, so that the data outlives what the partition can
outlive (see ls). Without FILE, or with "-", it copies standard input. If the input ends within a
unit, the rest of that unit keeps its content, which takes the right to read.`,
		Example: `  initiator partition write oneshot+iwarp://127.0.0.1/disk1/log copy.img
  echo record | initiator partition write --durable --offset 1MiB oneshot+iwarp://127.0.0.1/disk1/log`,
		Args: cobra.RangeArgs(1, 2),
	}
	sp.flags(c)
	c.Flags().BoolVar(&durable, "durable", false, "write nothing to a partition whose data does not outlive a power cut or the end of the daemon")
	c.Flags().BoolVar(&noFlush, "no-flush", false, "do not flush: a power cut may take what was written")
	c.RunE = func(c *cobra.Command, args []string) error {
		o, err := fl.partitionOptions(c)
		if err != nil {
			return err
		}
		if err := fl.partitionURL(args[0], &o); err != nil {
			return err
		}
		if durable && noFlush {
			return &usageError{errors.New("--durable and --no-flush contradict each other")}
		}
		o.Durable = durable
		need := rdma.RightWrite
		if !noFlush {
			need |= rdma.RightFlush
		}
		r, total, shut, err := sp.input(c, args[1:])
		if err != nil {
			return err
		}
		defer shut()
		return fl.partition(c, args[0], o, need, func(ctx context.Context, e *endpoint.Endpoint) error {
			if err := sp.fits("partition", total, e.Info().Size); err != nil { // before anything is written
				return err
			}
			bar := newBar(c.ErrOrStderr(), total)
			n, err := e.CopyFrom(ctx, r, int64(sp.offset), bar.set)
			if err == nil && !noFlush {
				err = e.Flush(ctx)
			}
			if err == nil {
				err = sp.whole(n, total)
			}
			bar.end()
			return fl.told(c, copied{n}, err, false)
		})
	}
	return c
}

func partitionBench(fl *flags) *cobra.Command {
	block, spanSize := size(4096), size(0)
	cfg := load.Config{}
	var op, order string
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Put a load on a partition and measure it",
		Long: `bench reads from a partition for some seconds with a fixed number of operations outstanding. It
prints operations per second, percentiles of the latency, processor time per operation, and what
crossed between the program and its RDMA device.

With --op write or --op mixed it writes, which destroys the content of the partition. --op cas
compares and swaps 8 octets, zero for zero, which changes nothing.`,
		Example: `  initiator partition bench oneshot+iwarp://127.0.0.1/disk1/log
  initiator partition bench --op mixed --reads 70 --depth 32 --random oneshot+iwarp://127.0.0.1/disk1/log
  initiator partition bench --op write --fua oneshot+iwarp://127.0.0.1/disk1/log`,
		Args: cobra.ExactArgs(1),
	}
	p := c.Flags()
	p.StringVar(&op, "op", "read", "`KIND` of load: read, write, mixed or cas")
	p.IntVar(&cfg.Reads, "reads", 50, "`PERCENT` of reads with --op mixed")
	p.IntVar(&cfg.Depth, "depth", 1, "`N` operations outstanding")
	p.Var(&block, "size", "`BYTES` per operation, such as 64KiB")
	p.Var(&spanSize, "span", "use only the first `BYTES` of the partition, such as 1GiB; 0: all of it")
	p.BoolVar(&cfg.Random, "random", false, "use random offsets instead of a sequence")
	p.BoolVar(&cfg.Durable, "fua", false, "have each write durable at its completion")
	p.IntVar(&cfg.FlushEvery, "flush-every", 0, "flush, with a fence, behind each `N` writes; 0: not at all")
	p.StringVar(&order, "order", "strict", "`ORDER` of operations: strict, or free, which lets them run and complete in any order")
	p.DurationVar(&cfg.Duration, "duration", 5*time.Second, "`TIME` to measure")
	p.DurationVar(&cfg.Warmup, "warmup", time.Second, "`TIME` of load before measuring begins")
	p.Uint64Var(&cfg.Seed, "seed", 1, "`SEED` of the random offsets and of the mix")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if cfg.Options, err = fl.partitionOptions(c); err != nil {
			return err
		}
		if err := fl.partitionURL(args[0], &cfg.Options); err != nil {
			return err
		}
		if cfg.Op, err = load.ParseOp(op); err != nil {
			return &usageError{err}
		}
		if order != "strict" && order != "free" {
			return &usageError{fmt.Errorf("%q is no order: there are strict and free", order)}
		}
		cfg.Options.Free = order == "free"
		cfg.URL, cfg.Size, cfg.Span = args[0], int(block), int64(spanSize)
		r, err := load.Run(c.Context(), cfg)
		if err != nil {
			return err
		}
		if fl.json {
			return printJSON(c.OutOrStdout(), r)
		}
		return showPartition(c.OutOrStdout(), r)
	}
	return c
}

// showPartition prints a result.
func showPartition(w io.Writer, r *load.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "I/Os per second\t%.0f\t(%.1f MB/s; %d of %d were reads, and %d flushes)\n", r.IOPS, r.MBps, r.Reads, r.IOs, r.Flushes)
	fmt.Fprintf(t, "latency\tmean %.1f µs\tp50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f µs\n", r.Mean, r.P50, r.P90, r.P99, r.P999, r.Max)
	fmt.Fprintf(t, "this end\t%.2f µs\tof processor time per I/O\n", r.CPU)
	names := make([]string, 0, len(r.Counts))
	for n := range r.Counts {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(t, "\t  %s\t%.3f\n", n, r.Counts[n])
	}
	kept := r.Durability
	if r.Aging > 0 {
		kept += fmt.Sprintf(", %v after a write at the latest", r.Aging)
	}
	fmt.Fprintf(t, "partition\trights %s\toutlives: %s\n", r.Rights, kept)
	return t.Flush()
}
