package targettest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FullPipe returns the writing end of a pipe that is full, and that nobody reads: who writes there waits. It is closed when the test ends.
func FullPipe(tb testing.TB) *os.File {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	fd := int(w.Fd()) // which makes it one on which writes wait
	for err = unix.SetNonblock(fd, true); err == nil; {
		_, err = unix.Write(fd, make([]byte, 1))
	}
	if err != unix.EAGAIN {
		tb.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		tb.Fatal(err)
	}
	return w
}
