package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend/fdio"
)

// If the process may have fewer descriptors than limits.connections, it accepts fewer connections, and
// descriptors remain for everything else. The log says so once. A reload notices when there are enough again.
func TestFewDescriptors(t *testing.T) {
	var log strings.Builder
	cfg := parse(t, `
stores: {d: {type: memory, size: 1MiB}, f: {type: file, path: "`+t.TempDir()+`/f", size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d, 1: f}}]
portals: [{listen: "127.0.0.1:0"}]
limits: {connections: 900}
`)
	s, err := New(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	apply := func() {
		t.Helper()
		if _, err := s.Apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	_, used, err := descriptors()
	if err != nil {
		t.Fatal(err)
	}
	set := func(n uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer set(was.Cur)
	if fdio.MayOpen() == 0 {
		t.Fatal("workers of a file open none")
	}
	set(uint64(used + fdio.MayOpen() + spareDescriptors + 3))
	apply()
	type node interface {
		Admit() bool
		Dismiss()
	}
	var admitted []node
	defer func() {
		for _, n := range admitted {
			n.Dismiss()
		}
	}()
	admit := func(n node) bool {
		if !n.Admit() {
			return false
		}
		admitted = append(admitted, n)
		return true
	}
	for _, n := range []node{s.node, s.nvme, s.node} { // the limit is that of both together
		if !admit(n) {
			t.Fatal("no room where there is some")
		}
	}
	if admit(s.node) || admit(s.nvme) {
		t.Error("a connection that takes the descriptors of others")
	}
	apply()
	if got := log.String(); strings.Count(got, "connections=3 configured=900") != 1 || strings.Count(got, "WARN") != 1 {
		t.Errorf("the log says %s", got)
	}
	set(was.Cur)
	apply()
	if !admit(s.node) {
		t.Error("no room where there is much")
	}
}
