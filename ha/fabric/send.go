package fabric

import (
	"errors"
	"os"
	"sync"
	"time"

	"oneshot/internal/invariant"
	"oneshot/transport/rdma"
)

// Run is a part of the arena, which has the same place on the other node. It is written there, or read from there.
type Run struct {
	Addr, Len int64
	Grant     uint64 // of the other node to this one
}

// sending is what leaves. Writes and the octets of the stream are gathered, and posted at once: what is written before something is said
// is in the other's memory before it is heard.
//
//	ring   │ free │ sent, and not gone │ said, and not posted │ free │
//	              ^ tail               ^ posted               ^ head
type sending struct {
	ring  []byte
	head  uint64      // octets said; the place of one is its number modulo the ring's length
	batch []rdma.Work // not posted yet
	size  int         // octets of batch
	sges  [batchMax]rdma.SGE

	mu      sync.Mutex // a leaf
	tail    uint64     // octets of the ring that are free again
	used    int        // works that are posted and have not gone,
	flying  int        // and their octets
	posted  []left     // by completion, the oldest first
	first   int        // of posted
	reading map[uint64]fetch
	credits int    // Sends for which the peer has receives, where it tells
	reads   uint64 // IDs of Reads so far
	short   bool   // who sends waits for room
	took    [16]rdma.Completion
}

// left is what a completion stands for.
type left struct {
	works, octets int
	head          uint64
}

// fetch is a Read under way.
type fetch struct {
	done func()
	sink rdma.Region // of its own; nil: the arena is
}

// Bits of IDs.
const (
	isRead = 1 << 63
	tells  = 1 << 62 // of receives
)

// HasRoom says whether so many works with so many octets in all, of which said are of the stream, can be sent without waiting.
func (l *Link) HasRoom(n, octets, said int) bool {
	l.harvest()
	l.mu.Lock()
	defer l.mu.Unlock()
	n += len(l.batch) + said/MessageLen + 2
	return l.used+n <= works && l.hasCredit(n) && l.flying+l.size+octets <= InFlight && int(l.head-l.tail)+said <= len(l.ring)
}

// Size is how many octets Commit would post.
func (l *Link) Size() int { return l.size }

// Put writes a part of the arena to the other node's. The octets stay as they are until they have left.
func (l *Link) Put(r Run, patience time.Duration) error {
	if err := l.space(patience); err != nil {
		return err
	}
	stag, offset, err := l.at(r)
	if err != nil {
		l.Abort()
		return err
	}
	w := l.work(rdma.OpWrite, l.arena.bytes[r.Addr:r.Addr+r.Len], l.own)
	w.RemoteSTag, w.RemoteOffset = stag, offset
	return nil
}

// work adds a work of one piece of memory to the batch.
func (l *Link) work(op rdma.Opcode, b []byte, r rdma.Region) *rdma.Work {
	i := len(l.batch)
	l.sges[i] = rdma.SGE{Bytes: b, Region: r}
	l.size += len(b)
	l.batch = append(l.batch, rdma.Work{Op: op, SGL: l.sges[i : i+1 : i+1]})
	return &l.batch[i]
}

// space makes room for one more work in the batch.
func (l *Link) space(patience time.Duration) error {
	if len(l.batch) < batchMax && (!l.f.tells || len(l.batch) < told) {
		return nil
	}
	return l.Commit(patience)
}

// Say sends octets of the stream.
func (l *Link) Say(b []byte, patience time.Duration) error {
	for len(b) > 0 {
		if err := l.space(patience); err != nil {
			return err
		}
		at := int(l.head % uint64(len(l.ring)))
		n := min(len(b), MessageLen, len(l.ring)-at, l.vacantRing())
		if n == 0 {
			if err := l.Commit(patience); err != nil {
				return err
			}
			if err := l.wait(patience, func() bool { return l.head-l.tail < uint64(len(l.ring)) }); err != nil {
				return err
			}
			continue
		}
		l.work(rdma.OpSend, l.ring[at:at+copy(l.ring[at:at+n], b)], l.mem)
		l.head += uint64(n)
		b = b[n:]
	}
	return nil
}

// vacantRing is how much of the ring is free.
func (l *Link) vacantRing() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ring) - int(l.head-l.tail)
}

