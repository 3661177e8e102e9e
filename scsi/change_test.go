package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume"
)

func caw(lba uint64, blocks byte) []byte {
	cdb := rw16(0x89, lba, 0)
	cdb[13] = blocks
	return cdb
}

// TestCompare: commands that compare find the first byte that differs, and write nothing.
func TestCompare(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		const blocks = 64
		medium := pattern(1, blocks*512)
		for _, at := range []int{-1, 0, 511, 512, blocks*512 - 1} {
			want := bytes.Clone(medium)
			if at >= 0 {
				want[at] ^= 1
			}
			replacement := pattern(77, blocks*512)
			verify := rw10(0x2f, 100, blocks)
			verify[1] = bytchkCompare
			for _, c := range []struct {
				cdb, out []byte
				changed  bool
			}{
				{verify, want, false},
				{caw(100, blocks), append(bytes.Clone(want), replacement...), at < 0},
			} {
				copy(b.store.data[100*512:], medium)
				task := b.task(c.cdb, c.out, 0)
				task.NoLend = noLend
				r := b.run(task, c.out)
				code, after := 0, medium
				if at >= 0 {
					code = 0xe1d00
					if info := binary.BigEndian.Uint32(r.sense[3:]); r.sense[0] != 0xf0 || int(info) != at {
						t.Errorf("%02x: INFORMATION %d, want %d", c.cdb[0], info, at)
					}
				}
				if c.changed {
					after = replacement
				}
				if r.code() != code || !bytes.Equal(b.store.data[100*512:][:blocks*512], after) {
					t.Errorf("%02x, difference at %d: sense %05x, want %05x", c.cdb[0], at, r.code(), code)
				}
			}
		}
		// BYTCHK = 0 compares with nothing.
		if r := b.do(rw10(0x2f, 100, blocks), nil, 0); r.status != Good || r.transfer != 0 {
			t.Errorf("VERIFY without BYTCHK: %05x", r.code())
		}
	})
}

// TestLarge: commands that work in pieces do all of them.
func TestLarge(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, func(_ *benchConfig, s *fakeStore) {
			s.info.Size = mem.MaxLease + 4096
			s.data = make([]byte, s.info.Size)
			s.hold = func(op *backend.Op) bool { return !lends && op.Off%1024 == 0 }
		})
		const blocks = mem.MaxLease / 512
		data, ones := pattern(2, mem.MaxLease), bytes.Repeat([]byte{0xf0}, mem.MaxLease)
		wav := rw16(0x8e, 8, blocks)
		wav[1] = bytchkCompare
		if r := b.do(wav, data, 0); r.status != Good || !bytes.Equal(b.store.data[4096:], data) {
			t.Fatalf("WRITE AND VERIFY: %05x", r.code())
		}
		if r := b.do(rw16(0x8b, 8, blocks), ones, 0); r.status != Good {
			t.Fatalf("ORWRITE: %05x", r.code())
		}
		for i := range data {
			data[i] |= 0xf0
		}
		if !bytes.Equal(b.store.data[4096:], data) {
			t.Fatal("ORWRITE: wrong bits")
		}
		verify := rw16(0x8f, 8, blocks)
		verify[1] = bytchkCompare
		if r := b.do(verify, data, 0); r.status != Good {
			t.Fatalf("VERIFY: %05x", r.code())
		}
		b.store.data[len(b.store.data)-1]++
		if r := b.do(verify, data, 0); r.code() != 0xe1d00 {
			t.Fatalf("VERIFY of other data: %05x", r.code())
		}
	}
}

