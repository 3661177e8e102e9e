package local

import (
	"errors"
	"sync"
	"time"

	"oneshot/internal/ring"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// link is two queue pairs that are connected with each other. One lock is enough for both: what one of them
// posts is done at once, in the memory of the other.
type link struct {
	mu    sync.Mutex // taken before receives.mu, window.mu, completionQueue.mu
	ends  [2]*half
	over  bool        // guarded by mu, like all of the halves that changes
	why   [2]error    // when it is over, and a half is out: what the ends are told
	timer *time.Timer // bounds the time of an end in good order
}

// half is one end of a link.
type half struct {
	link          *link
	q             *queuePair
	peer          *half
	local, remote Addr
	peerData      []byte
	reads         int

	sq      ring.Ring[pairWork] // what waits for a receive of the peer, and what is behind it
	leaving bool                // the owner has called Disconnect
	out     bool                // what the peer exposes is called for the first of sq, without the lock
	windows map[stag.STag]bound
	waiter  soft.Waiter  // for a receive of q
	got     soft.Receive // of the message under way
	dst     [][]byte     // memory that is reached
}

// pairWork is an element of the send queue. Its lists keep their memory for the next use.
type pairWork struct {
	id      uint64
	op      rdma.Opcode
	silent  bool // no completion if it ends well
	inv     bool // Send with Invalidate
	stag    stag.STag
	to      uint64
	segs    [][]byte
	regions []*soft.Region
	inline  []byte
	n       int // octets
	status  rdma.Status
	err     error
}

// peerError says that the other end has ended the connection because of something.
type peerError struct{ err error }

func (e *peerError) Error() string {
	return "local: the peer has ended the connection: " + e.err.Error()
}
func (e *peerError) Unwrap() error { return e.err }

// newLink connects the queue pair that has asked with q.
func newLink(r *request, q *queuePair, p *rdma.ConnParams) error {
	depth := func(v, most int) int {
		if v <= 0 || v > most {
			return most
		}
		return v
	}
	l := &link{}
	a := &half{link: l, q: r.from, local: Addr(r.from.dev.cfg.Name), remote: r.l.addr(), windows: make(map[stag.STag]bound)}
	b := &half{link: l, q: q, local: a.remote, remote: a.local, windows: make(map[stag.STag]bound)}
	a.peer, b.peer = b, a
	a.waiter.Wake, b.waiter.Wake = a.received, b.received
	a.peerData, b.peerData = append([]byte(nil), p.PrivateData...), r.p.PrivateData
	most := min(a.q.dev.cfg.MaxReads, b.q.dev.cfg.MaxReads)
	a.reads = min(depth(r.p.InitiatorDepth, most), depth(p.ResponderResources, most))
	b.reads = min(depth(p.InitiatorDepth, most), depth(r.p.ResponderResources, most))
	l.ends = [2]*half{a, b}
	l.mu.Lock() // nobody does anything before both are connected
	defer l.mu.Unlock()
	if !a.q.connect(func() { a.q.half.Store(a) }) {
		return rdma.ErrDisconnected
	}
	if !b.q.connect(func() { b.q.half.Store(b) }) {
		l.end([2]error{errAborted, errAborted})
		return rdma.ErrDisconnected
	}
	return nil
}

// post posts work requests, and then does them, as far as there are receives.
func (h *half) post(ws []rdma.Work) (n int, err error) {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	for ; n < len(ws) && err == nil; n++ {
		if err = h.postOne(ws, n); err != nil {
			n--
		}
	}
	if n > 0 {
		h.q.n.Doorbells.Add(1)
		h.pump()
	}
	return n, err
}

func (h *half) postOne(ws []rdma.Work, i int) error {
	switch {
	case h.link.over || h.leaving:
		return rdma.ErrDisconnected
	case h.sq.Len() >= h.q.maxWork:
		return rdma.ErrFull
	}
	w := h.sq.Next()
	*w = pairWork{segs: w.segs[:0], regions: w.regions[:0], inline: w.inline[:0]}
	what, err := h.prepare(w, &ws[i])
	if what != "" {
		return &rdma.WorkError{Index: i, Op: ws[i].Op, What: what}
	}
	if err == nil {
		h.sq.Tail++
	}
	return err
}

// prepare fills in w. It says what is wrong with p, or returns one of the errors of Post.
func (h *half) prepare(w *pairWork, p *rdma.Work) (what string, err error) {
	w.id, w.op, w.silent = p.ID, p.Op, p.Flags&rdma.Signaled == 0
	w.stag, w.to = stag.STag(p.RemoteSTag), p.RemoteOffset
	q := h.q
	if p.Op != rdma.OpSend && p.Flags&(rdma.Invalidate|rdma.Advertise|rdma.Close|rdma.Solicited) != 0 {
		return "flag that only a Send may have", nil
	}
	if p.ForEndpoints() {
		return "operation or flag that only an endpoint takes", nil
	}
	switch p.Op {
	case rdma.OpSend:
		switch p.Flags & (rdma.Invalidate | rdma.Advertise | rdma.Close) {
		case 0:
		case rdma.Invalidate:
			if w.inv, w.stag = true, stag.STag(p.STag); p.STag == 0 {
				return "STag 0", nil
			}
		default:
			return "one-shot RDMA, which was not agreed", nil
		}
		return h.gather(w, p), nil
	case rdma.OpWrite:
		return h.gather(w, p), nil
	case rdma.OpRead:
		if p.Flags&rdma.Inline != 0 {
			return "a Read cannot be inline", nil
		}
		w.segs, w.regions, w.n, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &q.domain.Domain, rdma.AccessLocalWrite, q.maxSGE)
		return what, nil
	case rdma.OpBind:
		return h.prepareBind(w, p)
	case rdma.OpLocalInvalidate:
		w.stag = stag.STag(p.STag)
		return h.prepareInvalidate(w.stag), nil
	}
	return "operation that cannot be posted", nil
}

