package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oneshot/mgmt"
)

func haSwitch() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "switch MIRROR [NODE]",
		Short: "Have another node serve a mirror",
		Long: `switch has the primary of a mirror hand over to the node, or, if none is named, to any
that can take over. It ends when that node says that it serves the mirror, or says
within some seconds who does instead: a node may be lost, or hang, just then. Hosts wait
for some milliseconds and see no error: what they have sent is done first. The copy of the
node has to be in sync, and the node not drained.

Any running node of the cluster can be asked.`,
		Example: `  target ha switch disk1
  target ha switch disk1 b`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return &usageError{cmd.CommandPath(), "name a mirror, and perhaps a node: " + cmd.Root().Name() + " ha status lists them"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			mirror, to := args[0], ""
			if len(args) == 2 {
				to = args[1]
			}
			s, err := c.SwitchMirror(cmd.Context(), mirror, to)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("Node %s serves %s; node %s did until now. The switch took %.0f ms.", s.To, mirror, s.From, float64(s.Took)/1e6)
			if s.Took == 0 {
				text = fmt.Sprintf("Node %s serves %s already.", s.To, mirror)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	v.socketFlag(cmd)
	return cmd
}

func haDrain() *cobra.Command {
	v, wait := new(view), time.Duration(0)
	cmd := &cobra.Command{
		Use:   "drain NODE [--wait TIME]",
		Short: "Have a node serve nothing, before work on it",
		Long: `drain has a node hand all of its mirrors over, and take none, until target ha undrain.
It hands over the lead of consensus, too. The cluster remembers that, also while the
node is away. drain ends when the node serves nothing, and others say that they serve
what it did; then the node can be stopped, upgraded and started again, and no host
notices.

A mirror that no other node can take over now stays where it is, and leaves as soon as
another copy is in sync. As long as a node is drained it does not take over for one
that is lost either: undrain it when the work is done.`,
		Example: `  target ha drain b
  target ha drain b --wait 10m`,
		Args:                  oneNode,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			before, err := askCluster(c, cmd.Context())
			if err != nil {
				return err
			}
			if err := c.DrainNode(cmd.Context(), args[0], true); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			return awaitDrained(ctx, c, args[0], before, cmd.OutOrStdout())
		},
	}
	v.socketFlag(cmd)
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until the node serves nothing: `TIME` such as 30s")
	return cmd
}

const (
	// drainAgain is the time between two looks at a node that is drained.
	drainAgain = 100 * time.Millisecond
	// sayWithin is how long a node has to say that it serves a mirror.
	sayWithin = 2 * time.Second
)

// awaitDrained tells what a node still serves, until that is nothing, and others say that they serve what it did. before is from when it was not drained.
func awaitDrained(ctx context.Context, c *mgmt.Client, name string, before *mgmt.Cluster, out io.Writer) error {
	said, left, unserved := "", "", ""
	served := map[string]bool{} // mirrors
	now, err := before, error(nil)
	for {
		for i := range now.Mirrors {
			if m := &now.Mirrors[i]; isLeftAt(now, m, name) {
				served[m.Name] = true
			}
		}
		now, err = askCluster(c, ctx)
		switch {
		case ctx.Err() != nil && left == "" && unserved != "":
			return fmt.Errorf("node %s is drained, and has handed over, and nobody may serve %s; look at target ha status; if the node that has taken over is lost target ha undrain %s has another one serve", name, unserved, name)
		case ctx.Err() != nil:
			return fmt.Errorf("node %s is drained, and serves something still: %s; it hands over as soon as another node can take its place: look at target ha status, or run this command again to wait", name, left)
		case err != nil:
			return err
		}
		if left, unserved = leftAt(now, name), ""; left == "" {
			if unserved = notServed(ctx, c, now, served); unserved == "" {
				_, err := fmt.Fprintf(out, "Node %s serves nothing, until target ha undrain %s.\n", name, name)
				return err
			}
		}
		if left != "" && left != said {
			fmt.Fprintf(out, "Node %s still has %s.\n", name, left)
			said = left
		}
		if unserved != "" && unserved != said {
			fmt.Fprintf(out, "Node %s has handed over, and nobody may serve %s.\n", name, unserved)
			said = unserved
		}
		select {
		case <-time.After(drainAgain):
		case <-ctx.Done():
		}
	}
}

// notServed says which of these mirrors nobody says that he serves, and why. The node to which the office was given may not know that, or be lost since.
// Each is asked to serve the mirror, which asks nothing of who does.
func notServed(ctx context.Context, c *mgmt.Client, now *mgmt.Cluster, mirrors map[string]bool) string {
	var list []string
	for i := range now.Mirrors {
		m := &now.Mirrors[i]
		switch {
		case !mirrors[m.Name] || m.Role == mgmt.RoleGivenUp:
			continue
		case m.Primary == "":
			list = append(list, fmt.Sprintf("the mirror %s (node %s does not know who is to)", m.Name, now.Node))
			continue
		}
		soon, cancel := context.WithTimeout(ctx, sayWithin)
		if _, err := c.SwitchMirror(soon, m.Name, m.Primary); err != nil {
			list = append(list, fmt.Sprintf("the mirror %s (node %s does not say that it does: %v)", m.Name, m.Primary, err))
		}
		cancel()
	}
	return strings.Join(list, ", ")
}

// isLeftAt says whether a node has not handed over a mirror.
func isLeftAt(c *mgmt.Cluster, m *mgmt.Mirror, name string) bool {
	return m.Primary == name || m.Role == mgmt.RoleCutOff && c.Node == name
}

// leftAt says what a node that is drained has not handed over yet.
func leftAt(c *mgmt.Cluster, name string) string {
	var left []string
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; isLeftAt(c, m, name) {
			left = append(left, fmt.Sprintf("the mirror %s (copies: %s)", m.Name, copiesText(m)))
		}
	}
	for i := range c.Members {
		if m := &c.Members[i]; m.Name == name && (m.Leads || !m.Drained) && hasOtherVoter(c, name) {
			left = append(left, "the lead of consensus")
		}
	}
	return strings.Join(left, ", ")
}

// hasOtherVoter says whether somebody else could lead.
func hasOtherVoter(c *mgmt.Cluster, name string) bool {
	for _, m := range c.Members {
		if m.Name != name && m.Votes && m.Up && !m.Drained {
			return true
		}
	}
	return false
}

func haUndrain() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "undrain NODE",
		Short: "Let a node that was drained serve again",
		Long: `undrain ends what target ha drain has begun: the node may take over from others again.
Its mirrors stay where they are; target ha switch brings them back.`,
		Example:               `  target ha undrain b`,
		Args:                  oneNode,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			if err := c.DrainNode(cmd.Context(), args[0], false); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s may serve again.\n", args[0])
			return err
		},
	}
	v.socketFlag(cmd)
	return cmd
}
