package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/partition"
	"oneshot/partition/registry"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

// divided is a store that is divided into partitions. It is open as long as the configuration has it, whoever
// uses its partitions.
type divided struct {
	*registry.Store
	name     string           // for messages
	opened   *config.Store    // as of openStore
	store    backend.Store    // all of it
	identity backend.Identity // may be empty
	made     []heldFile       // as of openStore
}

// uuid is that of the table, or zero.
func (d *divided) uuid() partition.UUID {
	if set, _ := d.Set(); set != nil {
		return set.Table().UUID
	}
	return partition.UUID{}
}

// openDivided opens a divided store, which Publish makes known. Without a table it serves nothing until somebody
// makes one; a LUN of it then says what is wrong.
func (u *units) openDivided(c *config.Store) (*divided, error) {
	log := u.log.With("store", c.Name)
	store, made, err := u.belows.openStore(c, func() {}, log) // what its partitions have does not change with its size
	if err != nil {
		return nil, fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err)
	}
	d := &divided{name: c.Name, opened: new(*c), store: store, identity: backend.IdentityOf(store), made: made}
	fail := func(err error) (*divided, error) { return nil, abandon(store, made, err) }
	if other := u.sameBytes(d.identity); other != "" {
		return fail(fmt.Errorf("%s: the stores %q and %q are one, %s: keep one of them", c.Pos, c.Name, other, d.identity))
	}
	set, err := tableOf(c, store)
	var none *partition.NoTableError
	switch {
	case errors.As(err, &none):
		u.log.Error("a divided store has no partition table, and serves nothing", "store", c.Name, "at", c.Pos.String(), "reason", err)
	case err != nil:
		return fail(fmt.Errorf("%s: store %q: %w", c.Pos, c.Name, err))
	case set.Other() != nil:
		log.Warn("one of the two places of the partition table holds none; the next change writes it anew", "reason", set.Other())
	}
	if set != nil {
		table := set.Table()
		for i := range table.Partitions {
			if err := set.Fits(&table.Partitions[i]); err != nil {
				log.Error("a partition cannot be opened; the others can", "at", c.Pos.String(), "reason", err)
			}
		}
	}
	d.Store = u.partitions.New(registry.Config{
		Name: c.Name, Store: store, Set: set, Problem: err, ReadOnly: c.ReadOnly, Durability: durability(c), Logger: log,
		NewVolume: func(view backend.Store, p *partition.Partition) (*volume.Volume, error) {
			return volume.New(u.volumeConfig(c, view, volumeName(partMedium(c, p.Name), backend.IdentityOf(view)), log.With("partition", p.Name)))
		},
		Deleted: func(p *partition.Partition) { u.forget(c, store, p) },
	})
	for _, other := range u.divided {
		if id := d.uuid(); id != (partition.UUID{}) && other.uuid() == id {
			return fail(fmt.Errorf("%s: the stores %q and %q have one partition table, %s: one is a copy of the other; remove one of them. To use both, serve the copy alone first and give it a table of its own with target partition init --force, which loses its partitions", c.Pos, c.Name, other.name, id))
		}
	}
	return d, nil
}

// tableOf reads the table of a store; that of a store in memory it makes.
func tableOf(c *config.Store, store backend.Store) (*partition.Set, error) {
	if c.Type != config.StoreMemory {
		return partition.Open(store)
	}
	set, err := partition.Init(store, false)
	if err != nil || len(c.Partitions) == 0 {
		return set, err
	}
	news := make([]partition.New, len(c.Partitions))
	for i := range news {
		news[i] = c.Partitions[i].New()
	}
	_, err = set.Create(partition.Any, news...)
	return set, err
}

// sameBytes returns the name of an open store with that identity.
func (u *units) sameBytes(id backend.Identity) string {
	if id == "" {
		return ""
	}
	for _, s := range u.stores {
		if s.identity == id {
			return s.name
		}
	}
	for _, d := range u.divided {
		if d.identity == id {
			return d.name
		}
	}
	return ""
}

