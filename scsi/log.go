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

// reservationsNotSaved tells that a command which was to survive a power loss has failed.
func (l *limitedLog) reservationsNotSaved(err error) {
	l.logger.Error("reservations and access states cannot be saved; what the initiator did holds until the target stops", "reason", err)
}

// sanitizeFailed tells that data which was to be destroyed may be there still.
func (l *limitedLog) sanitizeFailed(lu *LogicalUnit, err error) {
	l.logger.Error("the store failed a sanitize operation; the logical unit refuses commands until another one succeeds, or an initiator sends EXIT FAILURE MODE", "serial", lu.serial, "reason", err)
}

// stateNotSaved tells that a restart would not know of a sanitize operation, or do it again.
func (l *limitedLog) stateNotSaved(err error) {
	l.logger.Error("the state of a sanitize operation cannot be saved; a restart of the target would not go on with it", "reason", err)
}
