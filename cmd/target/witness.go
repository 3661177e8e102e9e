package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/internal/loglimit"
)

func witnessCommand() *cobra.Command {
	w := serving{witness: true}
	cmd := &cobra.Command{
		Use:   "witness --config FILE [--node NAME]",
		Short: "Vote in a cluster without serving disks, until SIGTERM or SIGINT",
		Long: `witness runs a node of a cluster that has no disks: it votes on what the other
nodes agree on, so that one of two nodes can go on without the other. It reads the
same configuration as they do, in which it stands as {witness: true}, and opens none
of the stores, targets and portals. It needs a disk that keeps what it was told to
keep, a few megabytes of it, and little memory.

target ha init or target ha join has to have made its state. Management socket,
metrics, log and signals are as with target serve.`,
		Example: `  target witness --config /etc/oneshot.yaml
  target witness --config /etc/oneshot.yaml --node w`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if w.path == "" {
				return &usageError{cmd.CommandPath(), "no configuration: name the one of the cluster with --config FILE"}
			}
			w.program = typed(os.Args[0], cmd.Root().Name())
			return loglimit.Stayed(w.serve(openServer, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	configFlag(cmd, &w.path, "the YAML `FILE` of the cluster")
	nodeFlag(cmd, &w.node)
	return cmd
}

func nodeFlag(cmd *cobra.Command, node *string) {
	cmd.Flags().StringVar(node, "node", "", "`NAME` of this machine in the cluster of the configuration (default: its host name)")
}

// loadOn reads a configuration as the node that this machine is; of a configuration without a cluster all.
func loadOn(path, node string) (*config.Config, error) {
	c, err := config.Load(path)
	switch {
	case err != nil:
		return nil, err
	case c.Cluster.Name == "" && node != "":
		return nil, fmt.Errorf("%s has no section cluster, so there is no node %q: remove --node", path, node)
	case c.Cluster.Name == "":
		return c, nil
	}
	if node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("cannot find out the host name, so name the node with --node: %w", err)
		}
		if short, _, _ := strings.Cut(host, "."); c.Cluster.Node(host) == nil && c.Cluster.Node(short) != nil {
			host = short
		}
		node = host
	}
	return c.On(node)
}

// checkRole refuses to run a witness as a server of disks, and the other way round.
func checkRole(c *config.Config, witness bool) error {
	self := c.Cluster.Node(c.Cluster.Self)
	switch {
	case self == nil && witness:
		return fmt.Errorf("%s has no section cluster, and a witness is a node of one", c.File)
	case self == nil || self.Witness == witness:
		return nil
	case witness:
		return fmt.Errorf("%s: the node %s is no witness: run target serve, or add witness: true", self.Pos, self.Name)
	}
	return fmt.Errorf("%s: the node %s is a witness: run target witness, or remove witness: true", self.Pos, self.Name)
}

// clusterText says what a node is, for the user who has started it.
func clusterText(c *config.Config) string {
	self := c.Cluster.Node(c.Cluster.Self)
	if self == nil {
		return ""
	}
	what := "node"
	if self.Witness {
		what = "witness"
	}
	return fmt.Sprintf("%s %s of cluster %s at %s", what, self.Name, c.Cluster.Name, self.Address)
}
