package loglimit

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What one call site writes without end is cut off and counted; others write on, and so does it
// when its window is over.
func TestLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b lockedBuffer
		log := slog.New(Handler(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
		flood := func(n int) {
			for i := range n {
				log.With("peer", i).Warn(fmt.Sprintf("login refused: %d", i))
				log.Debug("asked for")
			}
		}
		count := func(what string, want int) {
			t.Helper()
			if got := strings.Count(b.take(), what); got != want {
				t.Errorf("%d lines with %q, want %d", got, what, want)
			}
		}
		flood(Burst + 950)
		log.Info("portal open")
		text := b.take()
		for what, want := range map[string]int{"login refused": Burst, "portal open": 1, "asked for": Burst + 950} {
			if got := strings.Count(text, what); got != want {
				t.Errorf("%d lines with %q, want %d", got, what, want)
			}
		}

		pass(Window)
		count(`level=WARN msg="950 more lines like this one were left out: login refused: 999"`, 1)

		flood(Burst)
		count("login refused", Burst)
		pass(Window)
		count("left out", 0)
	})
}

// pass lets the time of a synctest bubble pass.
func pass(d time.Duration) {
	<-time.After(d + 1)
	synctest.Wait()
}

// lockedBuffer is what timers write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was written since the last call.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// A gate lets one line through in a while, and then says how many it did not.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		const silence = 10 * time.Second
		if dropped, ok := g.Pass(silence); !ok || dropped != nil {
			t.Errorf("the first: %v, %v", dropped, ok)
		}
		for range 3 {
			if _, ok := g.Pass(silence); ok {
				t.Error("another at once")
			}
		}
		pass(silence)
		if dropped, ok := g.Pass(silence); !ok || len(dropped) != 1 || dropped[0].String() != "not_logged=3" {
			t.Errorf("after a while: %v, %v", dropped, ok)
		}
		pass(silence)
		if dropped, ok := g.Pass(silence); !ok || dropped != nil {
			t.Errorf("none was dropped: %v, %v", dropped, ok)
		}
	})
}
