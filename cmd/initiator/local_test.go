package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"oneshot/endpoint"
	"oneshot/test/targettest"
)

// startLocal starts a daemon that serves the partition disk/db, of 8 MiB, to programs of this machine, and returns the URL of it.
func startLocal(t *testing.T) (*targettest.Target, string) {
	t.Helper()
	tg := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 16MiB, partitioned: true}}
targets: [{iqn: `+iqn+`, luns: {}}]
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: local, listen: $DIR/rdma.sock}
management: {socket: $DIR/target.sock}
state: $DIR/state
`)
	for _, args := range []string{"init disk", fmt.Sprintf("create disk/db --size 8MiB --access uid:%d=rwfad", os.Geteuid())} {
		c := exec.Command(targettest.Binary(t), append([]string{"partition"}, strings.Fields(args)...)...)
		c.Env = append(os.Environ(), "ONESHOT_SOCKET="+tg.Dir+"/target.sock")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("partition %s: %v: %s", args, err, out)
		}
	}
	return tg, "rdma+local:///disk/db?socket=" + tg.Dir + "/rdma.sock"
}

// Partitions of the daemon of this machine are listed, written, read and measured without a name and a secret, even if others stand in the
// environment, and without a card.
func TestPartitionLocal(t *testing.T) {
	_, db := startLocal(t)
	t.Setenv(envPartitionUser, "db1")
	t.Setenv(envPartitionSecret, partitionSecret)
	good := succeeds(t, "partition")
	if out := good("", "ls", strings.Replace(db, "/disk/db", "", 1)); !strings.Contains(out, "disk/db ") || !strings.Contains(out, "  rwfad   medium") {
		t.Errorf("the list is %s", out)
	}
	text := strings.Repeat("0123456789abcde\n", 1<<18)[:3_000_001]
	good(text, "write", "--durable", "--offset", "4KiB", db)
	if out := good("", "read", "--offset", "4KiB", "--length", "3000001", db); out != text {
		t.Errorf("what was written is not what comes back: %d bytes", len(out))
	}
	for _, op := range []string{"mixed", "cas"} {
		if out := good("", "bench", "--op", op, "--duration", "20ms", "--warmup", "5ms", "--depth", "8", "--random", "--order", "free", db); !strings.Contains(out, "I/Os per second") {
			t.Errorf("bench --op %s: %s", op, out)
		}
	}
	if status, _, bad := call(t, "", "partition", "ls", "--nic", "/no/such", "rdma+local://"); status != exitUsage || !strings.Contains(bad, "--nic is for") {
		t.Errorf("--nic: status %d, %s", status, bad)
	}
}

// A program goes on when the daemon was killed and is there again: what was flushed is there, and a flush tells of what may be lost.
func TestLocalDaemonKilled(t *testing.T) {
	tg, db := startLocal(t)
	e, err := endpoint.Open(t.Context(), db, endpoint.Options{Durable: true})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	defer func() { must(e.Close()) }()
	buf, err := e.Alloc(256 << 10)
	must(err)
	const half = 128 << 10
	for i := range buf[:half] {
		buf[i] = byte(i >> 9)
	}
	for round := range 3 {
		off := int64(round) * half
		must(e.WriteAt(t.Context(), buf[:half], off))
		must(e.Flush(t.Context()))
		must(e.WriteAt(t.Context(), buf[:half], 4<<20)) // nobody flushes it
		tg.Kill()
		wrote := make(chan error, 1)
		go func() { wrote <- e.WriteAt(t.Context(), buf[:half], 5<<20) }()
		tg.Start()
		must(<-wrote)
		if err := e.Flush(t.Context()); !isRestarted(err) {
			t.Errorf("round %d: Flush after a loss: %v", round, err)
		}
		must(e.Flush(t.Context()))
		clear(buf[half:])
		must(e.ReadAt(t.Context(), buf[half:], off))
		if !bytes.Equal(buf[:half], buf[half:]) {
			t.Errorf("round %d: what was flushed is lost", round)
		}
	}
}

func isRestarted(err error) bool {
	_, ok := errors.AsType[*endpoint.RestartedError](err)
	return ok
}

// A program that is killed leaves each of its Writes done or not done, and nothing of it comes later than the next life of it; the
// daemon serves others.
func TestLocalProgramKilled(t *testing.T) {
	_, db := startLocal(t)
	const size, depth = 64 << 10, 8
	slots := make([]byte, depth*size) // as bench fills its memory
	for at := range slots {
		slots[at] = byte(at>>12) ^ byte(at)
	}
	other, err := endpoint.Open(t.Context(), db, endpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	all, err := other.Alloc(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	zeroes := make([]byte, 8<<20)
	for round := range 4 {
		copy(all, zeroes)
		if err := other.WriteAt(t.Context(), all, 0); err != nil {
			t.Fatal(err)
		}
		victim := exec.Command(os.Args[0], "partition", "bench", "--op", "write", "--size", "64KiB", "--depth", "8", "--random", "--duration", "1h", db)
		victim.Args[0] = "initiator"
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		for bytes.Equal(all, zeroes) && err == nil { // until it has written
			err = other.ReadAt(t.Context(), all, 0)
		}
		if err := errors.Join(err, victim.Process.Kill()); err != nil {
			t.Fatal(err)
		}
		_ = victim.Wait()
		heir, err := endpoint.Open(t.Context(), db, endpoint.Options{Sole: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := heir.Close(); err != nil {
			t.Error(err)
		}
		if err := other.Reconnect(t.Context()); err != nil { // it has the same user
			t.Fatal(err)
		}
		if err := other.ReadAt(t.Context(), all, 0); err != nil {
			t.Fatal(err)
		}
		for off := 0; off < len(all); off += size {
			b := all[off:][:size]
			whole := bytes.Equal(b, zeroes[:size])
			for n := range depth {
				whole = whole || bytes.Equal(b, slots[n*size:][:size])
			}
			if !whole {
				t.Errorf("round %d: the Write at %d is done in part", round, off)
			}
		}
		after := bytes.Clone(all)
		if err := other.ReadAt(t.Context(), all, 0); err != nil || !bytes.Equal(after, all) {
			t.Errorf("round %d: something of a program that is gone was written late, or %v", round, err)
		}
	}
}
