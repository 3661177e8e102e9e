package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/config/migrate"
)

func importCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Turn a configuration of targetcli, nvmetcli or tgt into one for serve",
		Long: `import reads the saveconfig.json of targetcli (LIO), the config.json of nvmetcli
(Linux's target of NVMe) or the targets.conf of tgt, with the files that this one
includes. It writes a configuration for serve to standard output, and says on standard
error what it could not take over. It opens no store and changes nothing.

Some rules of access have no equivalent here, such as the IP address of an initiator.
import leaves them out, and in most cases the initiators that they admit as well. Where
the result admits more initiators than before, a NOTE says so: read the notes before
you serve the result. The result contains secrets, so keep it from other users.

If the result lacks something that only you know, such as a secret of at least 12
bytes, import says so and exits with status 1. It writes the configuration all the
same.`,
		Example: `  umask 077; target import /etc/rtslib-fb-target/saveconfig.json > target.yaml
  target import /etc/nvmet/config.json > target.yaml
  target import /etc/tgt/targets.conf > target.yaml
  target check --config target.yaml`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{cmd.CommandPath(), "name one file"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFile(args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

func importFile(path string, stdout, stderr io.Writer) error {
	data, err := migrate.Read(path)
	if err != nil {
		return fmt.Errorf("cannot read the file to import: %w", err)
	}
	r, err := migrate.Import(path, data, migrate.System)
	if err != nil {
		return err
	}
	if _, err := stdout.Write(r.YAML); err != nil {
		return err
	}
	for _, remark := range r.Remarks {
		fmt.Fprintf(stderr, "note: %s\n", remark)
	}
	c, err := config.Parse("the result", r.YAML)
	if bad, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range bad.Problems {
			fmt.Fprintf(stderr, "\n%s\n", p)
		}
		return fmt.Errorf("the result has %s: correct it before you serve it", problems(bad))
	}
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n", w.Message)
	}
	return nil
}
