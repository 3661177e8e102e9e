package loglimit

import (
	"log/slog"
	"sync"
	"time"
)

// Gate lets one line through and then none for a while, for what may fail thousands of times a
// second. The zero value is open. It may be used by several goroutines.
type Gate struct {
	mu      sync.Mutex
	closed  time.Time // until when
	dropped int       // since the last line
}

// Pass reports whether a line may be written, after which none may for so long, and what it should
// say of those that might not be written before: an attribute, or nothing.
func (g *Gate) Pass(silence time.Duration) (dropped []slog.Attr, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.closed) {
		g.dropped++
		return nil, false
	}
	if g.dropped > 0 {
		dropped = []slog.Attr{slog.Int("not_logged", g.dropped)}
	}
	g.dropped, g.closed = 0, now.Add(silence)
	return dropped, true
}
