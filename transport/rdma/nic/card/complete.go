package card

import (
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// snap is how many requests of a queue pair are done, as far as their completions have been put since.
type snap struct {
	p    *pair
	done uint32
}

// drain moves completions from the device to the program's ring, and wakes the program. It is the event of the
// completion queue.
func (c *client) drain() {
	c.outMu.Lock()
	before := c.tail
	c.snaps = c.snaps[:0]
	for {
		moved, full := c.move()
		if full {
			break
		}
		for _, s := range c.snaps {
			if s.p.isDone(s.done) && !s.p.closed {
				s.p.sq.mem.Done.Store(s.done)
			}
		}
		c.snaps = c.snaps[:0]
		if !moved && len(c.touched) == 0 {
			c.closing = 0
			if c.cq.Arm() {
				break
			}
			continue
		}
		for _, p := range c.touched {
			// In this order: what the device gets in between is not done in this count.
			consumed := p.consumed.Load()
			c.snaps = append(c.snaps, snap{p, consumed - uint32(p.qp.Unfinished())})
			p.stale = false
		}
		c.touched = c.touched[:0]
	}
	wake := c.tail != before && !c.gone.Load() && c.ctl.Driver.Wakes()
	c.outMu.Unlock()
	if wake {
		c.driver.Ring()
	}
}

// move puts all completions that there are. Full: there is no room for the rest; the program will come back.
// outMu is held.
func (c *client) move() (moved, full bool) {
	for {
		room := c.room()
		if room == 0 {
			// The program looks at Stalled after it has made room.
			c.ctl.Stalled.Store(1)
			if room = c.room(); room == 0 {
				return moved, true
			}
		}
		n := c.cq.Poll(c.cs[:min(room, len(c.cs))])
		for i := range n {
			c.completion(&c.cs[i])
			c.cs[i] = rdma.Completion{}
		}
		if n == 0 {
			n = min(room, len(c.extra))
			for i := range n {
				c.ctl.Put(c.tail+uint32(i), &c.extra[i])
			}
			c.extra = c.extra[:copy(c.extra, c.extra[n:])]
			c.tail += uint32(n)
		}
		if n == 0 {
			c.ctl.Stalled.Store(0)
			return moved, false
		}
		moved = true
		c.ctl.CompletionTail.Store(c.tail)
	}
}

// room returns how many completions can be put. outMu is held.
func (c *client) room() int {
	n := c.tail - c.ctl.CompletionHead.Load()
	if n > shm.Completions {
		c.lie("the head of the completions is %d before their tail", int32(n))
		return 0
	}
	return shm.Completions - int(n)
}

func (c *client) completion(x *rdma.Completion) {
	p := x.QueuePair.Context().(*pair)
	c.touch(p)
	if x.Op != rdma.OpReceive {
		p.isDone(uint32(x.ID) + 1)
	}
	c.ctl.Put(c.tail, &shm.Completion{
		Kind: shm.KindCompletion, Op: uint8(x.Op), Status: uint8(x.Status), Flags: uint8(x.Flags), QueuePair: p.number,
		Token: x.ID, STag: uint32(x.STag), Bytes: uint32(x.Bytes),
	})
	c.tail++
}

// isDone notes that the program can know of so many requests that they are done, and reports whether that is news. outMu is held.
func (p *pair) isDone(n uint32) bool {
	if int32(n-p.done) <= 0 {
		return false
	}
	p.done = n
	return true
}

// touch notes that requests of p may be done. outMu is held.
func (c *client) touch(p *pair) {
	if !p.stale {
		p.stale = true
		c.touched = append(c.touched, p)
	}
}

// put has something put that is not of the completion queue. drain follows.
func (c *client) put(xs ...shm.Completion) {
	c.outMu.Lock()
	defer c.outMu.Unlock()
	c.append(xs...)
}

// append is put, with outMu held.
func (c *client) append(xs ...shm.Completion) {
	if len(c.extra)+len(xs) > c.slots+spareExtra {
		c.lie("%d answers and completions that the program does not take", len(c.extra))
		return
	}
	c.extra = append(c.extra, xs...)
}

// spareExtra is how many entries may wait besides one for each slot of a queue: answers, revocations, and what is left of queues
// that are gone.
const spareExtra = 2 * shm.Completions

// ended is called by the device when the connection of p has ended.
func (p *pair) ended(err error) {
	c := p.c
	p.flush()
	m := &shm.Message{Op: shm.OpEnded, Number: p.number}
	if err != nil {
		m.Error = err.Error()
	}
	c.tell(m)
}

// flush completes what came after the end of the connection. What came before has completed.
func (p *pair) flush() {
	c := p.c
	c.mu.Lock()
	p.over = true
	c.put(p.late...)
	p.late = nil
	c.mu.Unlock()
	c.drain()
}
