package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/ha/quorum"
	"oneshot/server"
)

func haForce() *cobra.Command {
	l, confirm := new(local), ""
	cmd := &cobra.Command{
		Use:   "force [MIRROR] --config FILE [--node NAME] [--confirm NAME]",
		Short: "Have this node go on without others that are lost for good",
		Long: `force works on the state directory of a node that does not run. It is for the day when
others are lost for good, and what they had with them: see docs/ha.md before.

Without a mirror it is for a cluster that has lost the majority of its voters. This node
becomes a cluster of its own, in which all mirrors go on with its copy. The others, if
they ever come back, are refused until they have given up what they have (target ha
rejoin).

With a mirror it is for a cluster whose majority lives, and a mirror of which all copies
in sync are lost. The mirror goes on with the copy of this node.

force shows what this node has, what others had, and what will be lost. It refuses while
somebody answers at the address of one of the others. It changes nothing before the name
of the cluster, or of the mirror, was typed or given with --confirm. What was lost cannot
be got back by any command.`,
		Example: `  target ha force --config /etc/oneshot.yaml
  target ha force --config /etc/oneshot.yaml --node b --confirm lab
  target ha force disk1 --config /etc/oneshot.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &usageError{cmd.CommandPath(), "name one mirror, or none"}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, dir, err := l.open(cmd)
			if err != nil {
				return err
			}
			mirror := ""
			if len(args) == 1 {
				mirror = args[0]
			}
			return oneLine(errors.Join(l.force(cmd, c, dir, mirror, confirm), dir.Close()))
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&confirm, "confirm", "", "the `NAME` of the cluster, or of the mirror: without it force asks")
	return cmd
}

func (l *local) force(cmd *cobra.Command, cfg *config.Config, dir *quorum.Dir, mirror, confirm string) error {
	f, err := server.PlanForce(cmd.Context(), cfg, dir, mirror)
	if err != nil {
		return err
	}
	c := &cfg.Cluster
	out := cmd.OutOrStdout()
	if _, err := io.WriteString(out, forceText(f, mirror != "")); err != nil {
		return fmt.Errorf("nothing was changed, for what would be lost could not be shown: %w", err)
	}
	if living := f.Living(); len(living) > 0 {
		return fmt.Errorf("nothing was changed: somebody answers at the address of %s, so it is not lost; if nobody shall use it any more, end it first", strings.Join(living, ", "))
	}
	if confirm == "" && isTerminal(cmd.InOrStdin()) {
		fmt.Fprintf(out, "\nTo go on, type the name %s: ", f.Name)
		line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		confirm = strings.TrimSpace(line)
	}
	if confirm != f.Name {
		return fmt.Errorf("nothing was changed: what is above is lost only if you confirm it with --confirm %s", f.Name)
	}
	tokens, err := f.Do(cmd.Context())
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, l.forcedText(cmd, c, mirror, tokens)); err != nil {
		return fmt.Errorf("node %s was forced to go on, but what to do next could not be shown: %w; start it, and see docs/ha.md; target ha token makes tokens for the others", c.Self, err)
	}
	return nil
}

// forcedText says what to do next.
func (l *local) forcedText(cmd *cobra.Command, c *config.Cluster, mirror string, tokens []quorum.Token) string {
	var w strings.Builder
	if mirror != "" {
		fmt.Fprintf(&w, "\nThe mirror %s goes on with the copy of node %s. Run it:\n  %s\n", mirror, c.Self, l.run(cmd, c.Node(c.Self)))
		fmt.Fprintf(&w, "\nA node that comes back with a former copy gives that up:\n  %s ha rejoin --config %s --discard-mine\n", cmd.Root().Name(), quote(l.path))
		return w.String()
	}
	fmt.Fprintf(&w, "\nNode %s is a cluster of its own. Run it:\n  %s\n", c.Self, l.run(cmd, c.Node(c.Self)))
	fmt.Fprintf(&w, "\nWhile it runs, each of the others can come back, and give up what it has:\n")
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Name != c.Self && len(tokens) > 0 {
			fmt.Fprintf(&w, "  %s ha rejoin --config %s --node %s --discard-mine --token %s\n", cmd.Root().Name(), quote(l.path), n.Name, tokens[0])
			tokens = tokens[1:]
		}
	}
	return w.String()
}

// forceText says what would be lost.
func forceText(f *server.Force, mirror bool) string {
	var w strings.Builder
	if mirror {
		fmt.Fprintf(&w, "The mirror %s would go on with the copy of node %s alone.\n", f.Name, f.Node)
	} else {
		fmt.Fprintf(&w, "Node %s would be the only member of a new generation of the cluster %s.\n", f.Node, f.Name)
	}
	for i := range f.Others {
		o := &f.Others[i]
		at := ""
		if o.Address != "" {
			at = " (" + o.Address + ")"
		}
		fmt.Fprintf(&w, "  without node %s%s: %s\n", o.Name, at, o.Says)
	}
	if len(f.Others) > 0 {
		fmt.Fprintf(&w, "If one of these lives after all, and hosts reach it, it may go on serving them beside this node, with other bytes: turn it off, or cut it off.\n")
	}
	for i := range f.Mirrors {
		m := &f.Mirrors[i]
		fmt.Fprintf(&w, "mirror %s: %s\n", m.Name, lossText(m))
		if m.Missing > 0 {
			fmt.Fprintf(&w, "mirror %s: this copy goes without %.1f KiB that no copy could read when it was brought level: reads there fail until something is written\n", m.Name, float64(m.Missing)/(1<<10))
		}
	}
	return w.String()
}

// lossText says what one mirror would lose.
func lossText(m *server.ForcedMirror) string {
	others := "nobody else"
	if len(m.InSync) > 0 {
		others = strings.Join(m.InSync, ", ")
	}
	switch {
	case !m.HasView:
		return "it was never served, and loses nothing"
	case !m.HasCopy:
		return fmt.Sprintf("this node has no copy: ALL OF IT IS LOST to this cluster. In sync are %s: keep their disks, a new mirror can begin with one of them", others)
	case m.Unknown:
		return fmt.Sprintf("the disk of this node is NOT the one that it was, or was set back. In term %d, with primary %s, %s had what was acknowledged. All that this disk lacks is lost", m.Term, m.Primary, others)
	case !m.WasInSync:
		return fmt.Sprintf("the copy of this node is NOT in sync. In term %d, with primary %s, %s had what was acknowledged; this node has the records up to %d on its disk, and perhaps parts of later ones. What was acknowledged since is LOST", m.Term, m.Primary, others, m.Mark)
	}
	return fmt.Sprintf("the copy of this node was in sync in term %d, with primary %s and with %s, and has the records up to %d on its disk. Lost is what was not flushed when the nodes ended, and what others have acknowledged without this node since it last heard of them", m.Term, m.Primary, others, m.Mark)
}

func haRejoin() *cobra.Command {
	l, token, discard := new(local), "", false
	cmd := &cobra.Command{
		Use:   "rejoin --config FILE [--node NAME] --discard-mine [--token TOKEN]",
		Short: "Bring a node back that others have gone on without, and give up what it has",
		Long: `rejoin works on the state directory of a node that does not run, and with which the
others have nothing to do any more: target ha force has left it out, it was replaced,
cloned or set back, or its state is damaged.

With a token the node gives up its membership, and what it has promised, and joins as a
new one. The token is one that target ha force, replace or token has printed on a node of
the cluster. If that refuses the node, because it is a member still, say, nothing is given
up.

Its copies are overwritten by those of the others: only where they may differ, if the
node was in sync and left out by target ha force, else in whole. That happens when the
node is started, and only to mirrors that the cluster has. The node votes, and serves,
when it is level. Without a token only copies of former lineages are given up, which
target ha status says of.

If rejoin fails in the middle, run it again.`,
		Example: `  target ha rejoin --config /etc/oneshot.yaml --discard-mine --token TOKEN
  target ha rejoin --config /etc/oneshot.yaml --node a --discard-mine`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var t quorum.Token
			if token != "" {
				var err error
				if t, err = readToken(token, cmd.InOrStdin()); err != nil {
					return err
				}
			}
			c, dir, err := l.open(cmd)
			if err != nil {
				return err
			}
			return oneLine(errors.Join(l.rejoin(cmd, &c.Cluster, dir, t, token != "", discard), dir.Close()))
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&token, "token", "", "`TOKEN` of the cluster, or - to read it from standard input")
	cmd.Flags().BoolVar(&discard, "discard-mine", false, "give up what this node has and the others do not")
	return cmd
}

func (l *local) rejoin(cmd *cobra.Command, c *config.Cluster, dir *quorum.Dir, t quorum.Token, anew, discard bool) error {
	r, err := server.PlanRejoin(c, dir)
	if err != nil {
		return err
	}
	if !discard {
		copies := "it has no copies"
		if len(r.Mirrors) > 0 {
			copies = "its copies of " + strings.Join(r.Mirrors, ", ") + " would be overwritten by those of the others"
		}
		return fmt.Errorf("nothing was changed: %s; to have that, add --discard-mine", copies)
	}
	begin := func() error { return nil }
	switch {
	case anew && r.IsNode():
		e, err := enroll(cmd.Context(), c, dir, t)
		if err != nil {
			return fmt.Errorf("nothing was given up: %w", err)
		}
		begin = e.Begin
	case anew:
		begin = func() error { return joinCluster(cmd.Context(), c, dir, t) }
	}
	if err := r.GiveUp(anew); err != nil {
		return err
	}
	if err := begin(); err != nil {
		return fmt.Errorf("%w; run the same again", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s gives up what the others do not have. Run it:\n  %s\n", c.Self, l.run(cmd, c.Node(c.Self)))
	return err
}
