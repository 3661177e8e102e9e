package stream

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func init() { tick = time.Hour } // tests call onTick

// lender is a socket that is read and may be lent.
type lender struct {
	*Socket
	t      *testing.T
	c      *net.UnixConn
	peer   *net.UnixConn
	came   chan string   // what look has found
	waited atomic.Bool   // somebody else waits
	over   chan struct{} // Read has returned
	own    error
	outer  error
}

func newLender(t *testing.T, take func(string) Round) *lender {
	t.Helper()
	l := &lender{t: t, came: make(chan string, 8), over: make(chan struct{})}
	l.c, l.peer = pair(t)
	s, err := Open(l.c)
	if err != nil {
		t.Fatal(err)
	}
	l.Socket = s
	s.Lend(l.c, func() bool { return !l.waited.Load() })
	busy := new(atomic.Bool)
	inner := look(s, func(b []byte) Round {
		l.came <- string(b)
		return take(string(b))
	})
	go func() {
		defer close(l.over)
		l.own, l.outer = s.Read(func() (Round, error) {
			if busy.Swap(true) {
				t.Error("two look at a time")
			}
			defer busy.Store(false)
			return inner()
		})
	}()
	t.Cleanup(func() {
		l.c.Close()
		l.Resume()
		<-l.over
	})
	return l
}

func some(string) Round { return Some }

// is waits until it is that turn.
func (l *lender) is(t turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asking++
	for l.turn != t {
		l.changed.Wait()
	}
	l.asking--
}

