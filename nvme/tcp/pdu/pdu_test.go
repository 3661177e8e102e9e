package pdu

import (
	"bytes"
	"testing"

	"oneshot/internal/hexdump"
	"oneshot/nvme"
)

// CRC32C of the digits, the check value of every catalogue of CRCs, and of 32 zero bytes (RFC 3720 §B.4).
func TestDigest(t *testing.T) {
	for text, want := range map[string]Digest{"123456789": 0xe3069283, string(make([]byte, 32)): 0x8a9136aa} {
		if got := Digest(0).Update([]byte(text)); got != want {
			t.Errorf("%#x, want %#x", got, want)
		}
	}
	if b := Digest(0xe3069283).AppendTo(nil); !bytes.Equal(b, []byte{0x83, 0x92, 0x06, 0xe3}) || !Digest(0xe3069283).Matches(b) || Digest(1).Matches(b) {
		t.Errorf("% x", b)
	}
}

func same(t *testing.T, name string, got []byte, want string) {
	t.Helper()
	if w := hexdump.Parse(t, want); !bytes.Equal(got, w) {
		t.Errorf("%s\n     % x\nwant % x", name, got, w)
	}
}

// The headers as the figures of NVMe/TCP 1.0 §3.6.2 draw them.
func TestVectors(t *testing.T) {
	ic := IC{Align: 1, HeaderDigest: true, DataDigest: true, Max: 3}
	same(t, "ICReq", ic.AppendTo(nil, ICReq)[:16], "00 00 80 00 80 00 00 00  00 00 01 03 03 00 00 00")
	same(t, "the rest of it", ic.AppendTo(nil, ICReq)[16:], string(bytes.Repeat([]byte("00"), 112)))
	if got := ParseIC(ic.AppendTo(nil, ICReq)); got != ic {
		t.Errorf("%+v", got)
	}
	resp := IC{Max: 0x20000}
	same(t, "ICResp", resp.AppendTo(nil, ICResp)[:16], "01 00 80 00 80 00 00 00  00 00 00 00 00 00 02 00")

	d := Data{CID: 0x2001, Tag: 0x0304, Offset: 0x10000, Len: 0x1000}
	same(t, "H2CData", d.AppendTo(nil, H2CData, FlagLast|FlagHeaderDigest|FlagDataDigest, 28),
		"06 07 18 1c 20 10 00 00  01 20 04 03 00 00 01 00 00 10 00 00 00 00 00 00")
	same(t, "C2HData", (&Data{CID: 0x2001, Len: 512}).AppendTo(nil, C2HData, FlagLast|FlagSuccess, 24),
		"07 0c 18 18 18 02 00 00  01 20 00 00 00 00 00 00 00 02 00 00 00 00 00 00")
	if got := ParseData(d.AppendTo(nil, H2CData, 0, 24)); got != d {
		t.Errorf("%+v", got)
	}
	r := Ready{CID: 0x2001, Tag: 5, Offset: 0x2000, Len: 0x30000}
	same(t, "R2T", r.AppendTo(nil, FlagHeaderDigest), "09 01 18 00 1c 00 00 00  01 20 05 00 00 20 00 00 00 00 03 00 00 00 00 00")
	if got := ParseReady(r.AppendTo(nil, 0)); got != r {
		t.Errorf("%+v", got)
	}
	same(t, "CapsuleResp", AppendResponse(nil, 0, &nvme.CQE{DW0: 1, SQHD: 2, CID: 0x2001, Status: nvme.InvalidField | nvme.DNR}),
		"05 00 18 00 18 00 00 00  01 00 00 00 00 00 00 00 02 00 00 00 01 20 04 80")
	c := nvme.Command{Opcode: nvme.Write, CID: 3}
	same(t, "CapsuleCmd", AppendCommand(nil, FlagHeaderDigest|FlagDataDigest, &c, 76, 512)[:12], "04 03 48 4c 50 02 00 00  01 40 03 00")
	same(t, "CapsuleCmd without data", AppendCommand(nil, FlagHeaderDigest, &c, 0, 0)[:8], "04 01 48 00 4c 00 00 00")
	same(t, "C2HTermReq", AppendTerm(nil, C2HTermReq, &Error{Fatal: InvalidHeaderField, Info: 4}, []byte{0xaa, 0xbb}),
		"03 00 18 00 1a 00 00 00  01 00 04 00 00 00 00 00 00 00 00 00 00 00 00 00 aa bb")
	if b := AppendTerm(nil, C2HTermReq, &Error{Fatal: LimitExceeded, Info: 9}, make([]byte, 1000)); len(b) != TermLen+MaxTermData {
		t.Errorf("%d bytes", len(b))
	} else if f, info := ParseTerm(b); f != LimitExceeded || info != 9 {
		t.Errorf("%v %d", f, info)
	}
	if DataStart(24, true, 0) != 28 || DataStart(24, false, 0) != 24 || DataStart(24, true, 15) != 64 || DataStart(72, true, 31) != 128 {
		t.Error("data begin elsewhere")
	}
}

