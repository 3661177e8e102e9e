package nvmf

import (
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/internal/iostat"
	"oneshot/nvme"
	"oneshot/nvme/auth"
)

// SubsystemConfig says what a subsystem is.
type SubsystemConfig struct {
	NQN    string
	Serial string // at most 20 characters, the same on every node
	// CNTLIDs are the first and the last identifier of controllers that this node gives, within 1 and nvme.LastCNTLID; zero: all of these.
	// Nodes that show one subsystem have to give different ones (Base 2.0 §3.1.2).
	CNTLIDs [2]uint16
	// Admit says which hosts may connect; nil: all.
	Admit func(hostNQN string) bool
	// Auth says what a host has to prove, and how; nil, or the answer nil: nothing.
	Auth func(hostNQN string) *auth.Rules
	// Namespaces are what it shows at the start.
	Namespaces []Shown
}

// Shown is a namespace with its number; nil: there is none any more.
type Shown struct {
	NSID      uint32
	Namespace *Namespace
}

// MaxNSID is the largest NSID that a namespace may have.
const MaxNSID = 1024

// Subsystem is an NVM subsystem, or the discovery subsystem. Its methods may be called from any goroutine.
type Subsystem struct {
	node   *Node
	nqn    string
	serial string
	ids    [2]uint16 // of controllers

	removed atomic.Bool // from the node; its controllers end

	mu          sync.Mutex // taken after Node.mu and Queue.mu
	admit       func(hostNQN string) bool
	auth        func(hostNQN string) *auth.Rules
	namespaces  []Shown // sorted; guarded by mu
	controllers map[uint16]*Controller
	past        map[uint32]*iostat.Stats // by NSID, of queues that are gone
	lastID      uint16                   // of the last controller
	masks       map[noticeKey]uint32     // of reservation notifications, of hosts with controllers; guarded by mu
	waiting     []*Task                  // those with Task.waits; guarded by mu
	taken       []taken                  // the oldest first; guarded by mu

	dirtyMu   sync.Mutex  // a leaf
	dirty     []uint32    // namespaces of whose changes hosts are to be told; guarded by dirtyMu
	replaced  []uint32    // those of dirty in whose place others have come; guarded by dirtyMu
	told      []*attached // of which something is told; guarded by dirtyMu
	sanitized bool        // a volume has ended a sanitize operation; guarded by dirtyMu
}

func newSubsystem(n *Node, cfg SubsystemConfig) *Subsystem {
	s := &Subsystem{node: n, nqn: cfg.NQN, serial: cfg.Serial, ids: cfg.CNTLIDs, admit: cfg.Admit, auth: cfg.Auth, controllers: make(map[uint16]*Controller), masks: make(map[noticeKey]uint32), past: make(map[uint32]*iostat.Stats)}
	if s.ids == [2]uint16{} {
		s.ids = [2]uint16{1, nvme.LastCNTLID}
	}
	s.SetNamespaces(cfg.Namespaces)
	return s
}

// NQN is the name.
func (s *Subsystem) NQN() string { return s.nqn }

// isDiscovery reports whether it is the discovery subsystem.
func (s *Subsystem) isDiscovery() bool { return s == s.node.discovery }

func (s *Subsystem) admits(host string) bool {
	s.mu.Lock()
	admit := s.admit
	s.mu.Unlock()
	return admit == nil || admit(host)
}

// rulesFor says what a host has to prove; nil: nothing.
func (s *Subsystem) rulesFor(host string) *auth.Rules {
	s.mu.Lock()
	rules := s.auth
	s.mu.Unlock()
	if rules == nil {
		return nil
	}
	return rules(host)
}

// SetAccess changes which hosts may connect, and what they have to prove; see SubsystemConfig. Controllers of hosts that may not connect
// any more end. That takes a moment, but they reach no namespace from now on, and none that is put here later. What the others have
// proved already stands.
func (s *Subsystem) SetAccess(admit func(hostNQN string) bool, rules func(hostNQN string) *auth.Rules) {
	s.mu.Lock()
	s.admit, s.auth = admit, rules
	for _, c := range s.controllers {
		if admit != nil && !admit(c.hostNQN) {
			c.barred.Store(true)
			s.attachTo(c)
		}
	}
	s.mu.Unlock()
	s.node.discoveryChanged()
	s.drop(func(c *Controller) bool { return c.barred.Load() }, "the subsystem does not admit the host any more")
}

// drop ends the controllers that are meant.
func (s *Subsystem) drop(meant func(*Controller) bool, why string) {
	for _, c := range s.list() {
		if meant(c) {
			c.admin.post(func() { c.admin.dismiss(why) })
		}
	}
}

func (s *Subsystem) list() []*Controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Controller, 0, len(s.controllers))
	for _, c := range s.controllers {
		list = append(list, c)
	}
	return list
}

// SetNamespaces puts namespaces at numbers, and takes away others. Hosts are told.
func (s *Subsystem) SetNamespaces(changes []Shown) {
	s.mu.Lock()
	var all, replaced []uint32
	for _, x := range changes {
		all = append(all, x.NSID)
		at, found := slices.BinarySearchFunc(s.namespaces, x.NSID, compareNSID)
		if found {
			if x.Namespace != nil && x.Namespace.uuid != s.namespaces[at].Namespace.uuid {
				replaced = append(replaced, x.NSID)
			}
			s.namespaces[at].Namespace.hide(s, x.NSID)
			s.namespaces = slices.Delete(slices.Clone(s.namespaces), at, at+1)
			s.forgetMasks(func(k noticeKey) bool { return k.nsid == x.NSID })
		}
		if x.Namespace != nil {
			s.namespaces = slices.Insert(slices.Clone(s.namespaces), at, x)
			x.Namespace.show(s, x.NSID)
		}
	}
	for _, c := range s.controllers {
		s.attachTo(c)
	}
	s.mu.Unlock()
	s.changed(all, replaced...)
}

