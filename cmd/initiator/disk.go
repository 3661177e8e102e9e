package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"oneshot/initiator"
	"oneshot/initiator/host"
)

// dial logs in to the target of the URL and calls f with the session.
func (fl *flags) dial(c *cobra.Command, u initiator.URL, f func(context.Context, *initiator.Session) error) (err error) {
	o, err := fl.options(c, u)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	s, err := initiator.Dial(ctx, u, o)
	if err != nil {
		return err
	}
	err = f(c.Context(), s)
	if closed := s.Close(); err == nil {
		err = closed
	}
	return err
}

// blocks is a LUN or a namespace.
type blocks interface {
	Size() int64
	CopyTo(ctx context.Context, w io.Writer, off, length int64, told func(int64)) error
	CopyFrom(ctx context.Context, r io.Reader, off int64, told func(int64)) (int64, error)
	Flush(context.Context) error
	// Check says whether it is another disk now: the target may put one in its place while something is copied.
	Check(context.Context) error
}

// disk is dial for commands that use one LUN or namespace, which the URL has to name.
func (fl *flags) disk(c *cobra.Command, arg string, f func(context.Context, blocks) error) error {
	if host.IsURL(arg) {
		return fl.namespace(c, arg, func(ctx context.Context, _ *host.Controller, n *host.Namespace) error { return f(ctx, n) })
	}
	u, err := fl.url(arg)
	if err != nil {
		return err
	}
	if u.LUN < 0 {
		return &usageError{fmt.Errorf("%v names no LUN (…/iqn/0); list them: initiator ls %v", u, u)}
	}
	return fl.dial(c, u, func(ctx context.Context, s *initiator.Session) error {
		l, err := s.LU(ctx, u.LUN)
		if err != nil {
			return err
		}
		return f(ctx, l)
	})
}

func lsCommand(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "ls URL",
		Short: "List the targets of a node, or the LUNs of a target",
		Long: `ls lists the targets of a node with their portals, if the URL names no target. Otherwise
it lists the LUNs of the target, with size and block size. Of NVMe it lists the subsystems
that the discovery service names, or the namespaces of a subsystem.`,
		Example: `  initiator ls iscsi://127.0.0.1
  initiator ls nvme+tcp://127.0.0.1
  initiator ls iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if host.IsURL(args[0]) {
				return fl.listNVMe(c, args[0])
			}
			u, err := fl.url(args[0])
			if err != nil {
				return err
			}
			if u.Target == "" {
				return fl.targets(c, u)
			}
			return fl.dial(c, u, func(ctx context.Context, s *initiator.Session) error { return fl.luns(ctx, c, s) })
		},
	}
}

func (fl *flags) targets(c *cobra.Command, u initiator.URL) error {
	o, err := fl.options(c, u)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout)
	defer cancel()
	found, err := initiator.Discover(ctx, u, o)
	if err != nil {
		return err
	}
	if fl.json {
		return printJSON(c.OutOrStdout(), found)
	}
	var out strings.Builder
	for _, t := range found {
		fmt.Fprintln(&out, plain(t.Name))
		for _, p := range t.Portals {
			fmt.Fprintf(&out, "  %s,%s\n", plain(p.Address), plain(p.TPGT))
		}
	}
	_, err = io.WriteString(c.OutOrStdout(), out.String())
	return err
}

// unit is a row of ls: a LUN.
type unit struct {
	LUN       int   `json:"lun"`
	Size      int64 `json:"size"` // bytes
	BlockSize int   `json:"block_size"`
	initiator.Identity
	Error string `json:"error,omitempty"`
}

func (fl *flags) luns(ctx context.Context, c *cobra.Command, s *initiator.Session) error {
	luns, err := s.ReportLUNs(ctx)
	if err != nil {
		return err
	}
	units := []unit{}
	for _, n := range luns {
		u := unit{LUN: n}
		u.Identity, err = s.Identify(ctx, n)
		if l, e := s.LU(ctx, n); e == nil {
			u.Size, u.BlockSize = l.Size(), l.BlockSize()
		} else if err = errors.Join(err, e); ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			u.Error = err.Error()
		}
		units = append(units, u)
	}
	if fl.json {
		return printJSON(c.OutOrStdout(), units)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LUN\tSIZE\tBLOCK\tVENDOR\tPRODUCT\tSERIAL")
	for _, u := range units {
		n := size(u.Size)
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s %s\n", u.LUN, n.String(), u.BlockSize, plain(u.Vendor), plain(u.Product), plain(u.Serial), plain(u.Error))
	}
	return w.Flush()
}

func inquiryCommand(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "inquiry URL",
		Short: "Show what a disk says of itself",
		Long: `inquiry sends INQUIRY to a LUN, and shows vendor, product, revision, serial number, and the
designators of the LUN (names that identify it, its port and its target). Without a LUN in
the URL it is LUN 0. Of a namespace of NVMe it shows what Identify says.`,
		Example: `  initiator inquiry iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0
  initiator inquiry nvme+tcp://127.0.0.1/nqn.2026-11.example.oneshot:demo/1`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if host.IsURL(args[0]) {
				return fl.identify(c, args[0])
			}
			u, err := fl.url(args[0])
			if err != nil {
				return err
			}
			u.LUN = max(u.LUN, 0)
			return fl.dial(c, u, func(ctx context.Context, s *initiator.Session) error {
				id, err := s.Identify(ctx, u.LUN)
				if err != nil {
					return err
				}
				if fl.json {
					return printJSON(c.OutOrStdout(), id)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "vendor      %s\nproduct     %s\nrevision    %s\nserial      %s\ndesignators %s\n",
					plain(id.Vendor), plain(id.Product), plain(id.Revision), plain(id.Serial), strings.ReplaceAll(plainLines(strings.Join(id.Designators, "\n")), "\n", "\n            "))
				return err
			})
		},
	}
}

