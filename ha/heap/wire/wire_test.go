package wire

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"
)

func octets(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors compares with octets that were put together by hand, and sums of another program.
func TestVectors(t *testing.T) {
	p := Pointer{Addr: 0x508000000040, Key: 0xfff1a3b7, Generation: 7}
	m := Message{Op: Update, Status: Stale, Client: 0x1112131415161718, Number: 3, Pointer: p, Data: []byte("hello")}
	want := octets(t, "05040000 00000005 1112131415161718 0000000000000003 0000508000000040 fff1a3b7 00000007 68656c6c6f")
	if got := m.AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("message %x, want %x", got, want)
	}
	if got, err := Parse(want); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%x is read as %+v: %v", want, got, err)
	}

	g := Greeting{Name: "app"}
	for i := range g.Client {
		g.Client[i], g.Service[i] = byte(i), byte(16+i)
	}
	client, service := g.Proofs([]byte("secret"))
	if want := octets(t, "7ff39e2e925a877b82eaf1d7863bc362351b17c859029876c3a10a83646f356a"); !bytes.Equal(client[:], want) {
		t.Errorf("the client's proof is %x, want %x", client, want)
	}
	if want := octets(t, "a3c66986e7e5e72491fecfadc9d6245b3a3599867b22574c7fb0a04b701c1b1d"); !bytes.Equal(service[:], want) {
		t.Errorf("the service's proof is %x, want %x", service, want)
	}
	hello := HelloData(g.Name, g.Client)
	if want := octets(t, "01 000102030405060708090a0b0c0d0e0f 617070"); !bytes.Equal(hello, want) {
		t.Errorf("hello %x, want %x", hello, want)
	}

	w := Welcome{Proof: client, Primary: true, Base: 0x508000000000, Length: 1 << 20, Key: 0xfff1a3b7, Nodes: []string{"a:1", "bb:22"}}
	want = append(client[:], octets(t, "0000508000000000 0000000000100000 fff1a3b7 01 0000 02 03 613a31 05 62623a3232")...)
	if got := w.AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("welcome %x, want %x", got, want)
	}

	place := make([]byte, Unit)
	PutPlace(place, Header{Capacity: 32, Generation: 7, Seq: 0x0102030405060708, State: StateUsed}, []byte("hello"))
	want = octets(t, "00 00000500 00002000 000007da 5acb9101 02030405 06070800 00000200 00000068 656c6c6f")
	if got := place[:len(want)]; !bytes.Equal(got, want) {
		t.Errorf("place %x, want %x", got, want)
	}
	if text := p.String(); text != "os1:508000000040:fff1a3b7:7" {
		t.Errorf("pointer %s", text)
	}
}

