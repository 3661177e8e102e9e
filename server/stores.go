package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/scsi"
	"oneshot/state"
)

// units are the logical units and the stores behind them. LUNs that show a store alike share
// one logical unit, its task set and its unit attentions.
type units struct {
	log    *slog.Logger
	state  *state.Dir            // nil: nothing is kept over restarts
	stores map[string]*openStore // by medium
	made   map[unitKey]*scsi.LogicalUnit
}

func newUnits(log *slog.Logger, dir *state.Dir) units {
	return units{log: log, state: dir, stores: make(map[string]*openStore), made: make(map[unitKey]*scsi.LogicalUnit)}
}

// openStore is a store that logical units use. It has a handle of its own.
type openStore struct {
	name string // for messages
	shared
	showing *showing
}

// unitKey is all that LUNs can differ in if they are not to share a logical unit.
type unitKey struct {
	store *openStore
	lun   config.LUN // without its number, its place in the file and the store's name
}

func keyOf(t *config.Target, l *config.LUN, s *openStore) unitKey {
	lun := *l
	if lun.Serial == "" {
		lun.Serial = identity(t.Name, l.Store)
	}
	lun.Number, lun.Pos, lun.Store = 0, config.Position{}, ""
	return unitKey{s, lun}
}

// identity is what names a logical unit for good: a serial number that depends only on the
// names in the configuration, so that it is the same after every restart.
func identity(target, store string) string {
	sum := sha256.Sum256([]byte(target + "\x00" + store))
	return hex.EncodeToString(sum[:10])
}

// unit returns the logical unit for l of target t, which shows the open store s.
func (u *units) unit(t *config.Target, l *config.LUN, s *openStore) (*scsi.LogicalUnit, error) {
	key := keyOf(t, l, s)
	if lu := u.made[key]; lu != nil {
		return lu, nil
	}
	handle := s.share()
	cfg := scsi.LUConfig{
		Store: handle, BlockSize: l.BlockSize, PhysicalBlockSize: l.PhysicalBlockSize, ReadOnly: l.ReadOnly,
		Vendor: l.Vendor, Product: l.Product, Serial: key.lun.Serial,
		NAA:       scsi.LocalNAA(key.lun.Serial),
		Removable: l.Removable, TPGS: tpgs[l.ALUA],
		Logger: u.log.With("target", t.Name, "lun", l.Number, "store", l.Store),
	}
	u.keep(&cfg, &key, l)
	lu, err := scsi.NewLogicalUnit(cfg)
	if err != nil {
		_ = handle.Close()
		return nil, fmt.Errorf("%s: LUN %d cannot show store %q: %w", l.Pos, l.Number, l.Store, err)
	}
	u.made[key] = lu
	s.showing.add(lu)
	return lu, nil
}

var tpgs = map[config.ALUA]scsi.TPGS{
	config.ALUAImplicit: scsi.ALUAImplicit,
	config.ALUAExplicit: scsi.ALUAExplicit,
	config.ALUABoth:     scsi.ALUAImplicit | scsi.ALUAExplicit,
}

// keep has what a logical unit needs over restarts kept, if there is where. LUNs that show one disk
// in different ways are logical units of their own with one name; the first of them has it.
func (u *units) keep(cfg *scsi.LUConfig, key *unitKey, l *config.LUN) {
	if u.state == nil {
		return
	}
	for other := range u.made {
		if other.lun.Serial == key.lun.Serial {
			u.log.Warn("two LUNs show one disk in different ways: reservations of the second are not kept over restarts",
				"serial", key.lun.Serial, "lun", l.Number, "line", l.Pos.Line)
			return
		}
	}
	cfg.Reservations = u.state.File(key.lun.Serial)
	if !l.ReadOnly {
		cfg.Journal = u.state.Journal(key.lun.Serial)
	}
}

// openStore opens the store that c describes.
func (u *units) openStore(c *config.Store) (*openStore, error) {
	showing := &showing{}
	s, err := opener(c, showing.sizeChanged, u.log.With("store", c.Name))
	if err != nil {
		return nil, fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err)
	}
	return &openStore{c.Name, newShared(s), showing}, nil
}

// without returns what is in u and not in other.
func (u *units) without(other *units) units {
	rest := newUnits(u.log, u.state)
	for key, lu := range u.made {
		if other.made[key] == nil {
			rest.made[key] = lu
		}
	}
	for medium, s := range u.stores {
		if other.stores[medium] != s {
			rest.stores[medium] = s
		}
	}
	return rest
}

// close closes every unit, and so every store. Units with tasks in them, which hang in their
// stores, are left.
func (u *units) close() (errs []error) {
	said := make(map[string]bool) // the units of a store may fail alike
	note := func(s *openStore, err error) {
		if err == nil {
			return
		}
		err = fmt.Errorf("store %q: %w", s.name, err)
		if text := err.Error(); !said[text] {
			said[text] = true
			errs = append(errs, err)
		}
	}
	for key, lu := range u.made {
		key.store.showing.remove(lu)
		if !lu.Idle() {
			note(key.store, fmt.Errorf("commands hang in it; what was not flushed may be lost"))
			continue
		}
		note(key.store, lu.Close())
	}
	for _, s := range u.stores {
		note(s, s.Close())
	}
	clear(u.made)
	clear(u.stores)
	return errs
}

// shared is a store with several owners; the last to close it closes it.
type shared struct {
	backend.Store
	refs *atomic.Int32
}

var _ backend.Wrapper = shared{}

func newShared(s backend.Store) shared {
	refs := new(atomic.Int32)
	refs.Store(1)
	return shared{s, refs}
}

// share returns s for one more owner.
func (s shared) share() shared {
	s.refs.Add(1)
	return s
}

// Pass returns the store itself: a handle has no part in anything.
func (s shared) Pass(backend.Ability) backend.Store { return s.Store }

// Close gives up one owner's handle.
func (s shared) Close() error {
	if s.refs.Add(-1) > 0 {
		return nil
	}
	return s.Store.Close()
}