// span is the part of a disk to copy.
type span struct{ offset, length size }

func (s *span) flags(c *cobra.Command) {
	c.Flags().Var(&s.offset, "offset", "`BYTES` of the disk before the first one to copy, such as 1MiB; a multiple of the block size")
	c.Flags().Var(&s.length, "length", "how many `BYTES` to copy, such as 1MiB; 0: all there are")
}

// fits checks that n bytes are there from the offset on, of the size bytes of what is a disk or a partition.
func (s *span) fits(what string, n, size int64) error {
	switch off := int64(s.offset); {
	case off > size:
		return fmt.Errorf("the offset %d is beyond the end of the %s, which has %d bytes", off, what, size)
	case off > size-n:
		return fmt.Errorf("%d bytes from offset %d on reach beyond the end of the %s, which has %d bytes", n, off, what, size)
	}
	return nil
}

// copied is the result of a copy.
type copied struct {
	Bytes int64 `json:"bytes"`
}

func readCommand(fl *flags) *cobra.Command {
	var sp span
	c := &cobra.Command{
		Use:   "read URL [FILE]",
		Short: "Copy a disk to a file or standard output",
		Long: `read copies a disk, or a part of it, to FILE, and syncs the file. Without FILE, or with "-",
it copies to standard output. It overwrites a FILE that exists.`,
		Example: `  initiator read iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0 copy.img
  initiator read --length 1MiB iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0 | hexdump -C | head`,
		Args: cobra.RangeArgs(1, 2),
	}
	sp.flags(c)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		return fl.disk(c, args[0], func(ctx context.Context, l blocks) error {
			n := l.Size() - int64(sp.offset)
			if sp.length > 0 {
				n = int64(sp.length)
			}
			if err := sp.fits("disk", n, l.Size()); err != nil {
				return err
			}
			taken, err := copyTo(c, args[1:], func(w io.Writer) error {
				bar := newBar(c.ErrOrStderr(), n)
				defer bar.end()
				if err := l.CopyTo(ctx, w, int64(sp.offset), n, bar.set); err != nil {
					return err
				}
				return l.Check(ctx)
			})
			return fl.told(c, copied{n}, err, taken)
		})
	}
	return c
}

