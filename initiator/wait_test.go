package initiator_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

// told calls f for each message of a log.
type told struct {
	slog.Handler
	f func(string)
}

func (h told) Enabled(context.Context, slog.Level) bool { return true }

func (h told) Handle(_ context.Context, r slog.Record) error {
	h.f(r.Message)
	return nil
}

// Who waits for a target gets his session when the target has come, over each transport; who does not is told at once
// that it is not there.
func TestLastingWait(t *testing.T) {
	for _, w := range lastingWays {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			tg := targettest.New(t, config)
			u := w.at(t, tg, "/"+iqn)
			if _, err := initiator.DialLasting(t.Context(), u, w.opt, initiator.Keeping{}); err == nil {
				t.Fatal("who does not wait has a session with nobody")
			}
			tries := make(chan struct{}, 1)
			o := w.opt
			o.Logger = slog.New(told{slog.DiscardHandler, func(m string) {
				if m == "no session yet" {
					select {
					case tries <- struct{}{}:
					default:
					}
				}
			}})
			ended := make(chan error, 1)
			go func() {
				l, err := initiator.DialLasting(t.Context(), u, o, initiator.Keeping{Wait: time.Hour})
				if err == nil {
					err = l.Close()
				}
				ended <- err
			}()
			select {
			case <-tries:
			case err := <-ended:
				t.Fatalf("who waits is told %v", err)
			}
			tg.Start()
			if err := <-ended; err != nil {
				t.Errorf("when the target has come: %v", err)
			}
		})
	}
}

// Nobody waits for a target that refuses him, or longer than he says, or than his context lasts.
func TestLastingWaitEnds(t *testing.T) {
	noLeaks(t)
	tg := targettest.Start(t, config)
	u := ways[0].at(t, tg, "/"+iqn+"none")
	_, err := initiator.DialLasting(t.Context(), u, initiator.Options{}, initiator.Keeping{Wait: time.Hour})
	if e, ok := errors.AsType[*initiator.LoginError](err); !ok || e.Status != pdu.LoginNotFound {
		t.Errorf("who is refused is told %v", err)
	}
	u = ways[0].at(t, tg, "/"+iqn)
	tg.Kill()
	if _, err = initiator.DialLasting(t.Context(), u, initiator.Options{}, initiator.Keeping{Wait: time.Nanosecond}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("at the end of the wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := initiator.Options{Logger: slog.New(told{slog.DiscardHandler, func(string) { cancel() }})}
	if _, err = initiator.DialLasting(ctx, u, o, initiator.Keeping{Wait: time.Hour}); err == nil {
		t.Error("at the end of the context there is a session")
	}
}
