package fabric

import (
	"errors"
	"sync"
	"sync/atomic"

	"oneshot/transport/rdma"
)

// Devices of the kernel (transport/rdma/verbs) choose the STags of memory themselves, and cannot take memory back from the middle of a Write:
//
//   - When memory is no longer registered, siw and rxe may still be placing what has come before. What every device promises is that nothing is
//     placed for a queue pair that has gone. So a link has one grant, which ends with the queue pair. Its memory is registered when it is granted:
//     before that the peer could have no STag that is good. Who is granted it again, and was not cut, goes on with it.
//   - A node learns the STag and the tagged offset from the other one, by a message (Key).
//   - A Send that finds no receive ends the connection over iWARP, and waits for a timer elsewhere. So a peer is told of receives, by
//     empty messages: each stands for a number of them that is always the same (told). The last one that it knows of is for such a message, or two
//     nodes that have sent as much as they may would wait for each other.
//   - Over iWARP the peer gets the STag of a Read's sink, and can write there, or read there on siw. There each Read has a registration of its own,
//     of no more than its sink, which ends before anybody looks at the data.

// Key is what a peer has to know of a grant.
type Key struct {
	STag rdma.STag
	Base uint64 // tagged offset of the first octet of the arena
}

// keys are those of a link, of which each end gives the other one.
type keys struct {
	theirs atomic.Pointer[Key] // what the peer has granted

	granting sync.Mutex // a leaf; guards what follows
	keyed    bool       // there is a grant, or was; or there cannot be one any more
	region   rdma.Region
}

// keyed is the grant of a link over a device that chooses STags.
type keyed struct{ *Link }

// Revoke implements rdma.Grant.
func (g keyed) Revoke() (quiet bool) {
	g.qp.Abort(errCut)
	return g.qp.Close() == nil
}

// Free implements rdma.Grant.
func (g keyed) Free() error { return errors.Join(g.qp.Close(), g.unkey()) }

var errCut = errors.New("the other node may not write here any more, and its connection ends with that")

var errKeyed = errors.New("this connection has ended, or has had a grant before, which ends with it")

// key grants the arena to the peer.
func (l *Link) key() (rdma.Grant, *Key, error) {
	l.granting.Lock()
	defer l.granting.Unlock()
	if l.keyed {
		return nil, nil, errKeyed
	}
	r, err := l.dom.Register(l.arena.bytes, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		return nil, nil, err
	}
	l.keyed, l.region = true, r
	return keyed{l}, &Key{r.STag(), r.Base()}, nil
}

// unkey ends the registration of the grant. The queue pair has gone.
func (l *Link) unkey() error {
	l.granting.Lock()
	defer l.granting.Unlock()
	r := l.region
	l.keyed, l.region = true, nil
	if r == nil {
		return nil
	}
	return r.Deregister()
}

// Learn takes the key of a grant, which the peer has told.
func (l *Link) Learn(k Key) { l.theirs.Store(&k) }

var errNoKey = errors.New("the other node has not granted its memory")

// at returns how the peer names a part of its arena.
func (l *Link) at(r Run) (rdma.STag, uint64, error) {
	if !l.f.tells {
		return l.there.stag(r.Grant), l.there.Base + uint64(r.Addr), nil
	}
	k := l.theirs.Load()
	if k == nil {
		return 0, 0, errNoKey
	}
	return k.STag, k.Base + uint64(r.Addr), nil
}

// freeSinks ends the registrations of Reads that were not done. The queue pair has gone.
func (l *Link) freeSinks() (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, f := range l.reading {
		delete(l.reading, id)
		if f.sink != nil {
			err = errors.Join(err, f.sink.Deregister())
		}
	}
	return err
}

// told is how many receives an empty message tells of, and how many a peer knows of at first.
const told = Messages / 2

// hasCredit says whether the peer is known to have receives for n Sends, and one more. mu is held.
func (l *Link) hasCredit(n int) bool { return !l.f.tells || l.credits > n }

// sends counts the Sends of the batch.
func (l *Link) sends() (n int) {
	for i := range l.batch {
		if l.batch[i].Op == rdma.OpSend {
			n++
		}
	}
	return n
}

// hear takes an empty message. It is called by who reads.
func (l *Link) hear() {
	l.mu.Lock()
	l.credits += told
	l.mu.Unlock()
	signal(l.room)
}

// announce tells the peer of receives. It is called by who reads.
func (l *Link) announce() {
	for l.f.tells && l.owed >= told && l.spend() {
		l.owed -= told
		if _, err := l.qp.Post([]rdma.Work{{ID: tells, Op: rdma.OpSend, Flags: rdma.Signaled}}); err != nil {
			l.Abort()
			return
		}
		l.harvest()
	}
}

// spend takes a receive of the peer for an empty message.
func (l *Link) spend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.credits == 0 {
		return false
	}
	l.credits--
	return true
}
