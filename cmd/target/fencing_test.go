//go:build !race

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMirrorFencing: who takes over from a lost node runs the command of that node, beside the takeover: hosts go on though the command does not end. It
// does not run at a switch, and ends with the daemon.
func TestMirrorFencing(t *testing.T) {
	s := newSiteOf(t, mirrorText)
	fenced := filepath.Join(s.dir, "fenced")
	for i, name := range []string{"a", "b"} {
		at := fmt.Sprintf("%s: {address: %q", name, s.at[i])
		command := fmt.Sprintf(`["/bin/sh", "-c", "echo $$ $ONESHOT_NODE $ONESHOT_MIRROR $0 >> %s; exec sleep 1000", "by-%s"]`, fenced, name)
		s.text = strings.Replace(s.text, at, at+", fence: "+command, 1)
	}
	for _, name := range []string{"a", "b", "w"} {
		s.write(name, s.text)
	}
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l := newLoad(t, newMultipath(ctx, s))
	l.more(50)
	s.servedBy("b")
	s.servedBy("a")
	b, err := os.ReadFile(fenced)
	if takeovers := strings.Count(s.told("a")+s.told("b"), "this node has taken over"); !os.IsNotExist(err) && takeovers < 2 { // on a busy machine there may be others
		t.Errorf("after planned switches nodes were fenced: %s, %v", b, err)
	}
	lost := s.loses(s.kill, func(name string) { s.start(name) })
	l.more(50)
	pid := s.wasFenced(fenced, lost, l)
	s.start(lost)
	s.level("w")
	l.end()
	s.stop(other(lost))
	if _, err := os.Stat(fmt.Sprint("/proc/", pid)); !os.IsNotExist(err) {
		t.Errorf("the command runs still, and the daemon has ended: %v", err)
	}
	s.stop(lost)
	s.stop("w")
}

// wasFenced waits until a node was fenced, while hosts go on, and returns the process of the command.
func (s *site) wasFenced(path, node string, l *load) (pid int) {
	s.t.Helper()
	want := " " + node + " disk by-" + node + "\n"
	for {
		b, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) || s.t.Context().Err() != nil {
			s.t.Fatalf("%s is not fenced: %s, %v", node, b, err)
		}
		for line := range strings.Lines(string(b)) {
			if text, ok := strings.CutSuffix(line, want); ok {
				if pid, err = strconv.Atoi(text); err != nil {
					s.t.Fatal(err)
				}
			}
		}
		if pid != 0 {
			return pid
		}
		l.more(1)
	}
}
