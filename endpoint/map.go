package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"oneshot/transport/rdma"
)

// Map returns n bytes of the partition at off as memory, to read them or, with write, to read and write them: without
// an operation, and without a copy. Offset and length are multiples of the unit (Info). The caller calls Unmap, soon
// after Recalled is closed: who wants to change or delete the partition, or to close its store, waits for that. Close
// gives back what is left. rdma.Mapping says what else holds.
//
// It is for partitions of memory stores in this process. The error is a *RightsError, or wraps rdma.ErrUnsupported if
// the partition is another one; it is a *rdma.WorkError if the range is not within the partition.
func (e *Endpoint) Map(ctx context.Context, off, n int64, write bool) (*rdma.Mapping, error) {
	want := rdma.RightRead
	if write {
		want |= rdma.RightWrite
	}
	for tries := 0; ; tries++ {
		c := e.now.Load()
		if have := c.info.Rights; have&want != want {
			return nil, &RightsError{c.info.Name, want, have}
		}
		m, err := c.memory(off, n, write)
		if errors.Is(err, rdma.ErrDisconnected) && tries == 0 {
			if err := e.renew(ctx, c, c.qp); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("endpoint: map %d bytes of %s at %d: %w", n, c.info.Name, off, err)
		}
		return e.keep(m)
	}
}

func (c *conn) memory(off, n int64, write bool) (*rdma.Mapping, error) {
	m, ok := c.qp.(rdma.Mapper)
	if !ok {
		return nil, fmt.Errorf("%w: memory of a partition is for the process that serves it", rdma.ErrUnsupported)
	}
	return m.Map(c.info.Base+uint64(off), n, write)
}

// keep notes a mapping until its Unmap.
func (e *Endpoint) keep(m *rdma.Mapping) (*rdma.Mapping, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		m.Unmap()
		return nil, errClosed
	}
	own := &rdma.Mapping{Bytes: m.Bytes, Recalled: m.Recalled}
	own.Unmap = func() {
		e.mu.Lock()
		if i := slices.Index(e.maps, own); i >= 0 && !e.closed {
			e.maps = slices.Delete(e.maps, i, i+1)
		}
		e.mu.Unlock()
		m.Unmap()
	}
	e.maps = append(e.maps, own)
	return own, nil
}
