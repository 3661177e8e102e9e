package nvmf

import (
	"slices"

	"oneshot/nvme"
	"oneshot/volume"
)

// event is an asynchronous event that hosts can be told of (Base 2.0 §5.2).
type event uint8

const (
	eventNamespaces  event = iota // namespaces have come, gone, or changed
	eventDiscovery                // the discovery log has changed
	eventANA                      // an access state has changed
	eventReservation              // there is a reservation notification
	eventSanitize                 // a sanitize operation has ended
	eventCount
)

// eventKinds says how each is told, which bit of the feature enables it (0: it has none), and which log ends its mask.
var eventKinds = [eventCount]struct {
	told    uint32
	enabled uint32
	log     nvme.LID
}{
	eventNamespaces:  {nvme.EventNamespaces, nvme.OAESNamespace, nvme.LogChanged},
	eventDiscovery:   {nvme.EventDiscovery, nvme.OAESDiscovery, nvme.LogDiscovery},
	eventANA:         {nvme.EventANA, nvme.OAESANA, nvme.LogANA},
	eventReservation: {nvme.EventReservation, 0, nvme.LogReservation},
	eventSanitize:    {nvme.EventSanitize, 0, nvme.LogSanitize},
}

// events are those of a controller. Each is told once, until the host has read the log about it: meanwhile it is masked.
// Those without a request to answer wait.
type events struct {
	parked  []*Task // Asynchronous Event Requests, oldest first
	pending [eventCount]bool
	masked  [eventCount]bool
}

// maxEventRequests is how many Asynchronous Event Requests may be outstanding.
const maxEventRequests = 4

// asyncEvent parks an Asynchronous Event Request.
func (t *Task) asyncEvent() volume.Next {
	c := t.Queue.ctrl
	if len(c.events.parked) >= maxEventRequests {
		return t.refuse(nvme.AsyncEventLimit)
	}
	t.parked = true
	c.events.parked = append(c.events.parked, t)
	t.Queue.post(c.deliver) // when the queue has noted that the task waits
	return volume.Wait
}

// unpark takes back an Asynchronous Event Request that is aborted.
func (c *Controller) unpark(t *Task) {
	t.parked = false
	c.events.parked = slices.DeleteFunc(c.events.parked, func(p *Task) bool { return p == t })
}

// raise notes an event, and tells it if the host wants that. The lock of the admin queue is held.
func (c *Controller) raise(e event) {
	enabled := eventKinds[e].enabled
	if (enabled == 0 || c.features.events&enabled != 0) && c.admin.state == queueConnected {
		c.events.pending[e] = true
		c.deliver()
	}
}

// deliver answers requests with events.
func (c *Controller) deliver() {
	for e := range eventCount {
		first := slices.IndexFunc(c.events.parked, func(t *Task) bool { return !t.aborted }) // one that is, tells nothing
		if !c.events.pending[e] || c.events.masked[e] || first < 0 {
			continue
		}
		c.events.pending[e], c.events.masked[e] = false, true
		t := c.events.parked[first]
		c.unpark(t)
		t.CQE.DW0 = eventKinds[e].told
		c.admin.step(t, t.end(nvme.Success))
	}
}

// logRead notes that the host has read a log, which ends masks.
func (c *Controller) logRead(l nvme.LID) {
	for e := range eventCount {
		if eventKinds[e].log == l && c.events.masked[e] {
			c.events.masked[e], c.events.pending[e] = false, false
		}
	}
}

// retellTicks is how many seconds a host has to take away a namespace that is another one now, on all of its paths.
const retellTicks = 3

// retell are namespaces in whose place others have come. Linux looks at what it knows when it is told, takes away the device of a namespace
// with other identifiers, and makes one of the namespace that it finds when it is told the next time: so it is told twice.
type retell struct {
	list []uint32 // sorted
	at   uint32   // Node.clock when they are told again; 0: the host has not read the log about the first time
}

// namespacesReplaced notes namespaces that are to be told twice.
func (c *Controller) namespacesReplaced(list []uint32) {
	if len(list) != 0 {
		c.retell = retell{list: withNSIDs(c.retell.list, list)}
	}
}

// changedRead is called when the host has read the log of changed namespaces, which is empty then.
func (c *Controller) changedRead() {
	c.changed = nil
	if r := &c.retell; len(r.list) != 0 && r.at == 0 {
		r.at = c.node.clock.Load() + retellTicks
	}
}

// tellAgain tells what is due.
func (c *Controller) tellAgain(now uint32) {
	if r := c.retell; r.at != 0 && now >= r.at {
		c.retell = retell{}
		c.namespacesChanged(r.list)
	}
}

// namespacesChanged notes namespaces for the log of changed ones, and raises the event.
func (c *Controller) namespacesChanged(list []uint32) {
	if c.admin.state != queueConnected {
		return
	}
	c.changed = withNSIDs(c.changed, list)
	c.raise(eventNamespaces)
}

// withNSIDs adds namespaces to a sorted list, which has each of them once.
func withNSIDs(sorted, more []uint32) []uint32 {
	for _, nsid := range more {
		if at, found := slices.BinarySearch(sorted, nsid); !found {
			sorted = slices.Insert(sorted, at, nsid)
		}
	}
	return sorted
}
