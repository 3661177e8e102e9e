package nic

import (
	"errors"
	"runtime"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// completionQueue is a completion queue. Completions are moved to it from the ring that the card fills, by whoever looks
// first: who polls, who waits for an answer, or the goroutine run.
type completionQueue struct {
	*soft.CompletionQueue
	dev *Device
}

// Poll implements rdma.CompletionQueue.
func (c *completionQueue) Poll(into []rdma.Completion) int {
	n := c.CompletionQueue.Poll(into)
	if n == 0 && len(into) > 0 && c.dev.due() {
		c.dev.settle(c.dev.harvest)
		n = c.CompletionQueue.Poll(into)
	}
	return n
}

var errLies = errors.New("the card says what no card says")

// due reports whether the card has put something into the ring.
func (d *Device) due() bool { return d.ctl.CompletionTail.Load() != d.ctl.CompletionHead.Load() }

// harvest takes everything out of the ring. harvestMu is held. Events of the queues in d.touched may be due.
func (d *Device) harvest() {
	for !d.dead {
		n := d.ctl.CompletionTail.Load() - d.head
		if n == 0 {
			return
		}
		if n > shm.Completions {
			d.lose(errLies)
			return
		}
		for ; n > 0; n-- {
			var x shm.Completion
			d.ctl.Get(d.head, &x)
			d.head++
			if !d.dispatch(&x) {
				d.lose(errLies)
				return
			}
		}
		d.ctl.CompletionHead.Store(d.head)
		if d.ctl.Stalled.Load() != 0 { // it waits for room
			d.hint(shm.CommandQueue, &d.commands.hint)
		}
	}
}

// dispatch takes one entry of the ring. harvestMu is held.
func (d *Device) dispatch(x *shm.Completion) bool {
	if x.Kind == shm.KindAnswer {
		return d.commands.answer(x)
	}
	q := d.pair(x.QueuePair)
	if q == nil {
		return false
	}
	switch {
	case x.Kind == shm.KindRevoked:
		return q.revoked(rdma.STag(x.STag))
	case x.Kind != shm.KindCompletion:
		return false
	case rdma.Opcode(x.Op) == rdma.OpReceive:
		return q.received(x)
	}
	return q.completed(x)
}

// touch notes that c has something new. harvestMu is held.
func (d *Device) touch(c *soft.CompletionQueue) {
	for _, t := range d.touched {
		if t == c {
			return
		}
	}
	d.touched = append(d.touched, c)
}

// settle calls f, with harvestMu held, and has others call the events that are due then.
func (d *Device) settle(f func()) {
	d.harvestMu.Lock()
	f()
	for i, c := range d.touched {
		c.Notify()
		d.touched[i] = nil
	}
	d.touched = d.touched[:0]
	d.harvestMu.Unlock()
}

// sleep returns when there is something in the ring or in done, or the card has gone. The caller has the baton.
func (d *Device) sleep(done <-chan struct{}) {
	if d.poll > 0 && d.spin(done) {
		return
	}
	d.sleeper = done
	_ = d.bell.Wait(d.look)
}

// wakeful is what whoever sleeps looks for, as the function value look.
func (d *Device) wakeful() bool {
	d.ctl.Driver.Begin()
	if d.due() || len(d.sleeper) > 0 { // somebody else may have taken it out of the ring
		d.ctl.Driver.End()
		return true
	}
	return false
}

// looks is how often spin looks before it asks for the time, and yields.
const looks = 64

// spin looks for something in the ring or in done for as long as Config.Poll says. False: there is nothing.
func (d *Device) spin(done <-chan struct{}) bool {
	for begun := time.Now(); ; {
		for range looks {
			if d.due() || len(done) > 0 {
				return true
			}
		}
		if time.Since(begun) > d.poll {
			return false
		}
		runtime.Gosched()
	}
}

// run takes completions when nobody else does, and calls events.
func (d *Device) run() {
	var touched []*soft.CompletionQueue
	for {
		select {
		case d.baton <- struct{}{}:
		case <-d.lost:
			return
		}
		d.sleep(nil)
		d.harvestMu.Lock()
		d.harvest()
		touched = append(touched[:0], d.touched...)
		clear(d.touched)
		d.touched = d.touched[:0]
		d.harvestMu.Unlock()
		<-d.baton
		for i, c := range touched {
			c.Fire()
			touched[i] = nil
		}
	}
}

// wait waits until there is something in done, and takes it. The goroutine run may be in an event that waits here, so whoever waits takes
// its part.
func (d *Device) wait(done <-chan struct{}) error {
	for {
		if d.due() {
			d.settle(d.harvest)
		}
		select {
		case <-done:
			return nil
		default:
		}
		select {
		case <-done:
			return nil
		case <-d.flushed:
			select {
			case <-done:
				return nil
			default:
				return d.lostErr
			}
		case d.baton <- struct{}{}:
			d.sleep(done)
			d.settle(d.harvest)
			<-d.baton
		}
	}
}
