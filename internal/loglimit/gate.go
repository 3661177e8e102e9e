package loglimit

import (
	"log/slog"
	"sync"
	"time"
)

// Gate lets one line of the log through and then none for a while: it is for what may fail thousands
// of times a second. The zero value is open. Several goroutines may use it.
type Gate struct {
	mu      sync.Mutex
	closed  time.Time // until when
	dropped int       // since the last line
}

// Pass reports whether a line may be written. If so, the gate closes for the time of silence, and
// dropped is an attribute for the line: how many were not written before it, if any.
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
