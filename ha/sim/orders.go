package sim

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"oneshot/ha/replica"
)

// OrderOptions say which orders EachOrder tries.
type OrderOptions struct {
	Depth  int       // how many things happen in an order of its choice; then what is left happens by the clock
	Faults int       // the most of them in an order
	Passes int       // how often time passes at most, so much that a lease and the patience of others are over
	All    bool      // also orders that differ only in what goes on at the same time on two nodes
	Only   []int     // this order, by the place of each choice among those that there were; nil: each
	Log    io.Writer // what happens; nil: nothing is written

	ended func(state string) // is told in which state each order ends, before all is mended; nil: nobody
}

// OrderResult says what EachOrder has found.
type OrderResult struct {
	Orders    int // that were brought to their end
	Same      int // that were left because another order is the same but for what goes on at the same time
	Steps     int // of all orders, and of what followed them
	Takeovers int
	Violation *Violation // the first; nil: none
	Order     []int      // of the violation, as in OrderOptions
	Names     []string   // of what happened in it
}

// EachOrder lets two nodes and their consensus, of which two hosts write two blocks, flush and read, do what they do in each order: which message arrives
// next, which work of a disk ends, which proposal is agreed on and who hears of that, when a command begins, when a process or the power of a node or a
// connection ends, who notices first that time has passed. Behind each order all is mended, and both copies have to be level. The invariants are those of Run.
//
// Orders are not tried twice that differ only in the order of two events at different nodes, of which neither is answered, agreed on, promoted or fails: the states
// behind them are the same, and so is what is checked there.
func EachOrder(o OrderOptions) OrderResult {
	s := &search{OrderOptions: o}
	for s.try() && s.Violation == nil && o.Only == nil {
		if !s.back() {
			break
		}
	}
	return s.OrderResult
}

// search is where EachOrder is: forks are the choices that have led there.
type search struct {
	OrderOptions
	OrderResult
	forks []fork
}

// fork is a state, and what can happen next in it.
type fork struct {
	choices []event
	at      int     // the one that is tried
	taken   taken   // what that was
	asleep  []taken // need not be tried here: what follows was tried where they came sooner
}

type taken struct {
	event
	alone bool // it changes or checks what belongs to one node only
}

// commutes says whether it makes no difference which of two comes first.
func (t *taken) commutes(o *taken) bool { return t.alone && o.alone && t.node != o.node }

func (f *fork) isAsleep(e event) bool {
	return slices.ContainsFunc(f.asleep, func(t taken) bool { return t.event == e })
}

// awake returns the next choice that has to be tried, from i on.
func (f *fork) awake(i int) int {
	for i < len(f.choices) && f.isAsleep(f.choices[i]) {
		i++
	}
	return i
}

// try goes the way of the forks, and on from there to the end of an order.
func (s *search) try() bool {
	o := newOrder(s.OrderOptions)
	defer func() {
		if e := recover(); e != nil { // an assertion of the core
			o.fail(0, "%v\n%s", e, debug.Stack())
		}
		s.Steps += o.Steps
		s.Takeovers += o.Takeovers - 1 // the first primary is none
		if s.Violation = o.violation; s.Violation != nil {
			for i := range s.forks {
				s.Order = append(s.Order, s.forks[i].at)
				s.Names = append(s.Names, s.forks[i].choices[s.forks[i].at].String())
			}
		}
	}()
	var asleep []taken
	for depth := 0; depth < s.Depth && o.violation == nil; depth++ {
		if depth == len(s.forks) {
			f := fork{choices: o.choices(), asleep: asleep}
			if f.at = f.awake(0); len(f.choices) == 0 {
				break
			}
			if s.Only != nil {
				if depth == len(s.Only) || s.Only[depth] >= len(f.choices) {
					break
				}
				f.at = s.Only[depth]
			}
			if f.at == len(f.choices) {
				s.Same++
				return true
			}
			s.forks = append(s.forks, f)
		}
		f := &s.forks[depth]
		e := f.choices[f.at]
		before := o.seen()
		o.logf("CHOICE %v of %v", e, f.choices)
		o.do(e)
		o.Steps++
		f.taken = taken{e, e.kind <= evAtDisk && o.seen() == before}
		asleep = nil
		for i := range f.asleep {
			if f.asleep[i].commutes(&f.taken) {
				asleep = append(asleep, f.asleep[i])
			}
		}
	}
	s.Orders++
	if s.ended != nil {
		s.ended(o.state())
	}
	o.end()
	return true
}

