package fdio

import (
	"context"
	"log/slog"
	"time"

	"oneshot/backend"
	"oneshot/internal/loglimit"
)

// quiet is how long after a line about a kind of operation further ones are only counted.
const quiet = 10 * time.Second

// reporter writes why operations failed to the log: a full disk fails thousands a second.
type reporter struct {
	log     *slog.Logger
	message string
	kinds   [backend.Status + 1]loglimit.Gate
}

func newReporter(log *slog.Logger, kind, path string) *reporter {
	return &reporter{log: log.With(slog.String("path", path)), message: kind + ": operation failed"}
}

// report logs that an operation failed with err.
func (r *reporter) report(k backend.Kind, err error, attrs ...slog.Attr) {
	dropped, ok := r.kinds[k].Pass(quiet)
	if !ok {
		return
	}
	attrs = append(attrs, slog.String("operation", k.String()), slog.Any("reason", err))
	r.log.LogAttrs(context.Background(), slog.LevelError, r.message, append(attrs, dropped...)...)
}
