// Package command holds what the commands target and initiator share: names, help, man pages and completions.
package command

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

var plainName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// Name returns the name under which a program was called, from os.Args[0], or usual if that is no name to type.
func Name(arg0, usual string) string {
	name := filepath.Base(arg0)
	if !plainName.MatchString(name) {
		return usual
	}
	return name
}

// Rename gives root and the help of its commands another name: packages install the programs under other names
// than those that they are built as.
func Rename(root *cobra.Command, name string) {
	if name == root.Name() {
		return
	}
	r := renamer(root, name)
	root.Use = name + strings.TrimPrefix(root.Use, root.Name())
	each(root, func(c *cobra.Command) { c.Long, c.Example = r(c.Long), r(c.Example) })
}

// renamer returns a function that puts the new name into a text: where the old one begins the text, or stands
// before the name of a command. Elsewhere it is an ordinary word and stays.
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
