package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "initiator" {
		main()
	}
	targettest.Main(m)
}

const iqn = "iqn.2026-11.example.oneshot:t"

func start(t *testing.T) *targettest.Target {
	t.Helper()
	return targettest.Start(t, `
stores: {disk: {type: memory, size: 8MiB}}
targets:
  - {iqn: `+iqn+`, luns: {0: disk}}
  - {iqn: iqn.2026-11.example.oneshot:chap, luns: {0: disk}, auth: {chap: {user: alice, secret: wonderland-looking}}}
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2}
`)
}

// call runs the command and returns its exit status, its standard output and its standard error.
func call(t *testing.T, in string, args ...string) (int, string, string) {
	t.Helper()
	var out, bad bytes.Buffer
	status := run(t.Context(), "initiator", args, strings.NewReader(in), &out, &bad)
	return status, out.String(), bad.String()
}

// succeeds returns call for a command that begins with these words and has to succeed: it returns what that prints.
func succeeds(t *testing.T, first ...string) func(in string, args ...string) string {
	return func(in string, args ...string) string {
		t.Helper()
		status, out, bad := call(t, in, slices.Concat(first, args)...)
		if status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, bad)
		}
		return out
	}
}

func TestCommands(t *testing.T) {
	tg := start(t)
	for _, at := range []string{"iscsi://" + tg.Portals[0], "iser+iwarp://" + tg.Portals[1], "oneshot+iwarp://" + tg.Portals[1]} {
		disk := at + "/" + iqn + "/0"
		if status, out, bad := call(t, "", "ls", at); status != 0 || !strings.HasPrefix(out, iqn+"\n  127.0.0.1:") {
			t.Errorf("ls %s: %d %s%s", at, status, out, bad)
		}
		if status, out, bad := call(t, "", "ls", at+"/"+iqn); status != 0 || !strings.Contains(out, "0    8MiB  512    ONESHOT") {
			t.Errorf("ls: %d %s%s", status, out, bad)
		}
		var units []unit
		if status, out, bad := call(t, "", "ls", "--json", at+"/"+iqn); status != 0 || json.Unmarshal([]byte(out), &units) != nil || units[0].Size != 8<<20 {
			t.Errorf("ls --json: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "", "inquiry", disk); status != 0 || !strings.Contains(out, "vendor      ONESHOT\n") {
			t.Errorf("inquiry: %d %s%s", status, out, bad)
		}
		file := filepath.Join(t.TempDir(), "file")
		text := strings.Repeat(at, 100_000/len(at))
		if status, out, bad := call(t, text, "write", "--offset", "4KiB", disk); status != 0 || out != "" {
			t.Errorf("write: %d %s%s", status, out, bad)
		}
		if status, _, bad := call(t, "", "read", "--offset", "4096", "--length", "100000", disk, file); status != 0 {
			t.Errorf("read: %d %s", status, bad)
		}
		if b, err := os.ReadFile(file); err != nil || len(b) != 100_000 || !strings.HasPrefix(string(b), text) {
			t.Errorf("%d bytes came back, %v", len(b), err)
		}
		if status, out, bad := call(t, "", "write", "--json", "--length", "512", disk, file); status != 0 || !strings.Contains(out, `"bytes": 512`) {
			t.Errorf("write --json: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "xy", "write", "--length", "513", "--offset", "1MiB", disk); status != 1 || !strings.Contains(bad, "after 2 of 513 bytes") {
			t.Errorf("write of an input that is cut off: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "", "read", disk); status != 0 || len(out) != 8<<20 || out[:512] != text[:512] {
			t.Errorf("read: %d, %d bytes, %s", status, len(out), bad)
		}
		load := []string{"bench", "--duration", "20ms", "--warmup", "5ms", "--depth", "4", "--random", "--write"}
		if status, out, bad := call(t, "", append(load, disk)...); status != 0 || !strings.Contains(out, "crossings") || !strings.Contains(out, "target ") {
			t.Errorf("bench: %d %s%s", status, out, bad)
		}
		var r struct {
			IOPS   float64
			Target struct{ Crossings float64 }
		}
		if status, out, bad := call(t, "", append(load, "--json", "--sessions", "2", disk)...); status != 0 || json.Unmarshal([]byte(out), &r) != nil ||
			r.IOPS == 0 || r.Target.Crossings == 0 {
			t.Errorf("bench --json: %d %s%s", status, out, bad)
		}
	}
}

// The exit status is 2 for a command line that makes no sense, 1 for a failure, and both say why in one line.
func TestErrors(t *testing.T) {
	tg := start(t)
	at := "iscsi://" + tg.Portals[0]
	for _, c := range []struct {
		status int
		says   string
		args   []string
	}{
		{2, "nothing to do: name a command, such as ls, read or bench; initiator --help explains", nil},
		{2, `unknown command "lst": did you mean ls?`, []string{"lst"}},
		{2, "usage: initiator ls URL", []string{"ls"}},
		{2, "unknown flag", []string{"ls", "--x", at}},
		{2, "begins with iscsi://", []string{"ls", "http://h"}},
		{2, "names no LUN", []string{"read", at + "/" + iqn}},
		{2, "is not a size", []string{"read", "--length", "4kb", at + "/" + iqn + "/0"}},
		{2, "nvme connect", []string{"attach", "nvme+tcp://127.0.0.1/nqn.2026-11.example.oneshot:t/1"}},
		{2, "1s is the least", []string{"attach", "--ping", "10ms", at + "/" + iqn + "/0"}},
		{2, "flow", []string{"ls", "--flow", "x", at}},
		{2, "nothing to do", []string{"partition"}},
		{2, "at least one session", []string{"bench", "--depth", "0", at + "/" + iqn + "/0"}},
		{2, "only a load that writes", []string{"bench", "--fua", at + "/" + iqn + "/0"}},
		{2, "nothing to do", []string{"object"}},
		{2, "name a shell", []string{"completion", "tcsh"}},
		{2, "--opcodes has no effect", []string{"ls", "--opcodes", at}},
		{2, "--nic-poll has no effect", []string{"ls", "--nic-poll", "1ms", at}},
		{2, "--host-nqn has no effect", []string{"ls", "--host-nqn", "nqn.2026-11.example:x", at}},
		{1, "is one of RDMA", []string{"ls", "--flow", "window", at}},
		{1, "refuses the login", []string{"ls", at + "/iqn.2026-11.example.oneshot:none"}},
		{1, "CHAP", []string{"ls", at + "/iqn.2026-11.example.oneshot:chap"}},
		{1, "LUN 5", []string{"inquiry", at + "/" + iqn + "/5"}},
		{1, "no such file", []string{"write", at + "/" + iqn + "/0", "/none/there"}},
		{1, "the offset 16777216 is beyond the end of the disk", []string{"read", "--offset", "16MiB", at + "/" + iqn + "/0"}},
		{1, "whole blocks", []string{"read", "--offset", "17", at + "/" + iqn + "/0"}},
		{1, "connection refused", []string{"ls", "iscsi://127.0.0.1:1"}},
		{1, "do not fit", []string{"bench", "--size", "100", at + "/" + iqn + "/0"}},
	} {
		status, out, bad := call(t, "", c.args...)
		if status != c.status || !strings.Contains(bad, c.says) || !strings.HasPrefix(bad, "initiator: ") || strings.Count(bad, "\n") != 1 || out != "" {
			t.Errorf("%v: status %d, %q %q; want %d and %q", c.args, status, out, bad, c.status, c.says)
		}
	}
}

// The version is there as text, as JSON, and as a flag.
func TestVersion(t *testing.T) {
	var v struct{ Version, Go string }
	if status, out, bad := call(t, "", "version", "--json"); status != 0 || json.Unmarshal([]byte(out), &v) != nil || v.Version == "" || !strings.HasPrefix(v.Go, "go1.") {
		t.Errorf("version --json: %d %s%s", status, out, bad)
	}
	for _, word := range []string{"version", "--version"} {
		if status, out, bad := call(t, "", word); status != 0 || !strings.HasPrefix(out, "oneshot "+v.Version+"\n") {
			t.Errorf("%s: %d %s%s", word, status, out, bad)
		}
	}
}

// Secrets come from the environment.
func TestEnvironment(t *testing.T) {
	tg := start(t)
	t.Setenv("LIBISCSI_CHAP_USERNAME", "alice")
	url := "iscsi://" + tg.Portals[0] + "/iqn.2026-11.example.oneshot:chap"
	if status, _, bad := call(t, "", "ls", url); status != 2 || !strings.Contains(bad, "without a secret") {
		t.Errorf("status %d, %s", status, bad)
	}
	t.Setenv("LIBISCSI_CHAP_PASSWORD", "wonderland-looking")
	if status, _, bad := call(t, "", "ls", url); status != 0 {
		t.Errorf("status %d, %s", status, bad)
	}
	t.Setenv("LIBISCSI_CHAP_TARGET_USERNAME", "bob")
	if status, _, bad := call(t, "", "ls", url); status != 2 || !strings.Contains(bad, "LIBISCSI_CHAP_TARGET_PASSWORD") {
		t.Errorf("status %d, %s", status, bad)
	}
	t.Setenv("LIBISCSI_CHAP_TARGET_PASSWORD", "another-secret-12")
	if status, _, bad := call(t, "", "ls", url); status != 1 || !strings.Contains(bad, "refuses the login") {
		t.Errorf("status %d, %s", status, bad)
	}
}

// A program that a package installs under another name uses that name in its help, its errors and its man pages.
func TestOtherName(t *testing.T) {
	dir := t.TempDir()
	var out, bad bytes.Buffer
	do := func(want int, args ...string) string {
		t.Helper()
		out.Reset()
		bad.Reset()
		if got := run(t.Context(), "/usr/bin/oneshot-initiator", args, strings.NewReader(""), &out, &bad); got != want {
			t.Errorf("%q: status %d, want %d: %s", args, got, want, bad.String())
		}
		return out.String() + bad.String()
	}
	if got := do(0, "--help"); !strings.HasPrefix(got, "oneshot-initiator lists") || !strings.Contains(got, "\n  oneshot-initiator ls iscsi://") {
		t.Errorf("help: %s", got)
	}
	if got := do(2, "frobnicate"); !strings.HasPrefix(got, "oneshot-initiator: unknown command") {
		t.Errorf("%s", got)
	}
	if got := do(0, "version"); strings.Contains(got, "devel") {
		t.Errorf("%s", got)
	}
	do(0, "docs", dir)
	for _, name := range []string{"oneshot-initiator.1", "oneshot-initiator-bench.1", "oneshot-initiator.bash", "_oneshot-initiator"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}
