// Package command has what the programs share: names, man pages and completions.
package command

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

var plainName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// Name is what a program was called as, from os.Args[0], or usual if that could not be typed again.
func Name(arg0, usual string) string {
	name := filepath.Base(arg0)
	if !plainName.MatchString(name) {
		return usual
	}
	return name
}

// Rename makes root, with its help, that of a program called name: a package may install it under another
// name than it is built as.
func Rename(root *cobra.Command, name string) {
	if name == root.Name() {
		return
	}
	r := renamer(root, name)
	root.Use = name + strings.TrimPrefix(root.Use, root.Name())
	each(root, func(c *cobra.Command) { c.Long, c.Example = r(c.Long), r(c.Example) })
}

// renamer returns a function that gives mentions of root's commands in a text the new name. A program that is
// not followed by one of its commands, or does not begin the text, is a word like others.
func renamer(root *cobra.Command, name string) func(string) string {
	var commands []string
	for _, c := range root.Commands() {
		commands = append(commands, c.Name())
	}
	mention := regexp.MustCompile(`(^|\b)` + root.Name() + `(\s+(?:` + strings.Join(commands, "|") + `)\b)`)
	beginning := regexp.MustCompile(`^` + root.Name() + `\b`)
	return func(text string) string {
		return beginning.ReplaceAllString(mention.ReplaceAllString(text, "${1}"+name+"${2}"), name)
	}
}

func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}
