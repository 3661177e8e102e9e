package pdu

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"oneshot/internal/hexdump"
)

// encoder is what all Fields structs are.
type encoder interface{ AppendTo([]byte) []byte }

var unhex = hexdump.Parse

// reparse parses b by its opcode and returns the encoder of what it says.
func reparse(b []byte) (encoder, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	switch h.Opcode() {
	case OpNOPOut:
		return fieldsOf[NOPOutFields](ParseNOPOut(b))
	case OpSCSICommand:
		return fieldsOf[SCSICommandFields](ParseSCSICommand(b))
	case OpTaskManagementRequest:
		return fieldsOf[TaskManagementRequestFields](ParseTaskManagementRequest(b))
	case OpLoginRequest:
		return fieldsOf[LoginRequestFields](ParseLoginRequest(b))
	case OpTextRequest:
		return fieldsOf[TextRequestFields](ParseTextRequest(b))
	case OpDataOut:
		return fieldsOf[DataOutFields](ParseDataOut(b))
	case OpLogoutRequest:
		return fieldsOf[LogoutRequestFields](ParseLogoutRequest(b))
	case OpSNACK:
		return fieldsOf[SNACKFields](ParseSNACK(b))
	case OpNOPIn:
		return fieldsOf[NOPInFields](ParseNOPIn(b))
	case OpSCSIResponse:
		return fieldsOf[SCSIResponseFields](ParseSCSIResponse(b))
	case OpTaskManagementResponse:
		return fieldsOf[TaskManagementResponseFields](ParseTaskManagementResponse(b))
	case OpLoginResponse:
		return fieldsOf[LoginResponseFields](ParseLoginResponse(b))
	case OpTextResponse:
		return fieldsOf[TextResponseFields](ParseTextResponse(b))
	case OpDataIn:
		return fieldsOf[DataInFields](ParseDataIn(b))
	case OpLogoutResponse:
		return fieldsOf[LogoutResponseFields](ParseLogoutResponse(b))
	case OpR2T:
		return fieldsOf[R2TFields](ParseR2T(b))
	case OpAsync:
		return fieldsOf[AsyncFields](ParseAsync(b))
	case OpReject:
		return fieldsOf[RejectFields](ParseReject(b))
	}
	return nil, errOpcode
}

func fieldsOf[F any, P interface {
	*F
	encoder
}, V interface{ Fields() F }](v V, err error) (encoder, error) {
	if err != nil {
		return nil, err
	}
	f := v.Fields()
	return P(&f), nil
}

var seq = Sequence{StatSN: 0x31323334, ExpCmdSN: 0x41424344, MaxCmdSN: 0x51525354}

