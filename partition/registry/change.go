package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/volume"
)

// UseError says who stands in the way of a change.
type UseError struct {
	Name            string
	LUNs, Endpoints int
}

func (e *UseError) Error() string {
	switch {
	case e.LUNs > 0:
		return fmt.Sprintf("partition %q is shown by LUNs: take them out of the configuration and reload, then repeat this", e.Name)
	case e.Endpoints == 1:
		return fmt.Sprintf("partition %q has an open endpoint: end it, or force the change, which ends it", e.Name)
	}
	return fmt.Sprintf("partition %q has %d open endpoints: end them, or force the change, which ends them", e.Name, e.Endpoints)
}

// ErrReadOnly says that a table cannot be changed.
var ErrReadOnly = errors.New("the store is read-only, and so is its partition table")

// ErrHasTable says that a new table would have to be forced.
var ErrHasTable = errors.New("the store has a partition table: with force it is replaced by an empty one, and its partitions are lost")

// Create makes partitions; see partition.Set.Create.
func (s *Store) Create(match uint64, news ...partition.New) ([]partition.Partition, error) {
	set, err := s.writable()
	if err != nil {
		return nil, err
	}
	made, err := set.Create(match, news...)
	s.tellOther(set)
	return made, err
}

// tellOther logs that a change is in one place of the table only.
func (s *Store) tellOther(set *partition.Set) {
	if err := set.Other(); err != nil {
		s.cfg.Logger.Warn("the partition table is in one place only: if that cannot be read any more, nothing knows the partitions; look at the disk", "store", s.cfg.Name, "reason", err)
	}
}

func (s *Store) writable() (*partition.Set, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.readOnly {
		return nil, ErrReadOnly
	}
	return s.set, s.why
}

// changeable returns the entry that a change is about, of the generation that it is meant for.
func (s *Store) changeable(match uint64, name string) (*partition.Set, *partition.Partition, error) {
	set, err := s.writable()
	if err != nil {
		return nil, nil, err
	}
	if have := set.Table().Generation; match != partition.Any && match != have {
		return nil, nil, &partition.GenerationError{Want: match, Have: have}
	}
	p, err := named(set, name)
	return set, p, err
}

// Alter changes a partition; see partition.Set.Alter. To rename it or make it smaller it must not be in use:
// force ends the endpoints, and waits for that until ctx ends. Endpoints that lose a right are ended always.
// Those of a partition that grows keep the size that they know.
func (s *Store) Alter(ctx context.Context, match uint64, name string, c partition.Change, force bool) error {
	set, p, err := s.changeable(match, name)
	if err != nil {
		return err
	}
	if c.Name != nil && *c.Name != name || c.Size != nil && *c.Size < p.Size {
		if c.Size == nil || *c.Size < p.Size {
			if err := set.Table().Try(name, c); err != nil {
				return err
			}
		}
		done, err := s.clear(ctx, p, force, "it gets another name or size")
		if err != nil {
			return err
		}
		defer done()
	}
	err = set.Alter(match, name, c) // it may be in force even if it has failed
	s.tellOther(set)
	s.r.mu.Lock()
	open := s.parts[p.UUID]
	s.r.mu.Unlock()
	if open != nil {
		s.follow(open)
	}
	s.recheck()
	return err
}

// Delete takes a partition out of the table; see partition.Set.Delete. It must not be in use, as in Alter.
func (s *Store) Delete(ctx context.Context, match uint64, name string, erase, force bool) error {
	set, p, err := s.changeable(match, name)
	if err != nil {
		return err
	}
	done, err := s.clear(ctx, p, force, "it is deleted")
	if err != nil {
		return err
	}
	defer done()
	err = set.Delete(match, name, erase)
	s.tellOther(set)
	if err != nil {
		return err
	}
	s.r.mu.Lock()
	maps.DeleteFunc(s.sole, func(w writer, _ uint64) bool { return w.partition == p.UUID })
	s.r.mu.Unlock()
	if s.cfg.Deleted != nil {
		s.cfg.Deleted(p)
	}
	return nil
}

// Init makes an empty table, in place of the one that there may be: then it has to be forced, and no partition
// may be in use.
func (s *Store) Init(ctx context.Context, force bool) error {
	set, err := s.writable()
	if errors.Is(err, ErrReadOnly) {
		return err
	}
	if set != nil {
		if !force {
			return ErrHasTable
		}
		t := set.Table()
		for i := range t.Partitions {
			done, err := s.clear(ctx, &t.Partitions[i], false, "")
			if err != nil {
				return err
			}
			defer done()
		}
	}
	if set, err = partition.Init(s.cfg.Store, force); set == nil {
		return err
	}
	s.tellOther(set)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.set, s.why = set, nil // it is in force even if Init has failed
	clear(s.sole)
	return err
}

// clear ends the use of a partition, closes its volume, and keeps everybody from opening it again until done is
// called. why is what its endpoints are told.
func (s *Store) clear(ctx context.Context, p *partition.Partition, force bool, why string) (done func(), err error) {
	u := p.UUID
	s.r.mu.Lock()
	open := s.parts[u]
	switch {
	case s.barred[u]:
		err = &partition.InUseError{Name: p.Name}
	case open != nil && (open.luns > 0 || len(open.endpoints) > 0 && !force):
		err = &UseError{p.Name, open.luns, len(open.endpoints)}
	}
	if err != nil {
		s.r.mu.Unlock()
		return nil, err
	}
	s.barred[u] = true
	var ending []*Endpoint
	var idle <-chan struct{}
	if open != nil {
		idle = open.whenIdle()
		for e := range open.endpoints {
			ending = append(ending, e)
		}
	}
	s.r.mu.Unlock()
	done = func() {
		s.r.mu.Lock()
		defer s.r.mu.Unlock()
		delete(s.barred, u)
	}
	if open == nil {
		return done, nil
	}
	for _, e := range ending {
		e.tell(fmt.Errorf("partition %q: %s", p.Name, why))
	}
	select {
	case <-idle:
	case <-ctx.Done():
		done()
		return nil, fmt.Errorf("partition %q: %w", p.Name, ErrHangs)
	}
	return done, s.closePart(open, p.Name)
}

// closePart closes the volume of a partition that is barred and idle. If it does not close well, the partition
// stays barred: nobody knows what it still does. While something of it still uses the store, the store stays open, too.
func (s *Store) closePart(p *part, name string) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	err := p.volume.Close()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if !isOpen(err) {
		delete(s.parts, p.uuid)
	}
	if err != nil {
		return fmt.Errorf("partition %q could not be closed, and cannot be used before the store is opened again, as by a restart: %w", name, err)
	}
	return nil
}

// isOpen reports whether a volume that was closed with err is still open.
func isOpen(err error) bool {
	return errors.Is(err, volume.ErrInUse) || errors.Is(err, volume.ErrHangs)
}

// recheck ends the endpoints that have a right which the table no longer gives.
func (s *Store) recheck() {
	s.r.mu.Lock()
	var ending []*Endpoint
	for u, open := range s.parts {
		p := s.find(u)
		for e := range open.endpoints {
			if p == nil || e.rights&^rdma.RightSole&^s.rightsOf(p, e.request.Identity) != 0 {
				ending = append(ending, e)
			}
		}
	}
	s.r.mu.Unlock()
	for _, e := range ending {
		e.tell(fmt.Errorf("%w: a right was revoked", rdma.ErrNoEndpoint))
	}
}
