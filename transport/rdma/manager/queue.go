package manager

import "oneshot/transport/rdma"

// Queue is the send queue of a queue pair: what is to be sent, in order, and how much of it
// the queue pair can take. Everything that is posted on the queue pair goes through it. It
// is used by one goroutine at a time and allocates nothing.
type Queue struct {
	room        int // work requests that can still be posted
	most        int // so many messages in a row are not signalled
	silent      int // work requests posted since the last one that was signalled
	first, last *Item
	over        *Item // ended by their post; see Over
	overLast    *Item
}

// Item is an entry of a Queue: a transfer, a message, or a transfer and a message after it.
// It belongs to the queue from Push until Completed says that it is done, or Over returns it.
type Item struct {
	ID      uint64    // of its completions
	Request           // posted first; Left() == 0: none
	Message rdma.Work // an OpSend, if HasMessage; posted last. Signaled and ID are set by the queue.
	// HasMessage says that there is one. An item with neither is not to be pushed.
	HasMessage bool
	// Counted says that somebody counts those that have not left: it ends with its completion, though its message be inline.
	Counted bool

	next    *Item
	joined  *Item             // posted in the same descriptor, behind it
	signals [maxSignals]int32 // work requests that each completion to come stands for
	waiting int               // completions to come
	posted  bool              // all of it
}

// Unsignaled is the ID of the work requests that are not signalled. They have completions
// only when the connection ends, which are to be ignored; IDs of items differ from it.
const Unsignaled = 1 << 62

// maxSignals is how many completions of one item may be outstanding.
const maxSignals = 4

// Init makes q empty, for a queue pair of room work requests.
func (q *Queue) Init(room int) { *q = Queue{room: room, most: room / 4} }

// Push appends it. Its message has a completion of its own: it does not Advertise.
func (q *Queue) Push(it *Item) {
	it.next, it.joined, it.waiting, it.posted = nil, nil, 0, false
	if q.last == nil {
		q.first = it
	} else {
		q.last.next = it
	}
	q.last = it
}

// Empty reports whether nothing waits to be posted.
func (q *Queue) Empty() bool { return q.first == nil }

// Fill makes work requests out of what waits, as far as the queue pair, ws and sgl have room,
// and returns how many; all of them have to be posted. Those of one item come together if
// they fit. The last one of an item is signalled, and so is the last one that there is room
// for, so that going on never depends on what is not signalled.
//
// An item that is no more than an inline message is over when it is posted, for the device has copied
// it: nobody has to be woken for its completion. It is not signalled, unless a quarter of the room waits
// for the next completion already, or it is Counted.
//
// Transfers without a message that stand behind each other in the queue and whose remote ranges
// do so in the peer's memory share a descriptor, as far as the limits of the first one allow.
// Its completion ends them all: see Joined.
func (q *Queue) Fill(ws []rdma.Work, sgl []rdma.SGE) int {
	n := 0
	for q.first != nil && n < len(ws) && q.room > 0 {
		it := q.first
		if it.waiting == maxSignals {
			break
		}
		if it.inline() && q.silent < q.most {
			ws[n] = it.Message
			ws[n].ID = Unsignaled
			n, q.room, q.silent = n+1, q.room-1, q.silent+1
			q.end(it)
			continue
		}
		before := n
		k, used := it.Fill(ws[n:min(len(ws), n+q.room)], sgl)
		n, sgl, q.room = n+k, sgl[used:], q.room-k
		last := it // whose end the descriptor is
		if it.Left() == 0 {
			if !it.HasMessage {
				it.posted = true
				if k > 0 {
					last, sgl = q.join(it, &ws[n-1], sgl)
				}
			} else if n < len(ws) && q.room > 0 {
				ws[n] = it.Message
				n, q.room = n+1, q.room-1
				it.posted = true
			}
		}
		if n == before {
			break // sgl is used up
		}
		for i := before; i < n-1; i++ {
			ws[i].ID = Unsignaled
		}
		w := &ws[n-1]
		w.ID = it.ID
		w.Flags |= rdma.Signaled
		it.signals[it.waiting] = int32(n - before + q.silent)
		it.waiting++
		q.silent = 0
		if !it.posted {
			break
		}
		if q.first = last.next; q.first == nil {
			q.last = nil
		}
		last.next, it.next = nil, nil
	}
	return n
}

// inline reports whether it is no more than a message that the device copies.
func (it *Item) inline() bool {
	return it.HasMessage && !it.Counted && it.Message.Flags&rdma.Inline != 0 && it.count == 0
}

// end takes the first item off the queue, and leaves it for Over.
func (q *Queue) end(it *Item) {
	if q.first = it.next; q.first == nil {
		q.last = nil
	}
	it.next, it.posted = nil, true
	if q.over == nil {
		q.over = it
	} else {
		q.overLast.next = it
	}
	q.overLast = it
}

// Over returns the next item that has ended with its post, nil if there is none. To be called after the post of what Fill
// made, until it returns nil.
func (q *Queue) Over() *Item {
	it := q.over
	if it != nil {
		q.over, it.next = it.next, nil
	}
	return it
}

// join extends w, the last descriptor of it, by the transfers behind it in the queue that continue
// it. sgl is what is left behind w's list. It returns the last of them, or it, and the rest of sgl.
func (q *Queue) join(it *Item, w *rdma.Work, sgl []rdma.SGE) (*Item, []rdma.SGE) {
	size := uint64(0)
	for i := range w.SGL {
		size += uint64(len(w.SGL[i].Bytes))
	}
	last := it
	for x := it.next; x != nil && !x.HasMessage && x.continues(w, size, it.limits); x = x.next {
		used, ok := x.fillBehind(w, sgl, it.limits.Elements)
		if !ok {
			break
		}
		sgl = sgl[used:]
		size += x.size
		if last != it {
			last.next = nil
		}
		last.joined, last = x, x
		x.posted = true
	}
	return last, sgl
}

// Joined takes the item off it that was posted in the same descriptor behind it, nil if there is
// none. It is to be called when it is done, good or bad, for then that one is, too.
func (it *Item) Joined() *Item {
	x := it.joined
	it.joined = nil
	return x
}

// Completed takes a signalled completion of it, good or bad, and reports whether it was the
// last one: then the item is the caller's again.
func (q *Queue) Completed(it *Item) (done bool) {
	q.room += int(it.signals[0])
	if it.waiting--; it.waiting > 0 {
		copy(it.signals[:], it.signals[1:it.waiting+1])
		return false
	}
	return it.posted
}

// Abandon empties the queue of what will never be posted, after the connection has ended, and
// calls f with each item for which no completion is to come. Of the others it is the last
// completion that ends them.
func (q *Queue) Abandon(f func(*Item)) {
	for it := q.first; it != nil; {
		next := it.next
		it.next, it.posted = nil, true
		if it.waiting == 0 {
			f(it)
		}
		it = next
	}
	q.first, q.last = nil, nil
}
