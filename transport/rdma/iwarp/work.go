package iwarp

import (
	"errors"

	"oneshot/ddp"
	"oneshot/internal/iov"
	"oneshot/internal/ring"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// wqe is an element of the send queue. Its lists keep their memory for the next use.
type wqe struct {
	id       uint64
	op       rdma.Opcode
	flags    rdma.Flags
	silent   bool // no completion if it ends well
	held     bool // counted in the table of what the peer has advertised
	internal bool // not posted by the owner
	pinned   bool
	done     bool // complete, except that its octets have to leave
	status   rdma.Status
	err      error

	msg     ddp.Message
	stag    stag.STag // in the header: remote, to invalidate, to close, advertised
	at      stag.At   // of stag in queuePair.peer, if held
	to      uint64
	segs    [][]byte
	regions []*soft.Region
	n       int // octets
	cur     iov.Cursor
	off     int    // octets framed
	end     uint64 // tx.out.Queued when all of it is framed
	inline  []byte
}

// sendQueue holds posted work: [Head, sent) has left and waits for Responses, [sent, cur) is framed
// and has to leave, [cur, Tail) is not framed yet.
type sendQueue struct {
	ring.Ring[wqe]
	sent, cur uint32
	reads     []uint32 // positions of Reads without their Response, in order
	msn       uint32   // of the last Send
	readMSN   uint32
	stalled   bool // a LocalInvalidate, the element before cur, waits for references to be released
}

// next returns the free slot after the last element, without adding it; nil: the queue has most elements.
func (s *sendQueue) next(most uint32) *wqe {
	if uint32(s.Len()) >= most {
		return nil
	}
	w := s.Next()
	segs, regions, inline := w.segs[:0], w.regions[:0], w.inline[:0]
	*w = wqe{} // a literal that holds the lists would be made elsewhere and copied
	w.segs, w.regions, w.inline = segs, regions, inline
	return w
}

func (s *sendQueue) add(most uint32) *wqe {
	w := s.next(most)
	s.Tail++
	return w
}

// readyToReceive makes w the zero-length message of RFC 6581 §9.2.
func (w *wqe) readyToReceive(m ddp.Message) {
	w.internal, w.silent, w.msg = true, true, m
	switch m {
	case ddp.Write:
		w.op = rdma.OpWrite
	case ddp.ReadRequest:
		w.op = rdma.OpRead
	default:
		w.op = rdma.OpSend
	}
}

// Post implements rdma.QueuePair.
func (q *queuePair) Post(ws []rdma.Work) (n int, err error) {
	q.mu.Lock()
	for n < len(ws) {
		if err = q.post(ws, n); err != nil {
			break
		}
		n++
	}
	q.n.Posts.Add(1)
	q.n.Works.Add(uint64(n))
	if n > 0 {
		q.send()
	}
	q.unlock()
	if n > 0 {
		q.notify()
	}
	return n, err
}

func (q *queuePair) post(ws []rdma.Work, i int) error {
	if !q.is().posts {
		return rdma.ErrDisconnected
	}
	w := q.sq.next(q.maxWork)
	if w == nil {
		return rdma.ErrFull
	}
	p := &ws[i]
	w.id, w.op, w.flags = p.ID, p.Op, p.Flags
	w.silent = p.Flags&rdma.Signaled == 0
	what, err := q.prepare(w, p)
	if what != "" {
		return &rdma.WorkError{Index: i, Op: p.Op, What: what}
	}
	if err != nil {
		return err
	}
	q.sq.Tail++
	return nil
}

// prepare fills in w from p. what says what is wrong with p; err is one of the errors of Post.
func (q *queuePair) prepare(w *wqe, p *rdma.Work) (what string, err error) {
	const sendOnly = rdma.Invalidate | rdma.Advertise | rdma.Close | rdma.Solicited
	if p.Op != rdma.OpSend && p.Flags&sendOnly != 0 {
		return "flag that only a Send may have", nil
	}
	if p.ForEndpoints() {
		return "operation or flag that only an endpoint takes", nil
	}
	switch p.Op {
	case rdma.OpSend:
		return q.prepareSend(w, p)
	case rdma.OpWrite:
		w.msg, w.stag, w.to = ddp.Write, stag.STag(p.RemoteSTag), p.RemoteOffset
		if what := q.gather(w, p); what != "" {
			return what, nil
		}
		return q.hold(w, (*stag.Peer).PostWrite), nil
	case rdma.OpRead:
		return q.prepareRead(w, p), nil
	case rdma.OpBind:
		return q.prepareBind(w, p)
	case rdma.OpLocalInvalidate:
		w.stag = stag.STag(p.STag)
		if !q.invalidatable(w.stag) {
			return "STag is neither of a window bound here nor of a region that may be invalidated", nil
		}
		q.invalidating(w.stag)
		return "", nil
	}
	return "operation that cannot be posted", nil
}

// gather takes over the list of memory to send.
func (q *queuePair) gather(w *wqe, p *rdma.Work) (what string) {
	if p.Flags&rdma.Inline == 0 {
		w.segs, w.regions, w.n, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &q.domain.Domain, 0, q.maxSGE)
		return what
	}
	n := 0
	for i := range p.SGL {
		n += len(p.SGL[i].Bytes)
	}
	if n > maxInline {
		return "too long to be inline"
	}
	for i := range p.SGL {
		w.inline = append(w.inline, p.SGL[i].Bytes...)
	}
	if w.n = n; n > 0 {
		w.segs = append(w.segs, w.inline)
	}
	return ""
}

