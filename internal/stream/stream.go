// Package stream is for programs that drive a non-blocking socket with their own system calls. One
// goroutine reads, parked in Go's poller while nothing comes, or lets who waits for what comes read in its place.
// Another one waits for room to write; most connections never need it.
package stream

import (
	"runtime"
	"sync"
	"syscall"
)

// Round is what one look at a socket came to.
type Round uint8

const (
	More    Round = iota // there may be more to read
	Some                 // what had come is read; more, or the end, may have come since
	Drained              // the socket was empty
	Pause                // nothing is to be read until Resume is called
)

// fairness is the number of looks in a row after which a reader yields the thread, and looks whether its time is over.
const fairness = 8

// Socket is a stream socket. It does not own the connection.
type Socket struct {
	// FD is the descriptor. It stays open until the connection is closed.
	FD int

	raw    syscall.RawConn
	resume chan struct{} // wakes a reader that pauses; capacity 1

	write func() bool
	done  func(error)
	room  chan struct{} // wakes the goroutine that waits for room; capacity 1; nil: not started
	wg    sync.WaitGroup

	lending
}

// Open returns the socket of c.
func Open(c syscall.Conn) (*Socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Socket{raw: raw, FD: -1, resume: make(chan struct{}, 1)}
	if err := raw.Control(func(fd uintptr) { s.FD = int(fd) }); err != nil {
		return nil, err
	}
	return s, nil
}

// Read calls look in this goroutine whenever something may have come, until look returns an error,
// which is own, or waiting fails with outer: the connection was closed, or its deadline is over.
// Look reads until it has seen the socket empty: only then does it say Drained, for the poller is
// edge-triggered. Read stays inside one RawConn.Read as long as nobody pauses and there is not always more: that call parks
// the goroutine, and wakes it for every arrival. It looks at the deadline only when it begins, and before it parks.
func (s *Socket) Read(look func() (Round, error)) (own, outer error) {
	lends, again := false, false
	onReadable := func(uintptr) (done bool) {
		s.turns(looks)
		for n := 1; ; n++ {
			var r Round
			switch r, own = look(); {
			case own != nil || r == Pause:
				return true
			case r == Drained:
				lends = s.lends()
				return lends
			case n == fairness:
				runtime.Gosched()
				again = true
				return true
			}
			s.turns(looks) // still: who asks may go and see what was found
		}
	}
	s.look = look
	defer s.turns(over)
	for {
		outer = s.raw.Read(onReadable)
		switch {
		case own != nil || outer != nil:
		case again:
			again = false
		case lends:
			lends = false
			own = s.lend()
		default:
			s.turns(rests)
			<-s.resume
		}
		if own != nil || outer != nil {
			return own, outer
		}
	}
}

// Resume has a reader that pauses, or is about to, look again. It may wake it for nothing.
func (s *Socket) Resume() {
	select {
	case s.resume <- struct{}{}:
	default:
	}
}

// OnRoom says what AwaitRoom calls.
func (s *Socket) OnRoom(write func() bool, done func(error)) { s.write, s.done = write, done }

// AwaitRoom has another goroutine call write whenever the socket may have room, first at once,
// until write returns true: it has found the socket full whenever it returns false. Then, or if
// waiting fails, with the error, it calls done. AwaitRoom is not called again before write has
// returned true, nor by two goroutines at once, nor after waiting has failed.
func (s *Socket) AwaitRoom() {
	if s.room == nil {
		s.room = make(chan struct{}, 1)
		s.wg.Go(func() { s.writer(s.room) })
	}
	s.room <- struct{}{} // it has room: the goroutine has taken the last one
}

func (s *Socket) writer(room <-chan struct{}) {
	onWritable := func(uintptr) bool { return s.write() }
	for range room {
		s.done(s.raw.Write(onWritable))
	}
}

// Awaits reports whether there is a goroutine that waits for room, now or later. AwaitRoom must not
// be called meanwhile.
func (s *Socket) Awaits() bool { return s.room != nil }

// Close waits for the goroutine that waits for room to end. AwaitRoom is not called any more, and a
// deadline or the end of the connection ends its waiting.
func (s *Socket) Close() {
	if s.room != nil {
		close(s.room)
		s.wg.Wait()
	}
}
