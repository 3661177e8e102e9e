package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/config"
	"oneshot/internal/version"
	"oneshot/transport/rdma/verbs"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is and what is compiled in",
		Long: `version prints the module version, the revision it was built from, the Go
version, and the store types and transports that are compiled in: what a bug
report should begin with.`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo()
			return writeVersion(cmd.OutOrStdout(), info)
		},
	}
}

// writeVersion takes a nil info for a binary that was built without one.
func writeVersion(w io.Writer, info *debug.BuildInfo) error {
	settings := map[string]string{}
	if info != nil {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	_, err := fmt.Fprintf(w, "oneshot %s\nrevision    %s\nbuilt with  %s for %s/%s%s\nstores      %s\ntransports  %s\n",
		version.String(), revision(settings), runtime.Version(), runtime.GOOS, runtime.GOARCH, buildKind(settings),
		join(config.StoreTypes()), transports())
	return err
}

// transports are those that work in this build.
func transports() string {
	list := config.Transports()
	if verbs.Built {
		return join(list)
	}
	list = slices.DeleteFunc(list, func(t config.Transport) bool { return t == config.TransportVerbs })
	return join(list) + " (verbs, the kernel's RDMA devices, is not in this build: it takes the tag verbs)"
}

func revision(settings map[string]string) string {
	commit := settings["vcs.revision"]
	if commit == "" {
		return "unknown"
	}
	text := commit + " of " + settings["vcs.time"]
	if settings["vcs.modified"] == "true" {
		text += ", changed since"
	}
	return text
}

// buildKind tells builds that are not for production.
func buildKind(settings map[string]string) string {
	var kinds []string
	if tags := settings["-tags"]; tags != "" {
		kinds = append(kinds, "tags "+tags)
	}
	if settings["-race"] == "true" {
		kinds = append(kinds, "race detector")
	}
	if kinds == nil {
		return ""
	}
	return " (" + strings.Join(kinds, ", ") + ")"
}

func join[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}
