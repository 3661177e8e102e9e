package server

import (
	"strings"
	"sync/atomic"
	"testing"

	"oneshot/backend"
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

// TestRoomOfAClosedCopy: who makes room in a copy, piece by piece, stops when the copy is closed, and nothing is done with it afterwards:
// its descriptor may be that of another file then.
func TestRoomOfAClosedCopy(t *testing.T) {
	text, on := clusterOn(t)
	text = strings.NewReplacer(
		"stores: {d: {type: memory, size: 16MiB}}", "stores: {d: {type: mirror, size: 16MiB, copies: {a: {type: file, path: a.img}, b: {type: file, path: b.img}}}}",
		"{node: a, iqn:", "{iqn:",
	).Replace(text)
	s := newServer(t, on(text))
	m := s.mirrors()[0]
	if err := m.Await(t.Context(), func(now replica.State) bool { return now.Role == replica.Primary }); err != nil {
		t.Fatal(err)
	}
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
