package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

const (
	heapStores = `
stores:
  heap: {type: file, path: $DIR/heap.img, size: 16MiB}
  disk: {type: memory, size: 1MiB}
targets: [{iqn: ` + iqn + `, luns: {0: disk}}]
management: {socket: $DIR/m.sock}
portals:
  - {transport: tcp, listen: $PORTAL}
`
	heapPortal = `  - {transport: iwarp, listen: $PORTAL2, serve: objects, store: heap, clients: {app: "the secret of app"}}
`
)

// TestObject: the commands, at a daemon that starts again, reloads, and tells of its objects.
func TestObject(t *testing.T) {
	tg := targettest.Start(t, heapStores+heapPortal)
	at := tg.Portals[1]
	good := succeeds(t, "object")
	wrong := func(want string, args ...string) {
		t.Helper()
		status, out, bad := call(t, "x", append([]string{"object"}, args...)...)
		if status == 0 || out != "" || !strings.Contains(bad, want) {
			t.Errorf("%q: status %d, %q, %q; want %q", args, status, out, bad, want)
		}
	}
	wrong("name or the secret of the client is wrong", "insert", at)
	t.Setenv(envObjectUser, "app")
	t.Setenv(envObjectSecret, "the secret of app")

	p := strings.TrimSpace(good("hello\n", "insert", at))
	if !strings.HasPrefix(p, "os1:") {
		t.Fatalf("insert prints %q", p)
	}
	for _, how := range []string{"read", "peek"} {
		if out := good("", how, at, p); out != "hello\n" {
			t.Errorf("%s prints %q", how, out)
		}
	}
	var said struct{ Pointer string }
	if out := good("hello, world\n", "update", "--json", at, p); json.Unmarshal([]byte(out), &said) != nil || said.Pointer != p {
		t.Errorf("update prints %q, and the object has its place still: %s", out, p)
	}
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	text := strings.Repeat("0123456789abcde\n", 3000)
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.TrimSpace(good("", "update", at, p, from))
	if long == p {
		t.Error("an object has outgrown its place, and its pointer is the same")
	}
	good("", "read", at, long, to)
	if b, err := os.ReadFile(to); err != nil || string(b) != text {
		t.Errorf("%d of %d octets were read: %v", len(b), len(text), err)
	}
	wrong("the object was deleted", "read", at, p)

	// What is counted, and told.
	m := mgmt.NewClient(filepath.Join(tg.Dir, "m.sock"))
	defer m.Close()
	objects := func() mgmt.Objects {
		t.Helper()
		s, err := m.Status(t.Context())
		if err != nil || len(s.Objects) != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.Objects[0]
	}
	o := objects()
	if o.Store != "heap" || !o.Served || o.Objects != 1 || o.Bytes != int64(len(text)) || o.Free != o.Memory-64<<10 {
		t.Errorf("the status has %+v", o)
	}
	count := func(o mgmt.Objects, op, end string) (n uint64) {
		for _, r := range o.Requests {
			if r.Op == op && r.End == end {
				n += r.Count
			}
		}
		return n
	}
	if count(o, "insert", "good") != 1 || count(o, "update", "good") != 2 || count(o, "read", "good") != 2 || count(o, "read", "stale") != 1 || count(o, "prove", "denied") != 1 {
		t.Errorf("the requests are %+v", o.Requests)
	}

	// The daemon is killed, and the object is there under its pointer.
	tg.Kill()
	tg.Start()
	good("", "read", at, long, to)
	if b, err := os.ReadFile(to); err != nil || string(b) != text {
		t.Errorf("after a kill: %d of %d octets were read: %v", len(b), len(text), err)
	}

	// The portal goes and comes back by reloads.
	edit := func(old, new string) {
		t.Helper()
		tg.Edit(old, new)
		if _, err := m.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	portal := strings.Replace(heapPortal, "$PORTAL2", at, 1)
	edit(portal, "# none\n")
	wrong("", "read", "--timeout", "1s", at, long)
	if s, err := m.Status(t.Context()); err != nil || len(s.Objects) != 0 {
		t.Errorf("nobody serves the heap, and the status has %+v, %v", s.Objects, err)
	}
	edit("# none\n", portal)

	good("", "delete", at, long)
	wrong("the object was deleted", "delete", at, long)
	if o := objects(); o.Objects != 0 || o.Bytes != 0 || o.Free != o.Memory {
		t.Errorf("all is deleted, and the status has %+v", o)
	}

	// Mistakes.
	wrong("not a pointer", "read", at, "os1:1:2")
	wrong("write HOST:PORT", "read", "nowhere", long)
	wrong("is for disks", "read", "--flow", "advertised", at, long)
	wrong("no such file", "insert", at, filepath.Join(dir, "none"))
	if err := os.WriteFile(from, make([]byte, 262_113), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong("262112", "insert", at, from)
}
