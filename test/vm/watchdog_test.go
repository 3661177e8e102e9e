package vm

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/test/vm/machine"
)

// TestWatchdog: a machine whose keeper runs, or has ended in good order, goes on; one whose keeper hangs is reset by its watchdog.
func TestWatchdog(t *testing.T) {
	m, err := machine.Boot(guestImage, t.TempDir(), "-device", "i6300esb", "-action", "watchdog=reset")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	g := &guestMachine{m}
	const config = `cluster: {name: lab, state: /s, keeper: {socket: /k.sock, watchdog: /dev/watchdog0}, nodes: {a: {address: 10.1.0.1}}}`
	g.run(t, "@write", "/t.yaml", config)
	begin := func() *command {
		t.Helper()
		k := g.start(t, "target", "keeper", "--config", "/t.yaml")
		for line := range k.Lines {
			if strings.HasPrefix(line, "holding ") {
				return k
			}
			t.Log(line)
		}
		t.Fatalf("the keeper ends with %d", k.Exit)
		return nil
	}
	goesOn := func() { // for longer than the watchdog waits
		t.Helper()
		g.run(t, "bash", "-c", `coproc { read; }; ! read -t 15 -u "${COPROC[0]}" && ((SECONDS >= 15))`)
	}
	k := begin()
	goesOn()
	g.run(t, "@signal", "target", strconv.Itoa(int(syscall.SIGTERM)))
	if out, exit := k.wait(t, g); exit != 0 {
		t.Errorf("the keeper ends with %d: %s", exit, out)
	}
	goesOn()
	begin()
	g.run(t, "@signal", "target", strconv.Itoa(int(syscall.SIGSTOP)))
	select {
	case <-m.Ended():
	case <-time.After(runTime):
		t.Error("the machine was not reset")
	}
}
