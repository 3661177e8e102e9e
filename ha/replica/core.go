package replica

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Role is what a node is at the moment.
type Role uint8

const (
	Waiting   Role = iota // no view is known yet
	Follower              // a member of S, or a copy that is brought level
	Candidate             // asks for promises
	Primary               // answers hosts
)

// Core is one node. It is not safe for concurrent use.
type Core struct {
	cfg      Config
	now      time.Duration
	lastTick time.Duration
	slept    time.Duration // in all
	out      []Action
	made     made // what out points to
	settled  bool // out was returned

	view View
	role Role
	peer [16]peer // what is known of the others

	stores []Store
	log
	disk
	marks
	ahead
	missing
	kept
	host
	pace
	switching
	patience int // see CompareFirst

	// As a follower, and as a candidate that fetches.
	source   ID     // who may write
	stream   uint64 // under which number; 0: nobody
	fed      bool   // a bell of it has come
	streams  uint64 // numbers given
	acked    Ack
	ticked   bool // what is settled is a Tick
	lastBeat time.Duration
	promised uint64 // version for which a promise was given
	to       ID
	since    time.Duration // when it was given
	bumped   time.Duration // when another version was last asked for
	asleep   time.Duration // no candidature before
	vain     bool          // another one, to whom a promise was given in this term, could not take over

	cand candidate

	// As the primary.
	commit     uint64 // W members hold the records up to it in memory
	firm       uint64 // W disks have them
	freed      uint64
	took       time.Duration // when it became primary
	proposed   *View
	proposedAt time.Duration
	beats      []sentBeat
	beatNo     uint64
	wants      uint64 // the newest beat that something waits for
	beatAt     time.Duration
	flushAt    time.Duration
	copyAgain  time.Duration // when copying is tried again, after the disk has refused to read
	verified   int64         // bytes that the verification under way, or the last one, has looked at
	flushed    uint64        // the newest record that an answered Flush covers, or that one may have covered
}

// peer is what a node knows of another.
type peer struct {
	up    bool
	hello *Hello // not acted upon yet

	stream   uint64        // records go to it; 0: none
	started  bool          // the first bell has gone
	begun    bool          // it has told of this stream: its log is the one that the first bell begins
	behind   uint64        // the newest record before that log
	outside  bool          // it is brought level, and does not count
	rests    time.Duration // it was too slow: it begins again then
	sent     uint64
	received uint64
	applied  uint64
	durable  uint64
	synced   uint64   // the disk has it, the mark perhaps not
	sizes    []int64  // of its stores when the stream began
	lost     bool     // it does not remember, or its disk refuses
	fits     []Record // that make a member's stores as large as they are here; they are not in the log yet
	bell     Bell     // the last
	heard    time.Duration
	there    time.Duration // when its machine was there for sure, though it may be that nothing was heard
	answered uint64        // the newest beat that it answered,
	proven   time.Duration // and when that was sent

	todo    Bits   // granules that have to be copied
	lacked  Bits   // kept.lacks when the stream began
	copying int    // on their way
	copied  uint64 // the newest record of a copied granule
	clean   []cleaning
	hard    Bits  // granules that this primary's disk cannot read as a whole
	sift    *sift // one of them that is under way
	losses  int64 // bytes that the copy goes without, in this stream
	wrote   wrote // what it has got from hosts in this stream

	comparing
}

type sentBeat struct {
	no uint64
	at time.Duration
}

// New starts a node. Memory is nil when it is gone, or there was none: then nothing else than what is durable is on the disk.
func New(cfg Config, now time.Duration, memory *Memory, saved Saved) *Core {
	c := &Core{cfg: cfg, now: now, lastTick: now, lastBeat: now, stores: slices.Clone(cfg.Stores), settled: true}
	c.streams = knowsLost | tellsSynced | suspectsEqual | uint64(cfg.Incarnation)<<32
	if !saved.Unknown {
		c.streams |= knowsDisk
	}
	c.works.start(cfg.Incarnation)
	c.restore(memory, saved)
	return c
}

