package ddp

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestFindOneShot(t *testing.T) {
	want := OneShot{Flags: 0x7f, Window: 256}
	good := want.AppendTo(bytes.Clone(cmHeader))
	longer := bytes.Clone(good[:4+12])
	longer[4+5] = 6
	longer = append(longer, 1, 2, 3, 4, 5, 6, 7, 8) // words of a later version
	longer = binary.LittleEndian.AppendUint32(longer, CRC(0, longer[4:]))
	later := bytes.Clone(good[:4+12])
	later[4+4], later[4+6] = 2, 0xff // version 2, unknown flags
	later = binary.LittleEndian.AppendUint32(later, CRC(0, later[4:]))
	for name, b := range map[string][]byte{
		"as sent": good, "zero padded": append(bytes.Clone(good), 0, 0), "longer": longer, "later version": later,
	} {
		if got, ok := FindOneShot(b); !ok || got != want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "iSER alone": cmHeader, "cut": good[:19], "longer, cut": longer[:27],
	} {
		if _, ok := FindOneShot(b); ok {
			t.Errorf("%s: found", name)
		}
	}
	for i := 4; i < len(good); i++ { // magic, version 0, length, CRC
		b := bytes.Clone(good)
		b[i] ^= 1
		if _, ok := FindOneShot(b); ok {
			t.Errorf("octet %d changed: found", i)
		}
	}
	zero := bytes.Clone(good[:4+12])
	zero[4+4] = 0
	zero = binary.LittleEndian.AppendUint32(zero, CRC(0, zero[4:]))
	few := bytes.Clone(good[:4+8])
	few[4+5] = 3
	few = append(binary.LittleEndian.AppendUint32(few, CRC(0, few[4:])), 0, 0, 0, 0)
	for name, b := range map[string][]byte{"version 0": zero, "three words": few} {
		if _, ok := FindOneShot(b); ok {
			t.Errorf("%s: found", name)
		}
	}
}

func TestSelect(t *testing.T) {
	for _, c := range []struct {
		name         string
		offer, local OneShot
		want         OneShot
		ok           bool
	}{
		{"O1 gets O2", OneShot{0x7f, 256}, OneShot{0x77, 128}, OneShot{0x76, 128}, true},
		{"mode V if both have it", OneShot{0x7f, 8}, OneShot{0x7f, 256}, OneShot{0x7a, 8}, true},
		{"opcodes only", OneShot{0x75, 8}, OneShot{0x7f, 8}, OneShot{0x75, 8}, true},
		{"close only", OneShot{0x26, 8}, OneShot{0x7f, 8}, OneShot{0x26, 8}, true},
		{"no encoding in common", OneShot{0x75, 8}, OneShot{0x76, 8}, OneShot{}, false},
		{"no mode in common", OneShot{0x72, 8}, OneShot{0x76, 8}, OneShot{}, false},
		{"no feature in common", OneShot{0x16, 8}, OneShot{0x26, 8}, OneShot{}, false},
		{"reference check alone", OneShot{0x46, 8}, OneShot{0x76, 8}, OneShot{}, false},
	} {
		got, ok := Select(c.offer, c.local)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
		if ok {
			if err := CheckSelection(c.offer, true, got); err != nil {
				t.Errorf("%s: our own selection: %v", c.name, err)
			}
		}
	}
}

func TestCheckSelection(t *testing.T) {
	offer := OneShot{0x77, 256}
	for name, c := range map[string]struct {
		offered bool
		reply   OneShot
	}{
		"no Request container":    {false, OneShot{0x76, 128}},
		"mode not offered":        {true, OneShot{0x7a, 128}},
		"both encodings":          {true, OneShot{0x77, 128}},
		"no encoding":             {true, OneShot{0x74, 128}},
		"no mode":                 {true, OneShot{0x72, 128}},
		"no feature":              {true, OneShot{0x46, 128}},
		"window more than wanted": {true, OneShot{0x76, 257}},
	} {
		if err := CheckSelection(offer, c.offered, c.reply); causeOf(err) != MPAStartup {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckSelection(offer, true, OneShot{0x76, 256}); err != nil {
		t.Error(err)
	}
}

func TestFormatOf(t *testing.T) {
	for flags, want := range map[OneShotFlags]Format{
		0x76: {Encoding: EncodingFlags, Host: Host1, Advertise: true, Close: true},
		0x39: {Encoding: EncodingOpcodes, Header: HeaderValidated, Host: Host1, Advertise: true, Close: true},
	} {
		if got := (OneShot{Flags: flags}).Format(Host1); got != want {
			t.Errorf("%x: %+v", flags, got)
		}
	}
}
