package scsi

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"oneshot/backend"
	"oneshot/internal/loglimit"
	"oneshot/volume"
)

// logInterval is the time after a line about a store's failure in which further ones are only counted.
const logInterval = time.Second

// limitedLog is the log of a logical unit. A broken disk under load does not fill another disk with text.
type limitedLog struct {
	logger *slog.Logger
	failed loglimit.Gate
}

func (l *limitedLog) init(logger *slog.Logger) {
	if logger == nil {
		logger = slog.Default()
	}
	l.logger = logger
}

// storeError reports an operation of t that the store could not do: t.r.Err.
func (l *limitedLog) storeError(t *Task) {
	if _, ok := errors.AsType[*backend.MovedError](t.r.Err); ok || t.r.Err == volume.ErrOvertaken {
		return // it is served elsewhere, or comes too late, and nothing has failed
	}
	dropped, ok := l.failed.Pass(logInterval)
	if !ok {
		return
	}
	off, n := t.r.Failed()
	l.logger.LogAttrs(context.Background(), slog.LevelError, "the store failed a command", append([]slog.Attr{
		slog.String("command", t.cmd.Name),
		slog.Int("lun", int(t.itl.lun)),
		slog.String("serial", t.lu.serial),
		slog.Int64("lba", off>>t.lu.blockShift),
		slog.Int64("blocks", n>>t.lu.blockShift),
		slog.Any("reason", t.r.Err),
	}, dropped...)...)
}

// notKept reports that a command failed because what it changes could not be saved.
func (l *limitedLog) notKept(err error) {
	l.logger.Error("reservations and access states cannot be saved; the command that changes them has failed", "reason", err)
}

// notAgreed reports that a command about reservations ends with BUSY, because others do not answer.
func (l *limitedLog) notAgreed(err error) {
	if dropped, ok := l.failed.Pass(logInterval); ok {
		l.logger.LogAttrs(context.Background(), slog.LevelWarn, "a command about reservations has failed", append([]slog.Attr{slog.Any("reason", err)}, dropped...)...)
	}
}
