package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"

	"oneshot/config"
	"oneshot/internal/loglimit"
)

// newLogger returns a slog.Logger that writes to w through logrus, in the format and at the level of the
// configuration, and a function that changes its level. A call below the level costs a comparison, and
// allocates nothing if its arguments are slog.Attr.
func newLogger(c config.Log, w io.Writer) (log *slog.Logger, setLevel func(slog.Level)) {
	l := logrus.New()
	l.SetOutput(w)
	setLevel = func(level slog.Level) { l.SetLevel(logrusslog.SlogLevel(level).Level()) }
	setLevel(c.Level)
	l.SetFormatter(formatter(c.Format))
	log = slog.New(loglimit.Handler(logrusslog.NewHandler(l, nil)))
	loglimit.TellMissing(w, log)
	return log, setLevel
}

func formatter(f config.LogFormat) logrus.Formatter {
	if f == config.LogJSON {
		return &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}
	}
	return &logrus.TextFormatter{FullTimestamp: true, TimestampFormat: time.RFC3339}
}
