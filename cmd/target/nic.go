package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/internal/command"
	"oneshot/internal/loglimit"
	"oneshot/mgmt"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/nic/card"
)

func nicCommand() *cobra.Command {
	socket, memory, programs, verbose, poll := nic.DefaultSocket, 1024, 64, false, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "nic [--socket PATH]",
		Short: "Be an RDMA card for other programs, until SIGTERM or SIGINT",
		Long: `nic runs queue pairs of iWARP for other programs of this machine, as an RDMA card does
for its driver. A program connects to the socket, shares memory with nic, and posts work
to rings in it; nic moves the bytes between that memory and the network. The initiator
does so with --nic. A crash or a lie of one program ends that program's connections, and
nothing else; when nic ends, all of its connections do.

Only the user that nic runs as, and root, can connect to the socket. Whoever can may open
any connection, and listen on any port, that nic may.

nic serves no disks, and needs no configuration.`,
		Example: `  target nic --socket /run/oneshot/nic.sock
  initiator bench --nic /run/oneshot/nic.sock oneshot+iwarp://127.0.0.1/iqn.2026-11.example.oneshot:demo/0`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if memory < 1 || programs < 1 {
				return &usageError{cmd.CommandPath(), "a card serves at least one program, and at least 1 MiB of its memory"}
			}
			if poll < 0 || poll > maxPoll {
				return &usageError{cmd.CommandPath(), fmt.Sprintf("--poll %v: 0 to %v are possible", poll, maxPoll)}
			}
			return loglimit.Stayed(serveNIC(socket, card.Config{Memory: int64(memory) << 20, Programs: programs, Poll: poll}, verbose, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", socket, "the `PATH` of the socket that programs connect to")
	f.IntVar(&memory, "memory", memory, "at most `MIB` of memory are shared with one program")
	f.IntVar(&programs, "programs", programs, "at most `N` programs are served at a time")
	f.DurationVar(&poll, "poll", 0, "look for `TIME` for what a program posts before sleeping, on at most half of the processors; 0: sleep at once")
	f.BoolVar(&verbose, "verbose", false, "also log which programs come and go")
	return cmd
}

// maxPoll bounds polling: a processor is not the card's alone.
const maxPoll = 10 * time.Millisecond

func serveNIC(socket string, c card.Config, verbose bool, stdout, stderr io.Writer) error {
	command.OutliveReaders()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := mgmt.ListenPackets(socket)
	if err != nil {
		return err
	}
	log := config.Log{Format: config.LogText, Level: slog.LevelWarn}
	if verbose {
		log.Level = slog.LevelInfo
	}
	out, flush := loglimit.ForDaemon(stderr)
	defer flush()
	c.Logger, _ = newLogger(log, out)
	if _, err := fmt.Fprintf(stdout, "serving programs at %s\n\n  initiator --nic %[1]s ls iser+iwarp://HOST\n", socket); err != nil {
		c.Logger.Warn("cannot print where the card is", "reason", err) // nobody reads standard output; serve all the same
	}
	command.Notify("READY=1\nSTATUS=serving")
	return card.New(c).Serve(ctx, l)
}
