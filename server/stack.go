package server

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/backend/aging"
	"oneshot/config"
)

// belows holds the open stores of which other stores are parts, by medium. Closing the last part closes
// the store, too.
type belows struct {
	mu     sync.Mutex // held while stores are opened, not while they are closed
	open   map[string]*shared
	made   []undoer // stores that the current call of openStore has opened; guarded by mu
	member *member  // of the cluster; nil: there is none
}

// undoer is a store that can undo what its opening has changed on the medium, such as a new file. Undo is
// called while the store is open and nobody has used it.
type undoer interface{ Undo() error }

// undo undoes what the openings of stores have changed on their media.
func undo(made []undoer) (errs []error) {
	for _, u := range made {
		if err := u.Undo(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func newBelows(m *member) *belows { return &belows{open: make(map[string]*shared), member: m} }

// shared is a store of which other stores are parts.
type shared struct {
	backend.Store
	all    *belows
	medium string

	mu    sync.Mutex // taken after all.mu; not held over calls
	users []*handle  // guarded by mu
}

// handle is the store as one of its users sees it.
type handle struct {
	*shared
	resized func()
}

var _ backend.Wrapper = (*handle)(nil)

// Pass returns the store itself: a handle changes nothing about its abilities.
func (h *handle) Pass(backend.Ability) backend.Store { return h.Store }

// Close gives the handle up.
func (h *handle) Close() error {
	if !h.leave() {
		return nil
	}
	return h.Store.Close()
}

// leave removes a user, and reports whether it was the last one.
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

// tell tells the users that the size of the store has changed.
func (s *shared) tell() {
	s.mu.Lock()
	users := slices.Clone(s.users)
	s.mu.Unlock()
	for _, h := range users {
		h.resized()
	}
}

// openStore opens the store that c describes, and the stores below it. It calls resized when the size of the
// store has changed by itself. made lists those of the stores whose opening may have changed their medium.
func (b *belows) openStore(c *config.Store, resized func(), log *slog.Logger) (s backend.Store, made []undoer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = nil
	s, err = b.stack(c, resized, log)
	return s, b.made, err
}

// stack is openStore with mu held. It opens the stores from the bottom up. A part of another store that is
// configured without a size grows with that store.
func (b *belows) stack(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	o := opening{resized: resized, log: log, member: b.member}
	if c.On == nil {
		s, err := opener(c, o)
		if u, ok := s.(undoer); ok {
			b.made = append(b.made, u)
		}
		if err != nil {
			return nil, err
		}
		return aging.New(s, aging.Config{Window: c.Aging, Name: c.Name, Logger: log}), nil
	}
	open := b.stack
	if storeTypes[c.Type].parts {
		open = b.share
	}
	var (
		look atomic.Pointer[func()] // nil until the part exists; the store below may report a new size before
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
		b.mu.Unlock() // closing a handle takes it
		defer b.mu.Lock()
		return nil, errors.Join(append(errs, o.below.Close())...)
	}
	if r, ok := s.(backend.Resizer); ok && storeTypes[c.Type].parts && c.Size == 0 {
		f := func() {
			if err := r.Resize(0); err != nil { // the store below has shrunk; operations beyond its end fail
				log.Error("the store keeps its size", "reason", err)
			}
		}
		look.Store(&f)
		f()
	}
	return s, nil
}

// share returns a handle of the store that c describes. It opens the store unless it is open. mu is held.
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
