package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/backend/aging"
	"oneshot/internal/door"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/volume"
)

// Config says what a divided store is.
type Config struct {
	Name  string
	Store backend.Store // the whole; the registry's Store owns it
	// Set is its table; nil: there is none yet (Init makes one), and Problem says why.
	Set        *partition.Set
	Problem    error
	ReadOnly   bool
	Durability rdma.Durability // of what a flush has reached
	Logger     *slog.Logger    // of flushes of partitions that fail or take long; nil: slog.Default()
	// NewVolume makes the volume of a partition that is not in use. It owns view if it succeeds.
	NewVolume func(view backend.Store, p *partition.Partition) (*volume.Volume, error)
	// Deleted, if set, is told of partitions that are no more.
	Deleted func(p *partition.Partition)
}

// Store is a divided store of a registry.
type Store struct {
	r   *Registry
	cfg Config

	opening sync.Mutex // held while volumes are opened and closed, over I/O; taken before Registry.mu
	// following is held while a part looks at its entry of the table and keeps to it; taken before Registry.mu.
	following sync.Mutex

	// Guarded by Registry.mu.
	name     string
	readOnly bool
	set      *partition.Set
	why      error // that there is no set
	parts    map[partition.UUID]*part
	barred   map[partition.UUID]bool // being changed, so that nothing may open them
	sole     map[writer]uint64       // the newest lineage that was granted rdma.RightSole
	shares   door.Shares             // endpoints
	closed   bool
}

// writer is one who changes octets of a partition.
type writer struct {
	partition partition.UUID
	who       string // Identity.String
}

// part is a partition whose volume is open.
type part struct {
	store     *Store
	uuid      partition.UUID
	volume    *volume.Volume
	age       *aging.Store // below the volume; nil: no write can be lost
	policy    aging.Policy // of age; guarded by Store.following
	luns      int
	endpoints map[*Endpoint]struct{}
	idle      chan struct{} // closed when there are no endpoints any more; nil: nobody waits
	past      Counts        // of endpoints that are closed
}

// New returns a divided store that nobody finds by its name yet.
func (r *Registry) New(cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Store{
		r: r, cfg: cfg, name: cfg.Name, readOnly: cfg.ReadOnly, set: cfg.Set, why: cfg.Problem,
		parts: make(map[partition.UUID]*part), barred: make(map[partition.UUID]bool), sole: make(map[writer]uint64),
	}
}

// Publish makes a store known by a name, instead of the one that it has had. Names are unique: the caller sees
// to that. Endpoints that may write to a store that becomes read-only are ended.
func (s *Store) Publish(name string, readOnly bool) {
	s.r.mu.Lock()
	if s.name, s.readOnly = name, readOnly; !slices.Contains(s.r.stores, s) {
		s.r.stores = append(s.r.stores, s)
	}
	s.r.mu.Unlock()
	s.recheck()
}

// Withdraw takes the store off the list, so that nobody finds it any more. Close follows.
func (s *Store) Withdraw() {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.stores = slices.DeleteFunc(s.r.stores, func(o *Store) bool { return o == s })
}

// Whole returns the store that is divided.
func (s *Store) Whole() backend.Store { return s.cfg.Store }

// Set returns the table and its changes, or nil and why there is none.
func (s *Store) Set() (*partition.Set, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.set, s.why
}

// find returns the entry of a partition, or nil. Registry.mu is held.
func (s *Store) find(u partition.UUID) *partition.Partition {
	if s.set == nil {
		return nil
	}
	return s.set.Table().FindUUID(u)
}

// named returns the entry of a partition.
func named(set *partition.Set, name string) (*partition.Partition, error) {
	if p := set.Table().Find(name); p != nil {
		return p, nil
	}
	return nil, &partition.UnknownError{Name: name}
}

func (s *Store) describe(p *partition.Partition, size int64, rights rdma.Rights) rdma.Endpoint {
	e := rdma.Endpoint{
		Name: s.name + "/" + p.Name, UUID: p.UUID.String(), Size: size, Unit: s.cfg.Store.Info().BlockSize,
		Rights: rights, Durability: s.cfg.Durability,
	}
	if open := s.parts[p.UUID]; open != nil && open.age != nil {
		e.Aging = open.age.Window()
	} else if a, ok := backend.As[backend.Ager](s.cfg.Store); ok {
		e.Aging = a.Window()
	}
	return e
}

// endpoints counts those that are open. Registry.mu is held.
func (s *Store) endpoints() (n int) {
	for _, p := range s.parts {
		n += len(p.endpoints)
	}
	return n
}

// available returns why a partition may not be opened, or nil. Registry.mu is held.
func (s *Store) available(u partition.UUID) error {
	switch {
	case s.closed || s.find(u) == nil:
		return rdma.ErrNoEndpoint
	case s.barred[u]:
		return fmt.Errorf("%w: the partition is being changed", rdma.ErrNoEndpoint)
	}
	return nil
}

// policyOf is what the table says of writes that nobody flushes.
func policyOf(p *partition.Partition) aging.Policy {
	if p.Cache == nil {
		return aging.Policy{}
	}
	return aging.Policy{Window: time.Duration(p.Cache.WriteMS) * time.Millisecond, Through: p.Cache.Through}
}

