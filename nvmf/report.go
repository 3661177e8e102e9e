package nvmf

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"oneshot/internal/iostat"
	"oneshot/nvme"
)

// Counters count since the node was made. They may be read at any time.
type Counters struct {
	Connections     atomic.Uint64 // accepted
	Refused         atomic.Uint64 // connections over the limit: these, or older ones that gave way to them
	Connects        atomic.Uint64 // controllers made
	ConnectFailures atomic.Uint64 // Connect commands refused
	AuthFailures    atomic.Uint64 // authentications failed
	ProtocolErrors  atomic.Uint64 // connections dropped for what the host did, or failed to do
	DigestErrors    atomic.Uint64 // commands whose data had a digest that did not match
}

// Counters are those of the node.
func (n *Node) Counters() *Counters { return &n.counters }

// classes has one entry for each I/O command. A fused pair is one command, which is none of reading or writing.
var classes = func() (c [256]iostat.Class) {
	for i := range c {
		c[i] = iostat.Other
	}
	c[nvme.Read], c[nvme.Write] = iostat.Read, iostat.Write
	return c
}()

// account counts a command whose answer has left: of a namespace, or Connect.
func (t *Task) account() {
	status, op := t.CQE.Status, t.SQE.Opcode()
	if t.path == nil {
		if op == nvme.Fabrics && t.SQE.FCType() == nvme.Connect && status != nvme.Success {
			t.Queue.node.counters.ConnectFailures.Add(1)
		}
		return
	}
	c, class := t.path.counts.Get(), classes[op]
	c.Answered(class, t.Queue.times.Leaving()-t.arrived)
	switch {
	case status != nvme.Success:
		c.Failed(failure(status))
	case class != iostat.Other:
		c.Moved(class, uint64(t.n))
	}
}

// failure is the kind of failure of a status.
func failure(s nvme.Status) iostat.Failure {
	switch s.Code() {
	case nvme.WriteFault, nvme.UnrecoveredRead:
		return iostat.MediumError
	case nvme.InternalError:
		return iostat.HardwareError
	case nvme.WriteProtected, nvme.CapacityExceeded:
		return iostat.DataProtect
	case nvme.CompareFailure:
		return iostat.Miscompare
	case nvme.Aborted, nvme.AbortedByQueue, nvme.AbortedByPreempt, nvme.DataTransferError, nvme.TransientTransport, nvme.FusedFailed, nvme.FusedMissing:
		return iostat.AbortedCommand
	case nvme.ReservationConflict:
		return iostat.ReservationConflict
	case nvme.Interrupted, nvme.NamespaceNotReady:
		return iostat.TaskSetFull
	case nvme.SanitizeFailed, nvme.SanitizeInProgress, nvme.InternalPath, nvme.PersistentLoss, nvme.Inaccessible, nvme.PathInTransition:
		return iostat.OtherSense
	}
	return iostat.IllegalRequest
}

// remember keeps what the paths of a queue that is gone have counted, so that counts never go back. Subsystem.mu is held.
func (c *Controller) remember(paths []*path) {
	for _, p := range paths {
		past := c.sub.past[p.nsid]
		if past == nil {
			past = new(iostat.Stats)
			c.sub.past[p.nsid] = past
		}
		p.counts.AddTo(past)
		p.counts.AddTo(&c.past)
	}
}

// addTo adds what the path counts to s.
func (p *path) addTo(s *iostat.Stats) {
	_, all := p.commands.Count()
	s.InFlight += all
	p.counts.AddTo(s)
}

// everyPath lists the paths of the queue, those to namespaces included that were taken away. Subsystem.mu is held.
func (q *Queue) everyPath() []*path { return append(slices.Clone(*q.paths.Load()), q.retired...) }

// NamespaceStats is what happened to the namespace of a number since the subsystem exists.
type NamespaceStats struct {
	NSID      uint32
	Namespace *Namespace // which is there now
	iostat.Stats
}

