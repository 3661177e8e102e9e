package doctest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// Help holds the help of a program to what a user needs of each command: what it does, an example that calls it,
// and for each flag with a value a name of that value.
func Help(t *testing.T, root *cobra.Command) {
	t.Helper()
	if err := checkHelp(root); err != nil {
		t.Error(err)
	}
}

func checkHelp(cmd *cobra.Command) (err error) {
	wrong := func(format string, args ...any) {
		err = errors.Join(err, fmt.Errorf(cmd.CommandPath()+" "+format, args...))
	}
	if cmd.Long == "" {
		wrong("does not say what it does: Long is empty")
	}
	if !strings.Contains(cmd.Example, cmd.CommandPath()) {
		wrong("has no example of a call")
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if value, _ := pflag.UnquoteUsage(f); value != strings.ToUpper(value) {
			wrong("--%s does not name its value: put a name in capitals and back quotes into the usage text", f.Name)
		}
	})
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			err = errors.Join(err, checkHelp(c))
		}
	}
	return err
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
