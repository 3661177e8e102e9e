package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"oneshot/config"
	"oneshot/internal/command"
	"oneshot/mgmt"
)

// reloader reads the configuration of a daemon again.
type reloader struct {
	daemon   daemon
	serving  *serving
	log      *slog.Logger
	level    slog.Level // in force
	setLevel func(slog.Level)
	turn     chan struct{} // has room for one: holds one element while a reload is under way
}

func newReloader(d daemon, s *serving, log *slog.Logger, level slog.Level, setLevel func(slog.Level)) *reloader {
	return &reloader{daemon: d, serving: s, log: log, level: level, setLevel: setLevel, turn: make(chan struct{}, 1)}
}

// reload reads the file and applies it. If that fails, nothing changes. One that comes meanwhile reads the file afterwards: what is read
// first is applied first. Whoever gives up before, by ctx, reads nothing: a reload can hang in a store, and those that wait for it
// would be more and more.
func (r *reloader) reload(ctx context.Context) (mgmt.Reload, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return mgmt.Reload{}, fmt.Errorf("a former reload is under way still: %w", err)
	}
	notifyReloading()
	done, err := r.apply(ctx)
	if err != nil {
		r.log.Error("the reload failed and nothing has changed", "reason", summary(err))
		command.Notify("READY=1\nSTATUS=serving; the last reload failed: " + summary(err))
		return done, err
	}
	for _, line := range done.Done {
		r.log.Info("changed", "what", line)
	}
	for _, line := range done.Pending {
		r.log.Warn("not changed", "what", line)
	}
	r.log.Info("configuration read again", "changes", len(done.Done))
	command.Notify("READY=1\nSTATUS=serving")
	return done, nil
}

func (r *reloader) apply(ctx context.Context) (mgmt.Reload, error) {
	if r.serving.path == "" { // the built-in one
		return mgmt.Reload{}, errors.New("this daemon serves the built-in configuration, which does not change: start it with --config FILE")
	}
	c, err := r.serving.load()
	if err != nil {
		return mgmt.Reload{}, err
	}
	for _, w := range c.Warnings {
		r.log.Warn(w.Message, "at", w.Pos.String())
	}
	done, err := r.daemon.ApplyFor(ctx, c)
	if err == nil && c.Log.Level != r.level {
		done.Done = append(done.Done, fmt.Sprintf("log.level is %s, was %s", levelName(c.Log.Level), levelName(r.level)))
		r.level = c.Log.Level
		r.setLevel(r.level)
	}
	return done, err
}

// levelName returns the name that the configuration gives a level.
func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

// summary returns an error in one line: of a configuration that is not valid, the first problem.
func summary(err error) string {
	bad, ok := errors.AsType[*config.Error](err)
	if !ok {
		return strings.ReplaceAll(oneLine(err).Error(), "\n", "; ")
	}
	first := bad.Problems[0]
	text := first.Pos.String() + ": " + first.Message
	if more := len(bad.Problems) - 1; bad.More {
		text += fmt.Sprintf(" (and at least %s)", count(more+1, "more problem"))
	} else if more > 0 {
		text += fmt.Sprintf(" (and %s)", count(more, "more problem"))
	}
	return text
}

// onHangup reloads at each signal, until hups is closed.
func (r *reloader) onHangup(hups <-chan os.Signal) {
	for range hups {
		_, _ = r.reload(context.Background()) // it has logged the result
	}
}
