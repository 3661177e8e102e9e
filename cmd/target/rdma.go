package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
	"oneshot/transport/rdma/verbs"
)

func rdmaCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "List the kernel's RDMA devices, and what prevents their use",
		Long: `rdma lists the RDMA devices that the kernel has: cards, soft-RoCE (rxe) and siw.
Portals with "transport: verbs" or "nvme-rdma" use them; the key "device" of a portal is a
name from this list, or any. For a device that cannot be used, rdma says why, and what to do.

If a daemon is running, rdma also shows what it has done with each device since it
started: how many messages it moved, how often it slept, how often polling found
something and how often it did not.

The command rdma of iproute2 makes a device of an ordinary network interface:

    rdma link add rxe0 type rxe netdev eth0`,
		Example:               `  target rdma`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := verbs.Devices()
			if err != nil {
				return err
			}
			if err := writeDevices(cmd.OutOrStdout(), devices); err != nil {
				return err
			}
			status, err := v.client().Status(cmd.Context())
			switch {
			case err == nil:
				return writeUse(cmd.OutOrStdout(), status.Devices)
			case v.socket != "":
				return err
			}
			return nil // no daemon was named, and none runs
		},
	}
	v.socketFlag(cmd)
	return cmd
}

// writeUse writes what a daemon has done with its devices since it started.
func writeUse(w io.Writer, devices []mgmt.Device) error {
	if len(devices) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w, "\nThe daemon, since it started:"); err != nil {
		return err
	}
	for i := range devices {
		if _, err := fmt.Fprintln(w, deviceCounters(&devices[i])); err != nil {
			return err
		}
	}
	return nil
}

// writeDevices writes a row for each port, then what the devices can do, then the problems.
func writeDevices(w io.Writer, devices []verbs.Info) error {
	if len(devices) == 0 {
		_, err := fmt.Fprintln(w, "There is no RDMA device. `rdma link add rxe0 type rxe netdev eth0` makes one of the network interface eth0.")
		return err
	}
	t := newTable(w)
	fmt.Fprintln(t, "DEVICE\tPORT\tKIND\tSTATE\tLINK\tRATE\tINTERFACE\tUSABLE")
	for i := range devices {
		d := &devices[i]
		usable := "yes"
		if len(d.Problems) > 0 {
			usable = "no"
		}
		for _, p := range d.Ports {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, p.Number, d.Transport, dash(p.State), dash(p.LinkLayer), dash(p.Rate), dash(p.NetDev), usable)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range devices {
		if err := writeDevice(w, &devices[i]); err != nil {
			return err
		}
	}
	return nil
}

func writeDevice(w io.Writer, d *verbs.Info) error {
	var b strings.Builder
	if l := &d.Limits; l.MaxQueuePair > 0 {
		fmt.Fprintf(&b, "\n%s: %d connections, %d requests each, %d elements in a list (%d of a Read), %d Reads at a time, %s a message, %d bytes inline\n",
			d.Name, l.MaxQueuePair, l.MaxWork, l.MaxSGE, l.MaxReadSGE, l.MaxReads, size(float64(l.MaxMessage)), l.MaxInline)
		fmt.Fprintf(&b, "%s: memory windows %s, Send with Invalidate %s, senders wait for receives %s\n",
			d.Name, yes(l.Windows), yes(l.SendInvalidate), yes(l.ReceiveWait))
	}
	for _, p := range d.Problems {
		fmt.Fprintf(&b, "\n%s: %s\n", d.Name, p)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
