package service

import (
	"encoding/binary"
	"errors"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/mem"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// command is a request on its way.
//
//	READ           memory ─► endpoint ─► pushed, and response
//	WRITE          memory ─► pulled ─► endpoint ─► response
//	WRITE, inline  endpoint ─► response, and the slot is free again
//	CAS, ADD       memory, for the old value ─► endpoint ─► response
type command struct {
	c      *conn
	h      *handle
	number uint64
	r      wire.Request
	active bool // without a response
	used   bool // begun, and not ended

	prev, next *command // in handle.first
	nextMemory *command // in conn.wanting
	ready      bool     // may be posted to the endpoint

	settled bool // it is not executed: status and value are its answer
	kept    bool // they are a result of an earlier connection
	status  wire.Status
	value   uint64

	ticks uint8         // seconds since it came, at most backend.OverdueTicks
	guard backend.Guard // from then on, until it is posted; nil: it changes nothing, or is in time

	slot    int // of the receive that its data is in; -1: none
	data    []byte
	lease   *mem.Lease
	sink    rdma.Region // of the Reads that are under way, if they have one of their own
	counts  int64       // of the connection's memory
	stag    rdma.STag
	to      uint64
	closes  bool // the response closes stag
	waits   bool // for memory
	pulls   int  // RDMA Reads under way
	failed  bool // one of them
	works   int  // work requests of the response
	sgl     [1]rdma.SGE
	pieces  [maxLength / chunk]rdma.SGE
	message [wire.ResponseLen]byte
	out     [1]rdma.SGE
}

var (
	errCredits = errors.New("more requests than it has credits for")
	errTag     = errors.New("a tag that is in use")
	errBuffer  = errors.New("a transfer without a buffer, or a buffer without a transfer")
	errLong    = errors.New("a transfer that is longer than the service takes")
)

// request begins a command, and reports whether it keeps the slot.
func (c *conn) request(b []byte, slot int, m *rdma.Completion) bool {
	r, data, err := wire.ParseRequest(b)
	switch {
	case err != nil:
		c.violation(err)
		return false
	case c.active >= c.s.cfg.Credits:
		c.violation(errCredits)
		return false
	case c.inUse(r.Tag):
		c.violation(errTag)
		return false
	}
	advertised := m.Flags&rdma.Advertised != 0
	transfers := (r.Op == wire.Read || r.Op == wire.Write && r.Flags&wire.Inline == 0) && r.Length > 0
	switch {
	case m.Flags&^rdma.Advertised != 0 || advertised && r.STag != 0 || transfers != (advertised || r.STag != 0):
		c.violation(errBuffer)
		return false
	case transfers && int64(r.Length) > int64(c.s.limit()):
		c.violation(errLong)
		return false
	}
	x := c.newCommand()
	x.r, x.stag, x.to, x.closes = r, rdma.STag(r.STag), r.TO, advertised
	if advertised {
		x.stag = m.STag
	}
	x.active, x.used = true, true
	c.active++
	switch r.Op {
	case wire.List, wire.Info:
		x.tell(c.list(&r, data))
		return false
	}
	h := c.handles[r.Handle]
	if h == nil || r.Op == wire.Detach && h.left {
		x.answer(wire.NoHandle, 0)
		return false
	}
	x.h = h
	h.commands++
	if r.Op == wire.Detach {
		h.over, h.left, h.detach = true, true, x
		x.h = nil
		h.commands--
		h.leave()
		return false
	}
	st := h.check(&r)
	h.again(x)
	if st != wire.OK && !x.settled { // what was done is answered whatever has become of the partition
		x.answer(st, 0)
		return false
	}
	if x.settled && !x.fenced() {
		x.answer(x.status, x.value)
		return false
	}
	h.enlist(x)
	switch {
	case x.settled: // the endpoint sees its fence
		x.ready = true
		return false
	case transfers:
		x.want(int(r.Length))
	case r.Op == wire.Swap || r.Op == wire.Add:
		x.want(8)
	default:
		x.ready = true
	}
	if r.Flags&wire.Inline != 0 && r.Length > 0 {
		x.slot, x.data = slot, data
		return true
	}
	return false
}

// inUse reports whether a tag is that of a command without a response.
func (c *conn) inUse(tag uint32) bool {
	for _, x := range c.commands {
		if x.active && x.r.Tag == tag {
			return true
		}
	}
	return false
}

// settle gives x its answer without being executed.
func (x *command) settle(st wire.Status, value uint64) {
	x.settled, x.status, x.value = true, st, value
}

// fenced reports whether x starts when all before it are complete, and not if one of them has failed.
func (x *command) fenced() bool { return x.r.Flags&(wire.Fence|wire.Barrier) != 0 }

// changes reports whether the request changes octets.
func (x *command) changes() bool {
	switch x.r.Op {
	case wire.Write, wire.Discard, wire.Swap, wire.Add:
		return x.r.Length > 0
	}
	return false
}

// check reports whether the handle is in use and the range lies in the partition. A refusal ends the use of the
// handle.
func (h *handle) check(r *wire.Request) wire.Status {
	if h.over {
		return h.ending()
	}
	switch r.Op {
	case wire.Read, wire.Write, wire.Discard:
		unit := uint64(h.info.Unit)
		switch {
		case r.Length == 0:
			return wire.OK
		case r.Offset%unit != 0 || uint64(r.Length)%unit != 0:
			h.over = true
			return wire.NotUnits
		}
	case wire.Swap, wire.Add:
		if r.Offset%8 != 0 {
			h.over = true
			return wire.NotUnits
		}
	default:
		return wire.OK
	}
	if size := uint64(h.info.Size); r.Offset > size || uint64(r.Length) > size-r.Offset {
		h.over = true
		return wire.Outside
	}
	return wire.OK
}

func (c *conn) newCommand() *command {
	if n := len(c.free); n > 0 {
		x := c.free[n-1]
		c.free = c.free[:n-1]
		return x
	}
	x := &command{c: c, number: uint64(len(c.commands)), slot: -1}
	c.commands = append(c.commands, x)
	return x
}

// want asks for n bytes of memory. Commands get it in the order in which they came, so that a command never waits
// for memory of those that wait for it.
func (x *command) want(n int) {
	c := x.c
	x.waits, x.counts = true, int64(mem.RoundUp(n))
	if c.wanting == nil {
		c.wanting = x
	} else {
		c.lastWant.nextMemory = x
	}
	c.lastWant = x
}

// giveMemory gives memory to those who want some, as long as there is some.
func (c *conn) giveMemory() {
	for x := c.wanting; x != nil && !c.dead && !c.asked; x = c.wanting {
		if c.memory > 0 && c.memory+x.counts > c.s.cfg.Memory {
			return
		}
		n := 8
		if x.r.Op == wire.Read || x.r.Op == wire.Write {
			n = int(x.r.Length)
		}
		l := c.s.cfg.Pool.Lease(n)
		if l == nil {
			c.asked = true
			if l = c.s.cfg.Pool.LeaseOrNotify(n, c); l == nil {
				return
			}
			c.asked = false
		}
		if c.wanting, x.nextMemory = x.nextMemory, nil; c.wanting == nil {
			c.lastWant = nil
		}
		x.give(l)
	}
}

// give gives x its memory; nil: there will be none.
func (x *command) give(l *mem.Lease) {
	c := x.c
	x.waits = false
	if l == nil {
		x.lost()
		return
	}
	x.lease = l
	c.memory += x.counts
	if x.r.Op == wire.Write {
		x.pull()
	} else {
		x.ready = true
	}
}

// pull has the data of a WRITE read from the client.
func (x *command) pull() {
	n := int(x.r.Length)
	var err error
	if x.sink, err = x.c.far.sink(x.lease.Bytes()[:n]); err != nil {
		x.c.broken(err)
		x.lost()
		return
	}
	for off := 0; off < n; off += chunk {
		p := &x.pieces[off/chunk]
		if *p = (rdma.SGE{Bytes: x.lease.Bytes()[off:min(off+chunk, n)], Region: x.sink}); x.sink == nil {
			*p = x.c.far.sge(x.lease, off, min(chunk, n-off))
		}
		x.pulls++
		x.c.queue(rdma.Work{
			ID: idPull | x.number, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: x.pieces[off/chunk : off/chunk+1],
			RemoteSTag: x.stag, RemoteOffset: x.to + uint64(off),
		}, x)
	}
}

// pulled is the end of one of the Reads.
func (x *command) pulled(ok bool) {
	x.failed = x.failed || !ok
	if x.pulls--; x.pulls > 0 {
		return
	}
	x.endSink()
	if x.failed {
		x.lost()
		return
	}
	x.ready = true
}

// endSink takes the memory of the Reads away from the client. If the device does not do that, the connection ends, and keeps the
// memory until its queue pair is gone.
func (x *command) endSink() {
	if x.sink == nil {
		return
	}
	if err := x.sink.Deregister(); err != nil {
		x.failed = true
		x.c.broken(err)
		x.c.far.kept = append(x.c.far.kept, x.sink)
		x.c.leases = append(x.c.leases, x.lease)
		x.c.memory -= x.counts
		x.lease, x.counts = nil, 0
	}
	x.sink = nil
}

// lost ends a command whose data will not come: the connection is dead. Nothing of the handle is executed any more, because
// a fence, or the order of a strict handle, may keep it behind this one. The client repeats what has had no response.
func (x *command) lost() {
	x.h.delist(x)
	x.h.cut()
	x.answer(wire.Ended, 0)
}

var opcodes = [...]rdma.Opcode{
	wire.Read: rdma.OpRead, wire.Write: rdma.OpWrite, wire.Flush: rdma.OpFlush, wire.Swap: rdma.OpCompareSwap,
	wire.Add: rdma.OpFetchAdd, wire.Discard: rdma.OpDiscard,
}

// work is the command as a work of the endpoint. Of one that is settled only the fence is left: the answer comes when all before it is
// complete (O5), and what fails before it is not held against the next fence (O6).
func (x *command) work() rdma.Work {
	r, h := &x.r, x.h
	if x.settled {
		return rdma.Work{ID: x.number, Op: rdma.OpRead, Flags: rdma.Signaled | rdma.Fence, RemoteSTag: h.info.STag, RemoteOffset: h.info.Base}
	}
	w := rdma.Work{
		ID: x.number, Op: opcodes[r.Op], Flags: rdma.Signaled, RemoteSTag: h.info.STag, RemoteOffset: h.info.Base + r.Offset,
		Compare: r.Compare, Operand: r.New,
	}
	for _, f := range [...]struct {
		on wire.Flags
		is rdma.Flags
	}{{wire.Fence, rdma.Fence}, {wire.Barrier, rdma.Barrier}, {wire.Durable, rdma.Durable}, {wire.Relaxed, rdma.RelaxedOrder}} {
		if r.Flags&f.on != 0 {
			w.Flags |= f.is
		}
	}
	switch {
	case r.Op == wire.Discard:
		w.Length = int64(r.Length)
	case x.slot >= 0:
		a := x.c.leases[x.slot/slotsPer]
		x.sgl[0] = x.c.s.near.sge(a, x.slot%slotsPer*slotLen+wire.RequestLen, len(x.data))
		w.SGL = x.sgl[:]
	case x.lease != nil:
		x.sgl[0] = x.c.s.near.sge(x.lease, 0, int(r.Length))
		w.SGL = x.sgl[:]
	}
	return w
}

// ended handles a completion of an endpoint.
func (c *conn) ended(w *rdma.Completion) {
	x := c.commands[w.ID]
	h := x.h
	st := h.status(w.Status)
	if st != wire.OK {
		value := uint64(0)
		if m, ok := errors.AsType[*backend.MediumError](w.Err); ok {
			value = uint64(m.Off)
		}
		if w.Status == rdma.StatusRemoteAccess || w.Status == rdma.StatusLocalProtection {
			h.over = true
		}
		x.answer(st, value)
		return
	}
	value := w.Seq
	if (x.r.Op == wire.Swap || x.r.Op == wire.Add) && !x.settled {
		value = binary.NativeEndian.Uint64(x.lease.Bytes())
	}
	x.answer(wire.OK, value)
}

// answer sends the response; that of a READ behind its data. If x is settled, that is its answer, however its fence has ended.
func (x *command) answer(st wire.Status, value uint64) {
	c, h := x.c, x.h
	if x.settled {
		st, value = x.status, x.value
	}
	r := wire.Response{Op: x.r.Op, Status: st, Tag: x.r.Tag, Credits: uint32(c.s.cfg.Credits), Value: value}
	if h != nil {
		h.results.note(&x.r, st, value, x.kept)
		h.commands--
		r.Durable = h.endpoint.Sequence().Durable()
	}
	if st == wire.OK && (x.r.Op == wire.Read || x.r.Op == wire.Write || x.r.Op == wire.Discard) {
		r.Done = x.r.Length
	}
	x.works = 0
	if x.r.Op == wire.Read && st == wire.OK && !c.dead {
		for off, n := 0, int(x.r.Length); off < n; off += chunk {
			x.pieces[off/chunk] = c.far.sge(x.lease, off, min(chunk, n-off))
			x.send(rdma.Work{Op: rdma.OpWrite, SGL: x.pieces[off/chunk : off/chunk+1], RemoteSTag: x.stag, RemoteOffset: x.to + uint64(off)})
		}
	} else {
		x.forgetMemory()
	}
	if x.slot >= 0 {
		c.returns = append(c.returns, x.slot)
		x.slot, x.data = -1, nil
	}
	x.tell(r.AppendTo(x.message[:0]))
	if h != nil {
		h.leave()
	}
}

// tell sends the message that ends the command.
func (x *command) tell(b []byte) {
	c := x.c
	x.active = false
	c.active--
	if c.dead {
		x.end()
		return
	}
	c.unsent++
	x.out[0] = rdma.SGE{Bytes: b}
	w := rdma.Work{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: x.out[:]}
	if len(b) <= min(wire.ResponseLen, c.s.cfg.Device.Limits().MaxInline) {
		w.Flags |= rdma.Inline
	} else {
		x.works = 0
		if x.lease = c.s.cfg.Pool.Lease(len(b)); x.lease == nil {
			c.broken(errMemory)
			c.unsent--
			x.end()
			return
		}
		copy(x.lease.Bytes(), b)
		x.counts = int64(mem.RoundUp(len(b)))
		c.memory += x.counts
		x.out[0] = c.far.sge(x.lease, 0, len(b))
	}
	if x.closes {
		w.Flags |= rdma.Close
		w.STag = x.stag
	}
	x.send(w)
}

// send queues a work request of the response.
func (x *command) send(w rdma.Work) {
	w.ID = x.number
	x.works++
	x.c.queue(w, x)
}

// left notes that the response has left, with what was before it.
func (x *command) left() {
	x.c.unsent--
	x.end()
}

// dropped is told of a work request that will never be posted.
func (x *command) dropped(w *rdma.Work) {
	switch {
	case w.ID&idPull != 0:
		x.pulled(false)
	case w.Op == rdma.OpSend:
		x.left()
	}
}

// forgetMemory gives the lease back.
func (x *command) forgetMemory() {
	if x.lease != nil {
		x.lease.Release()
		x.lease = nil
		x.c.memory -= x.counts
	}
	x.counts = 0
}

// end frees the command.
func (x *command) end() {
	invariant.Check(x.used, "partition/service: a command ends twice")
	x.used = false
	x.forgetMemory()
	if x.guard != nil {
		x.guard.Revoke()
		x.guard = nil
	}
	x.ticks = 0
	x.h, x.ready, x.settled, x.kept, x.failed, x.closes, x.stag = nil, false, false, false, false, false, 0
	x.sgl[0], x.out[0] = rdma.SGE{}, rdma.SGE{}
	x.c.free = append(x.c.free, x)
}

// leave ends the handle that was detached, when it has no commands any more.
func (h *handle) leave() {
	x := h.detach
	if x == nil || h.commands > 0 {
		return
	}
	h.detach = nil
	c := h.c
	c.spawn(func() { // otherwise teardown closes it
		h.close()
		c.mu.Lock()
		delete(c.handles, h.number)
		x.answer(wire.OK, 0)
		c.unlock()
	})
}
