package queuepair

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

// Owner is the state of a connection, with its lock.
type Owner interface {
	Lock()
	Unlock()
	// Heard notes that the peer is alive.
	Heard()
	// Violation notes that the peer has broken the rules. The connection ends.
	Violation(err error)
	// Lost says that the connection is gone; all that was sent or fetched has ended before.
	Lost(err error)
}

// Mover is what a protocol does with what comes, and with what has ended. The lock of the owner is held.
type Mover interface {
	// Receive takes one message, which is in b until it returns. c is its completion.
	Receive(b []byte, c *rdma.Completion)
	// Progress says that a part of what is fetched has come.
	Progress()
	// Ended is the end of an entry, which is the mover's again, unless EndFetch says that it is not.
	Ended(e *Entry)
}

// Link is one RDMA connection. Its fields and methods are for whoever holds the lock of its owner.
type Link struct {
	target *Target
	mover  Mover
	owner  Owner
	qp     rdma.QueuePair
	cq     rdma.CompletionQueue
	peer   string
	here   string

	domain  *domain   // the target's, or the connection's own
	recv    *receives // likewise
	returns []int     // slots to be posted again

	queue   manager.Queue
	entries []*Entry // by ID
	ws      [32]rdma.Work
	sgl     []rdma.SGE
	cs      [32]rdma.Completion
	batch   [32]rdma.Receive

	place   *list.Element // in Target.starting; guarded by Target.connMu
	leaving bool          // it was told to give way; guarded by Target.connMu
	proved  bool

	abandoned []*Entry // to be ended, as they will never be sent
	held      []*Entry // to be ended when the queue pair is gone; see EndFetch and unposted
	lost      error    // why the connection is dead, if this end knows
	timer     *time.Timer
	once      sync.Once

	making  bool // Accept is under way
	closing bool // disconnect when all is sent
	theirs  bool // the peer is to disconnect
	half    bool // Disconnect was called
	dead    bool
	gone    bool // the queue pair is closed
}

// Entry is something that is sent or fetched.
type Entry struct {
	manager.Item
	Owner  any  // the mover's
	Failed bool // not all of it was done: the connection has ended or will
}

// Accept answers a connection request with p, and makes l its connection: with room for work requests of that many
// commands, and for as many receives of its own, unless the device has them shared. owner is called when the connection can
// be made, and returns its owner. An error says why there is no connection; the request is answered then.
func (l *Link) Accept(t *Target, m Mover, req rdma.Request, commands int, p rdma.ConnParams, refusal []byte, owner func() Owner) error {
	l.target, l.mover = t, m
	l.peer, l.here = req.RemoteAddr().String(), req.LocalAddr().String()
	l.sgl = make([]rdma.SGE, max(2*max(t.read.Elements, t.write.Elements), 64))
	if err := l.open(commands); err != nil {
		l.close()
		return errors.Join(err, req.Reject(refusal))
	}
	t.came()
	l.making = true
	l.owner = owner()
	if err := req.Accept(l.qp, p); err != nil {
		l.teardown(err)
		return err
	}
	l.owner.Lock()
	defer l.owner.Unlock()
	l.made()
	t.starts(l)
	return nil
}

// made says that there is a connection. If it was to end meanwhile, the device is told once more: before, there was nothing that it could
// have ended.
func (l *Link) made() {
	if !l.making {
		return // it has ended
	}
	l.making = false
	switch {
	case l.dead:
		l.qp.Abort(l.lost)
	case l.half:
		l.qp.Disconnect()
	}
}

// worksPerCommand is how many work requests there is room for, for each command. Each takes a few, most of them one.
const worksPerCommand = 4

