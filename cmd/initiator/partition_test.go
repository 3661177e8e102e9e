package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oneshot/test/targettest"
)

const partitionSecret = "the secret of db1"

func startDivided(t *testing.T) string {
	t.Helper()
	tg := targettest.Start(t, `
stores:
  disk:
    type: memory
    size: 16MiB
    partitioned: true
    partitions:
      db: {size: 8MiB, access: {"name:db1": rwfad, any: r}}
      own: {size: 4MiB, access: {"name:db1": rw}}
targets: [{iqn: `+iqn+`, luns: {}}]
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, serve: partitions, clients: {db1: "`+partitionSecret+`"}}
`)
	return "oneshot+iwarp://" + tg.Portals[1]
}

func TestPartition(t *testing.T) {
	at := startDivided(t)
	good := succeeds(t, "partition")
	if out := good("", "ls", at); !strings.Contains(out, "disk/db    8MiB  ") || !strings.Contains(out, "  r       none") || strings.Contains(out, "disk/own") {
		t.Errorf("anybody is shown %s", out)
	}
	t.Setenv(envPartitionUser, "db1")
	t.Setenv(envPartitionSecret, partitionSecret)
	var rows []listed
	if out := good("", "ls", "--json", at); json.Unmarshal([]byte(out), &rows) != nil || len(rows) != 2 || rows[0].Rights != "rwfad" || rows[0].Unit != 512 ||
		rows[1].Name != "disk/own" || rows[1].Size != 4<<20 {
		t.Fatalf("db1 is shown %s", out)
	}
	db := at + "/disk/db"

	// 3,000,001 octets end within a unit, of which the rest stays.
	dir := t.TempDir()
	text := strings.Repeat("0123456789abcde\n", 1<<18)[:3_000_001]
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	good(strings.Repeat("x", 8<<20), "write", db)
	if out := good("", "write", "--json", "--offset", "4KiB", db, from); !strings.Contains(out, `"bytes": 3000001`) {
		t.Errorf("write --json: %s", out)
	}
	if out := good("", "read", at+"/uuid:"+rows[0].UUID); len(out) != 8<<20 || out[4096:][:len(text)] != text || strings.Trim(out[:4096]+out[4096+len(text):], "x") != "" {
		t.Error("what was written is not what comes back, or is more than that")
	}
	good("", "read", "--offset", "4096", "--length", "100001", db, to)
	if b, err := os.ReadFile(to); err != nil || string(b) != text[:100_001] {
		t.Errorf("%d bytes came back, %v", len(b), err)
	}
	good("short", "write", "--length", "3", "--offset", "512", db)
	if out := good("", "read", "--offset", "512", "--length", "5", db); out != "shoxx" {
		t.Errorf("%q", out)
	}
	good("a", "write", "--no-flush", at+"/disk/own")

	load := []string{"bench", "--duration", "20ms", "--warmup", "5ms", "--depth", "4", "--random"}
	for _, kind := range [][]string{{}, {"--op", "write", "--fua"}, {"--op", "mixed", "--reads", "70", "--flush-every", "3", "--order", "free"}, {"--op", "cas"}} {
		var r struct {
			IOPS    float64
			IOs     uint64
			Reads   uint64
			Flushes uint64
			P99     float64 `json:"latency_p99_us"`
			Counts  map[string]float64
			Rights  string
		}
		var out string
		var err error
		for d := 20 * time.Millisecond; err == nil && r.IOs < 100 && d < 10*time.Second; d *= 2 { // a busy machine does few
			out = good("", append(append(load, "--json", "--duration", d.String(), db), kind...)...)
			err = json.Unmarshal([]byte(out), &r)
		}
		if err != nil || r.IOPS == 0 || r.P99 == 0 || r.Counts["works"] == 0 || r.Rights == "" {
			t.Errorf("bench %v: %s", kind, out)
		}
		mixed := len(kind) > 4
		if mixed != (r.Flushes > 0) || (len(kind) == 0) != (r.Reads == r.IOs) || mixed && (r.Reads == 0 || r.Flushes > (r.IOs-r.Reads)/3+1) {
			t.Errorf("bench %v: %d operations, %d reads, %d flushes", kind, r.IOs, r.Reads, r.Flushes)
		}
	}
	if out := good("", append(load, db)...); !strings.Contains(out, "I/Os per second") || !strings.Contains(out, "p99 ") || !strings.Contains(out, "outlives: none") {
		t.Errorf("bench: %s", out)
	}
}

func TestPartitionErrors(t *testing.T) {
	at := startDivided(t)
	db := at + "/disk/db"
	for _, c := range []struct {
		status int
		says   string
		args   string
		env    string // the secret of db1; empty: anybody
	}{
		{2, "unknown command", "frobnicate", ""},
		{2, "usage: initiator partition ls URL", "ls", ""},
		{2, "names no partition", "ls " + db, ""},
		{2, "names no partition", "read " + at, ""},
		{2, "begins with rdma+local://", "read iscsi://h/a/b", ""},
		{2, "is the name of a target", "read " + at + "/" + iqn + "/0", ""},
		{2, "--flow is for disks", "ls --flow static " + at, ""},
		{2, "no kind of load", "bench --op trim " + db, ""},
		{2, "no order", "bench --order odd " + db, ""},
		{2, "contradict", "write --durable --no-flush " + db, ""},
		{1, "user without a secret", "ls " + strings.Replace(at, "//", "//db1@", 1), ""},
		{1, "does not know the user", "ls " + at, "another secret"},
		{1, "denied", "read " + db, "another secret"},
		{1, "no such", "read " + at + "/disk/none", ""},
		{1, `"wf" is needed`, "write " + db, ""},
		{1, `"wf" is needed`, "write " + at + "/disk/own", partitionSecret},
		{1, "keeps nothing over a power cut", "write --durable " + db, partitionSecret},
		{1, "beyond the end", "read --offset 8MiB --length 1 " + db, ""},
		{1, "beyond the end", "write --offset 9MiB " + db, partitionSecret},
		{1, "whole units", "read --offset 17 --length 1 " + db, ""},
		{1, "no such file", "write " + db + " /none/there", partitionSecret},
		{1, "do not fit", "bench --size 100 " + db, ""},
		{1, "nothing to make durable", "bench --fua " + db, ""},
		{1, `"a" is needed`, "bench --op cas " + at + "/disk/own", partitionSecret},
		{1, "connection refused", "ls oneshot+iwarp://127.0.0.1:1", ""},
	} {
		if c.env != "" {
			t.Setenv(envPartitionUser, "db1")
			t.Setenv(envPartitionSecret, c.env)
		} else {
			_ = os.Unsetenv(envPartitionUser)
			_ = os.Unsetenv(envPartitionSecret)
		}
		status, out, bad := call(t, "", append([]string{"partition"}, strings.Fields(c.args)...)...)
		if status != c.status || !strings.Contains(bad, c.says) || !strings.HasPrefix(bad, "initiator: ") || strings.Count(bad, "\n") != 1 || out != "" {
			t.Errorf("%v: status %d, %q %.100q; want %d and %q", c.args, status, bad, out, c.status, c.says)
		}
	}
	// A file that exists stays when there is nothing to copy.
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, _ = call(t, "", "partition", "read", "--offset", "9MiB", db, file)
	_, _, _ = call(t, "", "partition", "read", at+"/disk/none", file)
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file has %q", b)
	}
}
