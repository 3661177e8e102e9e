package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/internal/command"
)

// usageError is the error for a command line that makes no sense.
type usageError struct {
	command string // "target serve", whose help explains more
	reason  string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%s; %s --help explains", e.reason, e.command)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "target",
		Short: "Serve block stores over iSCSI, iSER and NVMe",
		Long: `target makes disks out of memory, files and block devices, and serves them over
iSCSI, iSER (RDMA, with a card or without) and NVMe over TCP and RDMA to open-iscsi,
libiscsi, QEMU, nvme-cli and every other initiator. A configuration in YAML says which;
without one it serves small memory disks to this machine.`,
		Example: `  target serve                            try it: memory disks on 127.0.0.1
  target check --config /etc/oneshot.yaml see what a configuration would serve
  target serve --config /etc/oneshot.yaml serve it`,
		SilenceErrors: true, // report prints them
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // so that RunE explains an unknown command
		RunE:          unknownCommand,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			return unknownCommand(cmd, words) // the flag is that of the unknown command
		}
		return &usageError{cmd.CommandPath(), err.Error()}
	})
	command.ShowVersion(root)
	root.SuggestionsMinimumDistance = 2
	root.AddCommand(serveCommand(), checkCommand(), reloadCommand(), statusCommand(), sessionsCommand(), sessionCommand(), accessCommand(), haCommand(), witnessCommand(), keeperCommand(), partitionCommand(), endpointCommand(), importCommand(), versionCommand())
	root.AddCommand(command.Docs(misused))
	root.AddCommand(rdmaCommand(), nicCommand())
	return root
}

// misused is the error for a command that was called in a way that makes no sense.
func misused(cmd *cobra.Command, reason string) error { return &usageError{cmd.CommandPath(), reason} }

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{cmd.CommandPath(), "nothing to do: name a command, such as " + examples(cmd)}
	}
	reason := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		reason += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return &usageError{cmd.CommandPath(), reason}
}

// examples names some commands below cmd.
func examples(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return "serve, check or status"
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return strings.Join(names, " or ")
}

// noArgs refuses words that are neither a command nor a flag.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	reason := fmt.Sprintf("unexpected argument %q", args[0])
	if cmd.Flags().Lookup("config") != nil {
		reason += fmt.Sprintf(": if it is the configuration, write --config %s", quote(args[0]))
	}
	return &usageError{cmd.CommandPath(), reason}
}

// configFlag adds --config and completes it with YAML files.
func configFlag(cmd *cobra.Command, path *string, usage string) {
	cmd.Flags().StringVarP(path, "config", "c", "", usage)
	if err := cmd.MarkFlagFilename("config", "yaml", "yml"); err != nil {
		panic(err) // the flag was added in the line above
	}
}
