package nvmf

import (
	"cmp"
	"slices"
	"sync/atomic"

	"oneshot/nvme"
	"oneshot/volume/access"
)

// attached is a namespace as one controller reaches it: what its host may not do with it, and what the host is to be told. It
// subscribes to the table of the volume until the controller, or the namespace, is gone.
type attached struct {
	ns   *Namespace
	ctrl *Controller
	nsid uint32

	denied atomic.Uint32 // access.Denial
	told   atomic.Uint32 // access.Event that the controller does not know yet
	known  disk          // what the host takes the number for; guarded by Subsystem.mu

	recovery uint32 // TLER, which changes nothing here; guarded by the lock of the admin queue
}

// anaGroup is the namespace of a number, whichever it is: hosts remember its state by that.
type anaGroup struct {
	state   access.GroupState // as the host was told
	read    access.GroupState // as the log has had it since, in which the host may have read it before it is told
	changes uint64            // of state
}

var _ access.Subscriber = (*attached)(nil)

// attach begins what c knows of the namespace. Subsystem.mu is held.
func (n *Namespace) attach(c *Controller, nsid uint32) *attached {
	a := &attached{ns: n, ctrl: c, nsid: nsid}
	n.mu.Lock()
	n.attached = append(n.attached, a)
	n.mu.Unlock()
	table := n.v.Access()
	group := c.groups[nsid]
	if group == nil {
		state := table.OwnGroup(c.group).State
		group = &anaGroup{state: state, read: state}
		c.groups[nsid] = group
	}
	table.Subscribe(a)
	// The namespace that had the number before may have been in another state, which Linux goes by until it is told. And nobody has told what
	// has changed a moment ago.
	if table.OwnGroup(c.group).State != group.state {
		a.Tell(access.AccessChanged)
	}
	return a
}

// detach ends it, if Namespace.Close has not. No command runs in it.
func (a *attached) detach() {
	n := a.ns
	n.mu.Lock()
	at := slices.Index(n.attached, a)
	if at >= 0 {
		n.attached = slices.Delete(n.attached, at, at+1)
	}
	n.mu.Unlock()
	if at >= 0 {
		n.v.Access().Unsubscribe(a)
	}
}

// setAttached follows the namespaces of the subsystem, whose mu is held. What is not attached any more stays subscribed while commands
// run in it: they may have to be aborted.
func (c *Controller) setAttached(list []Shown) {
	if c.gone || c.unproven {
		return
	}
	if c.barred.Load() {
		list = nil
	}
	var takes map[uint32]disk
	if !c.reaches {
		takes = c.sub.takenBy(c)
	}
	old := *c.attached.Load()
	now := make([]*attached, 0, len(list))
	for _, x := range list {
		i := slices.IndexFunc(old, func(a *attached) bool { return a.nsid == x.NSID })
		if i >= 0 && old[i].ns == x.Namespace {
			now = append(now, old[i])
			continue
		}
		a := x.Namespace.attach(c, x.NSID)
		switch {
		case i >= 0:
			a.knows(old[i].known)
		case c.reaches:
			a.knows(disk{})
		default: // if nothing else is known, a host that connects asks
			a.knows(cmp.Or(takes[x.NSID], x.Namespace.disk()))
		}
		now = append(now, a)
	}
	c.reaches = true
	c.detached = slices.DeleteFunc(c.detached, func(a *attached) bool { return a.ns.closed.Load() })
	for _, a := range old {
		if !slices.Contains(now, a) {
			c.detached = append(c.detached, a)
		}
	}
	c.attached.Store(&now)
}

// moves reports whether a namespace moves from node to node. What would have to be remembered at each of them is not done then: Sanitize.
func (c *Controller) moves() bool {
	return slices.ContainsFunc(*c.attached.Load(), func(a *attached) bool { return a.ns.v.Moves() })
}

// Holder implements access.Subscriber: all controllers of a host are one registrant, and access states are those of the portal.
func (a *attached) Holder() access.Holder {
	c := a.ctrl
	return access.Holder{Initiator: access.Host(c.hostID), Port: access.Port{Target: c.sub.nqn, Group: c.group}}
}

// Session implements access.Subscriber: a host is not told on one controller what it has done on another.
func (a *attached) Session() any { return a.ctrl.hostID }

// Deny implements access.Subscriber.
func (a *attached) Deny(mask, denied access.Denial) {
	for {
		old := a.denied.Load()
		now := old&^uint32(mask) | uint32(denied&mask)
		if a.denied.CompareAndSwap(old, now) {
			if old&^now&uint32(access.Sanitizing) != 0 {
				a.ctrl.sub.sanitizeOver()
			}
			return
		}
	}
}

// Tell implements access.Subscriber.
func (a *attached) Tell(e access.Event) {
	if a.told.Or(uint32(e)) == 0 {
		a.ctrl.sub.tellAccess(a)
	}
}

