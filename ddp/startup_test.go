package ddp

import (
	"bytes"
	"reflect"
	"testing"
)

var cmHeader = []byte{0x80, 0, 0, 0}

var startVectors = []struct {
	name  string
	hex   string
	frame StartFrame
}{
	{
		"E1", `4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65 10 02 00 08 00 80 00 01 80 00 00 00`,
		StartFrame{Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 128, ORD: 1}, PrivateData: cmHeader},
	},
	{
		"E2", `4d 50 41 20 49 44 20 52 65 70 20 46 72 61 6d 65 50 02 00 08 00 01 00 20 80 00 00 00`,
		StartFrame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 1, ORD: 32}, PrivateData: cmHeader},
	},
	{
		"E3", `4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65 50 02 00 04 80 10 c0 10`,
		StartFrame{
			CRC: true, Revision: 2, HasEnhanced: true, PrivateData: []byte{},
			Enhanced: Enhanced{IRD: 16, ORD: 16, PeerToPeer: true, RTRWrite: true, RTRRead: true},
		},
	},
	{
		"O1", `4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65 50 02 00 18 00 10 00 10 80 00 00 00 4f 53 52 31
		01 04 00 7f 00 00 01 00 1c 65 dc bc`,
		StartFrame{
			CRC: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 16},
			PrivateData: OneShot{Flags: 0x7f, Window: 256}.AppendTo(bytes.Clone(cmHeader)),
		},
	},
	{
		"O2", `4d 50 41 20 49 44 20 52 65 70 20 46 72 61 6d 65 50 02 00 18 00 10 00 10 80 00 00 00 4f 53 52 31
		01 04 00 76 00 00 00 80 2e a2 fe d0`,
		StartFrame{
			Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 16},
			PrivateData: OneShot{Flags: 0x76, Window: 128}.AppendTo(bytes.Clone(cmHeader)),
		},
	},
	{
		"plain Request with markers and a private octet", `4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65 c0 01 00 01 5a`,
		StartFrame{Markers: true, CRC: true, Revision: 1, PrivateData: []byte{0x5a}},
	},
	{
		"plain Reply that rejects", `4d 50 41 20 49 44 20 52 65 70 20 46 72 61 6d 65 20 01 00 00`,
		StartFrame{Reply: true, Reject: true, Revision: 1, PrivateData: []byte{}},
	},
}

func TestStartFrames(t *testing.T) {
	for _, v := range startVectors {
		b := unhex(t, v.hex)
		if got := v.frame.AppendTo(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: encoded\n% x, want\n% x", v.name, got, b)
		}
		if n, err := StartFrameLen(b[:StartFrameHeader], v.frame.Reply); n != len(b) || err != nil {
			t.Errorf("%s: length %d, %v", v.name, n, err)
		}
		if got, err := ParseStartFrame(b, v.frame.Reply); err != nil || !reflect.DeepEqual(got, v.frame) {
			t.Errorf("%s: decoded %+v, %v", v.name, got, err)
		}
		if _, err := ParseStartFrame(b, !v.frame.Reply); causeOf(err) != MPAStartup {
			t.Errorf("%s: taken for the other frame: %v", v.name, err)
		}
	}
}

