package local

import (
	"errors"
	"fmt"
	"sync"

	"oneshot/backend"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// mapper is what a Medium may be, too: its bytes can be had as memory, as volume.Handle.Map says.
type mapper interface {
	Map(off, n int64, write bool, recall func()) (b []byte, unmap func(), err error)
}

// Map implements rdma.Mapper, for endpoints.
func (q *queuePair) Map(off uint64, n int64, write bool) (*rdma.Mapping, error) {
	e := q.endpoint.Load()
	if e == nil {
		return nil, rdma.ErrDisconnected
	}
	return e.memory(off, n, write)
}

// memory maps a range. The lock is taken.
func (e *endpoint) memory(off uint64, n int64, write bool) (*rdma.Mapping, error) {
	op, rights := rdma.OpRead, rdma.RightRead
	if write {
		op, rights = rdma.OpWrite, rdma.RightRead|rdma.RightWrite
	}
	e.mu.Lock()
	defer e.unlock()
	switch _, what := soft.EndpointRange(&e.info, off, n); {
	case e.over || e.leaving || e.gone.Load() != nil:
		return nil, rdma.ErrDisconnected
	case len(e.mapped) >= e.q.maxWork:
		return nil, rdma.ErrFull
	case n <= 0:
		return nil, &rdma.WorkError{Op: op, What: "mapping of no octets"}
	case what != "":
		return nil, &rdma.WorkError{Op: op, What: what}
	case e.info.Rights&rights != rights:
		return nil, &rdma.WorkError{Op: op, What: fmt.Sprintf("mapping that wants the rights %v, granted are %v", rights, e.info.Rights)}
	}
	m, ok := e.m.(mapper)
	if !ok {
		return nil, rdma.ErrUnsupported
	}
	recalled := make(chan struct{})
	recall := sync.OnceFunc(func() { close(recalled) })
	b, unmap, err := m.Map(int64(off-e.info.Base), n, write, recall)
	if err != nil {
		if is[*backend.DeniedError](err) || is[*backend.RangeError](err) || is[*backend.MediumError](err) {
			return nil, err
		}
		return nil, errors.Join(rdma.ErrUnsupported, err)
	}
	mapping := &rdma.Mapping{Bytes: b, Recalled: recalled}
	mapping.Unmap = sync.OnceFunc(func() { e.unmap(mapping, unmap) })
	e.mapped[mapping] = recall
	e.q.dev.mapped.Add(1)
	return mapping, nil
}

// recall asks for all mappings. The lock is held.
func (e *endpoint) recall() {
	for _, f := range e.mapped {
		f()
	}
}

// unmap is the end of a mapping. After the last one the endpoint may be let go.
func (e *endpoint) unmap(m *rdma.Mapping, unmap func()) {
	unmap()
	e.mu.Lock()
	delete(e.mapped, m)
	release := e.idle() && (e.told || e.gone.Load() != nil)
	e.unlock()
	if release {
		e.release()
	}
	e.q.dev.mapped.Add(-1)
}

// idle reports whether nobody uses the medium. The lock is held.
func (e *endpoint) idle() bool { return e.running == 0 && len(e.mapped) == 0 }
