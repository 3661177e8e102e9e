package config

import (
	"fmt"
	"log/slog"
)

// Log says what the daemon logs, and how.
type Log struct {
	Level  slog.Level // Debug, Info (default), Warn or Error
	Format LogFormat
}

// LogFormat is the form of a log line.
type LogFormat string

// The log formats. Text is the default.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

var defaultLog = Log{Level: slog.LevelInfo, Format: LogText}

// logLevels names the levels, from the one that logs most to the one that logs least.
var logLevels = []struct {
	name  string
	level slog.Level
}{
	{"debug", slog.LevelDebug},
	{"info", slog.LevelInfo},
	{"warn", slog.LevelWarn},
	{"error", slog.LevelError},
}

func (d *decoder) log(v value, l *Log) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "log")
	if o == nil {
		return
	}
	set(o.take("level"), &l.Level, "a level", parseLevel)
	set(o.take("format"), &l.Format, "a format", oneOf(LogText, LogJSON))
	o.done()
}

func parseLevel(text string) (slog.Level, error) {
	var names []string
	for _, l := range logLevels {
		if l.name == text {
			return l.level, nil
		}
		names = append(names, l.name)
	}
	return 0, fmt.Errorf("%q is not known: %s", text, choices(text, names))
}
