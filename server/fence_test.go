package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ha/replica"
)

// TestLost: a node is lost if the next primary has taken over without it, and only then.
func TestLost(t *testing.T) {
	all := replica.Nodes(0).With(1).With(2)
	state := func(role replica.Role, primary replica.ID, inSync replica.Nodes, planned bool) replica.State {
		return replica.State{Role: role, View: replica.View{Version: 1, Term: uint64(primary), Primary: primary, InSync: inSync, Planned: planned}}
	}
	follows, stands := state(replica.Follower, 1, all, false), state(replica.Candidate, 1, all, false)
	later := state(replica.Primary, 2, all.Without(1), false)
	later.View.Term++
	for _, c := range []struct {
		what   string
		states []replica.State
		want   replica.ID
	}{
		{"the primary is lost", []replica.State{follows, stands, state(replica.Primary, 2, all.Without(1), false)}, 1},
		{"the same, and this node has just begun", []replica.State{stands, state(replica.Primary, 2, all.Without(1), false)}, 1},
		{"it has promised", []replica.State{follows, stands, state(replica.Primary, 2, all, false)}, 0},
		{"it has handed over", []replica.State{follows, state(replica.Primary, 2, all.Without(1), true)}, 0},
		{"there was none", []replica.State{state(replica.Candidate, 0, 0, false), state(replica.Primary, 2, all.Without(1), false)}, 0},
		{"between the two another one was in the office, and that was missed", []replica.State{follows, later}, 0},
		{"this one was it", []replica.State{state(replica.Follower, 2, all, false), state(replica.Primary, 2, all.Without(1), false)}, 0},
		{"a copy is lost", []replica.State{state(replica.Primary, 2, all, false), state(replica.Primary, 2, all.Without(1), false)}, 0},
	} {
		past, got := successions{self: 2}, replica.ID(0)
		for _, s := range c.states {
			got = max(got, past.lost(s))
		}
		if got != c.want {
			t.Errorf("%s: node %d is lost, want %d", c.what, got, c.want)
		}
	}
}

// TestRunFence: a command has the words that it was given, and no secrets of the daemon; one that does not end is ended, with the processes that it
// has begun.
func TestRunFence(t *testing.T) {
	t.Setenv("ONESHOT_TEST_SECRET", "secret")
	says, err := runFence(t.Context(), time.Minute, []string{"/bin/sh", "-c", `echo "$0 $ONESHOT_NODE:$ONESHOT_TEST_SECRET"; exit 3`, "word"}, "ONESHOT_NODE=a")
	if err == nil || says != "word a:" {
		t.Errorf("it says %q, and ends with %v", says, err)
	}
	says, err = runFence(t.Context(), time.Minute, []string{"/bin/sh", "-c", "yes | head -c 100000; echo end"})
	if err != nil || len(says) > fenceWords || !strings.HasSuffix(says, "end") {
		t.Errorf("of a long output %d bytes are left, error %v", len(says), err)
	}
	for _, how := range []string{"limit", "end of the daemon"} {
		pid := filepath.Join(t.TempDir(), "pid") // whoever reads it waits for who writes it
		if err := unix.Mkfifo(pid, 0o600); err != nil {
			t.Fatal(err)
		}
		begun := make(chan struct{})
		var child int
		go func() {
			defer close(begun)
			b, err := os.ReadFile(pid)
			if child, _ = strconv.Atoi(strings.TrimSpace(string(b))); child == 0 {
				t.Errorf("the command says %q: %v", b, err)
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		limit := time.Hour
		if how == "limit" {
			limit = time.Second
		}
		done := make(chan error, 1)
		// The limit may pass before the command has begun: then it is tried again, with more time.
		go func() {
			for {
				_, err := runFence(ctx, limit, []string{"/bin/sh", "-c", `sleep 1000 & echo $! > "$0"; wait`, pid})
				select {
				case <-begun:
					done <- err
					return
				default:
				}
				limit *= 2
			}
		}()
		<-begun
		if how != "limit" {
			cancel()
		}
		if err := <-done; err == nil || errors.Is(err, context.DeadlineExceeded) != (how == "limit") {
			t.Errorf("%s: it ends with %v", how, err)
		}
		awaitExit(t, child)
		cancel()
	}
}

// awaitExit waits until a process runs no more. Nobody may have waited for it yet.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	for err == nil {
		var n int
		if n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n == 1 {
			err = unix.Close(fd)
			break
		}
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
	}
	if err != nil {
		t.Error(err)
	}
}
