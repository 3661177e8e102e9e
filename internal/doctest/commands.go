package doctest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Commands holds what the documents show of a program to its commands and flags: each exists.
func Commands(t *testing.T, root *cobra.Command) {
	t.Helper()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	n := 0
	for _, p := range Pages(t, Root(t)) {
		for _, l := range p.Commands(root.Name()) {
			n++
			if err := CheckCommand(root, l.Text); err != nil {
				t.Errorf("%s:%d: %s: %v", p.Path, l.Number, l.Text, err)
			}
		}
	}
	if n < 5 {
		t.Errorf("the documents show %d commands", n)
	}
}

// CheckCommand says whether root has the command that a line shows, with its flags. Placeholders,
// brackets and alternatives (a|b) may stand in it as in a synopsis.
func CheckCommand(root *cobra.Command, line string) error {
	var words []string
	for _, w := range strings.Fields(line)[1:] {
		if w == "|" || strings.HasPrefix(w, ">") || strings.HasPrefix(w, "<") {
			break // the shell's
		}
		w = strings.Trim(w, "[]'\"")
		if !strings.HasPrefix(w, "http") {
			w, _, _ = strings.Cut(w, "|")
		}
		words = append(words, w)
	}
	if len(words) == 0 {
		return nil
	}
	cmd := root
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		next, _, err := cmd.Find(words[:1])
		if err != nil || next == cmd {
			break
		}
		cmd, words = next, words[1:]
	}
	if cmd == root && !strings.HasPrefix(words[0], "-") {
		return fmt.Errorf("there is no command %q", words[0])
	}
	if len(words) > 0 && cmd.HasAvailableSubCommands() && !cmd.DisableFlagsInUseLine && !strings.HasPrefix(words[0], "-") {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), words[0])
	}
	cmd.InitDefaultHelpFlag()
	for _, w := range words {
		if err := checkFlag(cmd, w); err != nil {
			return err
		}
	}
	return nil
}

func checkFlag(cmd *cobra.Command, word string) error {
	if !strings.HasPrefix(word, "-") || word == "-" {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	flags := cmd.Flags()
	flags.AddFlagSet(cmd.InheritedFlags())
	if strings.HasPrefix(word, "--") && flags.Lookup(name) == nil || !strings.HasPrefix(word, "--") && flags.ShorthandLookup(name[:1]) == nil {
		return fmt.Errorf("%s has no flag %s", cmd.CommandPath(), word)
	}
	return nil
}