// open makes queues and the queue pair.
func (l *Link) open(commands int) (err error) {
	t := l.target
	work := min(t.limits.MaxWork, worksPerCommand*commands)
	if l.domain = t.domain; t.isolated {
		if l.domain, err = t.newDomain(); err != nil {
			return err
		}
	}
	if l.cq, err = t.cfg.Device.NewCompletionQueue(work+max(commands, sharedSlots), l.event); err != nil {
		return err
	}
	cfg := rdma.QueuePairConfig{
		Domain: l.domain.pd, SendCQ: l.cq, RecvCQ: l.cq, MaxWork: work,
		Disconnected: func(err error) { go l.teardown(err) },
	}
	if l.recv = t.shared; l.recv != nil {
		cfg.Receives = l.recv.queue
		if err = l.recv.again(); err != nil {
			return err
		}
	} else {
		cfg.MaxRecv = commands
		if l.recv, err = t.newReceives(l.domain, commands, nil); err != nil {
			return err
		}
	}
	if l.qp, err = t.cfg.Device.NewQueuePair(cfg); err != nil {
		return err
	}
	l.queue.Init(work)
	if l.recv != t.shared {
		if err = l.recv.postAll(l.qp); err != nil {
			return err
		}
	}
	l.cq.Arm()
	return nil
}

// Prove says that the peer has proved something: it need not give way to others.
func (l *Link) Prove() {
	if !l.proved {
		l.proved = true
		l.target.started(l)
	}
}

// event handles all completions there are. It is called by the provider.
func (l *Link) event() {
	l.owner.Lock()
	defer l.owner.Unlock()
	l.owner.Heard()
	for {
		if l.poll() == 0 && l.cq.Arm() {
			return
		}
	}
}

// poll handles some completions and returns how many.
func (l *Link) poll() int {
	n := l.cq.Poll(l.cs[:])
	for i := range l.cs[:n] {
		l.completed(&l.cs[i])
	}
	if len(l.returns) > 0 {
		var q poster = l.qp
		if l.recv == l.target.shared {
			q = l.recv.queue
		}
		if err := l.recv.post(q, l.returns, l.batch[:]); err != nil && !l.dead {
			l.Break(err)
		}
		l.returns = l.returns[:0]
	}
	return n
}

// receiveID marks the IDs of receives.
const receiveID = 1 << 63

func (l *Link) completed(c *rdma.Completion) {
	if c.Status != rdma.StatusOK && c.Status != rdma.StatusFlushed && !l.dead {
		err := c.Err
		if err == nil {
			err = fmt.Errorf("%v: %v", c.Op, c.Status)
		}
		l.Break(err)
	}
	switch {
	case c.ID == manager.Unsignaled:
		return
	case c.ID&receiveID == 0:
		e := l.entries[c.ID]
		e.Failed = e.Failed || c.Status != rdma.StatusOK
		if c.Op == rdma.OpRead {
			l.mover.Progress()
		}
		if l.queue.Completed(&e.Item) {
			l.done(e, e.Failed)
		}
		return
	}
	slot := int(c.ID &^ receiveID)
	if c.Status == rdma.StatusOK && !l.dead && !l.half {
		l.mover.Receive(l.recv.sgl[slot].Bytes[:c.Bytes], c)
	}
	if c.Status == rdma.StatusOK || l.recv == l.target.shared { // a message that has failed has used up its receive, too
		l.returns = append(l.returns, slot)
	}
}

// done ends e and what was fetched together with it.
func (l *Link) done(e *Entry, failed bool) {
	for e != nil {
		var behind *Entry
		if it := e.Joined(); it != nil {
			behind = l.entries[it.ID]
		}
		e.Failed = failed
		l.mover.Ended(e)
		e = behind
	}
}

// Enter gives e an ID for good.
func (l *Link) Enter(e *Entry) {
	e.ID = uint64(len(l.entries))
	l.entries = append(l.entries, e)
}

// Push queues an entry to be sent.
func (l *Link) Push(e *Entry) {
	e.Failed = false
	if l.dead {
		l.abandoned = append(l.abandoned, e)
		return
	}
	l.queue.Push(&e.Item)
}

// Flush sends what is queued.
func (l *Link) Flush() {
	for !l.dead {
		n := l.queue.Fill(l.ws[:], l.sgl)
		if n == 0 {
			break
		}
		k, err := l.qp.Post(l.ws[:n])
		if err != nil {
			l.unposted(l.ws[k:n])
			l.Break(err)
		}
		clear(l.ws[:n])
		for it := l.queue.Over(); it != nil; it = l.queue.Over() {
			l.done(l.entries[it.ID], err != nil)
		}
	}
	if l.dead {
		l.abandon()
	}
	if l.closing && !l.theirs && l.queue.Empty() && !l.dead {
		l.disconnect()
	}
}

