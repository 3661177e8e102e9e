package scsi

import (
	"bytes"
	"fmt"
	"testing"

	"oneshot/mem"
)

// family is one of the commands that take a range of blocks.
type family struct {
	name   string
	op     byte
	size   int  // of the CDB
	in     bool // returns the blocks
	out    int  // data-out in blocks per block; -1: exactly one block
	writes bool
	flags  byte // of byte 1 that it accepts: DPO, FUA
	set    byte // of byte 1 that are always set
	// checksProtect: the top bits of byte 1 must be zero.
	checksProtect bool
	// zeroIsRest: no blocks are those up to the end (WSNZ = 0), of which there must be one.
	zeroIsRest bool
	// limit in blocks of 512 bytes; 0: none
	limit int
}

const most = mem.MaxLease / 512

var families = []family{
	{name: "READ(6)", op: 0x08, size: 6, in: true},
	{name: "READ(10)", op: 0x28, size: 10, in: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "READ(12)", op: 0xa8, size: 12, in: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "READ(16)", op: 0x88, size: 16, in: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "WRITE(6)", op: 0x0a, size: 6, out: 1, writes: true},
	{name: "WRITE(10)", op: 0x2a, size: 10, out: 1, writes: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "WRITE(12)", op: 0xaa, size: 12, out: 1, writes: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "WRITE(16)", op: 0x8a, size: 16, out: 1, writes: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "WRITE AND VERIFY(10)", op: 0x2e, size: 10, out: 1, writes: true, flags: 0x10, checksProtect: true, limit: most},
	{name: "WRITE AND VERIFY(12)", op: 0xae, size: 12, out: 1, writes: true, flags: 0x10, set: 0x02, checksProtect: true, limit: most},
	{name: "WRITE AND VERIFY(16)", op: 0x8e, size: 16, out: 1, writes: true, flags: 0x10, set: 0x02, checksProtect: true, limit: most},
	{name: "VERIFY(10)", op: 0x2f, size: 10, flags: 0x10, checksProtect: true, limit: most},
	{name: "VERIFY(12)", op: 0xaf, size: 12, flags: 0x10, checksProtect: true, limit: most},
	{name: "VERIFY(16)", op: 0x8f, size: 16, flags: 0x10, checksProtect: true, limit: most},
	{name: "PRE-FETCH(10)", op: 0x34, size: 10, flags: 0x02},
	{name: "PRE-FETCH(16)", op: 0x90, size: 16, flags: 0x02},
	{name: "SYNCHRONIZE CACHE(10)", op: 0x35, size: 10, flags: 0x02},
	{name: "SYNCHRONIZE CACHE(16)", op: 0x91, size: 16, flags: 0x02},
	{name: "ORWRITE(16)", op: 0x8b, size: 16, out: 1, writes: true, flags: 0x18, checksProtect: true, limit: most},
	{name: "WRITE SAME(10)", op: 0x41, size: 10, out: -1, writes: true, checksProtect: true, zeroIsRest: true},
	{name: "WRITE SAME(16)", op: 0x93, size: 16, out: -1, writes: true, checksProtect: true, zeroIsRest: true, limit: maxWriteSameBytes / 512},
	{name: "COMPARE AND WRITE", op: 0x89, size: 0x89, out: 2, writes: true, flags: 0x18, checksProtect: true, limit: 255},
}

// cdb returns the command for a range, and false if it cannot say so.
func (f *family) cdb(lba uint64, blocks int) ([]byte, bool) {
	var cdb []byte
	switch f.size {
	case 6:
		if lba > 0x1fffff || blocks > 256 || blocks == 0 {
			return nil, false
		}
		cdb = []byte{f.op, byte(lba >> 16), byte(lba >> 8), byte(lba), byte(blocks), 0}
	case 10:
		if lba > 0xffffffff || blocks > 0xffff {
			return nil, false
		}
		cdb = rw10(f.op, uint32(lba), uint16(blocks))
	case 12:
		if lba > 0xffffffff {
			return nil, false
		}
		cdb = rw12(f.op, uint32(lba), uint32(blocks))
	case 0x89:
		if blocks > 255 {
			return nil, false
		}
		cdb = rw16(f.op, lba, 0)
		cdb[13] = byte(blocks)
	default:
		cdb = rw16(f.op, lba, uint32(blocks))
	}
	cdb[1] |= f.set
	return cdb, true
}

// data is the data-out for so many blocks at lba: what the medium holds, so that comparing
// commands find it equal.
func (f *family) data(b *bench, lba uint64, blocks int) []byte {
	if f.out == -1 {
		return make([]byte, 512)
	}
	data := make([]byte, blocks*f.out*512)
	if off := int(min(lba, testBlocks)) * 512; f.out > 0 {
		n := copy(data[:blocks*512], b.store.data[off:])
		copy(data[n:], data[:n])
	}
	return data
}

