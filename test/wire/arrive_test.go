package wire

import "testing"

// Segments may come early, again, and in part again.
func TestArrive(t *testing.T) {
	start := append(make([]byte, 19), 0) // of MPA, with no private data
	message := []byte{0, 22, 0x40, 0x40 | opSend}
	message = append(message, make([]byte, 14+2)...)
	message = append(message, "abcd"...)
	message = append(message, make([]byte, 4)...)
	stream := append(start, message...)
	s0 := uint32(1<<32 - 10)
	s := &side{next: s0}
	at := func(from, to int) octets { return octets{s0 + uint32(from), stream[from:to]} }
	var got [][]byte
	for _, g := range []octets{at(0, 10), at(30, 48), at(0, 10), at(5, 25), at(24, 31), at(40, 48)} {
		got = append(got, s.arrive(g)...)
	}
	if len(got) != 1 || string(got[0]) != "abcd" || len(s.early) != 0 || s.next != s0+48 {
		t.Errorf("%q, %d wait, the next is %d", got, len(s.early), s.next-s0)
	}
}
