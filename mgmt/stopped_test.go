package mgmt

import (
	"context"
	"fmt"
	"net"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// socketToStopAt names the socket at which a second process of this test listens before it stops itself.
const socketToStopAt = "ONESHOT_TEST_SOCKET"

// TestClientNamesWhoIsStopped: of a daemon that was stopped, whose socket the kernel still connects to, the client says that,
// which process it is and how it goes on.
func TestClientNamesWhoIsStopped(t *testing.T) {
	if path := os.Getenv(socketToStopAt); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		return
	}
	path := filepath.Join(t.TempDir(), "s")
	daemon := exec.Command(os.Args[0], "-test.run=^TestClientNamesWhoIsStopped$")
	daemon.Env = append(os.Environ(), socketToStopAt+"="+path)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = daemon.Process.Kill(), daemon.Wait() }()
	var status unix.WaitStatus
	if _, err := unix.Wait4(daemon.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the daemon did not stop: %v, %#x", err, status)
	}
	c := NewClient(path)
	defer c.Close()
	c.patient = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		asked := func(httptrace.WroteRequestInfo) { cancel(errSilent) } // the daemon has had time
		return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: asked}), func() { cancel(nil) }
	}
	want := fmt.Sprintf("process %d, is stopped (SIGSTOP, or a debugger): kill -CONT %[1]d has it go on", daemon.Process.Pid)
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