func (f *family) do(b *bench, noLend bool, cdb, out []byte, blocks int) result {
	room := 0
	if f.in {
		room = blocks * 512
	}
	task := b.task(cdb, out, room)
	task.NoLend = noLend
	return b.run(task, out)
}

// TestMatrix is scsi.md §3: what each command of the family does with each
// kind of range.
func TestMatrix(t *testing.T) {
	cases := []struct {
		name   string
		lba    uint64
		blocks []int
		want   int // sense as 0xKAAQQ, 0: GOOD
	}{
		{"at the start", 0, []int{1, 2, 8, 128, 255, 256}, 0},
		{"at the end", testBlocks - 256, []int{1, 255, 256}, 0},
		{"last block", testBlocks - 1, []int{1}, 0},
		{"no blocks", 0, []int{0}, 0},
		{"no blocks at the end", testBlocks, []int{0}, 0},
		{"no blocks beyond the end", testBlocks + 1, []int{0}, 0x52100},
		{"no blocks at 2^31", 1 << 31, []int{0}, 0x52100},
		{"no blocks at 2^63", 1 << 63, []int{0}, 0x52100},
		{"no blocks at -1", 1<<64 - 1, []int{0}, 0x52100},
		{"no blocks at -1 of 32 bits", 1<<32 - 1, []int{0}, 0x52100},
		{"beyond the end", testBlocks, []int{1, 2, 256}, 0x52100},
		{"across the end", testBlocks - 1, []int{2, 3, 256}, 0x52100},
		{"at 2^31", 1 << 31, []int{1, 256}, 0x52100},
		{"at 2^63", 1 << 63, []int{1, 256}, 0x52100},
		{"at -1", 1<<64 - 1, []int{1, 2, 256}, 0x52100},
		{"at -1 of 32 bits", 1<<32 - 1, []int{1, 2, 256}, 0x52100},
	}
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		before := pattern(3, len(b.store.data))
		copy(b.store.data, before)
		for _, f := range families {
			for _, c := range cases {
				for _, blocks := range c.blocks {
					cdb, ok := f.cdb(c.lba, blocks)
					if !ok {
						continue
					}
					want := c.want
					if blocks == 0 && f.zeroIsRest && c.lba == testBlocks {
						want = 0x52100
					}
					r := f.do(b, noLend, cdb, f.data(b, c.lba, blocks), blocks)
					what := fmt.Sprintf("%s, %d blocks %s", f.name, blocks, c.name)
					if r.next != Done || r.code() != want || (r.status == Good) != (want == 0) {
						t.Fatalf("%s: %v status %02x sense %05x, want %05x", what, r.next, r.status, r.code(), want)
					}
					if want == 0 && f.in && !bytes.Equal(r.in, before[c.lba*512:][:blocks*512]) {
						t.Fatalf("%s: wrong data", what)
					}
					// All of them write what was there, except for WRITE SAME, which is compared below.
					if f.out == -1 && want == 0 {
						copy(b.store.data, before)
					}
					if !bytes.Equal(b.store.data, before) {
						t.Fatalf("%s: the medium has changed", what)
					}
				}
			}
		}
	})
}

func TestFlags(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		for _, f := range families {
			cdb, _ := f.cdb(8, 1)
			for _, flags := range []byte{0x10, 0x08, 0x18, 0x02} {
				if flags&^f.flags != 0 {
					continue
				}
				cdb[1] = f.set | flags
				if r := f.do(b, noLend, cdb, f.data(b, 8, 1), 1); r.status != Good {
					t.Errorf("%s with %02x in byte 1: %05x", f.name, flags, r.code())
				}
			}
			for protect := byte(0x20); f.checksProtect && protect != 0; protect += 0x20 {
				cdb[1] = f.set | protect
				if r := f.do(b, noLend, cdb, f.data(b, 8, 1), 1); r.code() != 0x52400 {
					t.Errorf("%s with %02x in byte 1: %05x, want 52400", f.name, protect, r.code())
				}
			}
			cdb[1] = f.set
			cdb[len(cdb)-1] = controlNACA
			if r := f.do(b, noLend, cdb, f.data(b, 8, 1), 1); r.code() != 0x52400 {
				t.Errorf("%s with NACA: %05x, want 52400", f.name, r.code())
			}
		}
	})
}