// copyTo has f write to the named file, which is emptied now and durable then, or to standard output, without a name and with "-": taken.
func copyTo(c *cobra.Command, name []string, f func(io.Writer) error) (taken bool, err error) {
	if len(name) == 0 || name[0] == "-" {
		return true, f(writeUntil(c.Context(), c.OutOrStdout()))
	}
	file, err := create(c.Context(), name[0])
	if err != nil {
		return false, err
	}
	return false, keep(file, f(writeUntil(c.Context(), file)))
}

// input opens what is to be written: the named file, or standard input without a name and with "-". total is how many
// bytes that are, and 0 if nobody knows. The caller calls shut when it has read r. Reading ends when the context does.
func (s *span) input(c *cobra.Command, name []string) (r io.Reader, total int64, shut func(), err error) {
	r, shut = readUntil(c.Context(), c.InOrStdin()), func() {}
	if len(name) > 0 && name[0] != "-" {
		f, err := open(c.Context(), name[0])
		if err != nil {
			return nil, 0, nil, err
		}
		if i, err := f.Stat(); err == nil && i.Mode().IsRegular() {
			total = i.Size()
		}
		r, shut = readUntil(c.Context(), f), func() { _ = f.Close() }
	}
	if s.length > 0 {
		r, total = io.LimitReader(r, int64(s.length)), min(total, int64(s.length))
	}
	return r, total, shut, nil
}

// whole says that fewer than all bytes have come: total of them, if that is known, or as many as the user says.
func (s *span) whole(n, total int64) error {
	if s.length > 0 {
		total = int64(s.length)
	}
	if n < total {
		return fmt.Errorf("the input has ended after %d of %d bytes, which are written", n, total)
	}
	return nil
}

func writeCommand(fl *flags) *cobra.Command {
	var sp span
	c := &cobra.Command{
		Use:   "write URL [FILE]",
		Short: "Copy a file or standard input to a disk",
		Long: `write copies FILE to a disk, and flushes the disk, so that the data is durable. Without FILE,
or with "-", it copies standard input. If the input ends within a block, the rest of that
block keeps its content. An input that has fewer bytes than --length says is written, and an error.`,
		Example: `  initiator write iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0 copy.img`,
		Args:    cobra.RangeArgs(1, 2),
	}
	sp.flags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		r, total, shut, err := sp.input(c, args[1:])
		if err != nil {
			return err
		}
		defer shut()
		return fl.disk(c, args[0], func(ctx context.Context, l blocks) error {
			if err := sp.fits("disk", total, l.Size()); err != nil {
				return err
			}
			bar := newBar(c.ErrOrStderr(), total)
			n, err := l.CopyFrom(ctx, r, int64(sp.offset), bar.set)
			if err == nil {
				err = l.Flush(ctx)
			}
			if err == nil {
				err = l.Check(ctx)
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

// told prints how much was copied, if --json asks for it and standard output is not the copy itself.
func (fl *flags) told(c *cobra.Command, v copied, err error, taken bool) error {
	if err != nil || !fl.json {
		return err
	}
	w := c.OutOrStdout()
	if taken {
		w = c.ErrOrStderr()
	}
	return printJSON(w, v)
}

// bar is a progress bar on a terminal; elsewhere it is silent.
type bar struct {
	w     io.Writer
	total int64 // bytes; 0: not known
	shown int   // what was shown last: per cent, or MiB
}

func newBar(w io.Writer, total int64) *bar {
	f, ok := w.(*os.File)
	if !ok {
		return &bar{}
	}
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return &bar{}
	}
	return &bar{w: w, total: total, shown: -1}
}

const barWidth = 40

func (b *bar) set(n int64) {
	if b.w == nil {
		return
	}
	if b.total <= 0 {
		if mib := int(n >> 20); mib != b.shown {
			b.shown = mib
			fmt.Fprintf(b.w, "\r%d MiB", mib)
		}
		return
	}
	percent := int(math.Floor(100 * float64(n) / float64(b.total)))
	if percent == b.shown {
		return
	}
	b.shown = percent
	full := min(barWidth*percent/100, barWidth)
	fmt.Fprintf(b.w, "\r[%s%s] %3d %%  %d of %d MiB", strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), percent, n>>20, b.total>>20)
}

func (b *bar) end() {
	if b.w != nil && b.shown >= 0 {
		fmt.Fprintln(b.w)
	}
}