// durability is what a flush of a store outlives.
func durability(c *config.Store) rdma.Durability {
	switch bottom(c).Type {
	case config.StoreFile, config.StoreDevice:
		return rdma.DurabilityMedium
	case config.StoreGOTGT:
		return rdma.DurabilityProcess // a plugin is not asked for more
	}
	return rdma.DurabilityNone
}

// forget removes what was kept of a partition that is no more.
func (u *units) forget(c *config.Store, store backend.Store, p *partition.Partition) {
	if u.state == nil {
		return
	}
	identity := backend.Identity("")
	if backend.IdentityOf(store).Lasts() {
		identity = partition.IdentityOf(p.UUID)
	}
	if err := u.state.File(volumeName(partMedium(c, p.Name), identity)).Save(nil); err != nil {
		u.log.Error("what was kept of a deleted partition could not be removed", "store", c.Name, "partition", p.Name, "reason", err)
	}
}

// partMedium names the partition of a store as medium does.
func partMedium(c *config.Store, name string) string { return "partition " + name + " of " + medium(c) }

// mediumOf names what keeps the bytes of a LUN.
func mediumOf(c *config.Config, l *config.LUN) string {
	if l.Partition != "" {
		return partMedium(c.Store(l.Store), l.Partition)
	}
	return medium(c.Store(l.Store))
}

// openPartition opens the partition that a LUN shows.
func (u *units) openPartition(c *config.Config, t *config.Target, l *config.LUN) (*openStore, error) {
	store := c.Store(l.Store)
	d := u.divided[medium(store)]
	shown, err := d.Show(l.Partition)
	if err != nil {
		return nil, fmt.Errorf("%s: LUN %d of %s: store %q: %w%s", l.Pos, l.Number, t.Name, store.Name, err, d.advice(err))
	}
	s := &openStore{name: l.Shows(), volume: shown.Volume(), shown: shown}
	if d.identity.Lasts() {
		sum := sha256.Sum256([]byte("partition\x00" + shown.UUID().String()))
		s.serial = hex.EncodeToString(sum[:10])
	}
	return s, nil
}

// advice says what to do when a partition cannot be shown.
func (d *divided) advice(err error) string {
	set, _ := d.Set()
	var unknown *partition.UnknownError
	switch {
	case set == nil:
		return "; LUNs of the store keep the target from starting: take them out of the configuration until the store has a table"
	case errors.As(err, &unknown):
		t := set.Table()
		if len(t.Partitions) == 0 {
			return ": the store has none; make it with target partition create, while no LUN shows it"
		}
		var names []string
		for i := range t.Partitions {
			names = append(names, t.Partitions[i].Name)
		}
		slices.Sort(names)
		return ": there are " + strings.Join(names, ", ") + "; take one of them, or make it with target partition create while no LUN shows it"
	}
	return ""
}

// closeDivided closes divided stores, and waits for their endpoints until ctx ends.
func (u *units) closeDivided(ctx context.Context) (errs []error) {
	for _, d := range u.divided {
		if err := d.Close(ctx); err != nil && !errors.Is(err, volume.ErrInUse) { // of that something has been said
			errs = append(errs, fmt.Errorf("store %q: %w", d.name, err))
		}
	}
	clear(u.divided)
	return errs
}

// OpenLocal opens endpoints for queue pairs in this process, whose user is id.
func (s *Server) OpenLocal(id partition.Identity) local.Opener { return s.openLocal(id, 0) }

// openLocal is OpenLocal for who goes on where the user of an endpoint of that lineage was; 0: for anybody.
func (s *Server) openLocal(id partition.Identity, follows uint64) local.Opener {
	return func(ctx context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
		e, err := s.partitions.Open(ctx, registry.Request{Name: name, Identity: id, Want: want, Via: "local", Follows: follows, Gone: gone})
		if err != nil {
			return local.Opened{}, err
		}
		return local.Opened{Medium: e, Info: e.Describe(), Memory: e.Lends(), Again: s.openLocal(id, e.Lineage()), Close: e.Close}, nil
	}
}
