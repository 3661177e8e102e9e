package nic

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// memory is what a device shares.
type memory struct {
	registrations, deregistrations atomic.Uint64

	mu      sync.RWMutex // a leaf
	arenas  []*arena     // by address
	arenaNo numbers
	regions numbers
	windows numbers
	tags    map[rdma.STag]*region // regions that may be invalidated
}

// arena is memory of Alloc.
type arena struct {
	number uint32
	seg    *shm.Segment
	addr   uintptr
	owned  bool // the device unmaps it
}

func (m *memory) init() {
	m.arenaNo.max, m.regions.max, m.windows.max = shm.MaxObjects-1, shm.MaxObjects-1, shm.MaxObjects-1
	m.tags = make(map[rdma.STag]*region)
}

func (m *memory) release() {
	for _, a := range m.arenas {
		if a.owned {
			_ = a.seg.Close()
		}
	}
	m.arenas = nil
}

var (
	errMany     = errors.New("nic: too many of them at a time")
	errNotOurs  = errors.New("nic: memory that the device has not allocated (Alloc)")
	errShared   = errors.New("nic: no memory of so many bytes can be shared")
	errNotAlloc = errors.New("nic: memory that Alloc has not returned")
)

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// find returns the arena that b lies in, and where, or nil.
func (m *memory) find(b []byte) (*arena, uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	addr := address(b)
	i, ok := slices.BinarySearchFunc(m.arenas, addr, func(a *arena, addr uintptr) int {
		switch {
		case a.addr < addr:
			return -1
		case a.addr > addr:
			return 1
		}
		return 0
	})
	if !ok {
		i--
	}
	if i < 0 {
		return nil, 0
	}
	a := m.arenas[i]
	off, size := uint64(addr-a.addr), uint64(len(a.seg.Bytes()))
	if off > size || uint64(len(b)) > size-off {
		return nil, 0
	}
	return a, off
}

// take takes a number of those that n hands out.
func (m *memory) take(n *numbers) (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x, ok := n.take(); ok {
		return x, nil
	}
	return 0, errMany
}

func (m *memory) give(n *numbers, x uint32) {
	m.mu.Lock()
	n.give(x)
	m.mu.Unlock()
}

// newArena makes memory that a card can map, and a descriptor of it, which is the caller's.
func newArena(n int) (seg *shm.Segment, fd int, err error) {
	if n <= 0 {
		return nil, -1, errShared
	}
	return shm.Create("nic-memory", (n+shm.PageSize-1)&^(shm.PageSize-1))
}

// lend shares memory with the card. The device unmaps it at its end if owned.
func (d *Device) lend(seg *shm.Segment, fd int, owned bool) error {
	m, size := &d.memory, len(seg.Bytes())
	number, err := m.take(&m.arenaNo)
	if err != nil {
		return err
	}
	if _, _, err := d.call(&shm.Message{Op: shm.OpArena, Number: number, Size: int64(size)}, fd); err != nil {
		m.give(&m.arenaNo, number)
		return fmt.Errorf("nic: share %d bytes: %w", size, err)
	}
	a := &arena{number: number, seg: seg, addr: address(seg.Bytes()), owned: owned}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.arenas, a.addr, func(x *arena, addr uintptr) int {
		if x.addr < addr {
			return -1
		}
		return 1
	})
	m.arenas = slices.Insert(m.arenas, i, a)
	return nil
}

// takeBack ends the sharing of a, of which the card has nothing registered any more.
func (d *Device) takeBack(a *arena) error {
	_, err := d.ask(&shm.Message{Op: shm.OpFreeArena, Number: a.number})
	if err = notLost(err); err != nil {
		return err
	}
	m := &d.memory
	m.mu.Lock()
	m.arenas = slices.DeleteFunc(m.arenas, func(x *arena) bool { return x == a })
	m.arenaNo.give(a.number)
	m.mu.Unlock()
	return nil
}

// Alloc implements rdma.Allocator.
func (d *Device) Alloc(n int) ([]byte, error) {
	seg, fd, err := newArena(n)
	if err != nil {
		return nil, err
	}
	err = d.lend(seg, fd, true)
	shm.CloseAll([]int{fd})
	if err != nil {
		return nil, errors.Join(err, seg.Close())
	}
	return seg.Bytes()[:n:n], nil
}

// Free implements rdma.Allocator.
func (d *Device) Free(b []byte) error {
	a, off := d.memory.find(b)
	if a == nil || off != 0 {
		return errNotAlloc
	}
	if err := d.takeBack(a); err != nil {
		return err
	}
	return a.seg.Close()
}

// domain is a protection domain.
type domain struct {
	dev    *Device
	number uint32
}

