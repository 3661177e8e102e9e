package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"oneshot/initiator/host"
	"oneshot/initiator/nbd"
	"oneshot/internal/command"
	"oneshot/internal/loglimit"
)

func attachCommand(fl *flags) *cobra.Command {
	var (
		o      = nbd.Options{Device: -1}
		device string
	)
	c := &cobra.Command{
		Use:   "attach URL",
		Short: "Make a block device of a disk, for all programs",
		Long: `attach makes a block device of a disk, /dev/nbd0 say, through the kernel's driver nbd, prints its
name, and serves it until it is detached. It needs root, and the driver (modprobe nbd).

Programs see a pause, and no error, when the target or the link to it is lost: attach logs in again
and sends again what had no answer. After --dead-time they see errors, until the target is back.

The device outlives attach: if attach is killed, requests wait for five minutes. The same command
takes the device over; requests that were under way go on within 30 s.

SIGTERM and SIGINT detach the device if nobody uses it, and leave it otherwise.`,
		Example: `  initiator attach iscsi://127.0.0.1/iqn.2026-11.example.oneshot:demo/0
  initiator attach --device nbd3 --dead-time 2m oneshot+iwarp://127.0.0.1/iqn.2026-11.example.oneshot:demo/0`,
		Args: cobra.ExactArgs(1),
	}
	p := c.Flags()
	p.StringVar(&device, "device", "", "the `DEVICE` to use, such as nbd3; otherwise the one that this disk had, or a free one")
	p.IntVar(&o.Connections, "connections", 1, "`NUMBER` of sessions, each with a queue of the device")
	p.BoolVar(&o.ReadOnly, "read-only", false, "nobody can write to the device")
	p.DurationVar(&o.Ping, "ping", 5*time.Second, "`TIME` between two looks whether the target answers and how large the disk is, and how long an answer may take")
	p.DurationVar(&o.DeadTime, "dead-time", time.Minute, "`TIME` that requests wait for a target that is away before they fail")
	p.DurationVar(&o.Wait, "wait", 0, "`TIME` to try for, if the target cannot be reached at the start; 0: once")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if host.IsURL(args[0]) {
			return &usageError{fmt.Errorf("attach is for disks of iSCSI: Linux has a host of NVMe of its own, whose devices need no attach: nvme connect -t tcp -a ADDRESS -n NQN")}
		}
		if o.URL, err = fl.url(args[0]); err != nil {
			return err
		}
		if o.URL.LUN < 0 {
			return &usageError{fmt.Errorf("%v names no LUN (…/iqn/0); list them: initiator ls %v", o.URL, o.URL)}
		}
		if device != "" {
			if o.Device, err = nbd.ParseDevice(device); err != nil {
				return &usageError{err}
			}
		}
		if o.Connections < 1 || o.Connections > nbd.MaxConnections {
			return &usageError{fmt.Errorf("%d connections: 1 to %d are possible", o.Connections, nbd.MaxConnections)}
		}
		if o.Ping < time.Second {
			return &usageError{fmt.Errorf("--ping %v: 1s is the least", o.Ping)}
		}
		if o.Wait < 0 {
			return &usageError{fmt.Errorf("--wait %v: 0s is the least", o.Wait)}
		}
		o.Probe = o.Ping
		if o.Initiator, err = fl.options(c, o.URL); err != nil {
			return err
		}
		defer func() { err = loglimit.Stayed(err) }()
		command.OutliveReaders()
		var flush func()
		o.Log, flush = fl.serviceLog(c)
		defer flush()
		if err := becomeFlusher(o.Log); err != nil {
			return err
		}
		return fl.attach(c, o)
	}
	return c
}

