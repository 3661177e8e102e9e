package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"oneshot/backend"
)

const fuzzBlocks = 128

func fuzzBench(t testing.TB, mode byte) *bench {
	return newBench(t, mode&1 != 0, func(_ *benchConfig, s *fakeStore) {
		s.info.Size = fuzzBlocks * 512
		s.data = pattern(11, fuzzBlocks*512)
		if mode&2 != 0 {
			s.hold = holdTasks
		}
		s.info.VolatileCache = mode&4 != 0
	})
}

// FuzzCDB runs one command of any kind on a small store. It must end, with an answer whose
// parts agree, and touch nothing but the blocks that it names.
func FuzzCDB(f *testing.F) {
	for _, c := range rows {
		cdb := make([]byte, 16)
		cdb[0], cdb[1] = c.Usage[0], byte(c.sa)
		f.Add(cdb, []byte{}, uint32(512), byte(0))
		cdb = bytes.Clone(cdb)
		cdb[len(c.Usage)-2] = 8 // mostly a length
		f.Add(cdb, pattern(1, 512), uint32(4096), byte(1))
		f.Add(cdb, pattern(1, 8*512), uint32(200), byte(2))
		f.Add(cdb, pattern(1, 16*512), uint32(0), byte(3))
	}
	list := unmapList([2]uint64{8, 8}, [2]uint64{120, 8})
	f.Add(append(unmap(list), 0, 0), list, uint32(0), byte(1))
	f.Add(caw(3, 2), append(pattern(11, 5*512)[3*512:], make([]byte, 1024)...), uint32(0), byte(2))
	f.Fuzz(func(t *testing.T, cdb, out []byte, in uint32, mode byte) {
		if len(cdb) < 6 || len(cdb) > 260 || len(out) > 1<<17 {
			return
		}
		b := fuzzBench(t, mode)
		before := bytes.Clone(b.store.data)
		task := b.task(bytes.Clone(cdb), out, int(in%(1<<20)))
		task.NoLend = mode&8 != 0
		r := b.run(task, out)
		b.sanitized()
		checkAnswer(t, r, in%(1<<20))
		for off := range before {
			if off%512 == 0 && bytes.Equal(before[off:], b.store.data[off:]) {
				break
			}
			if before[off] != b.store.data[off] && (r.status != Good && cdb[0] != 0x83 || !names(cdb, out, uint64(off/512))) {
				t.Fatalf("% x changes byte %d", cdb, off)
			}
		}
		if b.lu.running() != 0 || b.lu.gate.Load() != 0 || b.owner.pool.Stats().Leases != 0 || b.nexus.lookup(0).first != nil {
			t.Fatalf("% x leaves something behind", cdb)
		}
		if w := b.do(rw10(0x2a, 0, fuzzBlocks), make([]byte, fuzzBlocks*512), 0); w.status != Good && !b.lu.writeProtected() {
			t.Fatalf("after % x a WRITE does not work: %05x", cdb, w.code())
		}
	})
}

func checkAnswer(t *testing.T, r result, room uint32) {
	t.Helper()
	switch {
	case r.next != Done:
		t.Fatalf("the command ends with %v", r.next)
	case r.status == Good && len(r.sense) != 0, r.status == CheckCondition && len(r.sense) < 8:
		t.Fatalf("status %02x with %d bytes of sense data", r.status, len(r.sense))
	case r.status != Good && r.status != CheckCondition:
		t.Fatalf("status %02x", r.status)
	case r.status != Good && len(r.in) != 0:
		t.Fatal("data-in with an error")
	case r.status == Good && !r.transferOut && uint64(len(r.in)) != min(r.transfer, uint64(room)):
		t.Fatalf("%d bytes of data-in, %d asked for, room for %d", len(r.in), r.transfer, room)
	}
}

