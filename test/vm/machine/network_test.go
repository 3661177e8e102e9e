package machine

import (
	"bytes"
	"net"
	"testing"
)

// TestNetwork: what one machine sends gets to another one, and to the host's address; and nobody waits for a machine that takes nothing.
func TestNetwork(t *testing.T) {
	n, err := NewNetwork("10.9.9.1/24")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var ends []*Cable
	for number := byte(1); number <= 3; number++ {
		c, err := n.Cable(number)
		if err != nil {
			t.Fatal(err)
		}
		defer c.File.Close()
		ends = append(ends, c)
	}
	const header = 10 // of virtio: nothing is left to the receiver
	frame := func(to, from byte, kind uint16, payload []byte) []byte {
		f := append(make([]byte, header), hardware(to)...)
		f = append(append(f, hardware(from)...), byte(kind>>8), byte(kind))
		return append(f, payload...)
	}
	// receive returns the next frame of a kind.
	receive := func(c *Cable, kind uint16) []byte {
		t.Helper()
		b := make([]byte, 65536)
		for {
			got, err := c.File.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if f := b[header:got]; f[12] == byte(kind>>8) && f[13] == byte(kind) {
				return f
			}
		}
	}
	const experiment, arp = 0x88b5, 0x0806
	// Nobody reads at the second one, of which the bridge knows where it is.
	for _, f := range [][]byte{frame(9, 2, experiment, make([]byte, 46)), frame(9, 3, experiment, make([]byte, 46))} {
		if _, err := ends[f[header+11]-1].File.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	for range 5000 {
		if _, err := ends[0].File.Write(frame(2, 1, experiment, make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
	}
	text := bytes.Repeat([]byte("there"), 1700) // as long as a jumbo frame may be
	if _, err := ends[0].File.Write(frame(3, 1, experiment, text)); err != nil {
		t.Fatal(err)
	}
	for f := []byte(nil); !bytes.HasSuffix(f, text); {
		f = receive(ends[2], experiment)
	}
	// Who has 10.9.9.1? Tell 10.9.9.2.
	ask := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, hardware(3)...)
	ask = append(append(ask, 10, 9, 9, 2, 0, 0, 0, 0, 0, 0), 10, 9, 9, 1)
	f := frame(0, 3, arp, ask)
	copy(f[header:], net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	if _, err := ends[2].File.Write(f); err != nil {
		t.Fatal(err)
	}
	if answer := receive(ends[2], arp); !bytes.Equal(answer[6:12], hardware(0)) || answer[21] != 2 {
		t.Errorf("who asks for the host is told %x", answer)
	}
}
