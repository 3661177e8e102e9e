package sim

import (
	"slices"
	"time"

	"oneshot/ha/replica"
)

// node is a machine with a core.
type node struct {
	*run
	id     replica.ID
	core   *replica.Core // nil while the process is not running
	lives  uint32
	heap   []cell // the log's memory, which outlives the process
	left   *replica.Memory
	disk   *disk
	sizes  [2]int64        // of its copies of the stores
	grants [16]uint64      // who may write here, as which stream
	wasAt  time.Duration   // when it last lost its power; 0: never
	backIn uint32          // the last of its lives before its disk was set back
	cutOff *replica.Memory // its log then; nil: it had none
	knew   replica.View    // the newest when its process ended last
	shot   []cell          // what its disk had at some time; nil: nobody has looked

	rate   float64
	behind time.Duration // by how much pauses have stopped the clock
	paused bool
	since  time.Duration   // when it was paused
	stops  bool            // its clock stops with it,
	from   time.Duration   // from then on
	inbox  []func()        // what has come during a pause
	taken  int             // how much of it had come when the process, on its way to take it, looked at the clock
	looked time.Duration   // what that has shown
	late   bool            // what is taken now goes by looked
	soon   []func()        // what follows from actions, when those of a step are done
	batch  []replica.Event // to be told together

	drains replica.Nodes // of whom its core knows that they are drained
	asked  replica.View  // what it has proposed last

	holding holding

	keeper *keeper // of its process; nil: there are no reservations

	resuming bool // it learns of what is in inbox
}

// clock is what the node's shows: it goes by its rate, and stands still while the machine is stopped.
func (n *node) clock() time.Duration {
	if n.late {
		return n.looked
	}
	return time.Duration(float64(n.now-n.behind)*n.rate) + time.Hour
}

// cover calls f now, or when the pause is over; not at all if the process has ended in between.
func (n *node) cover(f func()) {
	switch {
	case n.paused:
		n.later(f)
	case n.core != nil:
		f()
	}
}

// later calls f when the pause is over, if it is the same process then.
func (n *node) later(f func()) {
	life := n.lives
	n.inbox = append(n.inbox, func() {
		if n.lives == life && n.core != nil {
			f()
		}
	})
}

// tell lets an event happen to the core, now or when the pause is over. What a host wants to read it may get before that.
func (n *node) tell(e replica.Event) {
	if read, ok := e.(replica.Read); ok && n.readsNow(&read) {
		return
	}
	switch {
	case n.paused:
		n.later(func() { n.hear(e) })
	case n.core != nil:
		n.hear(e)
	}
}

// hear lets an event happen: at once, or together with some that follow.
func (n *node) hear(e replica.Event) {
	if !isTold(e) || len(n.batch) == 0 && n.oneIn(2) {
		n.step(e)
		return
	}
	if n.batch = append(n.batch, e); len(n.batch) > 1 {
		return
	}
	n.after(n.between(0, 200*time.Microsecond), n.coverBatch)
}

// coverBatch is an event of the clock: what has gathered is told.
func (n *node) coverBatch() { n.cover(n.together) }

// readsNow has a host be given what the disk has, where the core says that this is what it is to get: whatever waits to be told, or to be taken when the
// pause is over.
func (n *node) readsNow(e *replica.Read) bool {
	d := n.disk
	if n.core == nil || n.paused && n.stops || e.ID%3 == 0 || d.hung || d.isBad(e.Off, e.Len) || !n.core.MayRead(n.clock(), e.Off, e.Len) {
		return false
	}
	n.AtOnce++
	n.fill(e.ID, d.at(e.Off, e.Len))
	n.answered(n, &replica.Answer{ID: e.ID})
	return true
}

// isTold says whether an event may be told together with others: see replica.Core.Tell.
func isTold(e replica.Event) bool {
	switch e := e.(type) {
	case replica.Reserve, replica.Cancel, replica.Write, replica.Zero, replica.Swap, replica.Read, replica.Flush, replica.Done:
		return true
	case replica.Message:
		_, isAck := e.Msg.(replica.Ack)
		return isAck
	}
	return false
}

