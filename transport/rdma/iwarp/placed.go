package iwarp

import (
	"errors"
	"sync/atomic"

	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

var (
	_ rdma.Placer = (*domain)(nil)
	_ rdma.Barrer = (*queuePair)(nil)
)

// Bar implements rdma.Barrer.
func (q *queuePair) Bar() { q.stream.Bar() }

// Admit implements rdma.Barrer.
func (q *queuePair) Admit() { q.stream.Admit() }

// placed is memory under a name that its owner has chosen. It is not a region of the table but an Exposed: what leaves is copied
// first, because the CRC of an FPDU has to be that of the octets that follow, and the memory may change at any time.
type placed struct {
	domain *domain
	bytes  []byte
	tag    stag.STag
	base   uint64
	gone   atomic.Bool
}

// RegisterAt implements rdma.Placer.
func (d *domain) RegisterAt(b []byte, a rdma.Access, s rdma.STag, base uint64) (rdma.Region, error) {
	switch {
	case len(b) == 0:
		return nil, soft.ErrNoMemory
	case a == 0 || a&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0:
		return nil, soft.ErrBadAccess
	}
	p := &placed{domain: d, bytes: b, tag: stag.STag(s), base: base}
	err := d.dev.memory.Table.RegisterAs(d.Tag, p.tag, stag.Region{
		Length: uint64(len(b)), Base: base, Access: soft.TagAccess(a), Keeper: &exposure{p},
	})
	if errors.Is(err, stag.ErrState) {
		err = rdma.ErrInUse
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ReadAt implements rdma.Exposed. The table has checked the range.
func (p *placed) ReadAt(b []byte, off int64) error {
	copy(b, p.bytes[off:])
	return nil
}

// WriteAt implements rdma.Exposed.
func (p *placed) WriteAt(b []byte, off int64) error {
	copy(p.bytes[off:], b)
	return nil
}

// Bytes, STag, Base and Deregister implement rdma.Region.
func (p *placed) Bytes() []byte { return p.bytes }

// STag is described with Bytes.
func (p *placed) STag() rdma.STag { return rdma.STag(p.tag) }

// Base is described with Bytes.
func (p *placed) Base() uint64 { return p.base }

// Deregister is described with Bytes.
func (p *placed) Deregister() error {
	if p.gone.Swap(true) {
		return soft.ErrGone
	}
	return p.domain.dev.memory.Table.Deregister(p.tag)
}
