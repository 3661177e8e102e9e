package volume

import (
	"errors"
	"slices"
	"sync"

	"oneshot/backend"
)

// ErrNotLent says that a volume's bytes cannot be had as memory.
var ErrNotLent = errors.New("the store does not keep its bytes in memory, and so none can be mapped")

// mapping is memory of the store that a user of a handle has.
type mapping struct {
	kind   backend.Kind // what its user does with it
	recall func()
}

// Map returns the memory of [off, off+n), n > 0, of a volume that lends its memory, to read it or, with write, to read
// and write it. It is valid until unmap is called, which has to follow once, and shows what others write meanwhile. Of
// what is done to it nothing is atomic but single loads and stores of up to 8 aligned octets, and atomic operations
// on them (package sync/atomic).
//
// A mapping is an operation under way. What waits for those, such as SANITIZE or PREEMPT AND ABORT, waits for unmap.
// What denies the handle such operations calls recall: from then on the user should not touch the memory. recall may
// be called several times and within Map, with locks of the volume held: it must not block, nor call the volume or the
// handle. Errors are those of Submit, and ErrNotLent.
func (h *Handle) Map(off, n int64, write bool, recall func()) (b []byte, unmap func(), err error) {
	m := &mapping{backend.Read, recall}
	if write {
		m.kind = backend.Write
	}
	v := h.v
	if v.lender == nil {
		return nil, nil, ErrNotLent
	}
	h.under.Add(1)
	if err := h.refuses(&backend.Op{Kind: m.kind, Off: off, Len: n}, kindTransfer); err != nil {
		h.leave()
		return nil, nil, err
	}
	if write {
		v.lender.Map(off, n)
		v.tokens.open(Range{off, n})
	}
	end := func() {
		if write {
			v.tokens.shut(Range{off, n})
			v.lender.Unmap(off, n)
		}
		h.leave()
	}
	segs := v.lender.Lend(nil, off, n, false)
	if len(segs) != 1 {
		end()
		return nil, nil, ErrNotLent
	}
	h.mu.Lock()
	h.mappings = append(h.mappings, m)
	h.mu.Unlock()
	h.recall() // who denies may have looked before
	return segs[0], sync.OnceFunc(func() {
		h.mu.Lock()
		i := slices.Index(h.mappings, m)
		h.mappings = slices.Delete(h.mappings, i, i+1)
		h.mu.Unlock()
		end()
	}), nil
}

// recall asks for the mappings that are denied now.
func (h *Handle) recall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.mappings {
		if h.refuses(&backend.Op{Kind: m.kind}, kindTransfer) != nil {
			m.recall()
		}
	}
}