// TestRefused has one thing wrong at a time.
func TestRefused(t *testing.T) {
	good := (&Message{Op: Insert, Data: []byte("x")}).AppendTo(nil)
	for name, change := range map[string]func(b []byte) []byte{
		"no operation":        func(b []byte) []byte { b[0] = 0; return b },
		"unknown operation":   func(b []byte) []byte { b[0] = byte(opEnd); return b },
		"unknown status":      func(b []byte) []byte { b[1] = byte(statusEnd); return b },
		"octet 2":             func(b []byte) []byte { b[2] = 1; return b },
		"octet 3":             func(b []byte) []byte { b[3] = 1; return b },
		"fewer octets":        func(b []byte) []byte { return b[:len(b)-1] },
		"more octets":         func(b []byte) []byte { return append(b, 0) },
		"a length of 4 GiB":   func(b []byte) []byte { b[4], b[5], b[6], b[7] = 255, 255, 255, 255; return b },
		"no whole head":       func(b []byte) []byte { return b[:MessageLen-1] },
		"nothing":             func([]byte) []byte { return nil },
		"a length of nothing": func(b []byte) []byte { b[7] = 0; return b },
	} {
		if m, err := Parse(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s: taken as %+v", name, m)
		}
	}

	w := Welcome{Nodes: []string{"a:1", "b:2"}}
	good = w.AppendTo(nil)
	if _, err := ParseWelcome(good); err != nil {
		t.Fatal(err)
	}
	const at = 32 + 20 // of the octet that says primary
	for name, change := range map[string]func(b []byte) []byte{
		"half a primary": func(b []byte) []byte { b[at] = 2; return b },
		"octet 1":        func(b []byte) []byte { b[at+1] = 1; return b },
		"octet 2":        func(b []byte) []byte { b[at+2] = 1; return b },
		"too many nodes": func([]byte) []byte {
			return (&Welcome{Nodes: make([]string, MaxNodes+1)}).AppendTo(nil)
		},
		"more nodes":        func(b []byte) []byte { b[at+3] = 3; return b },
		"fewer nodes":       func(b []byte) []byte { b[at+3] = 1; return b },
		"half an address":   func(b []byte) []byte { return b[:len(b)-1] },
		"a longer address":  func(b []byte) []byte { b[at+4] = 200; return b },
		"no whole head":     func(b []byte) []byte { return b[:welcomeLen-1] },
		"what nobody knows": func(b []byte) []byte { return append(b, 0) },
	} {
		if w, err := ParseWelcome(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s: taken as %+v", name, w)
		}
	}

	for what, b := range map[string][]byte{
		"another version": append([]byte{Version + 1}, make([]byte, 16)...),
		"half a nonce":    append([]byte{Version}, make([]byte, 15)...),
		"a long name":     HelloData(strings.Repeat("n", MaxName+1), Nonce{}),
		"nothing":         nil,
	} {
		if name, _, ok := ParseHello(b); ok {
			t.Errorf("a hello with %s is taken, of %q", what, name)
		}
	}
	if name, _, ok := ParseHello(HelloData(strings.Repeat("n", MaxName), Nonce{})); !ok || len(name) != MaxName {
		t.Errorf("the longest name is %d octets, %v", len(name), ok)
	}

	for _, text := range []string{
		"", "os1:", "os1:1:2", "os1:1:2:3:4", "os2:1:2:3", "os1:1:2:-3", "os1:g:2:3", "os1:1:100000000:3", "os1:1:2:4294967296",
		"os1:01:2:3", "os1:A:2:3", "os1:1:2:03", " os1:1:2:3", "os1:1:2:3 ", "os1:10000000000000000:2:3", "os1:1:2:+3",
	} {
		if p, err := ParsePointer(text); err == nil {
			t.Errorf("%q is taken as %+v", text, p)
		}
	}
}

// TestPlace: an object is read only as it was written, and each octet that changes is noticed.
func TestPlace(t *testing.T) {
	p := Pointer{Generation: 7}
	object := []byte("an object")
	place := make([]byte, 2*Unit)
	PutPlace(place, Header{Capacity: 2*Unit - HeaderLen, Generation: 7, Seq: 9, State: StateUsed}, object)
	if got, size, s := ReadPlace(place, p); s != OK || size != len(object) || !bytes.Equal(got, object) {
		t.Fatalf("%q, %d, %v", got, size, s)
	}
	for i := range HeaderLen + len(object) {
		if i >= placeState+4 && i < HeaderLen {
			continue // nothing is there
		}
		for bit := range 8 {
			b := bytes.Clone(place)
			b[i] ^= 1 << bit
			if got, _, s := ReadPlace(b, p); s == OK {
				t.Fatalf("bit %d of octet %d is another one, and %q is read", bit, i, got)
			}
		}
	}
	for _, c := range []struct {
		name string
		b    []byte
		p    Pointer
		want Status
		size int
	}{
		{"no whole header", place[:HeaderLen-1], p, Range, 0},
		{"the header alone", place[:HeaderLen], p, TooLong, len(object)},
		{"a part of the object", place[:HeaderLen+3], p, TooLong, len(object)},
		{"the header, of a later object", place[:HeaderLen], Pointer{Generation: 8}, Stale, 0},
		{"a later object", place, Pointer{Generation: 8}, Stale, 0},
		{"nothing", make([]byte, Unit), p, Stale, 0},
	} {
		if got, size, s := ReadPlace(c.b, c.p); s != c.want || size != c.size || got != nil {
			t.Errorf("%s: %q, %d, %v; want %d, %v", c.name, got, size, s, c.size, c.want)
		}
	}
	free := bytes.Clone(place)
	PutPlace(free, Header{Capacity: 2*Unit - HeaderLen, Generation: 7, Seq: 10, State: StateFree}, nil)
	if _, _, s := ReadPlace(free, p); s != Stale {
		t.Errorf("a deleted object: %v", s)
	}
}

