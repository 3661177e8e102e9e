package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
)

func endpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Show and end the RDMA endpoints of partitions",
		Long: `endpoint shows and ends the queue pairs that work on partitions. Who may open one
is what target partition grant says.`,
		Example: `  target endpoint ls
  target endpoint drop 3`,
		Args: cobra.ArbitraryArgs,
		RunE: unknownCommand,
	}
	cmd.AddCommand(endpointList(), endpointDrop())
	return cmd
}

func endpointList() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "ls [--watch] [-o table|json]",
		Short: "Show the open endpoints, and what each does",
		Long: `ls shows the endpoints that are open: queue pairs that work on a partition, who uses
them, with which rights, and what each did since it was opened. With --watch it goes
on and shows what happens per second.

Latency is that of operations of the store, from submission to completion. One
operation in 64 is timed, and stands for those before it.`,
		Example: `  target endpoint ls
  target endpoint ls --watch`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Endpoints, writeEndpoints)
		},
	}
	v.flags(cmd, watchRates)
	return cmd
}

func writeEndpoints(w io.Writer, now, before *mgmt.Endpoints) error {
	if len(now.Endpoints) == 0 {
		_, err := fmt.Fprintln(w, "no endpoints")
		return err
	}
	then := make(map[uint64]*mgmt.IO)
	p := newPeriod(now.Time, nil, now.BoundsNS)
	if before != nil {
		p = newPeriod(now.Time, &before.Time, now.BoundsNS)
		for i := range before.Endpoints {
			then[before.Endpoints[i].ID] = &before.Endpoints[i].IO
		}
	}
	t := newTable(w)
	fmt.Fprintf(t, "ID\tPARTITION\tUSER\tRIGHTS\tORDER\tVIA\tAGE\t%s\n", p.heading())
	for i := range now.Endpoints {
		e := &now.Endpoints[i]
		fmt.Fprintf(t, "%d\t%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.Store, e.Partition, e.Identity, e.Rights, e.Order,
			cmp.Or(e.Via, "-"), age(e.Since, now.Time), p.cells(&e.IO, then[e.ID]))
	}
	return t.Flush()
}

func endpointDrop() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "drop ID",
		Short: "End the endpoint with this number",
		Long: `drop ends an endpoint: operations under way end, later ones fail. ID is what target
endpoint ls shows. Its user may open another one at once: to keep him out, revoke his
rights.`,
		Example:               `  target endpoint drop 3`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{cmd.CommandPath(), "name one endpoint by its number: " + cmd.Root().Name() + " endpoint ls lists them"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return &usageError{cmd.CommandPath(), fmt.Sprintf("%q is not the number of an endpoint", args[0])}
			}
			c := v.client()
			defer c.Close()
			return listedBy(cmd, "endpoint ls", c.DropEndpoint(cmd.Context(), id))
		},
	}
	v.socketFlag(cmd)
	return cmd
}
