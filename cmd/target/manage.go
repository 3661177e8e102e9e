package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"oneshot/config"
	"oneshot/mgmt"
)

// view holds the flags of the commands that look at a daemon.
type view struct {
	socket   string
	output   string
	watch    bool
	interval time.Duration
	count    int
}

func (v *view) socketFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&v.socket, "socket", "", "path of the daemon's management `SOCKET` (default: $"+socketVariable+", else that of this user's own daemon, else "+config.DefaultSocket+")")
}

// client returns a client of the daemon that the flags name.
func (v *view) client() *mgmt.Client { return mgmt.NewClient(cmp.Or(v.socket, socketToAsk())) }

// What --watch does.
const (
	watchAgain = "repeat until Ctrl-C"
	watchRates = watchAgain + ", and show what happens per second"
)

// flags adds the flags of a command that shows something, and does with --watch what watch says.
func (v *view) flags(cmd *cobra.Command, watch string) {
	v.socketFlag(cmd)
	v.outputFlag(cmd)
	f := cmd.Flags()
	f.BoolVarP(&v.watch, "watch", "w", false, watch)
	f.DurationVar(&v.interval, "interval", time.Second, "with --watch, the `TIME` between two tables, such as 500ms or 5s; at least 10ms")
	f.IntVar(&v.count, "count", 0, "with --watch, stop after this many `TABLES` (default: never)")
}

func (v *view) outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&v.output, "output", "o", "table", "`FORMAT` of the output: table or json")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
}

// must panics on errors that only a bug in this program causes.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (v *view) check(cmd *cobra.Command) error {
	switch {
	case v.output != "table" && v.output != "json":
		return &usageError{cmd.CommandPath(), fmt.Sprintf("unknown form %q: write -o table or -o json", v.output)}
	case !v.watch && (cmd.Flags().Changed("interval") || cmd.Flags().Changed("count")):
		return &usageError{cmd.CommandPath(), "--interval and --count are for --watch: add it"}
	case v.watch && v.interval < 10*time.Millisecond:
		return &usageError{cmd.CommandPath(), fmt.Sprintf("an interval of %s is too short: write 1s", v.interval)}
	}
	return nil
}

func statusCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "status [--watch] [-o table|json]",
		Short: "Show what a daemon serves, and what every LUN and namespace does",
		Long: `status asks a running daemon, over its management socket, for its portals, targets
and LUNs, subsystems and namespaces, and for what each LUN or namespace has done since
the daemon made its target or subsystem: commands, bytes, latency, failures. With
--watch it repeats, and shows what happens per second.

MEAN and P99 are latencies: the time from the arrival of a command to the departure
of its answer. P99 is the upper bound of the histogram bucket that holds the 99th
percentile; the true value is at most a third below it. BUSY is the number of commands
in flight, FAILED the number of failures of each kind.`,
		Example: `  target status
  target status --watch
  target status -o json | jq '.targets[].luns[].io.failed'`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Status, writeStatus)
		},
	}
	v.flags(cmd, watchRates)
	return cmd
}

func sessionsCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "sessions [--watch] [-o table|json]",
		Short: "Show the sessions of a daemon, and what each does",
		Long: `sessions asks a running daemon, over its management socket, who has logged in:
initiator, target, address, and what each session has done since its login. Then come
the controllers that hosts of NVMe have made, whose numbers begin with c: the name of
the host, its subsystem, the controller identifier, and how many queues it has, the
admin queue included; -o json lists each queue. With --watch sessions repeats, and shows
what happens per second. The columns are those of target status.`,
		Example: `  target sessions
  target sessions --watch
  target session drop 3
  target session drop c5`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Sessions, writeSessions)
		},
	}
	v.flags(cmd, watchRates)
	return cmd
}

