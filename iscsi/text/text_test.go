package text

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	got, err := Parse([]byte("A=1\x00\x00B-c=x=y\x00D=\x00"))
	if want := []Pair{{"A", "1"}, {"B-c", "x=y"}, {"D", ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{
		"A", "A\x00", "=1\x00", "A=1", "A b=1\x00", "A\x01=1\x00", strings.Repeat("A", MaxKey+1) + "=1\x00", "A=" + strings.Repeat("1", MaxValue+1) + "\x00",
	} {
		if pairs, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%.20q is taken as %v", bad, pairs)
		}
	}
}

func TestCollector(t *testing.T) {
	var c Collector
	for _, piece := range []string{"A=", "1\x00B", "=2"} {
		if pairs, err := c.Add([]byte(piece), true); pairs != nil || err != nil {
			t.Fatalf("%q: %v %v", piece, pairs, err)
		}
	}
	if got, err := c.Add([]byte{0}, false); err != nil || !slices.Equal(got, []Pair{{"A", "1"}, {"B", "2"}}) {
		t.Errorf("%v %v", got, err)
	}
	if _, err := c.Add(make([]byte, MaxSequence), true); err != nil {
		t.Errorf("the longest sequence: %v", err)
	}
	if _, err := c.Add([]byte{0}, true); err == nil {
		t.Error("one more byte is taken")
	}
	large := Collector{Max: MaxSequence + 1}
	if _, err := large.Add(make([]byte, MaxSequence+1), true); err != nil {
		t.Errorf("with another bound: %v", err)
	}
	if _, err := large.Add([]byte{0}, true); err == nil {
		t.Error("one byte more than another bound is taken")
	}
}

func TestNumber(t *testing.T) {
	for s, want := range map[string]uint32{"0": 0, "8192": 8192, "0x10": 16, "0XfF": 255, "4294967295": 1<<32 - 1, "007": 7} {
		if n, ok := Number(s); !ok || n != want {
			t.Errorf("%s is %d, %v", s, n, ok)
		}
	}
	for _, s := range []string{"", "0x", "-1", "+1", "1_000", "4294967296", "12a", " 1", "0x1_0"} {
		if n, ok := Number(s); ok {
			t.Errorf("%q is taken as %d", s, n)
		}
	}
}

func TestBinary(t *testing.T) {
	for s, want := range map[string]string{"0x616263": "abc", "0X616263": "abc", "0x1": "\x01", "0bYWJj": "abc", "0BYQ==": "a", "0bYQ": "a", "0x": ""} {
		if b, ok := Binary(s); !ok || string(b) != want {
			t.Errorf("%s is %q, %v", s, b, ok)
		}
	}
	for _, s := range []string{"", "616263", "0xgg", "0b*", "0bYQ=", "abc"} {
		if b, ok := Binary(s); ok {
			t.Errorf("%q is taken as %q", s, b)
		}
	}
	if b, ok := Binary(FormatBinary([]byte{0, 1, 254})); !ok || !bytes.Equal(b, []byte{0, 1, 254}) {
		t.Errorf("%v %v", b, ok)
	}
}

// FuzzParse reads any text, and what it makes of it again.
func FuzzParse(f *testing.F) {
	f.Add([]byte("InitiatorName=iqn.x:y\x00SessionType=Normal\x00"))
	f.Add([]byte("\x00\x00A=\x00"))
	f.Add([]byte("A=0x10\x00B=0bYQ==\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pairs, err := Parse(data)
		if err != nil {
			return
		}
		var again []byte
		p, o := Defaults(), Offer{Params: Defaults(), Digests: []string{"None"}}
		for _, kv := range pairs {
			again = Append(again, kv.Key, kv.Value)
			if answer, _ := Negotiate(&p, &o, Leading, kv.Key, kv.Value); strings.ContainsRune(answer, 0) {
				t.Fatalf("%s is answered %q", kv.Key, answer)
			}
			Binary(kv.Value)
		}
		if second, err := Parse(again); err != nil || !slices.Equal(pairs, second) {
			t.Fatalf("%v becomes %v, %v", pairs, second, err)
		}
		if p.MaxBurstLength < 512 || p.MaxBurstLength > o.MaxBurstLength || p.MaxRecvDataSegmentLength < 512 {
			t.Fatalf("negotiated %+v", p)
		}
	})
}