// gather takes over the memory that is to be sent.
func (h *half) gather(w *pairWork, p *rdma.Work) (what string) {
	if p.Flags&rdma.Inline == 0 {
		w.segs, w.regions, w.n, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &h.q.domain.Domain, 0, h.q.maxSGE)
		return what
	}
	for i := range p.SGL {
		if w.n += len(p.SGL[i].Bytes); w.n > maxInline {
			return "too long to be inline"
		}
	}
	for i := range p.SGL {
		w.inline = append(w.inline, p.SGL[i].Bytes...)
	}
	if w.n > 0 {
		w.segs = append(w.segs, w.inline)
	}
	return ""
}

// prepareBind binds at once: the peer cannot know the STag before a later Send tells it.
func (h *half) prepareBind(w *pairWork, p *rdma.Work) (what string, err error) {
	win, ok := p.Window.(*window)
	if !ok || win.domain != h.q.domain {
		return "no window of this protection domain", nil
	}
	need, what := soft.BindNeeds(p)
	if what != "" {
		return what, nil
	}
	if w.segs, w.regions, _, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &h.q.domain.Domain, need, 1); what != "" {
		return what, nil
	}
	s, err := win.bind(h, w.regions[0], p.SGL[0].Bytes, p.Access)
	w.regions = w.regions[:0] // the window's pin is enough
	if errors.Is(err, errBound) || errors.Is(err, soft.ErrGone) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	p.STag = rdma.STag(s)
	p.PutStamp(p.STag)
	h.q.n.Binds.Add(1)
	return "", nil
}

// prepareInvalidate looks whether s may be invalidated by its owner, and notes that it will be.
func (h *half) prepareInvalidate(s stag.STag) (what string) {
	b, ok := h.windows[s]
	if !ok {
		if h.q.dev.memory.Invalidatable(s, &h.q.domain.Domain) {
			return ""
		}
		return "STag is neither of a window bound here nor of a region that may be invalidated"
	}
	b.window.mu.Lock()
	if b.window.tag == s {
		b.window.going = true
	}
	b.window.mu.Unlock()
	return ""
}

// received goes on with what the peer has sent: there are receives again.
func (h *half) received() {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	h.peer.pump()
}

