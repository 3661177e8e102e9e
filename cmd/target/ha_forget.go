package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func haForget() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "forget MIRROR",
		Short: "Have the cluster forget a mirror that was given up",
		Long: `forget removes what the cluster has agreed on about a mirror: its size, who was its
primary, which copies were in sync, and reservations. It touches no copy.

Take the mirror out of the configuration of all nodes first, and reload them. forget is
refused while a node that is up has the mirror in its configuration, or one with a copy
that is away had it when it was last heard: it may serve it.

Afterwards its name is free, and its copies are ordinary files and devices again, as soon
as the directory that each node has of the mirror is removed. Any running node of the
cluster can be asked.`,
		Example: `  target ha forget disk1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{cmd.CommandPath(), "name one mirror: " + cmd.Root().Name() + " ha status lists them"}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			if err := c.ForgetMirror(cmd.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "The cluster has forgotten the mirror %s. Remove the directory mirrors/%s in cluster.state on each node that had a copy.\n", args[0], args[0])
			return err
		},
	}
	v.socketFlag(cmd)
	return cmd
}
