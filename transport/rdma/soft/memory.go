package soft

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/internal/invariant"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// MaxMessage is how many bytes a scatter/gather list may have.
const MaxMessage = 1 << 30

// Memory is what a device knows of memory. Its methods, and those of its domains and regions, may be called from any
// goroutine.
type Memory struct {
	Table *stag.Table

	registrations, deregistrations atomic.Uint64

	mu   sync.Mutex            // a leaf
	tags map[stag.STag]*Region // regions that may be invalidated
}

// Init makes m empty, with room for that many STags.
func (m *Memory) Init(tags int) {
	m.Table, m.tags = stag.NewTable(tags), make(map[stag.STag]*Region)
}

// AddTo adds how often memory was registered and deregistered.
func (m *Memory) AddTo(c *rdma.Counters) {
	c.Registrations += m.registrations.Load()
	c.Deregistrations += m.deregistrations.Load()
}

// Invalidatable reports whether s is a region of d that may be invalidated.
func (m *Memory) Invalidatable(s stag.STag, d *Domain) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.tags[s]
	return r != nil && r.domain == d
}

// Domain is a protection domain, as far as regions go.
type Domain struct {
	memory *Memory
	Tag    *stag.Domain
}

// NewDomain makes a protection domain.
func (m *Memory) NewDomain() Domain { return Domain{memory: m, Tag: m.Table.NewDomain()} }

// BindNeeds returns what the region needs to allow to which p binds a window, and what is wrong with p: one piece of memory
// is bound, with rights that there are.
func BindNeeds(p *rdma.Work) (need rdma.Access, what string) {
	switch {
	case len(p.SGL) != 1 || len(p.SGL[0].Bytes) == 0:
		return 0, "a window is bound to exactly one piece of memory"
	case p.Access&^AllAccess != 0:
		return 0, ErrBadAccess.Error()
	case p.Access&rdma.AccessRemoteWrite != 0:
		need = rdma.AccessLocalWrite
	}
	return need, ""
}

// AllAccess are the rights that there are.
const AllAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteInvalidate

// TagAccess translates access rights to those of the STag table.
func TagAccess(a rdma.Access) (t stag.Access) {
	if a&rdma.AccessLocalWrite != 0 {
		t |= stag.AccessLocalWrite
	}
	if a&rdma.AccessRemoteRead != 0 {
		t |= stag.AccessRemoteRead
	}
	if a&rdma.AccessRemoteWrite != 0 {
		t |= stag.AccessRemoteWrite
	}
	if a&rdma.AccessRemoteInvalidate != 0 {
		t |= stag.AccessRemoteInvalidate
	}
	return t
}

// Register implements rdma.Domain. Tagged offsets are zero based: a peer learns no addresses.
func (d *Domain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	switch {
	case len(b) == 0:
		return nil, ErrNoMemory
	case a&^AllAccess != 0:
		return nil, ErrBadAccess
	}
	m := d.memory
	r := &Region{domain: d, bytes: [1][]byte{b}, access: a, addr: Address(b)}
	s, err := m.Table.Register(d.Tag, nil, stag.Region{Segments: r.bytes[:], Access: TagAccess(a)})
	if err != nil {
		return nil, err
	}
	r.tag = s
	m.registrations.Add(1)
	if a&rdma.AccessRemoteInvalidate != 0 {
		m.mu.Lock()
		m.tags[s] = r
		m.mu.Unlock()
	}
	return r, nil
}

// Close implements rdma.Domain.
func (d *Domain) Close() error { return nil }

// Region is registered memory.
type Region struct {
	domain *Domain
	bytes  [1][]byte
	access rdma.Access
	addr   uintptr
	tag    stag.STag

	// pins counts the uses by our own requests; those of peers are the STag table's. Above them is the bit
	// that says that the region is being deregistered.
	pins atomic.Int64
	idle chan struct{} // closed when the last pin is gone after that; made if there are any
}

const deregistering = 1 << 32

// Bytes implements rdma.Region.
func (r *Region) Bytes() []byte { return r.bytes[0] }

