package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/ha/quorum"
	"oneshot/mgmt"
)

// A mirror grows so that a crash at any time leaves it as large as it was, or growing:
//
//	all copies    get room, zeroed and durable. If one cannot, it ends here
//	consensus     the record of the store has the new size
//	each node     hears of it, and notes it beside its metadata
//	the primary   has all copies in sync grow in their order; then hosts see the new size (mirror.Grow)
//
// Nothing is written to what is new before consensus has agreed and the node has noted that, so what is zeroed is never something that was written.
// Room that was not used is forgotten with the process: the disk of the next life may be another one, with anything there.

// sizing is how large a copy is.
type sizing struct {
	copied backend.Store
	news   chan struct{} // has room for one: hosts see another size

	grows sync.Mutex                   // held while the administrator has it grow
	mu    sync.Mutex                   // held over changes of the copy's size; taken last
	room  int64                        // bytes that the copy has room for; guarded by mu
	size  int64                        // bytes of the mirror as this node has noted it; guarded by mu
	noted atomic.Pointer[quorum.Store] // that record
}

// roomFor gives a copy that has room for as many as have bytes room for size, and returns for how many it has room then. It gives up between
// two pieces when ctx ends.
func roomFor(ctx context.Context, s backend.Store, size, have int64) (int64, error) {
	if size <= have {
		return have, nil
	}
	if err := lengthen(s, size); err != nil {
		return have, err
	}
	for off := have; off < size; off += zeroPiece {
		if err := ctx.Err(); err != nil {
			return have, err
		}
		if err := doNow(s, backend.Op{Kind: backend.Discard, Off: off, Len: min(zeroPiece, size-off)}); err != nil {
			return have, err
		}
	}
	return size, doNow(s, backend.Op{Kind: backend.Flush})
}

const zeroPiece = 64 << 20

// lengthen makes a copy size bytes large, if it is smaller, and touches nothing of what it has.
func lengthen(s backend.Store, size int64) error {
	if s.Info().Size >= size {
		return nil
	}
	r, ok := backend.As[backend.Resizer](s)
	if !ok {
		return errors.New("the copy cannot grow")
	}
	return r.Resize(size)
}

// doNow does an operation, and waits for it.
func doNow(s backend.Store, op backend.Op) error {
	over := make(waiter, 1)
	op.Done = over
	if !s.Submit(&op) {
		<-over
	}
	return op.Err
}

type waiter chan struct{}

func (w waiter) OpDone(*backend.Op) { w <- struct{}{} }

// mostMirror is how large a mirror can grow, in bytes: what a node notes of its regions, eight bytes of memory for each 16 MiB, is
// 128 MiB then.
const mostMirror = 256 << 40

