package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/ha/front"
)

func checkCommand() *cobra.Command {
	var path, node string
	cmd := &cobra.Command{
		Use:   "check --config FILE [--node NAME]",
		Short: "Validate a configuration and show what it would serve",
		Long: `check reads a configuration as serve does, and shows what serve would serve:
stores, targets with their LUNs, who may log in, and portals. It reads secrets, but
never shows them. It opens no store and listens nowhere, so it can run beside a
daemon.

If the configuration is not valid, check shows every problem with file, line, column
and what to change, and exits with status 1. A warning is about something that is
probably a mistake, such as a file or device that this machine does not have; the exit
status is 0 then.

The configuration of a cluster is for all of its nodes, and check shows all of it. With
--node it shows what that node would serve, and looks for its files and devices on this
machine: run it so on the node.`,
		Example: `  target check --config /etc/oneshot.yaml
  target check --config /etc/oneshot.yaml --node a
  target check -c /etc/oneshot.yaml && systemctl restart oneshot`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{cmd.CommandPath(), "no configuration: name one with --config FILE"}
			}
			return check(path, node, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configFlag(cmd, &path, "the YAML `FILE` to check")
	cmd.Flags().StringVar(&node, "node", "", "`NAME` of a node of the cluster: show what that one would serve (default: all of it)")
	return cmd
}

func check(path, node string, stdout, stderr io.Writer) error {
	c, err := config.Load(path)
	if err == nil && node != "" {
		c, err = loadOn(path, node)
	}
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n\n", w)
	}
	for i := range c.Stores {
		s := &c.Stores[i]
		obstacle := s.Obstacle()
		if s.Mirror != nil && node != "" {
			obstacle = s.Mirror.ObstacleOn(node)
		}
		if s.Node == "" && obstacle != "" {
			fmt.Fprintf(stderr, "warning: %s: serve would fail on this machine, for it could not open the store %q: %s; correct the store, or prepare the machine\n\n", s.Pos, s.Name, obstacle)
		}
	}
	for i := range c.Cluster.Moving {
		p := &c.Cluster.Moving[i]
		if err := (front.Address{IP: p.Listen.Addr(), Interface: p.Interface}).Check(); err != nil {
			fmt.Fprintf(stderr, "warning: %s: serve would fail on this machine: %v\n\n", p.Pos, err)
		}
	}
	if missing := front.Missing(); missing != nil && c.Cluster.Moving != nil && c.Cluster.Keeper.Socket == "" {
		fmt.Fprintf(stderr, "warning: %s: the address goes with the mirror %s, and who adds it needs %s, which this process does not have: see that the daemon has them, or give the cluster a keeper\n\n",
			c.Cluster.Moving[0].Pos, c.Cluster.Moving[0].Mirror, strings.Join(missing, " and "))
	}
	for _, n := range c.Cluster.Nodes {
		if node == "" || n.Name == node || n.Fence == nil || c.Cluster.Node(node).Witness {
			continue // a witness takes over from nobody
		}
		if _, err := exec.LookPath(n.Fence[0]); err != nil {
			fmt.Fprintf(stderr, "warning: %s: this machine could not fence the node %s: %v\n\n", n.Pos, n.Name, err)
		}
	}
	if w := c.Cluster.Keeper.Watchdog; w != "" && node != "" && c.Cluster.Moving != nil {
		if st, err := os.Stat(w); err != nil || st.Mode()&os.ModeCharDevice == 0 {
			fmt.Fprintf(stderr, "warning: %s: the keeper would fail on this machine, for %s is no device here: load the module of the machine's watchdog, or softdog\n\n", c.Cluster.Pos, w)
		}
	}
	return writeSummary(stdout, c)
}

