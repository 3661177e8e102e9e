package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/config"
	"oneshot/initiator"
	"oneshot/mgmt"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// running is a server that serves until the test ends.
type running struct {
	*Server
	t   *testing.T
	dir string
}

func serve(t *testing.T, text string) *running {
	t.Helper()
	return serveWith(t, text, slog.New(slog.DiscardHandler))
}

func serveWith(t *testing.T, text string, log *slog.Logger) *running {
	t.Helper()
	r := &running{t: t, dir: t.TempDir()}
	s, err := New(r.parse(text), log)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = s
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // sessions that tests leave open are cut
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *running) parse(text string) *config.Config {
	r.t.Helper()
	c, err := config.Parse(filepath.Join(r.dir, "test.yaml"), []byte(text))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *running) apply(text string) mgmt.Reload {
	r.t.Helper()
	done, err := r.Apply(r.parse(text))
	if err != nil {
		r.t.Fatal(err)
	}
	return done
}

const iqn = "iqn.2026-11.example.oneshot:"

func (r *running) dial(target string) (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute) // only a hang reaches it
	defer cancel()
	return initiator.Dial(ctx, initiator.URL{Address: r.Addrs()[0].String(), Target: iqn + target, LUN: -1}, initiator.Options{})
}

func (r *running) login(target string) *initiator.Session {
	r.t.Helper()
	s, err := r.dial(target)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

func unit(t *testing.T, s *initiator.Session, lun int) *initiator.LU {
	t.Helper()
	lu, err := s.LU(t.Context(), lun)
	if err != nil {
		t.Fatal(err)
	}
	return lu
}

// sense is what TEST UNIT READY says: 0xKAAQQ, or 0.
func sense(t *testing.T, s *initiator.Session, lun int) int {
	t.Helper()
	c := &initiator.Command{LUN: lun, CDB: make([]byte, 6)}
	if err := s.Do(t.Context(), c); err == nil {
		return 0
	} else if failed, ok := errors.AsType[*initiator.StatusError](err); ok {
		return int(failed.Key)<<16 | int(failed.ASC)<<8 | int(failed.ASCQ)
	} else {
		t.Fatal(err)
		return 0
	}
}

// attentions takes the unit attentions that are pending.
func attentions(t *testing.T, s *initiator.Session, lun int) string {
	var all []string
	for code := sense(t, s, lun); code>>16 == 6; code = sense(t, s, lun) {
		all = append(all, fmt.Sprintf("%05x", code))
	}
	return strings.Join(all, " ")
}

const before = `
stores:
  d: {type: file, path: d.img, size: 16MiB}
  e: {type: memory, size: 16MiB}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:a", luns: {0: d, 1: e}}
  - {iqn: "iqn.2026-11.example.oneshot:b", luns: {0: e}}
portals: [{listen: "127.0.0.1:0"}]
`

// LUNs come, go and grow while sessions use others. These sessions go on, and unit attentions tell them.
func TestApplyLUNs(t *testing.T) {
	r := serve(t, before)
	s := r.login("a")
	d, e := unit(t, s, 0), unit(t, s, 1)
	want := bytes.Repeat([]byte("kept"), 1024)
	if _, err := d.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	stop, load := make(chan struct{}), new(sync.WaitGroup)
	other := unit(t, r.login("b"), 0)
	load.Go(func() { // a session that is not to be disturbed
		block := make([]byte, 4096)
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := other.WriteAt(block, n%1024*4096); err != nil {
				t.Errorf("another session: %v", err)
				return
			}
		}
	})
	done := r.apply(`
stores:
  d: {type: file, path: d.img, size: 32MiB}
  f: {type: memory, size: 1MiB}
  e: {type: memory, size: 16MiB}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:a", luns: {0: d, 2: f}}
  - {iqn: "iqn.2026-11.example.oneshot:b", luns: {0: e}}
portals: [{listen: "127.0.0.1:0"}]
`)
	if got := strings.Join(done.Done, "; "); got != `store "d" has 32MiB; LUN 1 of iqn.2026-11.example.oneshot:a removed; LUN 2 of iqn.2026-11.example.oneshot:a added` {
		t.Errorf("done: %s", got)
	}
	if got := attentions(t, s, 0); got != "62a09 63f0e" {
		t.Errorf("unit attentions of the unit that grew: %s", got)
	}
	if _, err := e.ReadAt(make([]byte, 512), 0); !strings.Contains(fmt.Sprint(err), "25") {
		t.Errorf("the LUN that was removed: %v", err)
	}
	if got := attentions(t, s, 2); got != "62900 63f0e" {
		t.Errorf("unit attentions of the new unit: %s", got)
	}
	if size := unit(t, s, 0).Size(); size != 32<<20 {
		t.Errorf("%d bytes", size)
	}
	got := make([]byte, len(want))
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was written before: %v", err)
	}
	if luns, err := s.ReportLUNs(t.Context()); err != nil || fmt.Sprint(luns) != "[0 2]" {
		t.Errorf("LUNs %v, %v", luns, err)
	}
	close(stop)
	load.Wait()
}

