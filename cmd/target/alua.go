package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
)

// accessStates are the words of the command line, with what the API calls them.
var accessStates = []struct{ word, state string }{
	{"optimized", "active/optimized"},
	{"non-optimized", "active/non-optimized"},
	{"standby", "standby"},
	{"unavailable", "unavailable"},
	{"offline", "offline"},
	{"transitioning", "transitioning"},
}

func aluaCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "alua [-o table|json]",
		Short: "Show or set which paths to a LUN initiators should use",
		Long: `alua shows the asymmetric access states (ALUA) of a serving daemon: for every LUN
and every group of portals through which it is reached, how good that way is.
alua set changes them.

A group is the "group" of portals in the configuration, and what SCSI calls a
target port group. Initiators with multipathing use the ways that are
active/optimized, those that are active/non-optimized if there are no others, and
none that is standby, unavailable or offline. The column CHANGED BY says who may
change a state: "alua" at the LUN in the configuration.`,
		Example: `  target alua
  target alua set iqn.2026-11.example.oneshot:demo 2 standby
  target alua -o json | jq '.access[] | select(.state != "active/optimized")'`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Access, func(w io.Writer, now, _ *mgmt.AccessStates) error { return writeAccess(w, now) })
		},
	}
	v.socketFlag(cmd)
	v.outputFlag(cmd)
	cmd.AddCommand(aluaSetCommand())
	return cmd
}

func aluaSetCommand() *cobra.Command {
	v := new(view)
	change := new(mgmt.AccessChange)
	var luns []int
	var preferred bool
	var words []string
	for _, s := range accessStates {
		words = append(words, s.word)
	}
	cmd := &cobra.Command{
		Use:   "set TARGET GROUP STATE [--lun N] [--preferred]",
		Short: "Set the access state of a group of portals",
		Long: `set changes the access state of a group of portals for all LUNs of a target, or
those of --lun. STATE is one of
    ` + strings.Join(words, ", ") + `
(active/optimized and active/non-optimized are understood too). Initiators are
told by a unit attention, and ask for the states; commands that are in flight end
as they would have. If a LUN does not let the administrator change states (alua:
explicit or none in the configuration), nothing is changed.

To take a portal out of use: set the other groups optimized, this one standby,
wait until target sessions --watch shows no more commands on its sessions, and go
ahead.

States hold while the configuration is read again. With "state" in the
configuration they hold over restarts as well, without it everything is
active/optimized after a restart.`,
		Example: `  target alua set iqn.2026-11.example.oneshot:demo 2 standby
  target alua set iqn.2026-11.example.oneshot:demo 1 optimized --lun 0 --lun 3 --preferred`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 3 {
				return &usageError{cmd.CommandPath(), "name a target, a group and a state, such as " + `"iqn.2026-11.example.oneshot:demo 2 standby"`}
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeAccess(cmd, v.socket, args, words), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := v.check(cmd); err != nil {
				return err
			}
			if err := parseAccess(cmd, change, args, luns); err != nil {
				return err
			}
			if cmd.Flags().Changed("preferred") {
				change.Preferred = &preferred
			}
			c := v.client()
			defer c.Close()
			now, err := c.SetAccess(cmd.Context(), *change)
			if err != nil {
				return err
			}
			return v.show(cmd.OutOrStdout(), now, func() error { return writeAccess(cmd.OutOrStdout(), now) })
		},
	}
	v.socketFlag(cmd)
	v.outputFlag(cmd)
	cmd.Flags().IntSliceVar(&luns, "lun", nil, "only the LUN `N`; may be given several times (default: all of the target)")
	cmd.Flags().BoolVar(&preferred, "preferred", false, "tell initiators to like this group best; --preferred=false takes that back (default: as it is)")
	return cmd
}

// parseAccess fills the change from the words of the command line.
func parseAccess(cmd *cobra.Command, change *mgmt.AccessChange, args []string, luns []int) error {
	wrong := func(format string, a ...any) error { return &usageError{cmd.CommandPath(), fmt.Sprintf(format, a...)} }
	group, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return wrong("%q is not the number of a group: %s alua lists them", args[1], cmd.Root().Name())
	}
	change.Target, change.Group = args[0], uint16(group)
	for _, s := range accessStates {
		if args[2] == s.word || args[2] == s.state {
			change.State = s.state
		}
	}
	if change.State == "" {
		return wrong("there is no access state %q", args[2])
	}
	for _, n := range luns {
		if n < 0 || n > maxLUN {
			return wrong("no such LUN: %d; LUNs are 0 to %d", n, maxLUN)
		}
		change.LUNs = append(change.LUNs, uint16(n))
	}
	return nil
}

const maxLUN = 16383

// completeAccess completes the next word of alua set: with what the daemon has, if it answers.
func completeAccess(cmd *cobra.Command, socket string, args, states []string) (words []string) {
	switch {
	case len(args) == 2:
		return states
	case len(args) > 2:
		return nil
	}
	c := mgmt.NewClient(socket)
	defer c.Close()
	list, err := c.Access(cmd.Context())
	if err != nil {
		return nil
	}
	for _, a := range list.Access {
		word := a.Target
		if len(args) == 1 {
			word = strconv.Itoa(int(a.Group))
		}
		if (len(args) == 0 || a.Target == args[0]) && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

func writeAccess(w io.Writer, now *mgmt.AccessStates) error {
	if len(now.Access) == 0 {
		_, err := fmt.Fprintln(w, "no LUNs")
		return err
	}
	t := newTable(w)
	fmt.Fprintln(t, "TARGET\tLUN\tGROUP\tSTATE\tPREFERRED\tCHANGED BY\tPORTALS")
	for _, a := range now.Access {
		preferred := "-"
		if a.Preferred {
			preferred = "yes"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", a.Target, a.LUN, a.Group, a.State, preferred, changers[a.ALUA], portalList(a.Portals))
	}
	return t.Flush()
}

// changers says who may change a state.
var changers = map[string]string{
	"none": "nobody", "implicit": "administrator", "explicit": "initiators", "both": "both",
}
