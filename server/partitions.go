package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/mgmt"
	"oneshot/partition"
	"oneshot/partition/registry"
	"oneshot/transport/rdma"
)

// endPatience is how long a change waits for endpoints that it has ended.
const endPatience = 10 * time.Second

// Stores implements mgmt.Target.
func (s *Server) Stores() []mgmt.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]mgmt.Store, len(s.cfg.Stores))
	for i := range list {
		c := &s.cfg.Stores[i]
		m := mgmt.Store{
			Name: c.Name, Type: string(c.Type), Size: c.Size, Durability: durability(c).String(), ReadOnly: c.ReadOnly,
			Partitioned: c.Partitioned,
		}
		var info backend.Info
		if open := s.units.stores[medium(c)]; open != nil {
			info, m.Aging = open.volume.Store().Info(), agingOf(open.volume.Store())
		}
		if d := s.units.divided[medium(c)]; d != nil {
			n := d.Snapshot()
			info, m.Tag, m.Free, m.Aging = n.Info, tagOf(n.Table), ranges(n.Free), agingOf(d.store)
			if n.Table == nil {
				m.Problem = n.Problem.Error()
			}
		}
		if info.Size > 0 {
			m.Open, m.Size, m.Unit = true, info.Size, info.BlockSize
		}
		list[i] = m
	}
	return list
}

// agingOf tells how a store ages; nil: it does not.
func agingOf(s backend.Store) *mgmt.Aging {
	a, ok := backend.As[backend.Ager](s)
	if !ok {
		return nil
	}
	n := a.AgeStats()
	return &mgmt.Aging{WindowNS: a.Window().Nanoseconds(), LongestNS: n.Longest.Nanoseconds(), Flushes: n.Flushes, Lost: n.Lost}
}

func ranges(list []partition.Range) []mgmt.Range {
	free := make([]mgmt.Range, len(list))
	for i, r := range list {
		free[i] = mgmt.Range(r)
	}
	return free
}

// tagOf tells a table from every other one: a memory store begins with generation 1 at each start.
func tagOf(t *partition.Table) string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%.8s-%d", t.UUID, t.Generation)
}

// dividedStore returns a divided store by its name.
func (s *Server) dividedStore(name string) (*divided, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cfg.Store(name)
	if c == nil {
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("there is no store %q: target partition ls lists those that are divided", name)}
	}
	d := s.units.divided[medium(c)]
	if d == nil {
		return nil, &mgmt.ConflictError{What: fmt.Sprintf("the store %q is not divided: add partitioned: true to it in %s, and reload", name, s.cfg.File)}
	}
	return d, nil
}

// Partitions implements mgmt.Target.
func (s *Server) Partitions(store string) (*mgmt.Partitions, error) {
	d, err := s.dividedStore(store)
	if err != nil {
		return nil, err
	}
	return s.tableOf(store, d), nil
}

func (s *Server) tableOf(name string, d *divided) *mgmt.Partitions {
	n := d.Snapshot()
	p := &mgmt.Partitions{
		Time: time.Now(), Store: name, Tag: tagOf(n.Table), Size: n.Info.Size, Durability: n.Durability.String(),
		Free: ranges(n.Free), Partitions: []mgmt.Partition{},
	}
	if n.Other != nil {
		p.Warnings = append(p.Warnings, n.Other.Error())
	}
	if n.Table == nil {
		p.Problem = n.Problem.Error()
		return p
	}
	p.UUID, p.Generation, p.Unit = n.Table.UUID.String(), n.Table.Generation, n.Table.Unit
	luns := s.lunsOfPartitions(name)
	set, _ := d.Set()
	for i := range n.Table.Partitions {
		e := &n.Table.Partitions[i]
		m := mgmt.Partition{
			UUID: e.UUID.String(), Name: e.Name, Offset: e.Offset, Size: e.Size,
			Access: []mgmt.PartitionAccess{}, LUNs: append([]mgmt.PartitionLUN{}, luns[e.Name]...),
		}
		if e.Cache != nil {
			m.Cache = &mgmt.PartitionCache{WriteMS: e.Cache.WriteMS}
			if e.Cache.Through {
				m.Cache.Write = cacheNone
			}
		}
		for _, a := range e.Access {
			m.Access = append(m.Access, mgmt.PartitionAccess{Who: a.Who.String(), Rights: a.Rights.String()})
		}
		if use, open := n.Use[e.UUID]; open {
			io := endpointIO(&use.Counts)
			m.Endpoints, m.Writes, m.Lag, m.Lost, m.IO = use.Endpoints, use.Writes, use.Lag, use.Lost, &io
			if use.Window > 0 {
				m.Aging = &mgmt.Aging{WindowNS: use.Window.Nanoseconds(), LongestNS: use.Age.Longest.Nanoseconds(), Flushes: use.Age.Flushes, Lost: use.Age.Lost}
			}
		}
		if err := set.Fits(e); err != nil {
			m.Problem = err.Error()
		}
		p.Partitions = append(p.Partitions, m)
	}
	slices.SortFunc(p.Partitions, func(a, b mgmt.Partition) int { return cmp.Compare(a.Offset, b.Offset) })
	return p
}

