package mirror

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// thin is a disk that gives space back, as a sparse file does; with unknown, one that cannot tell where, as a device.
type thin struct {
	*backendtest.Disk
	unknown  bool
	written  atomic.Int64 // bytes, of which none or only a part were zeroes
	zeroes   atomic.Int64 // bytes that were written
	discards atomic.Int64 // bytes
}

func (d *thin) Info() backend.Info {
	i := d.Disk.Info()
	i.DiscardGranularity, i.StatusUnknown = 4096, d.unknown
	return i
}

func (d *thin) Submit(op *backend.Op) bool {
	switch {
	case op.Kind == backend.Discard:
		d.discards.Add(op.Len)
	case op.Kind == backend.Write && isZero(op.Segs[0]):
		d.zeroes.Add(op.Len)
	case op.Kind == backend.Write:
		d.written.Add(op.Len)
	}
	return d.Disk.Submit(op)
}

// TestZeroesTakeNoSpace: a copy that can have holes has them where the others read as zeroes, when it is level, whatever it had there before. What
// hosts write is written, though it be zeroes. A device, which may discard slowly, gets all that it lacks as writes.
func TestZeroesTakeNoSpace(t *testing.T) {
	for _, unknown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			a, b := l.nodes[0], l.nodes[1]
			copied := &thin{Disk: b.disk, unknown: unknown}
			l.wrap = func(s backend.Store) backend.Store {
				if s == b.disk {
					return copied
				}
				return s
			}
			old := bytesOf(testSize, 0xa5)
			if err := backendtest.Do(b.disk, &backend.Op{Kind: backend.Write, Len: testSize, Segs: [][]byte{old}}); err != nil {
				t.Fatal(err)
			}
			data := bytesOf(4096, 7)
			if err := backendtest.Do(a.disk, &backend.Op{Kind: backend.Write, Off: 1<<20 + 8192, Len: 4096, Segs: [][]byte{data}}); err != nil {
				t.Fatal(err)
			}
			l.begin()
			defer l.end() // which compares the copies
			granule := int64(64 << 10)
			discards, zeroes := testSize-granule, int64(0)
			if unknown {
				discards, zeroes = zeroes, discards
			}
			if d, z, w := copied.discards.Load(), copied.zeroes.Load(), copied.written.Load(); d != discards || z != zeroes || w != granule {
				t.Errorf("unknown %v: %d bytes were discarded, %d written as zeroes, and %d written", unknown, d, z, w)
			}
			l.write(a, 0, make([]byte, 4096))
			l.flush(a)
			if d, z := copied.discards.Load(), copied.zeroes.Load(); d != discards || z != zeroes+4096 {
				t.Errorf("unknown %v: after a host has written zeroes %d bytes were discarded, and %d written as zeroes", unknown, d, z)
			}
			l.expect(a, 1<<20+8192, data)
		})
	}
}