func TestStartFrameErrors(t *testing.T) {
	good := unhex(t, startVectors[0].hex)
	with := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	for name, b := range map[string][]byte{
		"key":                with(15, 'E'),
		"revision 0":         with(17, 0),
		"revision 3":         with(17, 3),
		"PD_Length 513":      with(18, 2, 1),
		"S without room":     with(18, 0, 3)[:23],
		"shorter than told":  good[:27],
		"longer than told":   append(bytes.Clone(good), 0),
		"shorter than a key": good[:19],
		"empty":              nil,
	} {
		if _, err := ParseStartFrame(b, false); causeOf(err) != MPAStartup {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The reserved bits, among them siw's 0x08, and R in a Request are not checked.
	if s, err := ParseStartFrame(with(16, 0x3f), false); err != nil || s.Reject {
		t.Errorf("reserved flags: %+v, %v", s, err)
	}
	// Revision 1 knows no S.
	if s, err := ParseStartFrame(with(17, 1), false); err != nil || s.HasEnhanced || len(s.PrivateData) != 8 {
		t.Errorf("S in revision 1: %+v, %v", s, err)
	}
	// RFC 6581 §9.2: without A, the bits B, C and D are ignored.
	if s, _ := ParseStartFrame(with(20, 0x40, 0x80, 0xc0, 0x01), false); s.Enhanced != (Enhanced{IRD: 128, ORD: 1}) {
		t.Errorf("B, C, D without A: %+v", s.Enhanced)
	}
}

func TestAnswer(t *testing.T) {
	local := Enhanced{IRD: 16, ORD: 32, RTRWrite: true, RTRRead: true}
	enhanced := func(e Enhanced) StartFrame { return StartFrame{Revision: 2, HasEnhanced: true, Enhanced: e} }
	for _, c := range []struct {
		name string
		req  StartFrame
		crc  bool
		want StartFrame
		err  Cause
	}{
		{
			"E1 gets E2", enhanced(Enhanced{IRD: 128, ORD: 1}), true,
			StartFrame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 1, ORD: 32}},
			0x7777,
		},
		{"plain", StartFrame{Revision: 1}, false, StartFrame{Reply: true, Revision: 1}, 0x7777},
		{"plain with CRC", StartFrame{Revision: 1, CRC: true}, false, StartFrame{Reply: true, CRC: true, Revision: 1}, 0x7777},
		{"revision 2 without S", StartFrame{Revision: 2}, true, StartFrame{Reply: true, CRC: true, Revision: 2}, 0x7777},
		{
			"ORD within the peer's IRD", enhanced(Enhanced{IRD: 4, ORD: 16}), false,
			StartFrame{Reply: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 4}},
			0x7777,
		},
		{
			"depth left to the ULPs", enhanced(Enhanced{IRD: DepthUnknown, ORD: DepthUnknown}), false,
			StartFrame{Reply: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: DepthUnknown, ORD: DepthUnknown}},
			0x7777,
		},
		{
			"E3", enhanced(Enhanced{IRD: 16, ORD: 16, PeerToPeer: true, RTRSend: true, RTRWrite: true}), false,
			StartFrame{Reply: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 16, PeerToPeer: true, RTRWrite: true}},
			0x7777,
		},
		{
			"no RTR in common", enhanced(Enhanced{IRD: 16, ORD: 16, PeerToPeer: true, RTRSend: true}), false,
			StartFrame{Reply: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 16, PeerToPeer: true, RTRWrite: true, RTRRead: true}},
			0x7777,
		},
		{
			"ORD beyond our IRD", enhanced(Enhanced{IRD: 16, ORD: 17}), false,
			StartFrame{Reply: true, Reject: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 16}},
			MPAInsufficientIRD,
		},
		{"markers wanted", StartFrame{Revision: 1, Markers: true}, false, StartFrame{Reply: true, Reject: true, Revision: 1}, MPAStartup},
	} {
		if got, err := Answer(&c.req, local, c.crc); !reflect.DeepEqual(got, c.want) || causeOf(err) != c.err {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func TestAgree(t *testing.T) {
	req := StartFrame{Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 8, ORD: 16, PeerToPeer: true, RTRSend: true, RTRWrite: true}}
	reply := func(change func(*StartFrame)) StartFrame {
		r := StartFrame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 16, ORD: 8, PeerToPeer: true, RTRWrite: true}}
		change(&r)
		return r
	}
	for _, c := range []struct {
		name  string
		reply StartFrame
		want  Agreement
		err   Cause
	}{
		{"all fits", reply(func(*StartFrame) {}), Agreement{CRC: true, IRD: 8, ORD: 16, RTR: Write}, 0x7777},
		{"Send as RTR", reply(func(r *StartFrame) { r.Enhanced.RTRWrite, r.Enhanced.RTRSend = false, true }), Agreement{CRC: true, IRD: 8, ORD: 16, RTR: Send}, 0x7777},
		{"fewer Reads served", reply(func(r *StartFrame) { r.Enhanced.IRD = 2 }), Agreement{CRC: true, IRD: 8, ORD: 2, RTR: Write}, 0x7777},
		{"depth left open", reply(func(r *StartFrame) { r.Enhanced.IRD, r.Enhanced.ORD = DepthUnknown, DepthUnknown }), Agreement{CRC: true, IRD: 8, ORD: 16, RTR: Write}, 0x7777},
		{"no Reads served", reply(func(r *StartFrame) { r.Enhanced.IRD = 0 }), Agreement{CRC: true}, MPAInsufficientIRD},
		{"more Reads wanted", reply(func(r *StartFrame) { r.Enhanced.ORD = 9 }), Agreement{CRC: true}, MPAInsufficientIRD},
		{"no RTR", reply(func(r *StartFrame) { r.Enhanced.RTRWrite, r.Enhanced.RTRRead = false, true }), Agreement{CRC: true, IRD: 8, ORD: 16}, MPANoRTR},
		{"not peer to peer", reply(func(r *StartFrame) { r.Enhanced.PeerToPeer = false }), Agreement{CRC: true}, MPAStartup},
		{"revision 1", reply(func(r *StartFrame) { r.Revision = 1 }), Agreement{}, MPAStartup},
		{"no S", reply(func(r *StartFrame) { r.HasEnhanced = false }), Agreement{}, MPAStartup},
		{"markers", reply(func(r *StartFrame) { r.Markers = true }), Agreement{}, MPAStartup},
		{"rejected", reply(func(r *StartFrame) { r.Reject = true }), Agreement{}, NoTerminate},
	} {
		if got, err := Agree(&req, &c.reply); got != c.want || causeOf(err) != c.err {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	if got, err := Agree(&StartFrame{Revision: 1}, &StartFrame{Reply: true, Revision: 1}); got != (Agreement{}) || err != nil {
		t.Errorf("plain: %+v, %v", got, err)
	}
}
