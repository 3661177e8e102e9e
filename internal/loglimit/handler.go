// Package loglimit bounds what peers and failing media can make a program write to its log: a full
// disk of logs is not theirs to make.
package loglimit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Each call site may write Burst lines in a Window.
const (
	Burst  = 50
	Window = 10 * time.Second
)

// handler lets the first lines of each call site through, and counts the rest. When the window is
// over, one line says how many were left out. Lines of level debug are never left out: whoever
// asks for these wants all.
type handler struct {
	slog.Handler
	sites *sites
}

// Handler returns a handler that passes to h at most Burst lines per call site in each Window.
func Handler(h slog.Handler) slog.Handler {
	return handler{h, &sites{by: make(map[uintptr]*site)}}
}

// sites are the call sites that have written in their window. There are at most as many as the
// program has.
type sites struct {
	mu sync.Mutex // not held over writing
	by map[uintptr]*site
}

type site struct {
	lines, dropped int
	last           slog.Record // of those that were dropped
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo || h.admit(&r) {
		return h.Handler.Handle(ctx, r)
	}
	return nil
}

// admit counts a line, and reports whether it is to be written.
func (h handler) admit(r *slog.Record) bool {
	h.sites.mu.Lock()
	defer h.sites.mu.Unlock()
	s := h.sites.by[r.PC]
	if s == nil {
		s = &site{}
		h.sites.by[r.PC] = s
		time.AfterFunc(Window, func() { h.over(r.PC) })
	}
	if s.lines++; s.lines <= Burst {
		return true
	}
	s.dropped++
	s.last = *r
	return false
}

// over ends the window of a call site.
func (h handler) over(pc uintptr) {
	h.sites.mu.Lock()
	s := h.sites.by[pc]
	delete(h.sites.by, pc)
	h.sites.mu.Unlock()
	if s.dropped == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), s.last.Level, fmt.Sprintf("%d more lines like this one were left out: %s", s.dropped, s.last.Message), pc)
	_ = h.Handler.Handle(context.Background(), r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(as []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(as), h.sites}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.sites}
}
