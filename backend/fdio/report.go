package fdio

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"oneshot/backend"
)

// quiet is how long after a line about a kind of operation further ones are only counted.
const quiet = 10 * time.Second

// reporter writes why operations failed to the log: a full disk fails thousands a second.
type reporter struct {
	log     *slog.Logger
	message string

	mu    sync.Mutex
	kinds [backend.Status + 1]struct {
		until  time.Time // when the next line may be written
		unsaid int       // failures since the last line
	}
}

func newReporter(log *slog.Logger, kind, path string) *reporter {
	return &reporter{log: log.With(slog.String("path", path)), message: kind + ": operation failed"}
}

// report logs that an operation failed with err.
func (r *reporter) report(k backend.Kind, err error, attrs ...slog.Attr) {
	unsaid, ok := r.admit(k)
	if !ok {
		return
	}
	attrs = append(attrs, slog.String("operation", k.String()), slog.Any("reason", err))
	if unsaid > 0 {
		attrs = append(attrs, slog.Int("not_logged", unsaid))
	}
	r.log.LogAttrs(context.Background(), slog.LevelError, r.message, attrs...)
}

// admit says whether a line may be written, and how many were not since the last.
func (r *reporter) admit(k backend.Kind) (unsaid int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, now := &r.kinds[k], time.Now()
	if now.Before(l.until) {
		l.unsaid++
		return 0, false
	}
	unsaid, l.unsaid, l.until = l.unsaid, 0, now.Add(quiet)
	return unsaid, true
}
