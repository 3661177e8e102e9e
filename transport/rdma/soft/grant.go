package soft

import (
	"errors"

	"oneshot/stag"
	"oneshot/transport/rdma"
)

// Grant implements rdma.Granter.
func (d *Domain) Grant(b []byte, a rdma.Access, s rdma.STag, base uint64) (rdma.Grant, error) {
	switch {
	case len(b) == 0:
		return nil, ErrNoMemory
	case a == 0 || a&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0:
		return nil, ErrBadAccess
	}
	table := d.memory.Table
	err := table.RegisterAs(d.Tag, stag.STag(s), stag.Region{Segments: [][]byte{b}, Base: base, Access: TagAccess(a)})
	if errors.Is(err, stag.ErrState) {
		err = rdma.ErrInUse
	}
	if err != nil {
		return nil, err
	}
	return &grant{table, stag.STag(s)}, nil
}

// grant is memory under a name that its owner has chosen. It has one owner, who frees it once: the name may be somebody else's then.
type grant struct {
	table *stag.Table
	tag   stag.STag
}

// Revoke implements rdma.Grant.
func (g *grant) Revoke() bool {
	quiet, err := g.table.Invalidate(g.tag)
	return quiet || err != nil
}

// Free implements rdma.Grant.
func (g *grant) Free() error { return g.table.Deregister(g.tag) }
