package bytestream

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"oneshot/volume"
)

// store is a Placer: the memory of a store, which lends it now and then.
type store struct {
	t    *rapid.T
	unit int
	mem  []byte
	torn bool // a part of a block was placed
}

func (s *store) Place(at int, b []byte) {
	s.torn = s.torn || at%s.unit != 0 || len(b)%s.unit != 0
	copy(s.mem[at:], b)
}

func (s *store) BeginPlace(at, n int) volume.Placing {
	s.torn = s.torn || at%s.unit != 0 || n%s.unit != 0
	if rapid.IntRange(0, 3).Draw(s.t, "lends") == 0 {
		return volume.Placing{} // somebody else has the range
	}
	return volume.Placing{Segs: cut(s.t, s.mem[at:at+n], s.unit)}
}

// cut cuts b into segments of whole units.
func cut(t *rapid.T, b []byte, unit int) (segs [][]byte) {
	for len(b) > 0 {
		n := min(len(b), unit*rapid.IntRange(1, 5).Draw(t, "units"))
		segs, b = append(segs, b[:n]), b[n:]
	}
	return segs
}

// untouched is in memory that nothing was written to.
const untouched = 0xaa

// partly reports whether mem has nothing but the bytes of taken, each in its place, or is untouched.
func partly(mem, taken []byte) bool {
	for i, b := range mem {
		if b != untouched && (i >= len(taken) || b != taken[i]) {
			return false
		}
	}
	return true
}