// use returns the part of a partition, with its volume open. opening is held.
func (s *Store) use(u partition.UUID) (*part, error) {
	s.r.mu.Lock()
	p, entry, set := s.parts[u], s.find(u), s.set
	err := s.available(u)
	s.r.mu.Unlock()
	if err != nil || p != nil {
		return p, err
	}
	view, err := set.View(entry.Name)
	if err != nil {
		return nil, err
	}
	view, age := aging.Part(view, aging.Config{Name: s.name + "/" + entry.Name, Logger: s.cfg.Logger})
	if age != nil {
		age.Set(policyOf(entry))
	}
	v, err := s.cfg.NewVolume(view, entry)
	if err != nil {
		return nil, errors.Join(err, view.Close())
	}
	p = &part{store: s, uuid: u, volume: v, age: age, policy: policyOf(entry), endpoints: make(map[*Endpoint]struct{})}
	s.r.mu.Lock()
	s.parts[u] = p
	s.r.mu.Unlock()
	s.follow(p) // a change of the table may have come since it was looked at, and not have found p
	return p, nil
}

// follow has a part keep to the table as it is now. It is called after each change of the entry, and of several at a time the last one
// finds what all have left.
func (s *Store) follow(p *part) {
	s.following.Lock()
	defer s.following.Unlock()
	s.r.mu.Lock()
	entry := s.find(p.uuid)
	s.r.mu.Unlock()
	if entry == nil {
		return
	}
	p.volume.SizeChanged()
	if policy := policyOf(entry); p.age != nil && policy != p.policy {
		p.policy = policy
		p.age.Set(policy)
	}
}

// Shown is a partition that LUNs show: it keeps its name, and its size or more.
type Shown struct {
	part *part
	once sync.Once
}

// Show opens a partition for LUNs. Its errors are those of partition.Set.View, or of the volume.
func (s *Store) Show(name string) (*Shown, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	set, err := s.Set()
	if err != nil {
		return nil, err
	}
	entry, err := named(set, name)
	if err != nil {
		return nil, err
	}
	p, err := s.use(entry.UUID)
	if err != nil {
		return nil, err
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	p.luns++
	return &Shown{part: p}, nil
}

// Volume returns the volume of the partition, which is the registry's.
func (s *Shown) Volume() *volume.Volume { return s.part.volume }

// UUID returns that of the partition.
func (s *Shown) UUID() partition.UUID { return s.part.uuid }

// Release says that no LUN shows it any more. The volume stays open.
func (s *Shown) Release() {
	s.once.Do(func() {
		r := s.part.store.r
		r.mu.Lock()
		defer r.mu.Unlock()
		s.part.luns--
	})
}

// Snapshot is what is known of a divided store at a moment.
type Snapshot struct {
	Name       string
	Table      *partition.Table // nil: there is none, and Problem says why
	Problem    error
	Other      error // why one of the two places of the table holds none, or nil; see partition.Set.Other
	Free       []partition.Range
	Info       backend.Info // of the whole
	Durability rdma.Durability
	ReadOnly   bool
	Use        map[partition.UUID]Use // of the partitions whose volumes are open
}

// Use is how a partition is used.
type Use struct {
	LUNs, Endpoints int
	Writes, Lag     uint64 // through endpoints, and how many of them are not known to be durable
	Lost            bool   // a flush has failed
	Counts          Counts // of all endpoints since the volume is open
	// Window and Age are of a partition that flushes by itself, or whose store does; Window 0: nothing does.
	Window time.Duration
	Age    backend.AgeStats
}

// Snapshot returns what is known now.
func (s *Store) Snapshot() Snapshot {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	n := Snapshot{
		Name: s.name, Problem: s.why, Info: s.cfg.Store.Info(), Durability: s.cfg.Durability, ReadOnly: s.readOnly,
		Use: make(map[partition.UUID]Use),
	}
	if s.set != nil {
		n.Table, n.Other, n.Free = s.set.Table(), s.set.Other(), s.set.Free()
	}
	for u, p := range s.parts {
		q := p.volume.Sequence()
		use := Use{LUNs: p.luns, Endpoints: len(p.endpoints), Counts: p.past, Lost: q.Lost()}
		durable := q.Durable() // before the count, so that it is no larger
		use.Writes = q.Count()
		use.Lag, use.Writes = use.Writes-durable, use.Writes&(1<<48-1) // above is the generation
		if p.age != nil {
			use.Window, use.Age = p.age.Window(), p.age.AgeStats()
		}
		for e := range p.endpoints {
			use.Counts.Add(e.Counts())
		}
		n.Use[u] = use
	}
	return n
}

// ErrHangs says that an endpoint did not end in time.
var ErrHangs = errors.New("an endpoint has not ended: an operation hangs in the store")

// Close ends the endpoints, closes the volumes, and then the store. The LUNs have been released. If an endpoint
// has not ended when ctx is done (ErrHangs), or a volume cannot be closed, the store stays open.
func (s *Store) Close(ctx context.Context) error {
	s.r.mu.Lock()
	s.closed = true
	var ending []*Endpoint
	var idle []<-chan struct{}
	for _, p := range s.parts {
		idle = append(idle, p.whenIdle())
		for e := range p.endpoints {
			ending = append(ending, e)
		}
	}
	s.r.mu.Unlock()
	for _, e := range ending {
		e.tell(errors.New("the store is no longer served"))
	}
	for _, c := range idle {
		select {
		case <-c:
		case <-ctx.Done():
			return ErrHangs
		}
	}
	s.opening.Lock() // somebody may be about to find it closed
	defer s.opening.Unlock()
	s.Withdraw()
	var errs []error
	open := false
	for _, p := range s.parts {
		err := p.volume.Close()
		open = open || isOpen(err)
		errs = append(errs, err)
	}
	if !open {
		errs = append(errs, s.cfg.Store.Close())
	}
	return errors.Join(errs...)
}

// whenIdle returns what is closed when no endpoint of p is open. Registry.mu is held.
func (p *part) whenIdle() <-chan struct{} {
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	c := p.idle
	p.left()
	return c
}

// left tells those who wait, if there are no endpoints. Registry.mu is held.
func (p *part) left() {
	if len(p.endpoints) == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}
