package scsi

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitedLog writes at most one line per interval, so that a broken disk under load does
// not fill another one with text.
type limitedLog struct {
	logger *slog.Logger

	mu         sync.Mutex
	next       time.Time // guarded by mu
	suppressed int       // guarded by mu
}

const logInterval = time.Second

func (l *limitedLog) init(logger *slog.Logger) {
	if logger == nil {
		logger = slog.Default()
	}
	l.logger = logger
}

// storeError tells of an operation of t that the store could not do: t.r.Err.
func (l *limitedLog) storeError(t *Task) {
	off, n := t.r.Failed()
	l.mu.Lock()
	now := time.Now()
	if now.Before(l.next) {
		l.suppressed++
		l.mu.Unlock()
		return
	}
	l.next = now.Add(logInterval)
	suppressed := l.suppressed
	l.suppressed = 0
	l.mu.Unlock()
	l.logger.LogAttrs(context.Background(), slog.LevelError, "the store failed a command",
		slog.String("command", t.cmd.Name),
		slog.Int("lun", int(t.itl.lun)),
		slog.String("serial", t.lu.serial),
		slog.Int64("lba", off>>t.lu.blockShift),
		slog.Int64("blocks", n>>t.lu.blockShift),
		slog.Any("reason", t.r.Err),
		slog.Int("more_since_last_line", suppressed))
}

// notKept tells that a command which was to survive a power loss has failed.
func (l *limitedLog) notKept(err error) {
	l.logger.Error("reservations and access states cannot be saved; the command that changes them has failed", "reason", err)
}
