package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"oneshot/config"
	"oneshot/mgmt"
)

// fake is a daemon that does what a test says.
type fake struct {
	serve    chan error // what Serve returns
	shutdown func(context.Context) error

	applied mgmt.Reload // what Apply returns
	refused error
	asked   int // calls of Health
}

func (f *fake) Addrs() []net.Addr                  { return nil }
func (f *fake) Serve() error                       { return <-f.serve }
func (f *fake) Shutdown(ctx context.Context) error { return f.shutdown(ctx) }

func (f *fake) ApplyFor(context.Context, *config.Config) (mgmt.Reload, error) {
	return f.applied, f.refused
}
func (f *fake) OnReload(func(context.Context) (mgmt.Reload, error)) {}
func (f *fake) Health() error                                       { f.asked++; return nil }

var quiet = slog.New(slog.DiscardHandler)

func TestSupervise(t *testing.T) {
	broken, lost := errors.New("accept failed"), errors.New("flush failed")

	t.Run("a signal drains", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{serve: make(chan error, 1)}
			f.shutdown = func(context.Context) error { f.serve <- nil; return nil }
			signals := make(chan os.Signal, 2)
			signals <- syscall.SIGTERM
			if err := supervise(f, signals, quiet); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("draining has an end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{serve: make(chan error, 1)}
			f.shutdown = func(ctx context.Context) error { <-ctx.Done(); f.serve <- nil; return ctx.Err() }
			signals := make(chan os.Signal, 2)
			signals <- syscall.SIGINT
			start := time.Now()
			err := supervise(f, signals, quiet)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != drainTime {
				t.Errorf("after %s: %v", time.Since(start), err)
			}
		})
	})
	t.Run("a store that hangs while it is closed is given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{serve: make(chan error, 1)}
			release := make(chan struct{})
			f.shutdown = func(context.Context) error { <-release; f.serve <- nil; return nil }
			signals := make(chan os.Signal, 2)
			signals <- syscall.SIGTERM
			start := time.Now()
			err := supervise(f, signals, quiet)
			if err == nil || !strings.Contains(err.Error(), "a store hangs") || time.Since(start) != drainTime+closeTime {
				t.Errorf("after %s: %v", time.Since(start), err)
			}
			close(release)
		})
	})
	t.Run("a second signal ends it at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{serve: make(chan error, 1)}
			release := make(chan struct{})
			f.shutdown = func(context.Context) error { <-release; f.serve <- nil; return nil }
			signals := make(chan os.Signal, 2)
			signals <- syscall.SIGTERM
			signals <- syscall.SIGTERM
			err := supervise(f, signals, quiet)
			if err == nil || !strings.Contains(err.Error(), "second signal (terminated)") {
				t.Errorf("error is %v", err)
			}
			close(release)
		})
	})
	t.Run("a failure is reported after the stores are closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{serve: make(chan error, 1)}
			f.serve <- broken
			f.shutdown = func(context.Context) error { return lost }
			err := supervise(f, nil, quiet)
			if !errors.Is(err, broken) || !errors.Is(err, lost) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v", err)
			}
		})
	})
}

// While stores and portals are opened signals work, too: the first one drains when all is open, and the second one, or the end of the time for
// draining, stops what a store that hangs does not let start.
func TestSignalsWhileOpening(t *testing.T) {
	for name, c := range map[string]struct {
		signals int
		hangs   bool
		after   time.Duration
		want    string // empty: it is open
	}{
		"no signal":                  {after: time.Hour},
		"three in one moment":        {signals: 3},
		"a signal":                   {signals: 1, after: drainTime - time.Second},
		"a second one":               {signals: 2, hangs: true, want: "stopped by a signal (interrupt)"},
		"a signal, and nothing more": {signals: 1, hangs: true, after: drainTime, want: "stopped by a signal (terminated)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals, release := make(chan os.Signal, 2), make(chan struct{})
				begun := time.Now()
				d, err := openUnless(func() (daemon, error) {
					for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGINT}[:c.signals] {
						signals <- s
					}
					if c.hangs {
						<-release
						return nil, nil
					}
					time.Sleep(c.after)
					return new(fake), nil
				}, signals)
				switch {
				case c.signals == 3 && err != nil: // the second one has been seen before it was seen that all is open
				case c.want == "" && (err != nil || d == nil || len(signals) != min(c.signals, 2)):
					t.Errorf("%v, %v; %d signals are left", d, err, len(signals))
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || time.Since(begun) != c.after:
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
				close(release)
			})
		})
	}
}