// pump does what is posted, up to a Send for which the peer has no receive. The lock is held; it is let go for calls of an Exposed, and
// who makes such a call goes on with what was posted meanwhile.
func (h *half) pump() {
	for h.sq.Len() > 0 && !h.link.over && !h.out {
		w := h.sq.At(h.sq.Head)
		if w.op == rdma.OpSend && !h.peer.q.recv.Take(&h.peer.got, &h.peer.waiter) {
			return
		}
		err := h.do(w)
		if h.link.over { // since the lock was let go
			h.link.end(h.link.why)
			return
		}
		if err != nil {
			h.link.end(h.blame(err))
			return
		}
		w = h.sq.At(h.sq.Head) // the ring may have grown
		h.sq.Head++
		h.complete(w)
	}
	if h.leaving && !h.link.over && !h.out {
		h.link.end([2]error{})
	}
}

// offence is an error with the end that has caused it, which the other is told of.
type offence struct {
	error
	by *half
}

// blame returns what the ends are told of an error.
func (h *half) blame(err error) (told [2]error) {
	o, _ := errors.AsType[*offence](err)
	for i, e := range h.link.ends {
		if told[i] = o.error; e == o.by {
			told[i] = &peerError{o.error}
			e.q.n.Terminates.Add(1)
		}
	}
	return told
}

// fails ends the connection because of w: by says whose fault it is.
func (h *half) fails(w *pairWork, s rdma.Status, err error, by *half) error {
	w.status, w.err = s, err
	return &offence{err, by}
}

// do does what w asks for. The error is an *offence.
func (h *half) do(w *pairWork) error {
	if !soft.PinAll(w.regions) {
		return h.fails(w, rdma.StatusLocalProtection, soft.ErrGone, h)
	}
	defer soft.UnpinAll(w.regions)
	switch w.op {
	case rdma.OpSend:
		return h.doSend(w)
	case rdma.OpWrite:
		return h.reach(w, stag.RemoteWrite)
	case rdma.OpRead:
		return h.reach(w, stag.RemoteRead)
	case rdma.OpLocalInvalidate:
		h.q.dev.quiet(w.stag)
		h.unbind(w.stag)
		h.q.n.Invalidations.Add(1)
	}
	return nil
}

// reach copies between w's memory and that of the peer, or what the peer exposes.
func (h *half) reach(w *pairWork, op stag.Op) error {
	peer := h.peer.q
	ref, err := peer.stream.Acquire(op, w.stag, w.to, uint64(w.n))
	if err != nil {
		return h.fails(w, rdma.StatusRemoteAccess, err, h)
	}
	err = h.move(op, &ref, w.segs)
	peer.dev.drop(&ref)
	w = h.sq.At(h.sq.Head) // the ring may have grown
	if err != nil {
		return h.fails(w, rdma.StatusRemoteAccess, err, h)
	}
	to, from := &h.q.n, &peer.n
	to.MessagesOut.Add(1)
	from.MessagesIn.Add(1)
	if op == stag.RemoteWrite {
		to.BytesOut.Add(uint64(w.n))
		from.BytesIn.Add(uint64(w.n))
	} else {
		to.Reads.Add(1)
		to.MessagesIn.Add(1)
		from.MessagesOut.Add(1)
		to.BytesIn.Add(uint64(w.n))
		from.BytesOut.Add(uint64(w.n))
	}
	h.copied(w.n)
	return nil
}

// move copies between what r refers to and segs. The error is that of an Exposed, which may make others wait: so it is called without the
// lock.
func (h *half) move(op stag.Op, r *stag.Ref, segs [][]byte) error {
	if k, off := r.Keeper(); k != nil {
		h.out = true
		h.link.mu.Unlock()
		err := k.(*exposure).pass(op, segs, int64(off))
		h.link.mu.Lock()
		h.out = false
		return err
	}
	h.dst = r.Append(h.dst[:0], 0, r.Len())
	if op == stag.RemoteWrite {
		copyPieces(h.dst, segs)
	} else {
		copyPieces(segs, h.dst)
	}
	clear(h.dst)
	return nil
}