// However a stream is cut, every byte of data ends where its command wants it and nowhere else, padding and what nobody takes
// are left out, and a digest that does not match is told.
func TestInput(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, Sizes{
			Len: rapid.SampledFrom([]int{64, 4096, 20000}).Draw(rt, "buffer"), Read: rapid.SampledFrom([]int{1, 16, 20000}).Draw(rt, "read"),
			Room: 16,
		})
		defer r.end()
		if rapid.Bool().Draw(rt, "poor") {
			r.pool = nil
		}
		type want struct {
			c        *command
			good     bool
			mem      []byte
			taken    []byte
			store    *store
			nothing  bool
			forgetAt int // bytes of the stream
		}
		var wants []want
		var stream []byte
		for id := range rapid.IntRange(1, 6).Draw(rt, "PDUs") {
			data := make([]byte, rapid.SampledFrom([]int{0, 1, 7, 40, 512, 1500, 9000}).Draw(rt, "len"))
			for i := range data {
				data[i] = byte(i*7 + id + 1)
			}
			w := want{good: true, forgetAt: -1}
			place := rapid.IntRange(0, len(data)).Draw(rt, "place")
			digest := rapid.Bool().Draw(rt, "digest")
			w.mem = bytes.Repeat([]byte{untouched}, len(data)+8)
			switch rapid.SampledFrom([]string{"memory", "store", "nobody"}).Draw(rt, "sink") {
			case "memory":
				w.c = new(command)
				w.c.sink.Fill(cut(rt, w.mem[:place], 1))
			case "store":
				digest = false
				unit := rapid.SampledFrom([]int{8, 512}).Draw(rt, "unit")
				place = place / unit * unit
				w.c, w.store = new(command), &store{t: rt, unit: unit, mem: w.mem[:place]}
				w.c.sink.Place(w.store, unit)
			case "nobody":
				place, w.nothing = 0, len(data) == 0
			}
			w.taken = data[:place]
			p := pduOf(rapid.IntRange(0, 4).Draw(rt, "lead"), rapid.IntRange(0, maxPad).Draw(rt, "pad"), digest, id, data, place)
			if w.nothing {
				p = pduOf(0, 0, false, id, nil, 0)
			}
			if digest && len(data) > 0 && rapid.Bool().Draw(rt, "spoiled") {
				w.good = false
				p[len(p)-1-rapid.IntRange(0, 3).Draw(rt, "where")] ^= 0x10
			}
			if w.c != nil && len(p) > headLen+1 && rapid.IntRange(0, 3).Draw(rt, "forgets") == 0 {
				w.forgetAt = len(stream) + rapid.IntRange(headLen, len(p)-1).Draw(rt, "forgotten")
			}
			stream = append(stream, p...)
			wants = append(wants, w)
			r.commands = append(r.commands, w.c)
		}
		// The stream goes out in pieces of any length, and up to where a command is forgotten.
		sent, forgotten := 0, map[*command]bool{}
		for sent < len(stream) {
			n := min(len(stream)-sent, rapid.SampledFrom([]int{1, 3, 30, 600, 5000, 30000}).Draw(rt, "piece"))
			for _, w := range wants {
				if w.forgetAt > sent {
					n = min(n, w.forgetAt-sent)
				}
			}
			if err := r.send(stream[sent : sent+n]); err != nil {
				rt.Fatal(err)
			}
			sent += n
			for _, w := range wants {
				if w.forgetAt == sent && r.In.Task == w.c {
					r.In.Forget(w.c)
					forgotten[w.c] = true
				}
			}
		}
		if r.In.busy || len(r.In.Bytes()) > 0 {
			rt.Fatalf("%d bytes are left unread, busy %v", len(r.In.Bytes()), r.In.busy)
		}
		arrived := r.arrived
		for i, w := range wants {
			if w.nothing {
				continue
			}
			if len(arrived) == 0 {
				rt.Fatalf("PDU %d has not arrived", i)
			}
			a := arrived[0]
			arrived = arrived[1:]
			if forgotten[w.c] {
				if a.c != nil {
					rt.Fatalf("PDU %d arrived for a command that had it forgotten", i)
				}
				if w.c.sink.Got > len(w.taken) || !partly(w.mem, w.taken) {
					rt.Fatalf("PDU %d, forgotten after %d bytes: other bytes", i, w.c.sink.Got)
				}
				continue
			}
			if a.c != w.c || a.good != w.good {
				rt.Fatalf("PDU %d: digest good %v, want %v, of its command %v", i, a.good, w.good, a.c == w.c)
			}
			if w.c != nil && w.c.sink.Got != len(w.taken) {
				rt.Fatalf("PDU %d: %d bytes taken, want %d", i, w.c.sink.Got, len(w.taken))
			}
			if !bytes.HasPrefix(w.mem, w.taken) || !partly(w.mem, w.taken) {
				rt.Fatalf("PDU %d: not the bytes that were sent, or more of them", i)
			}
		}
		if len(arrived) > 0 {
			rt.Fatalf("%d PDUs arrived that nobody sent", len(arrived))
		}
		for _, w := range wants {
			if w.store != nil && w.store.torn {
				rt.Fatal("a part of a block was placed")
			}
			if w.c != nil {
				w.c.sink.Reset()
			}
		}
	})
}