func TestWriteSame(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		block := pattern(4, 512)
		for _, c := range []struct {
			flags  byte
			block  []byte
			mapped bool
		}{
			{0, block, true},
			{0, make([]byte, 512), true},
			{bitUnmap, make([]byte, 512), false},
			{bitUnmap, block, true}, // it would not read back
			{bitNDOB, nil, true},
			{bitNDOB | bitUnmap, nil, false},
		} {
			copy(b.store.data, pattern(6, len(b.store.data)))
			want := bytes.Clone(b.store.data)
			for at := 8; at < 8+901; at++ {
				clear(want[at*512 : at*512+512])
				copy(want[at*512:], c.block)
			}
			b.store.mark(&backend.Op{Len: b.store.info.Size}, true)
			cdb := rw16(0x93, 8, 901)
			cdb[1] = c.flags
			task := b.task(cdb, c.block, 0)
			task.NoLend = noLend
			if r := b.run(task, c.block); r.status != Good || !bytes.Equal(b.store.data, want) {
				t.Errorf("flags %02x: %05x, data right %v", c.flags, r.code(), bytes.Equal(b.store.data, want))
			}
			if b.store.mapped[8] != c.mapped || b.store.mapped[8+900] != c.mapped || !b.store.mapped[7] || !b.store.mapped[8+901] {
				t.Errorf("flags %02x: mapped %v, want %v", c.flags, b.store.mapped[8], c.mapped)
			}
		}
	})
}

// unmapList is an UNMAP parameter list of ranges in blocks.
func unmapList(ranges ...[2]uint64) []byte {
	list := make([]byte, 8, 8+16*len(ranges))
	for _, r := range ranges {
		list = binary.BigEndian.AppendUint64(list, r[0])
		list = binary.BigEndian.AppendUint32(list, uint32(r[1]))
		list = append(list, 0, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(list, uint16(len(list)-2))
	binary.BigEndian.PutUint16(list[2:], uint16(len(list)-8))
	return list
}

func unmap(list []byte) []byte {
	return []byte{0x42, 0, 0, 0, 0, 0, 0, byte(len(list) >> 8), byte(len(list)), 0}
}

func TestUnmap(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, _ bool) {
		many := make([][2]uint64, maxUnmapDescriptors)
		tooLong := unmapList([2]uint64{0, 8})
		tooLong[3] = 17
		remainder := append(unmapList([2]uint64{0, 8}), 1, 2, 3)
		remainder[3] += 3
		for _, c := range []struct {
			name string
			list []byte
			want int
			left [][2]int // ranges of blocks that were unmapped
		}{
			{"none", unmapList(), 0, nil},
			{"one", unmapList([2]uint64{16, 8}), 0, [][2]int{{16, 24}}},
			{"three", unmapList([2]uint64{16, 8}, [2]uint64{0, 0}, [2]uint64{testBlocks - 8, 8}), 0, [][2]int{{16, 24}, {testBlocks - 8, testBlocks}}},
			{"nothing at the end", unmapList([2]uint64{testBlocks, 0}), 0, nil},
			{"as many as allowed", unmapList(many...), 0, nil},
			{"too many", unmapList(append(many, [2]uint64{})...), 0x52400, nil},
			{"beyond the end", unmapList([2]uint64{16, 8}, [2]uint64{testBlocks - 1, 2}), 0x52100, nil},
			{"wraps", unmapList([2]uint64{1<<64 - 1, 2}), 0x52100, nil},
			{"list longer than sent", tooLong, 0x51a00, nil},
			{"remainder", remainder, 0, [][2]int{{0, 8}}},
		} {
			b.store.mark(&backend.Op{Len: b.store.info.Size}, true)
			copy(b.store.data, pattern(6, len(b.store.data)))
			want := bytes.Clone(b.store.data)
			for _, r := range c.left {
				clear(want[r[0]*512 : r[1]*512])
			}
			if r := b.do(unmap(c.list), c.list, 0); r.code() != c.want || !bytes.Equal(b.store.data, want) {
				t.Errorf("%s: %05x, want %05x", c.name, r.code(), c.want)
			}
		}
	})
}

func TestUnmapLimit(t *testing.T) {
	lu := &LogicalUnit{blockShift: 9}
	lu.capacity.Store(1 << 30)
	for blocks, want := range map[uint64]int{maxUnmapBlocks: 0, maxUnmapBlocks + 1: 0x2600} {
		_, s, ok := lu.parseUnmap(unmapList([2]uint64{0, 5}, [2]uint64{100, blocks - 5}))
		if int(s.Code) != want || ok != (want == 0) {
			t.Errorf("%d blocks: %+v", blocks, s)
		}
	}
}