// lunsOfPartitions returns the LUNs that show partitions of a store, by the names of these.
func (s *Server) lunsOfPartitions(store string) map[string][]mgmt.PartitionLUN {
	s.mu.Lock()
	defer s.mu.Unlock()
	luns := make(map[string][]mgmt.PartitionLUN)
	for i := range s.cfg.Targets {
		t := &s.cfg.Targets[i]
		for _, l := range t.LUNs {
			if l.Store == store && l.Partition != "" {
				luns[l.Partition] = append(luns[l.Partition], mgmt.PartitionLUN{Target: t.Name, LUN: l.Number})
			}
		}
	}
	return luns
}

func endpointIO(c *registry.Counts) mgmt.IO {
	class := func(k registry.Class) mgmt.Class {
		return mgmt.Class{Bytes: c.Bytes[k], SumNS: uint64(max(c.SumNS[k], 0)), Latency: slices.Clone(c.Buckets[k][:])}
	}
	io := mgmt.IO{Read: class(registry.Read), Write: class(registry.Write), Other: class(registry.Other), InFlight: c.InFlight}
	for i, n := range c.Failed {
		if n > 0 {
			if io.Failed == nil {
				io.Failed = make(map[string]uint64)
			}
			io.Failed[registry.Failure(i).String()] = n
		}
	}
	return io
}

