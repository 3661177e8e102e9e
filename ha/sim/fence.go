package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	voting "oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/ha/reservations"
	"oneshot/volume/access"
)

// fencing is what a world has of persistent reservations: initiators register, and keep each other from writing. What nodes
// make of that is decided by package reservations; here are its records of consensus, what it is asked for, and what it promises.
//
//	command ─► nexus: its term, then what it may do ─► waits for data ─► the core, in that term or not at all
//	PR OUT  ─► keeper: reservations.Core.Begin ─► log ─► learned by each node ─► the primary keeps to it ─► answer
//
// It draws from a source of its own, so a world without it is as it was.
type fencing struct {
	*run
	dice  world // its source of chance
	names []string
	ports []access.PortOf // through each node
	aptl  bool

	log    []*voting.Record // of consensus: views, states, and what primaries say that they keep to
	newest map[voting.Key]*voting.Record
	viewAt []int  // by version of the view: what of the log comes before it, and it
	begins []pos  // the first place in the order of each term
	term   uint64 // the newest in which a node has served

	changes  []change
	answered uint64 // the newest state that was in force when somebody was told so
	ended    [initiators][]barrier
	wrote    map[uint64]*attempt // by value
}

// change is a state on which the nodes have agreed.
type change struct {
	registered, denied uint // initiators, as bits; denied: to write
	aborts             uint // whose commands were to end with it
}

// barrier is an answered change that has aborted what an initiator had under way: none of that has a place in the order behind it.
type barrier struct {
	change uint64
	at     pos
}

const initiators = 4

// Odds of what is drawn.
const (
	changeOdds = 12 // one command in so many is PERSISTENT RESERVE OUT
	waitOdds   = 8  // one write in so many waits long for its data
	fillOdds   = 16 // and one in so many comes late into the memory that it has got
)

// patience is how long a node tries to have a change agreed on.
const patience = reservations.Patience

// drawFencing returns nil in eight worlds of nine, and where copies are forced: what that leaves of reservations is not decided by package
// reservations.
func (r *run) drawFencing() *fencing {
	if r.Seed%9 != 4 || r.Quorum || slices.Contains(r.faults.kinds, faultForce) {
		return nil
	}
	f := &fencing{run: r, dice: world{r: rand.New(rand.NewPCG(r.Seed, 11))}, newest: map[voting.Key]*voting.Record{}, changes: []change{{}}, viewAt: []int{0}, wrote: map[uint64]*attempt{}}
	for port := range initiators {
		f.names = append(f.names, fmt.Sprintf("iqn.host-%d", port))
	}
	for _, n := range r.nodes {
		group := uint16(n.id) + 1
		f.ports = append(f.ports, access.PortOf{Port: access.Port{Target: "iqn.sim", Group: group}, Relative: group})
	}
	f.aptl = f.dice.oneIn(2)
	return f
}

// agreed: a view is the newest.
func (f *fencing) agreed(v *replica.View) {
	s := voting.Set{Lineage: 1, View: *v}
	f.put(voting.Key{Kind: voting.KindSet, Name: set}, v.Version-1, s.Encode())
	f.viewAt = append(f.viewAt, len(f.log))
	if n := len(f.begins); n == 0 || f.begins[n-1].term != v.Term {
		f.begins = append(f.begins, pos{v.Term, v.First})
	}
}

const set = "sim"

// put is the compare-and-swap of a record.
func (f *fencing) put(k voting.Key, version uint64, value []byte) bool {
	if old := f.newest[k]; old == nil && version != 0 || old != nil && old.Version != version {
		return false
	}
	x := &voting.Record{Key: k, Version: version + 1, Value: value}
	f.newest[k] = x
	f.log = append(f.log, x)
	if k.Kind == voting.KindUnit && k.Name == set {
		f.note(value)
	}
	late := 20 * time.Millisecond
	if f.slow {
		late = time.Second
	}
	for _, n := range f.nodes {
		f.tell(n, late)
	}
	return true
}

// note looks at a state on which the nodes have agreed.
func (f *fencing) note(value []byte) {
	var c access.Common
	if err := json.Unmarshal(value, &c); err != nil {
		panic(err)
	}
	if c.Changes != uint64(len(f.changes)) {
		return // only who is there has changed
	}
	var is change
	for port, name := range f.names {
		if slices.ContainsFunc(c.State.Registrations, func(r access.Registration) bool { return r.Initiator.Name == name }) {
			is.registered |= 1 << port
		}
	}
	if c.State.Kind != 0 {
		is.denied = (1<<initiators - 1) &^ is.registered
	}
	if was := f.changes[len(f.changes)-1]; c.Abort {
		is.aborts = was.registered &^ is.registered
	}
	f.logf("STATE %d: registered %04b, may not write %04b, aborted %04b", c.Changes, is.registered, is.denied, is.aborts)
	f.changes = append(f.changes, is)
}

