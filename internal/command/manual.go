package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"oneshot/internal/version"
)

// Docs returns a command that writes what packages ship beside the program. It is hidden, for only those who
// build packages call it. wrong makes the error for a command line that makes no sense.
func Docs(wrong func(cmd *cobra.Command, reason string) error) *cobra.Command {
	return &cobra.Command{
		Use:                   "docs DIRECTORY",
		Short:                 "Write man pages and completions",
		Hidden:                true,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrong(cmd, "name the directory to write to")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			root.InitDefaultHelpCmd()
			if err := writeManPages(root, args[0]); err != nil {
				return err
			}
			return writeCompletions(root, args[0])
		},
	}
}

// ShowVersion gives root the flag --version.
func ShowVersion(root *cobra.Command) {
	root.Version = version.String()
	root.SetVersionTemplate("oneshot {{.Version}}\n")
}

// exitStatus is what the exit status of the programs means.
const exitStatus = "0 for success, 1 if something failed, 2 for a command line that makes no sense"

// ShowExitStatus has the help of root, and of all commands below it, end with the meaning of the exit status.
func ShowExitStatus(root *cobra.Command) {
	root.SetUsageTemplate(root.UsageTemplate() + "\nExit status: " + exitStatus + ".\n")
}

// Completion gives root, which has its name and its output, the command completion, and has it refuse what it does not know: cobra's own
// prints its help then, with status 0, which a script that asks for a shell's completion takes for one. wrong is as for Docs.
func Completion(root *cobra.Command, wrong func(cmd *cobra.Command, reason string) error) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			return wrong(cmd, "name a shell: bash, zsh, fish or powershell")
		}
		for _, shell := range c.Commands() {
			shell.Args = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return wrong(cmd, fmt.Sprintf("unexpected argument %q", args[0]))
				}
				return nil
			}
		}
	}
}

// writeCompletions writes the scripts of three shells under the names by which these look for
// them.
func writeCompletions(root *cobra.Command, dir string) error {
	name := root.Name()
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, name+".bash"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "_"+name)); err != nil {
		return err
	}
	return root.GenFishCompletionFile(filepath.Join(dir, name+".fish"), true)
}

// writeManPages writes the page of cmd, such as target-serve.1, and those of the commands below it.
func writeManPages(cmd *cobra.Command, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, pageName(cmd)+".1"), []byte(manPage(cmd)), 0o644); err != nil {
		return err
	}
	for _, c := range documented(cmd) {
		if err := writeManPages(c, dir); err != nil {
			return err
		}
	}
	return nil
}

// documented returns the commands below cmd that have man pages.
func documented(cmd *cobra.Command) (list []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			list = append(list, c)
		}
	}
	return list
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the page of cmd in the language of man(7). It has no date, so that the same
// source gives the same page.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %s\n", name) }
	verbatim := func(text string) { fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(strings.TrimRight(text, "\n"))) }

	fmt.Fprintf(&b, ".TH %s 1 \"\" \"oneshot %s\" \"oneshot\"\n", strings.ToUpper(pageName(cmd)), version.String())
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(pageName(cmd)), roff(lowerFirst(cmd.Short)))
	section("SYNOPSIS")
	for i, line := range synopsis(cmd) {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, "\\fB%s\\fR\n", roff(line))
	}
	section("DESCRIPTION")
	b.WriteString(paragraphs(longText(cmd)))
	if list := documented(cmd); len(list) > 0 {
		section("COMMANDS")
		for _, c := range list {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff(pageName(c)), roff(c.Short))
		}
	}
	if flags := cmd.NonInheritedFlags().FlagUsagesWrapped(78); flags != "" {
		section("OPTIONS")
		verbatim(flags)
	}
	if flags := cmd.InheritedFlags().FlagUsagesWrapped(78); flags != "" {
		section("OPTIONS OF ALL COMMANDS")
		verbatim(flags)
	}
	if cmd.Example != "" {
		section("EXAMPLES")
		verbatim(cmd.Example)
	}
	section("EXIT STATUS")
	b.WriteString(exitStatus + ".\n")
	section("SEE ALSO")
	b.WriteString(seeAlso(cmd))
	return b.String()
}

// synopsis returns a line for each way to call cmd.
func synopsis(cmd *cobra.Command) (lines []string) {
	below := len(documented(cmd)) > 0
	if !below || strings.Contains(cmd.Use, " ") { // it does something by itself
		lines = append(lines, cmd.UseLine())
	}
	if below {
		lines = append(lines, cmd.CommandPath()+" COMMAND")
	}
	return lines
}

func longText(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short + "."
}

// paragraphs has man(1) fill the paragraphs of text. Indented paragraphs, which are lists, keep their lines.
func paragraphs(text string) string {
	var b strings.Builder
	for _, p := range strings.Split(text, "\n\n") {
		b.WriteString(".PP\n")
		if strings.HasPrefix(p, " ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(p))
			continue
		}
		b.WriteString(roff(p) + "\n")
	}
	return b.String()
}

func seeAlso(cmd *cobra.Command) string {
	var pages []string
	if p := cmd.Parent(); p != nil {
		pages = append(pages, p.CommandPath())
		for _, c := range documented(p) {
			if c != cmd {
				pages = append(pages, c.CommandPath())
			}
		}
	}
	for i, p := range pages {
		pages[i] = fmt.Sprintf("\\fB%s\\fR(1)", roff(strings.ReplaceAll(p, " ", "-")))
	}
	pages = append(pages, "\\fBiscsiadm\\fR(8)", "\\fBsystemctl\\fR(1)")
	return strings.Join(pages, ",\n") + "\n"
}

// roff escapes what means something in man(7): backslashes, dashes, and dots and quotes at the
// beginning of a line.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