// The vectors follow the figures of RFC 7143 §11.3 to §11.19, a line to a row or two.
var vectors = []struct {
	name   string
	fields encoder
	wire   string
}{
	{"NOP-Out §11.18", &NOPOutFields{
		Immediate: true, DataSegmentLength: 0x010203, LUN: 0x0001000000000000, ITT: 0x11121314, TTT: ReservedTag,
		CmdSN: 0x21222324, ExpStatSN: 0x31323334,
	}, `40 80 00 00  00 01 02 03  # .|1|0x00, 1|reserved; TotalAHSLength, DataSegmentLength
		00 01 00 00  00 00 00 00  # LUN
		11 12 13 14  ff ff ff ff  # Initiator Task Tag, Target Transfer Tag
		21 22 23 24  31 32 33 34  # CmdSN, ExpStatSN
		00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"NOP-In §11.19", &NOPInFields{
		DataSegmentLength: 8, LUN: 0x4001000000000000, ITT: ReservedTag, TTT: 0x21222324, Sequence: seq,
	}, `20 80 00 00  00 00 00 08
		40 01 00 00  00 00 00 00  # LUN
		ff ff ff ff  21 22 23 24  # Initiator Task Tag, Target Transfer Tag
		31 32 33 34  41 42 43 44  # StatSN, ExpCmdSN
		51 52 53 54  00 00 00 00  # MaxCmdSN
		00 00 00 00  00 00 00 00`},
	{"SCSI Command §11.3", &SCSICommandFields{
		Final: true, Write: true, Attr: AttrSimple, DataSegmentLength: 512, LUN: 0x0002000000000000, ITT: 0x11121314,
		EDTL: 0x00002000, CmdSN: 0x21222324, ExpStatSN: 0x31323334,
		CDB: []byte{0x8a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 16, 0, 0},
	}, `01 a1 00 00  00 00 02 00  # F|R|W|. .|ATTR
		00 02 00 00  00 00 00 00  # LUN
		11 12 13 14  00 00 20 00  # Initiator Task Tag, Expected Data Transfer Length
		21 22 23 24  31 32 33 34  # CmdSN, ExpStatSN
		8a 00 01 02  03 04 05 06  # CDB
		07 08 00 00  00 10 00 00`},
	{"SCSI Command §11.2.2: extended CDB and bidirectional read length", &SCSICommandFields{
		Immediate: true, Read: true, Write: true, Attr: AttrHeadOfQueue, ITT: 1, EDTL: 0x400, CmdSN: 2, ExpStatSN: 3,
		CDB:         []byte{0x7f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		ExtendedCDB: []byte{16, 17, 18, 19, 20, 21}, Bidi: true, BidiReadEDTL: 0x01020304,
	}, `41 63 00 00  05 00 00 00  # 5 words of AHS
		00 00 00 00  00 00 00 00
		00 00 00 01  00 00 04 00
		00 00 00 02  00 00 00 03
		7f 01 02 03  04 05 06 07
		08 09 0a 0b  0c 0d 0e 0f
		00 07 01 00  10 11 12 13  # AHSLength = CDBLength-15 = 7, type 1
		14 15 00 00               # padding
		00 05 02 00  01 02 03 04  # AHSLength 5, type 2, read length`},
	{"SCSI Response §11.4", &SCSIResponseFields{
		Response: ResponseCommandCompleted, Status: 0x02, Underflow: true, BidiOverflow: true, DataSegmentLength: 20,
		ITT: 0x11121314, SNACKTag: 0x21222324, Sequence: seq, ExpDataSN: 0x61626364,
		BidiReadResidualCount: 0x71727374, ResidualCount: 0x81828384,
	}, `21 92 00 02  00 00 00 14  # 1|. .|o|u|O|U|., Response, Status
		00 00 00 00  00 00 00 00
		11 12 13 14  21 22 23 24  # Initiator Task Tag, SNACK Tag
		31 32 33 34  41 42 43 44
		51 52 53 54  61 62 63 64  # MaxCmdSN, ExpDataSN
		71 72 73 74  81 82 83 84  # Bidirectional Read Residual Count, Residual Count`},
	{"SCSI Response §11.4: the other residuals", &SCSIResponseFields{
		Response: ResponseTargetFailure, Overflow: true, BidiUnderflow: true,
	}, `21 8c 01 00  00 00 00 00
		00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"Task Management Function Request §11.5", &TaskManagementRequestFields{
		Immediate: true, Function: TaskAbortTask, LUN: 0x0003000000000000, ITT: 0x11121314, ReferencedTaskTag: 0x15161718,
		CmdSN: 0x21222324, ExpStatSN: 0x31323334, RefCmdSN: 0x41424344, ExpDataSN: 0x51525354,
	}, `42 81 00 00  00 00 00 00  # 1|Function
		00 03 00 00  00 00 00 00  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, Referenced Task Tag
		21 22 23 24  31 32 33 34  # CmdSN, ExpStatSN
		41 42 43 44  51 52 53 54  # RefCmdSN, ExpDataSN
		00 00 00 00  00 00 00 00`},
	{"Task Management Function Response §11.6", &TaskManagementResponseFields{
		Response: TaskFunctionRejected, ITT: 0x11121314, Sequence: seq,
	}, `22 80 ff 00  00 00 00 00  # Response
		00 00 00 00  00 00 00 00
		11 12 13 14  00 00 00 00
		31 32 33 34  41 42 43 44
		51 52 53 54  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"SCSI Data-Out §11.7", &DataOutFields{
		Final: true, DataSegmentLength: 0x2000, LUN: 0x0001000000000000, ITT: 0x11121314, TTT: 0x15161718,
		ExpStatSN: 0x31323334, DataSN: 0x41424344, BufferOffset: 0x51525354,
	}, `05 80 00 00  00 00 20 00
		00 01 00 00  00 00 00 00  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, Target Transfer Tag
		00 00 00 00  31 32 33 34  # reserved, ExpStatSN
		00 00 00 00  41 42 43 44  # reserved, DataSN
		51 52 53 54  00 00 00 00  # Buffer Offset`},
	{"SCSI Data-In §11.7", &DataInFields{
		Final: true, Underflow: true, HasStatus: true, Status: 0x04, DataSegmentLength: 36, ITT: 0x11121314,
		TTT: ReservedTag, Sequence: seq, DataSN: 0x61626364, BufferOffset: 0x71727374, ResidualCount: 0x81828384,
	}, `25 83 00 04  00 00 00 24  # F|A|0 0 0|O|U|S, reserved, Status
		00 00 00 00  00 00 00 00  # LUN
		11 12 13 14  ff ff ff ff  # Initiator Task Tag, Target Transfer Tag
		31 32 33 34  41 42 43 44
		51 52 53 54  61 62 63 64  # MaxCmdSN, DataSN
		71 72 73 74  81 82 83 84  # Buffer Offset, Residual Count`},
	{"SCSI Data-In §11.7: the other flags", &DataInFields{
		Acknowledge: true, Overflow: true, LUN: 0x0001000000000000, TTT: 0x15161718,
	}, `25 44 00 00  00 00 00 00  00 01 00 00  00 00 00 00
		00 00 00 00  15 16 17 18  00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00`},
	{"R2T §11.8", &R2TFields{
		LUN: 0x0001000000000000, ITT: 0x11121314, TTT: 0x15161718, Sequence: seq, R2TSN: 0x61626364,
		BufferOffset: 0x71727374, DesiredDataTransferLength: 0x81828384,
	}, `31 80 00 00  00 00 00 00
		00 01 00 00  00 00 00 00  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, Target Transfer Tag
		31 32 33 34  41 42 43 44
		51 52 53 54  61 62 63 64  # MaxCmdSN, R2TSN
		71 72 73 74  81 82 83 84  # Buffer Offset, Desired Data Transfer Length`},
	{"Asynchronous Message §11.9", &AsyncFields{
		LUN: 0, Sequence: seq, Event: AsyncConnectionDrop, VCode: 0x07, Parameter1: 0x0102, Parameter2: 0x0304, Parameter3: 0x0506,
	}, `32 80 00 00  00 00 00 00
		00 00 00 00  00 00 00 00  # LUN
		ff ff ff ff  00 00 00 00
		31 32 33 34  41 42 43 44
		51 52 53 54  02 07 01 02  # MaxCmdSN; AsyncEvent, AsyncVCode, Parameter1
		03 04 05 06  00 00 00 00  # Parameter2, Parameter3`},
	{"Text Request §11.10", &TextRequestFields{
		Immediate: true, Final: true, DataSegmentLength: 16, LUN: 0x0102030405060708, ITT: 0x11121314, TTT: 0x15161718,
		CmdSN: 0x21222324, ExpStatSN: 0x31323334,
	}, `44 80 00 00  00 00 00 10  # F|C
		01 02 03 04  05 06 07 08  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, Target Transfer Tag
		21 22 23 24  31 32 33 34  # CmdSN, ExpStatSN
		00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"Text Response §11.11", &TextResponseFields{
		Continue: true, DataSegmentLength: 0x2000, LUN: 0x0102030405060708, ITT: 0x11121314, TTT: 0x15161718, Sequence: seq,
	}, `24 40 00 00  00 00 20 00  # F|C
		01 02 03 04  05 06 07 08  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, Target Transfer Tag
		31 32 33 34  41 42 43 44
		51 52 53 54  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"Login Request §11.12", &LoginRequestFields{
		Transit: true, CSG: StageLoginOperationalNegotiation, NSG: StageFullFeaturePhase, VersionMax: 1, VersionMin: 0,
		DataSegmentLength: 300, ISID: ISID{0x40, 1, 2, 3, 4, 5}, TSIH: 0x0607, ITT: 0x11121314, CID: 0x1516,
		CmdSN: 0x21222324, ExpStatSN: 0x31323334,
	}, `43 87 01 00  00 00 01 2c  # T|C|. .|CSG|NSG, Version-max, Version-min
		40 01 02 03  04 05 06 07  # ISID, TSIH
		11 12 13 14  15 16 00 00  # Initiator Task Tag, CID
		21 22 23 24  31 32 33 34  # CmdSN, ExpStatSN
		00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"Login Response §11.13", &LoginResponseFields{
		Continue: true, CSG: StageLoginOperationalNegotiation, VersionMax: 2, VersionActive: 1, DataSegmentLength: 5,
		ISID: ISID{0x40, 1, 2, 3, 4, 5}, TSIH: 0x0607, ITT: 0x11121314, Sequence: seq, Status: LoginUnsupportedVersion,
	}, `23 44 02 01  00 00 00 05  # T|C|. .|CSG|NSG, Version-max, Version-active
		40 01 02 03  04 05 06 07  # ISID, TSIH
		11 12 13 14  00 00 00 00  # Initiator Task Tag
		31 32 33 34  41 42 43 44
		51 52 53 54  02 05 00 00  # MaxCmdSN; Status-Class, Status-Detail
		00 00 00 00  00 00 00 00`},
	{"Logout Request §11.14", &LogoutRequestFields{
		Immediate: true, Reason: LogoutRemoveForRecovery, ITT: 0x11121314, CID: 0x1516, CmdSN: 0x21222324, ExpStatSN: 0x31323334,
	}, `46 82 00 00  00 00 00 00  # 1|Reason Code
		00 00 00 00  00 00 00 00
		11 12 13 14  15 16 00 00  # Initiator Task Tag, CID
		21 22 23 24  31 32 33 34
		00 00 00 00  00 00 00 00
		00 00 00 00  00 00 00 00`},
	{"Logout Response §11.15", &LogoutResponseFields{
		Response: LogoutCleanupFailed, ITT: 0x11121314, Sequence: seq, Time2Wait: 0x0102, Time2Retain: 0x0304,
	}, `26 80 03 00  00 00 00 00
		00 00 00 00  00 00 00 00
		11 12 13 14  00 00 00 00
		31 32 33 34  41 42 43 44
		51 52 53 54  00 00 00 00
		01 02 03 04  00 00 00 00  # Time2Wait, Time2Retain`},
	{"SNACK Request §11.16", &SNACKFields{
		Type: SNACKRData, LUN: 0x0001000000000000, ITT: 0x11121314, TTT: 0x15161718, ExpStatSN: 0x31323334,
		BegRun: 0x41424344, RunLength: 0x51525354,
	}, `10 83 00 00  00 00 00 00  # 1|. . .|Type
		00 01 00 00  00 00 00 00  # LUN
		11 12 13 14  15 16 17 18  # Initiator Task Tag, TTT or SNACK Tag
		00 00 00 00  31 32 33 34  # reserved, ExpStatSN
		00 00 00 00  00 00 00 00
		41 42 43 44  51 52 53 54  # BegRun, RunLength`},
	{"Reject §11.17", &RejectFields{
		Reason: RejectProtocolError, DataSegmentLength: 48, Sequence: seq, DataSN: 0x61626364,
	}, `3f 80 04 00  00 00 00 30  # Reason
		00 00 00 00  00 00 00 00
		ff ff ff ff  00 00 00 00
		31 32 33 34  41 42 43 44
		51 52 53 54  61 62 63 64  # MaxCmdSN, DataSN/R2TSN
		00 00 00 00  00 00 00 00`},
}

func TestVectors(t *testing.T) {
	seen := map[Opcode]bool{}
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			wire := unhex(t, v.wire)
			seen[Header(wire).Opcode()] = true
			dirty := bytes.Repeat([]byte{0xee}, len(wire)+8) // every byte must be written
			if got := v.fields.AppendTo(dirty[:4]); !bytes.Equal(got[4:], wire) || !bytes.Equal(got[:4], dirty[:4]) {
				t.Errorf("encoded\n% x, want\n% x", got[4:], wire)
			}
			got, err := reparse(wire)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(v.fields, got); d != "" {
				t.Error(d)
			}
		})
	}
	for op := range Opcode(64) {
		if op.Known() && !seen[op] {
			t.Errorf("%v has no vector", op)
		}
		if op.Known() && op.FromTarget() != (op >= 0x20) {
			t.Errorf("%v: FromTarget = %v", op, op.FromTarget())
		}
	}
}