// tell has a node learn of what is in the log, if the news gets there.
func (f *fencing) tell(n *node, late time.Duration) {
	f.after(f.dice.between(time.Millisecond, late), func() {
		if n.core != nil && !n.paused && !f.dice.oneIn(10) && f.hasMajority(n) {
			n.keeper.learn(len(f.log))
		}
	})
}

// inForce: somebody is told that a state is in force.
func (f *fencing) inForce(changes uint64) {
	for ; f.answered < changes; f.answered++ {
		x := &f.changes[f.answered+1]
		for port := range initiators {
			if x.aborts&(1<<port) != 0 {
				f.ended[port] = append(f.ended[port], barrier{f.answered + 1, f.last()})
			}
		}
	}
}

// last is the newest place in the order: what primaries before the one that is agreed on have begun since is never done. One that has served in its
// term, and does not any more, gives no place in that.
func (f *fencing) last() pos {
	p := f.nodes[f.view.Primary]
	if p.core != nil {
		if s := p.core.State(); s.Serves(f.view.Term) {
			return pos{f.view.Term, s.Last}
		}
	}
	if f.term == f.view.Term {
		return pos{f.term, math.MaxUint64}
	}
	return pos{f.view.Term, 0}
}

// checkFenced: a write that takes its place in the order was allowed by a state that was the newest, or not outlived by one that was answered,
// when its node looked at that; and no PREEMPT AND ABORT that was to end it has been answered before.
func (f *fencing) checkFenced(a *attempt, p pos) {
	least := a.answered
	for _, b := range f.ended[a.from.port] {
		if b.at.less(p) {
			least = max(least, b.change)
		}
	}
	for n := least; n <= a.agreed; n++ {
		if f.changes[n].denied&(1<<a.from.port) == 0 {
			return
		}
	}
	f.fail(11, "attempt %d of initiator %d at node %d, which looked at what it may by one of the states %d to %d, writes as %v, and a state since %d, which was answered, forbids that",
		a.id, a.from.port, a.node.id, a.answered, a.agreed, p, least)
}

// checkRecord looks at what a disk gets. A primary that does not know yet that a later term has begun writes to its own disk what has no place in the
// order any more, and nobody sees that.
func (f *fencing) checkRecord(n *node, rec *replica.Record) {
	if rec.Kind != replica.KindWrite || slices.ContainsFunc(f.begins, func(p pos) bool { return rec.Term < p.term && rec.Seq >= p.seq }) {
		return
	}
	if a := f.wrote[n.heap[rec.Addr/blockSize].val]; a != nil {
		f.checkFenced(a, pos{rec.Term, rec.Seq})
	}
}

// keeper is what the process of a node has of package reservations, and its nexuses.
type keeper struct {
	*fencing
	node    *node
	life    uint32
	table   *access.Table
	core    *reservations.Core
	nexuses [initiators]*nexus
	learned int    // of the log
	term    uint64 // in which the node served when it looked last
	says    bool   // what it has to say is on its way
	more    bool   // it looks again then
	begun   bool   // the newest is confirmed
	waits   []func() bool
	queue   []func() // changes that wait for the one before
	busy    bool
}

// agreement is for a table whose changes the simulation does step by step.
type agreement struct{}

func (agreement) Change(func(*access.Common, bool) (bool, bool)) error {
	panic("a change is done by steps")
}
func (agreement) Look() (access.State, error) { panic("nobody looks") }

// begin begins a life.
func (f *fencing) begin(n *node) *keeper {
	t := access.NewTable(access.Nothing(), nil)
	t.Share(agreement{})
	k := &keeper{fencing: f, node: n, life: n.lives, table: t, core: reservations.NewCore(t, set, fmt.Sprint(n.id), f.dice.r.Uint64()|1)}
	for port := range initiators {
		k.nexuses[port] = &nexus{keeper: k, holder: access.Holder{
			Initiator: access.Initiator{Protocol: access.ISCSI, Name: f.names[port], Port: "400000000001"}, Port: f.ports[n.id].Port,
		}}
		t.Subscribe(k.nexuses[port])
	}
	k.confirm()
	return k
}

