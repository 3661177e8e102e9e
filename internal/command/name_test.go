package command

import (
	"testing"

	"github.com/spf13/cobra"
)

func TestName(t *testing.T) {
	for arg, want := range map[string]string{
		"/usr/bin/oneshot": "oneshot", "bin/target": "target", "oneshot-initiator": "oneshot-initiator", "": "usual", "/tmp/command.test": "usual", "-": "usual",
	} {
		if got := Name(arg, "usual"); got != want {
			t.Errorf("%q: %q, want %q", arg, got, want)
		}
	}
}

// The help of a program that is installed under another name can be typed.
func TestRename(t *testing.T) {
	root := &cobra.Command{Use: "target", Long: "target serves a target."}
	serve := &cobra.Command{
		Use: "serve", Long: "SIGHUP and target\nserve do so; a target served is no command, a subtarget serve neither.",
		Example: "  target serve --x\n  umask 077; target session drop 3",
	}
	session := &cobra.Command{Use: "session"}
	root.AddCommand(serve, session)
	Rename(root, "oneshot")
	if got, want := root.Long, "oneshot serves a target."; got != want {
		t.Errorf("%q", got)
	}
	if got, want := serve.Long, "SIGHUP and oneshot\nserve do so; a target served is no command, a subtarget serve neither."; got != want {
		t.Errorf("%q", got)
	}
	if got, want := serve.Example, "  oneshot serve --x\n  umask 077; oneshot session drop 3"; got != want {
		t.Errorf("%q", got)
	}
	if got := serve.CommandPath(); got != "oneshot serve" {
		t.Errorf("%q", got)
	}
}
