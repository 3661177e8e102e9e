package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/ha/quorum"
	"oneshot/mgmt"
)

func haCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ha",
		Short: "Make a cluster of nodes, and look after it",
		Long: `ha has commands for the nodes of a cluster, which agree on records that outlive each
of them. init makes a cluster, and join adds a node. force and rejoin are for what is lost
for good. These four work on the state directory of a node that does not run; the others
ask a running one.`,
		Example: `  target ha init --config /etc/oneshot.yaml
  target ha status`,
		Args: cobra.ArbitraryArgs,
		RunE: unknownCommand,
	}
	cmd.AddCommand(haInit(), haJoin(), haStatus(), haSwitch(), haDrain(), haUndrain(), haVerify(), haToken(), haReplace(), haRemove(), haForce(), haRejoin(), haGrow(), haForget())
	return cmd
}

// local are the flags of commands that work on the state directory of this machine.
type local struct{ path, node string }

func (l *local) flags(cmd *cobra.Command) {
	configFlag(cmd, &l.path, "the YAML `FILE` of the cluster")
	nodeFlag(cmd, &l.node)
}

// open reads the configuration and opens the directory.
func (l *local) open(cmd *cobra.Command) (*config.Config, *quorum.Dir, error) {
	if l.path == "" {
		return nil, nil, &usageError{cmd.CommandPath(), "no configuration: name the one of the cluster with --config FILE"}
	}
	c, err := loadOn(l.path, l.node)
	if err != nil {
		return nil, nil, err
	}
	if c.Cluster.Name == "" {
		return nil, nil, fmt.Errorf("%s has no section cluster: add one, such as cluster: {name: lab, state: /var/lib/oneshot/cluster, nodes: {a: {address: 10.1.0.1}, …}}", l.path)
	}
	dir, err := quorum.OpenDir(c.Cluster.State)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.Cluster.Pos, err)
	}
	return c, dir, nil
}

// run returns the command line that runs a node.
func (l *local) run(cmd *cobra.Command, n *config.ClusterNode) string {
	verb := "serve"
	if n.Witness {
		verb = "witness"
	}
	return fmt.Sprintf("%s %s --config %s --node %s", cmd.Root().Name(), verb, quote(l.path), n.Name)
}

func haInit() *cobra.Command {
	l := new(local)
	cmd := &cobra.Command{
		Use:   "init --config FILE [--node NAME]",
		Short: "Make a new cluster, with this machine as its first node",
		Long: `init makes the state of a new cluster in the directory cluster.state of the
configuration: the authority that signs the nodes' certificates, and this node as the
only member. It prints a token for each other node, with which that one can join once
this one runs. Run init on one machine only: on a second one it would make a second
cluster.`,
		Example: `  target ha init --config /etc/oneshot.yaml
  target ha init --config /etc/oneshot.yaml --node a`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, dir, err := l.open(cmd)
			if err != nil {
				return err
			}
			c := &cfg.Cluster
			self := c.Node(c.Self)
			tokens, err := quorum.Init(dir, c.Name, c.Self, self.Witness, len(c.Nodes)-1)
			advice := ""
			if errors.Is(err, quorum.ErrMember) {
				advice = "; run it, or, if nobody is to have that cluster any more, empty the directory first"
			}
			if err = errors.Join(err, dir.Close()); err != nil {
				return fmt.Errorf("no cluster was made in %s: %w%s", c.State, err, advice)
			}
			var text strings.Builder
			fmt.Fprintf(&text, "The cluster %s has one node, %s. Run it:\n  %s\n", c.Name, c.Self, l.run(cmd, self))
			if len(tokens) > 0 {
				fmt.Fprintf(&text, "\nWhile it runs, join the others, each on its own machine:\n")
			}
			for i := range c.Nodes {
				if n := &c.Nodes[i]; n != self {
					fmt.Fprintf(&text, "  %s ha join --config %s --node %s --token %s\n", cmd.Root().Name(), quote(l.path), n.Name, tokens[0])
					tokens = tokens[1:]
				}
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text.String())
			return err
		},
	}
	l.flags(cmd)
	return cmd
}