func TestLBAStatus(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, _ bool) {
		b.store.mark(&backend.Op{Off: 8 * 512, Len: 16 * 512}, true)
		cdb := rw16(0x9e, 3, 255)
		cdb[1] = 0x12
		want := unhex(t, `00 00 00 34 00 00 00 00
			00 00 00 00 00 00 00 03  00 00 00 05  01 00 00 00
			00 00 00 00 00 00 00 08  00 00 00 10  00 00 00 00
			00 00 00 00 00 00 00 18  00 00 03 e8  01 00 00 00`)
		if r := b.do(cdb, nil, 4096); r.status != Good || !bytes.Equal(r.in, want) {
			t.Errorf("GET LBA STATUS: %05x\n% x\n% x", r.code(), r.in, want)
		}
		cdb[13] = 24
		want = append(unhex(t, "00 00 00 14 00 00 00 00"), want[8:24]...)
		if r := b.do(cdb, nil, 4096); !bytes.Equal(r.in, want) {
			t.Errorf("GET LBA STATUS with room for one: % x", r.in)
		}
	})
	lu := &LogicalUnit{blockSize: 4096}
	if n, state := lu.statusOf(512, false); n != 4096 || state != statusMapped {
		t.Errorf("a block in parts: %d, %d", n, state)
	}
	if n, state := lu.statusOf(5000, false); n != 4096 || state != statusDeallocated {
		t.Errorf("a block and a part: %d, %d", n, state)
	}
}

func TestFlushes(t *testing.T) {
	b := newBench(t, true, func(_ *benchConfig, s *fakeStore) { s.info.VolatileCache = true })
	fua := rw10(0x2a, 0, 1)
	fua[1] = bitFUA
	cas := caw(0, 1)
	cas[1] = bitFUA
	for _, c := range []struct {
		name string
		cdb  []byte
		out  int
		want int
	}{
		{"WRITE", rw10(0x2a, 0, 1), 512, 0},
		{"WRITE with FUA", fua, 512, 1},
		{"COMPARE AND WRITE with FUA", cas, 1024, 1},
		{"WRITE AND VERIFY", rw10(0x2e, 0, 1), 512, 1},
		{"SYNCHRONIZE CACHE", rw10(0x35, 0, 0), 0, 1},
		{"START STOP UNIT, start", []byte{0x1b, 0, 0, 0, 1, 0}, 0, 0},
		{"START STOP UNIT, stop", []byte{0x1b, 0, 0, 0, 0, 0}, 0, 1},
		{"START STOP UNIT, power condition", []byte{0x1b, 0, 0, 0, 0x20, 0}, 0, 0},
	} {
		b.store.flushes = 0
		if r := b.do(c.cdb, make([]byte, c.out), 0); r.status != Good || b.store.flushes != c.want {
			t.Errorf("%s: %05x, %d flushes, want %d", c.name, r.code(), b.store.flushes, c.want)
		}
	}
}