// What each fault of a common header is answered with (NVMe/TCP 1.0 §3.5 and §3.6).
func TestCheck(t *testing.T) {
	const limit = 8192
	tests := []struct {
		name    string
		header  string
		digests bool
		want    Shape
		fatal   Fatal
		info    uint32
	}{
		{"a command", "04 00 48 00 48 00 00 00", false, Shape{72, 72, 0, 72}, 0, 0},
		{"with data", "04 00 48 48 48 10 00 00", false, Shape{72, 72, 4096, 72 + 4096}, 0, 0},
		{"with digests", "04 03 48 4c 50 10 00 00", true, Shape{76, 76, 4096, 80 + 4096}, 0, 0},
		{"without data, with digests", "04 01 48 00 4c 00 00 00", true, Shape{76, 76, 0, 76}, 0, 0},
		{"a gap before the data", "04 00 48 80 80 02 00 00", false, Shape{72, 128, 512, 640}, 0, 0},
		{"data-out", "06 04 18 18 18 10 00 00", false, Shape{24, 24, 4096, 24 + 4096}, 0, 0},
		{"ICReq", "00 00 80 00 80 00 00 00", false, Shape{128, 128, 0, 128}, 0, 0},
		{"termination, never with digests", "02 00 18 00 20 00 00 00", true, Shape{24, 24, 8, 32}, 0, 0},
		{"an unknown type", "08 00 18 00 18 00 00 00", false, Shape{}, InvalidHeaderField, 0},
		{"a type of controllers", "07 00 18 18 20 00 00 00", false, Shape{}, InvalidHeaderField, 0},
		{"HLEN", "04 00 47 00 48 00 00 00", false, Shape{}, InvalidHeaderField, 2},
		{"PLEN below HLEN", "04 00 48 00 47 00 00 00", false, Shape{}, InvalidHeaderField, 4},
		{"PLEN 0", "04 00 48 00 00 00 00 00", false, Shape{}, InvalidHeaderField, 4},
		{"no room for the digest", "04 01 48 00 48 00 00 00", true, Shape{}, InvalidHeaderField, 4},
		{"PDO in the header", "04 00 48 44 48 10 00 00", false, Shape{}, InvalidHeaderField, 3},
		{"PDO not of dwords", "04 00 48 49 49 10 00 00", false, Shape{}, InvalidHeaderField, 3},
		{"PDO behind the end", "04 00 48 fc 4c 00 00 00", false, Shape{}, InvalidHeaderField, 4},
		{"data digest alone", "04 03 48 4c 50 00 00 00", true, Shape{}, InvalidHeaderField, 4},
		{"digest without negotiation", "04 01 48 00 4c 00 00 00", false, Shape{}, InvalidHeaderField, 1},
		{"no header digest", "04 00 48 00 4c 00 00 00", true, Shape{}, InvalidHeaderField, 1},
		{"no data digest", "04 01 48 4c 50 10 00 00", true, Shape{}, InvalidHeaderField, 1},
		{"too much", "04 00 48 48 4c 20 00 00", false, Shape{}, LimitExceeded, 0},
		{"as much as can be said", "04 00 48 48 ff ff ff ff", false, Shape{}, LimitExceeded, 0},
		{"data-out without data", "06 04 18 00 18 00 00 00", false, Shape{}, InvalidHeaderField, 4},
		{"ICReq with data", "00 00 80 80 84 00 00 00", false, Shape{}, InvalidHeaderField, 4},
	}
	for _, tt := range tests {
		h := Header(hexdump.Parse(t, tt.header))
		s, err := h.Check(tt.digests, tt.digests, limit)
		switch {
		case tt.fatal == 0 && (err != nil || s != tt.want):
			t.Errorf("%s: %+v, %v; want %+v", tt.name, s, err, tt.want)
		case tt.fatal != 0 && (err == nil || err.Fatal != tt.fatal || err.Info != tt.info):
			t.Errorf("%s: %+v; want reason %d, %d", tt.name, err, tt.fatal, tt.info)
		}
	}
}

func TestAllocs(t *testing.T) {
	b := make([]byte, 0, 256)
	n := testing.AllocsPerRun(100, func() {
		d := Data{CID: 1, Len: 512}
		r := Ready{CID: 1, Len: 512}
		b = d.AppendTo(b[:0], H2CData, FlagLast, 24)
		if _, err := Header(b).Check(false, false, 4096); err != nil {
			t.Error(err)
		}
		b = Digest(0).Update(b).AppendTo(b)
		b = r.AppendTo(b, 0)
		b = AppendResponse(b, 0, &nvme.CQE{CID: 1})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Parts of a PDU that Check takes lie in it, in order, whatever a host says.
func FuzzHeader(f *testing.F) {
	for _, b := range [][]byte{
		(&IC{}).AppendTo(nil, ICReq), AppendCommand(nil, 0, &nvme.Command{}, 72, 512), (&Data{Len: 512}).AppendTo(nil, H2CData, FlagLast, 24),
		AppendTerm(nil, H2CTermReq, &Error{}, []byte{1, 2, 3, 4}),
	} {
		f.Add(b, uint8(0), 8192)
		f.Add(b, uint8(3), 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, digests uint8, most int) {
		if len(b) < CommonLen || most < 0 || most > 4<<20 {
			return
		}
		s, err := Header(b).Check(digests&1 != 0, digests&2 != 0, most)
		if err != nil {
			if err.Fatal == 0 || err.Info > 8 {
				t.Errorf("%+v", err)
			}
			return
		}
		if s.Head < CommonLen || s.Data < s.Head || s.Len < 0 || s.Len > most || s.Data+s.Len > s.End || s.End != int(Header(b).Len()) {
			t.Errorf("%+v", s)
		}
	})
}