// restore takes what a former life has left.
func (c *Core) restore(memory *Memory, saved Saved) {
	if saved.View.Version > 0 {
		c.view, c.role = saved.View, Follower
	}
	c.sectors = saved.Missing.Clone()
	if saved.Unknown {
		c.forgetDisk()
		return
	}
	c.marked, c.durable = saved.Mark, saved.Mark
	c.set = saved.Regions.Clone()
	written := c.granulesOf(c.set)
	c.suspects, c.early = written.Clone(), written.Clone()
	for id := range c.cfg.Copies.All() {
		c.bitmaps[id] = saved.Bitmaps[id].Clone()
		c.bitmaps[id].Add(written) // regions tell what the bitmaps, saved seldom, do not
	}
	c.base, c.disk.applied, c.folded = c.marked, c.marked, c.marked
	if memory != nil {
		c.memory = true
		c.base, c.disk.applied, c.trim, c.results = memory.Base, memory.Applied, memory.Trim, slices.Clone(memory.Results)
		for _, r := range memory.Log {
			c.entries = append(c.entries, entry{Record: r, begun: true, at: c.now})
			if r.Seq <= c.disk.applied || !r.orders(c.cfg.Self) {
				c.entries[len(c.entries)-1].state = stateApplied
			}
			if r.Kind == KindLost && r.Copy == c.cfg.Self {
				c.lostAt = r.Seq
			}
			if r.isWritten() {
				for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
					c.mark(&c.bitmaps[id], r.Off, r.Len) // its region may not have been set yet
				}
			}
		}
		c.durable = min(c.durable, c.disk.applied)
		c.folded = c.base
	}
	c.synced = c.durable
	c.earlyTo = c.log.last()
	if memory == nil {
		c.earlyTo = math.MaxUint64 // nobody knows
	}
	for i := range c.set.All() {
		c.touch(i, c.log.last())
	}
	if memory != nil {
		c.adopt(memory.View)
		c.promised, c.to, c.since = memory.Promised, memory.To, c.now
	}
}

// Memory returns what is in the log's memory.
func (c *Core) Memory() *Memory {
	m := &Memory{Base: c.base, Applied: c.disk.applied, Trim: c.trim, Results: slices.Clone(c.results), View: c.view, Promised: c.promised, To: c.to}
	for i := range c.entries {
		m.Log = append(m.Log, c.entries[i].Record)
	}
	if !c.memory {
		return nil
	}
	return m
}

// Step tells of an event at the time that the node's clock shows, and returns what is to be done. The slice is
// valid until the next Step.
func (c *Core) Step(now time.Duration, e Event) []Action {
	c.Tell(now, e)
	return c.Settle()
}

// Tell is Step, but for its actions: Settle returns them, for this event and those that follow. What hosts ask for, Done and Ack may
// be told one after the other, and cost one Settle. Any other event stands alone: what the edge does for it, as a Cut, comes before the
// edge looks at what came next.
func (c *Core) Tell(now time.Duration, e Event) {
	c.now = max(c.now, now)
	if c.settled {
		c.settled, c.ticked = false, false
		clear(c.out)
		c.out = c.out[:0]
		c.made.reset()
	}
	c.wake()
	switch e := e.(type) {
	case Tick:
		c.lastTick = c.now
		c.ticked = true
	case Up:
		c.peer[e.Peer].up = true
	case Down:
		c.down(e.Peer)
	case There:
		p := &c.peer[e.Peer]
		p.there = max(p.there, c.now-e.Ago)
	case Message:
		c.peer[e.From].heard = c.now
		c.message(e.From, e.Msg)
	case Rang:
		c.rang(&e)
	case BeatFrom:
		c.beat(e.From, e.Beat)
	case EchoFrom:
		c.echo(e.From, e.Echo)
	case Agreed:
		c.adopt(e.View)
	case Done:
		c.done(e)
	case StopVerify:
		if c.verify != nil {
			c.verify.store = len(c.stores)
		}
	case Switch:
		c.order(e)
	case Drained:
		c.drain(e.Nodes)
	case Pace:
		c.pace.Pace, c.pace.next = e, c.now
	default:
		c.request(e)
	}
}

// wake notices that there was no tick for long, whatever is the first to come after that. A node that was asleep has heard no beat, which says nothing
// about the primary, and has sent none that others would have answered: that time does not count. The rest does, or a node that is short of processor time
// would never stand.
func (c *Core) wake() {
	slept := c.now - c.lastTick - c.cfg.Heartbeat
	if slept <= 0 {
		return
	}
	c.lastTick += slept
	c.slept += slept
	c.lastBeat = min(c.lastBeat+slept, c.now)
	for id := range c.cfg.Copies.All() {
		c.peer[id].heard = min(c.peer[id].heard+slept, c.now)
	}
}

// awake is the time without what this node has slept.
func (c *Core) awake() time.Duration { return c.now - c.slept }

// Settle returns what is to be done after what was told. The slice is valid until the next Tell or Step.
func (c *Core) Settle() []Action {
	c.settle()
	c.settled = true
	return c.out
}