// back goes to the last fork where something is still to be tried, and says whether there is one.
func (s *search) back() bool {
	for len(s.forks) > 0 {
		f := &s.forks[len(s.forks)-1]
		if !s.All {
			f.asleep = append(f.asleep, f.taken)
		}
		if f.at = f.awake(f.at + 1); f.at < len(f.choices) {
			return true
		}
		s.forks = s.forks[:len(s.forks)-1]
	}
	return false
}

// event names what can happen next. In two worlds in which the same has happened on a node, though in another order elsewhere, the events there have
// the same names.
type event struct {
	kind eventKind
	node replica.ID // where it happens
	peer replica.ID // from where it comes, or the host
	no   int        // among those of the same kind, node and peer
}

type eventKind int

const (
	evAtHost   eventKind = iota + 1 // happens at once: what a host does has its place in the order when it begins
	evCommand                       // a host begins one
	evAgain                         // a host sends one again, to another node
	evTick                          // time has passed, and a node notices
	evMessage                       // arrives; none overtakes another
	evDatagram                      // arrives
	evIsDown                        // the node learns that its connection has ended
	evNews                          // of consensus
	evAtDisk                        // a work ends; those before it happen to one node
	evPull                          // ends: it reads the other one's memory
	evProposal                      // gets to consensus
	evPasses                        // time, and the node is the first to notice
	evStarts                        // the process, after it has ended
	evConnects                      // one node with another
	evKill                          // from here on no is 1 if what was on its way and not certain has happened, for evPowerCut what was written and not synced; else 0
	evPowerCut
	evBreaks // the connection
)

var eventNames = map[eventKind]string{
	evCommand: "command", evAgain: "again", evTick: "tick", evMessage: "message", evDatagram: "datagram", evIsDown: "is down", evNews: "news", evAtDisk: "disk", evPull: "pull",
	evProposal: "proposal", evPasses: "time passes", evStarts: "start", evConnects: "connect", evKill: "kill", evPowerCut: "power", evBreaks: "break",
}

// String says what happens, where, and from which node or host it comes.
func (e event) String() string {
	return fmt.Sprintf("%s %d<%d #%d", eventNames[e.kind], e.node, e.peer, e.no)
}

// order is a world in which things wait until their turn comes. Its source of chance always has the same answer.
type order struct {
	*run
	OrderOptions
	edge    *edge
	held    []held
	numbers map[event]int
	scripts [2][]command // of the hosts: what they have still to do
	late    [2]bool      // nodes that have not noticed that time has passed
}

// held is what waits for its turn, or for the clock when there are no turns any more.
type held struct {
	event
	life uint64 // as lifeOf when it was arranged
	d    time.Duration
	run  func()
}

// edge is a source of chance: the most, or the least, of all that there can be. With the most nothing rare happens.
type edge struct{ least bool }

func (e *edge) Uint64() uint64 {
	if e.least {
		return 1 << 32 // package rand draws again if it gets 0
	}
	return math.MaxUint64
}

// enough is how long time passes: a lease, and the patience of who would take over, are over.
const enough = 400 * time.Millisecond

// newOrder makes a world in which node 0 is in office, both copies are level, and nothing is under way.
func newOrder(options OrderOptions) *order {
	// By this number there are no reservations, no pace, no changes of bytes, and ticks come often.
	r := newRun(Options{Seed: 2, Log: options.Log})
	o := &order{run: r, OrderOptions: options, edge: &edge{}, numbers: map[event]int{}}
	r.world.r = rand.New(o.edge)
	r.stopped = true // hosts do what scripts say
	r.setUp()
	for r.world.step(200 * time.Millisecond) {
		r.Steps++
	}
	o.scripts = [2][]command{
		{{kind: doWrite, block: 0, n: 1}, {kind: doFlush, n: 1}},
		{{kind: doWrite, block: 0, n: 2}, {kind: doRead, block: 0, n: 1}},
	}
	r.order = o
	return o
}