// Abort implements access.Subscriber (Base 2.0 §8.19.7). What is aborted is over when its status is final: whether the host takes the
// answer does not matter to who waits, unless it may be in the store's own memory: then it would tell what is written there next. Nor does a change of
// reservations, which does nothing to the medium: it may have its turn only when the change that aborts it is over.
func (a *attached) Abort(done func()) {
	w := &abortion{done: done}
	queues := a.ctrl.allQueues()
	w.left.Store(int64(len(queues)) + 1)
	for _, q := range queues {
		q.post(func() {
			for _, t := range q.tasks {
				if t.path == nil || t.path.at != a || t.state == taskForgotten && t.PlaceUnit == 0 {
					continue
				}
				if t.changing == nil {
					w.left.Add(1)
					t.awaited = append(t.awaited, w)
				}
				t.abortWith(nvme.AbortedByPreempt)
			}
			if a.ns.v.Lends() {
				q.awaitRunning(a, w)
			}
			w.over()
		})
	}
	w.over()
}

// awaitRunning has w wait for the commands of a that run: answers that are in the store's own memory are waited for so.
func (q *Queue) awaitRunning(a *attached, w *abortion) {
	a.ctrl.sub.mu.Lock()
	paths := q.everyPath()
	a.ctrl.sub.mu.Unlock()
	for _, p := range paths {
		if p.at == a {
			w.left.Add(1)
			p.commands.Await(w.over)
		}
	}
}

// abortion waits for commands that are aborted.
type abortion struct {
	left atomic.Int64 // commands, queues that have not looked yet, and one for the caller
	done func()
}

func (w *abortion) over() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

// accessTold does what the table has told of a namespace. Of one that was taken away hosts hear nothing: the number may be another one's by now. The lock
// of the admin queue is held.
func (c *Controller) accessTold(a *attached) {
	e := access.Event(a.told.Swap(0))
	if e&access.AccessChanged != 0 && c.stateChanged(a) {
		c.anaChanges++
		c.raise(eventANA)
	}
	if c.admin.state != queueConnected || !slices.Contains(*c.attached.Load(), a) {
		return
	}
	mask := c.sub.noticeMask(c.hostID, a.nsid)
	for _, x := range [...]struct {
		event access.Event
		kind  nvme.NoticeType
	}{
		{access.RegistrationsPreempted, nvme.RegistrationPreempted},
		{access.ReservationsReleased, nvme.ReservationReleased},
		{access.ReservationsPreempted, nvme.ReservationPreempted},
	} {
		if e&x.event != 0 && !x.kind.Masks(mask) {
			c.notices.add(x.kind, a.nsid)
			c.raise(eventReservation)
		}
	}
}

// stateChanged notes the access state of a namespace, and reports whether it is another one than the host was told, or has read meanwhile. What is not
// attached any more has none.
func (c *Controller) stateChanged(a *attached) bool {
	c.sub.mu.Lock()
	defer c.sub.mu.Unlock()
	group, state := c.groups[a.nsid], a.ns.v.Access().OwnGroup(c.group).State
	if state == group.state && state == group.read || !slices.Contains(*c.attached.Load(), a) {
		return false
	}
	group.state, group.read = state, state
	group.changes++
	return true
}

// anaStates translates access states of groups. Hosts of NVMe know one state without I/O that may end.
var anaStates = map[access.GroupState]nvme.ANAState{
	access.ActiveOptimized: nvme.ANAOptimized, access.ActiveNonOptimized: nvme.ANANonOptimized,
	access.Standby: nvme.ANAInaccessible, access.Unavailable: nvme.ANAInaccessible,
	access.Offline: nvme.ANAPersistentLoss, access.Transitioning: nvme.ANAChange,
}

// anaLog is the log of ANA states: each namespace is a group (Base 2.0 §5.16.1.13).
func (c *Controller) anaLog(groupsOnly bool) []byte {
	c.sub.mu.Lock()
	list := *c.attached.Load()
	groups := make([]nvme.ANAGroup, len(list))
	for i, a := range list {
		g := c.groups[a.nsid]
		g.read = a.ns.v.Access().OwnGroup(c.group).State
		groups[i] = nvme.ANAGroup{NSID: a.nsid, State: anaStates[g.read], Changes: g.changes}
	}
	c.sub.mu.Unlock()
	return nvme.AppendANA(nil, c.anaChanges, groups, groupsOnly)
}

// maxNotices is how many reservation notifications wait for a host to read them.
const maxNotices = 64

// notices are the reservation notifications of a controller (Base 2.0 §5.16.1.24).
type notices struct {
	count uint64        // so far, lost ones included
	list  []nvme.Notice // at most maxNotices, the oldest first
}

// add notes a notification. What comes when there are too many is lost, which the host sees by the count.
func (l *notices) add(kind nvme.NoticeType, nsid uint32) {
	l.count++
	if len(l.list) < maxNotices {
		l.list = append(l.list, nvme.Notice{Count: l.count, Type: kind, NSID: nsid})
	}
}

// page is the log page: the oldest notification, or none.
func (l *notices) page() []byte {
	var n nvme.Notice
	if len(l.list) > 0 {
		n = l.list[0]
		n.More = uint8(len(l.list) - 1)
	}
	return n.AppendTo(nil)
}

// read takes the oldest notification away.
func (l *notices) read() {
	if len(l.list) > 0 {
		l.list = slices.Delete(l.list, 0, 1)
	}
}