// settle does what the state asks for. Each of its parts looks at the state alone, so that it does not matter which
// event has changed it.
func (c *Core) settle() {
	switch c.role {
	case Primary:
		c.greet()
		c.fitOn()
		c.reshape()
		c.hand()
		c.sequence()
		c.watchHosts()
		c.verifyOn()
		c.mendOn()
		c.copyOn()
		c.committed()
		c.apply(c.commit) // and what goes to the disk without waiting
		c.read()
		c.flush()
		c.beatOn()
		c.prove()
		c.watchHosts()
		c.free()
		c.post()
	case Candidate:
		c.canvass()
	case Follower:
		c.follow()
	}
	c.sync()
	c.save()
	c.trimLog()
	c.grown()
	c.acknowledge()
}

func (c *Core) message(from ID, m Msg) {
	switch m := m.(type) {
	case Hello:
		c.peer[from].hello = &m
	case Ack:
		c.ack(from, m)
	case Ask:
		c.ask(from, m.Version)
	case Promise:
		if c.role == Candidate && m.Version == c.view.Version {
			c.cand.promises[from] = promise{given: true, Promise: m}
			c.cand.answered = c.cand.answered.With(from)
			c.cand.at = c.now
		}
	case Deny:
		c.hearOf(m.View)
	case Lend:
		c.lend(from, &m)
	case Lent:
		c.lent(from, &m)
	case Hashed:
		c.hashed(from, m.Seq, m.Digest, m.Failed)
	case Fetch:
		c.fetched(from, &m)
	}
}

func (c *Core) down(id ID) {
	p := &c.peer[id]
	p.up, p.hello, p.stream = false, nil, 0
	p.copying, p.clean, p.hard, p.sift, p.wrote = 0, nil, nil, nil, wrote{}
	if c.stream != 0 && c.source == id {
		c.stream, c.fed = 0, false
	}
	if c.role == Candidate && c.proposed == nil {
		c.cand.promises[id] = promise{}
		c.cand.answered = c.cand.answered.Without(id)
	}
}

// hearOf takes a view by the word of another node. Nobody gets the office by that: what was agreed on before its view, the node has learned when
// consensus says so.
func (c *Core) hearOf(v View) {
	if v.Primary != c.cfg.Self || c.role == Primary && v.Term == c.view.Term {
		c.adopt(v)
	}
}

// adopt takes a newer view, wherever it comes from.
func (c *Core) adopt(v View) {
	if v.Version <= c.view.Version {
		return
	}
	old := c.view
	c.view = v
	c.marksFor(old, v)
	handed := c.role == Follower && v.Planned && v.Primary == c.cfg.Self && v.Version == old.Version+1 &&
		c.memory && c.fed && c.source == old.Primary && c.log.last()+1 == v.First // only the primary tells which memory is free
	won := c.role == Candidate && c.proposed != nil && *c.proposed == v
	switch {
	case c.role == Primary && v.Primary == c.cfg.Self && v.Term == old.Term:
		c.reshaped(old)
		return
	case c.role == Primary:
		c.demote()
	case won:
		sure := c.cand.sure
		c.promote()
		if sure && !v.InSync.Has(old.Primary) && old.InSync.Has(old.Primary) {
			c.ousts(old.Primary)
		}
		return
	case handed:
		c.cut(old.Primary)
		c.promote()
		return
	}
	c.proposed = nil
	c.asleep = max(c.asleep, c.now+c.turn()) // promises are void: not all stand at once
	c.role = Follower
	c.cand = candidate{}
	kept := old.Primary == v.Primary && old.Term == v.Term && old.InSync.Has(c.cfg.Self) == v.InSync.Has(c.cfg.Self)
	joined := old.Primary == v.Primary && old.Term == v.Term && v.InSync.Has(c.cfg.Self)
	if !c.fed || c.source != v.Primary || !kept && !joined || c.promised == old.Version {
		c.cut(c.source)
		c.cut(old.Primary)
	}
	c.vain = old.Term == v.Term && (c.vain || c.promised == old.Version && c.to != c.cfg.Self)
	c.promised = 0
	if old.Term != v.Term || !old.InSync.Has(c.cfg.Self) { // who was outside S had nothing to wait for
		c.lastBeat = c.now
	}
}

// cut takes away a node's right to write here. Its stream is over, too.
func (c *Core) cut(id ID) {
	if id != c.cfg.Self {
		c.out = append(c.out, Cut{To: id})
	}
	if c.source == id {
		c.stream, c.fed = 0, false
	}
}

// grant lets a node write here, and nobody else.
func (c *Core) grant(id ID) uint64 {
	if c.stream != 0 && c.source != id {
		c.cut(c.source)
	}
	c.streams++
	c.source, c.stream, c.fed, c.acked = id, c.streams, false, Ack{}
	c.out = append(c.out, Grant{To: id, Stream: c.streams})
	return c.streams
}

// quorum is W of a view.
func (c *Core) quorum(v *View) int { return min(c.cfg.Quorum, v.InSync.Len()) }

