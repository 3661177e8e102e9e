package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/config"
)

// closeNote is a store that remembers whether it was closed.
type closeNote struct {
	backend.Store
	closed atomic.Bool
}

func (c *closeNote) Close() error {
	c.closed.Store(true)
	return c.Store.Close()
}

// A LUN whose store hangs can be removed. Its commands end when the store comes back, and only
// then is the store closed. Meanwhile everything else works, reloads included.
func TestApplyTakesAwayWhatHangs(t *testing.T) {
	stores := misbehave(t)
	notes, inner := make(map[string]*closeNote), opener
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		store, err := inner(c, o)
		notes[c.Name] = &closeNote{Store: store}
		return notes[c.Name], err
	}
	r := serve(t, withBadStore)
	s := r.login("a")
	attentions(t, s, 1)
	gate := stores("bad").Hold(faulty.Match{})
	hanging := start(s, 1, 4)
	gate.Await(8)

	without := strings.Replace(strings.Replace(withBadStore, ", 1: bad", "", 1), "  bad: {type: memory, size: 8MiB}\n", "", 1)
	r.apply(without)
	attentions(t, s, 0)
	works(t, s, 0)
	r.apply(strings.Replace(without, "0: good", "0: good, 7: {store: good, readonly: true}", 1))
	attentions(t, s, 0)
	works(t, s, 0)
	if notes["bad"].closed.Load() {
		t.Fatal("the store is closed under its commands")
	}
	gate.Release()
	if got := hanging.outcome(); got != "00000:8" {
		t.Errorf("commands that hung: %s", got)
	}
	for !notes["bad"].closed.Load() { // the next look at it is some milliseconds away
		works(t, s, 0)
	}
}

// A LUN is changed, and then removed, while commands to it as it was before the change hang in the store. When these have ended the store
// is closed, so that it can be opened again.
func TestApplyTakesAwayTwice(t *testing.T) {
	stores := misbehave(t)
	notes, inner := make(map[string]*closeNote), opener
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		store, err := inner(c, o)
		notes[c.Name] = &closeNote{Store: store}
		return notes[c.Name], err
	}
	r := serve(t, withBadStore)
	s := r.login("a")
	attentions(t, s, 1)
	gate := stores("bad").Hold(faulty.Match{})
	hanging := start(s, 1, 4)
	gate.Await(8)
	r.apply(strings.Replace(withBadStore, "1: bad", "1: {store: bad, readonly: true}", 1))
	none := r.units.fresh()
	if all := r.units.without(&none); all.idle() {
		t.Error("the store could be closed, while commands hang in it")
	}
	r.apply(strings.Replace(withBadStore, ", 1: bad", "", 1))
	gate.Release()
	hanging.outcome()
	if going := r.retirements.going(); going != nil {
		<-going
	}
	if !notes["bad"].closed.Load() {
		t.Error("nothing shows the store any more, and it is open")
	}
}

// A store that hangs and whose LUN was removed does not keep the target from stopping.
func TestStopWithWhatHangsTakenAway(t *testing.T) {
	stores := misbehave(t)
	s, err := New(parse(t, withBadStore), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Server: s, t: t, dir: t.TempDir()}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	session := r.login("a")
	attentions(t, session, 1)
	gate := stores("bad").Hold(faulty.Match{})
	start(session, 1, 1)
	gate.Await(2)
	r.apply(strings.Replace(withBadStore, ", 1: bad", "", 1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	gate.Release()
	s.wg.Wait()
}

// Shutdown names a store that hangs once, however many logical units show it.
func TestShutdownSaysOnce(t *testing.T) {
	stores := misbehave(t)
	s, err := New(parse(t, strings.Replace(withBadStore, "1: bad", "1: bad, 2: {store: bad, block_size: 4096}", 1)), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Server: s, t: t, dir: t.TempDir()}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	session := r.login("a")
	attentions(t, session, 1)
	attentions(t, session, 2)
	gate := stores("bad").Hold(faulty.Match{})
	start(session, 1, 1)
	start(session, 2, 1)
	gate.Await(2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = s.Shutdown(ctx)
	if n := strings.Count(fmt.Sprint(err), "commands hang in it"); n != 1 {
		t.Errorf("said %d times: %v", n, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	gate.Release()
	s.wg.Wait()
}
