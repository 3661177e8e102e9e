package loglimit

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOutlet: who logs does not wait for who reads. What is read is in order, and says how many lines are missing.
func TestOutlet(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if c, err := w.SyscallConn(); err != nil {
		t.Fatal(err)
	} else if err := c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 4096) }); err != nil {
		t.Fatal(err)
	}
	o := NewOutlet(w)
	o.missing = func(n int) { fmt.Fprintf(o, "missing %d\n", n) }
	const lines = 10000
	for i := range lines {
		if _, err := fmt.Fprintf(o, "line %d %s\n", i, strings.Repeat("x", 80)); err != nil {
			t.Fatal(err)
		}
	}
	in := bufio.NewReader(r)
	next := func() (word string, n int) {
		t.Helper()
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(line, &word, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return word, n
	}
	came, missing, last := 0, 0, -1
	for came+missing < lines || missing == 0 {
		word, n := next()
		if word == "missing" {
			missing += n
			continue
		}
		if n <= last {
			t.Fatalf("line %d comes behind line %d", n, last)
		}
		last = n
		came++
	}
	if came+missing != lines || came*100 < MaxWaiting {
		t.Errorf("%d lines have come, and %d are said to be missing", came, missing)
	}
	o.Flush(time.Hour)
	for i := range 10 { // each is there when it was written
		fmt.Fprintf(o, "line %d\n", lines+i)
		if word, n := next(); word != "line" || n != lines+i {
			t.Errorf("%s %d, want line %d", word, n, lines+i)
		}
	}
	_ = r.Close() // nobody is left
	for range 10 {
		fmt.Fprintf(o, "%s\n", strings.Repeat("x", 1<<13))
	}
	o.Flush(time.Hour)
	if _, err := fmt.Fprintf(o, "x\n"); err == nil {
		t.Error("nobody reads, and nobody says so")
	}
}