func TestServeDefault(t *testing.T) {
	refused := errors.New("refused")
	var got *config.Config
	t.Setenv(socketVariable, filepath.Join(t.TempDir(), "s.sock"))
	err := new(serving).serve(func(c *config.Config, _ *slog.Logger) (daemon, error) { got = c; return nil, refused }, io.Discard, io.Discard)
	if !errors.Is(err, refused) || got.Targets[0].Name != "iqn.2026-11.example.oneshot:demo" || got.Portals[0].Address() != "127.0.0.1:3260" {
		t.Errorf("error is %v, configuration %+v", err, got)
	}
}

func TestHints(t *testing.T) {
	addr := func(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }
	for _, c := range []struct {
		name, config string
		addrs        []net.Addr
		want         string
	}{
		{"plain", `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: a}}]
`, []net.Addr{addr("127.0.0.1:3260")}, `serving 1 target at 127.0.0.1:3260

Which targets there are
  iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260
  iscsi-ls -s iscsi://127.0.0.1:3260

iqn.2026-11.example.oneshot:demo
  iscsiadm -m node -T iqn.2026-11.example.oneshot:demo -p 127.0.0.1:3260 --login
  qemu-img info iscsi://127.0.0.1:3260/iqn.2026-11.example.oneshot:demo/0
  qemu-system-x86_64 -drive file=iscsi://127.0.0.1:3260/iqn.2026-11.example.oneshot:demo/0,format=raw,if=virtio
`},
		{"behind a translated address", `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: iqn.2026-11.example.oneshot:demo}]
portals: [{listen: "10.0.2.15", advertise: storage.example.com}]
`, []net.Addr{addr("10.0.2.15:3260")}, `serving 1 target at 10.0.2.15:3260

Which targets there are
  iscsiadm -m discovery -t sendtargets -p storage.example.com:3260
  iscsi-ls -s iscsi://storage.example.com:3260

iqn.2026-11.example.oneshot:demo
  iscsiadm -m node -T iqn.2026-11.example.oneshot:demo -p storage.example.com:3260 --login
`},
		{"secrets and limits", `
stores: {a: {type: memory, size: 1MiB}}
targets:
  - iqn: iqn.2026-11.example.oneshot:demo
    alias: the demo
    luns: {3: {store: a, readonly: true}}
    auth: {chap: {user: it's me, secret: do-not-show-this}, mutual: {user: t, secret: nor-show-this}}
    initiators: ["iqn.2026-11.example:*", eui.*]
  - {iqn: iqn.2026-11.example.oneshot:empty}
portals: [{listen: "[::]:0"}]
discovery: {auth: {chap: {user: d, secret: do-not-show-this}}}
`, []net.Addr{addr("[::]:4711")}, `serving 2 targets at [::]:4711

Which targets there are
  iscsiadm -m discoverydb -t sendtargets -p '[::1]:4711' -o new
  iscsiadm -m discoverydb -t sendtargets -p '[::1]:4711' -o update -n discovery.sendtargets.auth.authmethod -v CHAP -n discovery.sendtargets.auth.username -v d -n discovery.sendtargets.auth.password -v SECRET
  iscsiadm -m discoverydb -t sendtargets -p '[::1]:4711' --discover
  LIBISCSI_CHAP_USERNAME=d LIBISCSI_CHAP_PASSWORD=SECRET iscsi-ls -s 'iscsi://[::1]:4711'

the demo
  # only for initiators named iqn.2026-11.example:*, eui.*
  iscsiadm -m node -T iqn.2026-11.example.oneshot:demo -p '[::1]:4711' -o update -n node.session.auth.authmethod -v CHAP -n node.session.auth.username -v 'it'\''s me' -n node.session.auth.password -v SECRET -n node.session.auth.username_in -v t -n node.session.auth.password_in -v SECRET
  iscsiadm -m node -T iqn.2026-11.example.oneshot:demo -p '[::1]:4711' --login
  LIBISCSI_CHAP_USERNAME='it'\''s me' LIBISCSI_CHAP_PASSWORD=SECRET LIBISCSI_CHAP_TARGET_USERNAME=t LIBISCSI_CHAP_TARGET_PASSWORD=SECRET qemu-img info 'iscsi://[::1]:4711/iqn.2026-11.example.oneshot:demo/3'
  LIBISCSI_CHAP_USERNAME='it'\''s me' LIBISCSI_CHAP_PASSWORD=SECRET LIBISCSI_CHAP_TARGET_USERNAME=t LIBISCSI_CHAP_TARGET_PASSWORD=SECRET qemu-system-x86_64 -drive 'file=iscsi://[::1]:4711/iqn.2026-11.example.oneshot:demo/3,format=raw,if=virtio,readonly=on'

iqn.2026-11.example.oneshot:empty
  iscsiadm -m node -T iqn.2026-11.example.oneshot:empty -p '[::1]:4711' --login
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			parsed, err := config.Parse("x.yaml", []byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := writeHints(&b, parsed, c.addrs); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, b.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The command to paste for the status is one that the shell finds: the name of the program if that is in PATH, and
// otherwise the path by which it was called.
func TestTyped(t *testing.T) {
	here, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{here, other} {
		if err := os.WriteFile(filepath.Join(dir, "target"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	called := filepath.Join(here, "target")
	for path, want := range map[string]string{here: "target", other: called, t.TempDir(): called} {
		t.Setenv("PATH", path)
		if got := typed(called, "target"); got != want {
			t.Errorf("PATH=%s: %s, want %s", path, got, want)
		}
	}
}

// Without a configuration, hosts of NVMe have a disk, and a line to paste that connects to it.
func TestDefaultHintsForNVMe(t *testing.T) {
	var b strings.Builder
	var addrs []net.Addr
	for _, port := range []int{3260, 3261, 4420} {
		addrs = append(addrs, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	}
	if err := writeHints(&b, config.Default(), addrs); err != nil {
		t.Fatal(err)
	}
	if want := "  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-11.example.oneshot:demo\n"; !strings.Contains(b.String(), want) {
		t.Errorf("there is no %q in\n%s", want, b.String())
	}
}

// TestHintsAreBounded keeps a thousand targets from filling the terminal.
func TestHintsAreBounded(t *testing.T) {
	c := config.Default()
	for len(c.Targets) < 1000 {
		c.Targets = append(c.Targets, c.Targets[0])
	}
	var b strings.Builder
	addrs := []net.Addr{&net.TCPAddr{IP: net.IPv4(0, 0, 0, 0), Port: 3260}}
	if err := writeHints(&b, c, addrs); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "--login"); got != maxHints || !strings.HasSuffix(b.String(), "and 992 more targets; discovery lists them\n") {
		t.Errorf("%d targets and then %q", got, b.String()[b.Len()-60:])
	}
	if !strings.Contains(b.String(), "-p 127.0.0.1:3260") {
		t.Error("no address to connect to for 0.0.0.0")
	}
}

func TestLogger(t *testing.T) {
	for format, want := range map[config.LogFormat]string{
		config.LogText: `level=warning msg="disk full" store=disk1`,
		config.LogJSON: `"level":"warning","msg":"disk full","store":"disk1"`,
	} {
		var b strings.Builder
		log, _ := newLogger(config.Log{Level: slog.LevelInfo, Format: format}, &b)
		log.Debug("hidden")
		log.With("store", "disk1").Warn("disk full")
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "hidden") {
			t.Errorf("%s: %s", format, b.String())
		}
	}
}

// TestServeLogs: serve logs at the level, and in the form, of its configuration; a reload changes the level.
func TestServeLogs(t *testing.T) {
	write := func(path, options string) {
		t.Helper()
		text := "log: " + options + "\nstores: {a: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:t, luns: {0: a}}]\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for options, want := range map[string]string{
		"{}": "level=info msg=some", "{level: debug}": "level=debug msg=all", "{format: json}": `"level":"info","msg":"some"`, "{level: warn}": "",
	} {
		path := filepath.Join(t.TempDir(), "x.yaml")
		write(path, options)
		var b strings.Builder
		s := serving{path: path}
		enough := errors.New("enough was served")
		err := s.serve(func(_ *config.Config, log *slog.Logger) (daemon, error) {
			log.Debug("all")
			log.Info("some")
			return nil, enough
		}, io.Discard, &b)
		text := b.String()
		if err != enough || !strings.Contains(text, want) || strings.Contains(text, "all") != strings.Contains(want, "all") || want == "" && text != "" {
			t.Errorf("log: %s: %v, %q", options, err, text)
		}
	}
	path := filepath.Join(t.TempDir(), "x.yaml")
	write(path, "{level: debug}")
	var b strings.Builder
	log, setLevel := newLogger(config.Log{Level: slog.LevelWarn}, &b)
	r := newReloader(new(fake), &serving{path: path}, log, slog.LevelWarn, setLevel)
	if _, err := r.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log.Debug("all"); !strings.Contains(b.String(), "msg=all") {
		t.Errorf("after the level has become debug: %q", b.String())
	}
}

// TestLoggerThatIsOff shows that a debug line costs no memory when switched off.
func TestLoggerThatIsOff(t *testing.T) {
	log, _ := newLogger(config.Log{Level: slog.LevelInfo, Format: config.LogText}, io.Discard)
	n := testing.AllocsPerRun(100, func() {
		log.LogAttrs(context.Background(), slog.LevelDebug, "x", slog.Int("lun", 1), slog.String("initiator", "y"))
	})
	if n != 0 || log.Enabled(context.Background(), slog.LevelDebug) {
		t.Errorf("%v allocations", n)
	}
}
