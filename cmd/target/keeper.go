package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/ha/front"
	"oneshot/ha/keeper"
	"oneshot/internal/command"
	"oneshot/internal/loglimit"
	"oneshot/mgmt"
)

func keeperCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "keeper --config FILE",
		Short: "Hold the addresses that go with mirrors, until SIGTERM or SIGINT",
		Long: `keeper holds, for the daemon of this machine, the addresses that go with the primaries
of mirrors, and the sockets that listen there. So the daemon needs no capabilities; when it
is killed or hangs, its addresses are gone 0.3 s later, and until then nobody is refused at
them. A daemon that comes back gets the same sockets.

keeper reads the section cluster of the daemon's configuration, in which {keeper: {}} has
the daemon look for it, and the portals with mirror and interface: the daemon gets these
addresses and ports, and no others. It reads no secrets. If the section names a watchdog,
keeper pets that device as long as no address is left on this machine that the daemon
does not ask for, and has it reset the machine otherwise, and when keeper itself hangs.

It needs CAP_NET_ADMIN and CAP_NET_RAW, and for ports below 1024 CAP_NET_BIND_SERVICE. Root,
the user that keeper runs as, and those whose group is the group of keeper can use its
socket.`,
		Example: `  target keeper --config /etc/oneshot.yaml
  systemctl enable --now oneshot-keeper`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{cmd.CommandPath(), "no configuration: name the one of the cluster with --config FILE"}
			}
			return loglimit.Stayed(serveKeeper(path, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	configFlag(cmd, &path, "the YAML `FILE` of the cluster")
	return cmd
}

func serveKeeper(path string, stdout, stderr io.Writer) (err error) {
	c, err := config.LoadMoving(path)
	switch {
	case err != nil:
		return err
	case c.Keeper.Socket == "":
		return fmt.Errorf("%s has no keeper in a section cluster: add keeper: {} to it, so that the daemon looks for one", path)
	}
	if missing := front.Missing(); missing != nil {
		return fmt.Errorf("the keeper adds addresses, and lacks %s for that: run it as root, or give its unit AmbientCapabilities= of these", strings.Join(missing, " and "))
	}
	command.OutliveReaders()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := listenKeeper(c.Keeper.Socket)
	if err != nil {
		return err
	}
	out, flush := loglimit.ForDaemon(stderr)
	defer flush()
	o := keeper.Options{Socket: l, Portals: func() ([]keeper.Portal, error) { return movingPortals(path) }}
	o.Log, _ = newLogger(config.Log{Format: config.LogText, Level: slog.LevelInfo}, out)
	k, err := keeper.New(o)
	if err == nil && c.Keeper.Watchdog != "" {
		k.Watchdog, err = keeper.OpenWatchdog(c.Keeper.Watchdog)
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if _, err := fmt.Fprintf(stdout, "holding addresses for the daemon that asks at %s\n", c.Keeper.Socket); err != nil {
		o.Log.Warn("cannot print where the keeper is", "reason", err) // nobody reads standard output; serve all the same
	}
	command.Notify("READY=1\nSTATUS=holding addresses")
	return k.Serve(ctx)
}

// listenKeeper makes the socket, which the group of this process may use.
func listenKeeper(path string) (mgmt.Packets, error) {
	l, err := mgmt.ListenPackets(path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// movingPortals lists the portals whose addresses move.
func movingPortals(path string) (list []keeper.Portal, err error) {
	c, err := config.LoadMoving(path)
	if err != nil {
		return nil, err
	}
	for _, p := range c.Moving {
		list = append(list, keeper.Portal{Address: front.Address{IP: p.Listen.Addr(), Interface: p.Interface}, Port: p.Listen.Port()})
	}
	return list, nil
}
