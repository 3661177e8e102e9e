package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/ha/heap"
	objects "oneshot/ha/heap/service"
	"oneshot/ha/replica"
	"oneshot/mgmt"
)

// heaps are the heaps of objects of this node, open or waiting for their turn. Its methods may be called from any goroutine.
type heaps struct {
	member *member // nil: there is no cluster

	mu sync.Mutex
	by map[string]*heapHost // by store; guarded by mu
}

func newHeaps(m *member) *heaps { return &heaps{member: m, by: make(map[string]*heapHost)} }

// find returns the heap in a store, or nil.
func (h *heaps) find(store string) *heapHost {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[store]
}

// heapHost serves the objects in a store for as long as this node serves the store: that of a mirror while it is the primary, any
// other all the time.
type heapHost struct {
	name   string
	store  backend.Store
	mirror *mirrored // nil: the store is none
	member *member
	log    *slog.Logger
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup

	counters objects.Counters

	mu       sync.Mutex // not held over calls of a service that end connections
	heap     *heap.Heap // guarded by mu, as services
	services []*objects.Service
	changes  sync.Mutex // taken before mu: services hear of one change at a time
}

// begin has objects be kept in a store, until end.
func (h *heaps) begin(name string, s backend.Store, m *mirrored, log *slog.Logger) *heapHost {
	x := &heapHost{name: name, store: s, mirror: m, member: h.member, log: log}
	x.ctx, x.stop = context.WithCancel(context.Background())
	h.mu.Lock()
	h.by[name] = x
	h.mu.Unlock()
	x.wg.Go(x.run)
	return x
}

// end waits until nothing uses the store for objects any more.
func (h *heaps) end(x *heapHost) {
	h.mu.Lock()
	if h.by[x.name] == x {
		delete(h.by, x.name)
	}
	h.mu.Unlock()
	x.stop()
	x.wg.Wait()
}

// heapAgain is the time after which a heap that could not be opened is tried again.
const heapAgain = 100 * time.Millisecond

// run opens the heap whenever this node serves the store.
func (x *heapHost) run() {
	said := ""
	for x.await(x.ctx, func(s replica.State) bool { return s.Role == replica.Primary }) {
		began, term := time.Now(), uint64(0)
		if x.mirror != nil {
			term = x.mirror.Term()
		}
		h, err := heap.Open(x.store)
		if err != nil {
			if text := err.Error(); text != said && !is[*backend.MovedError](err) {
				said = text
				x.log.Error("objects are not served", "reason", err)
			}
			select {
			case <-x.ctx.Done():
			case <-time.After(heapAgain):
			}
			continue
		}
		said = ""
		x.log.Info("objects are served", "opened_in", time.Since(began))
		x.serve(h, term)
	}
}

// await returns when the state of the mirror holds, if the store is one, or when ctx ends. False: the store is to be closed.
func (x *heapHost) await(ctx context.Context, holds func(replica.State) bool) bool {
	if x.mirror != nil {
		_ = x.mirror.Await(ctx, holds)
	}
	return x.ctx.Err() == nil
}

var errHandedOver = errors.New("this node does not serve the store any more")

// serve has services serve an open heap, until the node is not the primary any more, or not in the term in which the heap was opened: another one may have
// served in between, unnoticed here, and who reads the memory by himself asks nobody.
func (x *heapHost) serve(h *heap.Heap, term uint64) {
	ctx, cancel := context.WithCancel(x.ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if x.mirror == nil {
			<-ctx.Done()
		}
		x.await(ctx, func(s replica.State) bool { return !s.Serves(term) })
		h.Fail(errHandedOver)
	})
	x.set(h)
	<-h.Failed()
	x.set(nil)
	if err := h.Close(); err != nil {
		x.log.Error("memory of objects stays in use", "reason", err)
	}
	cancel()
	watch.Wait()
	level := slog.LevelInfo
	if err := h.Err(); !is[*backend.MovedError](err) && !errors.Is(err, errHandedOver) {
		level = slog.LevelError // the store has failed; it is tried again
	}
	x.log.Log(x.ctx, level, "objects are not served any more", "reason", h.Err())
}

// set tells all services which heap they serve.
func (x *heapHost) set(h *heap.Heap) {
	x.changes.Lock()
	defer x.changes.Unlock()
	x.mu.Lock()
	x.heap = h
	all := slices.Clone(x.services)
	x.mu.Unlock()
	for _, s := range all {
		x.tell(s, h)
	}
}

func (x *heapHost) tell(s *objects.Service, h *heap.Heap) {
	if err := s.SetHeap(h); err != nil {
		x.log.Error("objects cannot be reached through a portal", "reason", err)
	}
}

// add has one more service serve the heap; remove is its end.
func (x *heapHost) add(s *objects.Service) {
	x.changes.Lock()
	defer x.changes.Unlock()
	x.mu.Lock()
	x.services = append(x.services, s)
	h := x.heap
	x.mu.Unlock()
	if h != nil {
		x.tell(s, h)
	}
}

func (x *heapHost) remove(s *objects.Service) {
	x.changes.Lock()
	defer x.changes.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.services = slices.DeleteFunc(x.services, func(o *objects.Service) bool { return o == s })
}

// status returns what there is of objects, by the names of their stores.
func (h *heaps) status() (list []mgmt.Objects) {
	h.mu.Lock()
	hosts := slices.Collect(maps.Values(h.by))
	h.mu.Unlock()
	for _, x := range hosts {
		list = append(list, x.status())
	}
	slices.SortFunc(list, func(a, b mgmt.Objects) int { return strings.Compare(a.Store, b.Store) })
	return list
}

func (x *heapHost) status() mgmt.Objects {
	x.mu.Lock()
	h, services := x.heap, slices.Clone(x.services)
	x.mu.Unlock()
	o := mgmt.Objects{Store: x.name, Served: h != nil, Requests: []mgmt.ObjectRequests{}}
	if h != nil {
		s := h.Stats()
		o.Objects, o.Bytes, o.Memory, o.Free = s.Objects, s.Bytes, s.Memory, s.Free
	}
	for _, s := range services {
		o.Connections += s.Connections()
	}
	x.counters.All(func(op, status string, n uint64) {
		o.Requests = append(o.Requests, mgmt.ObjectRequests{Op: op, End: status, Count: n})
	})
	return o
}

// nodes returns the addresses of the other nodes that have the objects, the primary first.
func (x *heapHost) nodes() (list []string) {
	if x.member == nil || x.mirror == nil {
		return nil
	}
	primary := x.mirror.nodeName(x.mirror.State().View.Primary)
	for _, p := range x.member.objectPortals() {
		if p.Store != x.name {
			continue
		}
		at := p.Advertise
		if a := p.Listen.Addr(); at == "" && a.IsValid() && !a.IsUnspecified() {
			at = p.Listen.String()
		}
		switch {
		case at == "":
		case p.Node == primary:
			list = slices.Insert(list, 0, at)
		default:
			list = append(list, at)
		}
	}
	return list
}

// objectPortals lists the portals for objects of other nodes.
func (m *member) objectPortals() []config.Portal { return *m.objects.Load() }