// attachTo has a controller and its queues follow the namespaces. mu is held.
func (s *Subsystem) attachTo(c *Controller) {
	c.setAttached(s.namespaces)
	for _, q := range c.allQueues() {
		q.setPaths(*c.attached.Load())
	}
}

func compareNSID(x Shown, nsid uint32) int { return int(x.NSID) - int(nsid) }

func (n *Namespace) show(s *Subsystem, nsid uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = append(n.subs, shown{s, nsid})
}

func (n *Namespace) hide(s *Subsystem, nsid uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = slices.DeleteFunc(slices.Clone(n.subs), func(x shown) bool { return x == shown{s, nsid} })
}

// shownNow lists the namespaces. The list is not changed any more.
func (s *Subsystem) shownNow() []Shown {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.namespaces
}

// changed has hosts told that namespaces have come, gone, or changed, and in the place of which others have come. It takes no lock but a leaf.
func (s *Subsystem) changed(list []uint32, replaced ...uint32) {
	s.dirtyMu.Lock()
	s.dirty, s.replaced = withNSIDs(s.dirty, list), withNSIDs(s.replaced, replaced)
	s.dirtyMu.Unlock()
	s.node.notify()
}

// tellAccess has a controller told of what the table of a volume says. It takes no lock but a leaf.
func (s *Subsystem) tellAccess(a *attached) {
	s.dirtyMu.Lock()
	s.told = append(s.told, a)
	s.dirtyMu.Unlock()
	s.node.notify()
}

// tell tells the controllers which namespaces have changed, and what reservations and access states have become.
func (s *Subsystem) tell() {
	s.dirtyMu.Lock()
	dirty, replaced, told := s.dirty, s.replaced, s.told
	sanitized := s.sanitized
	s.dirty, s.replaced, s.told, s.sanitized = nil, nil, nil, false
	s.dirtyMu.Unlock()
	if sanitized {
		s.tellSanitized()
	}
	for _, a := range told {
		a.ctrl.admin.post(func() { a.ctrl.accessTold(a) })
	}
	if len(dirty) == 0 {
		return
	}
	for _, c := range s.list() {
		c.admin.post(func() {
			c.namespacesReplaced(replaced)
			c.namespacesChanged(dirty)
		})
	}
}

// add gives a controller its ID. False: the subsystem has no ID left, or has been removed or admits the host no more since Connect has
// looked: who ends controllers for that looks for them afterwards.
func (s *Subsystem) add(c *Controller) bool {
	first, last := s.ids[0], s.ids[1]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.controllers) > int(last-first) || s.removed.Load() || s.admit != nil && !s.admit(c.hostNQN) {
		return false
	}
	for {
		if s.lastID++; s.lastID < first || s.lastID > last {
			s.lastID = first
		}
		if s.controllers[s.lastID] == nil {
			break
		}
	}
	c.id = s.lastID
	s.controllers[c.id] = c
	return true
}

// awaitFormer has a Connect wait as long as a controller of the host that has ended has commands in stores, and reports whether there is one. The
// host sends these again, and what it writes then must not be written over by them. Those of a subsystem that was removed, and of a host that
// was not admitted in between, end if they have not yet.
func (s *Subsystem) awaitFormer(t *Task, hostNQN string, hostID [16]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.controllers {
		if c.hostNQN == hostNQN && c.hostID == hostID && !c.isFlushing() && (c.hasEnded() || c.barred.Load() || s.removed.Load()) {
			t.waits = s
			s.waiting = append(s.waiting, t)
			return true
		}
	}
	return false
}

// giveUp ends the wait of a Connect whose connection is lost. The lock of its queue is held.
func (s *Subsystem) giveUp(t *Task) {
	t.waits = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(w *Task) bool { return w == t })
}

// goOn has a Connect that has waited look again.
func (t *Task) goOn() {
	if t.waits != nil { // else it was aborted meanwhile
		t.waits = nil
		t.Queue.step(t, t.connectData())
	}
}

func (s *Subsystem) remove(c *Controller) {
	s.mu.Lock()
	delete(s.controllers, c.id)
	s.keepTaken(c)
	last := true
	for _, o := range s.controllers {
		last = last && o.hostID != c.hostID
	}
	if last {
		s.forgetMasks(func(k noticeKey) bool { return k.host == c.hostID })
	}
	s.mu.Unlock()
	s.wakeConnects()
}

// wakeConnects has those look again that wait for former controllers.
func (s *Subsystem) wakeConnects() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, t := range waiting {
		t.Queue.post(t.goOn)
	}
}

func (s *Subsystem) controller(id uint16) *Controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.controllers[id]
}

// controllerIDs lists the controllers from first on, ascending, but those whose hosts have proved nothing yet.
func (s *Subsystem) controllerIDs(first uint16) []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint16
	for id, c := range s.controllers {
		if id >= first && !c.unproven {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// smart is what the commands of all controllers have done; nsid names one namespace, or all.
func (s *Subsystem) smart(nsid uint32) nvme.Smart {
	var sum iostat.Stats
	for _, n := range s.Stats() {
		if nsid == nvme.AllNamespaces || nsid == n.NSID {
			sum.Add(&n.Stats)
		}
	}
	return nvme.Smart{
		Reads: sum.Commands[iostat.Read].Count(), Writes: sum.Commands[iostat.Write].Count(),
		BytesRead: sum.ReadBytes, BytesWritten: sum.WriteBytes, MediaErrors: sum.Failed[iostat.MediumError],
	}
}