// disconnect ends the connection after what is posted.
func (l *Link) disconnect() {
	if !l.half {
		l.half = true
		l.qp.Disconnect()
	}
}

// unposted holds the entries of work requests that were refused. The device may have taken others of the same entries, which are not signalled: it
// uses their memory until the queue pair is gone. A completion of each entry stays outstanding for ever, so that nobody else ends it.
func (l *Link) unposted(ws []rdma.Work) {
	for i := range ws {
		if ws[i].Flags&rdma.Signaled != 0 { // one of each entry
			l.held = append(l.held, l.entries[ws[i].ID])
		}
	}
}

// abandon ends what will never be sent.
func (l *Link) abandon() {
	l.queue.Abandon(func(it *manager.Item) { l.abandoned = append(l.abandoned, l.entries[it.ID]) })
	for len(l.abandoned) > 0 {
		list := l.abandoned
		l.abandoned = nil
		for _, e := range list {
			l.done(e, true)
		}
	}
}

// Break ends the use of the connection at once. The provider notices, and the owner is told.
func (l *Link) Break(err error) {
	if l.dead {
		return
	}
	l.dead = true
	l.lost = err
	l.qp.Abort(err)
}

// Blame is Break because of what the peer sent.
func (l *Link) Blame(err error) {
	if !l.dead {
		l.owner.Violation(err)
		l.Break(nil)
	}
}

// Dead reports whether the connection is not used any more.
func (l *Link) Dead() bool { return l.dead }

// HungUp reports whether the peer has ended the connection, as far as the device can see.
func (l *Link) HungUp() bool {
	if l.dead {
		return true
	}
	q, ok := l.qp.(rdma.PeerEnder)
	return ok && q.PeerEnded()
}

// QueuePair is that of a connection which has not ended.
func (l *Link) QueuePair() rdma.QueuePair { return l.qp }

// Ending says when a connection ends.
type Ending int

const (
	AtOnce   Ending = iota
	WhenSent        // all that was pushed
	WhenLeft        // by the peer, which disconnects
)

// lingerTime is how long a peer may take to receive what is sent, or to disconnect, before the connection is ended.
const lingerTime = 5 * time.Second

// Terminate ends the connection.
func (l *Link) Terminate(e Ending) {
	switch {
	case l.dead || l.closing && e != AtOnce:
	case e == AtOnce:
		l.Break(nil)
	default:
		l.closing, l.theirs = true, e == WhenLeft
		// A peer that takes nothing more does not keep the connection.
		l.timer = time.AfterFunc(lingerTime, func() {
			l.owner.Lock()
			defer l.owner.Unlock()
			if !l.dead {
				l.disconnect()
			}
		})
	}
}

// teardown ends the life of the connection, once. The provider has said that it is over, or it never began.
func (l *Link) teardown(err error) { l.once.Do(func() { l.tearDown(err) }) }

func (l *Link) tearDown(err error) {
	_ = l.qp.Close()
	l.owner.Lock()
	err = rdma.Reason(l.lost, err)
	l.making, l.dead, l.gone = false, true, true
	if l.timer != nil {
		l.timer.Stop()
	}
	for l.poll() > 0 { // all that was posted has completed
	}
	for _, e := range l.held {
		l.done(e, true)
	}
	l.held = nil
	l.abandon()
	l.owner.Lost(err)
	l.owner.Unlock()
	l.qp = nil
	l.close()
	l.target.started(l)
	l.target.went()
}

// close gives the device back what open has made.
func (l *Link) close() {
	if l.qp != nil {
		_ = l.qp.Close()
	}
	if l.cq != nil {
		_ = l.cq.Close()
	}
	if l.recv != nil && l.recv != l.target.shared {
		l.recv.release()
	}
	if l.domain != nil && l.target.isolated {
		if err := l.domain.close(); err != nil {
			l.target.cfg.Logger.Error("memory of a connection stays registered", l.target.cfg.Peer, l.peer, "reason", err)
		}
	}
}

// Peer is the address of the other end, and Local that of this one.
func (l *Link) Peer() string  { return l.peer }
func (l *Link) Local() string { return l.here }
