package server

import (
	"context"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
)

// Other processes can map the I/O memory. It ends with the server.
func TestSharedMemory(t *testing.T) {
	s, err := New(parse(t, `
stores: {d: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{listen: "127.0.0.1:0"}]
`), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := s.pool.Lease(4096)
	copy(l.Bytes(), "hello")
	fd, _ := s.pool.File()
	a, off := l.Arena()
	var got [5]byte
	if _, err := unix.Pread(fd, got[:], a.Offset()+int64(off)); err != nil || string(got[:]) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	l.Release()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if _, ok := s.pool.File(); ok {
		t.Error("the memory outlives the server")
	}
}