// makeRoom gives the copy of this node room.
func (s *mirrored) makeRoom(size int64) error {
	if size > mostMirror {
		return fmt.Errorf("a mirror grows to %s at most, and %s were asked for", config.FormatSize(mostMirror), config.FormatSize(size))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.makeRoomLocked(size)
}

// makeRoomLocked is makeRoom with mu held.
func (s *mirrored) makeRoomLocked(size int64) error {
	if s.ctx.Err() != nil { // the copy is closed, or will be: another file may have its descriptor next
		return fmt.Errorf("the mirror %s is being closed on this node", s.name)
	}
	room, err := roomFor(s.ctx, s.copied, size, max(s.room, s.size))
	if err != nil {
		return err
	}
	s.room = room
	s.Room(room)
	return nil
}

// enlarge takes the size on which the nodes have agreed.
func (s *mirrored) enlarge(now *quorum.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.UUID != s.record.UUID || now.Size <= s.size {
		return
	}
	err := s.makeRoomLocked(now.Size)
	if err == nil {
		err = writeRecord(s.dir, now, backend.IdentityOf(s.copied))
	}
	if err != nil {
		s.log.Error("the copy of this node cannot grow as the others have; mend that, and start the node again", "reason", err)
		return
	}
	s.size = now.Size
	s.noted.Store(now)
	s.Grow(now.Size)
}

// learnStore has the copy of a mirror grow as the nodes have agreed on. If the mirror was forgotten it looks whether that is so still: in a new life
// a node learns again what was long ago, and another mirror may have had that name.
func (m *member) learnStore(r *quorum.Record) {
	work := (*mirrored).confirm
	if !r.Deleted {
		now, err := quorum.DecodeStore(r.Value)
		if err != nil {
			return
		}
		work = func(s *mirrored) { s.enlarge(now) }
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.open {
		if s.name == r.Name && s.ctx.Err() == nil {
			s.wg.Go(func() { work(s) })
		}
	}
}

// growTime is how long the primary waits until all copies have room, and then until they have grown.
const growTime = 5 * time.Minute

// GrowMirror implements mgmt.Mirrorer.
func (s *Server) GrowMirror(ctx context.Context, name string, size int64) error {
	return s.atPrimary(name, func(m *mirrored, peer *mgmt.Client) error {
		if peer != nil {
			return peer.GrowMirror(ctx, name, size)
		}
		return m.growTo(ctx, size)
	})
}

// GrowMirror implements mgmt.Mirrorer.
func (h here) GrowMirror(ctx context.Context, name string, size int64) error {
	m, err := h.localPrimary(name)
	if err != nil {
		return err
	}
	return m.growTo(ctx, size)
}

// MakeRoom implements mgmt.Peer.
func (h here) MakeRoom(name string, size int64) error {
	m := h.local(name)
	if m == nil {
		return fmt.Errorf("node %s has no copy of %s open", h.member.name, name)
	}
	return m.makeRoom(size)
}

// growTo makes the mirror, of which this node is the primary, larger.
func (s *mirrored) growTo(ctx context.Context, size int64) error {
	s.grows.Lock()
	defer s.grows.Unlock()
	ctx, cancel := context.WithTimeout(ctx, growTime)
	defer cancel()
	has := s.Info().Size
	switch {
	case size < has:
		return fmt.Errorf("the mirror %s has %s, and stores do not shrink: name a larger size", s.name, config.FormatSize(has))
	case size%int64(s.record.BlockSize) != 0:
		return fmt.Errorf("%d bytes are not a multiple of the block size, %d", size, s.record.BlockSize)
	}
	if err := s.roomEverywhere(ctx, size); err != nil {
		return fmt.Errorf("the mirror %s keeps its size, %s: %w", s.name, config.FormatSize(has), err)
	}
	var agreed *quorum.Store
	err := s.quorum.Update(ctx, quorum.Key{Kind: quorum.KindStore, Name: s.name}, func(old []byte) ([]byte, error) {
		now, err := quorum.DecodeStore(old)
		if err != nil || now.UUID != s.record.UUID {
			return nil, errors.Join(err, fmt.Errorf("the mirror %s is another one now", s.name))
		}
		if size > now.Size {
			now.Sizes, now.Size = append(now.Sizes, now.Size), size
		}
		agreed = now
		return now.Encode(), nil
	})
	if err != nil {
		return fmt.Errorf("it is not known whether the mirror %s grows: %w", s.name, noMajority(err))
	}
	s.enlarge(agreed)
	for s.Info().Size < size {
		select {
		case <-s.news:
		case <-ctx.Done():
			return fmt.Errorf("the mirror %s will have %s as soon as all copies in sync have grown: see target ha status", s.name, config.FormatSize(size))
		}
	}
	return nil
}

// roomEverywhere has all copies get room.
func (s *mirrored) roomEverywhere(ctx context.Context, size int64) error {
	failed := make([]error, len(s.record.Copies))
	var wg sync.WaitGroup
	for i, name := range s.record.Copies {
		wg.Go(func() {
			var err error
			if name == s.node {
				err = s.makeRoom(size)
			} else {
				c := s.member.peer(name)
				err = c.MakeRoom(ctx, s.name, size)
				c.Close()
			}
			if err != nil {
				failed[i] = fmt.Errorf("the copy of node %s cannot grow: %w", name, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		words := strings.Split(err.Error(), "\n")
		return errors.New(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "; "))
	}
	return nil
}

// Resize implements backend.Resizer: a configuration that says the size that the mirror has, or has had, changes nothing.
func (s *mirrored) Resize(size int64) error {
	if has := s.Info().Size; size != has && !slices.Contains(s.noted.Load().Sizes, size) {
		return fmt.Errorf("the mirror has %s: to make it larger run target ha grow %s, then write the size that it has then", config.FormatSize(has), s.name)
	}
	return nil
}