// copied counts a copy of n bytes.
func (h *half) copied(n int) {
	if n > 0 {
		h.q.n.Copies.Add(1)
		h.q.n.BytesCopied.Add(uint64(n))
	}
}

// doSend delivers a message to the receive that was taken.
func (h *half) doSend(w *pairWork) error {
	p := h.peer
	r := &p.got
	c := rdma.Completion{ID: r.ID, Op: rdma.OpReceive, Bytes: w.n, QueuePair: p.q}
	fail := func(s rdma.Status, err error, by *half) error {
		c.Status, c.Bytes, c.Err = s, 0, err
		p.q.recvCQ.Deliver(c)
		return h.fails(w, rdma.StatusRemoteOperation, err, by)
	}
	if w.n > r.N {
		return fail(rdma.StatusLocalLength, errTooLong, h)
	}
	if !soft.PinAll(r.Regions) {
		return fail(rdma.StatusLocalProtection, soft.ErrGone, p)
	}
	copyPieces(r.Segs, w.segs)
	soft.UnpinAll(r.Regions)
	h.copied(w.n)
	if w.inv {
		if _, err := p.q.stream.Invalidate(w.stag); err != nil {
			return fail(rdma.StatusFlushed, err, h)
		}
		p.q.dev.quiet(w.stag)
		p.unbind(w.stag)
		p.q.n.Invalidations.Add(1)
		c.Flags, c.STag = rdma.Invalidated, rdma.STag(w.stag)
	}
	h.q.n.MessagesOut.Add(1)
	h.q.n.BytesOut.Add(uint64(w.n))
	p.q.n.MessagesIn.Add(1)
	p.q.n.BytesIn.Add(uint64(w.n))
	p.q.recvCQ.Deliver(c)
	return nil
}

var errTooLong = errors.New("local: message is longer than its receive")

// copyPieces copies src to dst, which has room for it.
func copyPieces(dst, src [][]byte) {
	var to []byte
	for _, from := range src {
		for len(from) > 0 {
			if len(to) == 0 {
				to, dst = dst[0], dst[1:]
			}
			n := copy(to, from)
			to, from = to[n:], from[n:]
		}
	}
}

// complete tells the owner of w, if that is wanted.
func (h *half) complete(w *pairWork) {
	clear(w.segs)
	clear(w.regions)
	if w.silent && w.status == rdma.StatusOK {
		return
	}
	c := rdma.Completion{ID: w.id, Op: w.op, Status: w.status, QueuePair: h.q, Err: w.err}
	if w.status == rdma.StatusOK && w.op == rdma.OpRead {
		c.Bytes = w.n
	}
	h.q.sendCQ.Deliver(c)
}

// disconnect ends the link in good order when all that h has posted is done.
func (h *half) disconnect() {
	l := h.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || h.leaving {
		return
	}
	h.leaving = true
	if h.pump(); !l.over && l.timer == nil {
		l.timer = time.AfterFunc(h.q.dev.cfg.LingerTime, func() { h.abort(errLinger) })
	}
}

// abort ends the link at once.
func (h *half) abort(err error) {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	if h.link.over {
		return
	}
	h.link.end(h.blame(&offence{err, h.peer})) // the peer is told
}

// end ends the link, with what the ends are told: at once, or when the last call of an Exposed has returned. The lock is held.
func (l *link) end(why [2]error) {
	l.over, l.why = true, why
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.ends[0].out || l.ends[1].out {
		return
	}
	for i, h := range l.ends {
		if h.q.half.Load() == nil { // it was closed before it was connected
			continue
		}
		for ; h.sq.Len() > 0; h.sq.Head++ {
			w := h.sq.At(h.sq.Head)
			if w.status == rdma.StatusOK {
				w.status, w.err = rdma.StatusFlushed, why[i]
			}
			h.complete(w)
		}
		h.q.recv.Leave(&h.waiter)
		h.q.flushReceives(why[i])
		h.q.stream.End()
		for s := range h.windows {
			h.q.dev.quiet(s)
			h.unbind(s)
		}
		_ = h.q.stream.Free() // nothing refers to anything: references last as long as the lock is held
		h.q.finish(why[i])
	}
}