// confirm asks for the newest of this life.
func (k *keeper) confirm() {
	k.get(k.core.RecordKey(), patience, func(_ *voting.Record, err error) {
		if err != nil {
			k.confirm()
			return
		}
		k.core.Confirmed()
		k.begun = true
		k.kick()
	})
}

// soon calls f when d has passed, if the process is the same then, and goes on.
func (k *keeper) soon(d time.Duration, f func()) {
	k.after(d, func() {
		if k.node.lives == k.life {
			k.node.cover(f)
		}
	})
}

// serves is the term in which the node serves; 0: it does not.
func (k *keeper) serves() uint64 {
	if k.node.core.Role() != replica.Primary {
		return 0
	}
	return k.node.core.State().View.Term
}

// served looks whether the node serves in another term.
func (k *keeper) served(s *replica.State) {
	term := s.View.Term
	if s.Role != replica.Primary {
		term = 0
	}
	if k.term == term {
		return
	}
	if term != 0 && k.learned < k.viewAt[s.View.Version] {
		k.fail(11, "node %d serves by version %d of the view, and has not learned by consensus what was agreed on before that", k.node.id, s.View.Version)
	}
	k.term = term
	k.fencing.term = max(k.fencing.term, term)
	k.kick()
}

// learn takes the log up to there. Who is behind may get a snapshot, with the newest of each record alone.
func (k *keeper) learn(upTo int) {
	first := k.learned
	if upTo <= first {
		return
	}
	k.learned = upTo
	jumps := upTo-first > 2 && k.dice.oneIn(2)
	for i, x := range k.log[first:upTo] {
		after := k.log[first+i+1 : upTo]
		if jumps && slices.ContainsFunc(after, func(y *voting.Record) bool { return y.Key == x.Key }) {
			continue
		}
		if abort, _ := k.core.Learn(x, k.serves() != 0); abort != nil {
			abort.Run(func() {
				k.core.Aborted(abort.Changes)
				k.kick()
			})
		}
	}
	k.waits = slices.DeleteFunc(k.waits, func(over func() bool) bool { return over() })
	k.kick()
}

// learnView takes the log as far as a view that the node is told.
func (k *keeper) learnView(version uint64) { k.learn(k.viewAt[version]) }

// kick says what there is to say.
func (k *keeper) kick() {
	if k.says || !k.begun {
		k.more = true
		return
	}
	k.says, k.more = true, false
	k.soon(0, func() {
		k.say(k.core.RecordKey(), k.core.Enter(k.serves()), func() {
			k.say(k.core.KeptKey(), k.core.Keep(k.serves()), func() {
				if k.says = false; k.more {
					k.kick()
				}
			})
		})
	})
}

// say has consensus do a change, if there is one, again and again.
func (k *keeper) say(key voting.Key, change func([]byte) ([]byte, error), then func()) {
	if change == nil {
		then()
		return
	}
	k.update(key, change, time.Hour, func(error) { then() })
}

// get asks for the newest of a record, and then has learned it.
func (k *keeper) get(key voting.Key, within time.Duration, then func(*voting.Record, error)) {
	end := k.now + within
	var try func()
	try = func() {
		if k.now > end {
			k.soon(0, func() { then(nil, voting.ErrUnknown) })
			return
		}
		k.after(k.dice.between(0, 5*time.Millisecond), func() {
			if k.node.lives != k.life || k.node.core == nil {
				return
			}
			if k.node.paused || !k.hasMajority(k.node) || k.slow && !k.dice.oneIn(4) {
				k.after(50*time.Millisecond, try)
				return
			}
			upTo := len(k.log)
			k.soon(k.dice.between(0, 5*time.Millisecond), func() {
				k.learn(upTo)
				then(k.newestOf(key, k.learned), nil)
			})
		})
	}
	try()
}

// newestOf returns the newest record of a key in the first part of the log.
func (f *fencing) newestOf(key voting.Key, upTo int) *voting.Record {
	for i := upTo - 1; i >= 0; i-- {
		if f.log[i].Key == key {
			return f.log[i]
		}
	}
	return nil
}

