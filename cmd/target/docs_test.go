package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/internal/doctest"
)

// Every command that help shows has a man page with all sections, and each shell has its
// completion script.
func TestDocs(t *testing.T) {
	dir := t.TempDir()
	if code := run("target", []string{"docs", dir}, os.Stdout, os.Stderr); code != exitOK {
		t.Fatalf("exit %d", code)
	}
	for _, name := range []string{
		"target.1", "target-serve.1", "target-check.1", "target-reload.1", "target-status.1", "target-sessions.1",
		"target-session-drop.1", "target-witness.1", "target-ha.1", "target-ha-init.1", "target-access.1", "target-access-set.1", "target-import.1", "target-version.1", "target.bash", "_target", "target.fish",
	} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 300 {
			t.Errorf("%s: %v", name, err)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{".TH TARGET", "\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH DESCRIPTION\n", "\n.SH EXAMPLES\n", "\n.SH EXIT STATUS\n0 for success", "\n.SH SEE ALSO\n"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q", page, want)
			}
		}
	}
	if out, err := exec.Command("bash", "-n", filepath.Join(dir, "target.bash")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The documents show only commands and flags that exist.
func TestDocumentedCommands(t *testing.T) { doctest.Commands(t, rootCommand()) }

// The help of each command says what the command does, and shows an example.
func TestHelp(t *testing.T) { doctest.Help(t, rootCommand()) }