func haJoin() *cobra.Command {
	l, token := new(local), ""
	cmd := &cobra.Command{
		Use:   "join --config FILE --token TOKEN [--node NAME]",
		Short: "Make this machine a node of the cluster",
		Long: `join asks the other nodes, at their addresses in the configuration, to take this
machine in, and keeps the answer in the directory cluster.state. The token is one that
target ha init, target ha token or target ha replace has printed. It is good once, and
for its cluster only; if join fails in the middle, run it again with the same.`,
		Example: `  target ha join --config /etc/oneshot.yaml --token TOKEN
  ssh a target ha token | target ha join --config /etc/oneshot.yaml --node b --token -`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if token == "" {
				return &usageError{cmd.CommandPath(), "no token: give the one that target ha token prints on a node of the cluster with --token"}
			}
			t, err := readToken(token, cmd.InOrStdin())
			if err != nil {
				return err
			}
			cfg, dir, err := l.open(cmd)
			if err != nil {
				return err
			}
			c := &cfg.Cluster
			if err := errors.Join(joinCluster(cmd.Context(), c, dir, t), dir.Close()); err != nil {
				return oneLine(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s has joined the cluster %s. Run it:\n  %s\n", c.Self, c.Name, l.run(cmd, c.Node(c.Self)))
			return err
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&token, "token", "", "`TOKEN` of the cluster, or - to read it from standard input")
	return cmd
}

// readToken takes a token, or reads it from standard input.
func readToken(text string, stdin io.Reader) (quorum.Token, error) {
	if text == "-" {
		line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadString('\n')
		if err != nil && err != io.EOF {
			return quorum.Token{}, fmt.Errorf("cannot read the token: %w", err)
		}
		text = line
	}
	return quorum.ParseToken(text)
}

// joinTime is how long one node may take to answer.
const joinTime = 10 * time.Second

// joinCluster makes this machine a member.
func joinCluster(ctx context.Context, c *config.Cluster, dir *quorum.Dir, t quorum.Token) error {
	return askToJoin(ctx, c, func(ctx context.Context, conn net.Conn, self *config.ClusterNode) error {
		return quorum.Join(ctx, dir, conn, t, self.Name, self.Witness)
	})
}

// enroll has the cluster take this machine in, which has a state still.
func enroll(ctx context.Context, c *config.Cluster, dir *quorum.Dir, t quorum.Token) (e *quorum.Enrollment, err error) {
	err = askToJoin(ctx, c, func(ctx context.Context, conn net.Conn, self *config.ClusterNode) (err error) {
		e, err = quorum.Enroll(ctx, dir, conn, t, self.Name, self.Witness)
		return err
	})
	return e, err
}

// askToJoin asks one node after the other. What a node refuses the others would refuse as well.
func askToJoin(ctx context.Context, c *config.Cluster, ask func(ctx context.Context, conn net.Conn, self *config.ClusterNode) error) error {
	self := c.Node(c.Self)
	var failed []error
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n == self {
			continue
		}
		err := askThrough(ctx, n, self, ask)
		_, refused := errors.AsType[*quorum.StrangerError](err)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, quorum.ErrMember):
			return fmt.Errorf("%s has a state already: %w: run it; if the others were forced to go on without it, run `target ha rejoin` first; to begin anew, have this node replaced on another one, and empty the directory", c.State, err)
		case refused:
			return err
		}
		failed = append(failed, fmt.Errorf("%s: %w", n.Name, err))
	}
	return fmt.Errorf("no node of the cluster has taken this one in: %w", errors.Join(failed...))
}

func askThrough(ctx context.Context, n, self *config.ClusterNode, ask func(ctx context.Context, conn net.Conn, self *config.ClusterNode) error) error {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.Address)
	if err != nil {
		return err
	}
	return ask(ctx, conn, self)
}