// TestClasses: an object has the smallest place that it fits.
func TestClasses(t *testing.T) {
	for size := range MaxObject + 1 {
		c := ClassOf(size)
		if size+HeaderLen > PlaceLen(c) || c > 0 && size+HeaderLen <= PlaceLen(c-1) || c >= Classes {
			t.Fatalf("%d octets are in a place of %d", size, PlaceLen(c))
		}
	}
	if ClassOf(MaxObject+1) < Classes {
		t.Error("an object that is too long has a place")
	}
	for c := range Classes {
		h := Header{Capacity: uint32(PlaceLen(c) - HeaderLen)}
		if got, ok := h.Class(); !ok || got != c {
			t.Errorf("a place of class %d is one of class %d, %v", c, got, ok)
		}
		h.Size = h.Capacity + 1
		if _, ok := h.Class(); ok {
			t.Errorf("an object that is longer than its place of class %d is taken", c)
		}
	}
	for _, n := range []uint32{0, 31, 33, 95, 97, MaxPlace, 2*MaxPlace - HeaderLen, math.MaxUint32} {
		if c, ok := (&Header{Capacity: n}).Class(); ok {
			t.Errorf("a capacity of %d is one of class %d", n, c)
		}
	}
}

// FuzzParse: what is read is what was written, octet by octet.
func FuzzParse(f *testing.F) {
	f.Add((&Message{Op: Insert, Client: 1, Number: 2, Pointer: Pointer{3, 4, 5}, Data: []byte("data")}).AppendTo(nil))
	f.Add((&Welcome{Primary: true, Base: 1, Length: 2, Key: 3, Nodes: []string{"a:1", ""}}).AppendTo(nil))
	f.Add(HelloData("name", Nonce{1, 2, 3}))
	f.Add([]byte("os1:508000000040:fff1a3b7:7"))
	place := make([]byte, Unit)
	PutPlace(place, Header{Capacity: Unit - HeaderLen, Generation: 1, Seq: 1, State: StateUsed}, []byte("object"))
	f.Add(place)
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Parse(b); err == nil && !bytes.Equal(m.AppendTo(nil), b) {
			t.Errorf("the message %x is written as %x", b, m.AppendTo(nil))
		}
		if w, err := ParseWelcome(b); err == nil && !bytes.Equal(w.AppendTo(nil), b) {
			t.Errorf("the welcome %x is written as %x", b, w.AppendTo(nil))
		}
		if name, n, ok := ParseHello(b); ok && !bytes.Equal(HelloData(name, n), b) {
			t.Errorf("the hello %x is written as %x", b, HelloData(name, n))
		}
		if p, err := ParsePointer(string(b)); err == nil && p.String() != string(b) {
			t.Errorf("the pointer %q is written as %s", b, p)
		}
		for _, g := range []uint32{0, 1} {
			object, size, s := ReadPlace(b, Pointer{Generation: g})
			if (s == OK) != (object != nil) || s == OK && size != len(object) || s == TooLong && size <= len(b)-HeaderLen {
				t.Errorf("%x is read as %x, %d, %v", b, object, size, s)
			}
		}
	})
}
