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
	"oneshot/initiator"
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

// hung is a target whose LUN 1 shows the store "bad", in which commands hang until the gate is released.
type hung struct {
	*running
	session *initiator.Session
	note    *closeNote // of that store
	gate    *faulty.Gate
	load    *load
}

func hangs(t *testing.T) *hung {
	stores := misbehave(t)
	h, inner := new(hung), opener
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		store, err := inner(c, o)
		note := &closeNote{Store: store}
		if c.Name == "bad" {
			h.note = note
		}
		return note, err
	}
	h.running = serve(t, withBadStore)
	h.session = h.login("a")
	attentions(t, h.session, 1)
	h.gate = stores("bad").Hold(faulty.Match{})
	h.load = start(h.session, 1, 4)
	h.gate.Await(8)
	return h
}

// A LUN whose store hangs can be removed. Its commands end when the store comes back, and only
// then is the store closed. Meanwhile everything else works, reloads included.
func TestApplyTakesAwayWhatHangs(t *testing.T) {
	h := hangs(t)
	without := strings.Replace(strings.Replace(withBadStore, ", 1: bad", "", 1), "  bad: {type: memory, size: 8MiB}\n", "", 1)
	h.apply(without)
	attentions(t, h.session, 0)
	works(t, h.session, 0)
	h.apply(strings.Replace(without, "0: good", "0: good, 7: {store: good, readonly: true}", 1))
	attentions(t, h.session, 0)
	works(t, h.session, 0)
	if h.note.closed.Load() {
		t.Fatal("the store is closed under its commands")
	}
	h.gate.Release()
	if got := h.load.outcome(); got != "00000:8" {
		t.Errorf("commands that hung: %s", got)
	}
	for !h.note.closed.Load() { // the next look at it is some milliseconds away
		works(t, h.session, 0)
	}
}

// A LUN is changed, and then removed, while commands to it as it was before the change hang in the store. When these have ended the store
// is closed, so that it can be opened again.
func TestApplyTakesAwayTwice(t *testing.T) {
	h := hangs(t)
	h.apply(strings.Replace(withBadStore, "1: bad", "1: {store: bad, readonly: true}", 1))
	none := h.units.fresh()
	if all := h.units.without(&none); all.idle() {
		t.Error("the store could be closed, while commands hang in it")
	}
	h.apply(strings.Replace(withBadStore, ", 1: bad", "", 1))
	h.gate.Release()
	h.load.outcome()
	if going := h.retirements.going(); going != nil {
		<-going
	}
	if !h.note.closed.Load() {
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