func (n *node) step(e replica.Event) {
	n.together()
	if n.core == nil {
		return // what came before has ended it
	}
	n.logEvent(e)
	n.core.Tell(n.clock(), e)
	n.settle()
}

// together tells what has gathered.
func (n *node) together() {
	if len(n.batch) == 0 {
		return
	}
	for _, e := range n.batch {
		n.logEvent(e)
		n.core.Tell(n.clock(), e)
	}
	clear(n.batch)
	n.batch = n.batch[:0]
	n.settle()
}

func (n *node) logEvent(e replica.Event) {
	if _, ok := e.(replica.Tick); !ok && n.log != nil {
		n.logf("%d ◄ %T%+v", n.id, e, e)
	}
}

func (n *node) settle() {
	for _, a := range n.core.Settle() {
		if n.log != nil {
			n.logf("%d ► %T%+v", n.id, a, a)
		}
		n.do(a)
	}
	n.checkStep(n)
	for len(n.soon) > 0 && n.core != nil {
		f := n.soon[0]
		n.soon = n.soon[1:]
		f()
	}
}

func (n *node) do(a replica.Action) {
	switch a := a.(type) {
	case *replica.Post:
		n.post(n, a)
	case replica.Send:
		n.send(n.id, a.To, func() { n.nodes[a.To].tell(replica.Message{From: n.id, Msg: a.Msg}) })
		switch a.Msg.(type) {
		case replica.Promise:
			if n.Theme == "deaf" {
				n.moment(n, 2)
			} else {
				n.moment(n, 10)
			}
		case replica.Hashed, replica.Lent:
			if slices.Contains(n.faults.kinds, faultCut) && n.oneIn(50) {
				n.breakLink(n.id, a.To, 0)
			}
		}
	case *replica.SendAck:
		to, ack := a.To, a.Ack
		n.send(n.id, to, func() { n.nodes[to].tell(replica.Message{From: n.id, Msg: ack}) })
	case *replica.SendBeat:
		to, beat := a.To, a.Beat
		n.datagram(n.id, to, func() { n.nodes[to].tell(replica.BeatFrom{From: n.id, Beat: beat}) })
	case *replica.SendEcho:
		to, echo := a.To, a.Echo
		n.datagram(n.id, to, func() { n.nodes[to].tell(replica.EchoFrom{From: n.id, Echo: echo}) })
	case replica.Grant:
		n.grants[a.To] = a.Stream
	case replica.Cut:
		n.grants[a.To] = 0
	case replica.Drop:
		n.breakLink(n.id, a.Peer, 0)
	case replica.Propose:
		n.checkOffice(n, &a.View)
		n.propose(n, a.View)
	case *replica.Answer:
		n.answered(n, a)
	default:
		n.work(a)
	}
}

