package bytestream

import (
	"bytes"
	"io"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"oneshot/internal/iov"
)

// Answers and control PDUs leave whole and in their order, however the socket takes them, and each answer is given back when its
// last byte is with the socket, not before.
func TestOutput(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
		defer r.end()
		var all, got []byte
		var answers []*command
		var ends []int // of the answers
		controls := 0
		r.mu.Lock()
		for i := range rapid.IntRange(1, 12).Draw(rt, "items") {
			if rapid.Bool().Draw(rt, "control") {
				c := r.Out.Control()
				if len(c.Buf) != 0 {
					rt.Fatal("the memory of a control PDU is not empty")
				}
				c.Buf = append(c.Buf, bytes.Repeat([]byte{byte(i)}, rapid.SampledFrom([]int{1, 48, 2000}).Draw(rt, "len"))...)
				all = append(all, c.Buf...)
				controls++
				r.Send(c)
			} else {
				c := new(command)
				for j := range rapid.SampledFrom([]int{1, 1, 2, 3, 40}).Draw(rt, "pieces") {
					b := bytes.Repeat([]byte{byte(i), byte(j)}, 40*j+1)
					c.answer, all = append(c.answer, b), append(all, b...)
				}
				answers, ends = append(answers, c), append(ends, len(all))
				r.Answer(c)
			}
			if rapid.IntRange(0, 3).Draw(rt, "flush") > 0 {
				continue
			}
			r.Flush()
			if !r.Out.Blocked() && r.Out.Outstanding() > 0 {
				rt.Fatalf("the socket has room, and %d are outstanding", r.Out.Outstanding())
			}
			for k, c := range r.left {
				if c != answers[k] || uint64(ends[k]) > r.Out.Written {
					rt.Fatalf("answer %d left, with %d bytes written", k, r.Out.Written)
				}
			}
			if !r.Out.Blocked() {
				b := make([]byte, len(all)-len(got))
				if _, err := io.ReadFull(r.peer, b); err != nil {
					rt.Fatal(err)
				}
				got = append(got, b...)
			}
			if r.Out.Blocked() {
				break // the goroutine that waits for room sends the rest
			}
		}
		r.Terminate(false)
		r.Unlock()
		rest, err := io.ReadAll(r.peer) // up to the end of our half: all has left
		if err != nil {
			rt.Fatal(err)
		}
		if got = append(got, rest...); !bytes.Equal(got, all) {
			rt.Fatalf("%d bytes of %d arrived, or others", len(got), len(all))
		}
		r.Lock()
		defer r.Unlock()
		if len(r.left) != len(answers) || r.Out.Controls != uint64(controls) || r.Out.weight != 0 {
			rt.Fatalf("%d of %d answers and %d of %d control PDUs left, which weigh %d", len(r.left), len(answers), r.Out.Controls, controls, r.Out.weight)
		}
	})
}

// What is queued for one flush leaves by one system call.
func TestBatch(t *testing.T) {
	r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	defer r.end()
	for range 100 {
		r.Answer(&command{answer: [][]byte{make([]byte, 48)}})
	}
	if r.Flush(); r.Writes != 1 || len(r.left) != 100 {
		t.Errorf("%d system calls for %d answers", r.Writes, len(r.left))
	}
}

// More answers than the socket takes at once arrive all the same, and in their order, also those that are queued while it is
// full, and when the connection is to end behind them.
func TestManyAnswers(t *testing.T) {
	r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	var all []byte
	answer := func(pieces int) {
		c := new(command)
		for range pieces {
			b := bytes.Repeat([]byte{byte(len(all) >> 10)}, 1024)
			c.answer, all = append(c.answer, b), append(all, b...)
		}
		r.Answer(c)
	}
	if err := r.tc.SetWriteBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	for range 10000 {
		answer(1)
	}
	answer(iov.Max + 5)
	if len(r.Out.Pending()) > 2*iov.Max {
		t.Errorf("%d pieces are made before any can leave", len(r.Out.Pending()))
	}
	r.Flush()
	if !r.Out.Blocked() || len(r.left) <= MaxQueued {
		t.Fatalf("the socket is full: %v; %d answers have left", r.Out.Blocked(), len(r.left))
	}
	if n := len(r.Out.items); n > r.Out.Outstanding()+MaxQueued {
		t.Errorf("%d answers are outstanding, and %d kept", r.Out.Outstanding(), n)
	}
	answer(1)
	r.Unlock()
	read := func() {
		b := make([]byte, len(all))
		if _, err := io.ReadFull(r.peer, b); err != nil || !bytes.Equal(b, all) {
			t.Fatalf("other bytes than those sent: %v", err)
		}
		r.await(func() bool { return r.Out.Outstanding() == 0 && !r.Out.Blocked() })
	}
	read()
	r.Lock()
	for all = nil; !r.Out.Blocked(); r.Flush() {
		answer(iov.Max)
	}
	r.Terminate(false)
	r.Unlock()
	read()
	if n, err := r.peer.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		t.Errorf("after the last answer: %d bytes, %v", n, err)
	}
	r.end()
}

// clog has the socket full of answers that the peer does not read, and more waiting than both ends of it can ever take: a socket
// that has no room now has some later, when the peer's end has acknowledged, or made room itself.
func (r *rig) clog() {
	const room = 64 << 10
	for _, err := range []error{r.tc.SetWriteBuffer(room), r.peer.SetReadBuffer(room)} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	answer := func() { r.Answer(&command{answer: [][]byte{make([]byte, room)}}) }
	for !r.Out.Blocked() {
		answer()
		r.Flush()
	}
	for range 64 {
		answer()
	}
}

