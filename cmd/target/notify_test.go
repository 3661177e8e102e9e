package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/mgmt"
)

// systemd listens in the place of systemd; receive returns the next message.
func systemd(t *testing.T) (receive func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		b := make([]byte, 1024)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// A reload is announced with the time of the monotonic clock, and ends with READY, whether it
// succeeded or not.
func TestReloadNotifies(t *testing.T) {
	receive := systemd(t)
	path := filepath.Join(t.TempDir(), "t.yaml")
	text := "stores: {a: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: a}}]\nlog: {level: debug}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	f := &fake{applied: mgmt.Reload{Done: []string{"this"}, Pending: []string{"that"}}}
	level := slog.LevelInfo
	r := newReloader(f, &serving{path: path}, slog.New(slog.NewTextHandler(&log, nil)), level, func(l slog.Level) { level = l })
	check := func(what string, ready string) {
		t.Helper()
		if got := receive(); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[0-9]+$`).MatchString(got) {
			t.Errorf("%s begins with %q", what, got)
		}
		if got := receive(); !strings.HasPrefix(got, "READY=1\nSTATUS=") || !strings.Contains(got, ready) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s ends with %q", what, got)
		}
	}
	done, err := r.reload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := "[this log.level is debug, was info]"; fmt.Sprint(done.Done) != want {
		t.Errorf("done %s, want %s", done.Done, want)
	}
	if done, err := r.reload(t.Context()); err != nil || fmt.Sprint(done.Done) != "[this]" {
		t.Errorf("a second time: %v, %v", done.Done, err)
	}
	check("a reload", "serving")
	check("a second one", "serving")
	if level != slog.LevelDebug || !strings.Contains(log.String(), "msg=changed what=this") || !strings.Contains(log.String(), `msg="not changed" what=that`) {
		t.Errorf("level %v, log %s", level, log.String())
	}

	f.refused = errors.Join(errors.New("one"), errors.New("two"))
	if _, err := r.reload(t.Context()); err == nil {
		t.Error("what cannot be applied was")
	}
	check("a reload that is refused", "one; two")

	if err := os.WriteFile(path, []byte("stores: 5\nx: 6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.reload(t.Context()); err == nil {
		t.Error("a broken file was read")
	}
	check("a broken file", "more problem")

	r.serving.path = ""
	if _, err := r.reload(t.Context()); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("without a file: %v", err)
	}
	check("without a file", "built-in")
}

func TestWatchdogInterval(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{{"", "", 0}, {"x", "", 0}, {"30000000", "", 15 * time.Second}, {"30000000", "1", 0}} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := watchdogInterval(); got != c.want {
			t.Errorf("%q %q: %v", c.usec, c.pid, got)
		}
	}
}

// systemd gets messages only while health returns.
func TestWatchdog(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	synctest.Test(t, func(t *testing.T) {
		f, stop, ended := new(fake), make(chan struct{}), make(chan struct{})
		go func() { watchdog(time.Second, f.Health, stop); close(ended) }()
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		close(stop)
		<-ended
		if f.asked != 11 {
			t.Errorf("asked %d times in 10 s", f.asked)
		}
		watchdog(0, nil, nil) // not asked for
	})
}
