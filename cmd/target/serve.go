package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/internal/command"
	"oneshot/internal/loglimit"
	"oneshot/mgmt"
)

// drainTime is how long commands in flight may take to finish after the first
// signal. It is less than the 90 s after which systemd kills.
const drainTime = 60 * time.Second

// closeTime is how long stores may take after drainTime to write what they have in caches. Both together are less than
// those 90 s. A disk that hangs would take for ever.
const closeTime = 20 * time.Second

func serveCommand() *cobra.Command {
	var s serving
	cmd := &cobra.Command{
		Use:   "serve [--config FILE] [--node NAME]",
		Short: "Serve the disks of a configuration, until SIGTERM or SIGINT",
		Long: `serve opens the stores and listens on the portals of a configuration. When it
listens, it prints commands to paste for open-iscsi, libiscsi, QEMU and nvme-cli. It logs to
standard error.

Without a configuration serve serves memory disks of 256MiB: one over iSCSI on
127.0.0.1:3260 and iSER on 127.0.0.1:3261, one over NVMe/TCP on 127.0.0.1:4420. Their
content is gone when serve stops. The management socket is $` + socketVariable + `, if that is
set, or else a path at which the other commands of the same user look for it.

SIGHUP, systemctl reload and target reload make serve read its configuration again and
apply what changed in it: LUNs, targets, access and portals. Sessions that a change
does not concern go on. If the file is not valid, nothing changes, and the log says
why.

If the configuration has a section cluster, serve is a node of that cluster, and serves
what the configuration has for this node: see target ha.

SIGTERM and SIGINT drain: serve asks initiators to log out, finishes the commands in
flight, writes caches to disk, and exits with status 0. After ` + strconv.Itoa(int(drainTime.Seconds())) + ` s, or at a second
signal, it stops waiting and exits with status 1; what initiators have flushed is safe
all the same. A disk that hangs then, while caches are written to it, is waited for
` + strconv.Itoa(int(closeTime.Seconds())) + ` s more.`,
		Example: `  target serve
  target serve --config /etc/oneshot.yaml`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.program = typed(os.Args[0], cmd.Root().Name())
			return loglimit.Stayed(s.serve(openServer, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	nodeFlag(cmd, &s.node)
	configFlag(cmd, &s.path, "the YAML `FILE` that says what to serve (default: memory disks)")
	return cmd
}

// daemon is a running server. It is an interface for the tests of supervise.
type daemon interface {
	Addrs() []net.Addr
	Serve() error
	Shutdown(context.Context) error
	ApplyFor(context.Context, *config.Config) (mgmt.Reload, error)
	OnReload(func(context.Context) (mgmt.Reload, error))
	Health() error
}

// opener opens the stores and portals of a configuration. Its error is one line.
type opener func(*config.Config, *slog.Logger) (daemon, error)

// serving says what to serve.
type serving struct {
	program string // as the user calls it
	path    string // of the configuration; empty: the built-in one
	node    string // of a cluster; empty: the host name
	witness bool
}

func (s *serving) serve(open opener, stdout, stderr io.Writer) error {
	c, err := s.load()
	if err != nil {
		return err
	}
	command.OutliveReaders()
	out, flush := loglimit.ForDaemon(stderr)
	defer flush()
	log, setLevel := newLogger(c.Log, out)
	if s.path == "" {
		c.File = "(built in)"
		if c.Management.Socket, err = makeOwnSocket(); err != nil {
			log.Warn("no management socket: status, sessions and session drop do not work", "reason", err)
		}
	}
	for _, w := range c.Warnings {
		log.Warn(w.Message, "at", w.Pos.String())
	}
	// Before the portals open, so that a signal always drains.
	signals := make(chan os.Signal, 2) // one to drain, one to stop at once
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	hups := make(chan os.Signal, 1) // during a reload, one more signal is enough to be remembered
	signal.Notify(hups, syscall.SIGHUP)
	defer close(hups)
	defer signal.Stop(hups)
	d, err := openUnless(func() (daemon, error) { return open(c, log) }, signals)
	if err != nil {
		return err
	}
	r := newReloader(d, s, log, c.Log.Level, setLevel)
	d.OnReload(r.reload)
	go r.onHangup(hups) // ends with hups; a reload under way ends when d shuts down
	alive := make(chan struct{})
	defer close(alive)
	go watchdog(watchdogInterval(), d.Health, alive)
	if err := errors.Join(writeHints(stdout, c, d.Addrs()), writeStatusHint(stdout, s.program, c.Management.Socket)); err != nil {
		log.Warn("cannot print the commands to paste", "reason", err) // nobody reads standard output; serve all the same
	}
	command.Notify("READY=1\nSTATUS=serving")
	return supervise(d, signals, log)
}

func (s *serving) load() (*config.Config, error) {
	if s.path == "" {
		if s.node != "" {
			return nil, errors.New("there is no node without a cluster: name its configuration with --config FILE, or remove --node")
		}
		return config.Default(), nil
	}
	c, err := loadOn(s.path, s.node)
	if err != nil {
		return nil, err
	}
	return c, checkRole(c, s.witness)
}

// openUnless opens the stores and portals, unless a store that hangs keeps it from that and somebody has it stop: signals are as of supervise,
// which gets the first one if all is open in time.
func openUnless(open func() (daemon, error), signals chan os.Signal) (daemon, error) {
	type result struct {
		d   daemon
		err error
	}
	opened := make(chan result, 1)
	go func() {
		d, err := open()
		opened <- result{d, err}
	}()
	select {
	case r := <-opened:
		return r.d, r.err
	case s := <-signals:
		overdue := time.NewTimer(drainTime)
		defer overdue.Stop()
		select {
		case r := <-opened:
			select {
			case signals <- s:
			default: // as many as supervise takes have come since
			}
			return r.d, r.err
		case s = <-signals:
		case <-overdue.C:
		}
		return nil, fmt.Errorf("stopped by a signal (%s) while stores and portals were being opened; a store hangs", s)
	}
}

// supervise serves until d fails or a signal comes, and then shuts d down. It
// returns before d has stopped only after a second signal, or when d takes longer
// than drainTime and closeTime; the process should then end at once.
func supervise(d daemon, signals <-chan os.Signal, log *slog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- d.Serve() }()

	var failure error
	select {
	case failure = <-served:
		served <- nil
		log.Error("the server failed; draining", "reason", failure)
		failure = &loggedError{failure}
	case s := <-signals:
		command.Notify("STOPPING=1\nSTATUS=waiting for initiators to log out")
		log.Info("draining; a second signal stops at once", "signal", s.String())
	}

	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	overdue := time.NewTimer(drainTime + closeTime)
	defer overdue.Stop()
	stopped := make(chan error, 1)
	go func() { stopped <- errors.Join(d.Shutdown(ctx), <-served) }()
	select {
	case err := <-stopped:
		if err = errors.Join(failure, err); err != nil {
			return oneLine(err)
		}
		log.Info("stopped")
		return nil
	case s := <-signals:
		return fmt.Errorf("stopped by a second signal (%s) before all that the first one began was done", s)
	case <-overdue.C:
		return oneLine(errors.Join(failure, fmt.Errorf("stopped after %v: a store hangs; what was not flushed may be lost", drainTime+closeTime)))
	}
}

// loggedError is an error that the log has already.
type loggedError struct{ error }

func (e *loggedError) Unwrap() error { return e.error }
func (e *loggedError) Error() string { return "the server failed, and the log says why" }

// oneLine turns what errors.Join puts on several lines into one.
func oneLine(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	parts := joined.Unwrap()
	line := oneLine(parts[0])
	for _, p := range parts[1:] {
		line = fmt.Errorf("%w; %w", line, oneLine(p))
	}
	return line
}
