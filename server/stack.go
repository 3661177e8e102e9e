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
	"oneshot/backend/slice"
	"oneshot/config"
	"oneshot/state"
)

// belows holds the open stores of which other stores are parts, by medium. Closing the last part closes
// the store, too.
type belows struct {
	mu     sync.Mutex // held while stores are opened, not while they are closed
	open   map[string]*shared
	made   []heldFile      // stores that the current call of openStore has opened; guarded by mu
	stale  []*config.Store // that are shared, and were opened with other options; guarded by mu
	member *member         // of the cluster; nil: there is none
	state  *state.Dir      // nil: nothing is kept over restarts
}

// heldFile is a store in a file that it holds open.
type heldFile interface {
	// Undo undoes what opening has changed on the medium, such as a new file. It is called while the store is open and nobody has used it.
	Undo() error
	Created() bool
	Replaced() bool
	Path() string
}

// undo undoes what the openings of stores have changed on their media.
func undo(made []heldFile) (errs []error) {
	for _, u := range made {
		if err := u.Undo(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func newBelows(m *member, d *state.Dir) *belows {
	return &belows{open: make(map[string]*shared), member: m, state: d}
}

// shared is a store of which other stores are parts.
type shared struct {
	backend.Store
	all    *belows
	medium string
	config *config.Store // with which it was opened

	mu    sync.Mutex // taken after all.mu; not held over calls
	users []*handle  // guarded by mu
}

// handle is the store as one of its users sees it.
type handle struct {
	*shared
	user    string // the name of the store that is a part
	resized func()

	off, size int64 // bytes that are its own; guarded by shared.mu
}

var (
	_ backend.Wrapper = (*handle)(nil)
	_ slice.Claimer   = (*handle)(nil)
)

// Claim implements slice.Claimer. Those who have left the configuration and have commands still are users, too: what these write is not
// to come over what somebody else has written.
func (h *handle) Claim(off, size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.users {
		if o != h && off < o.off+o.size && o.off < off+size {
			return fmt.Errorf("the store %q has %d of these bytes from %d on, and is open: take it away first, by a reload of its own; if it is away, its commands have not ended", o.user, o.size, o.off)
		}
	}
	h.off, h.size = off, size
	return nil
}

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
func (b *belows) openStore(c *config.Store, resized func(), log *slog.Logger) (s backend.Store, made []heldFile, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = nil
	s, err = b.stack(c, resized, log)
	return s, b.made, err
}

// stack is openStore with mu held. It opens the stores from the bottom up. A part of another store that has no
// size of its own grows with that store.
func (b *belows) stack(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	o := opening{resized: resized, log: log, member: b.member, state: b.state}
	if c.On == nil {
		s, err := opener(c, o)
		if u, ok := s.(heldFile); ok {
			b.made = append(b.made, u)
		}
		if err == nil && b.member != nil && c.Type != config.StoreMirror && !c.ReadOnly {
			if err = b.member.isNoCopy(s); err != nil {
				err, b.made = abandon(s, b.made, err), nil
			}
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
	if h, ok := o.below.(*handle); ok {
		h.user = c.Name // nobody else looks at it before it claims something
	}
	s, err := opener(c, o)
	if err != nil {
		errs := append([]error{err}, undo(b.made)...)
		b.made = nil
		b.mu.Unlock() // closing a handle takes it
		defer b.mu.Lock()
		return nil, errors.Join(append(errs, o.below.Close())...)
	}
	if p, ok := s.(interface{ Follow() error }); ok {
		f := func() {
			if err := p.Follow(); err != nil { // the store below has shrunk; operations beyond its end fail
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
		s = &shared{all: b, medium: medium(c), config: c}
		var err error
		if s.Store, err = b.stack(c, s.tell, log); err != nil {
			return nil, err
		}
		b.open[s.medium] = s
	} else if err := b.compare(s, c); err != nil {
		return nil, err
	}
	h := &handle{shared: s, resized: resized}
	s.mu.Lock()
	s.users = append(s.users, h)
	s.mu.Unlock()
	return h, nil
}

// compare notes that a store which is open was opened with other options than a configuration says. It fails if that makes it of no use.
// mu is held.
func (b *belows) compare(s *shared, c *config.Store) error {
	if storeTypes[bottom(c).Type].modal && bottom(s.config).ReadOnly && !bottom(c).ReadOnly {
		return fmt.Errorf("the store %q was opened read-only, and other slices of it are open: take them away first, by a reload of its own, or restart", c.Name)
	}
	if (s.config.Size != c.Size || !equal(storeOptions(s.config), storeOptions(c))) && !slices.Contains(b.stale, c) {
		b.stale = append(b.stale, c)
	}
	return nil
}

// takeStale returns the stores that were found to be open with other options since the last call.
func (b *belows) takeStale() []*config.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.stale
	b.stale = nil
	return list
}