// Stats returns one entry for each namespace, in their order.
func (s *Subsystem) Stats() []NamespaceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]NamespaceStats, len(s.namespaces))
	at := make(map[uint32]*iostat.Stats, len(s.namespaces))
	for i, x := range s.namespaces {
		all[i].NSID, all[i].Namespace = x.NSID, x.Namespace
		if past := s.past[x.NSID]; past != nil {
			all[i].Stats = *past
		}
		at[x.NSID] = &all[i].Stats
	}
	for _, c := range s.controllers {
		for _, q := range c.allQueues() {
			for _, p := range q.everyPath() {
				if sum := at[p.nsid]; sum != nil {
					p.addTo(sum)
				}
			}
		}
	}
	return all
}

// ControllerCount is how many controllers the subsystem has.
func (s *Subsystem) ControllerCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.controllers)
}

// ControllerCount is how many controllers there are, those of discovery included.
func (n *Node) ControllerCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.controllers + n.discoveries
}

// Capacity is the size of the namespace: the number of blocks, and how many bytes one has.
func (n *Namespace) Capacity() (blocks uint64, blockSize int) {
	return n.blocks.Load(), int(n.blockSize())
}

// UUID names the bytes.
func (n *Namespace) UUID() [16]byte { return n.uuid }

// ControllerInfo is a controller as an administrator sees it.
type ControllerInfo struct {
	Number    uint64 // names it while the node lives
	CNTLID    uint16 // names it in its subsystem
	Subsystem string // that of discovery included
	HostNQN   string
	HostID    [16]byte
	Since     time.Time      // of Connect
	KeepAlive time.Duration  // the timeout; 0: none
	Proved    Authentication // on the admin queue
	Buffers   int            // bytes of I/O memory that its commands hold
	Queues    []QueueInfo    // by QID; the first is the admin queue
	iostat.Stats
}

// QueueInfo is a queue of a controller.
type QueueInfo struct {
	QID          uint16
	Entries      int
	Peer, Local  string // addresses
	Transport    string // Mover.Transport
	HeaderDigest bool
	DataDigest   bool
}

// Controllers lists the controllers there are, by their numbers.
func (n *Node) Controllers() []ControllerInfo {
	var list []ControllerInfo
	for _, c := range n.everyController() {
		if info := c.info(); len(info.Queues) > 0 && info.Queues[0].QID == 0 { // else it is going
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b ControllerInfo) int { return cmp.Compare(a.Number, b.Number) })
	return list
}

// everyController lists the controllers, those of discovery included, in no order.
func (n *Node) everyController() []*Controller {
	n.mu.Lock()
	subs := append([]*Subsystem{n.discovery}, n.subsystems...)
	n.mu.Unlock()
	var list []*Controller
	for _, s := range subs {
		list = append(list, s.list()...)
	}
	return list
}

func (c *Controller) info() ControllerInfo {
	info := ControllerInfo{
		Number: c.number, CNTLID: c.id, Subsystem: c.sub.nqn, HostNQN: c.hostNQN, HostID: c.hostID, Since: c.since,
	}
	for _, q := range c.allQueues() {
		q.Lock()
		if q.id == 0 {
			info.KeepAlive = time.Duration(c.kato) * time.Millisecond
			info.Proved = q.proof.done
		}
		info.Buffers += q.leased
		if q.state == queueConnected || q.state == queueUnproven {
			header, data := q.mover.Digests()
			info.Queues = append(info.Queues, QueueInfo{
				QID: q.id, Entries: q.depth, Peer: q.mover.Peer(), Local: q.mover.Local(), Transport: q.mover.Transport().Name,
				HeaderDigest: header, DataDigest: data,
			})
		}
		q.Unlock()
	}
	slices.SortFunc(info.Queues, func(a, b QueueInfo) int { return cmp.Compare(a.QID, b.QID) })
	c.sub.mu.Lock()
	defer c.sub.mu.Unlock()
	info.Stats = c.past
	for _, q := range c.allQueues() {
		for _, p := range q.everyPath() {
			p.addTo(&info.Stats)
		}
	}
	return info
}

// DropController ends the controller of that number, and reports whether there is one. Most hosts connect again.
func (n *Node) DropController(number uint64, why string) bool {
	for _, c := range n.everyController() {
		if c.number == number {
			c.admin.post(func() { c.admin.dismiss(why) })
			return true
		}
	}
	return false
}
