package command

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestRoff(t *testing.T) {
	if got, want := roff("a\\b --x\n.dot\n'quote"), "a\\eb \\-\\-x\n\\&.dot\n\\&'quote"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The page of a command shows its own flags, those of all commands, and, if commands are below it, both ways to call it.
func TestManPage(t *testing.T) {
	root := &cobra.Command{Use: "prog", Long: "prog works."}
	root.PersistentFlags().String("name", "", "`NAME` of it")
	run := func(*cobra.Command, []string) {}
	list := &cobra.Command{Use: "list [-o FORMAT]", Short: "List", Example: "  prog list", Run: run}
	list.Flags().String("order", "", "`ORDER` of the list")
	list.AddCommand(&cobra.Command{Use: "set VALUE", Run: run})
	root.AddCommand(list)
	page := manPage(list)
	for _, want := range []string{
		"prog list [\\-o FORMAT]", "\n.br\n\\fBprog list COMMAND", "\n.SH OPTIONS\n", "\\-\\-order ORDER",
		"\n.SH OPTIONS OF ALL COMMANDS\n", "\\-\\-name NAME", "\n.SH EXAMPLES\n", exitStatus,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	var help strings.Builder
	ShowExitStatus(root)
	root.SetOut(&help)
	root.SetArgs([]string{"list", "--help"})
	if err := root.Execute(); err != nil || !strings.HasSuffix(help.String(), "Exit status: "+exitStatus+".\n") {
		t.Errorf("%v, %s", err, help.String())
	}
}

// The command completion prints the script of a shell, and refuses everything else.
func TestCompletion(t *testing.T) {
	for text, known := range map[string]bool{
		"completion bash": true, "completion fish": true,
		"completion": false, "completion tcsh": false, "completion bash more": false,
	} {
		root := &cobra.Command{Use: "prog", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(&cobra.Command{Use: "list", Run: func(*cobra.Command, []string) {}})
		var out strings.Builder
		root.SetOut(&out)
		misused := errors.New("misused")
		Completion(root, func(*cobra.Command, string) error { return misused })
		root.SetArgs(strings.Fields(text))
		if err := root.Execute(); known && (err != nil || !strings.Contains(out.String(), "prog")) || !known && (err != misused || out.Len() > 0) {
			t.Errorf("%s: %v, %q", text, err, out.String())
		}
	}
}
