package bytestream

import (
	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
)

// MaxQueued is how many answers and control PDUs may wait for the socket before no more input is taken. With Link.Heavy, what
// a peer can make a connection hold is bounded.
const MaxQueued = 512

// Out is the sending side: the answers and control PDUs that are to leave, in order, and the pieces of memory that those at the
// front consist of. An answer is cut into pieces when its turn comes, so that only what is about to leave has headers.
//
//	items   first ──── in Batch as a whole ──── made ──── waiting, or partly in Batch
type Out[T any] struct {
	iov.Batch
	Controls uint64 // control PDUs that have left

	items   []item[T] // items[first:] are outstanding
	first   int
	made    int
	weight  int  // bytes of the control PDUs among them
	blocked bool // the socket is full; the writer waits for room
	free    []*Control
}

// item is what to give back once Written has reached end, which is known when all of it is in Batch.
type item[T any] struct {
	end uint64
	t   *T
	c   *Control
}

// Control is the memory of a PDU that belongs to no command.
type Control struct{ Buf []byte }

const (
	// maxFreeControls is how many of them are kept for use again: an R2T for each command of a burst. maxFreeLen is how long one
	// of these is at most, so that all together have 16 KiB.
	maxFreeControls = maxFree
	maxFreeLen      = 256
	// controlLen is enough for most.
	controlLen = 128
)

// Control returns memory for a PDU, which is empty. Link.Send or Link.Answer takes it back.
func (x *Out[T]) Control() *Control {
	if n := len(x.free); n > 0 {
		c := x.free[n-1]
		x.free = x.free[:n-1]
		return c
	}
	return &Control{Buf: make([]byte, 0, controlLen)}
}

func (x *Out[T]) giveBack(c *Control) {
	x.weight -= len(c.Buf)
	if len(x.free) < maxFreeControls && cap(c.Buf) <= maxFreeLen {
		c.Buf = c.Buf[:0]
		x.free = append(x.free, c)
	}
}

// Outstanding is how many answers and control PDUs have not left as a whole.
func (x *Out[T]) Outstanding() int { return len(x.items) - x.first }

// Blocked reports whether the socket takes no more.
func (x *Out[T]) Blocked() bool { return x.blocked }

// Send queues a control PDU.
func (l *Link[T]) Send(c *Control) {
	l.Out.weight += len(c.Buf)
	l.Out.items = append(l.Out.items, item[T]{c: c})
	l.mover.Fill()
}

// Answer queues an answer, which is cut into pieces when its turn comes.
func (l *Link[T]) Answer(t *T) {
	l.Out.items = append(l.Out.items, item[T]{t: t})
	l.mover.Fill()
}

// Next returns the answer that is to be added to the batch next, after the control PDUs before it; nil: there is none, or what
// there is suffices for one writev. Made follows when all of it was added; if that was a part, Next returns it again.
func (x *Out[T]) Next() *T {
	for x.made < len(x.items) && len(x.Pending()) < iov.Max {
		it := &x.items[x.made]
		if it.t != nil {
			return it.t
		}
		x.Add(it.c.Buf)
		x.Made()
	}
	return nil
}

// Made says that all pieces of what Next has returned were added.
func (x *Out[T]) Made() {
	x.items[x.made].end = x.Queued
	x.made++
}

// write sends what it can without blocking; true: all of it.
func (l *Link[T]) write() bool {
	for {
		if !l.writeMade() {
			return false
		}
		if l.mover.Fill(); l.Out.Empty() {
			return true
		}
	}
}

// writeMade is write for what has been cut into pieces.
func (l *Link[T]) writeMade() bool {
	x := &l.Out
	for !x.Empty() {
		n, e := iov.Writev(l.sock.FD, x.Batch.Next())
		l.Writes++
		switch e {
		case 0:
			x.Advance(n)
			l.mover.Release()
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			l.broken()
			return false
		}
	}
	return true
}

// Left returns an answer that has left as a whole, which is the caller's from now on, and gives back the control PDUs before it; nil:
// there is no other one.
func (x *Out[T]) Left() *T {
	for x.first < x.made && x.items[x.first].end <= x.Written {
		it := x.take()
		if it.t != nil {
			return it.t
		}
		x.Controls++
		x.giveBack(it.c)
	}
	if x.first == len(x.items) {
		x.items, x.first, x.made = x.items[:0], 0, 0
	} else if x.first > MaxQueued {
		n := copy(x.items, x.items[x.first:])
		clear(x.items[n:])
		x.items, x.first, x.made = x.items[:n], 0, x.made-x.first
		x.Compact()
	}
	return nil
}

// Drop is Left for answers that will never leave, or not as a whole: sooner or later it returns all of them.
func (x *Out[T]) Drop() *T {
	for x.first < len(x.items) {
		it := x.take()
		x.made = max(x.made, x.first)
		if it.t != nil {
			return it.t
		}
		x.giveBack(it.c)
	}
	x.items, x.first, x.made = x.items[:0], 0, 0
	x.Abandon()
	return nil
}

// take takes the first item.
func (x *Out[T]) take() item[T] {
	it := x.items[x.first]
	x.items[x.first] = item[T]{}
	x.first++
	return it
}
