package iserhdr

import (
	"bytes"
	"testing"

	"oneshot/internal/hexdump"
)

var unhex = hexdump.Parse

// The headers of RFC 7145 §9.2, octet by octet.
func TestVectors(t *testing.T) {
	for name, c := range map[string]struct {
		h   Header
		hex string
	}{
		"no data": {Header{}, "10 000000 00000000 0000000000000000 00000000 0000000000000000"},
		"read":    {Header{Read: 0x1a2b3c01, ReadOffset: 0x7f0000001000}, "14 000000 00000000 0000000000000000 1a2b3c01 00007f0000001000"},
		"write":   {Header{Write: 0x0badf00d, WriteOffset: 8}, "18 000000 0badf00d 0000000000000008 00000000 0000000000000000"},
		"both":    {Header{Write: 1, WriteOffset: 2, Read: 3, ReadOffset: 1<<64 - 1}, "1c 000000 00000001 0000000000000002 00000003 ffffffffffffffff"},
	} {
		want := unhex(t, c.hex)
		if got := c.h.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
		if got, ok := Parse(append(want, 0xff)); !ok || got != c.h {
			t.Errorf("%s: %+v, %v; want %+v", name, got, ok, c.h)
		}
	}
}

func TestParseErrors(t *testing.T) {
	whole := Header{Write: 1}.AppendTo(nil)
	for i := range whole {
		if h, ok := Parse(whole[:i]); ok {
			t.Errorf("%d octets: %+v", i, h)
		}
	}
	for _, op := range []byte{0, OpHello, OpHelloReply, 0xf} {
		whole[0] = op<<4 | FlagWSV
		if h, ok := Parse(whole); ok {
			t.Errorf("opcode %x: %+v", op, h)
		}
	}
	// What is not said to be valid does not count.
	whole[0] = OpControl << 4
	if h, ok := Parse(whole); !ok || h != (Header{}) {
		t.Errorf("%+v, %v", h, ok)
	}
}

// What was parsed and is encoded again is the same to whoever parses it.
func FuzzRoundTrip(f *testing.F) {
	f.Add(Header{}.AppendTo(nil))
	f.Add(Header{Write: 1, WriteOffset: 2, Read: 3, ReadOffset: 4}.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := Parse(b)
		if !ok {
			return
		}
		again, ok := Parse(h.AppendTo(nil))
		// A flag may be set for STag 0, which is not valid.
		if h.Write == 0 {
			h.WriteOffset = 0
		}
		if h.Read == 0 {
			h.ReadOffset = 0
		}
		if !ok || again != h {
			t.Fatalf("%x: %+v, %+v", b, h, again)
		}
	})
}

func TestAllocs(t *testing.T) {
	b := make([]byte, 0, Len)
	if n := testing.AllocsPerRun(100, func() {
		h, _ := Parse(Header{Write: 1, Read: 2}.AppendTo(b[:0]))
		if h.Read != 2 {
			t.Fatal(h)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