// work is done by the disk, after a while.
func (n *node) work(a replica.Action) {
	d := n.disk
	took := n.between(50*time.Microsecond, 2*time.Millisecond) + d.slow
	if n.oneIn(50) {
		took += n.between(0, 30*time.Millisecond)
	}
	life := n.lives
	then := func(f func() replica.Done) {
		end := func() {
			if n.lives == life && n.core != nil { // a disk works on while the process is paused
				e := f()
				n.tell(e)
			}
		}
		n.await(evAtDisk, n.id, n.id, took, func() {
			if d.hung {
				d.late = append(d.late, end)
				return
			}
			end()
		})
	}
	switch a := a.(type) {
	case *replica.Apply:
		write := *a
		n.checkApply(n, &write.Rec)
		d.writing = append(d.writing, write.Rec)
		then(func() replica.Done { return n.applied(&write) })
	case *replica.ReadFor:
		read := *a
		f := func() replica.Done {
			n.fill(read.Req, d.at(read.Off, read.Len))
			return replica.Done{ID: read.ID, Failed: d.isBad(read.Off, read.Len)}
		}
		if !d.hung && (n.late || n.oneIn(4)) { // the page cache has it
			n.soon = append(n.soon, func() { n.step(f()) })
			return
		}
		then(f)
	case replica.Compare:
		then(func() replica.Done {
			if a.Delivered {
				return replica.Done{ID: a.ID, Equal: n.matches(a.Req, nil)}
			}
			return replica.Done{ID: a.ID, Failed: d.isBad(a.Off, a.Len), Equal: n.matches(a.Req, d.at(a.Off, a.Len))}
		})
	case replica.Load:
		then(func() replica.Done {
			to, has := n.heap[a.Addr/blockSize:][:a.Len/blockSize], a.Len-a.Behind
			clear(to[copy(to, d.at(a.Off, has)):])
			return replica.Done{ID: a.ID, Failed: d.isBad(a.Off, has), Sum: sum(to)}
		})
	case replica.Hash:
		then(func() replica.Done {
			return replica.Done{ID: a.ID, Failed: d.isBad(a.Off, a.Len), Digest: digestOf(d.at(a.Off, a.Len))}
		})
	case replica.Pull:
		l := n.link(n.id, a.From)
		life := l.life
		n.await(evPull, n.id, a.From, n.between(40*time.Microsecond, time.Millisecond), func() {
			e := replica.Done{ID: a.ID, Failed: !l.up || l.life != life}
			if !e.Failed {
				at := n.heap[a.Addr/blockSize:][:a.Len/blockSize]
				copy(at, n.nodes[a.From].heap[a.Addr/blockSize:])
				if n.corrupting.hits() {
					n.corrupting.garbage(at)
				}
				e.Sum = sum(at)
			}
			n.tell(e)
		})
	case replica.Deliver:
		n.deliver(a.Req, blockOf(a.Off), n.heap[a.Addr/blockSize:][:a.Len/blockSize])
	case replica.Found:
		n.found(&a)
	case replica.Lost:
		n.checkLost(n, &a)
	case replica.Sync:
		marks := d.mark()
		took += n.between(0, 5*time.Millisecond)
		then(func() replica.Done {
			if d.refuses {
				d.badAt = n.now
				return replica.Done{ID: a.ID, Failed: true}
			}
			d.sync(marks)
			return replica.Done{ID: a.ID}
		})
	case replica.Save:
		d.saving = &a
		then(func() replica.Done {
			d.saving = nil
			d.save(&a)
			return replica.Done{ID: a.ID}
		})
	}
}

func (n *node) applied(a *replica.Apply) replica.Done {
	d := n.disk
	i := slices.IndexFunc(d.writing, func(r replica.Record) bool { return r == a.Rec })
	d.writing = slices.Delete(d.writing, i, i+1)
	if d.refuses || d.isSolid(a.Rec.Off, a.Rec.Len) {
		n.tear(&a.Rec)
		d.badAt = n.now
		return replica.Done{ID: a.ID, Failed: true}
	}
	if k := a.Rec.Kind; k == replica.KindGrow || k == replica.KindFit {
		n.growDisk(&a.Rec)
		return replica.Done{ID: a.ID}
	}
	n.checkData(n, &a.Rec)
	if n.fencing != nil {
		n.fencing.checkRecord(n, &a.Rec)
	}
	n.checkRepair(n, &a.Rec)
	n.eachCell(&a.Rec, func(block int, c cell) {
		if a.Rec.Atomic {
			d.putAll(block, c)
		} else {
			d.put(block, c)
		}
		d.lastRec[block] = pos{a.Rec.Term, a.Rec.Seq}
	})
	return replica.Done{ID: a.ID}
}

// start runs the process.
func (n *node) start() {
	if n.core != nil {
		return
	}
	n.lives++
	cfg := n.cfg
	cfg.Self, cfg.Incarnation = n.id, n.lives
	cfg.Stores = slices.Clone(cfg.Stores)
	for i := range cfg.Stores {
		cfg.Stores[i].Size = n.sizes[i]
	}
	n.drains, n.asked = 0, replica.View{}
	n.core = replica.New(cfg, n.clock(), n.left, replica.Saved{
		View: n.disk.saved.View, Mark: n.disk.saved.Mark, Regions: n.disk.saved.Regions, Bitmaps: n.disk.saved.Bitmaps, Missing: n.disk.saved.Missing, Unknown: n.disk.saved.Unknown,
	})
	n.core.CompareFirst([]int{64, 1, 0}[n.Seed%3]) // in a third of the worlds copies get all that may differ
	n.left = nil
	n.logf("%d starts: %v", n.id, n.core)
	if n.fencing != nil {
		n.keeper = n.fencing.begin(n)
	}
	n.holding = holding{} // it removes what a former process has left
	if n.pacing.chance != nil {
		n.step(n.pacing.now)
	}
	n.tick(n.lives)
}

