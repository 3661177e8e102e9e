// Package storm tests the daemon with hostile and broken initiators. Meanwhile a witness writes and reads
// back, and notices if it is disturbed.
package storm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/mgmt"
	"oneshot/test/attack"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const iqn = "iqn.2026-11.example.oneshot:"

// patience is how long an expected event may take, on a machine with other load.
const patience = 2 * time.Minute

// daemon is the daemon, with a client of its management API.
type daemon struct {
	*targettest.Target
	t     *testing.T
	admin *mgmt.Client
	text  string // of the configuration
}

func start(t *testing.T, config string) *daemon {
	t.Helper()
	return watched(t, targettest.Start(t, config))
}

// watched returns the daemon of a target that runs.
func watched(t *testing.T, g *targettest.Target) *daemon {
	t.Helper()
	d := &daemon{Target: g, t: t}
	text, err := os.ReadFile(d.configPath())
	if err != nil {
		t.Fatal(err)
	}
	d.text = string(text)
	d.admin = mgmt.NewClient(filepath.Join(d.Dir, "socket"))
	t.Cleanup(d.admin.Close)
	return d
}

func (d *daemon) configPath() string { return filepath.Join(d.Dir, "target.yaml") }

// reload replaces old by new in the configuration, and makes the daemon read it again.
func (d *daemon) reload(old, new string) error {
	d.t.Helper()
	if !strings.Contains(d.text, old) {
		d.t.Fatalf("the configuration has no %q", old)
	}
	if err := os.WriteFile(d.configPath(), []byte(strings.Replace(d.text, old, new, 1)), 0o600); err != nil {
		d.t.Fatal(err)
	}
	_, err := d.admin.Reload(d.t.Context())
	return err
}

func (d *daemon) status() *mgmt.Status {
	d.t.Helper()
	s, err := d.admin.Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// descriptors returns how many descriptors the daemon has open.
func (d *daemon) descriptors() int {
	d.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(open)
}

// resident returns the resident memory of the daemon in bytes.
func (d *daemon) resident() int64 {
	d.t.Helper()
	return attack.Resident(d.t, d.PID())
}

// bounded does an attack on the daemon, which may cost that many MiB at most.
func (d *daemon) bounded(name string, most int64, f func()) {
	d.t.Helper()
	attack.Bounded(d.t, d.PID(), name, most, f)
}

// until polls until the condition holds, because the daemon does not report it.
func (d *daemon) until(what string, holds func() bool) {
	d.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-over:
			d.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// logged returns how many lines of the log contain text.
func (d *daemon) logged(text string) int { return strings.Count(d.Log(), text) }

func (d *daemon) login(target string, chap *initiator.Credentials) (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	return initiator.Dial(ctx, initiator.URL{Address: d.Portal(), Target: iqn + target, LUN: -1, CHAP: chap}, initiator.Options{})
}

// watch starts a witness on both LUNs of target t. The test fails if its session ends, or if it reads
// other bytes than it wrote.
func (d *daemon) watch() *attack.Witness {
	d.t.Helper()
	s, err := d.login("t", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.witness(s)
}

// witness is watch over an existing session.
func (d *daemon) witness(s *initiator.Session) *attack.Witness {
	d.t.Helper()
	var disks []attack.Disk
	for lun := range 2 {
		lu, err := s.LU(d.t.Context(), lun)
		if err != nil {
			d.t.Fatal(err)
		}
		disks = append(disks, lu)
	}
	return attack.Watch(d.t, attack.Often, disks, s.Close)
}

// atLength is for tests of how much memory the daemon takes, which the race detector multiplies: short runs, which it watches,
// leave them out.
func atLength(t *testing.T) {
	if testing.Short() {
		t.Skip("not in short runs")
	}
}
