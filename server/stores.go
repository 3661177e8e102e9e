package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/nvmf"
	"oneshot/partition/registry"
	"oneshot/scsi"
	"oneshot/state"
	"oneshot/transport/rdma"
	"oneshot/volume"
)

// units holds the logical units and the stores behind them. LUNs that show a store in the same way
// share one logical unit, with its task set and its unit attentions.
type units struct {
	log        *slog.Logger
	state      *state.Dir            // nil: nothing is kept over restarts
	belows     *belows               // shared by all configurations since the start
	partitions *registry.Registry    // the same
	heaps      *heaps                // the same
	divided    map[string]*divided   // by medium
	stores     map[string]*openStore // by medium
	made       map[unitKey]*scsi.LogicalUnit
	spaces     map[spaceKey]*nvmf.Namespace
}

// fresh returns units that are empty.
func (u *units) fresh() units {
	return units{
		log: u.log, state: u.state, belows: u.belows, partitions: u.partitions, heaps: u.heaps,
		divided: make(map[string]*divided), stores: make(map[string]*openStore), made: make(map[unitKey]*scsi.LogicalUnit),
		spaces: make(map[spaceKey]*nvmf.Namespace),
	}
}

// openStore is a store that logical units show, with its volume. Each store has one volume, which
// stays while the LUNs that show it come, go and change. Or it is a
// partition, whose volume is the registry's.
type openStore struct {
	name     string           // for messages
	opened   *config.Store    // what it was opened for, but for the size, which is the one in force; nil: it is a partition
	identity backend.Identity // may be empty; that of a partition is
	volume   *volume.Volume
	made     []heldFile      // those that opening it has opened, which is undone if the change is abandoned
	shown    *registry.Shown // nil: it is no partition
	mirror   *mirrored       // nil: it is none
	heap     *heapHost       // nil: it keeps no objects
	serial   string          // of its logical units; empty: it is made of names
	views    atomic.Int32    // units and namespaces that show it, those that a change has removed and that have commands still among them
}

// idle reports whether nothing uses the volume that keeps it from being closed.
func (s *openStore) idle() bool { return s.shown != nil || s.volume.Idle() }

// unitKey holds everything in which two LUNs that share a logical unit have to agree.
type unitKey struct {
	store *openStore
	lun   config.LUN // without its number, its place in the file and the store's name
}

func keyOf(t *config.Target, l *config.LUN, s *openStore) unitKey {
	lun := *l
	if lun.Serial == "" && s != nil {
		lun.Serial = s.serial
	}
	if lun.Serial == "" {
		lun.Serial = identity(t.Name, l.Shows())
	}
	lun.Number, lun.Pos, lun.Store, lun.Partition = 0, config.Position{}, "", ""
	return unitKey{s, lun}
}

// identity returns the serial number of a logical unit. It depends only on the names in the
// configuration, so that it is the same after every restart. That of a partition whose bytes last is made of its
// UUID instead.
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
	cfg := scsi.LUConfig{
		Volume: s.volume, BlockSize: l.BlockSize, PhysicalBlockSize: l.PhysicalBlockSize, ReadOnly: l.ReadOnly,
		Vendor: l.Vendor, Product: l.Product, Serial: key.lun.Serial,
		NAA:       scsi.LocalNAA(key.lun.Serial),
		Removable: l.Removable, TPGS: tpgs[l.ALUA],
		Logger: u.log.With("target", t.Name, "lun", l.Number, "store", l.Shows()),
	}
	lu, err := scsi.NewLogicalUnit(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: LUN %d cannot show store %q: %w", l.Pos, l.Number, l.Shows(), err)
	}
	u.made[key] = lu
	s.views.Add(1)
	return lu, nil
}

var tpgs = map[config.ALUA]scsi.TPGS{
	config.ALUAImplicit: scsi.ALUAImplicit,
	config.ALUAExplicit: scsi.ALUAExplicit,
	config.ALUABoth:     scsi.ALUAImplicit | scsi.ALUAExplicit,
}

// openStore opens the store that c describes. former lists the LUNs that show it.
func (u *units) openStore(c *config.Store, former []formerLUN) (*openStore, error) {
	log := u.log.With("store", c.Name)
	var opened atomic.Pointer[volume.Volume] // nil until the volume exists; a device may report a new size before
	store, made, err := u.belows.openStore(c, func() {
		if v := opened.Load(); v != nil {
			v.SizeChanged()
		}
	}, log)
	if err != nil {
		return nil, fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err)
	}
	identity := backend.IdentityOf(store)
	if other := u.sameBytes(identity); other != "" {
		return nil, abandon(store, made, fmt.Errorf("%s: the stores %q and %q are one, %s: show one of them by all LUNs that are to have these bytes", c.Pos, c.Name, other, identity))
	}
	name, err := stateName(u.state, medium(c), store)
	if err != nil {
		return nil, abandon(store, made, fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err))
	}
	cfg := u.volumeConfig(c, store, name, log)
	m, moves := store.(*mirrored)
	if moves { // what this node keeps would be worth nothing on another one
		cfg.Keeper, cfg.Journal = nil, nil
	} else if u.state != nil {
		for _, l := range former {
			cfg.Former = append(cfg.Former, volume.Former{
				State: u.state.File(l.serial), Journal: u.state.Journal(l.serial), Block: cmp.Or(l.block, max(512, store.Info().BlockSize)),
			})
		}
	}
	v, err := volume.New(cfg)
	if err != nil {
		return nil, abandon(store, made, fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err))
	}
	opened.Store(v)
	v.SizeChanged()
	if moves {
		m.serve(v.Access(), log)
	}
	return &openStore{name: c.Name, opened: new(*c), identity: identity, volume: v, made: made, mirror: m}, nil
}

