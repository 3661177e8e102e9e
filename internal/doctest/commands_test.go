package doctest

import (
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
