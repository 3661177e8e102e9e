package stream

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two ends of a stream.
func pair(t *testing.T) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// look reads once and hands what came to take.
func look(s *Socket, take func([]byte) Round) func() (Round, error) {
	return func() (Round, error) {
		var b [16]byte
		n, err := unix.Read(s.FD, b[:])
		switch {
		case err == unix.EAGAIN:
			return Drained, nil
		case err != nil:
			return More, err
		case n == 0:
			return More, errEnd
		}
		return take(b[:n]), nil
	}
}

var errEnd = errors.New("the end")

// A reader sees every arrival, pauses when it says so, goes on when it is resumed, and returns its
// own error.
func TestRead(t *testing.T) {
	c, peer := pair(t)
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan string)
	done := make(chan error)
	go func() {
		own, outer := s.Read(look(s, func(b []byte) Round {
			came <- string(b)
			if b[len(b)-1] == '!' {
				return Pause
			}
			return More
		}))
		if outer != nil {
			own = outer
		}
		done <- own
	}()
	for _, text := range []string{"one", "two", "three!"} {
		if _, err := peer.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := <-came; got != text {
			t.Fatalf("%q, want %q", got, text)
		}
	}
	if _, err := peer.Write([]byte("four")); err != nil {
		t.Fatal(err)
	}
	s.Resume()
	s.Resume() // once too often
	if got := <-came; got != "four" {
		t.Fatalf("%q after the pause", got)
	}
	peer.Close()
	if err := <-done; err != errEnd {
		t.Errorf("%v", err)
	}
}

// A deadline, or the end of the connection, ends a reader that is parked.
func TestReadOver(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"deadline": func(c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) },
		"close":    func(c net.Conn) { _ = c.Close() },
	} {
		c, _ := pair(t)
		s, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		parked := make(chan struct{}, 1)
		done := make(chan [2]error)
		go func() {
			own, outer := s.Read(func() (Round, error) {
				select {
				case parked <- struct{}{}:
				default:
				}
				return Drained, nil
			})
			done <- [2]error{own, outer}
		}()
		<-parked
		end(c)
		if errs := <-done; errs[0] != nil || errs[1] == nil {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// All bytes arrive in order through a socket that is full again and again.
func TestAwaitRoom(t *testing.T) {
	c, peer := pair(t)
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, 4<<20)
	for i := range rest {
		rest[i] = byte(i >> 8)
	}
	want := len(rest)
	full := make(chan struct{}, 1)
	sent, over := make(chan struct{}), make(chan error, 1)
	write := func() bool {
		for len(rest) > 0 {
			n, err := unix.Write(s.FD, rest)
			if err != nil {
				select {
				case full <- struct{}{}:
				default:
				}
				return false
			}
			rest = rest[n:]
		}
		close(sent)
		return true
	}
	s.OnRoom(write, func(err error) { over <- err })
	s.AwaitRoom()
	if !s.Awaits() {
		t.Error("nobody waits")
	}
	<-full // nobody reads yet
	buf := make([]byte, 64<<10)
	for got := 0; got < want; {
		n, err := peer.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range buf[:n] {
			if b != byte((got+i)>>8) {
				t.Fatalf("octet %d is %d", got+i, b)
			}
		}
		got += n
	}
	<-sent
	if err := <-over; err != nil {
		t.Error(err)
	}
	s.Close()
}

// Who waits for room is told when there will never be any.
func TestAwaitRoomOver(t *testing.T) {
	c, _ := pair(t)
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{}, 1)
	over := make(chan error, 1)
	s.OnRoom(func() bool {
		select {
		case waits <- struct{}{}:
		default:
		}
		return false
	}, func(err error) { over <- err })
	s.AwaitRoom()
	<-waits
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	if err := <-over; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	s.Close()
}

// A deadline ends a reader that is never parked, because its peer always sends more.
func TestReadOverWithoutPause(t *testing.T) {
	c, _ := pair(t)
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	own, outer := s.Read(func() (Round, error) {
		switch n++; n {
		case 1:
			_ = c.SetReadDeadline(time.Unix(1, 0))
		case 1000:
			return More, errEnd
		}
		return More, nil
	})
	if own != nil || !errors.Is(outer, os.ErrDeadlineExceeded) {
		t.Errorf("after %d looks: %v, %v", n, own, outer)
	}
}
