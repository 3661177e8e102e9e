package vm

import (
	"strings"
	"testing"
	"time"

	"oneshot/test/vm/machine"
)

// runTime is a limit that only a hung machine reaches.
const runTime = 10 * time.Minute

// guestMachine is a machine that fails the test if it does not do what it should.
type guestMachine struct{ *machine.Machine }

// command is one that runs in the guest.
type command struct{ *machine.Command }

// start begins a command in the guest.
func (m *guestMachine) start(t *testing.T, argv ...string) *command {
	t.Helper()
	c, err := m.Start(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return &command{c}
}

// wait returns the rest of the output, and the exit status.
func (c *command) wait(t *testing.T, m *guestMachine) (string, int) {
	t.Helper()
	out, err := c.Wait(runTime)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, m.asleep(), m.Log())
	}
	return out, c.Exit
}

// asleep says what the guest waits for: what is under way at its disks, and where in the kernel each thread of a
// program sleeps.
func (m *guestMachine) asleep() string {
	c, err := m.Start("bash", "-c", `
shopt -s nullglob
for d in /sys/block/*; do read r w <$d/inflight; [ "$r $w" = "0 0" ] || echo "$d: $r reads and $w writes under way"; done
for t in /proc/[0-9]*/task/*; do
	read -d "" program <$t/cmdline; [ -n "$program" ] && [ "$program" != /init ] && s=$(<$t/stack) && [ -n "$s" ] && echo "$t $program" && echo "$s"
done`)
	if err != nil {
		return err.Error()
	}
	out, err := c.Wait(runTime)
	if err != nil {
		return err.Error()
	}
	return out
}

// run runs a command in the guest that has to succeed.
func (m *guestMachine) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, exit := m.start(t, argv...).wait(t, m)
	if exit != 0 {
		t.Fatalf("%s: exit %d\n%s\n%s", strings.Join(argv, " "), exit, out, m.Log())
	}
	return out
}

// fails runs a command in the guest that must not succeed.
func (m *guestMachine) fails(t *testing.T, argv ...string) string {
	t.Helper()
	out, exit := m.start(t, argv...).wait(t, m)
	if exit == 0 {
		t.Fatalf("%s succeeded\n%s", strings.Join(argv, " "), out)
	}
	return out
}

// await looks until what it looks for is there, of which nobody tells it, and reports whether it came. The
// guest has the processors between two looks, which become rarer: for most the guest has to run a program.
func await(there func() bool) bool {
	const first, last = 50 * time.Millisecond, 800 * time.Millisecond
	over := time.After(runTime)
	for pause := first; !there(); pause = min(2*pause, last) {
		select {
		case <-time.After(pause):
		case <-over:
			return false
		}
	}
	return true
}
