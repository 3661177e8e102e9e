package scsi

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"oneshot/internal/hexdump"
)

var unhex = hexdump.Parse

func describedBench(t *testing.T) *bench {
	return newBench(t, true, func(cfg *benchConfig, s *fakeStore) {
		cfg.Serial = "SN42"
		cfg.NAA = [16]byte{0x60, 0x21, 0x22, 0x23, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
		s.info.VolatileCache = true
	})
}

func TestDescriptions(t *testing.T) {
	b := describedBench(t)
	for _, c := range []struct{ name, cdb, want string }{
		{"INQUIRY", "12 00 00 00 60 00", `
			00 00 06 12 5b 08 00 02                          # SPC-4, HISUP, format 2, 3PC, CMDQUE
			4f 4e 45 53 48 4f 54 20                          # ONESHOT
			42 4c 4f 43 4b 20 53 54 4f 52 45 20 20 20 20 20  # BLOCK STORE
			31 20 20 20
			00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
			00 a0 09 60 04 60 04 c0                          # SAM-5, iSCSI, SPC-4, SBC-3
			00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`},
		{"INQUIRY, cut", "12 00 00 00 05 00", "00 00 06 12 5b"},
		{"VPD 00", "12 01 00 00 ff 00", "00 00 00 08  00 80 83 86 8f b0 b1 b2"},
		{"VPD 80", "12 01 80 00 ff 00", "00 80 00 04  53 4e 34 32"},
		{"VPD 83", "12 01 83 01 ff 00", `
			00 83 00 8c
			01 03 00 10  60 21 22 23 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f
			02 01 00 0c  4f 4e 45 53 48 4f 54 20 53 4e 34 32         # ONESHOT SN42
			51 94 00 04  00 00 00 01                                 # relative port
			01 15 00 04  00 00 00 01                                 # target port group
			53 98 00 2c  69 71 6e 2e 32 30 32 36 2d 31 31 2e 65 78 61 6d 70 6c 65 2e 6f 6e 65 73 68 6f 74
			             3a 74 65 73 74 2c 74 2c 30 78 30 30 30 31 00 00 00 # iqn.2026-11.example.oneshot:test,t,0x0001
			53 a8 00 24  69 71 6e 2e 32 30 32 36 2d 31 31 2e 65 78 61 6d 70 6c 65 2e 6f 6e 65 73 68 6f 74
			             3a 74 65 73 74 00 00 00 00`},
		{"VPD 86", "12 01 86 00 ff 00", "00 86 00 3c 00 07 01" + strings.Repeat("00", 57)},
		{"VPD 8F", "12 01 8f 02 00 00", `
			00 8f 01 68
			00 00 00 20  00 00 00 00 00 00 00 40  00 00 00 3c 00 00 00 0f  # ROD limits: ranges, timeouts,
			             00 00 00 00 00 02 00 00  00 00 00 00 00 02 00 00  # blocks
			00 01 00 0c  0b 83 03 00 10 11 84 04 00 03 05 07
			00 04 00 1c  00 00 00 00 00 10 00 40  00 00 10 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
			00 08 00 04  03 02 0a e4
			01 06 00 5c  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 3c
			             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 30
			             00 00 00 2c 00 00 00 00  00 00 00 00 04 00 00 00  00 00 00 00 04 00 00 00
			             00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
			01 08 00 84  00 00 00 80
			             00 80 00 01 03 00 00 00 ` + strings.Repeat("00", 56) + `
			             ff ff 00 01 02 00 00 00 ` + strings.Repeat("00", 56) + `
			80 01 00 20  00 00 00 40 00 00 00 40  02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`},
		{"RECEIVE COPY OPERATING PARAMETERS", "84 03 00 00 00 00 00 00 00 00 00 00 04 00 00 00", `
			00 00 00 2b  01 00 00 00  00 10 00 40  00 00 10 00  02 00 00 00
			00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 40  40 09 00 00 00 00 00 03  02 0a e4`},
		{"VPD B0", "12 01 b0 00 ff 00", `
			00 b0 00 3c  00 ff 00 08
			00 00 20 00  00 00 00 08  00 00 00 00    # max, optimal transfer, prefetch
			00 10 00 00  00 00 01 00  00 00 00 08  80 00 00 00  # UNMAP: LBAs, descriptors, granularity, alignment
			00 00 00 00 00 00 80 00                  # max WRITE SAME
			00 00 20 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`},
		{"VPD B1", "12 01 b1 00 ff 00", "00 b1 00 3c 00 01 00 40 02" + strings.Repeat("00", 55)},
		{"VPD B2", "12 01 b2 00 ff 00", "00 b2 00 04 00 e4 02 00"},
		{"READ CAPACITY(10)", "25 00 00 00 00 00 00 00 00 00", "00 00 03 ff 00 00 02 00"},
		{
			"READ CAPACITY(16)", "9e 10 00 00 00 00 00 00 00 00 00 00 00 20 00 00",
			"00 00 00 00 00 00 03 ff 00 00 02 00 00 00 c0 00" + strings.Repeat("00", 16),
		},
		{"READ CAPACITY(16), cut", "9e 10 00 00 00 00 00 00 00 00 00 00 00 0c 00 00", "00 00 00 00 00 00 03 ff 00 00 02 00"},
		{"REPORT LUNS", "a0 00 00 00 00 00 00 00 01 00 00 00", "00 00 00 08 00 00 00 00  00 00 00 00 00 00 00 00"},
		{"REPORT LUNS, well known", "a0 00 01 00 00 00 00 00 01 00 00 00", "00 00 00 00 00 00 00 00"},
		{"MODE SENSE(6), caching", "1a 08 08 00 ff 00", "17 00 10 00  08 12 04" + strings.Repeat("00", 17)},
		{
			"MODE SENSE(6), control, block descriptor", "1a 00 0a 00 ff 00",
			"17 00 10 08  00 00 04 00 00 00 02 00  0a 0a 00 10 00 00 00 00 00 00 00 00",
		},
		{"MODE SENSE(6), control, changeable", "1a 08 4a 00 ff 00", "0f 00 10 00  0a 0a 04 00 08 00 00 00 00 00 00 00"},
		{
			"MODE SENSE(10), long block descriptor", "5a 10 1c 00 00 00 00 00 ff 00",
			"00 22 00 10 01 00 00 10  00 00 00 00 00 00 04 00 00 00 00 00 00 00 02 00  1c 0a 00 00 00 00 00 00 00 00 00 00",
		},
		{"MODE SENSE(6), all, cut", "1a 08 3f ff 04 00", "3b 00 10 00"},
		{"REQUEST SENSE", "03 00 00 00 ff 00", "70 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 00 00 00"},
		{"REQUEST SENSE, descriptors", "03 01 00 00 ff 00", "72 00 00 00 00 00 00 00"},
		{"REPORT SUPPORTED TMFS", "a3 0d 00 00 00 00 00 00 00 ff 00 00", "de 07 00 00"},
		{"REPORT SUPPORTED TMFS, REPD", "a3 0d 80 00 00 00 00 00 00 ff 00 00", "de 07 00 0c 00 00 00 00 00 00 00 00 00 00 00 00"},
	} {
		cdb, want := unhex(t, c.cdb), unhex(t, c.want)
		r := b.do(cdb, nil, 1<<16)
		if r.status != Good || !bytes.Equal(r.in, want) || r.transfer != uint64(len(want)) {
			t.Errorf("%s: status %02x, sense %05x\n got % x\nwant % x", c.name, r.status, r.code(), r.in, want)
		}
	}
}

func TestPhysicalBlocks(t *testing.T) {
	b := newBench(t, true, func(cfg *benchConfig, _ *fakeStore) { cfg.PhysicalBlockSize = 8192 })
	if r := b.do(unhex(t, "9e 10 00 00 00 00 00 00 00 00 00 00 00 20 00 00"), nil, 32); r.in[13] != 4 {
		t.Errorf("READ CAPACITY(16): exponent %d, want 4", r.in[13])
	}
	if r := b.do(unhex(t, "12 01 b0 00 ff 00"), nil, 64); r.in[7] != 16 {
		t.Errorf("Block Limits: granularity %d, want 16", r.in[7])
	}
}

func TestRefusals(t *testing.T) {
	b := describedBench(t)
	for _, c := range []struct {
		cdb  string
		want int
	}{
		{"12 00 83 00 ff 00", 0x52400},                               // page without EVPD
		{"12 01 90 00 ff 00", 0x52400},                               // no such page
		{"12 02 00 00 ff 00", 0x52400},                               // CMDDT
		{"1a 08 c8 00 ff 00", 0x53900},                               // saved values
		{"1a 08 0a 01 ff 00", 0x52400},                               // subpage
		{"1a 08 05 00 ff 00", 0x52400},                               // no such page
		{"a0 00 03 00 00 00 00 00 01 00 00 00", 0x52400},             // SELECT REPORT
		{"a0 00 00 00 00 00 00 00 00 0f 00 00", 0x52400},             // too small
		{"a3 0d 00 00 00 00 00 00 00 03 00 00", 0x52400},             // too small
		{"15 00 00 00 00 00", 0x52400},                               // PF
		{"15 11 00 00 00 00", 0x52400},                               // SP
		{"ff 00 00 00 00 00", 0x52000},                               // no such command
		{"16 01 00 00 00 00", 0x52400},                               // RESERVE(6) of an extent
		{"57 10 00 00 00 00 00 00 00 00", 0x52400},                   // RELEASE(10) for a third party
		{"5e 04 00 00 00 00 00 00 08 00", 0x52400},                   // PERSISTENT RESERVE IN, no such action
		{"9c 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00", 0x52400}, // WRITE ATOMIC with a boundary
		{"a3 0a 00 00 00 00 00 00 00 ff 00 00", 0x52000},             // REPORT TARGET PORT GROUPS
		{"28 00 00 00 00 00", 0x52400},                               // CDB too short
		{"42 01 00 00 00 00 00 00 00 00", 0x52400},                   // UNMAP, ANCHOR
		{"42 00 00 00 00 00 00 00 07 00", 0x51a00},                   // UNMAP, short list
		{"42 00 00 00 00 00 00 ff ff 00", 0x52400},                   // UNMAP, too many
		{"93 10 00 00 00 00 00 00 00 00 00 00 00 01 00 00", 0x52400}, // ANCHOR alone
		{"93 18 00 00 00 00 00 00 00 00 00 00 00 01 00 00", 0x52400}, // ANCHOR
		{"8f 04 00 00 00 00 00 00 00 00 00 00 00 01 00 00", 0x52400}, // BYTCHK 10b
		{"8f 06 00 00 00 00 00 00 00 00 00 00 00 01 00 00", 0x52400}, // BYTCHK 11b
		{"9e 12 00 00 00 00 00 00 04 00 00 00 00 18 00 00", 0x52100}, // GET LBA STATUS at the end
		{"9e 12 80 00 00 00 00 00 00 00 00 00 00 18 00 00", 0x52100},
		{"9e 12 ff ff ff ff ff ff ff ff 00 00 00 18 00 00", 0x52100},
	} {
		if r := b.do(unhex(t, c.cdb), nil, 1<<16); r.code() != c.want || len(r.in) != 0 {
			t.Errorf("%s: sense %05x, want %05x", c.cdb, r.code(), c.want)
		}
	}
	task := b.task(unhex(t, "00 00 00 00 00 00"), nil, 0)
	task.Attr = ACA
	if r := b.run(task, nil); r.code() != 0x52400 {
		t.Errorf("ACA task: sense %05x, want 52400", r.code())
	}
}

// TestOpcodesReported compares what REPORT SUPPORTED OPERATION CODES says with what the
// commands do.
func TestOpcodesReported(t *testing.T) {
	for _, thin := range []bool{true, false} {
		b := newBench(t, true, func(_ *benchConfig, s *fakeStore) {
			if !thin {
				s.info.DiscardGranularity = 0
			}
		})
		all := b.do(unhex(t, "a3 0c 80 00 00 00 00 01 00 00 00 00"), nil, 1<<16)
		list := all.in[4:]
		if all.status != Good || int(binary.BigEndian.Uint32(all.in)) != len(list) || len(list)%20 != 0 {
			t.Fatalf("all commands: %+v", all)
		}
		unmap := false
		for ; len(list) > 0; list = list[20:] {
			op, sa, flags, size := list[0], binary.BigEndian.Uint16(list[2:]), list[5], int(list[7])
			unmap = unmap || op == 0x42
			if flags&2 == 0 || !bytes.Equal(list[8:12], []byte{0, 0x0a, 0, 0}) {
				t.Errorf("%02x: no timeouts descriptor: % x", op, list[:20])
			}
			option := byte(reportOpcode) + flags&1
			for _, o := range []byte{option, reportEither} {
				one := b.do([]byte{0xa3, 0x0c, o, op, byte(sa >> 8), byte(sa), 0, 0, 1, 0, 0, 0}, nil, 256)
				if one.status != Good || one.in[1] != 3 || int(one.in[3]) != size || len(one.in) != 4+size || one.in[4] != op {
					t.Errorf("%02x/%02x: option %d: % x", op, sa, o, one.in)
				}
			}
			wrong := b.do([]byte{0xa3, 0x0c, 3 - option, op, byte(sa >> 8), byte(sa), 0, 0, 1, 0, 0, 0}, nil, 256)
			if wrong.code() != 0x52400 {
				t.Errorf("%02x/%02x: the wrong option: %05x, want 52400", op, sa, wrong.code())
			}
		}
		if unmap != thin {
			t.Errorf("thin %v, UNMAP reported %v", thin, unmap)
		}
		if r := b.do([]byte{0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0); (r.status == Good) != thin {
			t.Errorf("thin %v, UNMAP %05x", thin, r.code())
		}
		for _, cdb := range []string{"a3 0c 01 ff 00 00 00 00 01 00 00 00", "a3 0c 02 a3 00 1f 00 00 01 00 00 00", "a3 0c 03 28 00 01 00 00 01 00 00 00"} {
			if r := b.do(unhex(t, cdb), nil, 256); !bytes.Equal(r.in, []byte{0, 1, 0, 0}) {
				t.Errorf("%s: % x, want not supported", cdb, r.in)
			}
		}
	}
}

func TestSenseFormats(t *testing.T) {
	for _, c := range []struct {
		sense             Sense
		fixed, descriptor string
	}{
		{
			invalidField(7),
			"70 00 05 00 00 00 00 0a 00 00 00 00 24 00 00 c0 00 07",
			"72 05 24 00 00 00 00 08  02 06 00 00 c0 00 07 00",
		},
		{
			invalidParameter(0x123),
			"70 00 05 00 00 00 00 0a 00 00 00 00 26 00 00 80 01 23",
			"72 05 26 00 00 00 00 08  02 06 00 00 80 01 23 00",
		},
		{
			miscompare(513),
			"f0 00 0e 00 00 02 01 0a 00 00 00 00 1d 00 00 00 00 00",
			"72 0e 1d 00 00 00 00 0c  00 0a 80 00 00 00 00 00 00 00 02 01",
		},
		{
			Sense{Key: 3, Code: 0x1100, Info: 1 << 32, InfoValid: true},
			"70 00 03 00 00 00 00 0a 00 00 00 00 11 00 00 00 00 00",
			"72 03 11 00 00 00 00 0c  00 0a 80 00 00 00 00 01 00 00 00 00",
		},
	} {
		if got, want := c.sense.AppendTo(nil, false), unhex(t, c.fixed); !bytes.Equal(got, want) {
			t.Errorf("%+v, fixed:\n got % x\nwant % x", c.sense, got, want)
		}
		if got, want := c.sense.AppendTo(nil, true), unhex(t, c.descriptor); !bytes.Equal(got, want) {
			t.Errorf("%+v, descriptors:\n got % x\nwant % x", c.sense, got, want)
		}
	}
}

func TestModeSelect(t *testing.T) {
	b := describedBench(t)
	other := b.newNexus()
	control := func(dsense, swp byte) []byte {
		return []byte{0, 0, 0, 0, 0x0a, 0x0a, dsense, 0x10, swp, 0, 0, 0, 0, 0, 0, 0}
	}
	set := func(list []byte) result { return b.do([]byte{0x15, 0x10, 0, 0, byte(len(list)), 0}, list, 0) }

	if r := set(control(0x04, 0x08)); r.status != Good {
		t.Fatalf("MODE SELECT: %05x", r.code())
	}
	r := b.do(rw10(0x2a, 0, 1), make([]byte, 512), 0)
	if r.code() != 0x72700 || r.sense[0] != 0x72 {
		t.Errorf("WRITE after SWP=1, D_SENSE=1: % x", r.sense)
	}
	if r := b.do(unhex(t, "1a 08 0a 00 ff 00"), nil, 64); r.in[2] != 0x90 || r.in[6] != 0x04 || r.in[8] != 0x08 {
		t.Errorf("MODE SENSE: % x", r.in)
	}
	task := b.task(unhex(t, "00 00 00 00 00 00"), nil, 0)
	task.Nexus = other
	if r := b.run(task, nil); r.code() != 0x62a01 {
		t.Errorf("the other nexus: %05x, want unit attention 62a01", r.code())
	}
	if r := b.do(unhex(t, "00 00 00 00 00 00"), nil, 0); r.status != Good {
		t.Errorf("the nexus that changed it: %05x, want GOOD", r.code())
	}
	if r := set(control(0, 0)); r.status != Good {
		t.Fatalf("MODE SELECT: %05x", r.code())
	}

	for _, c := range []struct {
		list string
		want int
	}{
		{"", 0},
		{"00 00 00 00", 0},
		{"00 00 00 08  00 00 04 00 00 00 02 00", 0},
		{"00 00 00 08  00 00 00 00 00 00 02 00", 0},
		{"00 00 00 08  ff ff ff ff 00 00 02 00", 0},
		{"00 00 00 00  08 12 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", 0},
		{"00 00 00", 0x51a00},
		{"00 00 00 08  00 00 04 00", 0x51a00},
		{"00 00 00 00  0a 0a 00 10 00", 0x51a00},
		{"00 00 00 07  00 00 00 00 00 00 00", 0x52600},
		{"00 00 00 08  00 00 04 00 00 00 10 00", 0x52600}, // another block size
		{"00 00 00 08  00 00 05 00 00 00 02 00", 0x52600}, // another capacity
		{"00 00 00 00  0a 09 00 10 00 00 00 00 00 00 00", 0x52600},
		{"00 00 00 00  0a 0a 00 00 00 00 00 00 00 00 00 00", 0x52600},                         // QAM
		{"00 00 00 00  08 12 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", 0x52600}, // WCE
		{"00 00 00 00  19 02 00 00", 0x52600},
		{"00 00 00 00  4a 01 00 00", 0x52600}, // with a subpage
	} {
		if r := set(unhex(t, c.list)); r.code() != c.want {
			t.Errorf("MODE SELECT(6) of %s: %05x, want %05x", c.list, r.code(), c.want)
		}
	}
	long := unhex(t, "00 00 00 00 01 00 00 10  00 00 00 00 00 00 04 00 00 00 00 00 00 00 02 00  0a 0a 00 10 08 00 00 00 00 00 00 00")
	if r := b.do([]byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(long)), 0}, long, 0); r.status != Good || !b.lu.writeProtected() {
		t.Errorf("MODE SELECT(10): %05x, write protected %v", r.code(), b.lu.writeProtected())
	}
}

