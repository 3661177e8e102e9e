package heap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pointerAt is an address that is none of Go's memory, for the kernel.
func pointerAt(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// bytesAt is memory that was mapped.
func bytesAt(p unsafe.Pointer, n uintptr) []byte { return unsafe.Slice((*byte)(p), n) }

// mapping is where the places are: mapped at an address that belongs to the heap, if nobody else in the process has that.
type mapping struct {
	bytes []byte
	ptr   uintptr
}

func mapMemory(number uint32, n int64) (*mapping, error) {
	at := uintptr(FirstAddress) + uintptr(number)*AddressStep
	b, err := mapAt(at, uintptr(n))
	if err != nil { // the pointers have offsets of the address, which no user can tell from it
		b, err = mapAt(0, uintptr(n))
	}
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory for a heap: %w", n, err)
	}
	return b, nil
}

func mapAt(at, n uintptr) (*mapping, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if at != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	}
	p, err := unix.MmapPtr(-1, 0, pointerAt(at), n, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	return &mapping{bytesAt(p, n), uintptr(p)}, nil
}

func (m *mapping) free() error {
	return unix.MunmapPtr(pointerAt(m.ptr), uintptr(len(m.bytes)))
}
