package nic

import (
	"errors"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// list is a list of memory on its way to a descriptor.
type list struct {
	n      int
	octets int
	first  [shm.InSlot]shm.Piece
	rest   []shm.Piece
}

func (l *list) add(p shm.Piece) {
	if l.n < len(l.first) {
		l.first[l.n] = p
	} else {
		l.rest = append(l.rest, p)
	}
	l.n++
	l.octets += int(p.Len)
}

// put writes the pieces.
func (l *list) put(slot, spill []byte) {
	for i := range l.n {
		p := &l.first
		if i < len(p) {
			shm.PutPiece(slot, spill, i, l.n, p[i])
			continue
		}
		shm.PutPiece(slot, spill, i, l.n, l.rest[i-len(p)])
	}
}

// gather adds a scatter/gather list. What is not empty says what is wrong with it.
func (l *list) gather(sgl []rdma.SGE, dom *domain, need rdma.Access, most int) (what string) {
	if len(sgl) > most {
		return "scatter/gather list is too long"
	}
	for i := range sgl {
		e := &sgl[i]
		if len(e.Bytes) == 0 {
			continue
		}
		r, off, what := registered(e, dom, need)
		if what == "" && len(e.Bytes) > soft.MaxMessage-l.octets {
			what = "message is too long"
		}
		if what != "" {
			return what
		}
		l.add(shm.Piece{Region: r.number, Len: uint32(len(e.Bytes)), Offset: off})
	}
	return ""
}

// registered returns the region of an element, and where in it the element lies, or says what is wrong with it.
func registered(e *rdma.SGE, dom *domain, need rdma.Access) (r *region, off uint64, what string) {
	r, ok := e.Region.(*region)
	switch {
	case !ok:
		return nil, 0, "memory without a region of this device"
	case r.dom != dom:
		return nil, 0, "region of another protection domain"
	case r.access&need != need:
		return nil, 0, "region does not allow local writes"
	case r.gone.Load():
		return nil, 0, soft.ErrGone.Error()
	}
	a := address(e.Bytes)
	off = uint64(a - r.addr)
	if a < r.addr || off > uint64(len(r.b)) || uint64(len(e.Bytes)) > uint64(len(r.b))-off {
		return nil, 0, "memory is not inside of its region"
	}
	return r, off, ""
}

// advertise adds memory to be advertised, which needs no region. Pieces of one region that lie together become one.
func (l *list) advertise(memory []rdma.SGE, dom *domain, need rdma.Access) (what string) {
	begin, end := l.n, uintptr(0)
	for i := range memory {
		e := &memory[i]
		if len(e.Bytes) == 0 {
			continue
		}
		p := shm.Piece{Len: uint32(len(e.Bytes))}
		if e.Region != nil {
			r, off, what := registered(e, dom, need)
			if what != "" {
				return what
			}
			p.Region, p.Offset = r.number, off
		} else {
			a, off := dom.dev.memory.find(e.Bytes)
			if a == nil {
				return errNotOurs.Error()
			}
			p.Region, p.Offset = a.number|shm.Arena, off
		}
		if len(e.Bytes) > soft.MaxMessage-l.octets {
			return "message is too long"
		}
		if last := l.last(); l.n > begin && last.Region == p.Region && end == address(e.Bytes) {
			last.Len += p.Len
			l.octets += int(p.Len)
		} else {
			l.add(p)
		}
		end = address(e.Bytes) + uintptr(len(e.Bytes))
	}
	switch {
	case l.n == begin:
		return "none"
	case l.n > shm.MaxPieces:
		return "scatter/gather list is too long"
	}
	return ""
}

func (l *list) last() *shm.Piece {
	switch {
	case l.n == 0:
		return nil
	case l.n <= len(l.first):
		return &l.first[l.n-1]
	}
	return &l.rest[len(l.rest)-1]
}

// errTags: there is no STag left to choose; ask for more.
var errTags = errors.New("nic: no STag is left")

// Post implements rdma.QueuePair.
func (q *queuePair) Post(ws []rdma.Work) (n int, err error) {
	q.mu.Lock()
	asked := false
	for n < len(ws) {
		if err = q.post(ws, n); err == nil {
			n++
			continue
		}
		if !asked && (err == rdma.ErrFull || err == errTags) {
			// What the card has told may make room.
			tags, done := err == errTags, q.mem.Done.Load()
			q.publish()
			q.mu.Unlock()
			q.ring()
			q.dev.settle(q.dev.harvest) // the completions of what is done were put before
			var failed error
			if tags {
				failed = q.more()
			}
			q.mu.Lock()
			if failed != nil {
				err = failed
				break
			}
			q.retire(done)
			asked = true
			continue
		}
		break
	}
	q.publish()
	q.mu.Unlock()
	q.n.Posts.Add(1)
	q.n.Works.Add(uint64(n))
	if n > 0 {
		q.ring()
	}
	return n, err
}

// publish shows the card what is new. The lock is held.
func (q *queuePair) publish() {
	if q.state != released {
		q.mem.Tail.Store(q.tail)
	}
}

func (q *queuePair) ring() { q.dev.hint(q.number, &q.hint) }

func (q *queuePair) post(ws []rdma.Work, i int) error {
	switch {
	case q.state != connected:
		return rdma.ErrDisconnected
	case q.tail-q.head >= q.maxWork:
		return rdma.ErrFull
	}
	p := &ws[i]
	e := &q.sent[q.tail&uint32(len(q.sent)-1)]
	*e = work{id: p.ID, op: p.Op, stag: p.STag, owes: p.Flags&(rdma.Signaled|rdma.Advertise) == rdma.Signaled}
	var l list
	d := shm.Descriptor{Op: uint8(p.Op), Flags: uint16(p.Flags)}
	what, err := q.prepare(e, p, &d, &l)
	if what != "" {
		return &rdma.WorkError{Index: i, Op: p.Op, What: what}
	}
	if err != nil {
		return err
	}
	slot, spill := q.mem.Slot(q.tail), q.mem.Spill(q.tail)
	if p.Flags&rdma.Inline != 0 {
		at := 0
		for k := range p.SGL {
			at += copy(spill[at:], p.SGL[k].Bytes)
		}
	}
	d.Put(slot)
	l.put(slot, spill)
	q.tail++
	return nil
}

// prepare fills in a descriptor and its list, and what has to be remembered. What says what is wrong with p; err is one
// of the errors of Post.
func (q *queuePair) prepare(e *work, p *rdma.Work, d *shm.Descriptor, l *list) (what string, err error) {
	const sendOnly = rdma.Invalidate | rdma.Advertise | rdma.Close | rdma.Solicited
	if p.Op != rdma.OpSend && p.Flags&sendOnly != 0 {
		return "flag that only a Send may have", nil
	}
	if p.ForEndpoints() {
		return "operation or flag that only an endpoint takes", nil
	}
	switch p.Op {
	case rdma.OpSend:
		return q.prepareSend(e, p, d, l)
	case rdma.OpWrite, rdma.OpRead:
		d.STag, d.Offset, e.stag = uint32(p.RemoteSTag), p.RemoteOffset, p.RemoteSTag
		need := rdma.Access(0)
		if p.Op == rdma.OpRead {
			switch need = rdma.AccessLocalWrite; {
			case p.Flags&rdma.Inline != 0:
				return "a Read cannot be inline", nil
			case q.reads == 0:
				return "the peer serves no Reads", nil
			}
		}
		if what := q.gather(p, d, l, need); what != "" {
			return what, nil
		}
		return q.hold(e, p.Op == rdma.OpRead), nil
	case rdma.OpBind:
		return q.prepareBind(e, p, d, l)
	case rdma.OpLocalInvalidate:
		d.STag = uint32(p.STag)
		t := q.tags.find(p.STag)
		if t != nil && t.use == binding && !t.going {
			t.going = true
			t.window.mu.Lock()
			t.window.going = t.window.going || t.window.tag == p.STag
			t.window.mu.Unlock()
			return "", nil
		}
		if t != nil || !q.dev.memory.invalidatable(p.STag, q.dom) {
			return "STag is neither of a window bound here nor of a region that may be invalidated", nil
		}
		return "", nil
	}
	return "operation that cannot be posted", nil
}

// gather takes over the list of memory to send, or to read into.
func (q *queuePair) gather(p *rdma.Work, d *shm.Descriptor, l *list, need rdma.Access) (what string) {
	if p.Flags&rdma.Inline == 0 {
		if what = l.gather(p.SGL, q.dom, need, q.maxSGE); what == "" {
			d.SGL = uint8(l.n)
		}
		return what
	}
	n := 0
	for i := range p.SGL {
		n += len(p.SGL[i].Bytes)
	}
	if n > q.dev.limits.MaxInline || n > shm.MaxInline {
		return "too long to be inline"
	}
	d.Inline = uint32(n)
	return ""
}

func (q *queuePair) prepareSend(e *work, p *rdma.Work, d *shm.Descriptor, l *list) (what string, err error) {
	if what := q.gather(p, d, l, 0); what != "" {
		return what, nil
	}
	switch p.Flags & (rdma.Invalidate | rdma.Advertise | rdma.Close) {
	case 0:
		return "", nil
	case rdma.Invalidate:
		d.STag = uint32(p.STag)
		return q.holdClose(e, p.STag, false), nil
	case rdma.Advertise:
		return q.prepareAdvertise(p, d, l)
	case rdma.Close:
		d.STag = uint32(p.STag)
		if q.shot == nil || !q.shot.Close || q.initiator {
			return "the peer has not agreed to close", nil
		}
		return q.holdClose(e, p.STag, true), nil
	}
	return "more than one of Invalidate, Advertise and Close", nil
}

func (q *queuePair) prepareAdvertise(p *rdma.Work, d *shm.Descriptor, l *list) (what string, err error) {
	const errMemory = "memory to advertise: "
	if q.shot == nil || !q.shot.Advertise || !q.initiator {
		return "the peer has not agreed to advertise", nil
	}
	if p.Access&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0 || p.Access == 0 {
		return "access to advertise is remote read, remote write or both", nil
	}
	if p.Flags&rdma.Inline != 0 && len(p.Memory) > shm.InSlot {
		return "inline data, and a long list of memory to advertise", nil
	}
	var need rdma.Access
	if p.Access&rdma.AccessRemoteWrite != 0 {
		need = rdma.AccessLocalWrite
	}
	sgl := l.n
	if what := l.advertise(p.Memory, q.dom, need); what != "" {
		return errMemory + what, nil
	}
	if q.outstanding >= q.shot.Window {
		return "", rdma.ErrWindow
	}
	t := q.tags.take(advertise)
	if t == nil {
		return "", errTags
	}
	q.outstanding++
	d.Memory, d.Access, d.STag = uint16(l.n-sgl), uint8(p.Access), uint32(t.stag)
	p.STag = t.stag
	return "", nil
}

func (q *queuePair) prepareBind(_ *work, p *rdma.Work, d *shm.Descriptor, l *list) (what string, err error) {
	w, ok := p.Window.(*window)
	if !ok || w.dom != q.dom {
		return "no window of this protection domain", nil
	}
	need, what := soft.BindNeeds(p)
	if what == "" {
		what = l.gather(p.SGL, q.dom, need, 1)
	}
	if what != "" {
		return what, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp != nil && !w.going {
		return "window is bound; invalidate it first", nil
	}
	t := q.tags.take(binding)
	if t == nil {
		return "", errTags
	}
	t.window = w
	w.qp, w.tag, w.going = q, t.stag, false
	d.SGL, d.Access, d.STag, d.Offset = 1, uint8(p.Access), uint32(t.stag), uint64(w.number)
	p.STag = t.stag
	p.PutStamp(t.stag)
	return "", nil
}

// held is an STag that the peer has advertised and that is not closed. The card's tables are what protects the peer;
// this one has Post refuse what makes no sense.
type held struct {
	reads  int
	closed bool // the close is posted
}

// advertised notes that the peer has advertised s. The lock is held.
func (q *queuePair) advertised(s rdma.STag) {
	var h *held
	if n := len(q.idle); n > 0 {
		h, q.idle = q.idle[n-1], q.idle[:n-1]
		*h = held{}
	} else {
		h = new(held)
	}
	q.held[s] = h
}

// hold counts a Read of an STag that the peer has advertised; others are not counted.
func (q *queuePair) hold(e *work, read bool) (what string) {
	if len(q.held) == 0 {
		return ""
	}
	h := q.held[e.stag]
	switch {
	case h == nil:
		return ""
	case h.closed:
		return errClosePosted
	}
	if read {
		h.reads++
		e.held = h
	}
	return ""
}

const errClosePosted = "close of the STag is already posted"

// holdClose notes that the closing Send is posted.
func (q *queuePair) holdClose(e *work, s rdma.STag, must bool) (what string) {
	if s == 0 {
		return "STag 0"
	}
	h := q.held[s]
	switch {
	case h == nil && must:
		return "STag was not advertised or is closed"
	case h == nil:
		return ""
	case h.closed:
		return errClosePosted
	case h.reads > 0:
		return "RDMA Reads on the STag have not completed; close it after them"
	}
	h.closed = true
	e.held = h
	return ""
}

// retire ends what has to be remembered of requests before position to, up to one whose completion is to come. The lock is held.
func (q *queuePair) retire(to uint32) {
	if to-q.head > q.tail-q.head {
		return // an old count, or a lie
	}
	for ; q.head != to; q.head++ {
		e := &q.sent[q.head&uint32(len(q.sent)-1)]
		if e.owes {
			return
		}
		if h := e.held; h != nil {
			if e.op == rdma.OpRead {
				h.reads--
			} else if q.held[e.stag] == h {
				delete(q.held, e.stag)
				q.idle = append(q.idle, h) // its Reads have completed, so nothing refers to it
			}
			e.held = nil
		}
		if e.op == rdma.OpLocalInvalidate {
			q.unbound(e.stag)
		}
	}
}