func haStatus() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "status [--watch] [-o table|json]",
		Short: "Show nodes and mirrors of the cluster as a running node knows them",
		Long: `status asks the running node of this machine, over its management socket, who is in
the cluster, who votes, and whom it hears. CONFIGURATION says whether a node has the
same configuration as this one, and if not, which parts differ: the file should be the
same on all nodes. It names the version that the node runs, if that is another one.

If a majority of the voters is up, the cluster can agree on changes; one of them leads.

Below the nodes are the mirrors. The primary serves a mirror, and knows how far the
other copies are; a node without a copy knows only what all have agreed on.`,
		Example: `  target ha status
  target ha status --watch
  target ha status -o json | jq '.members[] | select(.up | not)'`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return look(cmd, v, askCluster, writeCluster)
		},
	}
	v.flags(cmd, watchAgain)
	return cmd
}

func askCluster(c *mgmt.Client, ctx context.Context) (*mgmt.Cluster, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if s.Cluster == nil {
		return nil, fmt.Errorf("this daemon belongs to no cluster: its configuration, %s, has no section cluster", s.Config)
	}
	return s.Cluster, nil
}

// consensusText says who leads and who is up.
func consensusText(c *mgmt.Cluster) string {
	leader, voters, up := "no leader", 0, 0
	for _, m := range c.Members {
		if m.Leads {
			leader = "leader " + m.Name
		}
		if m.Votes {
			voters++
			if m.Up && !m.Stuck {
				up++
			}
		}
	}
	return fmt.Sprintf("%s, term %d, %d of %s up", leader, c.Term, up, count(voters, "voter"))
}

// keeperText says how the keeper of a machine is.
func keeperText(k *mgmt.Keeper) string {
	switch {
	case k.Trouble != "":
		return fmt.Sprintf("the keeper at %s does not hold the addresses that go with mirrors: %s", k.Socket, k.Trouble)
	case k.Watchdog != "":
		return fmt.Sprintf("keeper at %s, with the watchdog %s", k.Socket, k.Watchdog)
	}
	return "keeper at " + k.Socket
}

