package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// A daemon that has failed ends, though nobody reads why: its log is a pipe that is full.
func TestEndsThoughNobodyReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.yaml")
	err := os.WriteFile(path, []byte(`
stores: {m: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:demo", luns: {0: m}}]
portals: [{listen: "192.0.2.1:0"}]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "--config", path}, {"serve", "--config", path + ".yaml"}, {"nic", "--socket", path}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, os.Args[0], args...)
		cmd.Args[0] = "target"
		cmd.Stderr = targettest.FullPipe(t)
		if err := cmd.Run(); ctx.Err() != nil || cmd.ProcessState.ExitCode() != exitError {
			t.Errorf("%s: %v", args, err)
		}
		cancel()
	}
}

// Daemons outlive those who read what they write: the shell's pipe, and what collects the log.
func TestReadersLeave(t *testing.T) {
	dir := t.TempDir()
	config, socket := filepath.Join(dir, "t.yaml"), filepath.Join(dir, "s")
	err := os.WriteFile(config, []byte(`
stores: {m: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:demo", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}]
management: {socket: s}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (cmd *exec.Cmd, log *os.File) {
		cmd = exec.Command(os.Args[0], args...)
		cmd.Args[0] = "target"
		out, err := cmd.StdoutPipe()
		log, w, err2 := os.Pipe()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = w
		if err := errors.Join(cmd.Start(), w.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it serves, or will soon
			text, _ := io.ReadAll(log)
			t.Fatalf("%v: %s", err, text)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		return cmd, log
	}
	serve, log := start("serve", "--config", config)
	lines := bufio.NewReader(log)
	for text := ""; !strings.Contains(text, "service open"); { // the reader of the log leaves, too
		if text, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	c := mgmt.NewClient(socket)
	defer c.Close()
	if _, err := c.Reload(t.Context()); err != nil { // which logs that it has been done
		t.Error(err)
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(serve.Process.Signal(syscall.SIGTERM), serve.Wait()); err != nil {
		t.Errorf("serve ends with %v", err)
	}
}