// names reports whether a writing command names the block.
func names(cdb, out []byte, block uint64) bool {
	in := func(lba, n uint64) bool { return block >= lba && block-lba < n }
	rest := func(n uint64) uint64 { // WRITE SAME of zero blocks
		if n == 0 {
			n = fuzzBlocks
		}
		return n
	}
	switch cdb[0] {
	case 0x0a:
		n := uint64(cdb[4])
		if n == 0 {
			n = 256
		}
		return in(uint64(binary.BigEndian.Uint32(cdb)&0x1fffff), n)
	case 0x41:
		return in(uint64(binary.BigEndian.Uint32(cdb[2:])), rest(uint64(binary.BigEndian.Uint16(cdb[7:]))))
	case 0x93:
		return in(binary.BigEndian.Uint64(cdb[2:]), rest(uint64(binary.BigEndian.Uint32(cdb[10:]))))
	case 0x2a, 0x2e:
		return in(uint64(binary.BigEndian.Uint32(cdb[2:])), uint64(binary.BigEndian.Uint16(cdb[7:])))
	case 0xaa, 0xae:
		return in(uint64(binary.BigEndian.Uint32(cdb[2:])), uint64(binary.BigEndian.Uint32(cdb[6:])))
	case 0x8a, 0x8e, 0x8b:
		return in(binary.BigEndian.Uint64(cdb[2:]), uint64(binary.BigEndian.Uint32(cdb[10:])))
	case 0x48, 0x83: // everything; what a copy that failed has copied
		return true
	case 0x9c:
		return in(binary.BigEndian.Uint64(cdb[2:]), uint64(binary.BigEndian.Uint16(cdb[12:])))
	case 0x89:
		return in(binary.BigEndian.Uint64(cdb[2:]), uint64(cdb[13]))
	case 0x42:
		list := out[8:binary.BigEndian.Uint16(cdb[7:])]
		for ; len(list) >= 16; list = list[16:] {
			if in(binary.BigEndian.Uint64(list), uint64(binary.BigEndian.Uint32(list[8:]))) {
				return true
			}
		}
	}
	return false
}

// FuzzUnmap reads any UNMAP parameter list: it is refused as a whole, or every range lies
// within the logical unit and all of them within the limits.
func FuzzUnmap(f *testing.F) {
	f.Add(unmapList())
	f.Add(unmapList([2]uint64{0, 8}, [2]uint64{100, 28}, [2]uint64{128, 0}))
	f.Add(unmapList([2]uint64{1<<64 - 1, 2}))
	f.Add(append(unmapList([2]uint64{0, 8}), 1, 2, 3))
	f.Fuzz(func(t *testing.T, list []byte) {
		if len(list) < unmapHeader || len(list) > maxUnmapList {
			return
		}
		lu := &LogicalUnit{blockShift: 9}
		lu.capacity.Store(fuzzBlocks)
		ranges, s, ok := lu.parseUnmap(list)
		if ok != (s == Sense{}) || !ok && ranges != nil {
			t.Fatalf("ok %v with %+v", ok, s)
		}
		for _, r := range ranges {
			op := backend.Op{Kind: backend.Discard, Off: r.Off, Len: r.N}
			if op.Check(fuzzBlocks*512) != nil || r.N <= 0 || r.Off%512 != 0 || r.N%512 != 0 {
				t.Fatalf("range %+v", r)
			}
		}
	})
}

// FuzzModeSelect reads any mode parameter list. What it accepts changes nothing but the
// changeable bits, and MODE SENSE reports what was selected.
func FuzzModeSelect(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add([]byte{0, 0, 0, 0, 0x0a, 0x0a, 0x04, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0}, false)
	f.Add([]byte{0, 0, 0, 8, 0, 0, 0, fuzzBlocks, 0, 0, 2, 0}, false)
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, fuzzBlocks, 0, 0, 0, 0, 0, 0, 2, 0}, true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x12, 0, 0}, true)
	b := fuzzBench(f, 1)
	f.Fuzz(func(t *testing.T, list []byte, long bool) {
		b.lu.mode.reset()
		bits, s, ok := b.lu.parseModeSelect(list, long)
		if ok != (s == Sense{}) || bits != modesKept && bits&^(modeDSense|modeSWP) != 0 {
			t.Fatalf("ok %v, %+v, bits %x", ok, s, bits)
		}
		if s.FieldValid && int(s.Field) > len(list) {
			t.Fatalf("the field pointer %d is outside the list of %d bytes", s.Field, len(list))
		}
		if !ok || bits == modesKept {
			return
		}
		b.lu.mode.bits.Store(bits)
		page := findModePage(controlPageCode).appendTo(nil, b.lu, pcCurrent)
		if controlBits(page[2:]) != bits {
			t.Fatalf("selected %x, reported % x", bits, page)
		}
	})
}