func (q *queuePair) prepareSend(w *wqe, p *rdma.Work) (what string, err error) {
	if what := q.gather(w, p); what != "" {
		return what, nil
	}
	solicited := p.Flags&rdma.Solicited != 0
	switch p.Flags & (rdma.Invalidate | rdma.Advertise | rdma.Close) {
	case 0:
		w.msg = ddp.Send
		if solicited {
			w.msg = ddp.SendSE
		}
		return "", nil
	case rdma.Invalidate:
		w.msg, w.stag = ddp.SendInvalidate, stag.STag(p.STag)
		if solicited {
			w.msg = ddp.SendSEInvalidate
		}
		return q.holdClose(w, false), nil
	case rdma.Advertise:
		w.msg, w.silent = ddp.SendAdvertise, true
		return q.prepareAdvertise(w, p)
	case rdma.Close:
		w.msg, w.stag = ddp.SendClose, stag.STag(p.STag)
		if q.shot == nil || !q.shot.Close || q.format.Host != ddp.Host2 {
			return "the peer has not agreed to close", nil
		}
		return q.holdClose(w, true), nil
	}
	return "more than one of Invalidate, Advertise and Close", nil
}

func (q *queuePair) prepareRead(w *wqe, p *rdma.Work) (what string) {
	if p.Flags&rdma.Inline != 0 {
		return "a Read cannot be inline"
	}
	if q.ord == 0 {
		return "the peer serves no Reads"
	}
	w.msg, w.stag, w.to = ddp.ReadRequest, stag.STag(p.RemoteSTag), p.RemoteOffset
	w.segs, w.regions, w.n, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &q.domain.Domain, rdma.AccessLocalWrite, q.maxSGE)
	if what != "" {
		return what
	}
	return q.hold(w, (*stag.Peer).PostRead)
}

// prepareBind binds at once: the peer cannot know the STag before a later Send tells it.
func (q *queuePair) prepareBind(w *wqe, p *rdma.Work) (what string, err error) {
	win, ok := p.Window.(*window)
	if !ok || win.domain != q.domain {
		return "no window of this protection domain", nil
	}
	need, what := soft.BindNeeds(p)
	if what != "" {
		return what, nil
	}
	w.segs, w.regions, _, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &q.domain.Domain, need, 1)
	if what != "" {
		return what, nil
	}
	s, err := win.bind(q, w.regions[0], p.SGL[0].Bytes, p.Access, stag.STag(p.STag))
	if err != nil {
		if errors.Is(err, errBound) || errors.Is(err, soft.ErrGone) {
			return err.Error(), nil
		}
		return "", err
	}
	w.regions = w.regions[:0] // the window's pin is enough
	p.STag = rdma.STag(s)
	p.PutStamp(p.STag)
	q.n.Binds.Add(1)
	return "", nil
}

// hold counts an operation on an STag that the peer has advertised. STags that came in another way
// are not counted: the peer checks them.
func (q *queuePair) hold(w *wqe, post func(*stag.Peer, stag.STag) (stag.At, error)) (what string) {
	if q.peer == nil {
		return ""
	}
	switch at, err := post(q.peer, w.stag); {
	case err == nil:
		w.held, w.at = true, at
	case errors.Is(err, stag.ErrClosePosted):
		return err.Error()
	}
	return ""
}

// holdClose notes that the closing Send is posted.
func (q *queuePair) holdClose(w *wqe, must bool) (what string) {
	if w.stag == 0 {
		return "STag 0"
	}
	if q.peer == nil {
		return ""
	}
	switch at, err := q.peer.PostClose(w.stag); {
	case err == nil:
		w.held, w.at = true, at
	case must || !errors.Is(err, stag.ErrNotHeld):
		return err.Error()
	}
	return ""
}

// unhold undoes hold and holdClose.
func (q *queuePair) unhold(w *wqe) {
	if !w.held {
		return
	}
	w.held = false
	switch w.op {
	case rdma.OpWrite:
		q.peer.WriteDone(w.at, w.stag)
	case rdma.OpRead:
		q.peer.ReadDone(w.at, w.stag)
	default:
		_ = q.peer.Closed(w.at, w.stag) // cannot fail: PostClose was there
	}
}

// retire completes the elements at the head that have nothing more to wait for.
func (q *queuePair) retire() {
	s := &q.sq
	if s.Head == s.sent || !s.At(s.Head).done {
		return
	}
	q.sendCQ.Lock()
	for s.Head != s.sent {
		w := s.At(s.Head)
		if !w.done {
			break
		}
		s.Head++
		q.complete(w)
	}
	q.sendCQ.Unlock()
}

// complete gives back what an element holds and adds its completion, if it has one. The caller holds the lock of
// the completion queue, once for many elements.
func (q *queuePair) complete(w *wqe) {
	if w.pinned {
		soft.UnpinAll(w.regions)
		w.pinned = false
	}
	q.unhold(w)
	drop(w.segs)
	drop(w.regions)
	w.cur = iov.Cursor{}
	if w.internal || w.silent && w.status == rdma.StatusOK {
		return
	}
	c := q.sendCQ.Add()
	c.ID, c.Op, c.Status, c.QueuePair, c.Err = w.id, w.op, w.status, q, w.err
	if w.status == rdma.StatusOK && w.op == rdma.OpRead {
		c.Bytes = w.n
	}
}

// drop clears list. Most lists have one element, for which clear is slow.
func drop[T any](list []T) {
	if len(list) == 1 {
		var none T
		list[0] = none
		return
	}
	clear(list)
}