// NewDomain implements rdma.Device.
func (d *Device) NewDomain() (rdma.Domain, error) {
	d.mu.Lock()
	n, ok := d.domains.take()
	d.mu.Unlock()
	if !ok {
		return nil, errMany
	}
	if _, err := d.ask(&shm.Message{Op: shm.OpDomain, Number: n}); err != nil {
		d.mu.Lock()
		d.domains.give(n)
		d.mu.Unlock()
		return nil, err
	}
	return &domain{d, n}, nil
}

// Close implements rdma.Domain.
func (x *domain) Close() error {
	d := x.dev
	_, err := d.ask(&shm.Message{Op: shm.OpCloseDomain, Number: x.number})
	if err = notLost(err); err == nil {
		d.mu.Lock()
		d.domains.give(x.number)
		d.mu.Unlock()
	}
	return err
}

// notLost returns nil for the error that the card has gone: what is given back to it is given back then.
func notLost(err error) error {
	if _, lost := errors.AsType[*LostError](err); lost {
		return nil
	}
	return err
}

// region is registered memory.
type region struct {
	dom    *domain
	b      []byte
	addr   uintptr
	number uint32
	tag    rdma.STag
	access rdma.Access
	gone   atomic.Bool
}

// Register implements rdma.Domain. Tagged offsets are zero based.
func (x *domain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	switch {
	case len(b) == 0:
		return nil, soft.ErrNoMemory
	case a&^soft.AllAccess != 0:
		return nil, soft.ErrBadAccess
	case len(b) > soft.MaxMessage:
		return nil, errShared
	}
	d := x.dev
	m := &d.memory
	in, off := m.find(b)
	switch {
	case in == nil && d.isLost(): // it may be of a Lasting, which has not lent it to a card that has gone
		return nil, d.lostErr
	case in == nil:
		return nil, errNotOurs
	}
	number, err := m.take(&m.regions)
	if err != nil {
		return nil, err
	}
	answer, err := d.command(
		&shm.Descriptor{Op: shm.CommandRegister, STag: x.number, Offset: uint64(number), Access: uint8(a)},
		shm.Piece{Region: in.number | shm.Arena, Len: uint32(len(b)), Offset: off})
	if err != nil {
		m.give(&m.regions, number)
		return nil, err
	}
	r := &region{dom: x, b: b, addr: address(b), number: number, tag: rdma.STag(answer.STag), access: a}
	m.registrations.Add(1)
	if a&rdma.AccessRemoteInvalidate != 0 {
		m.mu.Lock()
		m.tags[r.tag] = r
		m.mu.Unlock()
	}
	return r, nil
}

// Bytes implements rdma.Region.
func (r *region) Bytes() []byte { return r.b }

// STag implements rdma.Region.
func (r *region) STag() rdma.STag { return r.tag }

// Base implements rdma.Region.
func (r *region) Base() uint64 { return 0 }

// Deregister implements rdma.Region.
func (r *region) Deregister() error {
	if !r.gone.CompareAndSwap(false, true) {
		return soft.ErrGone
	}
	d := r.dom.dev
	m := &d.memory
	if r.access&rdma.AccessRemoteInvalidate != 0 {
		m.mu.Lock()
		delete(m.tags, r.tag)
		m.mu.Unlock()
	}
	_, err := d.command(&shm.Descriptor{Op: shm.CommandDeregister, Offset: uint64(r.number)}, shm.Piece{})
	m.deregistrations.Add(1)
	m.give(&m.regions, r.number)
	return notLost(err)
}

// invalidatable reports whether s is a region of x that may be invalidated.
func (m *memory) invalidatable(s rdma.STag, x *domain) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r := m.tags[s]
	return r != nil && r.dom == x
}

// window is a memory window of type 2.
type window struct {
	dom    *domain
	number uint32

	mu    sync.Mutex // taken after queuePair.mu
	qp    *queuePair // to which it is bound
	tag   rdma.STag  // of the last Bind
	going bool       // an invalidation is posted
}

// NewWindow implements rdma.Domain.
func (x *domain) NewWindow() (rdma.Window, error) {
	m := &x.dev.memory
	number, err := m.take(&m.windows)
	if err != nil {
		return nil, err
	}
	if _, err := x.dev.command(&shm.Descriptor{Op: shm.CommandNewWindow, STag: x.number, Offset: uint64(number)}, shm.Piece{}); err != nil {
		m.give(&m.windows, number)
		return nil, err
	}
	return &window{dom: x, number: number}, nil
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tag
}

// Free implements rdma.Window.
func (w *window) Free() error {
	d := w.dom.dev
	_, err := d.command(&shm.Descriptor{Op: shm.CommandFreeWindow, Offset: uint64(w.number)}, shm.Piece{})
	if err = notLost(err); err != nil {
		return err
	}
	d.memory.give(&d.memory.windows, w.number)
	w.mu.Lock()
	q, s := w.qp, w.tag
	w.mu.Unlock()
	if q != nil {
		q.mu.Lock()
		q.unbound(s)
		q.mu.Unlock()
	}
	return nil
}