// A connection that has nothing unread holds no buffer; one with the beginning of a PDU holds as much as there is.
func TestIdleMemory(t *testing.T) {
	r := newRig(t, Sizes{Len: 64 << 10, Read: 64 << 10, Room: 4096})
	defer r.end()
	r.commands = []*command{nil}
	p := pduOf(0, 0, true, 0, make([]byte, 100), 0)
	for _, x := range []struct {
		bytes []byte
		holds int
	}{{p[:5], 5}, {p[5:], 0}} {
		if err := r.send(x.bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Look(); err != nil { // finds the socket empty
			t.Fatal(err)
		}
		if n := r.pool.Stats().Leases; n != 0 || len(r.In.buf) != x.holds || r.In.small != nil {
			t.Errorf("with %d bytes unread: %d leases, %d bytes of buffer", len(r.In.Bytes()), n, len(r.In.buf))
		}
	}
}

// Data that go to memory from the first read on take one system call per arrival, and are not copied through the buffer.
func TestDirect(t *testing.T) {
	r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	defer r.end()
	mem := make([]byte, 60000)
	c := new(command)
	c.sink.Fill([][]byte{mem})
	r.commands = []*command{c}
	p := pduOf(0, 0, false, 0, bytes.Repeat([]byte{7}, len(mem)), len(mem))
	if err := r.send(p[:headLen]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer.Write(p[headLen:]); err != nil {
		t.Fatal(err)
	}
	for r.unread() < len(p)-headLen {
		r.wait(unix.POLLIN)
	}
	reads := r.Reads
	if _, err := r.Look(); err != nil {
		t.Fatal(err)
	}
	if r.Reads != reads+1 || len(r.arrived) != 1 || mem[len(mem)-1] != 7 {
		t.Errorf("%d reads, %d PDUs arrived", r.Reads-reads, len(r.arrived))
	}
}

// copies is a store that counts the bytes that come to it by way of the buffer.
type copies struct {
	mem    []byte
	copied int
}

func (c *copies) Place(at int, b []byte) { c.copied += copy(c.mem[at:], b) }

func (c *copies) BeginPlace(at, n int) volume.Placing {
	return volume.Placing{Segs: [][]byte{c.mem[at : at+n]}}
}

// Of long data that follow others no more than ahead bytes come by way of the buffer. Short PDUs that follow them are read as
// many at a time as ever.
func TestLongData(t *testing.T) {
	const size, unit, pdus, small = 40 << 10, 512, 4, 1500
	r := newRig(t, Sizes{Len: 128 << 10, Read: 128 << 10, Room: 4096})
	defer r.end()
	// One look at a time takes so much that is there, which sockets hold.
	look := func(stream []byte, atOnce int) (looks int) {
		go func() {
			if _, err := r.peer.Write(stream); err != nil {
				t.Error(err)
			}
		}()
		for end := int(r.BytesIn) + len(stream); int(r.BytesIn) < end; looks++ {
			for r.unread() < min(atOnce, end-int(r.BytesIn)) {
				r.wait(unix.POLLIN)
			}
			if _, err := r.Look(); err != nil {
				t.Fatal(err)
			}
		}
		return looks
	}
	data := bytes.Repeat([]byte{5}, size)
	var stores []*copies
	var stream []byte
	for id := range pdus {
		c, s := new(command), &copies{mem: make([]byte, size)}
		c.sink.Place(s, unit)
		r.commands, stores = append(r.commands, c), append(stores, s)
		stream = append(stream, pduOf(0, 0, false, id, data, size)...)
	}
	first := len(stream) / pdus
	look(stream[:first], first)
	look(stream[first:], size+ahead)
	for i, s := range stores {
		if i > 0 && s.copied > ahead {
			t.Errorf("of the data of PDU %d %d bytes are copied, more than %d", i, s.copied, ahead)
		}
		if !bytes.Equal(s.mem, data) {
			t.Errorf("other data in the place of PDU %d", i)
		}
	}
	r.commands = append(r.commands, nil)
	short := bytes.Repeat(pduOf(0, 0, false, pdus, data[:20], 0), small)
	if n := look(short, len(short)); n > 2 || len(r.arrived) != pdus+small {
		t.Errorf("%d looks at short PDUs that have come, %d of %d of them", n, len(r.arrived)-pdus, small)
	}
}

// With no I/O memory left a connection goes on with a small buffer; one whose PDU does not fit into that ends and says why.
func TestNoMemory(t *testing.T) {
	r := newRig(t, Sizes{Len: 64 << 10, Read: 64 << 10, Room: 16})
	defer r.end()
	r.pool = nil
	got := make([]byte, 50000)
	c := new(command)
	c.sink.Fill([][]byte{got})
	r.commands = []*command{c}
	if err := r.send(pduOf(0, 0, true, 0, bytes.Repeat([]byte{9}, len(got)), len(got))); err != nil {
		t.Fatal(err)
	}
	if len(r.arrived) != 1 || !r.arrived[0].good || got[len(got)-1] != 9 {
		t.Fatal("data to memory of their own do not get by with a small buffer")
	}
	r.headLen = SmallLen + 1
	if err := r.send(make([]byte, r.headLen)); !errors.Is(err, errNoMemory) {
		t.Errorf("no memory for a header that a small buffer does not hold: %v", err)
	}
}