// A peer that does not read its answers is not read either once enough of them wait, and then what it has sent takes no
// buffer. When it reads again, so do we.
func TestUnreadAnswers(t *testing.T) {
	for name, queue := range map[string]func(r *rig){
		"answers": func(r *rig) {
			for range MaxQueued {
				r.Answer(&command{answer: [][]byte{{1}}})
			}
		},
		"control PDUs": func(r *rig) {
			r.Heavy = 10000
			c := r.Out.Control()
			c.Buf = append(c.Buf, make([]byte, r.Heavy)...)
			r.Send(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
			r.commands = []*command{nil}
			r.Lock()
			r.clog()
			queue(r)
			r.Unlock()
			over := make(chan error, 1)
			if _, err := r.peer.Write(pduOf(0, 0, true, 0, []byte("data"), 0)); err != nil {
				t.Fatal(err)
			}
			r.wait(unix.POLLIN)
			go func() { over <- r.Read(r.Look) }()
			r.await(func() bool { return r.paused })
			r.Lock()
			if len(r.arrived) > 0 || !r.Stuck() || r.In.lease != nil || r.In.small != nil {
				t.Errorf("%d PDUs arrived, stuck %v, buffer %v", len(r.arrived), r.Stuck(), r.In.lease != nil)
			}
			r.Unlock()
			go io.Copy(io.Discard, r.peer)
			r.await(func() bool { return len(r.arrived) == 1 })
			_ = r.peer.CloseWrite()
			if err := <-over; err != nil {
				t.Error(err)
			}
			r.end()
		})
	}
}

// While as many answers wait as may, PDUs that have come are not handled; they are as soon as the answers have left, though
// nothing more comes.
func TestStalled(t *testing.T) {
	r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	r.commands, r.Heavy, r.Withhold = []*command{nil}, 1, true
	r.onArrival = func() {
		c := r.Out.Control()
		c.Buf = append(c.Buf, 0)
		r.Send(c)
	}
	p := pduOf(0, 0, false, 0, []byte("data"), 0)
	if err := r.send(bytes.Repeat(p, 3)); err != nil || len(r.arrived) != 1 {
		t.Fatalf("%v, %d PDUs arrived", err, len(r.arrived))
	}
	r.Withhold = false
	r.Flush()
	for n := 1; n < 4; n++ {
		if len(r.arrived) != min(n, 3) {
			t.Errorf("%d PDUs arrived, want %d", len(r.arrived), n)
		}
		if _, err := r.Look(); err != nil {
			t.Fatal(err)
		}
	}
	r.end()
}

// A connection that is ended at once sends nothing more, and gives its answers back; what is queued for one that ends when all
// has left arrives, and what its peer sends meanwhile is nobody's.
func TestTerminate(t *testing.T) {
	r := newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	r.commands = []*command{nil}
	c := &command{answer: [][]byte{[]byte("late")}}
	r.Withhold = true
	r.Answer(c)
	r.Terminate(false)
	if err := r.send(pduOf(0, 0, false, 0, []byte("nobody's"), 0)); err != nil || len(r.arrived) > 0 {
		t.Errorf("%v, %d PDUs arrived after the end", err, len(r.arrived))
	}
	if r.Withhold = false; r.Writes > 0 {
		t.Error("an answer that is withheld was sent")
	}
	r.Flush()
	if b, err := io.ReadAll(r.peer); string(b) != "late" || err != nil || !r.Shut() || len(r.left) != 1 {
		t.Errorf("the peer reads %q, %v; %d answers have left", b, err, len(r.left))
	}
	r.end()

	r = newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	r.Withhold = true
	r.Answer(&command{answer: c.answer})
	if r.end(); len(r.lost) != 1 {
		t.Error("the end of a connection has not given back its answer")
	}

	r = newRig(t, Sizes{Len: 4096, Read: 4096, Room: 16})
	r.Withhold = true
	r.Answer(&command{answer: c.answer})
	r.Terminate(true)
	r.Withhold = false
	r.Flush()
	if b, err := io.ReadAll(r.peer); len(b) > 0 || err != nil || len(r.lost) != 1 || len(r.left) != 0 {
		t.Errorf("the peer reads %q, %v; %d answers are lost", b, err, len(r.lost))
	}
	if _, err := r.Look(); err != errEnded {
		t.Errorf("a look after the end: %v", err)
	}
	r.end()
}

// PDUs that have come and were not handled for want of room in the output are handled later, though there is no I/O memory any more: here
// they are just as long as a small buffer.
func TestStalledWithoutMemory(t *testing.T) {
	r := newRig(t, Sizes{Len: 64 << 10, Read: 64 << 10, Room: 4096})
	r.commands, r.Heavy, r.Withhold = []*command{nil}, 1, true
	r.onArrival = func() {
		c := r.Out.Control()
		c.Buf = append(c.Buf, 0)
		r.Send(c)
	}
	p := pduOf(0, 0, false, 0, []byte("data"), 0)
	p = append(p, pduOf(0, 0, false, 0, make([]byte, SmallLen-headLen), 0)...)
	if _, err := r.peer.Write(p); err != nil {
		t.Fatal(err)
	}
	for r.unread() < len(p) {
		r.wait(unix.POLLIN)
	}
	for range 2 { // reads, and finds the output full
		if _, err := r.Look(); err != nil {
			t.Fatal(err)
		}
	}
	pool := r.pool
	r.pool, r.Withhold = nil, false
	r.Flush()
	if _, err := r.Look(); err != nil || len(r.arrived) != 2 {
		t.Errorf("%v, %d PDUs arrived", err, len(r.arrived))
	}
	r.pool = pool
	r.end()
}
