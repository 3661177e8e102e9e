package nvme

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"oneshot/internal/hexdump"
)

// A Read as the Linux host sends it: PSDT 01b, and a transport SGL (Base 2.0 figure 87).
const readEntry = `
	02 40 01 20  07 00 00 00  00 00 00 00 00 00 00 00   # opcode, PSDT, CID, NSID, dwords 2 and 3
	00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00   # MPTR; SGL: address
	00 10 00 00  00 00 00 5a                           # SGL: length, type
	08 07 06 05 04 03 02 01                            # SLBA
	07 00 00 40  00 00 00 00  00 00 00 00  00 00 00 00 # NLB, FUA`

func TestSQE(t *testing.T) {
	want := hexdump.Parse(t, readEntry)
	c := Command{Opcode: Read, CID: 0x2001, NSID: 7, SGL: SGL{Length: 4096, Type: SGLTransport}, DWords: [6]uint32{0x05060708, 0x01020304, 0x40000007}}
	if got := c.AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("% x\nwant % x", got, want)
	}
	e := SQE(want)
	got := fmt.Sprint(e.Opcode(), e.Fuse(), e.PSDT(), e.CID(), e.NSID(), e.SGL(), e.QWord(10), e.DWord(12), e.DWord(15))
	if want := fmt.Sprint(Read, NotFused, PSDTSGL, 0x2001, 7, SGL{Length: 4096, Type: SGLTransport}, uint64(0x0102030405060708), 0x40000007, 0); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c = Command{Opcode: Write, Fuse: FusedSecond}
	if e := SQE(c.AppendTo(nil)); e.Fuse() != FusedSecond || len(e) != SQELen {
		t.Errorf("% x", []byte(e))
	}
}

// A keyed data block: the length has three bytes, and the key follows them (Base 2.0 figure 100).
func TestKeyedSGL(t *testing.T) {
	want := hexdump.Parse(t, `
		88 77 66 55 44 33 22 11   # address
		01 02 03  04 05 06 07     # length, key
		4f`)
	s := SGL{Address: 0x1122334455667788, Length: 0x030201, Key: 0x07060504, Type: SGLKeyedInvalidate}
	if got := ParseSGL(want); got != s {
		t.Errorf("%+v, want %+v", got, s)
	}
	if got := s.AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}

// A completion; the status is shifted by the phase tag.
func TestCQE(t *testing.T) {
	want := hexdump.Parse(t, `
		01 02 00 00  00 00 00 00   # dwords 0 and 1
		05 00 02 00  01 20         # SQHD, SQID, CID
		04 83                      # 182h shifted by the phase tag, and DNR`)
	c := CQE{DW0: 0x201, SQHD: 5, SQID: 2, CID: 0x2001, Status: ConnectInvalid | DNR}
	got := c.AppendTo(nil)
	if !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	if back := ParseCQE(want); back != c || back.Status.Code() != ConnectInvalid {
		t.Errorf("%+v", back)
	}
}

