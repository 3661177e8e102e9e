package bytestream

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/internal/crc32c"
	"oneshot/mem"
)

// headLen is the length of the header of a PDU of the tests: bytes of padding before and behind the data, whether a digest
// follows, the command, and the lengths of the data and of the part that somebody takes.
const headLen = 12

// rig is a connection whose far end is the test, and its mover: one that knows the PDUs of the tests. The test calls Look
// itself, so that nothing happens but what it does.
type rig struct {
	Link[command]
	t    testing.TB
	peer *net.TCPConn
	pool *mem.Pool // nil: there is no memory

	headLen   int        // how many bytes a header is waited for
	commands  []*command // by the number in a PDU
	arrived   []arrival
	onArrival func()
	left      []*command // whose answer has left as a whole
	lost      []*command // whose answer was abandoned

	mu      sync.Mutex
	changed sync.Cond // the lock was given back
}

// command takes the data of one PDU, and has an answer.
type command struct {
	sink   Sink
	answer [][]byte
	taken  int // pieces of the answer that are in the batch
}

type arrival struct {
	c    *command
	good bool
}

// newRig returns a connection that reads at most read bytes at once, besides data that go to their place.
func newRig(t testing.TB, sizes Sizes) *rig {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, peer: peer.(*net.TCPConn), pool: mem.NewPool(1 << 20), headLen: headLen}
	if err := r.Open(c.(*net.TCPConn), r, sizes); err != nil {
		t.Fatal(err)
	}
	r.changed.L = &r.mu
	r.Attach(r)
	r.Heavy = 1 << 20
	return r
}

// end ends the connection as its owner does, and looks for memory that is not given back.
func (r *rig) end() {
	r.End(nil)
	r.peer.Close()
	if r.pool != nil {
		if n := r.pool.Stats().Leases; n != 0 {
			r.t.Errorf("%d leases are not given back", n)
		}
	}
}

// send sends b, and has it looked at until all of it was read. It returns what Look returned.
func (r *rig) send(b []byte) error {
	want := r.BytesIn + uint64(len(b))
	if _, err := r.peer.Write(b); err != nil {
		r.t.Fatal(err)
	}
	for r.BytesIn < want {
		r.wait(unix.POLLIN)
		if _, err := r.Look(); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until the socket is ready.
func (r *rig) wait(events int16) {
	fds := []unix.PollFd{{Fd: int32(r.sock.FD), Events: events}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return
		}
	}
}

// pduOf is a PDU of the command whose number is id.
func pduOf(lead, pad int, digest bool, id int, data []byte, place int) []byte {
	b := []byte{byte(lead), byte(pad), 0, byte(id)}
	if digest {
		b[2] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = binary.BigEndian.AppendUint32(b, uint32(place))
	b = append(b, make([]byte, lead)...)
	b = append(b, data...)
	for range pad {
		b = append(b, 0xee)
	}
	if digest && len(data) > 0 {
		b = crc32c.Digest(0).Update(b[headLen+lead:]).AppendTo(b)
	}
	return b
}

// Lock implements Conn.
func (r *rig) Lock() { r.mu.Lock() }

// Unlock implements Conn.
func (r *rig) Unlock() {
	r.Flush()
	r.changed.Broadcast()
	r.mu.Unlock()
}

// await waits until f, which is called with the lock held, is true.
func (r *rig) await(f func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !f() {
		r.changed.Wait()
	}
}

// LeaseInput implements Conn.
func (r *rig) LeaseInput(n int) *mem.Lease {
	if r.pool == nil {
		return nil
	}
	return r.pool.Lease(n)
}

// Heard implements Conn.
func (r *rig) Heard() {}

// Lost implements Conn.
func (r *rig) Lost(error) {}

// Parse implements Mover.
func (r *rig) Parse() error {
	for {
		switch r.Step() {
		case Wait:
			return nil
		case Data:
			c, good := r.In.Done()
			r.arrived = append(r.arrived, arrival{c, good})
			if r.onArrival != nil {
				r.onArrival()
			}
		case Header:
			b := r.In.Bytes()
			if len(b) < r.headLen {
				return nil
			}
			g := Segment{Head: headLen, Lead: int(b[0]), Pad: int(b[1]), Digest: b[2] == 1, Len: int(binary.BigEndian.Uint32(b[4:]))}
			c := r.commands[b[3]]
			var s *Sink
			if c != nil {
				s = &c.sink
			}
			r.In.Begin(g, c, s, int(binary.BigEndian.Uint32(b[8:])))
		}
	}
}

// Blame implements Mover.
func (r *rig) Blame(err error) error { return err }

// Fill implements Mover.
func (r *rig) Fill() {
	for c := r.Out.Next(); c != nil; c = r.Out.Next() {
		r.Out.Add(c.answer[c.taken])
		if c.taken++; c.taken == len(c.answer) {
			r.Out.Made()
		}
	}
}

// Release implements Mover.
func (r *rig) Release() {
	for c := r.Out.Left(); c != nil; c = r.Out.Left() {
		r.left = append(r.left, c)
	}
}

// Abandon implements Mover.
func (r *rig) Abandon() {
	for c := r.Out.Drop(); c != nil; c = r.Out.Drop() {
		r.lost = append(r.lost, c)
	}
}