// update replaces a record. Proposals get lost, and answers to them.
func (k *keeper) update(key voting.Key, change func([]byte) ([]byte, error), within time.Duration, then func(error)) {
	end := k.now + within
	k.get(key, within, func(x *voting.Record, err error) {
		if err != nil {
			then(err)
			return
		}
		var version uint64
		var old []byte
		if x != nil {
			version, old = x.Version, x.Value
		}
		value, err := change(old)
		if err != nil || old != nil && string(old) == string(value) {
			then(err)
			return
		}
		again := func() { k.update(key, change, end-k.now, then) }
		k.after(k.dice.between(0, 5*time.Millisecond), func() {
			isThere := k.node.lives == k.life && k.node.core != nil
			done := (isThere && k.hasMajority(k.node) || !isThere && k.dice.oneIn(2)) && !k.dice.oneIn(20) && k.put(key, version, value)
			upTo := len(k.log)
			if !done || k.dice.oneIn(8) {
				k.soon(k.dice.between(0, 300*time.Millisecond), again)
				return
			}
			k.soon(k.dice.between(0, 5*time.Millisecond), func() {
				k.learn(upTo)
				then(nil)
			})
		})
	})
}

// do does PERSISTENT RESERVE OUT, after those before it.
func (k *keeper) do(c *access.Change, then func(access.Result)) {
	k.queue = append(k.queue, func() {
		end := k.now + patience
		p := k.core.Begin(func(n *access.Common, repeated bool) (changes, again bool) { return k.table.Amend(c, n, repeated) }, k.dice.r.Uint64()|1)
		over := func(err error) {
			p.Ended(err)
			if k.busy = false; err != nil {
				c.Result = access.NotNow
			} else {
				k.inForce(p.Changes())
			}
			then(c.Result)
			k.next()
		}
		k.update(k.core.RecordKey(), p.Make, patience, func(err error) {
			if err != nil {
				over(err)
				return
			}
			k.await(p.Changes(), end, over)
		})
	})
	k.next()
}

func (k *keeper) next() {
	if k.busy || len(k.queue) == 0 {
		return
	}
	f := k.queue[0]
	k.queue = k.queue[1:]
	k.busy = true
	f()
}

// await waits until the primary keeps to so many changes.
func (k *keeper) await(changes uint64, end time.Duration, then func(error)) {
	over := false
	look := func() bool {
		if !over && k.core.Holds(changes) {
			over = true
			then(nil)
		}
		return over
	}
	if look() {
		return
	}
	k.waits = append(k.waits, look)
	k.soon(end-k.now, func() {
		if !over {
			over = true
			then(voting.ErrUnknown)
		}
	})
}

// nexus is an initiator at a node.
type nexus struct {
	*keeper
	holder access.Holder
	denied access.Denial
	under  []*attempt // what the node has not ended
}

func (x *nexus) Holder() access.Holder           { return x.holder }
func (x *nexus) Session() any                    { return x }
func (x *nexus) Tell(access.Event)               {}
func (x *nexus) Deny(mask, denied access.Denial) { x.denied = x.denied&^mask | denied }
func (x *nexus) Abort(done func()) {
	waits := 0
	ended := func() {
		if waits--; waits == 0 {
			done()
		}
	}
	waits++
	for _, a := range slices.Clone(x.under) {
		if !a.told { // it has no data yet; a unit attention tells the initiator
			x.drop(a)
			a.from.lost(a, x.dice.between(0, 300*time.Millisecond))
			continue
		}
		waits++
		a.aborted = append(a.aborted, ended)
	}
	ended()
}

// drop forgets an attempt that the core has not heard of.
func (x *nexus) drop(a *attempt) {
	delete(x.open, a.id)
	x.end(a)
}

// end: a node is done with an attempt.
func (x *nexus) end(a *attempt) {
	x.under = slices.DeleteFunc(x.under, func(o *attempt) bool { return o == a })
	for _, f := range a.aborted {
		f()
	}
	a.aborted = nil
}

// writes says whether a command is one that a reservation of the kind that there is here keeps others from.
func (c *command) writes() bool { return c.key != 0 || c.kind == doWrite || c.kind == doZero }

