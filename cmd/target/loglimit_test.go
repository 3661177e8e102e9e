package main

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/config"
)

// What one call site writes without end is cut off and counted; others write on, and so does it
// when its window is over.
func TestLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b lockedBuffer
		log, _ := newLogger(config.Log{Level: slog.LevelDebug, Format: config.LogText}, &b)
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
		flood(logBurst + 950)
		log.Info("portal open")
		text := b.take()
		for what, want := range map[string]int{"login refused": logBurst, "portal open": 1, "asked for": logBurst + 950} {
			if got := strings.Count(text, what); got != want {
				t.Errorf("%d lines with %q, want %d", got, what, want)
			}
		}

		pass(logWindow)
		count(`level=warning msg="950 more lines like this one were left out: login refused: 999"`, 1)

		flood(logBurst)
		count("login refused", logBurst)
		pass(logWindow)
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
