package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// rw10 is the CDB of a command of the READ(10) kind.
func rw10(op byte, lba uint32, blocks uint16) []byte {
	cdb := make([]byte, 10)
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], lba)
	binary.BigEndian.PutUint16(cdb[7:], blocks)
	return cdb
}

// rw12 is the CDB of a command of the READ(12) kind.
func rw12(op byte, lba, blocks uint32) []byte {
	cdb := make([]byte, 12)
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[6:], blocks)
	return cdb
}

// rw16 is the CDB of a command of the READ(16) kind.
func rw16(op byte, lba uint64, blocks uint32) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
	return cdb
}

// pattern returns n bytes that tell where they belong.
// pattern returns n bytes, of which number i is seed + i + i/256*7. It copies them from where they are in the pattern of seed 0, for the
// race detector looks at each byte that is computed: 183 is the inverse of 7, modulo 256.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for at, p := seed*183&0xff<<8, b; len(p) > 0; at = 0 {
		p = p[copy(p, patternOf0[at:]):]
	}
	return b
}

var patternOf0 = func() []byte {
	b := make([]byte, 1<<16)
	for i := range b {
		b[i] = byte(i + i>>8*7)
	}
	return b
}()

// eachStore runs a test on a store that lends its memory, on one that answers at once, on one
// that answers later, and on a lender whose memory the transport does not want.
func eachStore(t *testing.T, test func(t *testing.T, b *bench, noLend bool)) {
	t.Run("lent", func(t *testing.T) { test(t, newBench(t, true, nil), false) })
	t.Run("not lent", func(t *testing.T) { test(t, newBench(t, true, nil), true) })
	t.Run("at once", func(t *testing.T) { test(t, newBench(t, false, nil), false) })
	t.Run("later", func(t *testing.T) {
		b := newBench(t, false, nil)
		b.store.hold = holdAll
		test(t, b, false)
	})
}

func TestReadBack(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		for _, blocks := range []int{1, 2, 255, 256} {
			for _, lba := range []int{0, 7, testBlocks - blocks} {
				data := pattern(lba+blocks, blocks*512)
				w := b.task(rw10(0x2a, uint32(lba), uint16(blocks)), data, 0)
				w.NoLend = noLend
				if r := b.run(w, data); r.next != Done || r.status != Good || r.transfer != uint64(len(data)) || !r.transferOut {
					t.Fatalf("WRITE(10) of %d at %d: %+v", blocks, lba, r)
				}
				rd := b.task(rw16(0x88, uint64(lba), uint32(blocks)), nil, len(data))
				rd.NoLend = noLend
				if r := b.run(rd, nil); r.status != Good || !bytes.Equal(r.in, data) || r.transfer != uint64(len(data)) {
					t.Fatalf("READ(16) of %d at %d: status %x, %d bytes", blocks, lba, r.status, len(r.in))
				}
			}
		}
	})
}