// Connect, its entry and its data (Base 2.0 §6.3).
func TestConnect(t *testing.T) {
	e := hexdump.Parse(t, `
		7f 40 00 00  01 00 00 00  00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
		00 04 00 00  00 00 00 01
		00 00 03 00  1f 00 04 00  88 13 00 00               # RECFMT, QID, SQSIZE, CATTR, KATO
		00 00 00 00  00 00 00 00  00 00 00 00`)
	c := ConnectCommand{SQE(e)}
	got := fmt.Sprint(c.Opcode() == Fabrics, c.FCType() == Connect, c.RecordFormat(), c.QID(), c.SQSize(), c.NoFlowControl(), c.KATO(), c.SGL())
	if want := fmt.Sprint(true, true, 0, 3, 31, true, 5000, SGL{Length: ConnectDataLen, Type: SGLInCapsule}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	f := ConnectFields{HostID: [16]byte{1, 2, 15: 3}, CNTLID: 0xffff, SubNQN: DiscoveryNQN, HostNQN: "nqn.2026-11.com.example:host"}
	b := f.AppendTo(nil)
	if len(b) != ConnectDataLen || b[16] != 0xff || b[17] != 0xff || string(b[256:256+len(DiscoveryNQN)]) != DiscoveryNQN || string(b[512:516]) != "nqn." {
		t.Errorf("% x", b[:20])
	}
	d := ConnectData(b)
	sub, ok := d.SubNQN()
	host, ok2 := d.HostNQN()
	if (ConnectFields{d.HostID(), d.CNTLID(), sub, host}) != f || !ok || !ok2 {
		t.Errorf("%s %s %t %t", sub, host, ok, ok2)
	}
	for i := range b[512:768] {
		b[512+i] = 'n'
	}
	if _, ok := d.HostNQN(); ok {
		t.Error("a name without end is taken for one")
	}
	if got := InvalidParameter(true, OffHostNQN); got != 0x10200 {
		t.Errorf("%#x", got)
	}
	if got := InvalidParameter(false, OffConnectSQSize); got != 44 {
		t.Errorf("%#x", got)
	}
}

func TestCapabilities(t *testing.T) {
	// NVM command set, contiguous queues, 7.5 s, 128 entries.
	if got := (Capabilities{MQES: 127, Timeout: 15}).Value(); got != 0x00000020_0f01007f {
		t.Errorf("%#x", got)
	}
}

func TestCheckNQN(t *testing.T) {
	for name, good := range map[string]bool{
		DiscoveryNQN:                   true,
		"nqn.2026-11.com.example:disk": true,
		"nqn.2014-08.org.nvmexpress:uuid:8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2": true,
		"nqn.2014-08.org.nvmexpress:uuid:8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e":  false,
		"nqn.2014-08.org.nvmexpress:uuid:":                                     false,
		"iqn.2026-11.com.example:disk":                                         false,
		"nqn.2026-13.com.example":                                              false,
		"nqn.2026-11":                                                          false,
		"nqn.2026-11.a b":                                                      false,
		"nqn.2026-11.com.example:größe":                                        true,
		"nqn.2026-11.com.example:\u009b2J":                                     false, // terminals take it for ESC [
		"nqn.2026-11.com.example:\xff":                                         false,
		"":                                                                     false,
		"nqn.2026-11.com." + strings.Repeat("x", 223-16):                       true,
		"nqn.2026-11.com." + strings.Repeat("x", 224-16):                       false,
	} {
		if err := CheckNQN(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// at is what a structure has at an offset.
type at struct {
	off  int
	want string // hexadecimal, or text after a colon
}

func check(t *testing.T, b []byte, length int, list []at) {
	t.Helper()
	if len(b) != length {
		t.Fatalf("%d bytes, want %d", len(b), length)
	}
	seen := make([]bool, len(b))
	for _, a := range list {
		want := []byte(strings.TrimPrefix(a.want, ":"))
		if a.want[0] != ':' {
			want = hexdump.Parse(t, a.want)
		}
		if got := b[a.off : a.off+len(want)]; !bytes.Equal(got, want) {
			t.Errorf("byte %d: % x (%q), want % x", a.off, got, got, want)
		}
		for i := range want {
			seen[a.off+i] = true
		}
	}
	for i, v := range b {
		if v != 0 && !seen[i] {
			t.Errorf("byte %d is %#x, and should be reserved", i, v)
		}
	}
}

// Every field is where the sheet of offsets has it, and nothing is anywhere else (Base 2.0 figure 275).
func TestController(t *testing.T) {
	c := Controller{
		Serial: "S1", Model: "oneshot", Firmware: "1.2", CMIC: 3, MDTS: 10, CNTLID: 0x0102, RTD3E: 10_000_000, OAES: OAESNamespace,
		CTRATT: CTRATTHostID128 | CTRATTTBKAS, Type: IOController, CRDT1: 5, ACL: 4, AERL: 3, LPA: 7, ELPE: 63, KAS: 10, MaxCmd: 128, NN: 1024,
		ONCS: 0x8d, FUSES: 1, VWC: 7, ACWU: 255, SGLS: SGLSSupported | SGLSOffset | SGLSTransport, SubNQN: "nqn.2026-11.x:y", IOCCSZ: 0x404, IORCSZ: 1,
		MSDBD: 1, OFCS: 1, ANATT: 10, ANACAP: ANACAPStates | ANACAPStatic, ANAGroups: 0x0304, MNAN: 0x0506,
	}
	check(t, c.AppendTo(nil), IdentifyLen, []at{
		{4, ":S1" + strings.Repeat(" ", 18)},
		{24, ":oneshot" + strings.Repeat(" ", 33)},
		{64, ":1.2     "},
		{72, "06"},
		{76, "03 0a 02 01 00 04 01 00"},
		{88, "80 96 98 00"},
		{92, "00 01 00 00"},
		{96, "41 00 00 00"},
		{111, "01"},
		{128, "05 00"},
		{258, "04 03 03 07 3f"},
		{266, "57 01 61 01"},
		{320, "0a 00"},
		{342, "0a 5f 0403 0000 0403 0000"},
		{512, "66 44 80 00 00 04 00 00 8d 00 01 00"},
		{525, "07"},
		{532, "ff 00"},
		{536, "01 00 30 00 0605"},
		{768, ":nqn.2026-11.x:y"},
		{1792, "04 04 00 00 01 00 00 00"},
		{1803, "01 01 00"},
	})
}

// A host reads back what it looks at.
func TestParse(t *testing.T) {
	c := Controller{Serial: "S1", Model: "oneshot", Firmware: "1.2", MDTS: 10, CNTLID: 0x0102, Type: IOController, KAS: 10, MaxCmd: 128, NN: 1024, FUSES: 1, IOCCSZ: 0x404}
	if got := ParseController(c.AppendTo(nil)); got != c {
		t.Errorf("%+v, want %+v", got, c)
	}
	n := Namespace{Blocks: 0x1000, ReadOnly: true, NGUID: [16]byte{2, 15: 9}, BlockShift: 12}
	if got := ParseNamespace(n.AppendTo(nil)); got != n {
		t.Errorf("%+v, want %+v", got, n)
	}
	second := n.AppendTo(nil)
	second[26], second[128+4*0x12+2] = 0x22, 9 // FLBAS: format 12h, whose high bits are apart
	if got := ParseNamespace(second).BlockShift; got != 9 {
		t.Errorf("the block shift of format 12h is %d", got)
	}
	d := Descriptors{UUID: [16]byte{1, 15: 2}, NGUID: [16]byte{3, 15: 4}}
	if got := ParseDescriptors(d.AppendTo(nil)); got != d {
		t.Errorf("%+v, want %+v", got, d)
	}
	if got := ParseDescriptors([]byte{3, 16, 0, 0, 1}); got != (Descriptors{}) {
		t.Errorf("half a descriptor is %+v", got)
	}
	e := DiscoveryEntry{Transport: TransportTCP, Type: EntryNVM, Address: netip.MustParseAddrPort("192.0.2.7:4420"), SubNQN: "nqn.2026-11.x:y"}
	if got := ParseDiscovered(e.AppendTo(nil)); got != (Discovered{EntryNVM, TransportTCP, "192.0.2.7", "4420", "nqn.2026-11.x:y"}) {
		t.Errorf("%+v", got)
	}
	if g, k := ParseDiscoveryHeader(AppendDiscoveryHeader(nil, 5, 2)); g != 5 || k != 2 {
		t.Error(g, k)
	}
}

// NVM 1.0 figure 97.
func TestNamespace(t *testing.T) {
	n := Namespace{
		Blocks: 0x1000, Used: 0x800, NSFEAT: 0x13, NMIC: 1, DLFEAT: 9, NACWU: 255, Bytes: 0x200000, NPWG: 7, NPWA: 6, NPDG: 5, NPDA: 4, NOWS: 3,
		ReadOnly: true, NGUID: [16]byte{0x02, 15: 0xff}, BlockShift: 9, ANAGroup: 0x0102, RESCAP: RESCAPPersist | RESCAPTypes | RESCAPIgnore,
	}
	check(t, n.AppendTo(nil), IdentifyLen, []at{
		{0, "0010000000000000 0010000000000000 0008000000000000 13"},
		{30, "01 ff"},
		{33, "09"},
		{38, "ff00"},
		{48, "000020"},
		{64, "0700 0600 0500 0400 0300"},
		{92, "0201"},
		{99, "01"},
		{104, "02"},
		{119, "ff"},
		{130, "09"},
	})
}

// Base 2.0 figures 277, 273 (02h, 13h) and 280, NVM 1.0 figure 102.
func TestIdentifyLists(t *testing.T) {
	d := Descriptors{UUID: [16]byte{1, 15: 2}, NGUID: [16]byte{3, 15: 4}}
	check(t, d.AppendTo(nil), IdentifyLen, []at{{0, "03100000 01"}, {19, "02"}, {20, "02100000 03"}, {39, "04"}, {40, "04010000 00"}})
	check(t, AppendNSIDs(nil, []uint32{1, 0x203}), IdentifyLen, []at{{0, "01000000 03020000"}})
	check(t, AppendControllers(nil, []uint16{1, 0x203}), IdentifyLen, []at{{0, "0200 0100 0302"}})
	if b := AppendNSIDs(nil, make([]uint32, 2000)); len(b) != IdentifyLen {
		t.Error(len(b))
	}
	if b := AppendControllers(nil, make([]uint16, 5000)); len(b) != IdentifyLen || le.Uint16(b) != 2047 {
		t.Error(len(b))
	}
	l := IOLimits{VerifyShift: 10, ZeroesShift: 9, Ranges: 255, RangeBlocks: 0x10000, Blocks: 1 << 33}
	check(t, l.AppendTo(nil), IdentifyLen, []at{{0, "0a0900ff 00000100 00000000 02"}})
	i := Independent{NMIC: 1, RESCAP: 0xfe, ANAGroup: 0x0203, ReadOnly: true}
	check(t, i.AppendTo(nil), IdentifyLen, []at{{0, "0001fe"}, {4, "0302"}, {8, "01"}, {14, "01"}})
}

func TestLogs(t *testing.T) {
	g := GetLogPage{SQE(hexdump.Parse(t, `
		02 40 00 00  ff ff ff ff  00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
		70 80 ff 03  01 00 00 00   # LID, RAE, NUMDL, NUMDU
		00 04 00 00 00 00 00 00  00 00 00 00  00 00 00 00`))}
	if got, want := fmt.Sprint(g.LID() == LogDiscovery, g.Retain(), g.Length(), g.Offset(), g.ByIndex()), "true true 266240 1024 false"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	e := ErrorEntry{Count: 3, SQID: 1, CID: 2, Status: UnrecoveredRead | DNR, LBA: 7, NSID: 5, Transport: TransportTCP}
	check(t, e.AppendTo(nil), ErrorEntryLen, []at{{0, "03"}, {8, "0100 0200 0285 ffff 07"}, {24, "05"}, {29, "03"}})
	s := Smart{BytesRead: 512_001, BytesWritten: 512_000, Reads: 3, Writes: 4, MediaErrors: 5, Errors: 6, Seconds: 7200}
	check(t, s.AppendTo(nil), SmartLen, []at{
		{1, "2c01 64 0a"}, {32, "02"}, {48, "01"}, {64, "03"}, {80, "04"}, {128, "02"}, {160, "05"}, {176, "06"},
	})
	check(t, AppendFirmware(nil, "1.2"), 512, []at{{0, "01"}, {8, ":1.2     "}})
	f := Effects{Admin: map[Opcode]uint32{AdminIdentify: EffectSupported}, IO: map[Opcode]uint32{Write: EffectSupported | EffectContent}}
	check(t, f.AppendTo(nil), EffectsLen, []at{{24, "01"}, {1028, "03"}})
	check(t, AppendSupported(nil, []LID{LogError, LogDiscovery}), 1024, []at{{4, "01"}, {4 * 0x70, "01"}})
	check(t, AppendChanged(nil, []uint32{4}), IdentifyLen, []at{{0, "04"}})
	check(t, AppendChanged(nil, make([]uint32, 1025)), IdentifyLen, []at{{0, "ffffffff"}})
}

// Base 2.0 figure 264.
func TestDiscovery(t *testing.T) {
	check(t, AppendDiscoveryHeader(nil, 5, 2), DiscoveryEntryLen, []at{{0, "05"}, {8, "02"}})
	e := DiscoveryEntry{Transport: TransportTCP, Type: EntryNVM, Port: 1, ASQSize: 32, Address: netip.MustParseAddrPort("192.0.2.7:4420"), SubNQN: "nqn.2026-11.x:y"}
	check(t, e.AppendTo(nil), DiscoveryEntryLen, []at{{0, "03 01 02 06 0100 ffff 2000"}, {32, ":4420"}, {256, ":nqn.2026-11.x:y"}, {512, ":192.0.2.7"}})
	e.Address, e.Type = netip.MustParseAddrPort("[2001:db8::1]:8009"), EntryCurrent
	check(t, e.AppendTo(nil), DiscoveryEntryLen, []at{{0, "03 02 03 06 0100 ffff 2000 02"}, {32, ":8009"}, {256, ":nqn.2026-11.x:y"}, {512, ":2001:db8::1"}})
	e.Transport = TransportRDMA
	check(t, e.AppendTo(nil), DiscoveryEntryLen, []at{{0, "01 02 03 06 0100 ffff 2000 02"}, {32, ":8009"}, {256, ":nqn.2026-11.x:y"}, {512, ":2001:db8::1"}, {768, "01 01 01"}})
}

// Base 2.0 figures 401 to 410 and 267.
func TestReservation(t *testing.T) {
	r := Reservation(0xc000050a)
	if got, want := fmt.Sprint(r.Action(), r.IgnoreKey(), r.Type(), r.Persist()), fmt.Sprint(2, true, WriteExclusiveAll, PersistSet); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	keys := AppendKeys(nil, 0x0102030405060708, 9)
	check(t, keys, ReservationDataLen, []at{{0, "0807060504030201 09"}})
	if CurrentKey(keys) != 0x0102030405060708 || OtherKey(keys) != 9 {
		t.Errorf("%#x, %#x", CurrentKey(keys), OtherKey(keys))
	}
	s := ReservationStatus{Generation: 0x01020304, Type: ExclusiveAccessRegistrants, Registrants: 0x0506, Persist: true}
	check(t, s.AppendTo(nil), ReservationStatusLen, []at{{0, "04030201 04 0605"}, {9, "01"}})
	x := Registrant{Holder: true, Key: 0x0102, HostID: [16]byte{3, 15: 4}}
	check(t, x.AppendTo(nil), RegistrantLen, []at{{0, "ffff 01"}, {8, "0201"}, {16, "03"}, {31, "04"}})
	n := Notice{Count: 0x0102, Type: ReservationPreempted, More: 4, NSID: 0x0506}
	check(t, n.AppendTo(nil), NoticeLen, []at{{0, "0201"}, {8, "03 04"}, {12, "0605"}})
	if !ReservationReleased.Masks(4) || ReservationReleased.Masks(AllNotices&^4) || AllNotices != 0x0e {
		t.Error("masks of notifications")
	}
}

// Base 2.0 figures 217 and 218.
func TestANA(t *testing.T) {
	groups := []ANAGroup{{NSID: 1, State: ANAOptimized, Changes: 3}, {NSID: 0x0405, State: ANAChange}}
	check(t, AppendANA(nil, 0x0607, groups, false), 16+2*36, []at{
		{0, "0706"}, {8, "02"}, {16, "01000000 01000000 03"}, {32, "01"}, {48, "01"}, {52, "05040000 01"}, {68, "0f"}, {84, "0504"},
	})
	check(t, AppendANA(nil, 1, groups, true), 16+2*32, []at{{0, "01"}, {8, "02"}, {16, "01"}, {24, "03"}, {32, "01"}, {48, "0504"}, {64, "0f"}})
	if EventANA != 0x0c0302 || EventReservation != 0x800006 {
		t.Errorf("events %#x and %#x", EventANA, EventReservation)
	}
}

// What is on the way of every command allocates nothing.
func TestAllocs(t *testing.T) {
	entry := hexdump.Parse(t, readEntry)
	b := make([]byte, 0, 128)
	n := testing.AllocsPerRun(100, func() {
		e := SQE(entry)
		c := Command{Opcode: e.Opcode(), Fuse: e.Fuse(), CID: e.CID(), NSID: e.NSID(), SGL: e.SGL()}
		q := CQE{CID: e.CID()}
		b = q.AppendTo(c.AppendTo(b[:0]))
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
