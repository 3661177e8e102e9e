package scsi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"oneshot/backend"
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

// storeError tells of an operation of t that the store could not do.
func (l *limitedLog) storeError(t *Task, op *backend.Op) {
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
		slog.Int64("lba", op.Off>>t.lu.blockShift),
		slog.Int64("blocks", op.Len>>t.lu.blockShift),
		slog.Any("reason", op.Err),
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

// halfWritten tells of an atomic write that only a restart can complete.
func (l *limitedLog) halfWritten(lu *LogicalUnit, off, n int64, err error) {
	l.logger.Error("an atomic write can be neither completed nor undone; its blocks are refused until the target is restarted, which completes it",
		"serial", lu.serial, "lba", off>>lu.blockShift, "blocks", n>>lu.blockShift, "reason", err)
}
