package card

import (
	"errors"
	"fmt"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// commands does what is new in the ring of commands. The lock is held.
func (c *client) commands() {
	n := c.ctl.CommandTail.Load() - c.commandHead
	if n > shm.Commands {
		c.lie("%d commands in a ring of %d", n, shm.Commands)
		return
	}
	for ; n > 0; n-- {
		var slot [shm.SlotLen]byte
		copy(slot[:], c.ctl.Command(c.commandHead))
		c.commandHead++
		var d shm.Descriptor
		d.Get(&slot)
		var s rdma.STag
		var err error
		switch d.Op {
		case shm.CommandRegister:
			s, err = c.register(&d, shm.GetPiece(&slot, nil, 0, 1))
		case shm.CommandDeregister:
			if wait := c.deregister(&d); wait != nil {
				c.later(d.Token, wait)
				continue
			}
		case shm.CommandNewWindow:
			err = c.newWindow(&d)
		case shm.CommandFreeWindow:
			c.freeWindow(&d)
			continue
		case shm.CommandRevoke:
			err = c.revoke(&d)
		default:
			c.lie("command %d", d.Op)
			return
		}
		c.answer(d.Token, s, err)
	}
}

// answer answers a command. drain follows.
func (c *client) answer(token uint64, s rdma.STag, err error) {
	x := shm.Completion{Kind: shm.KindAnswer, Token: token, STag: uint32(s)}
	if err != nil {
		x.Status = 1
	}
	c.put(x)
}

// later answers a command when f has returned.
func (c *client) later(token uint64, f func() error) {
	c.work.Go(func() {
		c.answer(token, 0, f())
		c.drain()
	})
}

var (
	errNumber = errors.New("nic: a number that is in use, or too large")
	errNone   = errors.New("nic: there is no such thing")
)

// register makes a region of memory of an arena. The lock is held.
func (c *client) register(d *shm.Descriptor, p shm.Piece) (rdma.STag, error) {
	number := uint32(d.Offset)
	a, dom := c.arenas[p.Region&^shm.Arena], c.domains[d.STag]
	switch {
	case a == nil || a.going || dom == nil:
		return 0, errNone
	case d.Offset >= shm.MaxObjects || c.regions[number] != nil:
		return 0, errNumber
	}
	b := a.seg.Bytes()
	if p.Offset > uint64(len(b)) || uint64(p.Len) > uint64(len(b))-p.Offset {
		return 0, fmt.Errorf("nic: %d bytes at %d of an arena of %d", p.Len, p.Offset, len(b))
	}
	r, err := dom.Register(b[p.Offset:][:p.Len:p.Len], rdma.Access(d.Access))
	if err != nil {
		return 0, err
	}
	c.regions[number] = &region{r, a}
	a.users++
	return r.STag(), nil
}

// deregister ends a region. If that may take a while, it returns what does it. The lock is held.
func (c *client) deregister(d *shm.Descriptor) (wait func() error) {
	r := c.regions[uint32(d.Offset)]
	if r == nil {
		return func() error { return errNone }
	}
	delete(c.regions, uint32(d.Offset))
	if s, ok := r.Region.(*soft.Region); ok && s.Idle() {
		_ = r.Deregister()
		r.arena.users--
		return nil
	}
	return func() error {
		err := r.Deregister()
		c.mu.Lock()
		r.arena.users--
		c.mu.Unlock()
		return err
	}
}

// newWindow makes a window. The lock is held.
func (c *client) newWindow(d *shm.Descriptor) error {
	dom := c.domains[d.STag]
	switch {
	case dom == nil:
		return errNone
	case d.Offset >= shm.MaxObjects || c.windows[uint32(d.Offset)] != nil:
		return errNumber
	}
	w, err := dom.NewWindow()
	if err == nil {
		c.windows[uint32(d.Offset)] = w
	}
	return err
}

// freeWindow ends a window, after what was posted before. The lock is held.
func (c *client) freeWindow(d *shm.Descriptor) {
	w := c.windows[uint32(d.Offset)]
	if w == nil {
		c.answer(d.Token, 0, errNone)
		return
	}
	for _, p := range c.pairs() {
		c.consume(p.sq)
	}
	delete(c.windows, uint32(d.Offset))
	c.later(d.Token, w.Free)
}

// revoke takes an STag back that is advertised, after what was posted before. The lock is held.
func (c *client) revoke(d *shm.Descriptor) error {
	p := c.pair(uint32(d.Offset))
	if p == nil {
		return errNone
	}
	c.consume(p.sq)
	s, number := d.STag, p.number
	return p.qp.Revoke(rdma.STag(s), func() {
		c.put(shm.Completion{Kind: shm.KindRevoked, QueuePair: number, STag: s})
		c.work.Go(c.drain) // who calls may hold locks
	})
}

// pair returns a queue pair. The lock is held.
func (c *client) pair(number uint32) *pair {
	if q := c.queues[number]; q != nil && q.pair != nil && q.pair.sq == q {
		return q.pair
	}
	return nil
}

// in returns the region that all of the arena is in a domain.
func (a *arena) in(dom rdma.Domain) (*soft.Region, error) {
	if r := a.whole[dom]; r != nil {
		return r, nil
	}
	r, err := dom.Register(a.seg.Bytes(), rdma.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	s := r.(*soft.Region)
	if a.whole == nil {
		a.whole = make(map[rdma.Domain]*soft.Region)
	}
	a.whole[dom] = s
	return s, nil
}