// volumeConfig is what volumes have in common; name is that of their states. That of a store which is read-only has its journal, too: what a
// power cut has left half written is refused until the store is writable again.
func (u *units) volumeConfig(c *config.Store, store backend.Store, name string, log *slog.Logger) volume.Config {
	cfg := volume.Config{Store: store, Logger: log}
	if u.state != nil {
		file := u.state.File(name)
		cfg.Keeper, cfg.Journal = file, u.state.Journal(name)
		if durability(c) == rdma.DurabilityMedium && !backend.IdentityOf(store).Lasts() { // it is known by its path
			cfg.Unsure = file.Path()
		}
	}
	return cfg
}

// abandon closes a store that nobody has used yet, and undoes what opening it has changed. It returns err,
// the reason, joined with its own errors.
func abandon(s backend.Store, made []heldFile, err error) error {
	return errors.Join(append(append([]error{err}, undo(made)...), s.Close())...)
}

// volumeName returns the name under which the state of a volume is kept. It is the same after every restart,
// and does not depend on the names of the store and of the LUNs that show it.
func volumeName(medium string, identity backend.Identity) string {
	if !identity.Lasts() {
		identity = backend.Identity(medium)
	}
	sum := sha256.Sum256([]byte(identity))
	return "volume-" + hex.EncodeToString(sum[:10])
}

// stateName is volumeName of a store. What dir, if there is one, has by a name that the store has with an older kernel is found by this one from now on.
func stateName(dir *state.Dir, medium string, s backend.Store) (string, error) {
	name := volumeName(medium, backend.IdentityOf(s))
	for _, id := range backend.IdentitiesOf(s) {
		if older := volumeName(medium, id); dir != nil && older != name {
			if err := dir.Rename(older, name); err != nil {
				return "", err
			}
		}
	}
	return name, nil
}

// formerLUN is a LUN in the terms of earlier versions, which named its state by its serial number.
type formerLUN struct {
	serial string
	block  int // block size in bytes; 0: not configured
}

// formerly lists for each medium the LUNs that show it, each serial number once, in the order of the configuration.
func formerly(c *config.Config) map[string][]formerLUN {
	lists := make(map[string][]formerLUN)
	for i := range c.Targets {
		t := &c.Targets[i]
		for j := range t.LUNs {
			l := &t.LUNs[j]
			m, serial := mediumOf(c, l), keyOf(t, l, nil).lun.Serial
			if !slices.ContainsFunc(lists[m], func(x formerLUN) bool { return x.serial == serial }) {
				lists[m] = append(lists[m], formerLUN{serial, l.BlockSize})
			}
		}
	}
	return lists
}

// without returns the units and stores of u that are not in other.
func (u *units) without(other *units) units {
	rest := u.fresh()
	for key, lu := range u.made {
		if other.made[key] == nil {
			rest.made[key] = lu
		}
	}
	for key, ns := range u.spaces {
		if other.spaces[key] == nil {
			rest.spaces[key] = ns
		}
	}
	for medium, s := range u.stores {
		if other.stores[medium] != s {
			rest.stores[medium] = s
		}
	}
	for medium, d := range u.divided {
		if other.divided[medium] != d {
			rest.divided[medium] = d
		}
	}
	return rest
}

var errHangs = errors.New("commands hang in it; what was not flushed may be lost")

// close closes all units and stores. A unit that still has tasks, because they hang in its
// store, stays, and its store stays open. It ends endpoints, and waits for them until ctx ends.
func (u *units) close(ctx context.Context) (errs []error) {
	said := make(map[string]bool) // several units of one store may fail with the same error
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
		if !lu.Idle() {
			note(key.store, errHangs)
			continue
		}
		note(key.store, lu.Close())
		key.store.views.Add(-1)
	}
	for key, ns := range u.spaces {
		if !ns.Idle() {
			note(key.store, errHangs)
			continue
		}
		ns.Close()
		key.store.views.Add(-1)
	}
	for _, s := range u.stores {
		if s.shown != nil {
			s.shown.Release()
			continue
		}
		if !s.volume.Idle() {
			note(s, errHangs)
			continue
		}
		if s.heap != nil {
			u.heaps.end(s.heap)
		}
		if err := s.volume.Close(); !errors.Is(err, volume.ErrInUse) { // the error of the unit has said that
			note(s, err)
		}
	}
	clear(u.made)
	clear(u.spaces)
	clear(u.stores)
	return append(errs, u.closeDivided(ctx)...)
}
