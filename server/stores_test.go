package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/config"
	"oneshot/initiator"
)

// misbehave makes all stores of this test faulty, and returns a function that finds one by its name.
func misbehave(t *testing.T) func(name string) *faulty.Store {
	seed := faulty.Seed(t)
	stores := make(map[string]*faulty.Store)
	opener = func(c *config.Store, _ opening) (backend.Store, error) {
		inner, err := memory.New(c.Size)
		if err != nil {
			return nil, err
		}
		stores[c.Name] = faulty.New(inner, seed)
		return stores[c.Name], nil
	}
	t.Cleanup(func() { opener = open })
	return func(name string) *faulty.Store { return stores[name] }
}

const withBadStore = `
stores:
  good: {type: memory, size: 8MiB}
  bad: {type: memory, size: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: good, 1: bad}}]
portals: [{listen: "127.0.0.1:0"}]
limits: {commands: 32}
`

// load is a number of commands that were sent to one LUN.
type load struct {
	commands []*initiator.Command
	done     sync.WaitGroup
}

// start sends n writes and n reads to LUN lun of s, at offsets all over the store.
func start(s *initiator.Session, lun, n int) *load {
	l := &load{}
	for i := range 2 * n {
		c := &initiator.Command{LUN: lun, CDB: []byte{0x28, 0, 0, 0, byte(i * 2), 0, 0, 0, 16, 0}, Done: func(*initiator.Command) { l.done.Done() }}
		if i%2 == 0 {
			c.CDB[0], c.Out = 0x2a, bytes.Repeat([]byte{byte(i + 1)}, 8192)
		} else {
			c.In = make([]byte, 8192)
		}
		l.done.Add(1)
		l.commands = append(l.commands, c)
		s.Start(c)
	}
	return l
}

// outcome waits for the commands, and counts their sense codes: KAAQQ:count, 00000 for none.
func (l *load) outcome() string {
	l.done.Wait()
	n := make(map[int]int)
	for _, c := range l.commands {
		e, _ := errors.AsType[*initiator.StatusError](c.Failure())
		if e == nil {
			n[0]++
		} else {
			n[int(e.Key)<<16|int(e.ASC)<<8|int(e.ASCQ)]++
		}
	}
	var all []string
	for _, code := range slices.Sorted(maps.Keys(n)) {
		all = append(all, fmt.Sprintf("%05x:%d", code, n[code]))
	}
	return strings.Join(all, " ")
}

// works writes to a LUN and reads back, often.
func works(t *testing.T, s *initiator.Session, lun int) {
	t.Helper()
	lu := unit(t, s, lun)
	for i := range 64 {
		want, got := bytes.Repeat([]byte{byte(i + 1)}, 16<<10), make([]byte, 16<<10)
		off := int64(i) * 64 << 10
		if _, err := lu.WriteAt(want, off); err != nil {
			t.Fatalf("write at %d: %v", off, err)
		}
		if _, err := lu.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read at %d: %v", off, err)
		}
	}
}

