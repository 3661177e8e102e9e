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
		Short: "Print the version and what is compiled in",
		Long: `version prints the version, the revision that it was built from, the Go version, and
the store types and transports that are compiled in. Begin a bug report with it.`,
		Example:               `  target version`,
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo()
			return writeVersion(cmd.OutOrStdout(), info)
		},
	}
}

// writeVersion writes the version. info is nil for a binary that was built without it.
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

// transports lists the transports that work in this build.
func transports() string {
	list := config.Transports()
	if verbs.Built {
		return join(list)
	}
	list = slices.DeleteFunc(list, func(t config.Transport) bool { return t.Kernel() })
	return join(list) + " (verbs and nvme-rdma, over the kernel's RDMA devices, are not in this build: they take the tag verbs)"
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

// buildKind names what is special about a build that is not for production.
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
