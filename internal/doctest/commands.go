package doctest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tables are the pages with a table of all commands of a program.
var tables = map[string]string{"target": "docs/operations.md", "initiator": "docs/initiator.md"}

// Commands holds what the documents show of a program to its commands and flags: each exists. The page with the table
// of all commands shows each.
func Commands(t *testing.T, root *cobra.Command) {
	t.Helper()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	n := 0
	var shown []Line
	for _, p := range Pages(t, Root(t)) {
		for _, l := range p.Commands(root.Name()) {
			n++
			if p.Path == tables[root.Name()] {
				shown = append(shown, l)
			}
			if err := CheckCommand(root, l.Text); err != nil {
				t.Errorf("%s:%d: %s: %v", p.Path, l.Number, l.Text, err)
			}
		}
	}
	if n < 5 {
		t.Errorf("the documents show %d commands", n)
	}
	for _, c := range missing(root, shown) {
		t.Errorf("%s does not show %s", tables[root.Name()], c)
	}
}

// missing returns the commands below cmd that none of the lines shows. A line may show alternatives (a|b).
func missing(cmd *cobra.Command, lines []Line) (list []string) {
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" || c.Parent().Name() == "completion" {
			continue
		}
		if !c.HasAvailableSubCommands() && !slices.ContainsFunc(lines, func(l Line) bool { return shows(l.Text, c.CommandPath()) }) {
			list = append(list, c.CommandPath())
		}
		list = append(list, missing(c, lines)...)
	}
	return list
}

// shows says whether a line shows the command with that path.
func shows(line, path string) bool {
	words := strings.Fields(strings.ReplaceAll(line, `\`, ""))
	names := strings.Fields(path)
	if len(words) < len(names) {
		return false
	}
	for i, name := range names[1:] {
		if !slices.Contains(strings.Split(words[i+1], "|"), name) {
			return false
		}
	}
	return true
}

// Help holds the help of a program to what a user needs of each command: what it does, in lines that fit a terminal,
// an example that calls it, and for each flag with a value a name of that value.
func Help(t *testing.T, root *cobra.Command) {
	t.Helper()
	if err := checkHelp(root); err != nil {
		t.Error(err)
	}
}

// maxHelp is how long a line of a help text may be, in characters.
const maxHelp = 100

func checkHelp(cmd *cobra.Command) (err error) {
	wrong := func(format string, args ...any) {
		err = errors.Join(err, fmt.Errorf(cmd.CommandPath()+" "+format, args...))
	}
	if cmd.Long == "" {
		wrong("does not say what it does: Long is empty")
	}
	for line := range strings.Lines(cmd.Long) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > maxHelp {
			wrong("has a line of %d characters, and terminals have room for %d: %s", n, maxHelp, line)
		}
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
