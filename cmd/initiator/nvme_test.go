package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"oneshot/initiator/load"
	"oneshot/test/targettest"
)

// What the commands do with LUNs they do with namespaces of NVMe, with digests and without.
func TestNVMeCommands(t *testing.T) {
	const nqn = "nqn.2026-11.example.oneshot:t"
	tg := targettest.Start(t, `
stores: {disk: {type: memory, size: 8MiB}}
subsystems:
  - {nqn: `+nqn+`, serial: S1, namespaces: {1: disk}}
  - {nqn: `+nqn+`-others, hosts: ["nqn.2026-11.example.others:*"], namespaces: {1: disk}}
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
	at := "nvme+tcp://" + tg.Portals[0]
	for _, query := range []string{"", "?header_digest=crc32c&data_digest=crc32c"} {
		disk := at + "/" + nqn + "/1" + query
		if status, out, bad := call(t, "", "ls", at+query); status != 0 || out != nqn+"\n  "+tg.Portals[0]+"\n" {
			t.Errorf("ls: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "", "ls", at+"/"+nqn+query); status != 0 || !strings.Contains(out, "1     8MiB  512    ") {
			t.Errorf("ls: %d %s%s", status, out, bad)
		}
		var spaces []space
		if status, out, bad := call(t, "", "ls", "--json", at+"/"+nqn+query); status != 0 || json.Unmarshal([]byte(out), &spaces) != nil || len(spaces) != 1 || spaces[0].Size != 8<<20 || len(spaces[0].UUID) != 36 {
			t.Errorf("ls --json: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "", "inquiry", disk); status != 0 || !strings.Contains(out, "model       oneshot\n") || !strings.Contains(out, "serial      S1\n") {
			t.Errorf("inquiry: %d %s%s", status, out, bad)
		}
		file := filepath.Join(t.TempDir(), "file")
		text := strings.Repeat(disk, 7_000_001/len(disk)) // it ends within a block
		if status, out, bad := call(t, text, "write", "--offset", "4KiB", disk); status != 0 || out != "" {
			t.Errorf("write: %d %s%s", status, out, bad)
		}
		if status, _, bad := call(t, "", "read", "--offset", "4KiB", disk, file); status != 0 {
			t.Errorf("read: %d %s", status, bad)
		}
		if b, err := os.ReadFile(file); err != nil || len(b) != 8<<20-4096 || string(b[:len(text)]) != text {
			t.Errorf("%d bytes come back, or others (%v)", len(b), err)
		}
		if status, out, bad := call(t, "", "read", "--offset", "4099", "--length", "7", disk); status != 0 || out != text[3:10] {
			t.Errorf("read in the middle of a block: %d %q %s", status, out, bad)
		}
		var r load.Result
		status, out, bad := call(t, "", "bench", "--json", "--depth", "4", "--sessions", "3", "--duration", "50ms", "--warmup", "0s", "--random", disk)
		if status != 0 || json.Unmarshal([]byte(out), &r) != nil || r.IOs == 0 || r.Initiator.Crossings == 0 {
			t.Errorf("bench: %d %s%s", status, out, bad)
		}
		if status, out, bad := call(t, "", "bench", "--write", "--size", "64KiB", "--depth", "2", "--duration", "50ms", "--warmup", "0s", disk); status != 0 || !strings.Contains(out, "I/Os per second") {
			t.Errorf("bench: %d %s%s", status, out, bad)
		}
	}
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{2, "names no namespace", []string{"read", at + "/" + nqn}},
		{2, "is no namespace", []string{"read", at + "/" + nqn + "/0"}},
		{1, "there is no namespace 5", []string{"read", at + "/" + nqn + "/5"}},
		{1, "does not admit this host", []string{"ls", at + "/" + nqn + "-others"}},
		{2, "--flow has no effect", []string{"ls", "--flow", "window", at}},
		{2, "--nic has no effect", []string{"bench", "--nic", "/nowhere", at + "/" + nqn + "/1"}},
		{2, "--host-nqn", []string{"ls", "--host-nqn", "me", at}},
		{1, "reach beyond the end", []string{"read", "--offset", "8MiB", "--length", "1", at + "/" + nqn + "/1"}},
	} {
		if status, out, bad := call(t, "", tt.args...); status != tt.status || !strings.Contains(bad, tt.text) {
			t.Errorf("%v: %d %s%s", tt.args, status, out, bad)
		}
	}
	if status, out, bad := call(t, "", "ls", "--host-nqn", "nqn.2026-11.example.others:1", at+"/"+nqn+"-others"); status != 0 {
		t.Errorf("another name: %d %s%s", status, out, bad)
	}
}

// A reload can put another store in the place of a namespace that is being written to. Who writes is told.
func TestOtherNamespace(t *testing.T) {
	const nqn = "nqn.2026-11.example.oneshot:t"
	tg := targettest.Start(t, `
stores: {disk: {type: memory, size: 32MiB}, other: {type: memory, size: 32MiB}}
subsystems: [{nqn: `+nqn+`, namespaces: {1: disk}}]
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
	const half = 8 << 20
	replace := readerFunc(func([]byte) (int, error) {
		tg.Edit("{1: disk}", "{1: other}")
		if err := syscall.Kill(tg.PID(), syscall.SIGHUP); err != nil {
			return 0, err
		}
		tg.WaitLog(t.Context(), "configuration read again")
		return 0, io.EOF
	})
	in := io.MultiReader(bytes.NewReader(make([]byte, half)), replace, bytes.NewReader(make([]byte, half)))
	var out, bad bytes.Buffer
	status := run(t.Context(), "initiator", []string{"write", "nvme+tcp://" + tg.Portals[0] + "/" + nqn + "/1"}, in, &out, &bad)
	if status != exitError || !strings.Contains(bad.String(), "no such namespace") {
		t.Errorf("status %d, %s", status, &bad)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
