package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"oneshot/mgmt"
	"oneshot/partition"
	"oneshot/partition/registry"
	osp "oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/nic/card"
)

// localUsers knows the programs of a local portal: whose they are, and what their users do. Its methods may be called from any goroutine.
type localUsers struct {
	registry *registry.Registry

	mu       sync.Mutex // taken before the locks of what an endpoint counts
	programs map[*local.Device]partition.Identity
	open     map[*localEndpoint]struct{}
	past     map[uint32]*registry.Counts // by UID, of endpoints that are closed; of users who have programs or endpoints
}

func newLocalUsers(r *registry.Registry) *localUsers {
	return &localUsers{
		registry: r, programs: make(map[*local.Device]partition.Identity),
		open: make(map[*localEndpoint]struct{}), past: make(map[uint32]*registry.Counts),
	}
}

// enter notes who has connected.
func (u *localUsers) enter(d *local.Device, peer card.Peer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.programs[d] = partition.Identity{Local: true, UID: peer.UID, GIDs: peer.GIDs}
	if u.past[peer.UID] == nil {
		u.past[peer.UID] = new(registry.Counts)
	}
}

// leave forgets him.
func (u *localUsers) leave(d *local.Device) {
	u.mu.Lock()
	defer u.mu.Unlock()
	uid := u.programs[d].UID
	delete(u.programs, d)
	u.forget(uid)
}

// forget drops the counts of a user of whom nothing is left. mu is held.
func (u *localUsers) forget(uid uint32) {
	for _, id := range u.programs {
		if id.UID == uid {
			return
		}
	}
	for e := range u.open {
		if e.uid == uid {
			return
		}
	}
	delete(u.past, uid)
}

// identity returns who has the program of that device.
func (u *localUsers) identity(d *local.Device) partition.Identity {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.programs[d]
}

// localEndpoint is an endpoint of a user.
type localEndpoint struct {
	*registry.Endpoint
	users *localUsers
	uid   uint32
}

// Open implements osp.Opener.
func (u *localUsers) Open(ctx context.Context, q osp.Request) (osp.Endpoint, error) {
	e, err := u.registry.Open(ctx, registry.Request(q))
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	x := &localEndpoint{e, u, q.Identity.UID}
	u.open[x] = struct{}{}
	if u.past[x.uid] == nil { // his program has just gone
		u.past[x.uid] = new(registry.Counts)
	}
	return x, nil
}

// List implements osp.Opener.
func (u *localUsers) List(id partition.Identity) []rdma.Endpoint { return u.registry.List(id) }

// Close implements osp.Endpoint.
func (e *localEndpoint) Close() {
	e.Endpoint.Close()
	u := e.users
	u.mu.Lock()
	defer u.mu.Unlock()
	u.past[e.uid].Add(e.Counts())
	u.past[e.uid].InFlight = 0
	delete(u.open, e)
	u.forget(e.uid)
}

// status returns the users that have programs, by their numbers.
func (u *localUsers) status(programs []card.Program) []mgmt.ProgramUser {
	by := make(map[uint32]*mgmt.ProgramUser)
	for _, p := range programs {
		x := by[p.UID]
		if x == nil {
			x = &mgmt.ProgramUser{UID: p.UID, IO: endpointIO(u.counts(p.UID))}
			by[p.UID] = x
		}
		x.Programs++
		x.QueuePairs += p.QueuePairs
		x.Shared += p.Shared
	}
	list := make([]mgmt.ProgramUser, 0, len(by))
	for _, x := range slices.SortedFunc(maps.Values(by), func(a, b *mgmt.ProgramUser) int { return cmp.Compare(a.UID, b.UID) }) {
		list = append(list, *x)
	}
	return list
}

// counts returns what endpoints of a user have done since his first program came.
func (u *localUsers) counts(uid uint32) *registry.Counts {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := new(registry.Counts)
	if past := u.past[uid]; past != nil {
		c.Add(past)
	}
	for e := range u.open {
		if e.uid == uid {
			c.Add(e.Counts())
		}
	}
	return c
}
