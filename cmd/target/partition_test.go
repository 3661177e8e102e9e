package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/internal/doctest"
	"oneshot/mgmt"
)

// The tour of docs/partitions.md can be taken: its commands succeed in their order, and show what the page shows.
func TestPartitionTour(t *testing.T) {
	root := doctest.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "docs/partitions.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := doctest.Parse(string(text))
	dir := t.TempDir()
	t.Setenv(socketVariable, filepath.Join(dir, "target.sock"))
	var d daemon
	shown := ""
	commands := 0
	for _, b := range page.Blocks {
		switch b.Language {
		case "yaml":
			c, err := config.Parse(filepath.Join(dir, "target.yaml"), []byte(strings.Replace(b.Text, "127.0.0.1:3260", "127.0.0.1:0", 1)))
			if err != nil {
				t.Fatal(err)
			}
			if d == nil {
				d = serveTour(t, c)
				continue
			}
			c.Portals, c.Management = nil, config.Management{} // the page shows a part
			if _, err := d.ApplyFor(t.Context(), c); err != nil {
				t.Errorf("%s:%d: %v", "docs/partitions.md", b.Line, err)
			}
		case "text":
			if b.Text != shown {
				t.Errorf("the page shows\n%s\nand the command\n%s", b.Text, shown)
			}
		case "":
			for line := range strings.Lines(b.Text) {
				var out, problems bytes.Buffer
				commands++
				if run("target", strings.Fields(line)[1:], &out, &problems) != exitOK {
					t.Errorf("%s%s", line, problems.String())
				}
				shown = out.String()
			}
		}
	}
	if commands < 8 {
		t.Errorf("the tour has %d commands", commands)
	}
}

// serveTour serves a configuration until the test ends.
func serveTour(t *testing.T, c *config.Config) daemon {
	t.Helper()
	log, _ := newLogger(c.Log, new(bytes.Buffer))
	d, err := openServer(c, log)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve() }()
	t.Cleanup(func() {
		if err := d.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestParseCache(t *testing.T) {
	for text, want := range map[string]mgmt.PartitionCache{"200ms": {WriteMS: 200}, "1s": {WriteMS: 1000}, "24h": {WriteMS: 86400000}, "off": {}, "none": {Write: "none"}} {
		if c, err := parseCache(text); err != nil || *c != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "0", "1ms", "25h", "5", "1500us", "NONE", "-5ms"} {
		if c, err := parseCache(text); err == nil {
			t.Errorf("%s is %+v", text, c)
		}
	}
}

// A partition that is to begin where the table is makes no sense. In the API the offset 0 means where it fits.
func TestPartitionAtTheTable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(socketVariable, filepath.Join(dir, "target.sock"))
	c, err := config.Parse(filepath.Join(dir, "target.yaml"), []byte(`
stores: {disk1: {type: memory, size: 16MiB, partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:demo"}]
portals: [{listen: "127.0.0.1:0"}]
management: {socket: target.sock}
`))
	if err != nil {
		t.Fatal(err)
	}
	serveTour(t, c)
	var out, problems bytes.Buffer
	if status := run("target", strings.Fields("partition create disk1/log --size 1MiB --offset 0"), &out, &problems); status != exitUsage || !strings.Contains(problems.String(), "begins at 1MiB or later") {
		t.Errorf("status %d, %s%s", status, &out, &problems)
	}
}
