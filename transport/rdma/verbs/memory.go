//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
)

var (
	errGone      = errors.New("verbs: memory is no longer registered")
	errForeign   = errors.New("verbs: object of another device")
	errNoMemory  = errors.New("verbs: no memory to register")
	errBadAccess = errors.New("verbs: access rights that do not exist")
)

// domain is a protection domain.
type domain struct {
	dev *Device
	pd  *C.struct_ibv_pd
}

// NewDomain implements rdma.Device.
func (d *Device) NewDomain() (rdma.Domain, error) {
	pd, err := C.os_alloc_pd(d.ctx)
	if pd == nil {
		return nil, fmt.Errorf("verbs: protection domain on %s: %w", d.cfg.Name, err)
	}
	return &domain{d, pd}, nil
}

// Close implements rdma.Domain.
func (d *domain) Close() error { return errno(C.os_dealloc_pd(d.pd)) }

const allAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteInvalidate

// flags translates access rights.
func flags(a rdma.Access) (f C.int) {
	if a&rdma.AccessLocalWrite != 0 {
		f |= C.IBV_ACCESS_LOCAL_WRITE
	}
	if a&rdma.AccessRemoteRead != 0 {
		f |= C.IBV_ACCESS_REMOTE_READ
	}
	if a&rdma.AccessRemoteWrite != 0 {
		f |= C.IBV_ACCESS_REMOTE_WRITE
	}
	return f
}

// Register implements rdma.Domain. Tagged offsets are addresses.
func (d *domain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	switch {
	case len(b) == 0:
		return nil, errNoMemory
	case a&^allAccess != 0:
		return nil, errBadAccess
	case a&rdma.AccessRemoteInvalidate != 0:
		return nil, fmt.Errorf("%w: memory that the peer may invalidate", rdma.ErrUnsupported)
	}
	r, err := d.register(b, a)
	if err != nil {
		return nil, err
	}
	d.dev.registrations.Add(1)
	return r, nil
}

func (d *domain) register(b []byte, a rdma.Access) (*region, error) {
	f := flags(a)
	if d.dev.limits.Windows {
		f |= C.IBV_ACCESS_MW_BIND
	}
	r := &region{domain: d, bytes: b, access: a, addr: address(b)}
	mr, err := C.os_reg_mr(d.pd, C.uintptr_t(r.addr), C.size_t(len(b)), f)
	if mr == nil {
		return nil, fmt.Errorf("verbs: register %d bytes with %s: %w%s", len(b), d.dev.cfg.Name, err, memlockHint(err))
	}
	r.mr, r.lkey = mr, uint32(mr.lkey)
	if a&(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0 {
		r.tag = rdma.STag(mr.rkey)
	}
	d.dev.mu.Lock()
	d.dev.regions[r] = struct{}{}
	d.dev.mu.Unlock()
	return r, nil
}

// memlockHint says what to do if the limit on locked memory is why nothing can be registered.
func memlockHint(err error) string {
	var l unix.Rlimit
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf("; this process may lock %d KiB: set LimitMEMLOCK=infinity in its systemd unit, or ulimit -l unlimited", l.Cur/1024)
}

// region is registered memory.
type region struct {
	domain *domain
	bytes  []byte
	access rdma.Access
	addr   uintptr
	lkey   uint32
	tag    rdma.STag
	mr     *C.struct_ibv_mr
	gone   atomic.Bool
}

func (r *region) Bytes() []byte   { return r.bytes }
func (r *region) STag() rdma.STag { return r.tag }
func (r *region) Base() uint64    { return uint64(r.addr) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// holds reports whether b is inside the region.
func (r *region) holds(b []byte) bool {
	a := address(b)
	return a >= r.addr && len(b) <= len(r.bytes) && a-r.addr <= uintptr(len(r.bytes)-len(b))
}

// Deregister implements rdma.Region. If it fails the device may still write to the memory, and the owner may try again.
func (r *region) Deregister() error {
	if r.gone.Swap(true) {
		return errGone
	}
	if err := errno(C.os_dereg_mr(r.mr)); err != nil {
		r.gone.Store(false)
		return err
	}
	dev := r.domain.dev
	dev.mu.Lock()
	delete(dev.regions, r)
	dev.mu.Unlock()
	return nil
}

// appendSGL appends the elements of l to sges, after checking that their regions belong to d and allow
// need. It leaves out empty elements, because some devices take a length of 0 for 2³¹.
func appendSGL(sges []C.struct_ibv_sge, l []rdma.SGE, d *domain, need rdma.Access, most int) (_ []C.struct_ibv_sge, n int, what string) {
	if len(l) > most {
		return sges, 0, "too many elements in its list"
	}
	for i := range l {
		e := &l[i]
		r, ok := e.Region.(*region)
		switch {
		case !ok:
			return sges, 0, "memory without a region of this device"
		case r.domain != d:
			return sges, 0, "memory of another protection domain"
		case !r.holds(e.Bytes):
			return sges, 0, "memory outside of its region"
		case r.access&need != need:
			return sges, 0, "memory that its region does not allow to be written"
		case r.gone.Load():
			return sges, 0, errGone.Error()
		}
		if len(e.Bytes) == 0 {
			continue
		}
		n += len(e.Bytes)
		sges = append(sges, C.struct_ibv_sge{addr: C.uint64_t(address(e.Bytes)), length: C.uint32_t(len(e.Bytes)), lkey: C.uint32_t(r.lkey)})
	}
	return sges, n, ""
}

// placeholder appends an empty element for a receive without memory, if the device wants one.
func (d *Device) placeholder(sges []C.struct_ibv_sge) []C.struct_ibv_sge {
	if d.siw {
		sges = append(sges, C.struct_ibv_sge{})
	}
	return sges
}
