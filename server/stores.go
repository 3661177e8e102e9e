package server

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/backend/memory"
	"oneshot/config"
	"oneshot/scsi"
)

// units makes logical units out of the stores of a configuration. A store is opened when
// the first LUN asks for it, and LUNs that show it alike share one logical unit, its task
// set and its unit attentions.
type units struct {
	cfg    *config.Config
	log    *slog.Logger
	made   map[unitKey]*scsi.LogicalUnit
	stores map[string]backend.Store
}

// unitKey is all that LUNs of one store can differ in.
type unitKey struct {
	store, serial, vendor, product string
	blockSize                      int
	readOnly                       bool
}

// get returns the logical unit for l of target t.
func (u *units) get(t *config.Target, l config.LUN) (*scsi.LogicalUnit, error) {
	serial := l.Serial
	if serial == "" {
		serial = identity(t.Name, l.Store)
	}
	key := unitKey{l.Store, serial, l.Vendor, l.Product, l.BlockSize, l.ReadOnly}
	if lu := u.made[key]; lu != nil {
		return lu, nil
	}
	store, err := u.store(l.Store)
	if err != nil {
		return nil, err
	}
	lu, err := scsi.NewLogicalUnit(scsi.LUConfig{
		Store: store, BlockSize: l.BlockSize, ReadOnly: l.ReadOnly,
		Vendor: l.Vendor, Product: l.Product, Serial: serial,
		NAA:    scsi.LocalNAA(serial),
		Logger: u.log.With("target", t.Name, "lun", l.Number, "store", l.Store),
	})
	if err != nil {
		_ = store.Close()
		return nil, fmt.Errorf("%s: LUN %d cannot show store %q: %w", l.Pos, l.Number, l.Store, err)
	}
	u.made[key] = lu
	return lu, nil
}

// store opens a store, or returns one more handle on it.
func (u *units) store(name string) (backend.Store, error) {
	if s := u.stores[name]; s != nil {
		return share(s), nil
	}
	c := u.cfg.Store(name)
	s, err := u.open(c)
	if err != nil {
		return nil, fmt.Errorf("%s: store %q: %w", c.Pos, name, err)
	}
	s = newShared(s)
	u.stores[name] = s
	return s, nil
}

func (u *units) open(c *config.Store) (backend.Store, error) {
	if c.File == nil {
		return memory.New(c.Size)
	}
	cache := file.Writeback
	if c.File.Cache == config.CacheWritethrough {
		cache = file.Writethrough
	}
	return file.Open(file.Config{
		Path: c.File.Path, Size: c.Size, Sparse: c.File.Sparse, Direct: c.File.Direct, Cache: cache,
		Log: u.log.With("store", c.Name),
	})
}

// close closes every unit, and so every store.
func (u *units) close() (errs []error) {
	for key, lu := range u.made {
		if err := lu.Close(); err != nil {
			errs = append(errs, fmt.Errorf("store %q: %w", key.store, err))
		}
	}
	clear(u.made)
	return errs
}

// shared is a store with several owners; the last to close it closes it.
type shared struct {
	backend.Store
	refs *atomic.Int32
}

// sharedLender is shared for a store that lends its memory.
type sharedLender struct {
	backend.Lender
	refs *atomic.Int32
}

func newShared(s backend.Store) backend.Store {
	refs := new(atomic.Int32)
	refs.Store(1)
	if l, ok := s.(backend.Lender); ok {
		return sharedLender{l, refs}
	}
	return shared{s, refs}
}

// share returns s for one more owner.
func share(s backend.Store) backend.Store {
	switch s := s.(type) {
	case shared:
		s.refs.Add(1)
	case sharedLender:
		s.refs.Add(1)
	}
	return s
}

// Close implements backend.Store.
func (s shared) Close() error { return closeLast(s.Store, s.refs) }

// Close implements backend.Store.
func (s sharedLender) Close() error { return closeLast(s.Lender, s.refs) }

func closeLast(s backend.Store, refs *atomic.Int32) error {
	if refs.Add(-1) > 0 {
		return nil
	}
	return s.Close()
}