func (l *lender) send(s string) {
	l.t.Helper()
	if _, err := l.peer.Write([]byte(s)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lender) got(want string) {
	l.t.Helper()
	if got := <-l.came; got != want {
		l.t.Fatalf("%q, want %q", got, want)
	}
}

// refused calls Await while the reader is parked.
func (l *lender) refused() {
	l.t.Helper()
	l.is(rests)
	if l.Await() {
		l.t.Fatal("Await has waited, although the reader reads")
	}
}

// lent has the socket lent.
func (l *lender) lent() {
	l.t.Helper()
	l.refused()
	l.send("first")
	l.got("first")
	l.is(lent)
}

// use calls Await in another goroutine, and returns when that has the turn, and a channel with its result.
func (l *lender) use() chan bool {
	done := make(chan bool, 1)
	go func() { done <- l.Await() }()
	l.is(used)
	return done
}

// Who was refused has the socket lent, reads in its own goroutine, again and again, and nobody else reads meanwhile.
func TestAwait(t *testing.T) {
	l := newLender(t, some)
	l.lent()
	for _, text := range []string{"one", "two"} {
		l.send(text)
		if !l.Await() || len(l.came) != 1 {
			t.Fatal("Await has not read")
		}
		l.got(text)
	}
	done := l.use()
	if l.Await() {
		t.Error("two are in Await")
	}
	l.send("three")
	if !<-done {
		t.Error("Await has not waited")
	}
	l.got("three")
	l.is(rests) // because somebody else was refused, and may sleep by now
	l.send("four")
	l.got("four")
}

// While somebody else waits, the socket is not lent, and who has it gives it back.
func TestAwaitNotAlone(t *testing.T) {
	l := newLender(t, some)
	l.waited.Store(true)
	l.refused()
	l.send("one")
	l.got("one")
	l.refused()
	l.waited.Store(false)
	l.send("two")
	l.got("two")
	l.is(lent)
	done := l.use()
	l.waited.Store(true)
	l.send("three")
	<-done
	l.got("three")
	l.is(rests)
	l.send("four")
	l.got("four")
}

// A socket that is lent to nobody goes back to the reader, and is lent less often.
func TestLentInVain(t *testing.T) {
	l := newLender(t, some)
	l.lent()
	l.onTick()
	l.is(rests)
	l.send("one")
	l.got("one")
	l.refused()
	l.send("two") // the first wish is ignored
	l.got("two")
	l.refused()
	l.send("three")
	l.got("three")
	l.is(lent)
	l.send("four")
	l.Await()
	l.got("four")
	l.onTick() // it was used since
	l.onTick()
	l.is(rests)
	l.lent() // at once
}

// Who waits for something that does not come leaves, and the reader goes on with the connection as it was.
func TestAwaitTakesLong(t *testing.T) {
	l := newLender(t, some)
	l.lent()
	done := l.use()
	l.onTick()
	l.onTick()
	if !<-done {
		t.Error("Await has not waited")
	}
	l.is(rests)
	l.send("one")
	l.got("one")
	l.lent()
}

// The end of the connection, and errors of look, end Read, whoever reads.
func TestAwaitOver(t *testing.T) {
	for name, end := range map[string]func(*lender){
		"close":    func(l *lender) { l.c.Close() },
		"deadline": func(l *lender) { _ = l.c.SetDeadline(time.Unix(1, 0)) },
		"peer":     func(l *lender) { l.peer.Close() },
	} {
		l := newLender(t, some)
		l.lent()
		done := l.use()
		end(l)
		<-done
		<-l.over
		if own := errors.Is(l.own, errEnd); own != (name == "peer") || (l.outer != nil) == own {
			t.Errorf("%s: %v, %v", name, l.own, l.outer)
		}
		if l.Await() {
			t.Errorf("%s: Await waits at the end", name)
		}
	}
}

// Resume takes back a socket that is lent, and a pause that begins in Await is the reader's.
func TestAwaitPause(t *testing.T) {
	l := newLender(t, func(s string) Round {
		if s == "pause" {
			return Pause
		}
		return Some
	})
	l.lent()
	l.send("zero")
	l.Await()
	l.got("zero")
	l.send("one")
	l.Resume()
	l.got("one")
	l.lent()
	done := l.use()
	l.send("pause")
	<-done
	l.got("pause")
	l.is(rests)
	l.send("two")
	l.Resume()
	l.got("two")
}

// Await allocates nothing.
func TestAwaitAllocates(t *testing.T) {
	l := newLender(t, some)
	l.lent()
	var b [1]byte
	n := testing.AllocsPerRun(100, func() {
		if _, err := l.peer.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		l.Await()
		<-l.came
	})
	if m := testing.AllocsPerRun(100, func() { // look of this test, by itself
		if _, err := l.peer.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		_, _ = l.look()
		<-l.came
	}); n > m {
		t.Errorf("%v allocations, %v of them of the test", n, m)
	}
}

// Several who wait for answers, some in Await and some asleep, all get them, although no tick helps but one: an answer
// that another one takes after a user has looked for it, and before he calls Await, has him there until a tick.
func TestAwaitNobodyIsForgotten(t *testing.T) {
	const users, rounds = 3, 2000
	var (
		mu         sync.Mutex
		answers    = sync.NewCond(&mu)
		asked, got int
		within     int        // users in Await, or asleep
		left       int        // users who have no answer yet
		wants      [users]int // what got has to be for a user who sleeps; 0: he does not
		asleep     atomic.Int32
	)
	c, peer := pair(t)
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Lend(c, func() bool { return asleep.Load() == 0 })
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = s.Read(look(s, func(b []byte) Round {
			mu.Lock()
			defer mu.Unlock()
			got += len(b)
			for i, want := range wants {
				if want > 0 && want <= got {
					wants[i] = 0
					asleep.Add(-1)
				}
			}
			answers.Broadcast()
			return Some
		}))
	}()
	go func() { _, _ = io.Copy(peer, peer) }()
	for range rounds { // at whose end nobody comes who would look for others
		var all sync.WaitGroup
		left = users
		all.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for calm := 0; left > 0; {
				if got < asked || within < left { // there is more to come
					calm = 0
					answers.Wait()
					continue
				}
				if calm++; calm > 1000 { // nobody is about to come back: what came for who is in Await was there before him
					s.onTick()
				}
				mu.Unlock()
				runtime.Gosched()
				mu.Lock()
			}
		})
		for i := range users {
			all.Go(func() {
				mu.Lock()
				defer mu.Unlock()
				asked++
				want, slept := asked, false
				_, _ = c.Write([]byte{0})
				for got < want {
					within++
					answers.Broadcast()
					mu.Unlock()
					waited := s.Await()
					mu.Lock()
					switch {
					case waited || got >= want:
					case !slept:
						slept, wants[i] = true, want
						asleep.Add(1)
					default:
						for got < want {
							answers.Wait()
						}
					}
					within--
				}
				if wants[i] > 0 {
					wants[i] = 0
					asleep.Add(-1)
				}
				left--
				answers.Broadcast()
			})
		}
		all.Wait()
	}
	c.Close()
	s.Resume()
	<-over
}
