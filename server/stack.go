package server

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"oneshot/backend"
	"oneshot/backend/slice"
	"oneshot/backend/throttle"
	"oneshot/config"
)

// stacks has what puts a store on the one below, which it owns from then on.
var stacks = map[config.StoreType]func(c *config.Store, below backend.Store) (backend.Store, error){
	config.StoreSlice: func(c *config.Store, below backend.Store) (backend.Store, error) {
		return slice.New(below, c.Slice.Offset, c.Size)
	},
	config.StoreThrottle: func(c *config.Store, below backend.Store) (backend.Store, error) {
		return opened(throttle.New(below, throttle.Limits{Operations: c.Throttle.Operations, Bytes: c.Throttle.Bandwidth}))
	},
}

// belows are the open stores that several slices share, by medium. The last slice that closes closes
// the store, too.
type belows struct {
	mu   sync.Mutex // held while stores are opened, not while they are closed
	open map[string]*shared
}

func newBelows() *belows { return &belows{open: make(map[string]*shared)} }

// shared is a store that several slices stand on.
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
// changed by itself.
func (b *belows) openStore(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stack(c, resized, log)
}

// stack is openStore with mu held. Slices share what is below them, and keep their sizes whatever
// becomes of that.
func (b *belows) stack(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	if c.On == nil {
		return opener(c, resized, log)
	}
	open := b.stack
	if c.Type == config.StoreSlice {
		open = b.share
	}
	below, err := open(c.On, resized, log)
	if err != nil {
		return nil, fmt.Errorf("store %q below: %w", c.On.Name, err)
	}
	s, err := stacks[c.Type](c, below)
	if err != nil {
		b.mu.Unlock() // handles take it to close
		defer b.mu.Lock()
		return nil, errors.Join(err, below.Close())
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