func TestLimits(t *testing.T) {
	b := newBench(t, true, func(cfg *benchConfig, s *fakeStore) {
		s.info.Size = 64 << 20
		s.data = make([]byte, s.info.Size)
	})
	for _, f := range families {
		if f.limit == 0 {
			continue
		}
		for _, c := range []struct{ blocks, want int }{{f.limit, 0}, {f.limit + 1, 0x52400}} {
			cdb, ok := f.cdb(0, c.blocks)
			if !ok {
				continue
			}
			data := make([]byte, max(f.out*c.blocks*512, 0))
			if f.out == -1 {
				data = make([]byte, 512)
			}
			if r := f.do(b, false, cdb, data, c.blocks); r.code() != c.want {
				t.Errorf("%s of %d blocks: %05x, want %05x", f.name, c.blocks, r.code(), c.want)
			}
		}
	}
	cdb := rw16(0x89, 0, 0)
	cdb[13] = 65 // of 4 KiB: more than maxCompareBytes
	big := newBench(t, true, func(cfg *benchConfig, _ *fakeStore) { cfg.BlockSize = 4096 })
	if r := big.do(cdb, make([]byte, 2*65*4096), 0); r.code() != 0x52400 {
		t.Errorf("COMPARE AND WRITE of %d bytes: %05x, want 52400", 65*4096, r.code())
	}
}

func TestWriteProtected(t *testing.T) {
	b := newBench(t, true, func(cfg *benchConfig, _ *fakeStore) { cfg.ReadOnly = true })
	for _, f := range families {
		cdb, _ := f.cdb(0, 1)
		want := 0
		if f.writes {
			want = 0x72700
		}
		if r := f.do(b, false, cdb, f.data(b, 0, 1), 1); r.code() != want {
			t.Errorf("%s: %05x, want %05x", f.name, r.code(), want)
		}
	}
	if r := b.do([]byte{0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0); r.code() != 0x72700 {
		t.Errorf("UNMAP: %05x, want 72700", r.code())
	}
}

// TestResiduals is the table of iscsi.md §5: the initiator offers less
// or more than the command asks for.
func TestResiduals(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		medium := pattern(5, 2*512)
		for _, op := range []byte{0x28, 0x88} {
			for _, c := range []struct{ blocks, room, want int }{
				{1, 0, 0}, {1, 200, 200}, {1, 10000, 512}, {2, 512, 512}, {2, 700, 700},
			} {
				copy(b.store.data, medium)
				f := family{op: op, size: 10}
				if op == 0x88 {
					f.size = 16
				}
				cdb, _ := f.cdb(0, c.blocks)
				task := b.task(cdb, nil, c.room)
				task.NoLend = noLend
				r := b.run(task, nil)
				if r.status != Good || !bytes.Equal(r.in, medium[:c.want]) || r.transfer != uint64(c.blocks*512) || r.transferOut {
					t.Errorf("%02x of %d blocks with room for %d: %d bytes, %+v", op, c.blocks, c.room, len(r.in), r.transfer)
				}
			}
		}
		for _, op := range []byte{0x2a, 0x2e} {
			for _, c := range []struct{ blocks, offered, written, want int }{
				{1, 0, 0, 0}, {1, 1024, 512, 0}, {1, 200, 0, 0x50e03}, {1, 10000, 512, 0}, {2, 512, 512, 0},
			} {
				clear(b.store.data)
				data := pattern(9, c.offered)
				task := b.task(rw10(op, 0, uint16(c.blocks)), data, 0)
				task.NoLend = noLend
				r := b.run(task, data)
				want := make([]byte, 4*512)
				copy(want, data[:c.written])
				if r.code() != c.want || !bytes.Equal(b.store.data[:4*512], want) || r.transfer != uint64(c.blocks*512) || !r.transferOut {
					t.Errorf("%02x of %d blocks with %d bytes: sense %05x, transfer %d", op, c.blocks, c.offered, r.code(), r.transfer)
				}
			}
		}
		// Commands that cannot do with a part.
		cas := rw16(0x89, 0, 0)
		cas[13] = 1
		for name, cdb := range map[string][]byte{
			"ORWRITE": rw16(0x8b, 0, 2), "WRITE SAME": rw16(0x93, 0, 2), "COMPARE AND WRITE": cas,
			"UNMAP": {0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0}, "MODE SELECT": {0x15, 0x10, 0, 0, 24, 0},
		} {
			clear(b.store.data)
			if r := b.do(cdb, make([]byte, 8), 0); r.status != CheckCondition || r.code()>>16 != 5 || r.transfer == 0 {
				t.Errorf("%s with too little data: %05x", name, r.code())
			}
		}
		for name, cdb := range map[string][]byte{"WRITE SAME": rw16(0x93, 0, 2), "COMPARE AND WRITE": cas} {
			if r := b.do(cdb, make([]byte, 3*512), 0); r.status != CheckCondition || r.code()>>16 != 5 {
				t.Errorf("%s with too much data: %05x", name, r.code())
			}
		}
	})
}
