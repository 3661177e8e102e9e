package server

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
)

// A portal whose device is missing says so in one line, and the others serve.
func TestPortalWithoutDevice(t *testing.T) {
	var log bytes.Buffer
	s, err := New(parse(t, `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals:
  - {transport: verbs, listen: "127.0.0.1:24107", device: nosuch0}
  - {transport: tcp, listen: "127.0.0.1:0"}
`), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(); err != nil {
			t.Error(err)
		}
	})
	if got := s.portals[0].Addr().String(); got != "127.0.0.1:24107" {
		t.Errorf("the portal without device is at %s", got)
	}
	c, err := net.Dial("tcp", s.portals[1].Addr().String())
	if err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "device=nosuch0") {
		t.Errorf("%d errors in the log, want one about nosuch0:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "transport=verbs address=127.0.0.1:24107\n") {
		t.Errorf("the log says that the portal is open:\n%s", log.String())
	}
}

// lines is a log whose lines can be waited for.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// A portal of the kernel's devices that takes over an address listens when the old one is closed, and at once.
func TestPortalOfDeviceIsReplaced(t *testing.T) {
	text := func(device string) string {
		return `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals:
  - {transport: verbs, listen: "127.0.0.1:24108", device: ` + device + `}
`
	}
	log := make(lines, 100)
	s, err := New(parse(t, text("nosuch0")), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(); err != nil {
			t.Error(err)
		}
	})
	for line := range log {
		if strings.Contains(line, "device=nosuch0") {
			break
		}
	}
	if _, err := s.Apply(parse(t, text("nosuch1"))); err != nil {
		t.Fatal(err)
	}
	for line := range log {
		if strings.Contains(line, "device=nosuch1") {
			break
		}
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
