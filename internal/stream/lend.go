package stream

import (
	"sync"
	"syscall"
	"time"
)

// turn says whose turn it is to read. Who waits for what the reader will find can read in its place (Await): then
// nothing comes by way of another goroutine, which has to be woken and has to wake him.
//
//	looks ◄──► rests       the goroutine in Read; a call of Await asks it to lend the socket
//	  │ ▲                  when it has found the socket empty, and nobody else waits
//	  │ └───────────┐
//	  └──► lent ◄──►│used  whoever is in Await
//	         └──────┘      nobody came for tick; or for tick nothing; or somebody else waits; or look said Pause or an error
type turn uint8

const (
	over turn = iota // Read is not called yet, or has returned
	looks
	rests // in the poller, or in a pause
	lent
	used
)

// tick bounds how long the socket is lent without being used, and how long Await takes, to twice as much. Tests change it.
var tick = time.Millisecond

// maxShy bounds how often the socket is not lent to who did not come the last times.
const maxShy = 63

// lending is what a Socket needs to be lent.
type lending struct {
	alone func() bool                                   // nil: it is not lent
	until interface{ SetReadDeadline(time.Time) error } // the connection
	look  func() (Round, error)
	guest func(uintptr) bool // Socket.visit as a value: Await allocates nothing

	mu      sync.Mutex // taken before the locks of alone
	changed sync.Cond  // the reader has looked, or it is another turn
	turn    turn
	asking  int  // calls of Await that wait for changed
	wanted  bool // Await was refused
	unused  bool // nobody has come since the socket was lent
	late    bool // the read deadline is over, so that Await returns
	uses    uint64
	seen    uint64 // uses at the last tick
	shy     int    // how often the socket is not lent although that is wanted
	lastShy int
	timer   *time.Timer // onTick
	round   Round       // the last of who is in Await
	own     error       // of look in Await, for Read
}

// Lend allows Await. alone reports whether nobody waits for what the reader finds but those in Await. c is the
// connection, and has read deadlines: if somebody else sets one, so that Read returns, look returns an error from then on.
// He, and who closes the connection, calls Resume, or it may take a tick until Read returns. Lend is called before Read.
func (s *Socket) Lend(c syscall.Conn, alone func() bool) {
	if s.until, _ = c.(interface{ SetReadDeadline(time.Time) error }); s.until == nil {
		return
	}
	s.alone, s.guest, s.changed.L = alone, s.visit, &s.mu
	s.timer = time.AfterFunc(time.Hour, s.onTick)
	s.timer.Stop()
}

// Await looks in place of the goroutine in Read, and returns when that may have found something, after two milliseconds
// in any case. False: it has not waited, because somebody else looks; the socket will be lent when it is empty and alone
// says so. If alone changes from true to false after that, Await is called once more. It is not called by look.
func (s *Socket) Await() bool {
	s.mu.Lock()
	switch s.turn {
	case lent:
	case looks: // it has found something, or is about to say that there is nothing
		s.wanted = true
		s.asking++
		s.changed.Wait()
		s.asking--
		found := s.turn == looks || s.turn == lent
		s.mu.Unlock()
		return found
	default:
		s.wanted = true
		s.mu.Unlock()
		return false
	}
	s.become(used)
	s.wanted, s.unused = false, false
	s.uses++
	s.mu.Unlock()
	outer := s.raw.Read(s.guest)
	s.mu.Lock()
	if s.become(lent); s.wanted || s.late || outer != nil || s.own != nil || s.round == Pause || !s.alone() {
		s.takeBack()
		s.Resume()
	}
	s.mu.Unlock()
	return true
}

// visit looks until something has come, and a few times more while there is more: who takes much at a time answers it at once.
func (s *Socket) visit(uintptr) (done bool) {
	for n := 1; ; n++ {
		s.round, s.own = s.look()
		if s.own != nil || s.round != More || n == fairness {
			return s.own != nil || s.round != Drained || n > 1
		}
	}
}

// become changes the turn. The lock is held.
func (s *Socket) become(t turn) {
	if s.turn = t; s.asking > 0 {
		s.changed.Broadcast()
	}
}

// turns is become, by the goroutine in Read.
func (s *Socket) turns(t turn) {
	if s.alone != nil {
		s.mu.Lock()
		s.become(t)
		s.mu.Unlock()
	}
}

// lends is called when the socket is empty, and reports whether it is to be lent.
func (s *Socket) lends() bool {
	if s.alone == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted && s.alone() {
		if s.shy == 0 {
			return true
		}
		s.shy--
		s.wanted = false
	}
	s.become(rests)
	return false
}

// lend lends the socket until it is the reader's turn again, and returns the error of look.
func (s *Socket) lend() error {
	s.mu.Lock()
	s.wanted, s.unused, s.seen = false, true, s.uses
	s.timer.Reset(tick)
	s.become(lent)
	for s.turn != looks {
		s.mu.Unlock()
		<-s.resume
		s.mu.Lock()
		if s.turn == lent { // Resume was called: there is something to look at
			s.takeBack()
		}
	}
	defer s.mu.Unlock()
	return s.own
}

// takeBack makes it the reader's turn. The lock is held.
func (s *Socket) takeBack() {
	if s.late {
		s.late = false
		_ = s.until.SetReadDeadline(time.Time{}) // fails if the connection is closed, which the reader will hear of
	}
	if s.lastShy = 0; s.unused {
		s.lastShy = min(2*s.lastShy+1, maxShy)
	}
	s.shy, s.wanted = s.lastShy, false
	s.become(looks)
}

// onTick takes the socket back if it was not used since the last tick, or if who uses it has found nothing.
func (s *Socket) onTick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.turn != lent && s.turn != used:
	case s.seen != s.uses:
		s.seen = s.uses
		s.timer.Reset(tick)
	case s.turn == lent:
		s.takeBack()
		s.Resume()
	default:
		s.late = true
		_ = s.until.SetReadDeadline(time.Unix(1, 0))
	}
}