// TestStoreErrors: each error of a store has its sense data, and one line in the log.
func TestStoreErrors(t *testing.T) {
	var log strings.Builder
	b := newBench(t, false, func(cfg *benchConfig, s *fakeStore) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	broken := errors.New("broken")
	verify := rw10(0x2f, 10, 4)
	for _, c := range []struct {
		cdb  []byte
		out  int
		in   int
		err  func(*backend.Op) error
		want string
	}{
		{rw10(0x28, 10, 4), 0, 2048, medium(12*512, broken), "f0 00 03 00 00 00 0c 0a 00 00 00 00 11 00 00 00 00 00"},
		{verify, 0, 0, medium(13*512, broken), "f0 00 03 00 00 00 0d 0a 00 00 00 00 11 00 00 00 00 00"},
		{rw10(0x2a, 10, 4), 2048, 0, medium(11*512, broken), "f0 00 03 00 00 00 0b 0a 00 00 00 00 0c 00 00 00 00 00"},
		{rw10(0x2e, 10, 4), 2048, 0, medium(11*512, broken), "f0 00 03 00 00 00 0b 0a 00 00 00 00 0c 00 00 00 00 00"},
		{caw(10, 1), 1024, 0, medium(10*512, broken), "f0 00 03 00 00 00 0a 0a 00 00 00 00 11 00 00 00 00 00"},
		{rw16(0x8b, 10, 4), 2048, 0, medium(10*512, broken), "f0 00 03 00 00 00 0a 0a 00 00 00 00 11 00 00 00 00 00"},
		{rw16(0x93, 10, 4), 512, 0, space, "70 00 07 00 00 00 00 0a 00 00 00 00 27 07 00 00 00 00"},
		{rw10(0x2a, 10, 4), 2048, 0, space, "70 00 07 00 00 00 00 0a 00 00 00 00 27 07 00 00 00 00"},
		{rw10(0x35, 0, 0), 0, 0, func(*backend.Op) error { return broken }, "70 00 04 00 00 00 00 0a 00 00 00 00 44 00 00 00 00 00"},
		{rw10(0x28, 10, 4), 0, 2048, func(op *backend.Op) error { return &backend.RangeError{} }, "70 00 04 00 00 00 00 0a 00 00 00 00 44 00 00 00 00 00"},
	} {
		b.store.fail = c.err
		r := b.do(c.cdb, make([]byte, c.out), c.in)
		if want := unhex(t, c.want); !bytes.Equal(r.sense, want) || len(r.in) != 0 {
			t.Errorf("%02x: % x, want % x", c.cdb[0], r.sense, want)
		}
	}
	line := log.String()
	if strings.Count(line, "\n") != 1 {
		t.Errorf("the log has more than a line for a second: %q", line)
	}
	for _, part := range []string{"command=READ(10)", "lun=0", "lba=10", "blocks=4", "serial=0001", "read at byte 6144: broken"} {
		if !strings.Contains(line, part) {
			t.Errorf("the log line %q lacks %q", line, part)
		}
	}
	// Nothing is held after a failure.
	b.store.fail = nil
	if r := b.do(caw(10, 1), make([]byte, 1024), 0); r.status != Good {
		t.Errorf("COMPARE AND WRITE afterwards: %05x", r.code())
	}
}

func medium(off int64, err error) func(*backend.Op) error {
	return func(op *backend.Op) error { return &backend.MediumError{Kind: op.Kind, Off: off, Err: err} }
}

func space(op *backend.Op) error { return &backend.SpaceError{Off: op.Off, Err: errors.New("full")} }

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*benchConfig, *fakeStore)
		want   string // part of the error
	}{
		{"block size", func(c *benchConfig, _ *fakeStore) { c.BlockSize = 520 }, "block size 520"},
		{"block too large", func(c *benchConfig, _ *fakeStore) { c.BlockSize = 8192 }, "block size 8192"},
		{"block too small", func(c *benchConfig, s *fakeStore) { c.BlockSize, s.info.BlockSize = 512, 4096 }, "smaller than the 4096 bytes"},
		{"physical block", func(c *benchConfig, _ *fakeStore) { c.PhysicalBlockSize = 1000 }, "physical block size 1000"},
		{"physical block too small", func(c *benchConfig, _ *fakeStore) { c.BlockSize, c.PhysicalBlockSize = 4096, 512 }, "from 4096 to"},
		{"no block", func(_ *benchConfig, s *fakeStore) { s.info.Size = 100 }, "does not hold one block"},
		{"vendor", func(c *benchConfig, _ *fakeStore) { c.Vendor = "much too long" }, "vendor"},
		{"product", func(c *benchConfig, _ *fakeStore) { c.Product = "blöck" }, "product"},
		{"serial", func(c *benchConfig, _ *fakeStore) { c.Serial = "" }, "serial number"},
		{"NAA", func(c *benchConfig, _ *fakeStore) { c.NAA[0] = 0x50 }, "NAA"},
	} {
		store := newFakeStore(1 << 20)
		cfg := benchConfig{LUConfig: LUConfig{Serial: "1"}}
		c.change(&cfg, store)
		cfg.Volume = volumeOf(store)
		if _, err := NewLogicalUnit(cfg.LUConfig); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if a, b := LocalNAA("a"), LocalNAA("b"); a == b || a != LocalNAA("a") || a[0] != 0x60 || a[1]&0xf0 != 0x20 {
		t.Errorf("LocalNAA: %x, %x", a, b)
	}
	b := newBench(t, true, nil)
	if err := b.lu.v.Close(); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("closing a volume that is shown: %v", err)
	}
	if err := errors.Join(b.lu.Close(), b.lu.v.Close()); err != nil || !b.store.closed {
		t.Errorf("Close: %v, store closed %v", err, b.store.closed)
	}
}
