package fabric

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"oneshot/transport/rdma"
)

const (
	// MessageLen is the most that one Send has, and Messages how many of them may wait here for who reads. Then the peer waits.
	MessageLen = 8 << 10
	Messages   = 64
	// SendLen is what may wait to be sent, but for the octets of Writes.
	SendLen = 256 << 10
	// InFlight is how many octets are posted that have not left, unless one Write is longer: nothing can overtake them.
	InFlight = 512 << 10
	// works are Writes and Sends that have not left, fetches are Reads.
	works   = 1024
	fetches = 64
	// maxWork is what a queue pair has posted at most: besides these what tells of receives.
	maxWork = works + fetches + Messages
	// batchMax is how many works are posted at once, and receives given back.
	batchMax = 64
)

// Link is a connection with a node: a stream of octets in each direction, and Writes and Reads of the other's arena by those who
// have a grant. One goroutine reads, always, and one at a time sends.
type Link struct {
	f     *Fabric
	card  *card
	arena *Arena
	there Name // the arena of the peer

	dom    rdma.Domain
	recvCQ rdma.CompletionQueue
	sendCQ rdma.CompletionQueue
	rq     receiver
	qp     rdma.QueuePair
	own    rdma.Region // the arena, for works of this end
	mem    rdma.Region // receives, and behind them the ring of what is sent
	frees  []func() error

	granted uint64        // the first grant to the peer; of who owns the arena
	heard   atomic.Int64  // when something came last, by time.Now().UnixNano()
	wake    chan struct{} // a token: there are messages
	room    chan struct{} // a token: something has left
	gone    chan struct{} // closed when the connection has ended
	told    error         // why; set before gone is closed

	keys // key.go

	// Of who reads.
	done    [batchMax]rdma.Completion
	waiting []rdma.Completion // of done, not read yet
	rest    []byte            // of the first of them
	vacant  []rdma.Receive    // to be given back
	owed    int               // receives of which the peer is to be told, where it is

	sending // send.go
}

// receiver is where receives are posted: a queue at which Sends wait for them (rdma.Limits.ReceiveWait), or that of the queue pair.
type receiver interface {
	PostReceive(rs []rdma.Receive) (int, error)
}

var errEnded = errors.New("the connection has ended")

// newLink makes a link that is not connected yet.
func newLink(f *Fabric, a *Arena, there Name) (*Link, error) {
	l := &Link{f: f, arena: a, there: there, wake: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{})}
	l.heard.Store(time.Now().UnixNano())
	if err := l.make(); err != nil {
		return nil, errors.Join(err, l.free())
	}
	return l, nil
}

func (l *Link) make() (err error) {
	if l.card, err = l.f.use(); err != nil {
		return err
	}
	dev := l.card.Device
	l.frees = append(l.frees, func() error { l.card.links.Done(); return nil })
	if l.dom, err = dev.NewDomain(); err != nil {
		return err
	}
	l.frees = append(l.frees, l.dom.Close)
	if l.recvCQ, err = dev.NewCompletionQueue(Messages, func() { signal(l.wake) }); err != nil {
		return err
	}
	l.frees = append(l.frees, l.recvCQ.Close)
	if l.sendCQ, err = dev.NewCompletionQueue(maxWork, l.harvestAll); err != nil {
		return err
	}
	l.frees = append(l.frees, l.sendCQ.Close)
	b, free, err := rdma.Alloc(dev, Messages*MessageLen+SendLen)
	if err != nil {
		return err
	}
	l.frees = append(l.frees, func() error { return free(b) })
	if l.mem, err = l.dom.Register(b, rdma.AccessLocalWrite); err != nil {
		return err
	}
	l.frees = append(l.frees, l.mem.Deregister)
	if l.own, err = l.dom.Register(l.arena.bytes, rdma.AccessLocalWrite); err != nil {
		return err
	}
	l.frees = append(l.frees, l.own.Deregister)
	var shared rdma.ReceiveQueue
	if !l.f.tells {
		if shared, err = dev.NewReceiveQueue(l.dom, Messages); err != nil {
			return err
		}
		l.frees = append(l.frees, shared.Close)
	}
	l.ring = b[Messages*MessageLen:]
	l.frees = append(l.frees, l.unkey, l.freeSinks) // when the queue pair has gone
	if l.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: l.dom, SendCQ: l.sendCQ, RecvCQ: l.recvCQ, MaxWork: maxWork, MaxRecv: Messages, Receives: shared,
		Disconnected: func(err error) {
			l.told = errEnded
			if err != nil {
				l.told = err
			}
			close(l.gone)
			signal(l.wake)
			signal(l.room)
		},
	}); err != nil {
		return err
	}
	l.frees = append(l.frees, l.qp.Close)
	if l.rq = l.qp; shared != nil {
		l.rq = shared
	}
	for i := range Messages {
		l.give(uint64(i))
	}
	l.credits, l.owed = told, -told // the peer knows of these, so less is owed than is given back
	return l.giveBack()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// give notes that the memory of a message is free.
