package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
)

// errReader gives b, then fails.
type errReader struct {
	b   io.Reader
	err error
}

func (r *errReader) Read(p []byte) (int, error) {
	n, err := r.b.Read(p)
	if errors.Is(err, io.EOF) {
		err = r.err
	}
	return n, err
}

type fullWriter struct{ room int }

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

var errFull = errors.New("no room")

// Copies of more than their operations hold, near and far, with an end within a unit.
func TestCopy(t *testing.T) {
	const size = 12 << 20
	disk := backendtest.NewDisk(size, 512)
	h := endpointtest.New(t, disk)
	far := h.Listen()
	for i, url := range []string{endpointtest.URL, far} {
		e := h.UseURL(url, endpoint.Options{Device: h.Device})
		all := bytes.Repeat([]byte{9 + byte(i)}, size)
		if n, err := e.CopyFrom(t.Context(), bytes.NewReader(all), 0, nil); n != size || err != nil {
			t.Fatalf("%d octets, %v", n, err)
		}
		text := []byte(strings.Repeat("how much is copied? ", size/40)[:size/2-77])
		copy(all[1024:], text)
		var told int64
		if n, err := e.CopyFrom(t.Context(), bytes.NewReader(text), 1024, func(n int64) { told = n }); n != int64(len(text)) || told != n || err != nil {
			t.Fatalf("%d octets, %d told, %v", n, told, err)
		}
		var back bytes.Buffer
		if err := e.CopyTo(t.Context(), &back, 512, size-1000, func(n int64) { told = n }); err != nil || told != size-1000 || !bytes.Equal(back.Bytes(), all[512:size-488]) {
			t.Fatalf("%d octets come back, %d told, %v", back.Len(), told, err)
		}
		stop, cancel := context.WithCancel(t.Context())
		cancel()
		odd := errors.New("odd")
		for what, err := range map[string]error{
			"outside":    e.CopyTo(t.Context(), &back, 512, size, nil),
			"odd offset": e.CopyTo(t.Context(), &back, 100, 512, nil),
			"cancelled":  e.CopyTo(stop, &back, 0, size, nil),
			"no room":    e.CopyTo(t.Context(), &fullWriter{3 << 20}, 0, size, nil),
			"too long":   func() error { _, err := e.CopyFrom(t.Context(), bytes.NewReader(all), 512, nil); return err }(),
			"bad source": func() error {
				_, err := e.CopyFrom(t.Context(), &errReader{bytes.NewReader(all[:2<<20]), odd}, 0, nil)
				return err
			}(),
		} {
			if err == nil || what == "no room" && !errors.Is(err, errFull) || what == "bad source" && !errors.Is(err, odd) || what == "cancelled" && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// A copy ends with the first operation that fails, and says how far it came.
func TestCopyFails(t *testing.T) {
	const size = 16 << 20
	f := faulty.New(backendtest.NewDisk(size, 512), 1)
	h := endpointtest.New(t, f)
	e := h.Use(endpoint.Options{})
	f.Fail(faulty.Match{Kinds: []backend.Kind{backend.Write, backend.Read}, Off: 5 << 20, Len: 512}, errFull)
	if n, err := e.CopyFrom(t.Context(), bytes.NewReader(make([]byte, size)), 0, nil); err == nil || n != 5<<20 {
		t.Errorf("%d octets, %v", n, err)
	}
	var back bytes.Buffer
	if err := e.CopyTo(t.Context(), &back, 0, size, nil); err == nil || back.Len() != 5<<20 {
		t.Errorf("%d octets, %v", back.Len(), err)
	}
}