// attach serves a device until it is detached or a signal comes.
func (fl *flags) attach(c *cobra.Command, o nbd.Options) error {
	ctx, cancel := context.WithTimeout(c.Context(), fl.timeout+o.Wait)
	a, err := nbd.Attach(ctx, o)
	cancel()
	if err != nil {
		return err
	}
	command.Notify("READY=1")
	path := nbd.Path(a.Index)
	if fl.json {
		err = printJSON(c.OutOrStdout(), map[string]string{"device": path})
	} else {
		_, err = fmt.Fprintln(c.OutOrStdout(), path)
	}
	if err != nil {
		o.Log.Warn("nobody reads the name of the device", "device", path, "reason", err)
	}
	err = a.Serve(c.Context())
	if errors.Is(err, nbd.ErrLeft) {
		command.Notify("STOPPING=1")
		err = leave(a)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(err, a.Close())
}

// leave detaches a device if nobody uses it.
func leave(a *nbd.Attachment) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	detached := make(chan error, 1)
	go func() {
		err := nbd.Detach(nbd.Netlink{}, a.Index, false)
		if err != nil {
			cancel() // nobody will disconnect
		}
		detached <- err
	}()
	served := a.Serve(ctx)
	if err := <-detached; err != nil {
		return fmt.Errorf("%w; %w", err, nbd.ErrLeft)
	}
	return served
}

// becomeFlusher keeps this process running when the machine is short of memory and waits for the device to
// write. It locks the memory of the process, and the kernel does not make the process wait for its own device
// (PR_SET_IO_FLUSHER). That is an attribute of a thread, so the program starts itself again, and all threads inherit it.
func becomeFlusher(log *slog.Logger) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	is, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	if err == nil && is == 0 {
		if err = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err == nil {
			path, err := os.Executable() // by its name, which ps shows
			if err == nil {
				err = unix.Exec(path, os.Args, os.Environ())
			}
			return fmt.Errorf("start this program again: %w", err)
		}
	}
	if err != nil {
		log.Warn("under memory pressure the device may hang", "reason", fmt.Errorf("PR_SET_IO_FLUSHER: %w", err))
	}
	const onFault = 4 // MCL_ONFAULT: only pages that are in use, not what is reserved
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | onFault); err != nil {
		log.Warn("memory is not locked", "reason", err)
	}
	return nil
}

// serviceLog is for a process that stays: what goes wrong goes to standard error. Who reads that may need the device to go on.
func (fl *flags) serviceLog(c *cobra.Command) (log *slog.Logger, flush func()) {
	l := logrus.New()
	out, flush := loglimit.ForDaemon(c.ErrOrStderr())
	l.SetOutput(out)
	if l.SetLevel(logrus.InfoLevel); fl.verbose {
		l.SetLevel(logrus.DebugLevel)
	}
	log = slog.New(loglimit.Handler(logrusslog.NewHandler(l, nil)))
	loglimit.TellMissing(out, log)
	return log, flush
}

func detachCommand(*flags) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "detach DEVICE",
		Short: "End a device that attach has made",
		Long: `detach writes to the disk what the kernel holds back, and ends the device, nbd3 or /dev/nbd3 say.
Its attach ends, too. detach refuses while the device is mounted or part of another device, and if
it cannot write. With --force it does not write: for a disk that does not come back.`,
		Example: `  initiator detach nbd3
  initiator detach --force nbd3`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			index, err := nbd.ParseDevice(args[0])
			if err != nil {
				return &usageError{err}
			}
			list, err := nbd.Attached()
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list, func(d nbd.Device) bool { return d.Index == index && d.URL != "" }) {
				return fmt.Errorf("%s is not attached; list what is: initiator attached", nbd.Path(index))
			}
			return nbd.Detach(nbd.Netlink{}, index, force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "do not write: what the kernel holds back is lost")
	return c
}

func attachedCommand(fl *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "attached",
		Short: "List the devices that attach has made",
		Long: `attached lists the devices that attach has made: their size, whether they can be written to, their
sessions, their disk, and whether a process serves them. A device that nobody serves waits until the
same attach takes it over.`,
		Example: `  initiator attached
  initiator attached --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := nbd.Attached()
			if err != nil {
				return err
			}
			list := slices.DeleteFunc(all, func(d nbd.Device) bool { return d.URL == "" })
			slices.SortFunc(list, func(a, b nbd.Device) int { return a.Index - b.Index })
			if fl.json {
				return printJSON(c.OutOrStdout(), append([]nbd.Device{}, list...))
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "DEVICE\tSIZE\tMODE\tCONNECTIONS\tSTATE\tURL")
			for _, d := range list {
				n, mode, state := size(d.Size), "rw", "served"
				if d.ReadOnly {
					mode = "ro"
				}
				if !d.Served {
					state = "waits for attach"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", d.Path, n.String(), mode, d.Sockets, state, d.URL)
			}
			return w.Flush()
		},
	}
}