func TestLUNs(t *testing.T) {
	b := newBench(t, true, nil)
	lu, err := NewLogicalUnit(LUConfig{Volume: volumeOf(newFakeStore(1 << 20)), Serial: "2"})
	if err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(300, lu)
	b.target.SetLU(7, lu)
	run := func(lun uint64, cdb string) result {
		task := b.task(unhex(t, cdb), nil, 256)
		task.LUN = lun
		return b.run(task, nil)
	}
	const tur = "00 00 00 00 00 00"
	for _, c := range []struct {
		lun   uint64
		there bool
	}{
		{0, true},
		{7 << 48, true},
		{0x4007 << 48, true},
		{0x412c << 48, true},
		{0x4000 << 48, true},
		{1 << 48, false},
		{0x0100 << 48, false},
		{0x412d << 48, false},
		{0xc101 << 48, false},
		{7<<48 | 1, false},
		{0x8007 << 48, false},
	} {
		r := run(c.lun, tur)
		for r.code()>>16 == 6 {
			r = run(c.lun, tur)
		}
		if (r.status == Good) != c.there || !c.there && r.code() != 0x52500 {
			t.Errorf("LUN %016x: %05x, there %v", c.lun, r.code(), c.there)
		}
	}
	const absent = 9 << 48
	if r := run(absent, "12 00 00 00 60 00"); r.status != Good || r.in[0] != 0x7f {
		t.Errorf("INQUIRY of an absent LUN: % x", r.in)
	}
	if r := run(absent, "12 01 83 00 60 00"); r.status != Good || r.in[0] != 0x7f {
		t.Errorf("VPD of an absent LUN: % x", r.in)
	}
	if r := run(absent, "03 00 00 00 60 00"); r.status != Good || r.in[2] != 5 || r.in[12] != 0x25 {
		t.Errorf("REQUEST SENSE of an absent LUN: % x", r.in)
	}
	if r := run(absent, "12 00 00 00 60 04"); r.code() != 0x52400 {
		t.Errorf("INQUIRY with NACA: %05x", r.code())
	}
	want := unhex(t, "00 00 00 18 00 00 00 00  00 00 00 00 00 00 00 00  00 07 00 00 00 00 00 00  41 2c 00 00 00 00 00 00")
	if r := run(absent, "a0 00 00 00 00 00 00 00 01 00 00 00"); !bytes.Equal(r.in, want) {
		t.Errorf("REPORT LUNS: % x", r.in)
	}
}
