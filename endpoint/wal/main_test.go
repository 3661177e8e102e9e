package wal

import (
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a log on a store. The function that it returns closes all of it but the store.
func open(t testing.TB, s backend.Store, o Options) (*Log, func(), error) {
	t.Helper()
	h := endpointtest.New(t, s)
	e := h.Use(endpoint.Options{Sole: true})
	l, err := Open(t.Context(), e, o)
	return l, func() {
		t.Helper()
		if l != nil {
			_ = l.Close()
		}
		must(t, e.Close())
	}, err
}

func mustOpen(t testing.TB, s backend.Store, o Options) *Log {
	t.Helper()
	l, _, err := open(t, s, o)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustAppend(t testing.TB, l *Log, p []byte) uint64 {
	t.Helper()
	lsn, w := l.Append(p)
	must(t, w.Wait())
	return lsn
}

// records replays all of a log from First on.
func records(t testing.TB, l *Log) (all []string) {
	t.Helper()
	next := l.First()
	must(t, l.Replay(t.Context(), 0, func(lsn uint64, p []byte) error {
		if lsn != next {
			t.Fatalf("record %d comes, %d is due", lsn, next)
		}
		next++
		all = append(all, string(p))
		return nil
	}))
	return all
}

// nearAndFar runs test with hosts that serve this process, and with those that serve across a wire.
func nearAndFar(t *testing.T, test func(t *testing.T, user func(*endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint)) {
	t.Run("local", func(t *testing.T) {
		test(t, func(h *endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint { return h.Use })
	})
	t.Run("wire", func(t *testing.T) {
		test(t, func(h *endpointtest.Host) func(endpoint.Options) *endpoint.Endpoint {
			url := h.Listen()
			return func(o endpoint.Options) *endpoint.Endpoint { return h.UseURL(url, o) }
		})
	})
}