// admit is what a node does with a write before its core hears of it: the term in which that has to take place, what its initiator may do, the
// data. A command of another kind is told at once.
func (f *fencing) admit(a *attempt) {
	n := a.node
	if !a.writes() || a.kind == doRead {
		n.tell(a.request())
		return
	}
	life := n.lives
	n.cover(func() {
		x := n.keeper.nexuses[a.from.port]
		a.nexus, a.term = x, x.serves()
		a.answered, a.agreed = f.answered, uint64(len(f.changes)-1)
		x.under = append(x.under, a)
		switch {
		case a.term == 0:
			x.drop(a)
			a.from.lost(a, f.dice.between(5*time.Millisecond, 60*time.Millisecond))
			return
		case x.denied&access.Writes != 0:
			x.drop(a)
			f.after(f.dice.between(50*time.Microsecond, time.Millisecond), func() { f.conflict(a, life) })
			return
		}
		var wait time.Duration
		if left := f.Length - f.now; left > 0 && f.dice.oneIn(waitOdds) {
			wait = f.dice.between(0, min(left, 4*time.Second))
		}
		x.soon(wait, func() {
			switch s := n.core.State(); {
			case f.open[a.id] != a: // it was aborted
			case !s.Serves(a.term):
				x.drop(a)
				a.from.lost(a, f.dice.between(5*time.Millisecond, 60*time.Millisecond))
			default:
				a.told = true
				n.tell(a.request())
			}
		})
	})
}

// fills is how long it takes until the data of a write are in the memory that it has got.
func (f *fencing) fills() time.Duration {
	if f.now >= f.Length || !f.dice.oneIn(fillOdds) {
		return 0
	}
	return f.dice.between(0, 200*time.Millisecond)
}

// conflict: an initiator hears RESERVATION CONFLICT.
func (f *fencing) conflict(a *attempt, life uint32) {
	if a.over || a.node.core == nil || a.node.lives != life {
		return
	}
	a.over = true
	f.Conflicts++
	a.from.registered = false
	a.from.think()
}

// draws says whether the next command of an initiator is PERSISTENT RESERVE OUT, and begins it.
func (f *fencing) draws(i *initiator) bool {
	if !f.dice.oneIn(changeOdds) && (i.registered || !f.dice.oneIn(3)) {
		return false
	}
	c := f.draw(i)
	if c == nil {
		return false
	}
	i.command = &command{change: c, began: i.now, at: f.dice.r.IntN(len(f.nodes))}
	i.Commands++
	i.try()
	return true
}

// draw draws a change; nil: there is none to do.
func (f *fencing) draw(i *initiator) *access.Change {
	c := &access.Change{Whole: true, Kind: access.WriteExclusiveRegistrants, Ports: f.ports}
	if !i.registered {
		i.keys++
		c.Op, c.NewKey, c.Persist = access.RegisterAndIgnore, i.keys<<8|uint64(i.port)+1, f.aptl
		return c
	}
	c.Key = i.keys<<8 | uint64(i.port) + 1
	o := f.initiators[f.dice.r.IntN(initiators)]
	switch k := f.dice.r.IntN(20); {
	case k < 12:
		if o == i {
			return nil
		}
		c.Op, c.NewKey = access.PreemptAndAbort, o.keys<<8|uint64(o.port)+1
		if k < 3 {
			c.Op = access.Preempt
		}
	case k < 17:
		c.Op = access.Reserve
	case k < 18:
		c.Op = access.Release
	case k < 19:
		c.Op = access.Clear
	default:
		c.Op = access.RegisterAndIgnore // with no key: its registration ends
	}
	return c
}

// try sends a change to a node.
func (f *fencing) try(i *initiator) {
	c := i.command
	f.attempts++
	n := f.nodes[(c.at+c.failures)%len(f.nodes)]
	a := &attempt{command: c, from: i, id: f.attempts, node: n, began: f.now}
	c.attempt = a
	f.after(f.dice.between(50*time.Microsecond, time.Millisecond), func() {
		if n.core == nil {
			i.lost(a, f.dice.between(10*time.Millisecond, 300*time.Millisecond))
			return
		}
		a.life = n.lives
		n.cover(func() {
			own := *c.change
			own.By = n.keeper.nexuses[i.port]
			n.keeper.do(&own, func(result access.Result) {
				f.after(f.dice.between(50*time.Microsecond, time.Millisecond), func() { f.changed(a, result) })
			})
		})
	})
	f.after(i.timer, func() { i.lost(a, 0) })
}

// changed: an initiator hears how a change has ended.
func (f *fencing) changed(a *attempt, result access.Result) {
	i := a.from
	if a.over || a.node.core == nil || a.node.lives != a.life {
		return
	}
	if result == access.NotNow { // BUSY
		i.lost(a, f.dice.between(0, 300*time.Millisecond))
		return
	}
	a.over = true
	if op := a.change.Op; result == access.Done && op == access.RegisterAndIgnore || result == access.Conflict || op == access.Clear {
		i.registered = result == access.Done && a.change.NewKey != 0
	}
	if result == access.Done {
		f.Fences++
	}
	f.logf("initiator %d hears %d of %+v", i.port, result, a.change)
	i.think()
}