func TestHeader(t *testing.T) {
	b := unhex(t, `41 80 12 34  02 01 02 03  01 02 03 04  05 06 07 08  11 12 13 14  15 16 17 18
		21 22 23 24  31 32 33 34  41 42 43 44  51 52 53 54  61 62 63 64  71 72 73 74`)
	h, err := ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.Opcode() != OpSCSICommand || !h.Immediate() || !h.Final() || h.Flags() != 0x80 || h.TotalAHSLen() != 8 ||
		h.DataSegmentLen() != 0x010203 || h.LUN() != 0x0102030405060708 || h.ITT() != 0x11121314 || h.TTT() != 0x15161718 ||
		h.CmdSN() != 0x21222324 || h.StatSN() != 0x21222324 || h.ExpStatSN() != 0x31323334 || h.ExpCmdSN() != 0x31323334 ||
		h.MaxCmdSN() != 0x41424344 {
		t.Errorf("% x is misread", b)
	}
	if bhs := h.BHS(); !bytes.Equal(bhs[:], b) {
		t.Errorf("BHS = % x", bhs)
	}
}

func TestCarriesCmdSN(t *testing.T) {
	for op := range Opcode(64) {
		want := op.Known() && !op.FromTarget() && op != OpDataOut && op != OpSNACK
		if op.CarriesCmdSN() != want {
			t.Errorf("%v: CarriesCmdSN = %v", op, !want)
		}
	}
}

