package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// until returns what f returns, or the error of ctx if that ends first. Then nobody waits for f any more, which uses nothing of the
// caller's: a pipe may be empty, or full, as long as it likes, and a signal ends the program all the same.
func until[T any](ctx context.Context, f func() (T, error)) (v T, err error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return v, ctx.Err()
	}
}

// isPatient reports whether who reads or writes x may have to wait for another program.
func isPatient(x any) bool {
	f, ok := x.(*os.File)
	if !ok {
		return true
	}
	i, err := f.Stat()
	return err != nil || !i.Mode().IsRegular()
}

const chunk = 256 << 10

// reader reads from r until ctx ends.
type reader struct {
	ctx  context.Context
	r    io.Reader
	b    []byte
	rest []byte // of b: has been read from r
	err  error  // what comes behind rest
}

func readUntil(ctx context.Context, r io.Reader) io.Reader {
	if !isPatient(r) {
		return r
	}
	return &reader{ctx: ctx, r: r, b: make([]byte, chunk)}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := until(r.ctx, func() (int, error) { return r.r.Read(r.b) })
		r.rest, r.err = r.b[:n], err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// writer writes to w until ctx ends.
type writer struct {
	ctx context.Context
	w   io.Writer
	b   []byte
	err error // of an earlier Write, which may use b still
}

func writeUntil(ctx context.Context, w io.Writer) io.Writer {
	if !isPatient(w) {
		return w
	}
	return &writer{ctx: ctx, w: w, b: make([]byte, chunk)}
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (done int, err error) {
	for len(p) > 0 && w.err == nil {
		part := w.b[:copy(w.b, p)]
		var n int
		n, w.err = until(w.ctx, func() (int, error) { return w.w.Write(part) })
		done, p = done+n, p[n:]
	}
	return done, w.err
}

// open opens a file to be read.
func open(ctx context.Context, name string) (*os.File, error) {
	return until(ctx, func() (*os.File, error) { return os.Open(name) })
}

// create opens a file to be written, which it empties.
func create(ctx context.Context, name string) (*os.File, error) {
	return until(ctx, func() (*os.File, error) { return os.Create(name) })
}

// keep makes durable what was written to f, if err is nil, and closes it.
func keep(f *os.File, err error) error {
	if err == nil {
		if err = f.Sync(); errors.Is(err, unix.EINVAL) { // a pipe, or a device that keeps nothing
			err = nil
		}
	}
	return errors.Join(err, f.Close())
}

// plain returns s without what a terminal would take for commands: a target can say anything.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// plainLines is plain for a text of several lines. It leaves repetitions out: commands that were under way together often fail for one reason.
func plainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = plain(l)
	}
	return strings.Join(slices.Compact(lines), "\n")
}
