package server

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

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
	users  int // guarded by all.mu
}

// handle is one user's.
type handle struct{ *shared }

var _ backend.Wrapper = handle{}

// Pass returns the store itself: a handle has no part in anything.
func (h handle) Pass(backend.Ability) backend.Store { return h.Store }

// Close gives the handle up.
func (h handle) Close() error {
	if !h.leave() {
		return nil
	}
	return h.Store.Close()
}

// leave counts a user out, and reports whether it was the last one.
func (s *shared) leave() bool {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.users--
	if s.users > 0 {
		return false
	}
	delete(s.all.open, s.medium)
	return true
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

// stack is openStore with mu held: it opens the stores from the bottom up.
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
	var err error
	if o.below, err = open(c.On, resized, log); err != nil {
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
	return s, nil
}

// share returns a handle of the store that c describes, which is opened if need be. Called with mu
// held.
func (b *belows) share(c *config.Store, _ func(), log *slog.Logger) (backend.Store, error) {
	s := b.open[medium(c)]
	if s == nil {
		store, err := b.stack(c, func() {}, log)
		if err != nil {
			return nil, err
		}
		s = &shared{Store: store, all: b, medium: medium(c)}
		b.open[s.medium] = s
	}
	s.users++
	return handle{s}, nil
}