// changeTable makes a change of a table, while no configuration is applied and no other table is changed. do gets
// the generation that it is for.
func (s *Server) changeTable(ctx context.Context, store, match, what string, do func(ctx context.Context, d *divided, generation uint64) error) (*mgmt.Partitions, error) {
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	d, err := s.dividedStore(store)
	if err != nil {
		return nil, err
	}
	n := d.Snapshot()
	if have := tagOf(n.Table); match != "*" && match != have {
		return nil, &mgmt.StaleError{What: fmt.Sprintf("somebody else has changed the table of the store %q: it is at %s, and the change is for %s; look at it again", store, have, match)}
	}
	generation := uint64(partition.Any)
	if n.Table != nil {
		generation = n.Table.Generation
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	if err := do(ctx, d, generation); err != nil {
		return nil, changeError(store, err)
	}
	p := s.tableOf(store, d)
	s.log.Info("the administrator has changed the partitions of a store", "store", store, "change", what, "generation", p.Generation)
	return p, nil
}

// changeError says which kind of error a change has met.
func changeError(store string, err error) error {
	text := fmt.Sprintf("store %q: %v", store, err)
	switch {
	case is[*partition.UnknownError](err):
		return &mgmt.NotFoundError{What: text}
	case is[*partition.GenerationError](err):
		return &mgmt.StaleError{What: text}
	case is[*registry.UseError](err), is[*partition.InUseError](err), is[*partition.NoTableError](err), is[*partition.NotEmptyError](err),
		errors.Is(err, registry.ErrHangs), errors.Is(err, registry.ErrReadOnly), errors.Is(err, registry.ErrHasTable):
		return &mgmt.ConflictError{What: text}
	case is[*backend.MediumError](err), is[*backend.SpaceError](err), is[*durable.LostError](err):
		return &mgmt.FailedError{What: text}
	}
	return errors.New(text)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// InitPartitions implements mgmt.Target.
func (s *Server) InitPartitions(ctx context.Context, store, match string, force bool) (*mgmt.Partitions, error) {
	return s.changeTable(ctx, store, match, "new table", func(ctx context.Context, d *divided, _ uint64) error {
		return d.Init(ctx, force)
	})
}

// CreatePartitions implements mgmt.Target.
func (s *Server) CreatePartitions(ctx context.Context, store, match string, news []mgmt.NewPartition) (*mgmt.Partitions, error) {
	list := make([]partition.New, len(news))
	for i := range news {
		n := &news[i]
		access, err := accessLines(n.Access)
		if err != nil {
			return nil, fmt.Errorf("partition %q: %w", n.Name, err)
		}
		list[i] = partition.New{Name: n.Name, Size: n.Size, Offset: n.Offset, Access: access}
		if list[i].Cache, err = cacheOf(n.Cache); err != nil {
			return nil, fmt.Errorf("partition %q: %w", n.Name, err)
		}
	}
	return s.changeTable(ctx, store, match, fmt.Sprintf("%d created", len(list)), func(_ context.Context, d *divided, generation uint64) error {
		_, err := d.Create(generation, list...)
		return err
	})
}

const cacheNone = "none"

// cacheOf reads how a partition may be cached.
func cacheOf(c *mgmt.PartitionCache) (*partition.Cache, error) {
	switch {
	case c == nil:
		return nil, nil
	case c.Write != "" && c.Write != cacheNone:
		return nil, fmt.Errorf(`"write" of a cache is %q, and only "none" is known`, c.Write)
	case c.Write == cacheNone && c.WriteMS != 0:
		return nil, fmt.Errorf(`a cache with "write": "none" keeps no write for %d ms: give one of the two`, c.WriteMS)
	}
	return &partition.Cache{WriteMS: c.WriteMS, Through: c.Write == cacheNone}, nil
}

// accessLines reads lines of rights; each Who is there once.
func accessLines(lines []mgmt.PartitionAccess) (list []partition.Access, err error) {
	for _, l := range lines {
		var a partition.Access
		if a.Who, err = partition.ParseWho(l.Who); err == nil {
			a.Rights, err = partition.ParseRights(l.Rights)
		}
		if err == nil && slices.ContainsFunc(list, func(o partition.Access) bool { return o.Who == a.Who }) {
			err = fmt.Errorf("there are two access lines for %s: write one", a.Who)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// AlterPartition implements mgmt.Target.
func (s *Server) AlterPartition(ctx context.Context, store, name, match string, c mgmt.PartitionChange, force bool) (*mgmt.Partitions, error) {
	change := partition.Change{Name: c.Name, Size: c.Size}
	var err error
	if change.Cache, err = cacheOf(c.Cache); err != nil {
		return nil, err
	}
	if c.Access != nil {
		if change.Grant, err = accessLines(*c.Access); err != nil {
			return nil, err
		}
	}
	return s.changeTable(ctx, store, match, "partition "+name, func(ctx context.Context, d *divided, generation uint64) error {
		if c.Access != nil {
			change.Revoke = d.others(name, change.Grant)
		}
		return d.Alter(ctx, generation, name, change, force)
	})
}

// others returns those who have lines of a partition and none in list.
func (d *divided) others(name string, list []partition.Access) (who []partition.Who) {
	set, _ := d.Set()
	if set == nil {
		return nil // and the change fails
	}
	t := set.Table()
	for i := range t.Partitions {
		if t.Partitions[i].Name != name {
			continue
		}
		for _, a := range t.Partitions[i].Access {
			if !slices.ContainsFunc(list, func(o partition.Access) bool { return o.Who == a.Who }) {
				who = append(who, a.Who)
			}
		}
	}
	return who
}

// DeletePartition implements mgmt.Target.
func (s *Server) DeletePartition(ctx context.Context, store, name, match string, erase, force bool) (*mgmt.Partitions, error) {
	return s.changeTable(ctx, store, match, "partition "+name+" deleted", func(ctx context.Context, d *divided, generation uint64) error {
		return d.Delete(ctx, generation, name, erase, force)
	})
}

// Endpoints implements mgmt.Target.
func (s *Server) Endpoints() (list []mgmt.Endpoint) {
	for _, e := range s.partitions.Endpoints() {
		list = append(list, mgmt.Endpoint{
			ID: e.Number, Store: e.Store, Partition: e.Partition, UUID: e.UUID.String(), Identity: e.Identity, Rights: e.Rights.String(),
			Order: orders[e.Order], Via: e.Via, Size: e.Size, Since: e.Since, IO: endpointIO(&e.Counts),
		})
	}
	return list
}

var orders = map[rdma.Order]string{
	rdma.OrderStrict: "strict", rdma.FreeStart: "free-start", rdma.FreeFinish: "free-finish", rdma.FreeStart | rdma.FreeFinish: "free",
}

// DropEndpoint implements mgmt.Target.
func (s *Server) DropEndpoint(id uint64) bool { return s.partitions.Drop(id) }