// What a host means for one disk does not reach another that comes to its LUN, over the same session or when it logs in again, until it has asked
// which disk is there.
func TestApplyAnotherDisk(t *testing.T) {
	r := serve(t, before)
	u := initiator.URL{Address: r.Addrs()[0].String(), Target: iqn + "a", LUN: -1}
	isid := initiator.RandomISID()
	login := func() *initiator.Session {
		s, err := initiator.Dial(t.Context(), u, initiator.Options{ISID: isid})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := login()
	r.apply(strings.Replace(before, "0: d, 1: e", "0: e, 1: e", 1))
	for _, next := range []func() *initiator.Session{func() *initiator.Session { return s }, login} {
		s = next()
		for range 8 {
			c := &initiator.Command{CDB: []byte{0x2a, 8: 1, 9: 0}, Out: bytes.Repeat([]byte{0x5a}, 512), Attentions: 8}
			if failed, ok := errors.AsType[*initiator.StatusError](s.Do(t.Context(), c)); !ok || failed.ASC != 0x25 {
				t.Errorf("WRITE: %v", failed)
			}
		}
	}
	got := make([]byte, 512)
	e := unit(t, s, 0)
	if _, err := e.ReadAt(got, 0); err != nil || slices.Contains(got, 0x5a) {
		t.Errorf("the other disk has % x, %v", got[:4], err)
	}
	r.apply(before)
	if err := e.Check(t.Context()); !strings.Contains(fmt.Sprint(err), "another disk") {
		t.Errorf("who looks is told %v", err)
	}
}

// Targets come and go, and rules of access change; sessions that they do not concern go on.
func TestApplyTargets(t *testing.T) {
	r := serve(t, before)
	a, b := r.login("a"), r.login("b")
	r.apply(`
stores: {d: {type: file, path: d.img, size: 16MiB}, e: {type: memory, size: 16MiB}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:a", luns: {0: d, 1: e}, auth: {chap: {user: u, secret: twelve-characters}}}
  - {iqn: "iqn.2026-11.example.oneshot:c", luns: {0: e}}
portals: [{listen: "127.0.0.1:0"}]
`)
	if _, err := r.dial("a"); err == nil {
		t.Error("a login without CHAP succeeds after CHAP is asked for")
	}
	if got := attentions(t, a, 0); got != "62900" {
		t.Errorf("the session from before: %s", got)
	}
	if got := attentions(t, r.login("c"), 0); got != "62900" {
		t.Errorf("the new target: %s", got)
	}
	awaitEnd(t, b)
	if _, err := r.dial("b"); err == nil {
		t.Error("a login at a target that was removed succeeds")
	}
	// The session of an initiator that is no longer on the list ends.
	c := r.login("c")
	r.apply(`
stores: {d: {type: file, path: d.img, size: 16MiB}, e: {type: memory, size: 16MiB}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:a", luns: {0: d, 1: e}, auth: {chap: {user: u, secret: twelve-characters}}}
  - {iqn: "iqn.2026-11.example.oneshot:c", luns: {0: e}, initiators: ["iqn.2026-11.example.none:*"]}
portals: [{listen: "127.0.0.1:0"}]
`)
	awaitEnd(t, c)
	attentions(t, a, 1)
}

// awaitEnd waits until the target has ended a session.
func awaitEnd(t *testing.T, s *initiator.Session) {
	t.Helper()
	for {
		c := &initiator.Command{LUN: 0, CDB: make([]byte, 6)}
		if err := s.Do(t.Context(), c); err == nil {
			continue
		} else if _, answered := errors.AsType[*initiator.StatusError](err); !answered {
			return
		}
	}
}

// A store that no LUN shows any more is closed when its last command has ended, although the
// session goes on. Then another daemon can open the file.
func TestApplyClosesStores(t *testing.T) {
	r := serve(t, before)
	s := r.login("a")
	block := make([]byte, 64<<10)
	if _, err := unit(t, s, 0).WriteAt(block, 0); err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(strings.Replace(before, "0: d, ", "", 1), "  d: {type: file, path: d.img, size: 16MiB}\n", "", 1)
	r.apply(without)
	for {
		other, err := New(r.parse(before), slog.New(slog.DiscardHandler))
		if err == nil {
			if err := other.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			break
		}
		if !strings.Contains(err.Error(), "in use") || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	attentions(t, s, 1)
	r.apply(before) // and it comes back
	if got := attentions(t, s, 0); got != "62900 63f0e" {
		t.Errorf("unit attentions: %s", got)
	}
	if _, err := unit(t, s, 0).ReadAt(block, 0); err != nil {
		t.Error(err)
	}
}

// Portals open and close; sessions stay.
func TestApplyPortals(t *testing.T) {
	r := serve(t, before)
	s := r.login("a")
	old := r.Addrs()[0].(*net.TCPAddr)
	pinned := strings.Replace(before, "127.0.0.1:0", old.String(), 1)
	// The port is taken by the portal that is to go: the new one takes over.
	done := r.apply(pinned)
	if got := fmt.Sprint(r.Addrs()); got != "["+old.String()+"]" {
		t.Errorf("portals %s, done %v", got, done.Done)
	}
	wide := strings.Replace(before, "127.0.0.1:0", fmt.Sprintf("0.0.0.0:%d", old.Port), 1)
	r.apply(wide)
	if got := attentions(t, s, 0); got != "62900" {
		t.Errorf("the session: %s", got)
	}
	if c, err := net.Dial("tcp4", old.String()); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	two := strings.Replace(before, `{listen: "127.0.0.1:0"}`, `{listen: "127.0.0.1:0"}, {transport: iwarp, listen: "127.0.0.1:0"}`, 1)
	r.apply(two)
	if got := r.Addrs(); len(got) != 2 {
		t.Errorf("portals %v", got)
	}
	if c, err := net.Dial("tcp4", old.String()); err == nil {
		t.Error("the portal that was closed takes connections")
		_ = c.Close()
	}
	if got := sense(t, s, 0); got != 0 {
		t.Errorf("the session: %05x", got)
	}
}

// A session over RDMA outlives its portal, and the next one has the same transport.
func TestApplyPortalsOfRDMA(t *testing.T) {
	two := strings.Replace(before, `{listen: "127.0.0.1:0"}`, `{listen: "127.0.0.1:0"}, {transport: iwarp, listen: "127.0.0.1:0"}`, 1)
	r := serve(t, two)
	dial := func() *initiator.Session {
		s, err := initiator.Dial(t.Context(), initiator.URL{
			Transport: initiator.ISER, Address: r.Addrs()[1].String(), Target: iqn + "a", LUN: -1,
		}, initiator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	transport := func() (all []string) {
		for _, s := range r.Sessions() {
			all = append(all, s.Transport)
		}
		return all
	}
	s := dial()
	if got := fmt.Sprint(transport()); got != "[iwarp]" {
		t.Errorf("sessions by %s", got)
	}
	r.apply(before)
	block := bytes.Repeat([]byte("x"), 64<<10)
	disk := unit(t, s, 0)
	if _, err := disk.WriteAt(block, 0); err != nil {
		t.Errorf("after its portal was closed: %v", err)
	}
	if got := fmt.Sprint(transport()); got != "[iwarp]" {
		t.Errorf("sessions by %s", got)
	}
	r.apply(two)
	_ = s.Close()
	got := make([]byte, len(block))
	if _, err := unit(t, dial(), 0).ReadAt(got, 0); err != nil || !bytes.Equal(got, block) {
		t.Errorf("over the portal that came back: %v", err)
	}
}

// A change that fails leaves everything as it was, and says why in one line.
func TestApplyFails(t *testing.T) {
	r := serve(t, before)
	s := r.login("a")
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	if err := os.Mkdir(filepath.Join(r.dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	pinned := strings.Replace(before, "127.0.0.1:0", r.Addrs()[0].String(), 1)
	r.apply(pinned)
	change := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(pinned) }
	listen := fmt.Sprintf(`listen: "0.0.0.0:%d"}, {listen: "%s"`, r.Addrs()[0].(*net.TCPAddr).Port, taken.Addr())
	for name, c := range map[string]struct{ text, want string }{
		"a store":    {change("0: e", "0: g", "targets:", "  g: {type: file, path: directory, size: 1MiB}\ntargets:"), "directory"},
		"a portal":   {change(`listen: "`+r.Addrs()[0].String()+`"`, listen, "0: e", "0: d"), "choose another"},
		"shrinking":  {change("d.img, size: 16MiB", "d.img, size: 8MiB", "0: e", "0: d"), "16777216"},
		"metrics":    {pinned + fmt.Sprintf("metrics: {listen: \"%s\"}\n", taken.Addr()), "metrics"},
		"management": {pinned + "management: {socket: none/sock}\n", "create it"},
	} {
		next := r.parse(c.text)
		_, err := r.Apply(next)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, which does not say %q in one line", name, err, c.want)
		}
		if got := attentions(t, s, 0); got != "" && got != "62900" {
			t.Errorf("%s: the session has unit attentions %s", name, got)
		}
		r.login("b") // the portal is there
	}
	if done := r.apply(pinned); len(done.Done)+len(done.Pending) != 0 {
		t.Errorf("something has changed: %+v", done)
	}
}

// A change that fails has not disturbed a portal or service that serves, although it needed their addresses.
func TestApplyFailsAndDisturbsNobody(t *testing.T) {
	r := serve(t, before)
	with := func(portal, metrics, more string) string {
		return strings.Replace(before, `portals: [{listen: "127.0.0.1:0"}`, `portals: [{listen: "`+portal+`"}`+more, 1) + "metrics: {listen: \"" + metrics + "\"}\n"
	}
	r.apply(with(r.Addrs()[0].String(), "127.0.0.1:0", ""))
	r.apply(with(r.Addrs()[0].String(), r.metrics.l.Addr().String(), ""))
	portal, metrics := r.portals[0].portal, r.metrics
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	everywhere := func(a net.Addr) string { return fmt.Sprintf("0.0.0.0:%d", a.(*net.TCPAddr).Port) }
	for name, text := range map[string]string{
		"the second portal fails": with(everywhere(portal.Addr()), everywhere(metrics.l.Addr()), `, {listen: "`+taken.Addr().String()+`"}`),
		"a size fails":            strings.Replace(with(everywhere(portal.Addr()), everywhere(metrics.l.Addr()), ""), "d.img, size: 16MiB", "d.img, size: 8MiB", 1),
		"metrics fail":            with(everywhere(portal.Addr()), taken.Addr().String(), ""),
		"another transport":       strings.Replace(with(portal.Addr().String(), metrics.l.Addr().String(), `, {listen: "`+taken.Addr().String()+`"}`), "[{listen", "[{transport: iwarp, listen", 1),
	} {
		if _, err := r.Apply(r.parse(text)); err == nil {
			t.Errorf("%s: it was applied", name)
		}
		if r.portals[0].portal != portal || r.metrics != metrics {
			t.Errorf("%s: what serves was replaced", name)
		}
		r.login("a")
		if c, err := net.Dial("tcp4", metrics.l.Addr().String()); err != nil {
			t.Errorf("%s: metrics: %v", name, err)
		} else {
			_ = c.Close()
		}
		if l, err := listenTCP("tcp4", portal.Addr().String()); err == nil {
			_ = l.Close()
			t.Errorf("%s: somebody else can listen at the address", name)
		}
	}
}

// An address passes from one portal to the next without a moment in which nobody listens there: the next one
// listens while the one before it still does.
func TestApplyLeavesNoGap(t *testing.T) {
	r := serve(t, before)
	addr := r.Addrs()[0].String()
	_, port, _ := net.SplitHostPort(addr)
	r.apply(strings.Replace(before, "127.0.0.1:0", addr, 1))
	for _, next := range []string{"0.0.0.0:" + port, "*:" + port, addr, "*:" + port, "0.0.0.0:" + port, addr} {
		old := listeners([]portal{r.portals[0].portal})
		c := r.newChange(r.parse(strings.Replace(before, "127.0.0.1:0", next, 1)))
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		opened := listeners([]portal{c.opened[0].portal})
		for what, l := range map[string]*net.TCPListener{"the portal that goes": old[0], "the portal that comes": opened[0]} {
			if !accepts(t, l) {
				t.Errorf("to %s: %s does not listen before the change", next, what)
			}
		}
		if _, err := c.commit(); err != nil {
			t.Fatal(err)
		}
		if accepts(t, old[0]) || !accepts(t, opened[0]) {
			t.Errorf("to %s: the portal that goes listens: %v, the other one: %v", next, accepts(t, old[0]), accepts(t, opened[0]))
		}
		r.login("a")
	}
}

// accepts reports whether the kernel takes connections for l.
func accepts(t *testing.T, l *net.TCPListener) bool {
	t.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := 0
	if err := raw.Control(func(fd uintptr) { on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN) }); err != nil {
		return false // closed
	}
	return err == nil && on == 1
}

// However often the one-shot settings of a portal change, there is one device, with one iSER target on it.
func TestApplyOneShotKeepsOneDevice(t *testing.T) {
	r := serve(t, before)
	leases := -1
	for window := range 5 {
		r.apply(strings.Replace(before, `{listen: "127.0.0.1:0"}`, fmt.Sprintf(`{transport: iwarp, listen: "127.0.0.1:0", one_shot: {window: %d}}`, window+1), 1))
		if n := r.pool.Stats().Leases; leases < 0 {
			leases = n
		} else if n != leases {
			t.Errorf("with window %d: %d leases, %d before", window+1, n, leases)
		}
	}
}

// A memory store cannot grow while LUNs show it, and a store keeps the options that it was opened with, divided or not. Apply says so each
// time, until they are again in the file what they are.
func TestApplyPending(t *testing.T) {
	text := `
stores:
  m: {type: memory, size: 16MiB}
  f: {type: file, path: f.img, size: 16MiB}
  d: {type: file, path: d.img, size: 16MiB, partitioned: true}
  below: {type: memory, size: 16MiB}
  s: {type: slice, on: below, size: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: f, 2: s}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, text)
	for _, c := range []struct{ from, to, want string }{
		{"m: {type: memory, size: 16MiB", "m: {type: memory, size: 32MiB", "a memory store keeps its size"},
		{"f.img, size: 16MiB", "f.img, size: 16MiB, cache: writethrough", `the options of the store "f"`},
		{"d.img, size: 16MiB", "d.img, size: 16MiB, direct: true", `the options of the store "d"`},
		{"below: {type: memory, size: 16MiB", "below: {type: memory, size: 32MiB", `the options of the store "s"`},
	} {
		next := strings.Replace(text, c.from, c.to, 1)
		for range 2 {
			if done := r.apply(next); len(done.Done) != 0 || len(done.Pending) != 1 || !strings.Contains(done.Pending[0], c.want) {
				t.Errorf("%s: %+v", c.to, done)
			}
		}
		if done := r.apply(text); len(done.Done)+len(done.Pending) != 0 {
			t.Errorf("back from %s: %+v", c.to, done)
		}
	}
	grown := strings.Replace(text, "f.img, size: 16MiB", "f.img, size: 32MiB", 1)
	if done := r.apply(grown); len(done.Done) != 1 || len(done.Pending) != 0 {
		t.Errorf("a file that grows: %+v", done)
	}
	if done := r.apply(grown); len(done.Done)+len(done.Pending) != 0 {
		t.Errorf("a file that has grown: %+v", done)
	}
}

// Apply says what LUNs and namespaces show from now on, and which files it has created: a mistake in a path makes a new disk.
func TestApplySaysWhatIsShown(t *testing.T) {
	text := `
stores:
  m: {type: memory, size: 1MiB}
  f: {type: file, path: f.img, size: 1MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: f}}]
subsystems: [{nqn: "nqn.2026-11.example.oneshot:a", namespaces: {1: f}}]
portals: [{listen: "127.0.0.1:0"}, {transport: nvme-tcp, listen: "127.0.0.1:0"}]
`
	r := serve(t, text)
	lun, space := "LUN 0 of iqn.2026-11.example.oneshot:a ", "namespace 1 of nqn.2026-11.example.oneshot:a "
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{"f.img", "g.img", []string{"file " + filepath.Join(r.dir, "g.img") + " created", lun + "shows another f", space + "shows another f"}},
		{"{0: f}", "{0: m}", []string{lun + "shows m in place of f"}},
		{"{0: f}", "{0: {store: f, block_size: 4096}}", []string{lun + "shows f in another way"}},
		{"{1: f}", "{1: m}", []string{space + "shows m in place of f"}},
		{"{1: f}", "{2: f}", []string{space + "removed", "namespace 2 of nqn.2026-11.example.oneshot:a added"}},
	} {
		if done := r.apply(strings.Replace(text, c.from, c.to, 1)); !slices.Equal(done.Done, c.want) {
			t.Errorf("%s in place of %s: %q", c.to, c.from, done.Done)
		}
		if done := r.apply(text); slices.ContainsFunc(done.Done, func(s string) bool { return strings.HasPrefix(s, "file") }) {
			t.Errorf("a file that was there: %q", done.Done)
		}
	}
}

// Whoever removes the file of a store that is open, or puts another one in its place, learns from the next reload that the former one is served.
func TestApplySaysWhatFilesWereReplaced(t *testing.T) {
	text := `
stores:
  f: {type: file, path: f.img, size: 1MiB}
  below: {type: file, path: below.img, size: 1MiB}
  s: {type: slice, on: below}
  d: {type: file, path: d.img, size: 4MiB, partitioned: true}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: f, 1: s}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, text)
	for _, c := range []struct{ store, file string }{{"f", "f.img"}, {"s", "below.img"}, {"d", "d.img"}} {
		path := filepath.Join(r.dir, c.file)
		for _, replace := range []func() error{
			func() error { return os.Rename(path, path+".old") },
			func() error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
		} {
			if err := replace(); err != nil {
				t.Fatal(err)
			}
			done := r.apply(text)
			if len(done.Pending) != 1 || !strings.Contains(done.Pending[0], `the store "`+c.store+`" goes on with a file that was removed from `+path) {
				t.Errorf("%s: %+v", c.file, done)
			}
		}
		if err := os.Rename(path+".old", path); err != nil {
			t.Fatal(err)
		}
		if done := r.apply(text); len(done.Done)+len(done.Pending) != 0 {
			t.Errorf("%s is back: %+v", c.file, done)
		}
	}
}

