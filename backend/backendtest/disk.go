package backendtest

import (
	"math/rand/v2"
	"slices"
	"sync"

	"oneshot/backend"
)

// Disk is a store in memory with a cache that a power cut loses, in whole or by sectors of 512 bytes. It
// completes everything within Submit. Its methods may be called from any goroutine.
type Disk struct {
	// After, if set, is called after each operation has been done, before it completes; it may call Crash.
	After func(op *backend.Op)
	// Fault, if set, says how operations fail before they do anything; nil: this one does not.
	Fault func(op *backend.Op) error
	// Durable, if set, is called when the bytes of a Write that is to be durable are in the cache, and not yet on the
	// medium; it may call Crash. With an error they stay there, and the operation fails.
	Durable func(op *backend.Op) error

	block   int
	mu      sync.Mutex // not held over After, Fault and Durable
	data    []byte
	medium  []byte       // what is durable
	pending []backend.Op // written and not durable, oldest first, with copies of their bytes
}

var _ backend.Store = (*Disk)(nil)

// NewDisk returns a disk of size bytes that reads as zeroes, in blocks of block bytes.
func NewDisk(size int64, block int) *Disk {
	return &Disk{data: make([]byte, size), medium: make([]byte, size), block: block}
}

// DiskOf returns a disk that holds image, and owns it: what Crash returned, say.
func DiskOf(image []byte, block int) *Disk {
	return &Disk{data: image, medium: slices.Clone(image), block: block}
}

// Info implements backend.Store.
func (d *Disk) Info() backend.Info {
	return backend.Info{Size: int64(len(d.medium)), BlockSize: d.block, VolatileCache: true}
}

// Submit implements backend.Store.
func (d *Disk) Submit(op *backend.Op) bool {
	if op.Err = op.Check(int64(len(d.medium))); op.Err != nil {
		return true
	}
	if d.Fault != nil {
		if op.Err = d.Fault(op); op.Err != nil {
			return true
		}
	}
	d.do(op)
	if op.Kind == backend.Write && op.Flags&(backend.Barrier|backend.FUA) != 0 {
		if d.Durable != nil {
			if op.Err = d.Durable(op); op.Err != nil {
				return true
			}
		}
		d.promise(op)
	}
	if d.After != nil {
		d.After(op)
	}
	return true
}

func (d *Disk) do(op *backend.Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op.Kind == backend.Flush || op.Flags&backend.Barrier != 0 {
		for _, p := range d.pending {
			copy(d.medium[p.Off:], p.Segs[0])
		}
		d.pending = nil
	}
	switch op.Kind {
	case backend.Read:
		at := d.data[op.Off:]
		for _, seg := range op.Segs {
			at = at[copy(seg, at):]
		}
		return
	case backend.Flush:
		return
	case backend.Status:
		op.Mapped, op.Extent = true, max(op.Len, int64(d.block))
		return
	}
	b := make([]byte, op.Len)
	if op.Kind == backend.Write {
		copy(b, join(op.Segs))
	}
	copy(d.data[op.Off:], b)
	if op.Kind != backend.Write && op.Flags&(backend.Barrier|backend.FUA) != 0 {
		d.settle(op.Off, op.Len)
		copy(d.medium[op.Off:], b)
		return
	}
	d.pending = append(d.pending, backend.Op{Off: op.Off, Segs: [][]byte{b}})
}

// promise makes durable what op has written.
func (d *Disk) promise(op *backend.Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle(op.Off, op.Len)
	copy(d.medium[op.Off:], join(op.Segs))
}

// settle takes a range out of what is pending: it becomes durable. The lock is held.
func (d *Disk) settle(off, n int64) {
	var rest []backend.Op
	for _, p := range d.pending {
		b := p.Segs[0]
		end := p.Off + int64(len(b))
		if end <= off || p.Off >= off+n {
			rest = append(rest, p)
			continue
		}
		if p.Off < off {
			rest = append(rest, backend.Op{Off: p.Off, Segs: [][]byte{b[:off-p.Off]}})
		}
		if end > off+n {
			rest = append(rest, backend.Op{Off: off + n, Segs: [][]byte{b[off+n-p.Off:]}})
		}
	}
	d.pending = rest
}

// Forget has all that is not durable never become so, unless it is written again: it is read until a power cut, and flushes end
// well. Linux does that with pages that it could not write, when somebody has been told.
func (d *Disk) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = nil
}

// Crash returns what a power cut may leave now: what is durable, and of the rest each sector with this
// chance. With chance 0 it is what is durable, and with 1 all; then r may be nil.
func (d *Disk) Crash(r *rand.Rand, chance float64) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	image := slices.Clone(d.medium)
	if chance == 0 {
		return image
	}
	for _, p := range d.pending {
		b := p.Segs[0]
		for at := 0; at < len(b); at += 512 {
			if chance == 1 || r.Float64() < chance {
				copy(image[p.Off+int64(at):], b[at:min(at+512, len(b))])
			}
		}
	}
	return image
}

// Close implements backend.Store.
func (d *Disk) Close() error { return nil }
