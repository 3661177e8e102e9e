package server

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/config"
)

// belows are the open stores that several others are parts of, by medium. The last of these that closes
// closes the store, too.
type belows struct {
	mu   sync.Mutex // held while stores are opened, not while they are closed
	open map[string]*shared
	made []undoer // of the opening under way; guarded by mu
}

// undoer is a store that can take back what its opening has left on the medium, while it is open and
// nobody has seen it.
type undoer interface{ Undo() error }

// undo takes back what openings have left.
func undo(made []undoer) (errs []error) {
	for _, u := range made {
		if err := u.Undo(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func newBelows() *belows { return &belows{open: make(map[string]*shared)} }

// shared is a store that others are parts of.
type shared struct {
	backend.Store
	all    *belows
	medium string

	mu    sync.Mutex // taken after all.mu; not held over calls
	users []*handle  // guarded by mu
}

// handle is one user's.
type handle struct {
	*shared
	resized func()
}

var _ backend.Wrapper = (*handle)(nil)

// Pass returns the store itself: a handle has no part in anything.
func (h *handle) Pass(backend.Ability) backend.Store { return h.Store }

// Close gives the handle up.
func (h *handle) Close() error {
	if !h.leave() {
		return nil
	}
	return h.Store.Close()
}

// leave counts a user out, and reports whether it was the last one.
func (h *handle) leave() bool {
	s := h.shared
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = slices.DeleteFunc(s.users, func(o *handle) bool { return o == h })
	if len(s.users) > 0 {
		return false
	}
	delete(s.all.open, s.medium)
	return true
}

// tell has the users look at the size of the store.
func (s *shared) tell() {
	s.mu.Lock()
	users := slices.Clone(s.users)
	s.mu.Unlock()
	for _, h := range users {
		h.resized()
	}
}

// openStore opens the store that c describes, and those below. resized is called when its size has
// changed by itself. Made are those among them that may have left something on the medium.
func (b *belows) openStore(c *config.Store, resized func(), log *slog.Logger) (s backend.Store, made []undoer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = nil
	s, err = b.stack(c, resized, log)
	return s, b.made, err
}

// stack is openStore with mu held: it opens the stores from the bottom up. A part of another store that has
// no size of its own grows with that.
func (b *belows) stack(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	o := opening{resized: resized, log: log}
	if c.On == nil {
		s, err := opener(c, o)
		if u, ok := s.(undoer); ok {
			b.made = append(b.made, u)
		}
		return s, err
	}
	open := b.stack
	if storeTypes[c.Type].parts {
		open = b.share
	}
	var (
		look atomic.Pointer[func()] // what is below may tell of its size before there is a part of it
		err  error
	)
	o.below, err = open(c.On, func() {
		if f := look.Load(); f != nil {
			(*f)()
		}
		resized()
	}, log)
	if err != nil {
		return nil, fmt.Errorf("store %q below: %w", c.On.Name, err)
	}
	s, err := opener(c, o)
	if err != nil {
		errs := append([]error{err}, undo(b.made)...)
		b.made = nil
		b.mu.Unlock() // handles take it to close
		defer b.mu.Lock()
		return nil, errors.Join(append(errs, o.below.Close())...)
	}
	if r, ok := s.(backend.Resizer); ok && storeTypes[c.Type].parts && c.Size == 0 {
		f := func() {
			if err := r.Resize(0); err != nil { // what is below has shrunk; operations beyond its end fail
				log.Error("the store keeps its size", "reason", err)
			}
		}
		look.Store(&f)
		f()
	}
	return s, nil
}

// share returns a handle of the store that c describes, which is opened if need be. Called with mu
// held.
func (b *belows) share(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	s := b.open[medium(c)]
	if s == nil {
		s = &shared{all: b, medium: medium(c)}
		var err error
		if s.Store, err = b.stack(c, s.tell, log); err != nil {
			return nil, err
		}
		b.open[s.medium] = s
	}
	h := &handle{s, resized}
	s.mu.Lock()
	s.users = append(s.users, h)
	s.mu.Unlock()
	return h, nil
}