func TestPaddedLen(t *testing.T) {
	for n, want := range []int{0, 4, 4, 4, 4, 8} {
		if got := PaddedLen(n); got != want {
			t.Errorf("PaddedLen(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, v := range vectors {
		wire := unhex(t, v.wire)
		op := Header(wire).Opcode()
		for n := range wire {
			if _, err := reparse(wire[:n]); err == nil {
				t.Fatalf("%v of %d bytes is accepted", op, n)
			}
		}
		if op == OpSCSICommand {
			continue
		}
		wire = append(wire, 0, 1, 9, 0)
		wire[offAHSLen] = 1
		var e *Error
		if _, err := reparse(wire); !errors.As(err, &e) || e.Reason != RejectProtocolError || e.BHS != Header(wire).BHS() {
			t.Errorf("%v with AHS: %v", op, err) // §11.2.1.5
		}
	}
	wrong := (&NOPOutFields{}).AppendTo(nil)
	if _, err := ParseSNACK(wrong); !errors.Is(err, errOpcode) {
		t.Errorf("ParseSNACK of a NOP-Out: %v", err)
	}
}

func TestAHSRefused(t *testing.T) {
	for _, c := range []struct {
		name, ahs string
		want      error
	}{
		{"segment longer than the total", "00 06 01 00  00 00 00 00", errAHSTruncated},
		{"segment far longer than the total", "ff ff 01 00  00 00 00 00", errAHSTruncated},
		{"extended CDB without a byte of it", "00 01 01 00", errAHSLength},
		{"bidirectional length too short", "00 04 02 00  00 00 00 00", errAHSLength},
		{"bidirectional length too long", "00 09 02 00  00 00 00 00  00 00 00 00", errAHSLength},
		{"rest after a good segment", "00 05 02 00  00 00 00 00  00 02 01 00", errAHSTruncated},
		{"unknown type", "00 05 3f 00  00 00 00 00", nil},
		{"empty unknown type", "00 00 3f 00", nil},
	} {
		b := append((&SCSICommandFields{}).AppendTo(nil), unhex(t, c.ahs)...)
		b[offAHSLen] = byte((len(b) - BHSLen) / 4)
		p, err := ParseSCSICommand(b)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if _, ok := p.BidiReadEDTL(); ok || p.ExtendedCDB() != nil {
			t.Errorf("%s: content found", c.name)
		}
	}
}

func TestEncoderPanics(t *testing.T) {
	for name, f := range map[string]encoder{
		"data segment": &NOPOutFields{DataSegmentLength: MaxDataSegmentLen + 1},
		"negative":     &NOPOutFields{DataSegmentLength: -1},
		"CDB":          &SCSICommandFields{CDB: make([]byte, CDBLen+1)},
		"extended CDB": &SCSICommandFields{ExtendedCDB: make([]byte, MaxAHSLen)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: does not panic", name)
				}
			}()
			f.AppendTo(nil)
		}()
	}
}

