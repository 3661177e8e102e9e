package doctest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestCheckCommand(t *testing.T) {
	root := &cobra.Command{Use: "tool"}
	serve := &cobra.Command{Use: "serve", Run: func(*cobra.Command, []string) {}}
	serve.Flags().StringP("config", "c", "", "")
	session := &cobra.Command{Use: "session"}
	drop := &cobra.Command{Use: "drop ID", Run: func(*cobra.Command, []string) {}}
	session.AddCommand(drop)
	root.AddCommand(serve, session)
	for line, bad := range map[string]bool{
		"tool": false, "tool serve": false, "tool serve [--config FILE]": false, "bin/tool serve -c x.yaml": false,
		"tool session drop ID": false, "tool serve | jq .": false, "tool serve > x --y": false, "tool serve --help": false,
		"tool sing": true, "tool serve --colour red": true, "tool session end ID": true, "tool serve -x": true, "tool session drop --now": true,
	} {
		if err := CheckCommand(root, line); (err != nil) != bad {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A command that no line shows is found, also beside alternatives.
func TestMissing(t *testing.T) {
	root, session := &cobra.Command{Use: "tool"}, &cobra.Command{Use: "session"}
	for _, name := range []string{"ls", "drop", "keep"} {
		session.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	root.AddCommand(session, &cobra.Command{Use: "serve", Run: func(*cobra.Command, []string) {}})
	lines := []Line{{1, `bin/tool session ls\|drop ID`}, {2, "tool"}}
	if got := strings.Join(missing(root, lines), ", "); got != "tool serve, tool session keep" {
		t.Errorf("missing: %s", got)
	}
}

// A command without a text, an example or a name for the value of a flag is found.
func TestCheckHelp(t *testing.T) {
	commands := func() (root, sub *cobra.Command) {
		root = &cobra.Command{Use: "prog", Long: "prog works.", Example: "  prog sub"}
		sub = &cobra.Command{Use: "sub", Long: "sub works.", Example: "  prog sub --size 1", Run: func(*cobra.Command, []string) {}}
		root.AddCommand(sub)
		return root, sub
	}
	root, sub := commands()
	sub.Flags().Int("size", 0, "`BYTES` of all")
	sub.Flags().Bool("quiet", false, "say nothing")
	if err := checkHelp(root); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(sub *cobra.Command){
		"text":    func(sub *cobra.Command) { sub.Long = "" },
		"long":    func(sub *cobra.Command) { sub.Long = strings.Repeat("sub works. ", 10) },
		"example": func(sub *cobra.Command) { sub.Example = "  prog other" },
		"value":   func(sub *cobra.Command) { sub.Flags().Int("size", 0, "of all") },
	} {
		root, sub := commands()
		spoil(sub)
		if checkHelp(root) == nil {
			t.Errorf("%s: nothing is found", name)
		}
	}
}
