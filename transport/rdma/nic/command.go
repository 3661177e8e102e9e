package nic

import (
	"errors"
	"sync"

	"oneshot/transport/rdma/nic/shm"
)

// commands are what the card is asked over the ring of commands.
type commands struct {
	hint  uint64        // place of the last hint; guarded by Device.hintMu
	slots chan struct{} // one for each command under way

	mu   sync.Mutex // a leaf
	tail uint32
	free []uint32 // tags
	all  [shm.Commands]command
}

// command is a command under way.
type command struct {
	asked bool
	done  chan struct{} // has something in it when the answer has come; capacity 1
	x     shm.Completion
}

func (c *commands) init() {
	c.slots = make(chan struct{}, shm.Commands)
	for i := range c.all {
		c.free = append(c.free, uint32(i))
		c.all[i].done = make(chan struct{}, 1)
	}
}

// begin takes a tag. end gives it back.
func (c *commands) begin() (tag uint32, done <-chan struct{}) {
	c.slots <- struct{}{}
	c.mu.Lock()
	defer c.mu.Unlock()
	tag = c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.all[tag].asked = true
	return tag, c.all[tag].done
}

func (c *commands) end(tag uint32) shm.Completion {
	c.mu.Lock()
	k := &c.all[tag]
	x := k.x
	if k.asked { // the card has gone
		k.asked = false
	} else {
		select {
		case <-k.done:
		default:
		}
	}
	c.free = append(c.free, tag)
	c.mu.Unlock()
	<-c.slots
	return x
}

// answer takes an answer. False: nobody has asked.
func (c *commands) answer(x *shm.Completion) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Token >= uint64(len(c.all)) || !c.all[x.Token].asked {
		return false
	}
	k := &c.all[x.Token]
	k.x, k.asked = *x, false
	k.done <- struct{}{}
	return true
}

var errRefused = errors.New("nic: the card refuses")

// command has the card do d, with piece p, and waits for the answer.
func (d *Device) command(x *shm.Descriptor, p shm.Piece) (shm.Completion, error) {
	c := &d.commands
	tag, done := c.begin()
	x.Token = uint64(tag)
	c.mu.Lock()
	slot := d.ctl.Command(c.tail)
	x.Put(slot)
	shm.PutPiece(slot, nil, 0, 1, p)
	c.tail++
	d.ctl.CommandTail.Store(c.tail)
	c.mu.Unlock()
	d.hint(shm.CommandQueue, &c.hint)
	err := d.wait(done)
	a := c.end(tag)
	if err == nil && a.Status != 0 {
		err = errRefused
	}
	return a, err
}
