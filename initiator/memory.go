package initiator

import (
	"errors"
	"sync"

	"oneshot/transport/rdma"
)

// Memory is page-aligned memory that the session's RDMA device knows.
type Memory struct {
	b      []byte
	region rdma.Region // nil: over TCP, and after the end of the connection; guarded by Session.mu
	// detach takes the memory from its connection, and returns the region that is to be
	// deregistered. nil: over TCP.
	detach func() rdma.Region
	free   func([]byte) error
	once   sync.Once
}

// Alloc returns n bytes of memory for commands of the session. Over TCP it is memory like any
// other.
func (s *Session) Alloc(n int) (*Memory, error) { return allocate(s.mover, n) }

func allocate(m mover, n int) (*Memory, error) {
	mem, err := newMemory(m.memoryOf(), n)
	if err != nil {
		return nil, err
	}
	if mem.detach, err = m.adopt(mem); err != nil {
		return nil, errors.Join(err, mem.Free())
	}
	return mem, nil
}

// newMemory returns memory that d can register; nil: any device.
func newMemory(d rdma.Device, n int) (*Memory, error) {
	b, free, err := rdma.Alloc(d, n)
	return &Memory{b: b, free: free}, err
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.b }

// Free gives the memory back. No command may use it; sessions that have ended use none.
func (m *Memory) Free() (err error) {
	m.once.Do(func() {
		if m.detach != nil {
			if r := m.detach(); r != nil {
				err = r.Deregister()
			}
		}
		_ = m.free(m.b)
		m.b = nil
	})
	return err
}