// Commit posts what was put and said. It waits for room, as long as patience allows; then the link ends.
func (l *Link) Commit(patience time.Duration) error {
	if len(l.batch) == 0 {
		return nil
	}
	n, octets, sends := len(l.batch), l.size, l.sends()
	last := &l.batch[n-1]
	last.Flags = rdma.Signaled
	if err := l.wait(patience, func() bool {
		return l.used+n <= works && l.hasCredit(sends) && (l.flying == 0 || l.flying+octets <= InFlight)
	}); err != nil {
		return err
	}
	l.mu.Lock()
	l.used += n
	l.credits -= sends
	l.flying += octets
	l.posted = append(l.posted, left{n, octets, l.head})
	l.mu.Unlock()
	k, err := l.qp.Post(l.batch)
	clear(l.batch)
	l.batch, l.size = l.batch[:0], 0
	if err != nil {
		l.Abort()
		return err
	}
	invariant.Check(k == n, "fabric: works were left out of a post without an error")
	return nil
}

// wait waits until room says that there is room, which it is asked with the lock held.
func (l *Link) wait(patience time.Duration, room func() bool) error {
	var late <-chan time.Time
	for {
		l.harvest()
		l.mu.Lock()
		ok := room()
		l.short = !ok
		l.mu.Unlock()
		if ok {
			return nil
		}
		if l.hasEnded() {
			return l.told
		}
		if !l.sendCQ.Arm() {
			continue
		}
		if late == nil {
			t := time.NewTimer(patience)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-l.room:
		case <-l.gone:
		case <-late:
			l.Abort()
			return os.ErrDeadlineExceeded
		}
	}
}

// harvest notes what has left.
func (l *Link) harvest() {
	var read []fetch
	l.mu.Lock()
	for n := len(l.took); n == len(l.took); {
		n = l.sendCQ.Poll(l.took[:])
		for i := range l.took[:n] {
			if f := l.hasLeft(&l.took[i]); f.done != nil {
				read = append(read, f)
			}
		}
	}
	l.mu.Unlock()
	for _, f := range read {
		if f.sink != nil && f.sink.Deregister() != nil { // the peer may have it still
			l.Abort()
			continue
		}
		f.done()
	}
}

// hasLeft takes a completion. What was to be told of a Read is returned. The lock is held.
func (l *Link) hasLeft(c *rdma.Completion) (read fetch) {
	switch {
	case c.Status != rdma.StatusOK: // the link ends
	case c.ID&isRead != 0:
		read = l.reading[c.ID]
		delete(l.reading, c.ID)
	case c.ID&tells != 0:
	default:
		p := l.posted[l.first]
		l.used, l.flying, l.tail = l.used-p.works, l.flying-p.octets, p.head
		if l.first++; l.first == len(l.posted) || l.first == works {
			l.posted = l.posted[:copy(l.posted, l.posted[l.first:])]
			l.first = 0
		}
	}
	return read
}

// harvestAll is the event of the completion queue of what leaves, which is armed while somebody waits for that.
func (l *Link) harvestAll() {
	for {
		l.harvest()
		l.mu.Lock()
		waits := l.short || len(l.reading) > 0
		l.mu.Unlock()
		signal(l.room)
		if !waits || l.sendCQ.Arm() {
			return
		}
	}
}

var errFetches = errors.New("too many Reads are under way")

// Fetch reads a part of the other node's arena into this one. done is called, without a lock that its caller may want, when it is there, and
// never if the link ends before that. Any goroutine may call Fetch.
func (l *Link) Fetch(r Run, done func()) error {
	stag, offset, err := l.at(r)
	if err != nil {
		return err
	}
	b := l.arena.bytes[r.Addr : r.Addr+r.Len]
	f, sink := fetch{done: done}, l.own
	if l.f.guards {
		if f.sink, err = l.dom.Register(b, rdma.AccessLocalWrite|rdma.AccessRemoteWrite); err != nil {
			return err
		}
		sink = f.sink
	}
	l.mu.Lock()
	if l.reading == nil {
		l.reading = make(map[uint64]fetch)
	}
	l.reads++
	id := l.reads | isRead
	if len(l.reading) >= fetches {
		err = errFetches
	} else {
		l.reading[id] = f
	}
	l.mu.Unlock()
	if err == nil {
		_, err = l.qp.Post([]rdma.Work{{
			ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: b, Region: sink}},
			RemoteSTag: stag, RemoteOffset: offset,
		}})
	}
	if err != nil {
		l.mu.Lock()
		delete(l.reading, id)
		l.mu.Unlock()
		if f.sink != nil {
			err = errors.Join(err, f.sink.Deregister())
		}
		return err
	}
	if !l.sendCQ.Arm() {
		l.harvestAll()
	}
	return nil
}