// If a store fails, fills up, shrinks or is slow under load, the sense data says so. Meanwhile other
// LUNs work, in the same session too, and the target stops.
func TestBadStores(t *testing.T) {
	const n = 8
	for name, c := range map[string]struct {
		fault   func(*faulty.Store)
		outcome string
	}{
		"fails": {func(s *faulty.Store) { // WRITE ERROR, UNRECOVERED READ ERROR
			s.Fail(faulty.Match{Kinds: faulty.Reads}, &backend.MediumError{Kind: backend.Read, Err: unix.EIO})
			s.Fail(faulty.Match{Kinds: faulty.Writes}, &backend.MediumError{Kind: backend.Write, Err: unix.EIO})
		}, "30c00:8 31100:8"},
		"is full": {func(s *faulty.Store) { s.Fill(0) }, "00000:8 72707:8"}, // SPACE ALLOCATION FAILED WRITE PROTECT
		"shrinks": {func(s *faulty.Store) { s.Truncate(0) }, "00000:8 31100:8"},
		"is slow": {func(s *faulty.Store) { s.Delay(faulty.Match{}, 20*time.Millisecond); s.Shuffle() }, "00000:16"},
	} {
		t.Run(name, func(t *testing.T) {
			store := misbehave(t)
			r := serve(t, withBadStore)
			s, other := r.login("a"), r.login("a")
			attentions(t, s, 1)
			c.fault(store("bad"))
			l := start(s, 1, n)
			works(t, s, 0)
			works(t, other, 0)
			if got := l.outcome(); got != c.outcome {
				t.Errorf("outcome %s, want %s", got, c.outcome)
			}
			if err := errors.Join(s.Close(), other.Close()); err != nil {
				t.Error(err)
			}
			if err := r.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Commands that hang in a store occupy their places in the command window and nothing else.
// Shutdown returns when its context ends, and names the store that hangs.
func TestHangingStore(t *testing.T) {
	store := misbehave(t)
	r := serve(t, withBadStore)
	s, other := r.login("a"), r.login("a")
	attentions(t, s, 1)
	gate := store("bad").Hold(faulty.Match{})
	l := start(s, 1, 8)
	gate.Await(16)
	works(t, s, 0)
	works(t, other, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "store \"bad\"") || !strings.Contains(err.Error(), "hang") {
		t.Errorf("shutdown: %v", err)
	}
	l.done.Wait() // their session has ended
	gate.Release()
}

// A reload can remove the LUN of a store that hangs, and further reloads work.
func TestHangingStoreIsTakenAway(t *testing.T) {
	store := misbehave(t)
	r := serve(t, withBadStore)
	s := r.login("a")
	attentions(t, s, 1)
	gate := store("bad").Hold(faulty.Match{})
	l := start(s, 1, 1)
	gate.Await(2)
	r.apply(strings.Replace(withBadStore, ", 1: bad}", "}", 1))
	if code := sense(t, s, 1); code != 0x52500 {
		t.Errorf("the LUN that was taken away says %05x", code)
	}
	works(t, s, 0)
	gate.Release()
	l.done.Wait()
}

// When a device grows while it is served, initiators get a unit attention and see the new size.
func TestDeviceGrows(t *testing.T) {
	loop := backendtest.NewLoop(t, 8<<20, 512)
	r := serve(t, `
stores: {d: {type: device, path: "`+loop.Path+`"}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: d}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	s := r.login("a")
	works(t, s, 0)
	attentions(t, s, 0)
	loop.Resize(16 << 20)
	for code := 0; code != 0x62a09; { // CAPACITY DATA HAS CHANGED
		if code = sense(t, s, 0); code != 0 && code != 0x62a09 {
			t.Fatalf("unit attention %05x", code)
		}
	}
	if n := unit(t, s, 0).Size(); n != 16<<20 {
		t.Errorf("%d bytes", n)
	}
}

// Every other type is served as configured.
func TestStoreTypes(t *testing.T) {
	r := serve(t, `
stores:
  hole: {type: null, size: 1TiB}
  foreign: {type: gotgt, plugin: "null", size: 1MiB}
  direct: {type: file, path: d.img, size: 8MiB, direct: true, io: uring}
  threads: {type: file, path: t.img, size: 8MiB, direct: true, io: threads}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: hole, 1: foreign, 2: direct, 3: threads}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	s := r.login("a")
	if n := unit(t, s, 0).Size(); n != 1<<40 {
		t.Errorf("null: %d bytes", n)
	}
	if n := unit(t, s, 1).Size(); n != 1<<20 {
		t.Errorf("gotgt: %d bytes", n)
	}
	works(t, s, 2)
	works(t, s, 3)
}

// The error for a store that does not open has its place in the configuration.
func TestStoresThatDoNotOpen(t *testing.T) {
	for store, want := range map[string]string{
		"{type: device, path: /dev/null}":               `test.yaml:2:12: store "bad": device store /dev/null: not a block device`,
		"{type: gotgt, plugin: tape, path: x}":          `test.yaml:2:12: store "bad": gotgt store x: plugin "tape"`,
		"{type: file, path: no/where, size: 1MiB}":      `store "bad": file store`,
		"{type: device, path: /dev/oneshot-is-missing}": "does not exist",
	} {
		c, err := config.Parse("test.yaml", []byte("\nstores: {  bad: "+store+`}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: bad}}]
portals: [{listen: "127.0.0.1:0"}]
`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", store, err)
		}
	}
}

// A reload cannot make a store writable that was opened for reading only.
func TestApplyKeepsReadOnlyDevices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "golden.img")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o400); err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{
		`{type: device, path: "` + backendtest.NewLoop(t, 8<<20, 512).Path + `"`, `{type: file, path: "` + file + `"`,
	} {
		text := strings.Replace(one, "{type: memory, size: 16MiB}", store+", readonly: true}", 1)
		r := serve(t, text)
		_, err := r.Apply(r.parse(strings.Replace(text, store+", readonly: true}", store+"}", 1)))
		if err == nil || !strings.Contains(err.Error(), "restart") {
			t.Errorf("%s: error %v", store, err)
		}
	}
}

// listenAdvice has different advice for different errors.
func TestListenAdvice(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:3260": `this machine does not have the address: write one that "ip address" lists in "portals"`,
	} {
		for _, text := range []string{one, strings.Replace(one, "transport: tcp", "transport: iwarp", 1)} {
			_, err := New(parse(t, strings.Replace(text, "127.0.0.1:0", address, 1)), slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	for errno, want := range map[syscall.Errno]string{
		syscall.EADDRINUSE: "end what uses the port", syscall.EACCES: "ports below 1024", syscall.ENOBUFS: "",
	} {
		if got := listenAdvice(&net.OpError{Err: os.NewSyscallError("bind", errno)}, "metrics"); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%v: %q", errno, got)
		}
	}
}

// identified is a store with an identity.
type identified struct{ backend.Store }

func (identified) Identities() []backend.Identity { return []backend.Identity{"one"} }

// Two stores that turn out to have the same bytes would be two volumes, and the locks and reservations of
// one would not hold for the other. The server refuses that, and names the place in the file.
func TestStoresThatAreOne(t *testing.T) {
	inner := opener
	t.Cleanup(func() { opener = inner })
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		s, err := inner(c, o)
		return identified{s}, err
	}
	const two = `
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: a, 1: b}}]
portals: [{transport: tcp, listen: "127.0.0.1:0"}]
`
	_, err := New(parse(t, two), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "are one") || !strings.Contains(err.Error(), ".yaml:2:") {
		t.Errorf("two stores with the same bytes: %v", err)
	}
}

// A reload that makes a store read-only is undone by the next one: the store was opened to be written. One that was opened read-only stays so.
func TestReadOnlyForATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	text := func(readOnly bool) string {
		return fmt.Sprintf(`
stores:
  m: {type: memory, size: 1MiB}
  disk: {type: file, path: %s, size: 16MiB, readonly: %t}
  s: {type: slice, on: disk, size: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: s}}]
portals: [{listen: "127.0.0.1:0"}]
`, path, readOnly)
	}
	for _, isDivided := range []bool{false, true} {
		edit := func(text string) string {
			if isDivided {
				return strings.NewReplacer("size: 16MiB,", "size: 16MiB, partitioned: true,", ", 1: s", "", "  s: {type: slice, on: disk, size: 8MiB}\n", "").Replace(text)
			}
			return text
		}
		r := serve(t, edit(text(false)))
		r.apply(edit(text(true)))
		r.apply(edit(text(false)))
		if !isDivided {
			works(t, r.login("a"), 1)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		r = serve(t, edit(text(true)))
		if _, err := r.Apply(r.parse(edit(text(false)))); err == nil || !strings.Contains(err.Error(), "was opened read-only") {
			t.Errorf("divided %t: it was opened read-only: %v", isDivided, err)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