// STag implements rdma.Region.
func (r *Region) STag() rdma.STag { return rdma.STag(r.tag) }

// Base implements rdma.Region.
func (r *Region) Base() uint64 { return 0 }

// Address is where b begins.
func Address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Offset returns where b begins in the region. False: b is not inside.
func (r *Region) Offset(b []byte) (uint64, bool) {
	a := Address(b)
	if a < r.addr {
		return 0, false
	}
	off := uint64(a - r.addr)
	return off, off <= uint64(len(r.bytes[0])) && uint64(len(b)) <= uint64(len(r.bytes[0]))-off
}

// Pin keeps the memory registered. False: it is not any more.
func (r *Region) Pin() bool {
	for {
		n := r.pins.Load()
		if n&deregistering != 0 {
			return false
		}
		if r.pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Unpin is the end of Pin.
func (r *Region) Unpin() {
	n := r.pins.Add(-1)
	invariant.Check(n >= 0, "rdma: a region is unpinned more often than pinned")
	if n == deregistering {
		close(r.idle)
	}
}

// Idle reports that Deregister would not wait: no request of ours uses the memory, and peers may not. The caller sees
// to it that nothing is posted meanwhile.
func (r *Region) Idle() bool {
	const remote = rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	return r.pins.Load() == 0 && r.access&remote == 0
}

// PinAll pins all regions or none.
func PinAll(rs []*Region) bool {
	for i, r := range rs {
		if !r.Pin() {
			UnpinAll(rs[:i])
			return false
		}
	}
	return true
}

// UnpinAll is the end of PinAll.
func UnpinAll(rs []*Region) {
	for _, r := range rs {
		r.Unpin()
	}
}

// end refuses further pins, and waits for those there are. False: that was done before.
func (r *Region) end() bool {
	if r.pins.CompareAndSwap(0, deregistering) {
		return true
	}
	m := r.domain.memory
	m.mu.Lock() // two may be here
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	old := r.pins.Or(deregistering)
	m.mu.Unlock()
	if old&deregistering != 0 {
		return false
	}
	if old != 0 {
		<-r.idle
	}
	return true
}

// Deregister implements rdma.Region.
func (r *Region) Deregister() error {
	if !r.end() {
		return ErrGone
	}
	invariant.Check(r.pins.Load() == deregistering, "rdma: a region goes while it is pinned")
	m := r.domain.memory
	if r.access&rdma.AccessRemoteInvalidate != 0 {
		m.mu.Lock()
		delete(m.tags, r.tag)
		m.mu.Unlock()
	}
	m.deregistrations.Add(1)
	return m.Table.Deregister(r.tag)
}

// AppendSGL checks a scatter/gather list, appends its memory and its regions to segs and regions, and returns the sum
// of its octets. what, if not empty, says what is wrong.
func AppendSGL(segs [][]byte, regions []*Region, sgl []rdma.SGE, d *Domain, need rdma.Access, most int,
) (_ [][]byte, _ []*Region, n int, what string) {
	if len(sgl) > most {
		return segs, regions, 0, "scatter/gather list is too long"
	}
	for i := range sgl {
		b := sgl[i].Bytes
		if len(b) == 0 {
			continue
		}
		r, what := Registered(&sgl[i], d, need)
		if what == "" && len(b) > MaxMessage-n {
			what = "message is too long"
		}
		if what != "" {
			return segs, regions, 0, what
		}
		segs = append(segs, b)
		regions = append(regions, r)
		n += len(b)
	}
	return segs, regions, n, ""
}

// Registered returns the region of an element, which has to be of d and to allow need, or says what is
// wrong with it.
func Registered(e *rdma.SGE, d *Domain, need rdma.Access) (r *Region, what string) {
	r, ok := e.Region.(*Region)
	switch {
	case !ok:
		return nil, "memory without a region of this device"
	case r.domain != d:
		return nil, "region of another protection domain"
	case r.access&need != need:
		return nil, "region does not allow local writes"
	}
	if _, ok := r.Offset(e.Bytes); !ok {
		return nil, "memory is not inside of its region"
	}
	return r, ""
}
