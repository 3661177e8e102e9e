// Package registry knows the divided stores of a daemon, and who uses which partition of them: LUNs by
// way of a volume, queue pairs as endpoints. There is one volume for each partition in use.
//
//	registry.go   Registry: names, rights, lists
//	store.go      Store: the volumes of its partitions
//	change.go     changes of the table, and the end of those who are in their way
//	endpoint.go   Endpoint: what a queue pair works on, and what it counts
//
// A volume, once it is open, stays so until its partition is renamed, made smaller or deleted, or the
// store is closed: so the numbers of writes go on from one connection to the next.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"oneshot/internal/door"
	"oneshot/partition"
	"oneshot/transport/rdma"
)

// How many endpoints may be open, of one store and in all; of one identity, half of them (partition.Identity.Shares).
const (
	maxPerStore = 512
	maxInAll    = 2048
)

// Registry is the divided stores of a daemon. Its methods may be called from any goroutine.
type Registry struct {
	// mu guards the stores and what they know of their partitions. It is not held over I/O, nor while
	// somebody's Gone is called. It is taken after Store.opening.
	mu     sync.Mutex
	stores []*Store
	open   int         // endpoints
	shares door.Shares // of these
	last   uint64      // number of an endpoint
}

// New returns a registry without stores.
func New() *Registry { return new(Registry) }

// Request says who wants to open which partition.
type Request struct {
	Name     string             // STORE/PARTITION, or uuid:UUID
	Identity partition.Identity // as far as it is proved
	Want     rdma.Rights        // 0: all that the access lines give to Identity
	Order    rdma.Order         // for those who list endpoints; it changes nothing here
	Via      string             // the same: by which way he comes, and from where
	// Follows is the lineage of an endpoint that was his, whose works he will repeat; 0: there is none. Open fails with
	// rdma.ErrReplaced if he has been granted rdma.RightSole elsewhere since that began, unless he only reads.
	Follows uint64
	// Forgotten says that he will repeat works, and that nobody knows of which lineage.
	Forgotten bool
	// Gone is called at most once, from any goroutine, perhaps before Open returns: rights were revoked, the
	// partition is to be deleted, renamed or made smaller, or the administrator ends the endpoint. The
	// queue pair has to end, and the endpoint to be closed. Gone neither blocks nor calls the registry.
	Gone func(error)
}

// LimitError says that too many endpoints are open.
type LimitError struct {
	Store string // empty: of all stores
	Max   int
	Err   error // a *door.ShareError, of who has opened too many; nil: there are Max
}

func (e *LimitError) Error() string {
	of, have := "all stores together", "have"
	if e.Store != "" {
		of, have = fmt.Sprintf("the store %q", e.Store), "has"
	}
	if e.Err != nil {
		return fmt.Sprintf("open endpoints of %s: %v: end some", of, e.Err)
	}
	return fmt.Sprintf("%s %s %d open endpoints, which is the most: end some", of, have, e.Max)
}

func (e *LimitError) Unwrap() error { return e.Err }