func TestShortCDBIsPadded(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, BHSLen)
	p, err := ParseSCSICommand((&SCSICommandFields{CDB: []byte{0x12, 0, 0, 0, 36, 0}}).AppendTo(b[:0]))
	if want := append([]byte{0x12, 0, 0, 0, 36, 0}, make([]byte, 10)...); err != nil || !bytes.Equal(p.CDB(), want) {
		t.Errorf("CDB % x, %v", p.CDB(), err)
	}
}

func TestNoAllocation(t *testing.T) {
	buf := make([]byte, 0, BHSLen+MaxAHSLen)
	for _, v := range vectors {
		if n := testing.AllocsPerRun(10, func() { v.fields.AppendTo(buf) }); n != 0 {
			t.Errorf("%s: encoding allocates %v times", v.name, n)
		}
	}
	cmd := vectors[3].fields.AppendTo(nil)
	out := (&DataOutFields{}).AppendTo(nil)
	if n := testing.AllocsPerRun(10, func() {
		c, err := ParseSCSICommand(cmd)
		if f := c.Fields(); err != nil || !f.Bidi || len(f.ExtendedCDB) != 6 {
			t.Error("SCSI Command misread")
		}
		d, err := ParseDataOut(out)
		if err != nil || d.Fields() != (DataOutFields{}) {
			t.Error("Data-Out misread")
		}
	}); n != 0 {
		t.Errorf("decoding allocates %v times", n)
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{OpR2T.String(), "R2T"},
		{Opcode(0x1f).String(), "opcode 0x1f"},
		{Opcode(0xff).String(), "opcode 0xff"},
		{RejectProtocolError.String(), "protocol error"},
		{RejectReason(1).String(), "reject reason 0x01"},
		{TaskAbortTask.String(), "ABORT TASK"},
		{TaskFunction(0).String(), "task management function 0"},
		{TaskFunctionSucceeded.String(), "Function succeeded"},
		{TaskFunctionRejected.String(), "Function rejected"},
		{TaskResponse(9).String(), "task management response 9"},
		{LoginTooManyConnections.String(), "Too many connections"},
		{LoginStatus(0x0399).String(), "login status 0x0399"},
		{AsyncVendor.String(), "vendor-specific event"},
		{AsyncEvent(9).String(), "asynchronous event 9"},
		{LogoutRemoveForRecovery.String(), "remove the connection for recovery"},
		{LogoutReason(3).String(), "logout reason 3"},
		{LogoutCIDNotFound.String(), "CID not found"},
		{LogoutStatus(4).String(), "logout response 4"},
		{SNACKRData.String(), "R-Data SNACK"},
		{SNACKType(4).String(), "SNACK type 4"},
		{AttrACA.String(), "ACA"},
		{TaskAttribute(7).String(), "task attribute 7"},
		{StageFullFeaturePhase.String(), "FullFeaturePhase"},
		{ISID{0x40, 1, 2, 3, 4, 5}.String(), "400102030405"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	err := malformed(Header((&R2TFields{}).AppendTo(nil)), RejectInvalidPDUField, errAHS)
	if want := "R2T: invalid PDU field: " + errAHS.Error(); err.Error() != want || !errors.Is(err, errAHS) {
		t.Errorf("%v", err)
	}
}

// RFC 7143 §13.1, and appendix B.4 of RFC 3720.
func TestDigest(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		wire string
	}{
		{"digits", []byte("123456789"), "83 92 06 e3"},
		{"32 bytes of zeros", make([]byte, 32), "aa 36 91 8a"},
		{"32 bytes of ones", bytes.Repeat([]byte{0xff}, 32), "43 ab a8 62"},
		{"SCSI Read(10) Command PDU", unhex(t, `01 c0 00 00  00 00 00 00  00 00 00 00  00 00 00 00  14 00 00 00  00 00 04 00
			00 00 00 14  00 00 00 18  28 00 00 00  00 00 00 00  02 00 00 00  00 00 00 00`), "56 3a 96 d9"},
	} {
		want := unhex(t, c.wire)
		for cut := range c.data {
			d := Digest(0).Update(c.data[:cut]).Update(c.data[cut:])
			if got := d.AppendTo(nil); !bytes.Equal(got, want) || !d.Matches(want) {
				t.Fatalf("%s cut at %d: % x, want % x", c.name, cut, got, want)
			}
		}
	}
	if a, b := Digest(0).Update([]byte("12345")).Update(Padding(5)), Digest(0).Update([]byte("12345\x00\x00\x00")); a != b {
		t.Errorf("padded digest %#x, want %#x", a, b)
	}
	if Digest(1).Matches(make([]byte, 4)) {
		t.Error("a wrong digest matches")
	}
	p := make([]byte, 4095)
	if n := testing.AllocsPerRun(10, func() { Digest(0).Update(p).Update(Padding(len(p))) }); n != 0 {
		t.Errorf("digest allocates %v times", n)
	}
}

// FuzzRoundTrip: what is parsed and encoded again says the same, in the same number of bytes
// or fewer (unknown additional header segments and reserved bits are dropped).
func FuzzRoundTrip(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.fields.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := reparse(b)
		if err != nil {
			return
		}
		wire := first.AppendTo(nil)
		if len(wire) > len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(wire))
		}
		again, err := reparse(wire)
		if err != nil {
			t.Fatalf("cannot parse what was encoded: %v", err)
		}
		if d := cmp.Diff(first, again); d != "" {
			t.Fatal(d)
		}
	})
}