// look shows what ask returns, once or repeatedly. write also gets the previous answer, or nil.
func look[T any](cmd *cobra.Command, v *view, ask func(*mgmt.Client, context.Context) (*T, error), write func(w io.Writer, now, before *T) error) error {
	if err := v.check(cmd); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := v.client()
	defer c.Close()
	out := cmd.OutOrStdout()
	var before *T
	for n := 1; ; n++ {
		now, err := ask(c, ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := v.show(out, now, func() error { return write(out, now, before) }); err != nil {
			return err
		}
		if !v.watch || n == v.count {
			return nil
		}
		before = now
		select {
		case <-time.After(v.interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// show writes one answer: as a table, which replaces the previous one if out is a terminal; or
// as JSON, in one line if there are several answers.
func (v *view) show(out io.Writer, answer any, table func() error) error {
	if v.output == "json" {
		e := json.NewEncoder(out)
		if !v.watch {
			e.SetIndent("", "  ")
		}
		return e.Encode(answer)
	}
	if v.watch && isTerminal(out) {
		fmt.Fprint(out, "\x1b[H\x1b[2J")
	}
	return table()
}

// isTerminal says whether somebody looks at, or types into, f.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func sessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "End a session of a daemon",
		Long: `session has one command, drop, which ends a session, or a controller of a host of
NVMe. target sessions lists them.`,
		Example: `  target session drop 3`,
		Args:    cobra.ArbitraryArgs,
		RunE:    unknownCommand,
	}
	cmd.AddCommand(dropCommand())
	return cmd
}

// controllerPrefix sets the numbers of controllers apart from those of sessions.
const controllerPrefix = "c"

// listedBy says which command lists what there is, if err says that something is not there.
func listedBy(cmd *cobra.Command, lister string, err error) error {
	if _, ok := errors.AsType[*mgmt.NotFoundError](err); ok {
		return fmt.Errorf("%w: %s %s lists those that there are", err, cmd.Root().Name(), lister)
	}
	return err
}

func dropCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "drop ID",
		Short: "End the session with this number",
		Long: `drop tells an initiator that its session ends, and ends it. ID is the number that
target sessions shows, 1 to 65535. Commands in flight get no answer. Most initiators
log in again at once and repeat these commands. To keep an initiator out, remove it
from "initiators" of the target in the configuration, and reload.

An ID that begins with c, such as c5, is that of a controller of a host of NVMe: its
connections are closed. To keep a host out, remove it from "hosts" of the subsystem.`,
		Example: `  target session drop 3
  target session drop c5`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{cmd.CommandPath(), "name one session by its number: " + cmd.Root().Name() + " sessions lists them"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			number, controller := strings.CutPrefix(args[0], controllerPrefix)
			bits := 16
			if controller {
				bits = 64
			}
			id, err := strconv.ParseUint(number, 10, bits)
			if err != nil {
				return &usageError{cmd.CommandPath(), fmt.Sprintf("%q is not the number of a session", args[0])}
			}
			c := v.client()
			defer c.Close()
			if controller {
				err = c.DropController(cmd.Context(), id)
			} else {
				err = c.DropSession(cmd.Context(), uint16(id))
			}
			return listedBy(cmd, "sessions", err)
		},
	}
	v.socketFlag(cmd)
	return cmd
}

func reloadCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a daemon read its configuration again",
		Long: `reload makes a running daemon read its configuration again and apply what changed,
and lists the changes. Sessions that a change does not concern go on. If the file is
not valid or cannot be applied, nothing changes; reload then shows the reason and
exits with status 1.`,
		Example: `  target reload
  target check -c /etc/oneshot/target.yaml && target reload`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := v.client()
			defer c.Close()
			r, err := c.Reload(cmd.Context())
			if err != nil {
				return err
			}
			return writeReload(cmd.OutOrStdout(), r)
		},
	}
	v.socketFlag(cmd)
	return cmd
}

func writeReload(w io.Writer, r *mgmt.Reload) error {
	var text strings.Builder
	if len(r.Done)+len(r.Pending) == 0 {
		fmt.Fprintln(&text, "nothing has changed")
	}
	for _, line := range r.Done {
		fmt.Fprintln(&text, line)
	}
	for _, line := range r.Pending {
		fmt.Fprintln(&text, "not yet:", line)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
