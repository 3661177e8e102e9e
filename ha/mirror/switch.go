package mirror

import (
	"context"
	"errors"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// Errors of SwitchTo.
var (
	// ErrCannotTake: that node is this one, not in sync or drained, or this node is handing over already.
	ErrCannotTake = errors.New("the node cannot take over now")
	// ErrTooLate: the other copy has not got all in time, and this node goes on.
	ErrTooLate = errors.New("the node has not got all that was written in time")
)

// ErrSilent of Successor: nobody has said that he serves.
var ErrSilent = errors.New("no node has said that it serves")

// SwitchTo has this node, the primary, hand over to another one that is in sync. It returns nil when that one has the
// office; whether it serves [Mirror.Successor] says. After an error of ctx it is not known whether it will have it.
func (m *Mirror) SwitchTo(ctx context.Context, to replica.ID) error {
	end := make(chan replica.Status, 1)
	asked := m.push(item{call: func() {
		if m.core == nil || m.closing {
			end <- replica.Moved
			return
		}
		id := m.orderID()
		m.switches[id] = end
		m.step(replica.Switch{ID: id, To: to})
	}})
	if !asked {
		return m.moved()
	}
	select {
	case status := <-end:
		switch status {
		case replica.Good:
			return nil
		case replica.Refused:
			return ErrCannotTake
		case replica.Failed:
			return ErrTooLate
		}
		return m.moved()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SwitchToOneOf has one of these nodes take over, the first that can, and returns which one: that which the error is about, if none has. It is
// ErrCannotTake if there is no other node among them.
func (m *Mirror) SwitchToOneOf(ctx context.Context, nodes replica.Nodes) (to replica.ID, err error) {
	to, err = m.cfg.Self, ErrCannotTake
	for to = range nodes.Without(m.cfg.Self).All() {
		if err = m.SwitchTo(ctx, to); !errors.Is(err, ErrCannotTake) && !errors.Is(err, ErrTooLate) {
			return to, err
		}
	}
	return to, err
}

// SuccessorWithin is how long Successor waits. The other nodes, and this one, take over from a node that is silent within half of that.
const SuccessorWithin = 3 * time.Second

// Successor returns which node serves since this one has handed over, as it says itself: the one that was given the office, which may have been lost, or hang,
// just then, or who has taken over from that, perhaps this one.
func (m *Mirror) Successor(ctx context.Context) (replica.ID, error) {
	says := make(chan replica.ID, 1)
	ctx, cancel := context.WithTimeout(ctx, SuccessorWithin)
	defer cancel()
	asked := m.push(item{call: func() {
		if m.core == nil || m.closing {
			close(says)
			return
		}
		m.office.tellOfSuccessor(says, m.core.State().View.Primary)
	}})
	if !asked {
		return 0, ErrSilent
	}
	select {
	case id, ok := <-says:
		if ok {
			return id, nil
		}
	case <-ctx.Done():
	}
	return 0, ErrSilent
}

// isOrder tells requests of the administrator from those of hosts.
const isOrder = 1 << 63

// orderID numbers a request of the administrator.
func (m *Mirror) orderID() uint64 {
	m.orders++
	return isOrder | m.orders
}

// ordered takes the answer to a request of the administrator.
func (m *Mirror) ordered(a *replica.Answer) {
	if v := m.verifying; v != nil && v.id == a.ID {
		err := v.hasLeft(m.core.State().View.InSync)
		if a.Status != replica.Good {
			err = m.moved()
		}
		m.endVerify(err)
		return
	}
	if a.ID == m.growing {
		if m.growing = 0; a.Status == replica.Good {
			m.show(m.reached)
		}
		return
	}
	m.endSwitch(a.ID, a.Status)
}

// endSwitch answers an order to hand over, if it is one.
func (m *Mirror) endSwitch(id uint64, s replica.Status) {
	end := m.switches[id]
	if end == nil {
		return
	}
	delete(m.switches, id)
	end <- s
	for _, over := range m.beside {
		over <- true
	}
	m.beside = nil
}

// awaitOrder waits until the order to hand over that is under way has ended. False: there is none.
func (m *Mirror) awaitOrder(ctx context.Context) bool {
	over := make(chan bool, 1)
	asked := m.push(item{call: func() {
		if len(m.switches) == 0 {
			over <- false
			return
		}
		m.beside = append(m.beside, over)
	}})
	if !asked {
		return false
	}
	select {
	case was := <-over:
		return was
	case <-ctx.Done():
		return false
	}
}

// Drain tells which nodes are to serve nothing.
func (m *Mirror) Drain(nodes replica.Nodes) { m.push(item{event: replica.Drained{Nodes: nodes}}) }

// How long Close waits for other copies.
const (
	flushWithin    = 10 * time.Second
	handOverWithin = 3 * time.Second // two copies that are late, one after the other, and one that is not
)

// HandOver has another copy in sync take the place of this one, the primary, which is about to end, if there is one that does so soon. It waits until that
// one serves, also if an administrator has ordered that before. If that was lost, or hangs, just then, a third copy can take over for as long as this one is there to promise that to it. This one does not: the
// silent one would not be in sync any more, and could not serve when it goes on.
func (m *Mirror) HandOver() {
	s, _ := m.Status()
	ctx, cancel := context.WithTimeout(m.ctx, handOverWithin)
	defer cancel()
	to, err := m.SwitchToOneOf(ctx, s.View.InSync&s.Connected)
	for errors.Is(err, ErrCannotTake) && m.awaitOrder(ctx) {
		to, err = m.SwitchToOneOf(ctx, s.View.InSync&s.Connected)
	}
	if _, moved := errors.AsType[*backend.MovedError](err); moved { // by that order
		s, _ = m.Status()
		to = s.View.Primary
	} else if err != nil {
		return // this one ends all the same
	}
	m.push(item{call: func() {
		m.leaving = true
		m.step(replica.Drained{Nodes: m.excused()})
	}})
	if _, err := m.Successor(m.ctx); err != nil {
		m.opts.Log.Warn("this node ends, and has handed over to one that does not say that it serves; nobody may serve before that one, or this one, is back", "copy", to)
	}
}
