package fabric

import (
	"errors"
	"hash/fnv"

	"oneshot/transport/rdma"
)

// Base is the tagged offset of the first octet of each arena, where this end chooses it. It is no address of this process: peers cannot tell.
const Base = 0x5000_0000_0000

const (
	firstIndex = 0xfff000 // of the STags that owners choose: see rdma.IsPlaced
	indexes    = 0x1000
)

// Arena is memory of this node in which each octet has the same place as on other nodes. One peer at a time may write to it, and read it.
// Its methods are called by one goroutine at a time.
type Arena struct {
	f     *Fabric
	name  Name
	bytes []byte
	free  func([]byte) error

	grant rdma.Grant // nil: nobody has it
	to    *Link      // whose peer has it
}

var errFull = errors.New("there are more arenas than steering tags for them")

// NewArena makes an arena of n octets, all zero. what is the same for an arena on all nodes, and another for each other arena.
func (f *Fabric) NewArena(n int64, what string) (*Arena, error) {
	a := &Arena{f: f, name: Name{Size: uint64(n)}}
	if !f.tells && !a.choose(what) {
		return nil, errFull
	}
	var err error
	if a.bytes, a.free, err = rdma.Alloc(f.cfg.Device, int(n)); err != nil {
		a.forget()
		return nil, err
	}
	return a, nil
}

// choose takes a name that is the same on all nodes, unless it is in use. False: there is none.
func (a *Arena) choose(what string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(what)) // never fails
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	for i := range uint32(indexes) {
		at := firstIndex + (h.Sum32()+i)%indexes
		if !a.f.arenas[at] {
			a.f.arenas[at], a.name.Index, a.name.Base = true, at, Base
			return true
		}
	}
	return false
}

func (a *Arena) forget() {
	a.f.mu.Lock()
	delete(a.f.arenas, a.name.Index)
	a.f.mu.Unlock()
}

// Bytes is the memory.
func (a *Arena) Bytes() []byte { return a.bytes }

// Free gives the memory back. There are no links of it any more.
func (a *Arena) Free() error {
	a.Cut()
	a.forget()
	return a.free(a.bytes)
}

// Grant lets the peer of l, and nobody else, write to the arena and read it, as grant number n. A Write that is on its way by a
// grant of before ends the connection, as long as no more than 256 grants of l's lie between the two: the number is in the STag. Where the
// device chooses the STag, there is a key, which the peer has to learn (Link.Learn), and another grant to it without a Cut is the same one: see key.go.
func (a *Arena) Grant(l *Link, n uint64) (*Key, error) {
	if a.f.tells && a.to == l {
		return nil, nil
	}
	a.Cut()
	if a.f.tells {
		g, k, err := l.key()
		if err == nil {
			a.grant, a.to = g, l
		}
		return k, err
	}
	if l.granted == 0 {
		l.granted = n
	}
	if n-l.granted >= 1<<8 {
		return nil, errors.New("the numbers of grants over this connection are used up")
	}
	g, err := l.dom.(rdma.Granter).Grant(a.bytes, rdma.AccessRemoteRead|rdma.AccessRemoteWrite, a.name.stag(n), a.name.Base)
	if err != nil {
		return nil, err
	}
	a.grant, a.to = g, l
	return nil, nil
}

// Cut takes the grant away. When it returns nothing is placed any more: a peer that is in the middle of a Write has lost its
// connection, and where the device chooses STags, any peer has. It does not wait for the peer.
func (a *Arena) Cut() {
	if a.grant == nil {
		return
	}
	if !a.grant.Revoke() {
		a.to.Abort()
	}
	_ = a.grant.Free() // cannot fail: it is granted once, and freed once; what a device does not forget keeps Link.Release from its domain
	a.grant, a.to = nil, nil
}
