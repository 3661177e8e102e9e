package server

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// slowCopy is a copy whose discards wait, and are counted.
type slowCopy struct {
	backend.Store
	discards atomic.Int32
	began    chan struct{} // has room for all
	goOn     chan struct{} // closed: they wait no more
}

func (s *slowCopy) Resize(size int64) error { return s.Store.(backend.Resizer).Resize(size) }

func (s *slowCopy) Submit(op *backend.Op) bool {
	if op.Kind == backend.Discard {
		s.discards.Add(1)
		s.began <- struct{}{}
		<-s.goOn
	}
	return s.Store.Submit(op)
}

// primary returns the mirror of a server when its node is the primary.
func primary(t *testing.T, s *Server) *mirrored {
	t.Helper()
	m := s.mirrors()[0]
	if err := m.Await(t.Context(), func(now replica.State) bool { return now.Role == replica.Primary }); err != nil {
		t.Fatal(err)
	}
	return m
}

// mirrorOn is clusterOn with a mirror.
func mirrorOn(t *testing.T) (text string, on func(text string) *config.Config) {
	t.Helper()
	text, on = clusterOn(t)
	return strings.NewReplacer(
		"stores: {d: {type: memory, size: 16MiB}}", "stores: {d: {type: mirror, size: 16MiB, copies: {a: {type: file, path: a.img}, b: {type: file, path: b.img}}}}",
		"{node: a, iqn:", "{iqn:",
	).Replace(text), on
}

// TestRoomOfAClosedCopy: who makes room in a copy, piece by piece, stops when the copy is closed, and nothing is done with it afterwards:
// its descriptor may be that of another file then.
func TestRoomOfAClosedCopy(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	m := primary(t, s)
	slow := &slowCopy{began: make(chan struct{}, 100), goOn: make(chan struct{})}
	m.sizing.mu.Lock()
	slow.Store, m.copied = m.copied, slow
	m.sizing.mu.Unlock()
	made, down := make(chan error, 1), make(chan struct{})
	go func() { made <- m.makeRoom(16<<20 + 4*zeroPiece) }()
	<-slow.began
	go func() {
		defer close(down)
		shutdown(t, s)
	}()
	<-m.ctx.Done()
	close(slow.goOn)
	if err := <-made; err == nil {
		t.Error("a copy that is closed has got room")
	}
	<-down
	if err := m.makeRoom(32 << 20); err == nil {
		t.Error("a copy that was closed has got room")
	}
	if n := slow.discards.Load(); n != 1 {
		t.Errorf("%d pieces of a copy that is closed were discarded", n)
	}
}

// TestGrowIsBounded: no size, whoever asks for it, makes a node note more than it has memory for. The copy is not touched.
func TestGrowIsBounded(t *testing.T) {
	for _, size := range []int64{mostMirror + 1, 1 << 60} {
		if err := new(mirrored).makeRoom(size); err == nil || !strings.Contains(err.Error(), "256TiB at most") {
			t.Errorf("room for %d bytes: %v", size, err)
		}
	}
}

// agreeOn has the nodes agree on a size of a mirror of which all copies have room for that.
func (s *Server) agreeOn(t *testing.T, size int64) {
	t.Helper()
	err := s.member.node.Update(t.Context(), quorum.Key{Kind: quorum.KindStore, Name: "d"}, func(old []byte) ([]byte, error) {
		now, err := quorum.DecodeStore(old)
		if err == nil && now.Size != size {
			now.Sizes, now.Size = append(now.Sizes, now.Size), size
		}
		return now.Encode(), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGrownTwice: a mirror has grown twice since the daemon was started. A configuration with a size that it has had is taken.
func TestGrownTwice(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := s.mirrors()[0]
	for _, size := range []int64{24 << 20, 32 << 20} {
		s.agreeOn(t, size)
		if err := m.Await(t.Context(), func(replica.State) bool { return m.Info().Size == size }); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []string{"24MiB", "16MiB", "32MiB"} {
		if _, err := s.Apply(on(strings.Replace(text, "size: 16MiB", "size: "+size, 1))); err != nil {
			t.Error(err)
		}
	}
}

// TestGrownWhileAway: a node ends before it has heard that the mirror grows. It begins with the configuration that has the new size.
func TestGrownWhileAway(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	noted := filepath.Join(s.member.state, mirrorsDir, "d", recordFile)
	before, err := os.ReadFile(noted)
	if err != nil {
		t.Fatal(err)
	}
	const size = 24 << 20
	s.agreeOn(t, size)
	shutdown(t, s)
	if err := os.WriteFile(noted, before, 0o600); err != nil {
		t.Fatal(err)
	}
	grown := strings.Replace(text, "size: 16MiB", "size: 24MiB", 1)
	if _, err := New(on(strings.Replace(text, "size: 16MiB", "size: 32MiB", 1)), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "the mirror has 24MiB, and the configuration says 32MiB") {
		t.Errorf("another size: %v", err)
	}
	s = newServer(t, on(grown))
	defer shutdown(t, s)
	m := s.mirrors()[0]
	if err := m.Await(t.Context(), func(replica.State) bool { return m.Info().Size == size }); err != nil {
		t.Fatal(err)
	}
}

// TestRoomOnAnotherDisk: a copy got room that was not used, and then another disk. What that one has there does not come to light when the mirror grows.
func TestRoomOnAnotherDisk(t *testing.T) {
	text, on := mirrorOn(t)
	const has, size = 16 << 20, 24 << 20
	s := newServer(t, on(text))
	if err := s.mirrors()[0].makeRoom(size); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(filepath.Dir(s.member.state), "a.img")
	shutdown(t, s)
	other := disk + ".other"
	err := os.WriteFile(other, bytes.Repeat([]byte("another"), size/7+1)[:size], 0o600)
	if err := errors.Join(err, os.Rename(other, disk)); err != nil {
		t.Fatal(err)
	}
	s = newServer(t, on(text))
	err = s.mirrors()[0].makeRoom(size)
	shutdown(t, s)
	b, readErr := os.ReadFile(disk)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b[has:], make([]byte, size-has)) {
		t.Errorf("the room of the copy begins with %q", b[has:has+20])
	}
}