// await has f happen by the clock, after d; in an order, when its turn comes.
func (r *run) await(kind eventKind, node, peer replica.ID, d time.Duration, f func()) {
	o := r.order
	if o == nil {
		r.after(d, f)
		return
	}
	e := event{kind: kind, node: node, peer: peer}
	o.numbers[e]++
	h := held{event: e, life: o.lifeOf(e), d: d, run: f}
	h.no = o.numbers[e]
	o.held = append(o.held, h)
}

// lifeOf changes when an event can have no effect any more.
func (o *order) lifeOf(e event) uint64 {
	n := o.nodes[e.node]
	switch e.kind {
	case evMessage:
		return o.link(e.node, e.peer).life
	case evIsDown:
		return o.link(e.node, e.peer).life<<32 | uint64(n.lives)
	case evProposal, evNews:
		return o.view.Version
	case evAtDisk, evPull:
		return uint64(n.lives)
	}
	return 0
}

// isOver says whether an event has no effect any more.
func (o *order) isOver(h *held) bool {
	n := o.nodes[h.node]
	switch h.kind {
	case evProposal:
		return h.life != o.lifeOf(h.event)
	case evNews:
		return n.core == nil || n.core.State().View.Version >= h.life
	}
	return n.core == nil || h.life != o.lifeOf(h.event)
}

// choices are what can happen next.
func (o *order) choices() (list []event) {
	var lanes [2]bool // a message that arrives before the others
	for i := range o.held {
		h := &o.held[i]
		if o.isOver(h) || h.kind == evMessage && lanes[h.node] {
			continue
		}
		lanes[h.node] = lanes[h.node] || h.kind == evMessage
		list = append(list, h.event)
	}
	for k, script := range o.scripts {
		if i := o.initiators[k]; len(script) > 0 && i.command == nil && o.nodes[i.target].core != nil {
			list = append(list, event{evCommand, replica.ID(i.target), replica.ID(k), len(script)})
		}
	}
	for _, n := range o.nodes {
		if n.core == nil {
			list = append(list, event{kind: evStarts, node: n.id})
			continue
		}
		if o.late[n.id] {
			list = append(list, event{kind: evTick, node: n.id, no: o.Passes})
		}
		if o.Passes > 0 {
			list = append(list, event{kind: evPasses, node: n.id})
		}
	}
	if o.mayConnect(0, 1) {
		list = append(list, event{kind: evConnects})
	}
	if o.Faults > 0 {
		list = append(list, o.faultChoices()...)
	}
	// By name, so that another order of what has led here does not change it.
	slices.SortFunc(list, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.node, b.node), cmp.Compare(a.peer, b.peer), cmp.Compare(a.no, b.no))
	})
	return list
}

// faultChoices are the faults that can happen next: each twice where something is not certain.
func (o *order) faultChoices() (list []event) {
	l := o.link(0, 1)
	add := func(e event, uncertain bool) {
		list = append(list, e)
		if uncertain {
			e.no = 1
			list = append(list, e)
		}
	}
	for _, n := range o.nodes {
		if n.core == nil {
			continue
		}
		d := n.disk
		writes := len(l.flying) > 0 || len(d.writing) > 0 || d.saving != nil
		add(event{kind: evKill, node: n.id}, writes)
		add(event{kind: evPowerCut, node: n.id}, writes || slices.ContainsFunc(d.pending, func(p []cell) bool { return len(p) > 0 }))
	}
	if l.up {
		add(event{kind: evBreaks}, len(l.flying) > 0)
	}
	return list
}

