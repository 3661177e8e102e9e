package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"oneshot/initiator"
)

// A copy ends when its context does, whatever the target does with its commands: those are aborted.
func TestCopyCanceled(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, u *initiator.LU) error{
		"to": func(ctx context.Context, u *initiator.LU) error { return u.CopyTo(ctx, io.Discard, 0, 8<<20, nil) },
		"from": func(ctx context.Context, u *initiator.LU) error {
			_, err := u.CopyFrom(ctx, bytes.NewReader(make([]byte, 8<<20)), 0, nil)
			return err
		},
		"from, a part of a block": func(ctx context.Context, u *initiator.LU) error {
			_, err := u.CopyFrom(ctx, strings.NewReader("x"), 0, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			ctx, cancel := newContext(t)
			var aborted atomic.Bool
			s := dialFake(t, func(g *target) { // what it is asked for it keeps to itself
				g.aborts = func() { aborted.Store(true) }
				g.disk(func(uint32, bool) { cancel() })
			})
			u, err := s.LU(t.Context(), 0)
			check(t, err)
			if err := run(ctx, u); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			check(t, s.Close())
			if !aborted.Load() {
				t.Error("the target was not asked to abort anything")
			}
		})
	}
}