// Open opens a partition for a queue pair, and grants what Want and the access lines have in common. The error wraps
// rdma.ErrNoEndpoint if there is no such store or partition, or if Identity has no right to it, or none of those
// wanted: an identity does not learn what exists. Another error is a *LimitError, or one of the store. Open may wait
// for the store. The caller closes the Endpoint.
func (r *Registry) Open(ctx context.Context, q Request) (*Endpoint, error) {
	s, uuid, err := r.find(q.Name)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	_, err = s.grant(uuid, &q) // before anything is opened for him
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	e, err := s.enter(ctx, uuid, q)
	if err != nil {
		return nil, err
	}
	if err := s.alone(ctx, e); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// enter makes an endpoint, and opens the volume if nobody has.
func (s *Store) enter(ctx context.Context, uuid partition.UUID, q Request) (*Endpoint, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	part, err := s.use(uuid)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{part: part, request: q, since: time.Now(), Handle: part.volume.Open(nil), closed: make(chan struct{})}
	e.size = e.Handle.Info().Size
	if err := s.admit(e); err != nil {
		e.Handle.Close()
		return nil, err
	}
	return e, nil
}

// alone ends the endpoints of the same user whose lineages began before that of e, and earlier ones of its own, if e was granted
// rdma.RightSole, and waits until they are closed.
func (s *Store) alone(ctx context.Context, e *Endpoint) error {
	if e.rights&rdma.RightSole == 0 {
		return nil
	}
	s.r.mu.Lock()
	var ending []*Endpoint
	for o := range e.part.endpoints {
		earlier := o.lineage < e.lineage || o.lineage == e.lineage && o.number < e.number
		if earlier && o.rights.Changes() && o.who() == e.who() {
			ending = append(ending, o)
		}
	}
	s.r.mu.Unlock()
	for _, o := range ending {
		o.tell(rdma.ErrReplaced)
	}
	for _, o := range ending {
		select {
		case <-o.closed:
		case <-ctx.Done():
			return fmt.Errorf("the earlier use of %s: %w", e.request.Name, ErrHangs)
		}
	}
	return nil
}

// admit puts an endpoint on the list, with the rights that it gets. What its partition is like may have changed
// since it was found; from now on, who changes it finds the endpoint.
func (s *Store) admit(e *Endpoint) error {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.available(e.part.uuid); err != nil {
		return err
	}
	rights, err := s.grant(e.part.uuid, &e.request)
	switch {
	case err != nil:
		return err
	case r.open >= maxInAll:
		return &LimitError{Max: maxInAll}
	case s.endpoints() >= maxPerStore:
		return &LimitError{Store: s.name, Max: maxPerStore}
	}
	sole := writer{e.part.uuid, e.who()}
	newest := s.sole[sole]
	late := e.request.Follows != 0 && e.request.Follows < newest || e.request.Forgotten && newest != 0
	if late && rights.Changes() { // what only reads does no harm
		return rdma.ErrReplaced
	}
	who := e.request.Identity.Shares()
	if err := s.shares.Take(maxPerStore, who); err != nil {
		return &LimitError{Store: s.name, Max: maxPerStore, Err: err}
	}
	if err := r.shares.Take(maxInAll, who); err != nil {
		s.shares.Free(who)
		return &LimitError{Max: maxInAll, Err: err}
	}
	r.last++
	r.open++
	e.rights, e.number, e.lineage = rights, r.last, cmp.Or(e.request.Follows, r.last)
	if rights&rdma.RightSole != 0 {
		s.sole[sole] = e.lineage
	}
	e.part.endpoints[e] = struct{}{}
	return nil
}

// find returns what a name means: a store and a partition of it.
func (r *Registry) find(name string) (*Store, partition.UUID, error) {
	none := fmt.Errorf("%w: %s", rdma.ErrNoEndpoint, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	id, byUUID := strings.CutPrefix(name, "uuid:")
	store, part, ok := strings.Cut(name, "/")
	if !byUUID && !ok {
		return nil, partition.UUID{}, fmt.Errorf("%w: %q names no partition: write STORE/PARTITION or uuid:UUID", rdma.ErrNoEndpoint, name)
	}
	for _, s := range r.stores {
		if s.set == nil || !byUUID && s.name != store {
			continue
		}
		t := s.set.Table()
		for i := range t.Partitions {
			if p := &t.Partitions[i]; byUUID && p.UUID.String() == id || !byUUID && p.Name == part {
				return s, p.UUID, nil
			}
		}
	}
	return nil, partition.UUID{}, none
}

// grant returns the rights that a request gets, or why it gets none. Registry.mu is held.
func (s *Store) grant(u partition.UUID, q *Request) (rdma.Rights, error) {
	none := fmt.Errorf("%w: %s", rdma.ErrNoEndpoint, q.Name)
	p := s.find(u)
	if p == nil {
		return 0, none
	}
	rights := s.rightsOf(p, q.Identity)
	if want := q.Want &^ rdma.RightSole; want != 0 {
		rights &= want
	}
	if rights == 0 {
		return 0, none
	}
	if rights.Changes() {
		rights |= q.Want & rdma.RightSole
	}
	return rights, nil
}

// rightsOf returns what id may do with p. Registry.mu is held.
func (s *Store) rightsOf(p *partition.Partition, id partition.Identity) rdma.Rights {
	rights := rdma.Rights(p.Rights(id)) // the bits are the same: a test compares the letters
	if s.readOnly {
		rights &^= rdma.RightWrite | rdma.RightAtomics | rdma.RightDiscard | rdma.RightManage
	}
	return rights
}

// List returns the partitions of which id has any right, sorted by name, with these rights.
func (r *Registry) List(id partition.Identity) (list []rdma.Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.stores {
		if s.set == nil {
			continue
		}
		t := s.set.Table()
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if rights := s.rightsOf(p, id); rights != 0 && s.set.Fits(p) == nil {
				list = append(list, s.describe(p, p.Size, rights))
			}
		}
	}
	slices.SortFunc(list, func(a, b rdma.Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

var errDropped = errors.New("the administrator has ended the endpoint")

// Drop ends the endpoint of that number, and reports whether there was one.
func (r *Registry) Drop(number uint64) bool {
	e := r.numbered(number)
	if e == nil {
		return false
	}
	e.tell(errDropped)
	return true
}

func (r *Registry) numbered(number uint64) *Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.stores {
		for _, p := range s.parts {
			for e := range p.endpoints {
				if e.number == number {
					return e
				}
			}
		}
	}
	return nil
}

// Endpoints returns what is known of all that are open, in the order in which they were opened.
func (r *Registry) Endpoints() (list []Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.stores {
		for _, p := range s.parts {
			for e := range p.endpoints {
				list = append(list, e.info(s, p))
			}
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return cmp.Compare(a.Number, b.Number) })
	return list
}
