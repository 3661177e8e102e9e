// Package version says which version of oneshot a program is.
package version

import (
	_ "embed"
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var base string

// text is what the Makefile gives the linker: the version with the commit it was built from.
var text string

// String is the version of this program: what it was built as, or else what Go knows of its module or commit.
func String() string {
	if text != "" {
		return text
	}
	info, _ := debug.ReadBuildInfo()
	return of(info)
}

// of takes a nil info for a program that was built without one.
func of(info *debug.BuildInfo) string {
	v := strings.TrimSpace(base)
	if info == nil {
		return v
	}
	if m := info.Main.Version; m != "" && m != "(devel)" {
		return m
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return v + "+git." + s.Value[:12]
		}
	}
	return v + "+unreleased"
}