// held returns the number up to which W members of the view are, going by what of says of each.
func (c *Core) held(v *View, of func(ID) uint64) uint64 {
	var at [16]uint64
	n := 0
	for id := range v.InSync.All() {
		at[n] = of(id)
		n++
	}
	slices.Sort(at[:n])
	return at[n-c.quorum(v)]
}

// heldByAll is held, of the view and of the one that is proposed: nobody knows which of them is in force.
func (c *Core) heldByAll(of func(ID) uint64) uint64 {
	n := c.held(&c.view, of)
	if c.proposed != nil {
		n = min(n, c.held(c.proposed, of))
	}
	return n
}

func (c *Core) receivedBy(id ID) uint64 {
	if id == c.cfg.Self {
		return c.log.last()
	}
	return c.peer[id].received
}

// inMemoryOf is receivedBy of those who are connected. Who is not may have lost its power since, and with it what it had received.
func (c *Core) inMemoryOf(id ID) uint64 {
	if id != c.cfg.Self && c.peer[id].stream == 0 {
		return 0
	}
	return c.receivedBy(id)
}

func (c *Core) durableBy(id ID) uint64 {
	if id == c.cfg.Self {
		return c.durable
	}
	return c.peer[id].durable
}

func (c *Core) appliedBy(id ID) uint64 {
	if id == c.cfg.Self {
		return c.disk.applied
	}
	return c.peer[id].applied
}

// others are the nodes whose progress holds back trim and reuse: members of the views, and copies that get records.
func (c *Core) others() Nodes {
	n := c.view.InSync
	if c.proposed != nil {
		n |= c.proposed.InSync
	}
	for id := range c.cfg.Copies.All() {
		if c.peer[id].stream != 0 {
			n = n.With(id)
		}
	}
	return n.Without(c.cfg.Self)
}

// State is what can be seen of a node from outside.
type State struct {
	Role                           Role
	View                           View
	Last, Commit, Applied, Durable uint64
	Trim                           uint64
	HeapUsed                       int64 // bytes
	Writer                         ID    // who may write into the memory, as Stream, if that is not 0
	Stream                         uint64
	Retained                       int // records in the log
	// Confirmed is, of a primary, when it was the only one for sure, by its own clock; else 0. Nobody takes its place before
	// Grace has passed since then.
	Confirmed time.Duration
}

// Serves says whether the node is the primary, in that term. What was begun in another one is not done.
func (s *State) Serves(term uint64) bool { return s.Role == Primary && s.View.Term == term }

// State returns the node's.
func (c *Core) State() State {
	s := State{Role: c.role, View: c.view, Last: c.log.last(), Commit: c.commit, Applied: c.disk.applied, Durable: c.durable, Trim: c.trim, Writer: c.source, Stream: c.stream}
	if c.heap != nil {
		s.HeapUsed = (c.heap.used + c.spare.used) * c.cfg.Unit
	}
	s.Retained, s.Confirmed = len(c.entries), c.confirmed()
	return s
}

// Role returns what the node is, and Silence how long it has heard nothing of the primary.
func (c *Core) Role() Role             { return c.role }
func (c *Core) Silence() time.Duration { return c.now - c.lastBeat }

// Bitmap returns the granules that this node knows the copy to lack, and Set the regions in which this node may
// have written what others lack, durable or not. The caller does not change them.
func (c *Core) Bitmap(id ID) Bits { return c.bitmaps[id] }
func (c *Core) Set() Bits         { return c.set }

// Streams says whether this node, as the primary, sends records to another.
func (c *Core) Streams(id ID) bool { return c.role == Primary && c.peer[id].stream != 0 }

// Lag returns how long, on this primary, the oldest record waits that the disk of a member does not have; 0 if it has all.
func (c *Core) Lag(id ID) time.Duration {
	if c.role != Primary || !c.view.InSync.Has(id) {
		return 0
	}
	if e := c.entry(c.appliedBy(id) + 1); e != nil {
		return c.now - e.at
	}
	return 0
}

// Suspects are the granules in which this copy, outside S, may differ by its own doing.
func (c *Core) Suspects() Bits { return c.suspects }

// Has says whether the node holds a record, or had it and all of S have it durable.
func (c *Core) Has(term, seq uint64) bool {
	e := c.entry(seq)
	return seq <= c.base || e != nil && e.Term == term
}

// Log yields the records that the node holds, in order.
func (c *Core) Log(yield func(*Record) bool) {
	for i := range c.entries {
		if !yield(&c.entries[i].Record) {
			return
		}
	}
}

func (c *Core) String() string {
	return fmt.Sprintf("node %d role %d view %+v log %d..%d commit %d applied %d durable %d trim %d", c.cfg.Self, c.role, c.view, c.base+1, c.log.last(), c.commit, c.disk.applied, c.durable, c.trim)
}