// do lets an event happen.
func (o *order) do(e event) {
	n := o.nodes[e.node]
	switch e.kind {
	case evCommand:
		i := o.initiators[e.peer]
		c := o.scripts[e.peer][0]
		o.scripts[e.peer] = o.scripts[e.peer][1:]
		c.began = o.now
		i.command = &c
		i.try()
	case evTick:
		o.notice(n)
	case evPasses:
		o.Passes--
		o.now += enough
		o.late = [2]bool{true, true}
		o.notice(n)
	case evStarts:
		n.start()
	case evConnects:
		o.connectNow(0, 1)
	case evKill, evPowerCut, evBreaks:
		o.Faults--
		o.now += time.Millisecond // what was before it can be told from what comes after it
		o.strike(n, e)
		o.now += time.Millisecond
	default:
		i := slices.IndexFunc(o.held, func(h held) bool { return h.event == e })
		h := o.held[i]
		o.held = slices.Delete(o.held, i, i+1)
		h.run()
	}
	o.follow()
	v := o.view
	o.checkDifferences(&v)
}

// strike ends a process, the power of a node, or the connection.
func (o *order) strike(n *node, e event) {
	switch e.kind {
	case evKill:
		o.edge.least = e.no == 1
		n.kill()
	case evPowerCut:
		o.edge.least = e.no == 0
		n.powerCut()
	default:
		o.edge.least = e.no == 1
		o.breakLink(0, 1, 0)
	}
	o.edge.least = false
}

// notice has a node look at the clock.
func (o *order) notice(n *node) {
	o.late[n.id] = false
	if n.core != nil {
		n.step(replica.Tick{})
	}
}

// follow does what follows an event at once.
func (o *order) follow() {
	for again := true; again; {
		again = false
		for _, n := range o.nodes {
			if len(n.batch) > 0 && n.core != nil {
				n.together()
				again = true
			}
		}
		if i := slices.IndexFunc(o.held, func(h held) bool { return h.kind == evAtHost }); i >= 0 {
			h := o.held[i]
			o.held = slices.Delete(o.held, i, i+1)
			h.run()
			again = true
		}
	}
}

// seen changes with what is checked, and with what concerns both nodes.
func (o *order) seen() [5]uint64 {
	return [5]uint64{uint64(o.Takeovers), uint64(len(o.views)), o.link(0, 1).life, o.attempts - uint64(len(o.open)), uint64(o.AtOnce)}
}

// state describes what nodes and disks have, what was checked, and what can happen next.
func (o *order) state() string {
	var b strings.Builder
	fmt.Fprint(&b, o.view, o.floors[:2], o.scripts[0], o.scripts[1], o.Faults, o.Passes, o.late, o.choices())
	for _, n := range o.nodes {
		fmt.Fprint(&b, "\n", n.lives, n.left, n.disk.cache[:2], n.disk.medium[:2], n.disk.saved.Mark, n.disk.writing, n.grants[:2])
		if n.core != nil {
			fmt.Fprint(&b, n.core.State(), n.core.Memory())
		}
	}
	return b.String()
}

// end mends everything, and lets the rest happen by the clock: then commands have to end, and copies to be level.
func (o *order) end() {
	r := o.run
	if r.violation != nil {
		return
	}
	r.logf("everything is mended")
	r.order = nil
	for i := range o.held {
		r.after(o.held[i].d, o.held[i].run)
	}
	r.mend()
	began := r.now
	all := func() bool { return r.view.InSync == r.cfg.Copies && r.isServed() }
	for r.violation == nil && !(all() && !r.pending() && r.equal()) && r.world.step(began+15*time.Second) {
		r.Steps++
	}
	switch {
	case !all():
		r.fail(15, "15 s after everything was mended the copies are %b of %b, served: %v", r.view.InSync, r.cfg.Copies, r.isServed())
	case r.pending():
		r.fail(14, "15 s after everything was mended a command has not ended")
	case !r.equal():
		r.fail(6, "the copies differ when nothing is under way")
	}
	v := r.view
	r.checkDifferences(&v)
}

// orderOf reads an order as it is printed.
func orderOf(s string) (order []int, err error) {
	for x := range strings.SplitSeq(s, ".") {
		i, err := strconv.Atoi(x)
		if err != nil {
			return nil, err
		}
		order = append(order, i)
	}
	return order, nil
}
