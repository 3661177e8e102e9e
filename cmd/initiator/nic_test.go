package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"oneshot/transport/rdma/nic/card"
)

// serveCard serves programs as target nic does, until the test ends or stop is called.
func serveCard(t *testing.T) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "nic")
	return socket, serveCardAt(t, socket)
}

func serveCardAt(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.New(card.Config{}).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Partitions are listed, written, read and measured through a card.
func TestPartitionNIC(t *testing.T) {
	at := startDivided(t)
	t.Setenv(envPartitionUser, "db1")
	t.Setenv(envPartitionSecret, partitionSecret)
	socket, _ := serveCard(t)
	good := succeeds(t, "partition", "--nic", socket)
	if out := good("", "ls", at); !strings.Contains(out, "disk/db ") || !strings.Contains(out, "disk/own ") {
		t.Errorf("the list is %s", out)
	}
	db, text := at+"/disk/db", strings.Repeat("0123456789abcde\n", 1<<18)[:3_000_001]
	good(text, "write", "--offset", "4KiB", db)
	if out := good("", "read", "--offset", "4KiB", "--length", "3000001", db); out != text {
		t.Errorf("what was written is not what comes back: %d bytes", len(out))
	}
	if status, out, bad := call(t, "", "partition", "read", "--offset", "4KiB", "--length", "3000001", db); status != 0 || out != text {
		t.Errorf("read without the card: %d, %d bytes, %s", status, len(out), bad)
	}
	for _, op := range []string{"mixed", "cas"} {
		if out := good("", "bench", "--op", op, "--duration", "20ms", "--warmup", "5ms", "--depth", "8", "--random", db); !strings.Contains(out, "I/Os per second") {
			t.Errorf("bench --op %s: %s", op, out)
		}
	}
}

// Over a card in another process all flows read and write the same bytes as without.
func TestNIC(t *testing.T) {
	tg := start(t)
	socket, _ := serveCard(t)
	for _, flow := range []string{"one-shot", "conventional", "register", "window", "static"} {
		at := "iser+iwarp://" + tg.Portals[1]
		if flow == "one-shot" {
			at = "oneshot+iwarp://" + tg.Portals[1]
		}
		disk := at + "/" + iqn + "/0"
		via := []string{"--nic", socket, "--flow", flow, "--immediate", "-1"}
		if status, out, bad := call(t, "", append([]string{"ls", at + "/" + iqn}, via...)...); status != 0 || !strings.Contains(out, "0    8MiB  512    ONESHOT") {
			t.Errorf("%s: ls: %d %s%s", flow, status, out, bad)
		}
		text := strings.Repeat(flow, 1_000_000/len(flow))
		if status, out, bad := call(t, text, append([]string{"write", "--offset", "4KiB", disk}, via...)...); status != 0 || out != "" {
			t.Errorf("%s: write: %d %s%s", flow, status, out, bad)
		}
		if status, out, bad := call(t, "", append([]string{"read", "--offset", "4096", "--length", "900000", disk}, via...)...); status != 0 || out != text[:900_000] {
			t.Errorf("%s: read: %d, %d bytes, %s", flow, status, len(out), bad)
		}
		if status, out, bad := call(t, "", "read", "--offset", "4096", "--length", "900000", disk); status != 0 || out != text[:900_000] {
			t.Errorf("%s: read without the card: %d, %d bytes, %s", flow, status, len(out), bad)
		}
		load := append([]string{"bench", "--duration", "20ms", "--warmup", "5ms", "--depth", "32", "--sessions", "2", disk}, via...)
		if status, out, bad := call(t, "", load...); status != 0 || !strings.Contains(out, "crossings") {
			t.Errorf("%s: bench: %d %s%s", flow, status, out, bad)
		}
	}
	for _, args := range [][]string{
		{"ls", "--nic", socket, "iscsi://" + tg.Portals[0]}, {"partition", "ls", "--nic", socket, "rdma+verbs://" + tg.Portals[1]},
	} {
		if status, _, bad := call(t, "", args...); status != 2 || !strings.Contains(bad, "--nic") {
			t.Errorf("%v: %d %s", args, status, bad)
		}
	}
	if status, _, bad := call(t, "", "ls", "--nic", socket+"x", "iser+iwarp://"+tg.Portals[1]); status != 1 || !strings.Contains(bad, "target nic") {
		t.Errorf("no card: %d %s", status, bad)
	}
}
