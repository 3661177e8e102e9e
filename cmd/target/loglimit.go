package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Bounds of what peers can make the daemon write: so many lines of one call site in so long.
const (
	logBurst  = 50
	logWindow = 10 * time.Second
)

// limitedHandler lets the first lines of each call site through, and counts the rest: peers choose
// how often they fail to log in, and a full disk of logs is not theirs to make. When the window is
// over, one line says how many were left out. Lines of level debug are never left out: whoever
// asks for these wants all.
type limitedHandler struct {
	slog.Handler
	sites *logSites
}

func newLimitedHandler(h slog.Handler) limitedHandler {
	return limitedHandler{h, &logSites{by: make(map[uintptr]*logSite)}}
}

// logSites are the call sites that have written in their window. There are as many as the program
// has.
type logSites struct {
	mu sync.Mutex // not held over writing
	by map[uintptr]*logSite
}

type logSite struct {
	lines, left int
	last        slog.Record // of those that were left out
}

// Handle implements slog.Handler.
func (h limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo || h.admit(&r) {
		return h.Handler.Handle(ctx, r)
	}
	return nil
}

// admit counts a line, and reports whether it is to be written.
func (h limitedHandler) admit(r *slog.Record) bool {
	s := h.sites
	s.mu.Lock()
	defer s.mu.Unlock()
	site := s.by[r.PC]
	if site == nil {
		site = &logSite{}
		s.by[r.PC] = site
		time.AfterFunc(logWindow, func() { h.over(r.PC) })
	}
	if site.lines++; site.lines <= logBurst {
		return true
	}
	site.left++
	site.last = *r
	return false
}

// over ends the window of a call site.
func (h limitedHandler) over(pc uintptr) {
	s := h.sites
	s.mu.Lock()
	site := s.by[pc]
	delete(s.by, pc)
	s.mu.Unlock()
	if site.left == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), site.last.Level, fmt.Sprintf("%d more lines like this one were left out: %s", site.left, site.last.Message), pc)
	_ = h.Handler.Handle(context.Background(), r)
}

// WithAttrs implements slog.Handler.
func (h limitedHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return limitedHandler{h.Handler.WithAttrs(as), h.sites}
}

// WithGroup implements slog.Handler.
func (h limitedHandler) WithGroup(name string) slog.Handler {
	return limitedHandler{h.Handler.WithGroup(name), h.sites}
}
