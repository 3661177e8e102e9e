package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
)

func haVerify() *cobra.Command {
	v := new(view)
	var how mgmt.Verify
	var stop, progress bool
	cmd := &cobra.Command{
		Use:   "verify MIRROR [--repair [--from NODE] | --progress | --stop]",
		Short: "Compare the copies of a mirror, and repair what differs",
		Long: `verify has the primary of a mirror compare the copies that are in sync, while hosts go
on, and shows how far it is. Its exit status is 1 if copies differ, and are not repaired.

With --repair what differs is written anew, from the copies that are right: most of
them, or the only ones whose disks can read it. Of two copies that can both be read
nobody knows which is right: look at the disks, and name the right one with --from.

After Ctrl-C the comparison goes on: --progress shows it again, and how the last one has
ended; --stop ends it.`,
		Example: `  target ha verify disk1
  target ha verify disk1 --repair --from a
  target ha verify disk1 --progress`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return &usageError{cmd.CommandPath(), "name one mirror: " + cmd.Root().Name() + " ha status lists them"}
			case how.From != "" && !how.Repair:
				return &usageError{cmd.CommandPath(), "--from says from which copy to repair: add --repair"}
			case stop && (progress || how.Repair), progress && how.Repair:
				return &usageError{cmd.CommandPath(), "--stop and --progress are about a comparison under way, and stand alone"}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer cancel()
			c := v.client()
			defer c.Close()
			if stop {
				return c.StopVerify(ctx, args[0])
			}
			if !progress {
				if err := c.VerifyMirror(ctx, args[0], how); err != nil {
					return err
				}
			}
			return awaitVerified(ctx, c, args[0], cmd.OutOrStdout())
		},
	}
	v.socketFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&how.Repair, "repair", false, "repair what differs")
	f.StringVar(&how.From, "from", "", "the `NODE` whose copy is right")
	f.BoolVar(&stop, "stop", false, "end the comparison that is under way")
	f.BoolVar(&progress, "progress", false, "show the comparison that is under way, or the last one")
	return cmd
}

// verifyAgain is the time between two looks at a comparison.
const verifyAgain = 200 * time.Millisecond

// awaitVerified shows how far a comparison is, until it ends, and then its result. Who is asked is the primary: if that changes the next one
// tells of a comparison of its own, perhaps of last month.
func awaitVerified(ctx context.Context, c *mgmt.Client, mirror string, out io.Writer) error {
	said := int64(-1)
	var first *mgmt.Verification
	for {
		now, err := c.Verified(ctx, mirror)
		if err == nil && first == nil {
			first = now
		}
		switch {
		case ctx.Err() != nil:
			_, err := fmt.Fprintf(out, "The comparison goes on; target ha verify %s --progress shows it, and --stop ends it.\n", mirror)
			return err
		case err != nil:
			return fmt.Errorf("%w; if another node serves the mirror now, begin again", err)
		case now.Primary != first.Primary || !now.Began.Equal(first.Began):
			return fmt.Errorf("node %s tells of another comparison of %s: what came of this one, which node %s has begun, is not known; begin again", now.Primary, mirror, first.Primary)
		case !now.Ended.IsZero():
			return writeVerified(out, mirror, now)
		}
		if percent := 100 * now.Done / max(1, now.Total); percent != said {
			said = percent
			fmt.Fprintf(out, "%3d %% compared, %s\n", percent, count(now.Differ, "difference"))
		}
		select {
		case <-time.After(verifyAgain):
		case <-ctx.Done():
		}
	}
}

// writeVerified says how a comparison has ended. What is left to do is an error.
func writeVerified(out io.Writer, mirror string, v *mgmt.Verification) error {
	for _, r := range v.Differences {
		text := "it is not known which copy is right"
		if r.Known {
			text = "not right on " + strings.Join(r.Odd, ", ")
		}
		if len(r.Unreadable) > 0 {
			text += "; the disk of " + strings.Join(r.Unreadable, ", ") + " cannot read it"
		}
		fmt.Fprintf(out, "offset %d, %d bytes: %s\n", r.Offset, r.Length, text)
	}
	if n := v.Differ - len(v.Differences); n > 0 {
		fmt.Fprintf(out, "… and %d more\n", n)
	}
	left := v.Differ - v.Repaired
	switch {
	case v.Error != "":
		return fmt.Errorf("the copies of %s were compared to %d %%, and no further (%s): begin again", mirror, 100*v.Done/max(1, v.Total), v.Error)
	case left > 0 && !v.Repair:
		return fmt.Errorf("the copies of %s differ in %s: target ha verify %s --repair makes them equal%s", mirror, count(left, "range"), mirror, fromAdvice(v))
	case left > 0:
		return errors.New(verdict(mirror, v, left))
	}
	repaired := ""
	if v.Repaired > 0 {
		repaired = fmt.Sprintf(" again, with %s repaired", count(v.Repaired, "range"))
	}
	text := "The copies of %s are equal%s: %d of %d bytes were compared, in %s.\n"
	if v.Stopped && v.Done < v.Total {
		text = "The comparison of %s was stopped: what was compared is equal%s, %d of %d bytes, in %s.\n"
	}
	_, err := fmt.Fprintf(out, text, mirror, repaired, v.Done, v.Total, v.Ended.Sub(v.Began).Round(time.Millisecond))
	return err
}

// verdict says what a repair has left, and why.
func verdict(mirror string, v *mgmt.Verification, left int) string {
	text := fmt.Sprintf("the copies of %s still differ in %s", mirror, count(left, "range"))
	if v.Failed > 0 {
		text += fmt.Sprintf(": %d could not be repaired, because the copies that are right went away or cannot be read any more: look at the disks, and begin again", v.Failed)
	}
	return text + fromAdvice(v)
}

// fromAdvice says what to do where nobody knows who is right.
func fromAdvice(v *mgmt.Verification) string {
	if v.Unknown == 0 {
		return ""
	}
	return fmt.Sprintf("; for %d of them it is not known which copy is right: find out, and name its node with --repair --from NODE", v.Unknown)
}