func writeCluster(w io.Writer, c, _ *mgmt.Cluster) error {
	fmt.Fprintf(w, "cluster %s, as node %s knows it: %s\n", c.Name, c.Node, consensusText(c))
	if c.Trouble != "" {
		fmt.Fprintf(w, "this node takes no part: %s\n", c.Trouble)
	}
	if c.Device != "" {
		fmt.Fprintf(w, "the data of mirrors go over the RDMA device %s here\n", c.Device)
	}
	if c.Keeper != nil {
		fmt.Fprintln(w, keeperText(c.Keeper))
	}
	t := newTable(w)
	fmt.Fprintln(t, "\nNODE\tNUMBER\tADDRESS\tSTATE\tVOTES\tCONFIGURATION")
	for i := range c.Members {
		m := &c.Members[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, dashed(m.Number), orDash(m.Address), memberState(m), votes(m), configurationText(c, m))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	writeReasons(w, c)
	if len(c.Mirrors) == 0 {
		return nil
	}
	t = newTable(w)
	fmt.Fprintln(t, "\nMIRROR\tSTATE\tSIZE\tPRIMARY\tTHIS NODE\tCOPIES\tLOG")
	for i := range c.Mirrors {
		m := &c.Mirrors[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, mirrorState(c, m), config.FormatSize(m.Size), orDash(m.Primary), m.Role, copiesText(m), logText(m))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	before := "\n"
	for i := range c.Mirrors {
		for _, text := range mirrorNews(c, &c.Mirrors[i]) {
			fmt.Fprintf(w, "%smirror %s: %s\n", before, c.Mirrors[i].Name, text)
			before = ""
		}
	}
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; m.Trouble != "" {
			fmt.Fprintf(w, "\nthis node takes no part in the mirror %s: %s\n", m.Name, m.Trouble)
		}
	}
	return nil
}

// mirrorState says how a mirror is, in a word.
func mirrorState(c *mgmt.Cluster, m *mgmt.Mirror) string {
	level := inSync(m)
	switch {
	case m.Trouble != "":
		return "trouble"
	case m.Role == mgmt.RoleGivenUp:
		return mgmt.RoleGivenUp
	case m.Role == mgmt.RoleCutOff:
		return "cut off"
	case m.Primary == "" || m.Role == "waiting":
		return "not served"
	case m.Role == "taking over" && hasLeader(c):
		return "switching"
	case m.Primary == c.Node && m.Role != mgmt.RolePrimary: // it has the office, and cannot serve
		return "not served"
	case !isUp(c, m.Primary):
		return primaryDown
	case level < m.MinCopies:
		return "held"
	case level < len(m.Copies):
		return "degraded"
	}
	return "healthy"
}

// primaryDown is the state of a mirror whose primary the node that answers does not hear. It may serve nevertheless.
const primaryDown = "primary down"

// inSync counts the copies that are.
func inSync(m *mgmt.Mirror) (n int) {
	for i := range m.Copies {
		if m.Copies[i].State == mgmt.CopyInSync {
			n++
		}
	}
	return n
}

func hasLeader(c *mgmt.Cluster) bool {
	return slices.ContainsFunc(c.Members, func(m mgmt.Member) bool { return m.Leads })
}

func isUp(c *mgmt.Cluster, name string) bool {
	return slices.ContainsFunc(c.Members, func(m mgmt.Member) bool { return m.Name == name && m.Up })
}

// mirrorNews says what has happened to a mirror, as the node that answers knows.
func mirrorNews(c *mgmt.Cluster, m *mgmt.Mirror) (news []string) {
	if t := m.Takeover; t != nil {
		text := fmt.Sprintf("this node is the primary of term %d since %s, by a planned switch", t.Term, t.At.Format(time.DateTime))
		if !t.Planned {
			text = fmt.Sprintf("this node has taken over for term %d at %s, in %s: silence %s, promises %s, consensus %s", t.Term, t.At.Format(time.DateTime), ms(t.Took), ms(t.Silence), ms(t.Promises), ms(t.Agreed))
		}
		if m.Role == mgmt.RolePrimary {
			news = append(news, text)
		}
	}
	if m.Role == mgmt.RoleCutOff {
		text := "this node was the primary"
		if !m.Until.IsZero() {
			text += " until " + m.Until.Local().Format(time.DateTime)
		}
		news = append(news, text+", and hears too few of the others since: one of them may be the primary now, and until this node knows it answers nothing")
	}
	switch state := mirrorState(c, m); {
	case state == "held":
		news = append(news, fmt.Sprintf("writes wait until %d copies are in sync (min_copies)", m.MinCopies))
	case state == primaryDown && !hasLeader(c):
		news = append(news, fmt.Sprintf("this node does not hear the primary, %s; without a majority of the voters nobody takes its place", m.Primary))
	case state == primaryDown && inSync(m) < 2:
		news = append(news, fmt.Sprintf("this node does not hear the primary, %s; no other copy is in sync, so if that node is lost hosts wait for it", m.Primary))
	case state == primaryDown:
		if name := drainedHeir(c, m); name != "" {
			news = append(news, fmt.Sprintf("this node does not hear the primary, %s; node %s has a copy in sync, and is drained, so it does not take its place: target ha undrain %s lets it", m.Primary, name, name))
		}
	}
	for _, c := range m.Copies {
		if c.Reason != "" {
			news = append(news, fmt.Sprintf("the copy of node %s is %s: %s", c.Node, c.State, c.Reason))
		}
	}
	if len(m.Addresses) > 0 {
		news = append(news, "this machine has "+strings.Join(m.Addresses, ", "))
	}
	if text := paceText(m); text != "" {
		news = append(news, text)
	}
	switch v := m.Verify; {
	case v == nil:
	case v.Ended.IsZero():
		news = append(news, fmt.Sprintf("copies are compared, %d %%; %s so far, %d repaired", 100*v.Done/max(1, v.Total), count(v.Differ, "difference"), v.Repaired))
	case v.Error != "" || v.Stopped:
		news = append(news, fmt.Sprintf("the last comparison of copies ended at %s, before it was through; %s, %d repaired", v.Ended.Format(time.DateTime), count(v.Differ, "difference"), v.Repaired))
	case v.Differ == 0:
		news = append(news, fmt.Sprintf("copies were compared at %s, and are equal", v.Ended.Format(time.DateTime)))
	default:
		news = append(news, fmt.Sprintf("copies were compared at %s: %s, %d repaired", v.Ended.Format(time.DateTime), count(v.Differ, "difference"), v.Repaired))
	}
	return news
}

// drainedHeir returns a node that would take the place of the primary if it were not drained; empty: there is none, or another one may.
func drainedHeir(c *mgmt.Cluster, m *mgmt.Mirror) (drained string) {
	for i := range m.Copies {
		name := m.Copies[i].Node
		if m.Copies[i].State != mgmt.CopyInSync || name == m.Primary || !isUp(c, name) {
			continue
		}
		if !slices.ContainsFunc(c.Members, func(m mgmt.Member) bool { return m.Name == name && m.Drained }) {
			return ""
		}
		drained = name
	}
	return drained
}

// paceText says how fast copies are brought level or compared, while that is done.
func paceText(m *mgmt.Mirror) string {
	levels := slices.ContainsFunc(m.Copies, func(c mgmt.Copy) bool { return c.State == mgmt.CopyResync })
	r := m.Resync
	switch {
	case r == nil || !levels && (m.Verify == nil || !m.Verify.Ended.IsZero()):
		return ""
	case r.Yields:
		return fmt.Sprintf("hosts are busy, so copies are brought level and compared at %s/s (resync.min), until hosts are idle", config.FormatSize(r.Min))
	case r.Rate > 0:
		return fmt.Sprintf("copies are brought level and compared at up to %s/s (resync.rate)", config.FormatSize(r.Rate))
	}
	return "copies are brought level and compared as fast as can be"
}

// ms writes a time of nanoseconds.
func ms(ns int64) string { return fmt.Sprintf("%.0f ms", float64(ns)/1e6) }

// copiesText says how the copies of a mirror are.
func copiesText(m *mgmt.Mirror) string {
	var words []string
	for _, c := range m.Copies {
		text := c.Node + " " + string(c.State)
		if c.Lacks > 0 {
			text += fmt.Sprintf(" (%.1f MiB to go)", float64(c.Lacks)/(1<<20))
		}
		if c.Missing > 0 {
			text += fmt.Sprintf(" (without %.1f KiB that no copy could read)", float64(c.Missing)/(1<<10))
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

func memberState(m *mgmt.Member) string {
	var words []string
	switch {
	case m.Number == 0:
		return "not joined"
	case m.Leaving:
		words = append(words, "leaving")
	}
	switch {
	case m.Stuck:
		words = append(words, "stuck")
	case m.Up:
		words = append(words, "up")
	default:
		words = append(words, "down")
	}
	if m.Leads {
		words = append(words, "leads")
	}
	if m.Drained {
		words = append(words, "drained")
	}
	if m.ClockFaster != 0 {
		words = append(words, fmt.Sprintf("clock %+.1f %%", m.ClockFaster))
	}
	return strings.Join(words, ", ")
}

// writeReasons says below the table why members are down or stuck, for a reason may be several sentences. What is said of this node need not be said again.
func writeReasons(w io.Writer, c *mgmt.Cluster) {
	before := "\n"
	for i := range c.Members {
		m, text := &c.Members[i], ""
		switch {
		case m.Stuck:
			text = "takes no part: the disk of its log is full, fails or does not answer"
		case m.Number != 0 && !m.Up && m.Reason != "" && m.Reason != c.Trouble:
			text = "is down: " + m.Reason
		default:
			continue
		}
		fmt.Fprintf(w, "%snode %s %s\n", before, m.Name, text)
		before = ""
	}
}

// logText says how full the log of a mirror is, of which a node without a copy has none.
func logText(m *mgmt.Mirror) string {
	if m.LogSize == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %% of %s", 100*m.LogBytes/m.LogSize, config.FormatSize(m.LogSize))
}

func votes(m *mgmt.Member) string {
	text := "no"
	if m.Votes {
		text = "yes"
	}
	if m.Witness {
		text += ", witness"
	}
	return text
}

func configurationText(c *mgmt.Cluster, m *mgmt.Member) string {
	switch {
	case m.Name == c.Node:
		return "this node"
	case m.Version == "":
		return "not known yet"
	}
	text := "the same"
	if len(m.Differs) > 0 {
		text = "differs: " + strings.Join(m.Differs, ", ")
	}
	i := slices.IndexFunc(c.Members, func(own mgmt.Member) bool { return own.Name == c.Node })
	if i >= 0 && c.Members[i].Version != m.Version { // which may say the same otherwise
		text += fmt.Sprintf("; version %s, here %s", m.Version, orDash(c.Members[i].Version))
	}
	return text
}

func dashed(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func haToken() *cobra.Command {
	v := new(view)
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token with which one machine can join the cluster",
		Long: `token asks the running node of this machine for a token. Who has it can make one
machine a node, once, with target ha join: keep it as you keep a password. The cluster
knows the 16 newest tokens.`,
		Example: `  target ha token
  target ha token | ssh b target ha join --config /etc/oneshot.yaml --token -`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := v.client()
			defer c.Close()
			t, err := c.NewToken(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), t)
			return err
		},
	}
	v.socketFlag(cmd)
	return cmd
}

// oneNode checks the arguments of a command that is about a node.
func oneNode(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{cmd.CommandPath(), "name one node: " + cmd.Root().Name() + " ha status lists them"}
	}
	return nil
}

// loseFlag is of commands that send a node away.
func loseFlag(cmd *cobra.Command, lose *[]string) {
	cmd.Flags().StringArrayVar(lose, "lose", nil, "send the node away though it has the only copy in sync of `MIRROR`")
}

func haReplace() *cobra.Command {
	v, how := new(view), mgmt.Removal{Replace: true}
	cmd := &cobra.Command{
		Use:   "replace NODE [--up] [--lose MIRROR]",
		Short: "Let another machine, or an emptied one, take the place of a node",
		Long: `replace is for a node whose machine or state directory is lost, or was set back to an
older state. The former node is refused from then on, and serves no mirror as soon as it
hears of that. It keeps its vote on paper until another one can have it: the machine that
has joined under the same name and is level, or a node that had no vote. So a majority
has to be up without it. replace prints the token with which that machine joins.

A node that is up is not replaced, unless --up says that it is meant: its name may be
mistyped.

A node that has the only copy in sync of a mirror is not replaced, unless --lose names
that mirror: nobody serves it then, until another copy is forced to go on (target ha
force), and what the copy of the node alone has is lost.`,
		Example: `  target ha replace b
  target ha replace b --lose disk1`,
		Args:                  oneNode,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			if err := c.RemoveNode(cmd.Context(), args[0], how); err != nil {
				return err
			}
			t, err := c.NewToken(cmd.Context()) // not before: a refusal would cost a token that somebody may have been given
			if err != nil {
				return fmt.Errorf("node %s may be replaced, and there is no token for its new machine yet: run %s ha token: %w", args[0], cmd.Root().Name(), err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s may be replaced. On its new machine, with an empty state directory:\n  %s ha join --config FILE --node %s --token %s\n", args[0], cmd.Root().Name(), args[0], t)
			return err
		},
	}
	v.socketFlag(cmd)
	loseFlag(cmd, &how.Lose)
	cmd.Flags().BoolVar(&how.Up, "up", false, "replace the node though it is up")
	return cmd
}

func haRemove() *cobra.Command {
	v, how := new(view), mgmt.Removal{}
	cmd := &cobra.Command{
		Use:   "remove NODE [--lose MIRROR]",
		Short: "Take a node out of the cluster for good",
		Long: `remove ends the membership of a node, which is refused from then on, and serves no mirror
as soon as it hears of that. One, three or five nodes vote: with one node less there may
be fewer voters. Remove the node from cluster.nodes as well. The last node cannot be
removed, nor one without which no majority of the voters is up, and one that has the only
copy in sync of a mirror only if --lose names that mirror, as for target ha replace.`,
		Example:               `  target ha remove b`,
		Args:                  oneNode,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := v.client()
			defer c.Close()
			if err := c.RemoveNode(cmd.Context(), args[0], how); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s is removed. Take it out of cluster.nodes in the configuration of all nodes, and reload.\n", args[0])
			return err
		},
	}
	v.socketFlag(cmd)
	loseFlag(cmd, &how.Lose)
	return cmd
}
