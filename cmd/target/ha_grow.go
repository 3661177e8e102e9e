package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"oneshot/config"
)

func haGrow() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "grow MIRROR SIZE",
		Short: "Make a mirror larger",
		Long: `grow makes a mirror larger while hosts use it. All nodes with a copy have to run: first
each copy gets room, and if one cannot, the mirror keeps its size. Files grow by
themselves; a device has to be large enough before. grow ends when hosts see the new
size, of which they are told (CAPACITY DATA HAS CHANGED; NVMe hosts, that the namespace
has changed). Mirrors do not shrink.

Write the new size to the configuration on all nodes afterwards: until then the former
one is taken, too.

Any running node of the cluster can be asked. If grow is interrupted, run it again.`,
		Example: `  target ha grow disk1 20GiB`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &usageError{cmd.CommandPath(), "name a mirror and its new size, such as 20GiB: " + cmd.Root().Name() + " ha status lists mirrors"}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := config.ParseSize(args[1])
			if err != nil {
				return &usageError{cmd.CommandPath(), err.Error()}
			}
			c := v.client()
			defer c.Close()
			if err := c.GrowMirror(cmd.Context(), args[0], size); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The mirror %s has %s. Write that to the configuration on all nodes.\n", args[0], config.FormatSize(size))
			return err
		},
	}
	v.socketFlag(cmd)
	return cmd
}
