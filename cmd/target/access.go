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

// accessStates maps the words of the command line to the names that the API uses.
var accessStates = []struct{ word, state string }{
	{"optimized", "active/optimized"},
	{"non-optimized", "active/non-optimized"},
	{"standby", "standby"},
	{"unavailable", "unavailable"},
	{"offline", "offline"},
	{"transitioning", "transitioning"},
}

func accessCommand() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:     "access [-o table|json]",
		Aliases: []string{"alua"},
		Short:   "Show or set which paths to a disk initiators and hosts should use",
		Long: `access shows the access states of a running daemon: one row for each LUN, and each
namespace, and each group of portals through which it is reached. The state says how
good that path is. "access set" changes it. For SCSI that is asymmetric logical unit
access (ALUA), for NVMe asymmetric namespace access (ANA). A LUN and a namespace that
show one store share their states. "alua" is another name of this command.

A group is the "group" of a portal in the configuration; SCSI calls it a target
port group. Initiators with multipathing use the paths that are active/optimized.
If there are none, they use those that are active/non-optimized. They send no I/O
over paths that are standby, unavailable or offline. For NVMe standby and unavailable
are "inaccessible", and offline is "persistent loss". The column CHANGED BY says who
may change a state; the key "alua" of the LUN in the configuration decides it.`,
		Example: `  target access
  target access set iqn.2026-11.example.oneshot:demo 2 standby
  target access -o json | jq '.access[] | select(.state != "active/optimized")'`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, (*mgmt.Client).Access, func(w io.Writer, now, _ *mgmt.AccessStates) error { return writeAccess(w, now) })
		},
	}
	v.socketFlag(cmd)
	v.outputFlag(cmd)
	cmd.AddCommand(accessSetCommand())
	return cmd
}

func accessSetCommand() *cobra.Command {
	v := new(view)
	change := new(mgmt.AccessChange)
	var luns, nsids []int
	var preferred bool
	words := accessWords()
	cmd := &cobra.Command{
		Use:   "set TARGET GROUP STATE [--lun N] [--nsid N] [--preferred]",
		Short: "Set the access state of a group of portals",
		Long: `set changes the access state of a group of portals. The change is for all LUNs of
the target, or for those that --lun names; for all namespaces of a subsystem, or for
those that --nsid names. TARGET is the iSCSI name of the target, or the NQN of the
subsystem, GROUP the number of the group. STATE is one of
    ` + strings.Join(words, ", ") + `
(active/optimized and active/non-optimized are accepted, too). The daemon tells
initiators by a unit attention and hosts by an event, and they ask for the new
states. Commands that are in flight are not affected. If one of the LUNs does not let
the administrator change states (alua: explicit or alua: none in the configuration),
nothing changes.

To take a portal out of use, set the other groups to optimized and this one to
standby. Then wait until target sessions --watch shows no more commands in its
sessions.

States survive a reload of the configuration. With "state" in the configuration they
survive restarts, too. Without it every state is active/optimized after a restart.`,
		Example: `  target access set iqn.2026-11.example.oneshot:demo 2 standby
  target access set iqn.2026-11.example.oneshot:demo 1 optimized --lun 0 --lun 3 --preferred
  target access set nqn.2026-11.example.oneshot:demo 2 unavailable --nsid 1`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 3 {
				return &usageError{cmd.CommandPath(), "name a target, a group and a state, such as " + `"iqn.2026-11.example.oneshot:demo 2 standby"`}
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeAccess(cmd, v.client(), args, words), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := v.check(cmd); err != nil {
				return err
			}
			if err := parseAccess(cmd, change, args, luns, nsids); err != nil {
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
	cmd.Flags().IntSliceVar(&luns, "lun", nil, "only LUN `N`; may be given several times (default: all LUNs of the target)")
	cmd.Flags().IntSliceVar(&nsids, "nsid", nil, "only namespace `N`; may be given several times (default: all namespaces of the subsystem)")
	cmd.Flags().BoolVar(&preferred, "preferred", false, "tell initiators to prefer this group; --preferred=false takes that back (default: unchanged)")
	return cmd
}

// accessWords returns the access states as people write them.
func accessWords() (words []string) {
	for _, s := range accessStates {
		words = append(words, s.word)
	}
	return words
}

// parseAccess fills the change from the words of the command line.
func parseAccess(cmd *cobra.Command, change *mgmt.AccessChange, args []string, luns, nsids []int) error {
	wrong := func(format string, a ...any) error { return &usageError{cmd.CommandPath(), fmt.Sprintf(format, a...)} }
	group, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return wrong("%q is not the number of a group: %s access lists them", args[1], cmd.Root().Name())
	}
	change.Target, change.Group = args[0], uint16(group)
	for _, s := range accessStates {
		if args[2] == s.word || args[2] == s.state {
			change.State = s.state
		}
	}
	if change.State == "" {
		return wrong("there is no access state %q: write %s", args[2], strings.Join(accessWords(), ", "))
	}
	for _, n := range luns {
		if n < 0 || n > maxLUN {
			return wrong("no such LUN: %d; LUNs are 0 to %d", n, maxLUN)
		}
		change.LUNs = append(change.LUNs, uint16(n))
	}
	for _, n := range nsids {
		if n < 1 || n > maxNSID {
			return wrong("no such namespace: %d; namespaces are 1 to %d", n, maxNSID)
		}
		change.NSIDs = append(change.NSIDs, uint32(n))
	}
	return nil
}

const (
	maxLUN  = 16383
	maxNSID = 1024
)

// completeAccess completes the next word of access set. It asks the daemon for targets, groups and LUNs; if the
// daemon does not answer, there are none.
func completeAccess(cmd *cobra.Command, c *mgmt.Client, args, states []string) (words []string) {
	defer c.Close()
	switch {
	case len(args) == 2:
		return states
	case len(args) > 2:
		return nil
	}
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
		_, err := fmt.Fprintln(w, "no LUNs and no namespaces")
		return err
	}
	t := newTable(w)
	fmt.Fprintln(t, "TARGET\tLUN/NSID\tGROUP\tSTATE\tPREFERRED\tCHANGED BY\tPORTALS")
	for _, a := range now.Access {
		preferred := "-"
		if a.Preferred {
			preferred = "yes"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", a.Target, max(uint32(a.LUN), a.NSID), a.Group, a.State, preferred, changers[a.ALUA], portalList(a.Portals))
	}
	return t.Flush()
}

// changers says who may change a state.
var changers = map[string]string{
	"none": "nobody", "implicit": "administrator", "explicit": "initiators", "both": "both",
}