func (n *node) tick(life uint32) {
	if n.lives != life || n.core == nil {
		return
	}
	if !n.paused {
		for id := range n.core.Doubted().All() { // whose machine may be there, also while its process is not; in the other worlds nobody looks
			if l := n.link(n.id, id); n.Seed%4 < 2 && l.up && n.reaches(id, n.id) && n.oneIn(2) {
				n.tell(replica.There{Peer: id, Ago: n.between(0, 100*time.Millisecond)})
			}
		}
		n.step(replica.Tick{})
	}
	wait := tickEvery
	if n.Seed%2 == 1 && !n.paused { // in the other worlds ticks come more often than they have to
		wait = max(0, n.core.Due()-n.clock())
	}
	n.after(wait+n.between(0, time.Millisecond), func() { n.tick(life) })
}

// kill ends the process; the log's memory and the page cache stay.
func (n *node) kill() {
	if n.core == nil {
		return
	}
	n.logf("%d is killed", n.id)
	if n.paused && n.stops {
		n.behind += n.now - n.from
	}
	n.paused, n.late, n.inbox, n.soon, n.batch = false, false, nil, nil, nil
	n.left, n.knew = n.core.Memory(), n.core.State().View
	n.core = nil
	n.killedDisk()
	clear(n.grants[:])
	n.died(n, n.between(time.Millisecond, underWay))
}

// powerCut ends everything.
func (n *node) powerCut() {
	n.logf("%d loses its power", n.id)
	n.kill()
	n.cutOff, n.left = n.left, nil
	clear(n.heap)
	n.holding = holding{}
	n.lostPower()
	n.wasAt = n.now
}

func (n *node) takeSnapshot() { n.shot = slices.Clone(n.disk.medium) }

// setBack makes the disk what it was at some time, behind the back of a process that does not run; the metadata is
// elsewhere. Not the last copy, and one at a time: nobody could know any more what was written.
func (n *node) setBack() {
	for _, o := range n.nodes {
		if o.disk.saved.Unknown || n.shot == nil || n.view.InSync == replica.NodesOf(n.id) {
			return
		}
	}
	n.powerCut()
	n.logf("the disk of %d is set back", n.id)
	d := n.disk
	copy(d.cache, n.shot)
	copy(d.medium, n.shot)
	clear(d.rot)
	d.saved.Unknown = true
	n.backIn = n.lives
}

// pause stops the process, and its clock if the whole machine is stopped. Often that is on the way of what has come: the clock
// was looked at, and what was to be done then is done later.
func (n *node) pause(clock bool) {
	if n.core == nil || n.paused {
		return
	}
	n.logf("%d is stopped", n.id)
	n.paused, n.since, n.from, n.stops, n.taken = true, n.now, n.now, clock, 0
	if !n.oneIn(2) {
		return
	}
	life := n.lives
	n.after(n.between(0, 20*time.Millisecond), func() {
		if n.lives == life && n.paused && n.taken == 0 {
			n.taken, n.looked, n.from = len(n.inbox), n.clock(), n.now
		}
	})
}

func (n *node) resume() {
	if !n.paused {
		return
	}
	n.logf("%d goes on", n.id)
	n.paused = false
	if d := n.disk; d.badAt > 0 { // it knows of its disk what it knew when it was stopped
		d.badAt = min(d.badAt+n.now-n.since, n.now)
	}
	if n.stops {
		n.behind += n.now - n.from
	}
	inbox := n.inbox
	n.inbox, n.resuming = nil, true
	for i, f := range inbox {
		n.late = i < n.taken
		f()
	}
	n.late = false
	n.together()
	n.resuming = false
}