// writeSummary writes what c would serve, for a reader who knows disks but not the
// keys of the configuration. It shows no secrets.
func writeSummary(w io.Writer, c *config.Config) error {
	fmt.Fprintf(w, "%s is valid.\n", c.File)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nstores")
	for i := range c.Stores {
		s := &c.Stores[i]
		fmt.Fprintf(t, "  %s\t%s\t%s%s\n", s.Name, s.Type, s.SizeText(), storeDetails(s))
	}
	for i := range c.Targets {
		writeTarget(t, c, &c.Targets[i])
	}
	for i := range c.Subsystems {
		writeSubsystem(t, &c.Subsystems[i])
	}
	fmt.Fprintln(t, "\nportals")
	for _, p := range c.Portals {
		what := fmt.Sprintf("group %d", p.Group)
		switch p.Serve {
		case config.ServeLUNs:
		case config.ServeNamespaces:
			what += ", " + string(p.Serve)
		default:
			what = string(p.Serve)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s", p.Transport, p.Shown(), what)
		if words := portalWords(&p); words != nil {
			fmt.Fprintf(t, "\t%s", strings.Join(words, ", "))
		}
		fmt.Fprintln(t)
	}
	writeClusterSummary(t, &c.Cluster)
	fmt.Fprintf(t, "\ndiscovery\n  login\t%s\n", loginText(c.Discovery.Auth))
	for _, at := range c.Discovery.Referrals {
		fmt.Fprintf(t, "  refers to\t%s\n", at)
	}
	writeServices(t, c)
	writeLimits(t, c.Limits)
	return t.Flush()
}

// writeClusterSummary writes the nodes that the configuration is for.
func writeClusterSummary(w io.Writer, c *config.Cluster) {
	if c.Name == "" {
		return
	}
	fmt.Fprintf(w, "\ncluster %s\n  state\t%s\n  data of mirrors\tover %s\n", c.Name, c.State, c.Transport)
	if k := c.Keeper; k.Socket != "" {
		fmt.Fprintf(w, "  keeper\tat %s\n", k.Socket)
		if k.Watchdog != "" {
			fmt.Fprintf(w, "  watchdog\t%s, petted by the keeper\n", k.Watchdog)
		}
	}
	for _, n := range c.Nodes {
		what := ""
		if n.Data != "" {
			what = "\tdata at " + n.Data
		}
		if n.Witness {
			what += "\twitness"
		}
		if n.Fence != nil {
			what += "\tfenced by " + strings.Join(n.Fence, " ")
		}
		if n.Name == c.Self {
			what += "\tthe stores, targets and portals above are its own"
		}
		fmt.Fprintf(w, "  node %s\t%s%s\n", n.Name, n.Address, what)
	}
}

// writeNode writes which node of the cluster serves something.
func writeNode(w io.Writer, node string) {
	if node != "" {
		fmt.Fprintf(w, "  node\t%s\n", node)
	}
}

// writeSubsystem writes a subsystem with its namespaces.
func writeSubsystem(w io.Writer, s *config.Subsystem) {
	fmt.Fprintf(w, "\n%s\n", s.NQN)
	writeNode(w, s.Node)
	if s.Serial != "" {
		fmt.Fprintf(w, "  serial\t%s\n", s.Serial)
	}
	if ids := s.CNTLIDs; ids != [2]uint16{} {
		fmt.Fprintf(w, "  cntlids\t%d-%d\n", ids[0], ids[1])
	}
	fmt.Fprintf(w, "  hosts\t%s\n", hostAuthText(s.Auth))
	if len(s.Hosts) == 0 {
		fmt.Fprintln(w, "  admits\tevery host")
	}
	for _, h := range s.Hosts {
		text := string(h.NQN)
		if h.Auth != nil {
			text += ", " + hostAuthText(h.Auth)
		}
		fmt.Fprintf(w, "  admits\t%s\n", text)
	}
	for _, n := range s.Namespaces {
		fmt.Fprintf(w, "  namespace %d\t%s\tblocks of %d", n.NSID, n.Store, n.BlockSize)
		if n.ReadOnly {
			fmt.Fprint(w, "\tread-only")
		}
		if n.UUID != [16]byte{} {
			fmt.Fprintf(w, "\tUUID %x", n.UUID)
		}
		fmt.Fprintln(w)
	}
}

// writeServices writes what the daemon offers its administrator: log, state, metrics, management, iSNS.
func writeServices(w io.Writer, c *config.Config) {
	metrics := "not served"
	if c.Metrics.Given {
		metrics = "at " + c.Metrics.Shown()
		if c.Metrics.Pprof {
			metrics += ", with profiles"
		}
	}
	server := "told to nobody"
	if i := c.ISNS; i.Server != "" {
		server = fmt.Sprintf("told to %s, as %s", i.Server, cmp.Or(i.Entity, "the name of this host"))
	}
	fmt.Fprintf(w, "\nthe daemon\n  log\t%s, %s\n", levelName(c.Log.Level), c.Log.Format)
	fmt.Fprintf(w, "  state\t%s\n", stateText(c))
	fmt.Fprintf(w, "  metrics\t%s\n", metrics)
	fmt.Fprintf(w, "  management\t%s\n", cmp.Or(c.Management.Socket, "no socket: no reload, status, sessions, session, access, partition, endpoint and ha"))
	fmt.Fprintf(w, "  iSNS\t%s\n", server)
}

// stateText returns where state is kept, or what is lost without: the reservations of mirrors are the cluster's.
func stateText(c *config.Config) string {
	if c.State.Dir != "" {
		return c.State.Dir
	}
	mirrored := func(s config.Store) bool { return s.Mirror != nil }
	switch {
	case !slices.ContainsFunc(c.Stores, mirrored):
		return "not kept: no reservation outlives a restart, no WRITE ATOMIC but on memory"
	case slices.ContainsFunc(c.Stores, func(s config.Store) bool { return !mirrored(s) }):
		return "not kept: no reservation outlives a restart but of mirrors, no WRITE ATOMIC but on memory and mirrors"
	}
	return "not kept: the cluster keeps the reservations of mirrors"
}

// portalWords returns the last column of a portal's row.
func portalWords(p *config.Portal) (words []string) {
	if p.Node != "" {
		words = append(words, "on node "+p.Node)
	}
	if p.Mirror != "" {
		words = append(words, "goes with the primary of "+p.Mirror)
	}
	if p.Interface != "" {
		words = append(words, "on interface "+p.Interface)
	}
	if p.Advertise != "" {
		words = append(words, "told to initiators as "+p.Advertise)
	}
	if p.Device != "" {
		words = append(words, "device "+p.Device)
	}
	if p.NoPolling {
		words = append(words, "no polling")
	}
	if p.NoModeration {
		words = append(words, "no moderation")
	}
	if p.NoCRC {
		words = append(words, "CRC only if the initiator asks")
	}
	if p.Store != "" {
		words = append(words, "objects in "+p.Store)
	}
	switch {
	case p.Transport == config.TransportLocal:
		words = append(words, "for programs of this machine, by user and group")
	case len(p.Clients) > 0 || p.Serve == config.ServePartitions:
		words = append(words, clientsText(p.Clients))
	}
	if p.OneShot != nil {
		words = append(words, oneShotText(p.OneShot))
	}
	return words
}

// clientsText names the clients that a portal for partitions knows.
func clientsText(clients []config.Client) string {
	if len(clients) == 0 {
		return "no client with a secret"
	}
	names := make([]string, len(clients))
	for i, c := range clients {
		names[i] = c.Name
	}
	return "clients with secrets: " + strings.Join(names, ", ")
}

// oneShotText says which forms of one-shot RDMA a portal agrees to.
func oneShotText(s *config.OneShot) string {
	if !s.Flags && !s.Opcodes {
		return "without one-shot"
	}
	var encodings []string
	if s.Flags {
		encodings = append(encodings, "flags")
	}
	if s.Opcodes {
		encodings = append(encodings, "opcodes")
	}
	header := "every"
	if s.Validated {
		header = "validated"
	}
	return fmt.Sprintf("one-shot by %s, header %s, window %d", strings.Join(encodings, " or "), header, s.Window)
}

// storeDetails returns the last column of a store's row.
func storeDetails(s *config.Store) string {
	words := s.Details()
	if words == nil {
		return "" // without a tab, which would leave blanks at the end of the line
	}
	return "\t" + strings.Join(words, ", ")
}

func writeTarget(w io.Writer, c *config.Config, t *config.Target) {
	fmt.Fprintf(w, "\ntarget %s\n", t.Name)
	writeNode(w, t.Node)
	if t.Alias != "" {
		fmt.Fprintf(w, "  alias\t%s\n", t.Alias)
	}
	for i := range t.LUNs {
		l := &t.LUNs[i]
		fmt.Fprintf(w, "  LUN %d\t%s\t%s\t%s\n", l.Number, l.Shows(), c.LUNSizeText(l), lunDetails(l))
	}
	fmt.Fprintf(w, "  login\t%s\n", loginText(t.Auth))
	if len(t.Initiators) == 0 {
		fmt.Fprintln(w, "  admits\tevery initiator")
	}
	for i := range t.Initiators {
		fmt.Fprintf(w, "  admits\t%s\n", ruleText(&t.Initiators[i]))
	}
	if t.Groups != nil {
		fmt.Fprintf(w, "  groups\t%s\n", strings.Trim(fmt.Sprint(t.Groups), "[]"))
	}
	if r := t.Redirect; r != nil {
		fmt.Fprintf(w, "  moved\tto %s, %s\n", r.Address, map[bool]string{true: "for good", false: "for now"}[r.Permanent])
	}
}

// ruleText says whom a rule admits, and to what.
func ruleText(r *config.Initiator) string {
	s := string(r.Name)
	if r.Auth != nil {
		s += ", " + loginText(*r.Auth)
	}
	if r.LUNs != nil {
		var luns []string
		for _, l := range r.LUNs {
			luns = append(luns, fmt.Sprintf("LUN %d as %d", l.LUN, l.Number))
		}
		s += ", sees " + cmp.Or(strings.Join(luns, ", "), "no LUN")
	}
	return s
}

func lunDetails(l *config.LUN) string {
	words := []string{fmt.Sprintf("blocks of %d bytes", l.BlockSize)}
	if l.PhysicalBlockSize > 0 {
		words = append(words, fmt.Sprintf("physically %d", l.PhysicalBlockSize))
	}
	if l.ReadOnly {
		words = append(words, "read-only")
	}
	if l.Removable {
		words = append(words, "removable")
	}
	if l.ALUA != config.ALUAImplicit {
		words = append(words, "alua "+string(l.ALUA))
	}
	for _, f := range []struct{ name, value string }{{"vendor", l.Vendor}, {"product", l.Product}, {"serial", l.Serial}} {
		if f.value != "" {
			words = append(words, fmt.Sprintf("%s %q", f.name, f.value))
		}
	}
	return strings.Join(words, ", ")
}

// hostAuthText says what hosts of NVMe have to prove.
func hostAuthText(a *config.HostAuth) string {
	if a == nil {
		return "without authentication"
	}
	text := "DH-HMAC-CHAP"
	for _, names := range [][]string{a.Hashes, a.Groups} {
		if names != nil {
			text += " by " + strings.Join(names, " or ")
		}
	}
	if a.Controller != nil {
		text += "; the controller proves itself, too"
	}
	return text
}

func loginText(a config.Auth) string {
	switch {
	case a.Mutual != nil:
		return fmt.Sprintf("CHAP as %q; the target proves itself as %q", a.CHAP.User, a.Mutual.User)
	case a.CHAP != nil:
		return fmt.Sprintf("CHAP as %q", a.CHAP.User)
	}
	return "without CHAP"
}

func writeLimits(w io.Writer, l config.Limits) {
	fmt.Fprintf(w, "\nlimits\n  connections\t%d\n  sessions\t%d\n  commands\t%d per session, over %d connections\n", l.Connections, l.Sessions, l.Commands, l.ConnectionsPerSession)
	fmt.Fprintf(w, "  memory\t%s, %s per connection\n", config.FormatSize(l.Memory), config.FormatSize(l.MemoryPerConnection))
	ping := fmt.Sprintf("after %s of silence, answer within %s", l.NopInterval, l.NopTimeout)
	if l.NopInterval == 0 {
		ping = "never"
	}
	fmt.Fprintf(w, "  login\twithin %s\n  ping\t%s\n  data\tsent within %s\n", l.LoginTimeout, ping, l.ReadTimeout)
}