func (l *Link) give(i uint64) {
	b := l.mem.Bytes()[i*MessageLen:][:MessageLen:MessageLen]
	l.vacant = append(l.vacant, rdma.Receive{ID: i, SGL: []rdma.SGE{{Bytes: b, Region: l.mem}}})
}

// giveBack lets the peer send as much as has been read.
func (l *Link) giveBack() error {
	n, err := l.rq.PostReceive(l.vacant)
	l.owed += n
	l.vacant = l.vacant[:0]
	return err
}

// Abort ends the link. It does not wait.
func (l *Link) Abort() { l.qp.Abort(nil) }

// Release ends the link, and frees all of it. When it returns, nothing of it reads or writes memory any more. Nobody uses the link, and it has
// no grant.
func (l *Link) Release() error { return l.free() }

// free frees what make has made, the last first.
func (l *Link) free() (err error) {
	for _, free := range slices.Backward(l.frees) {
		err = errors.Join(err, free())
	}
	return err
}

// Silence is for how long nothing has come.
func (l *Link) Silence() time.Duration { return time.Duration(time.Now().UnixNano() - l.heard.Load()) }

// Read reads from the stream. It returns what there is, or waits; what came before the end of the link is read before the error.
func (l *Link) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(l.rest) == 0 {
			if !l.next(n == 0) {
				break
			}
			continue
		}
		k := copy(b[n:], l.rest)
		n += k
		if l.rest = l.rest[k:]; len(l.rest) == 0 {
			l.give(l.waiting[0].ID)
			l.waiting = l.waiting[1:]
		}
	}
	if n == 0 && len(b) > 0 {
		return 0, l.told // set: next has seen the end
	}
	return n, nil
}

// next makes the next message the one to read. False: there is none; if waits is set, and never will be.
func (l *Link) next(waits bool) bool {
	for {
		if len(l.waiting) > 0 {
			c := &l.waiting[0]
			if c.Bytes == 0 {
				l.hear()
				l.give(c.ID)
				l.waiting = l.waiting[1:]
				continue
			}
			l.rest = l.mem.Bytes()[c.ID*MessageLen:][:c.Bytes]
			return true
		}
		if len(l.vacant) >= batchMax/4 && l.giveBack() != nil {
			l.Abort()
		}
		l.announce()
		ended := l.hasEnded()
		if n := l.recvCQ.Poll(l.done[:]); n > 0 {
			l.heard.Store(time.Now().UnixNano())
			l.waiting = l.done[:n]
			l.waiting = slices.DeleteFunc(l.waiting, func(c rdma.Completion) bool { return c.Status != rdma.StatusOK })
			continue
		}
		if ended || !waits {
			return false
		}
		l.await()
	}
}

func (l *Link) hasEnded() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// await returns when there may be messages, or the link has ended.
func (l *Link) await() {
	if len(l.vacant) > 0 && l.giveBack() != nil {
		l.Abort()
	}
	l.announce()
	if !l.recvCQ.Arm() {
		return
	}
	select {
	case <-l.wake:
	case <-l.gone:
	}
}
