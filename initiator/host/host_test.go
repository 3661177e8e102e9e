package host_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const nqn = "nqn.2026-11.example.oneshot:t"

// serve starts a daemon with two namespaces, and returns the address of its portal.
func serve(t testing.TB) string {
	t.Helper()
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 16MiB}, b: {type: memory, size: 16MiB}}
subsystems:
  - {nqn: "`+nqn+`", namespaces: {1: a, 7: {store: b, block_size: 4096, readonly: true}}, hosts: ["`+host.DefaultNQN+`"]}
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
	return tg.Portals[0]
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// dial connects with the subsystem.
func dial(t testing.TB, u host.URL, o host.Options) *host.Controller {
	t.Helper()
	u.Subsystem = nqn
	c, err := host.Dial(within(t), u, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9 + i*7 + seed)
	}
	return b
}

// Bytes of every length are what they were, through every way: in capsules and by R2T, with digests and without.
func TestBytes(t *testing.T) {
	addr := serve(t)
	for _, u := range []host.URL{{Address: addr}, {Address: addr, HeaderDigest: true}, {Address: addr, DataDigest: true}, {Address: addr, HeaderDigest: true, DataDigest: true}} {
		c := dial(t, u, host.Options{Queues: 3})
		n, err := c.Namespace(within(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if n.Size() != 16<<20 || n.BlockSize() != 512 || n.ReadOnly || c.Queues() != 3 || c.Info.Model != "oneshot" {
			t.Errorf("%+v with %d queues of %q", n, c.Queues(), c.Info.Model)
		}
		for i, k := range []int{512, 4096, 17 << 10, 256 << 10, 257 << 10, 5 << 20} {
			want, got := pattern(k, i), make([]byte, k)
			if _, err := n.WriteAt(want, 512*int64(i)); err != nil {
				t.Fatal(err)
			}
			if _, err := n.ReadAt(got, 512*int64(i)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v: %d bytes come back as others (%v)", u, k, err)
			}
		}
		if err := n.Flush(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// A fused pair writes if the bytes are the expected ones, and says if they are not.
func TestCompareAndWrite(t *testing.T) {
	c := dial(t, host.URL{Address: serve(t)}, host.Options{Depth: 2})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []int{512, 64 << 10} {
		old, other, got := make([]byte, k), pattern(k, 1), make([]byte, k)
		if _, err := n.WriteAt(old, 1<<20); err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} { // the second time the old bytes are gone
			if done, err := n.CompareAndWrite(within(t), 1<<20, old, other); done != want || err != nil {
				t.Errorf("%d bytes: %v, %v", k, done, err)
			}
		}
		if _, err := n.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got, other) {
			t.Errorf("%d bytes: the pair has not written (%v)", k, err)
		}
	}
}

// A queue that takes one command at a time has no room for a pair, and says so. It goes on.
func TestPairWithoutRoom(t *testing.T) {
	c := dial(t, host.URL{Address: serve(t)}, host.Options{Depth: 1})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if done, err := n.CompareAndWrite(within(t), 0, make([]byte, 512), pattern(512, 1)); done || err == nil || !strings.Contains(err.Error(), "depth of 2") {
		t.Errorf("%v, %v", done, err)
	}
	got := make([]byte, 512)
	if _, err := n.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, 512)) {
		t.Errorf("%x, %v", got, err)
	}
}

// What the controller refuses is an error that says what and why.
func TestRefusals(t *testing.T) {
	addr := serve(t)
	c := dial(t, host.URL{Address: addr}, host.Options{})
	list, err := c.Namespaces(within(t))
	if fmt.Sprint(list) != "[1 7]" || err != nil {
		t.Errorf("namespaces %v, %v", list, err)
	}
	n, err := c.Namespace(within(t), 7)
	if err != nil {
		t.Fatal(err)
	}
	if n.BlockSize() != 4096 || !n.ReadOnly || n.UUID == [16]byte{} {
		t.Errorf("%+v", n)
	}
	for what, err := range map[string]error{
		"read-only":      second(n.WriteAt(make([]byte, 4096), 0)),
		"whole blocks":   second(n.ReadAt(make([]byte, 512), 0)),
		"on a disk of":   second(n.ReadAt(make([]byte, 4096), 16<<20)),
		"no namespace 9": second(c.Namespace(within(t), 9)),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	for what, o := range map[string]host.Options{"does not admit this host": {HostNQN: "nqn.2026-11.example:stranger"}, "begins with": {HostNQN: "x"}, "depth": {Depth: 5000}} {
		if _, err := host.Dial(within(t), host.URL{Address: addr, Subsystem: nqn}, o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	if _, err := host.Dial(within(t), host.URL{Address: addr, Subsystem: nqn + "x"}, host.Options{}); err == nil || !strings.Contains(err.Error(), "no such subsystem") {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// Discovery lists the subsystems that the host may reach.
func TestDiscover(t *testing.T) {
	addr := serve(t)
	list, err := host.Discover(within(t), host.URL{Address: addr}, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, d := range list {
		found = found || d.Type == nvme.EntryNVM && d.SubNQN == nqn && d.Address+":"+d.Service == addr && d.Transport == nvme.TransportTCP
	}
	if !found {
		t.Errorf("%+v", list)
	}
	if list, err := host.Discover(within(t), host.URL{Address: addr}, host.Options{HostNQN: "nqn.2026-11.example:stranger"}); err != nil || len(list) != 1 {
		t.Errorf("a stranger is told %+v, %v", list, err)
	}
}

// More commands than a queue has entries wait for their turn, and Done may start the next.
func TestManyCommands(t *testing.T) {
	c := dial(t, host.URL{Address: serve(t)}, host.Options{Queues: 2, Depth: 4})
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	var live sync.WaitGroup
	for q := range c.Queues() {
		var commands []*host.Command
		for i := range 50 {
			x, left := &host.Command{In: make([]byte, 4096)}, 20
			live.Add(1)
			x.Done = func(x *host.Command) {
				if err := x.Failure(); err != nil || x.Transferred != 4096 {
					t.Errorf("%d bytes, %v", x.Transferred, err)
				}
				if left--; left == 0 || t.Failed() {
					live.Done()
					return
				}
				c.Start(q, x)
			}
			if err := n.Prepare(x, int64(i)*4096); err != nil {
				t.Fatal(err)
			}
			commands = append(commands, x)
		}
		c.Start(q, commands...)
	}
	live.Wait()
}

// When the target goes, every command ends with an error, also those that come later.
func TestTargetGoes(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 16MiB}}
subsystems: [{nqn: "`+nqn+`", namespaces: {1: a}}]
portals: [{transport: nvme-tcp, listen: $PORTAL}]
`)
	c, err := host.Dial(within(t), host.URL{Address: tg.Portals[0], Subsystem: nqn}, host.Options{Depth: 8})
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Namespace(within(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 32)
	for range 32 {
		x := &host.Command{In: make([]byte, 4096)}
		x.Done = func(x *host.Command) {
			if x.Failure() != nil {
				ended <- x.Failure()
				return
			}
			c.Start(0, x)
		}
		if err := n.Prepare(x, 0); err != nil {
			t.Fatal(err)
		}
		c.Start(0, x)
	}
	tg.Kill()
	for range 32 {
		select {
		case <-ended:
		case <-within(t).Done():
			t.Fatal("a command does not end")
		}
	}
	if err := c.Do(within(t), 0, &host.Command{Opcode: nvme.Flush, NSID: 1}); err == nil {
		t.Error("a command succeeds without a target")
	}
	_ = c.Close() // it ends; whether it fails depends on which queue has heard of the loss
}

func TestURL(t *testing.T) {
	for text, want := range map[string]host.URL{
		"nvme+tcp://h":                                    {Address: "h:4420"},
		"nvme+tcp://[::1]:8009/" + nqn:                    {Address: "[::1]:8009", Subsystem: nqn},
		"nvme+tcp://h/" + nqn + "/7?header_digest=crc32c": {Address: "h:4420", Subsystem: nqn, NSID: 7, HeaderDigest: true},
		"nvme+tcp://h:1/" + nqn + "?data_digest=crc32c":   {Address: "h:1", Subsystem: nqn, DataDigest: true},
		"nvme+tcp://h/" + nqn + "/1?data_digest=none":     {Address: "h:4420", Subsystem: nqn, NSID: 1},
	} {
		u, err := host.ParseURL(text)
		if err != nil || u != want {
			t.Errorf("%s: %+v, %v", text, u, err)
		}
		if again, err := host.ParseURL(u.String()); err != nil || again != u {
			t.Errorf("%v: %+v, %v", u, again, err)
		}
	}
	for _, text := range []string{"iscsi://h", "nvme+tcp://", "nvme+tcp://h:x", "nvme+tcp://h/iqn.2026-11.x:y", "nvme+tcp://h/" + nqn + "/0", "nvme+tcp://h/" + nqn + "/4294967295", "nvme+tcp://h//1", "nvme+tcp://h?x=1", "nvme+tcp://h?data_digest=yes"} {
		if u, err := host.ParseURL(text); err == nil {
			t.Errorf("%s: %+v", text, u)
		}
	}
}