// Apply names the keys that take effect only in a new process, until they have their old values again.
func TestApplyLimits(t *testing.T) {
	r := serve(t, before)
	for range 2 {
		if done := r.apply(before + "limits: {memory: 2GiB, sessions: 5}\n"); fmt.Sprint(done.Pending) != "[limits.memory will change at the next start only]" {
			t.Errorf("%+v", done)
		}
	}
	if done := r.apply(before); len(done.Pending) != 0 {
		t.Errorf("%+v", done)
	}
}

// Apply and Shutdown may run at the same time.
func TestApplyMeetsShutdown(t *testing.T) {
	for range 20 {
		r := &running{t: t, dir: t.TempDir()}
		s, err := New(r.parse(before), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		r.Server = s
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve() })
		wg.Go(func() {
			_, err := s.Apply(r.parse(strings.Replace(before, "0: d, ", "", 1)))
			if err != nil && !errors.Is(err, errClosing) {
				t.Error(err)
			}
		})
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if _, err := s.Apply(r.parse(before)); !errors.Is(err, errClosing) {
			t.Errorf("after the end: %v", err)
		}
	}
}

// The administrator sees what happens, and ends sessions.
func TestManage(t *testing.T) {
	r := serve(t, before+`
metrics: {listen: "127.0.0.1:0"}
management: {socket: s}
`)
	r.OnReload(func(context.Context) (mgmt.Reload, error) { return mgmt.Reload{}, errors.New("no") })
	s := r.login("a")
	d := unit(t, s, 0)
	if _, err := d.WriteAt(make([]byte, 8192), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	c := mgmt.NewClient(filepath.Join(r.dir, "s"))
	defer c.Close()
	status, err := c.Status(t.Context())
	for err == nil && status.Targets[0].LUNs[0].IO.InFlight != 0 { // the answer has left, and is counted next
		status, err = c.Status(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	lun := status.Targets[0].LUNs[0]
	if lun.Store != "d" || lun.Bytes != 16<<20 || lun.IO.Write.Bytes != 8192 || lun.IO.Read.Bytes != 4096 || lun.IO.Read.Commands() != 1 {
		t.Errorf("%+v", lun)
	}
	if status.Connected != 1 || status.Targets[0].Sessions != 1 || status.Targets[1].Sessions != 0 || status.Counters.Logins != 1 {
		t.Errorf("%+v", status)
	}
	list, err := c.Sessions(t.Context())
	if err != nil || len(list.Sessions) != 1 || list.Sessions[0].IO.Write.Bytes != 8192 || list.Sessions[0].Target != iqn+"a" {
		t.Fatalf("%+v, %v", list, err)
	}
	resp, err := http.Get("http://" + r.metrics.l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if want := `oneshot_lun_bytes_total{lun="0",op="write",target="` + iqn + `a"} 8192`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the metrics do not have %s: %v", want, err)
	}
	if _, err := c.Reload(t.Context()); err == nil || err.Error() != "no" {
		t.Error(err)
	}
	if err := c.DropSession(t.Context(), list.Sessions[0].ID); err != nil {
		t.Error(err)
	}
	awaitEnd(t, s)
	if err := r.Health(); err != nil {
		t.Error(err)
	}
}

// Services come and go like portals. Profiles are served to whom the configuration allows it, from the start on.
func TestApplyServices(t *testing.T) {
	r := serve(t, before+"metrics: {listen: \"127.0.0.1:0\", pprof: true}\n")
	get := func(path string) int {
		resp, err := http.Get("http://" + r.metrics.l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		return resp.StatusCode
	}
	if code := get("/debug/pprof/"); code != 200 {
		t.Errorf("profiles at the start: %d", code)
	}
	r.apply(before)
	r.apply(before + "metrics: {listen: \"127.0.0.1:0\"}\nmanagement: {socket: s}\n")
	first := r.metrics
	if code := get("/debug/pprof/"); code != 404 {
		t.Errorf("profiles: %d", code)
	}
	r.apply(before + "metrics: {listen: \"127.0.0.1:0\", pprof: true}\nmanagement: {socket: t}\n")
	if code := get("/debug/pprof/"); code != 200 || r.metrics != first {
		t.Errorf("profiles: %d", code)
	}
	c := mgmt.NewClient(filepath.Join(r.dir, "t"))
	defer c.Close()
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
	r.apply(before)
	if r.metrics != nil || r.management != nil {
		t.Error("services are left")
	}
}

// A login that is redirected does not count as a failure, and neither does the unit attention that follows every
// login. A login that is refused has the name of its initiator in the log.
func TestWhatIsNoFailure(t *testing.T) {
	var log bytes.Buffer
	s, err := New(parse(t, `
stores: {e: {type: memory, size: 16MiB}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:a", luns: {0: e}}
  - {iqn: "iqn.2026-11.example.oneshot:moved", redirect: {address: "192.0.2.1:3260", permanent: true}}
  - {iqn: "iqn.2026-11.example.oneshot:gone", redirect: "192.0.2.1"}
  - {iqn: "iqn.2026-11.example.oneshot:closed", initiators: ["iqn.2026-11.example.none:x"], luns: {0: e}}
  - {iqn: "iqn.2026-11.example.oneshot:secret", auth: {chap: {user: u, secret: twelve-bytes}}, luns: {0: e}}
portals: [{listen: "127.0.0.1:0"}]
`), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	dial := func(target string) error {
		c, err := initiator.Dial(t.Context(), initiator.URL{Address: s.Addrs()[0].String(), Target: iqn + target, LUN: -1}, initiator.Options{
			InitiatorName: "iqn.2026-11.example.clients:" + target,
		})
		if err == nil {
			attentions(t, c, 0)
			err = c.Close()
		}
		return err
	}
	if err := dial("a"); err != nil {
		t.Error(err)
	}
	status := s.Status()
	if io := status.Targets[0].LUNs[0].IO; len(io.Failed) != 0 || io.Attentions == 0 {
		t.Errorf("a login: failed %v, unit attentions %d", io.Failed, io.Attentions)
	}
	for _, target := range []string{"moved", "gone", "closed", "secret"} {
		if dial(target) == nil {
			t.Errorf("logged in to %q", target)
		}
	}
	status = s.Status()
	if c := status.Counters; c.Redirects != 2 || c.LoginFailures != 2 {
		t.Errorf("%d redirects, %d failures", c.Redirects, c.LoginFailures)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, target := range []string{"moved", "gone", "closed", "secret"} {
		if !strings.Contains(log.String(), "initiator=iqn.2026-11.example.clients:"+target) {
			t.Errorf("the log does not name the initiator that was not let in to %q:\n%s", target, log.String())
		}
	}
	if n := strings.Count(log.String(), "login refused"); n != 2 {
		t.Errorf("%d logins are refused in the log", n)
	}
}

// With advertise, discovery names that address, over both kinds of transport.
func TestAdvertise(t *testing.T) {
	r := serve(t, `
stores: {e: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: e}}]
portals:
  - {listen: "127.0.0.1:0", advertise: "storage.example.com:13260"}
  - {listen: "127.0.0.1:0", group: 2}
  - {transport: iwarp, listen: "127.0.0.1:0", advertise: "192.0.2.9:13261"}
`)
	plain := r.Addrs()[1].String()
	for i, want := range map[int]string{
		0: "[{storage.example.com:13260 1} {" + plain + " 2}]", 1: "[{" + plain + " 2} {storage.example.com:13260 1}]", 2: "[{192.0.2.9:13261 1}]",
	} {
		u := initiator.URL{Address: r.Addrs()[i].String(), LUN: -1}
		if i == 2 {
			u.Transport = initiator.ISER
		}
		found, err := initiator.Discover(t.Context(), u, initiator.Options{})
		if err != nil || len(found) != 1 {
			t.Fatalf("portal %d: %v, %v", i, found, err)
		}
		if got := fmt.Sprint(found[0].Portals); got != want {
			t.Errorf("portal %d tells %s, want %s", i, got, want)
		}
	}
}

// TestDeviceIsShared: portals of iSER and of NVMe open one device once. It is closed when both have gone.
func TestDeviceIsShared(t *testing.T) {
	r := serve(t, before)
	unused := r.pool.Stats().InUse
	opened := 0
	use := func(serve config.Served, most int64) *rdmaDevice {
		t.Helper()
		d, target, err := r.rdma.use(deviceKey{config.TransportVerbs, "shared0"}, serve, func(func(error)) (rdma.Device, error) {
			opened++
			return iwarp.Open(iwarp.Config{})
		})
		if err != nil {
			t.Fatal(err)
		}
		if target == nil {
			t.Error("nothing serves the connections")
		}
		if got := r.pool.Stats().InUse - unused; got > most || got < most*9/10 {
			t.Errorf("messages take %d bytes; the configuration is checked for %d", got, most)
		}
		return d
	}
	first := use(config.ServeNamespaces, config.NVMeDeviceMemory)
	second := use(config.ServeLUNs, config.NVMeDeviceMemory+config.RDMADeviceMemory)
	if first != second || opened != 1 {
		t.Errorf("the device was opened %d times", opened)
	}
	r.rdma.release(first)
	if len(r.rdma.counters()) != 1 {
		t.Error("the device is closed while a portal has it")
	}
	r.rdma.release(second)
	for len(r.rdma.counters()) != 0 || r.pool.Stats().InUse != unused {
		runtime.Gosched()
	}
}

// TestDevicesAreClosed: when a reload removes the last portal of an RDMA device, the device is closed once its last
// connection has ended, and its memory is free. Until then a new portal can use it again.
func TestDevicesAreClosed(t *testing.T) {
	const tcp = `{listen: "127.0.0.1:0"}`
	with := strings.Replace(before, tcp, tcp+`, {transport: iwarp, listen: "127.0.0.1:0"}`, 1)
	r := serve(t, before)
	unused := r.pool.Stats().InUse
	closed := func() bool {
		return len(r.rdma.counters()) == 0 && r.pool.Stats().InUse == unused
	}
	r.apply(with)
	if closed() {
		t.Fatal("no device is open")
	}
	if got := r.pool.Stats().InUse - unused; got != config.RDMADeviceMemory {
		t.Errorf("an RDMA device takes %d bytes; the configuration is checked for %d", got, config.RDMADeviceMemory)
	}
	r.apply(before)
	for !closed() { // when the portal's goroutine has ended
		runtime.Gosched()
	}

	r.apply(with)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := initiator.Dial(ctx, initiator.URL{Transport: initiator.ISER, Address: r.Addrs()[1].String(), Target: iqn + "b", LUN: -1}, initiator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.apply(before)
	attentions(t, s, 0)
	works(t, s, 0)
	open := func() *rdmaDevice {
		r.rdma.mu.Lock()
		defer r.rdma.mu.Unlock()
		return r.rdma.by[deviceKey{config.TransportIWARP, "iwarp"}]
	}
	device := open()
	r.apply(with)
	if open() != device || device == nil {
		t.Error("another device is opened beside the one that has a session")
	}
	r.apply(before)
	works(t, s, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for !closed() {
		runtime.Gosched()
	}
}

// A rule by which an initiator sees no LUN is another one than none of LUNs, by which it sees all.
func TestRuleOfNoLUNs(t *testing.T) {
	const all = `
stores: {m: {type: memory, size: 1MiB}}
targets: [{iqn: "` + iqn + `t", luns: {0: m}, initiators: [{name: "` + initiator.DefaultName + `"}]}]
portals: [{listen: "127.0.0.1:0"}]
`
	none := strings.Replace(all, `"}]}]`, `", luns: {}}]}]`, 1)
	r := serve(t, all)
	unit(t, r.login("t"), 0)
	for _, text := range []string{none, all, none} {
		if done := r.apply(text); len(done.Done) != 1 {
			t.Errorf("%v", done)
		}
		_, err := r.login("t").LU(t.Context(), 0)
		if sees := err == nil; sees != (text == all) {
			t.Errorf("%s\nthe initiator sees the LUN: %v", text, sees)
		}
	}
}
