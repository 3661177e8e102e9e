package card

import (
	"errors"
	"fmt"
	"log/slog"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// batchLen is how many requests the device gets at a time.
const batchLen = 64

// batch is requests on their way to the device.
type batch struct {
	works    [batchLen]rdma.Work
	receives [batchLen]rdma.Receive
	sges     []rdma.SGE
	n        int
}

// consume gives the device what is new in a queue. The lock is held.
func (c *client) consume(q *queue) {
	n := q.mem.Tail.Load() - q.head
	if n > q.mem.Slots() {
		c.lie("%d requests in a queue of %d", n, q.mem.Slots())
		return
	}
	if p := q.pair; n > 0 && p != nil && p.sq == q && !p.over { // of what comes after the end the device gets nothing
		c.outMu.Lock()
		undone := p.consumed.Load() + n - p.done
		c.outMu.Unlock()
		if undone > q.mem.Slots() { // so no more completions wait for room than there are slots
			c.lie("%d requests that it does not know to be done, in a queue of %d", undone, q.mem.Slots())
			return
		}
	}
	b := &c.batch
	for n > 0 {
		b.n, b.sges = 0, b.sges[:0]
		var bad error
		for b.n < batchLen && n > 0 && bad == nil {
			bad = c.parse(q)
			q.head++
			n--
			b.n++
		}
		switch {
		case q.pair == nil || q.pair.sq != q:
			c.receives(q, bad)
		default:
			c.works(q.pair, bad)
		}
	}
}

// works posts the batch to p. bad is what is wrong with the last of it. The lock is held.
func (c *client) works(p *pair, bad error) {
	b := &c.batch
	ws := b.works[:b.n]
	good := ws
	if bad != nil {
		good = ws[:b.n-1]
	}
	n, err := 0, rdma.ErrDisconnected
	if !p.over {
		n, err = p.qp.Post(good)
		p.consumed.Add(uint32(n))
	}
	if n == len(good) {
		err = bad
	}
	c.outMu.Lock()
	c.touch(p)
	c.outMu.Unlock()
	if n == len(ws) {
		return
	}
	for i := range ws[n:] {
		status := rdma.StatusFlushed
		if i == 0 && !errors.Is(err, rdma.ErrDisconnected) {
			status = rdma.StatusLocalProtection
		}
		c.refuse(p, shm.Completion{
			Kind: shm.KindCompletion, Op: uint8(ws[n+i].Op), Status: uint8(status), QueuePair: p.number, Token: ws[n+i].ID,
		})
	}
	if !errors.Is(err, rdma.ErrDisconnected) {
		c.wrong(p, err)
	}
}

// receives posts the batch to the queue of receives q. The lock is held.
func (c *client) receives(q *queue, bad error) {
	b := &c.batch
	rs := b.receives[:b.n]
	good := rs
	if bad != nil {
		good = rs[:b.n-1]
	}
	if q.pair == nil {
		if n, err := q.srq.PostReceive(good); n < len(good) || bad != nil {
			c.lie("receives that no driver posts: %w", errors.Join(err, bad))
		}
		return
	}
	n, err := q.pair.qp.PostReceive(good)
	if n == len(good) {
		err = bad
	}
	for i := range rs[n:] {
		c.refuse(q.pair, shm.Completion{
			Kind: shm.KindCompletion, Op: uint8(rdma.OpReceive), Status: uint8(rdma.StatusFlushed), QueuePair: q.pair.number, Token: rs[n+i].ID,
		})
	}
	if n < len(rs) && !errors.Is(err, rdma.ErrDisconnected) {
		c.wrong(q.pair, err)
	}
}

// refuse has a request completed that the device has not taken, after all that it has taken. The lock is held.
func (c *client) refuse(p *pair, x shm.Completion) {
	if p.over {
		c.put(x)
		return
	}
	if p.late = append(p.late, x); len(p.late) > int(p.sq.mem.Slots()+p.rq.mem.Slots()) {
		c.lie("%d requests after the end of a connection", len(p.late))
	}
}

// wrong ends a queue pair because of a request that no driver posts.
func (c *client) wrong(p *pair, err error) {
	c.log.Warn("nic: a program posts what no driver posts", slog.Int("pid", int(c.peer.PID)), slog.Any("reason", err))
	p.qp.Abort(err)
}

// parse adds the request at the head of q to the batch. The lock is held.
func (c *client) parse(q *queue) error {
	var slot [shm.SlotLen]byte
	copy(slot[:], q.mem.Slot(q.head))
	var d shm.Descriptor
	d.Get(&slot)
	b := &c.batch
	if q.pair == nil || q.pair.sq != q {
		r := &b.receives[b.n]
		*r = rdma.Receive{ID: d.Token}
		var err error
		r.SGL, err = c.list(q, &slot, &d, 0, int(d.SGL), false)
		return err
	}
	w := &b.works[b.n]
	*w = rdma.Work{
		ID: uint64(q.head), Op: rdma.Opcode(d.Op), Flags: rdma.Flags(d.Flags), RemoteSTag: rdma.STag(d.STag), RemoteOffset: d.Offset,
		STag: rdma.STag(d.STag), Access: rdma.Access(d.Access),
	}
	if d.Pieces() > shm.MaxPieces || d.Inline > shm.MaxInline {
		return fmt.Errorf("%d pieces of memory, and %d bytes inline", d.Pieces(), d.Inline)
	}
	if w.Flags&rdma.Inline != 0 { // the device copies it
		w.SGL = c.one(rdma.SGE{Bytes: q.mem.Spill(q.head)[:d.Inline]})
		if d.Pieces() > int(d.Memory) || d.Memory > shm.InSlot {
			return errors.New("inline data, and pieces of memory behind it")
		}
	}
	var err error
	if w.Flags&rdma.Inline == 0 {
		if w.SGL, err = c.list(q, &slot, &d, 0, int(d.SGL), false); err != nil {
			return err
		}
	}
	if w.Flags&rdma.Advertise != 0 {
		if w.Memory, err = c.list(q, &slot, &d, int(d.SGL), d.Pieces(), true); err != nil {
			return err
		}
	}
	if w.Op == rdma.OpBind {
		w.Window = c.windows[uint32(d.Offset)]
	}
	return nil
}

func (c *client) one(e rdma.SGE) []rdma.SGE {
	c.batch.sges = append(c.batch.sges, e)
	return c.batch.sges[len(c.batch.sges)-1:]
}

// list makes the scatter/gather list of pieces from to to. With unregistered they may be of arenas.
func (c *client) list(q *queue, slot *[shm.SlotLen]byte, d *shm.Descriptor, from, to int, unregistered bool) ([]rdma.SGE, error) {
	first := len(c.batch.sges)
	for i := from; i < to; i++ {
		p := shm.GetPiece(slot, q.mem.Spill(q.head), i, d.Pieces())
		e, err := c.piece(q.dom, p, unregistered)
		if err != nil {
			return nil, err
		}
		c.batch.sges = append(c.batch.sges, e)
	}
	return c.batch.sges[first:], nil
}

// piece finds the memory of a piece.
func (c *client) piece(dom rdma.Domain, p shm.Piece, unregistered bool) (rdma.SGE, error) {
	var r rdma.Region
	if p.Region&shm.Arena == 0 {
		x := c.regions[p.Region]
		if x == nil {
			return rdma.SGE{}, fmt.Errorf("no region %d", p.Region)
		}
		r = x.Region
	} else {
		a := c.arenas[p.Region&^shm.Arena]
		if a == nil || a.going || !unregistered {
			return rdma.SGE{}, fmt.Errorf("no arena %d", p.Region&^shm.Arena)
		}
		x, err := a.in(dom)
		if err != nil {
			return rdma.SGE{}, err
		}
		r = x
	}
	b := r.Bytes()
	if p.Offset > uint64(len(b)) || uint64(p.Len) > uint64(len(b))-p.Offset {
		return rdma.SGE{}, fmt.Errorf("%d bytes at %d of memory of %d", p.Len, p.Offset, len(b))
	}
	return rdma.SGE{Bytes: b[p.Offset:][:p.Len:p.Len], Region: r}, nil
}
