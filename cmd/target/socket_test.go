package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/mgmt"
)

// Commands find the socket of a daemon without a configuration. The daemon makes none if another user could have
// put it there, or another daemon has it.
func TestOwnSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "s.sock")
	t.Setenv(socketVariable, path)
	got, err := makeOwnSocket()
	if err != nil || got != path || socketToAsk() != path {
		t.Fatalf("%q, %v; asked is %q", got, err, socketToAsk())
	}
	l, err := mgmt.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := makeOwnSocket(); err == nil || !strings.Contains(err.Error(), "another daemon answers") {
		t.Errorf("beside another daemon: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := makeOwnSocket(); err == nil || !strings.Contains(err.Error(), "only this user") {
		t.Errorf("in a directory for all: %v", err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(socketVariable, filepath.Join(dir, "link", "s.sock"))
	if _, err := makeOwnSocket(); err == nil {
		t.Error("through a link")
	}
}
