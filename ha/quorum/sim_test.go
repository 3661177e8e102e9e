package quorum

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"oneshot/internal/rounds"
)

// The simulation: nodes with disks, links and clocks of their own, clients that change records, and an administrator,
// all drawn from one number. raft draws one number itself, from crypto/rand, which the test sets.

// world is one run.
type world struct {
	r     *rand.Rand
	now   time.Duration
	queue events
	count uint64
	log   io.Writer
	quiet bool // no new faults, all is mended

	nodes   []*simNode
	cut     map[[2]uint64]bool
	arrives map[[2]uint64]time.Duration // the last message between two nodes that are far
	cluster uint64
	witness string // its name
	idle    bool   // clients take their time
	clients []*simClient
	values  uint64

	states  map[uint64]uint64 // by raft index: hash of what was applied
	floor   map[string]uint64 // by name: the newest version that somebody was told
	written map[string]map[uint64]string
	bad     string
	simStats
}

type simStats struct {
	puts, conflicts, reads, elections, cuts, kills, torn, fulls, refusals, joins, snapshots, moves int
	trace                                                                                          uint64
}

type simNode struct {
	w        *world
	number   uint64
	name     string
	place    uint64 // in the network: two nodes of one number have two
	disk     *disk
	core     *Core
	life     uint64 // counts starts
	busy     time.Duration
	rate     float64
	peers    map[uint64]uint64 // by number: the place where it is connected, with ...
	lives    map[uint64]uint64 // ... its life
	ended    map[uint64]func(Result)
	reads    map[uint64]func()
	sick     bool // its disk is slow
	leads    uint64
	outdated bool // it has to be refused
	watch    map[string]uint64
	beats    int           // calls of Tick
	former   bool          // of a version that reports nothing
	lags     time.Duration // is added to what its disk takes
	far      time.Duration // is added to its round trips
	moved    uint64        // as place.moved
}

type simEvent struct {
	at time.Duration
	n  uint64
	do func()
}

type events []simEvent

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.queue, simEvent{w.now + max(d, 0), w.count, do})
}

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.r.Int64N(int64(b-a)+1))
}
func (w *world) oneIn(n int) bool { return w.r.IntN(n) == 0 }

func (w *world) logf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %s", w.trace, w.now, text)
	w.trace = h.Sum64()
	if w.log != nil {
		fmt.Fprintf(w.log, "%10v %s\n", w.now, text)
	}
}

func (w *world) fail(what, format string, args ...any) {
	if w.bad == "" {
		w.bad = what + ": " + fmt.Sprintf(format, args...)
		w.logf("VIOLATION %s", w.bad)
	}
}

const simTick = tickTime

func newWorld(seed uint64, log io.Writer) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 0)), log: log, cut: map[[2]uint64]bool{}, arrives: map[[2]uint64]time.Duration{}, states: map[uint64]uint64{},
		floor: map[string]uint64{}, written: map[string]map[uint64]string{},
	}
	w.cluster, w.witness = w.r.Uint64(), "c"
	return w
}

// host makes a place for a node.
func (w *world) host(name string, number uint64, d *disk) *simNode {
	n := &simNode{
		w: w, number: number, name: name, place: uint64(len(w.nodes) + 1), disk: d, rate: 1 + (w.r.Float64()-0.5)/50,
		watch: map[string]uint64{},
	}
	w.nodes = append(w.nodes, n)
	return n
}

// create makes the log of a new member.
func (n *simNode) create(first bool) {
	id := Identity{Cluster: n.w.cluster, Number: n.number, Name: n.name, Authority: []byte("authority")}
	var s *raftpb.Snapshot
	if first {
		s = initial(&id, "lab", false, keyOf(n), nil)
	}
	n.guard(func() {
		if _, err := CreateLog(n.disk, id, s, n.w.r.Uint64); err != nil {
			panic(err)
		}
	})
	n.start()
}

func keyOf(n *simNode) (k [32]byte) {
	copy(k[:], fmt.Sprintf("%s at %d", n.name, n.place))
	return k
}

// guard does something that writes to the disk; false: the power was cut meanwhile.
func (n *simNode) guard(do func()) (ok bool) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case powerCut:
			n.w.torn++
			n.power()
		default:
			panic(e)
		}
	}()
	do()
	return true
}

// start begins a life.
func (n *simNode) start() {
	w := n.w
	n.core, n.peers, n.lives = nil, map[uint64]uint64{}, map[uint64]uint64{}
	n.ended, n.reads = map[uint64]func(Result){}, map[uint64]func(){}
	n.guard(func() {
		l, err := OpenLog(n.disk, w.r.Uint64)
		if err != nil {
			if n.disk.full || strings.Contains(err.Error(), errSync.Error()) {
				w.after(w.between(100*time.Millisecond, time.Second), n.again)
				return
			}
			if err == ErrNoLog { // it never was one
				return
			}
			w.fail("log", "node %s cannot begin: %v", n.name, err)
			return
		}
		l.limit, l.keep = 16<<10, 8
		c, err := Start(l, slog.New(slog.DiscardHandler))
		if err != nil {
			w.fail("log", "node %s cannot begin: %v", n.name, err)
			return
		}
		n.core, n.busy = c, w.now
		n.life++
		clear(n.watch)
		life := n.life
		w.logf("%s (%d at %d) begins life %d at batch %d", n.name, n.number, n.place, l.id.Incarnation, l.start)
		n.tick(life)
	})
}

func (n *simNode) again() {
	if n.core == nil {
		n.start()
	}
}

// power cuts it: of what is not on the disk anything may be lost.
func (n *simNode) power() {
	n.w.logf("%s: power cut", n.name)
	n.disk = n.disk.cut(n.w.r, []float64{0, 0.5, 0.5}[n.w.r.IntN(3)])
	n.down()
}

func (n *simNode) kill() {
	n.w.logf("%s: killed", n.name)
	d := n.disk.cut(n.w.r, 1)
	n.disk = d
	n.down()
}

func (n *simNode) down() {
	n.core = nil
	n.life++
	for _, o := range n.w.nodes {
		if o.peers[n.number] == n.place {
			delete(o.peers, n.number)
			o.unreachable(n.number)
		}
	}
	n.w.after(n.w.between(10*time.Millisecond, 2*time.Second), n.again)
}

func (n *simNode) unreachable(number uint64) {
	if n.core != nil {
		n.core.Unreachable(number)
	}
}

func (n *simNode) tick(life uint64) {
	if n.core == nil || n.life != life {
		return
	}
	n.do(func() { n.core.Tick() })
	if n.beats++; n.core != nil && time.Duration(n.beats)*tickTime%reportTime == 0 {
		n.report()
	}
	n.w.after(time.Duration(float64(simTick)*n.rate), func() { n.tick(life) })
}

// do lets the node do something as soon as its disk is ready, and what follows from it.
func (n *simNode) do(f func()) {
	life := n.life
	if n.busy > n.w.now {
		n.w.after(n.busy-n.w.now, func() {
			if n.core != nil && n.life == life {
				n.do(f)
			}
		})
		return
	}
	var out Output
	var err error
	before := n.disk.count
	if !n.guard(func() { f(); err = n.core.Work(&out) }) || n.core == nil {
		return
	}
	w := n.w
	if err != nil && !n.disk.full && n.core.Refused() == nil && !strings.Contains(err.Error(), errSync.Error()) {
		w.fail("log", "%s: %v", n.name, err)
		return
	}
	if n.disk.count != before {
		n.busy = w.now + w.between(time.Millisecond, 5*time.Millisecond) + n.lags
		if n.sick {
			n.busy += w.between(0, 700*time.Millisecond)
		}
		n.core.Saved(n.busy - w.now)
	}
	n.look(&out)
	w.after(n.busy-w.now, func() {
		if n.life == life && n.core != nil {
			n.tell(&out)
		}
	})
}

// report tells the others of this node.
func (n *simNode) report() {
	w, r := n.w, n.core.Report()
	if n.former {
		r = Report{}
	}
	for _, o := range w.nodes {
		if o.core == nil || !n.connected(o) {
			continue
		}
		life := o.life
		w.after(time.Millisecond+(n.far+o.far)/2, func() {
			if o.core != nil && o.life == life && n.reaches(o) {
				o.do(func() { o.core.Reported(n.number, r, time.Millisecond+n.far+o.far) })
			}
		})
	}
}

// look checks what was done.
func (n *simNode) look(out *Output) {
	w := n.w
	if leader, term := n.core.Leader(); leader == n.number && n.leads != term {
		n.leads = term
		w.elections++
		w.logf("%s leads term %d", n.name, term)
	}
	if n.moved != n.core.place.moved {
		if n.moved = n.core.place.moved; n.moved != 0 {
			w.moves++
			w.logf("%s hands the lead to a better place", n.name)
		}
	}
	h := fnv.New64a()
	h.Write(n.core.state.encode())
	if old, ok := w.states[n.core.applied]; ok && old != h.Sum64() {
		w.fail("same state", "%s has another state after entry %d", n.name, n.core.applied)
	}
	w.states[n.core.applied] = h.Sum64()
	for _, r := range out.Changed {
		if r.Version <= n.watch[r.Name] {
			w.fail("watchers", "%s is told of version %d of %s after version %d", n.name, r.Version, r.Name, n.watch[r.Name])
		}
		n.watch[r.Name] = r.Version
		w.check(r)
	}
	for _, k := range n.core.state.keys() {
		if r := n.core.state.records[k]; n.watch[k.Name] < r.Version && n.watch[k.Name] > 0 {
			w.fail("watchers", "%s has version %d of %s, and told of %d", n.name, r.Version, k.Name, n.watch[k.Name])
		}
	}
}

// check compares a version of a record with what others have.
func (w *world) check(r *Record) {
	all := w.written[r.Name]
	if all == nil {
		all = map[uint64]string{}
		w.written[r.Name] = all
	}
	if old, ok := all[r.Version]; ok && old != string(r.Value) {
		w.fail("same state", "version %d of %s is %.20q and %.20q", r.Version, r.Name, old, r.Value)
	}
	all[r.Version] = string(r.Value)
}

// tell does what may be done after the disk has everything.
func (n *simNode) tell(out *Output) {
	w := n.w
	for _, m := range out.Messages {
		n.send(m)
	}
	for _, e := range out.Ended {
		if f := n.ended[e.Count]; f != nil {
			delete(n.ended, e.Count)
			f(e.Result)
		}
	}
	for _, r := range out.Reads {
		if f := n.reads[r]; f != nil {
			delete(n.reads, r)
			f()
		}
	}
	if n.core == nil {
		return // the power was cut meanwhile
	}
	if err := n.core.Refused(); err != nil && !n.outdated {
		w.fail("refused", "%s is refused: %v", n.name, err)
	}
}

func (n *simNode) reaches(o *simNode) bool {
	return !n.w.cut[[2]uint64{n.place, o.place}] && !n.w.cut[[2]uint64{o.place, n.place}]
}

// connected says whether two nodes have said hello in their present lives.
func (n *simNode) connected(o *simNode) bool {
	return n.peers[o.number] == o.place && n.lives[o.number] == o.life && o.peers[n.number] == n.place && o.lives[n.number] == n.life
}

func (n *simNode) send(m Message) {
	w, to := n.w, m.Raft.GetTo()
	i := slices.IndexFunc(w.nodes, func(o *simNode) bool { return o.number == to && o.core != nil && n.connected(o) })
	if i < 0 || w.oneIn(200) {
		n.core.Unreachable(to)
		if m.Raft.GetType() == raftpb.MsgSnap {
			n.core.SnapshotSent(to, false)
		}
		return
	}
	o := w.nodes[i]
	life := o.life
	isSnapshot := m.Raft.GetType() == raftpb.MsgSnap
	takes := w.between(200*time.Microsecond, 4*time.Millisecond)
	if w.oneIn(10) {
		takes += w.between(0, 60*time.Millisecond)
	}
	if far := n.far + o.far; far > 0 { // one stream, of which packets are lost that are sent again
		takes += far / 2
		if w.oneIn(50) {
			takes += far + 200*time.Millisecond
		}
		link := [2]uint64{n.place, o.place}
		w.arrives[link] = max(w.arrives[link], w.now+takes)
		takes = w.arrives[link] - w.now
	}
	w.after(takes, func() {
		ok := o.core != nil && o.life == life && n.reaches(o)
		if isSnapshot && n.core != nil {
			w.snapshots++
			n.core.SnapshotSent(to, ok)
		}
		if ok {
			o.do(func() { o.core.Receive(m) })
		}
	})
}

// connectAll lets nodes say hello that can reach each other.
func (w *world) connectAll() {
	for i, a := range w.nodes {
		for _, b := range w.nodes[i+1:] {
			if a.core == nil || b.core == nil || a.connected(b) || !a.reaches(b) || a.core.isSilent() || b.core.isSilent() {
				continue
			}
			a.meet(b)
		}
	}
	w.after(50*time.Millisecond, w.connectAll)
}

// meet lets two nodes say hello: each says whether it takes the other.
func (n *simNode) meet(o *simNode) {
	w := n.w
	if n.number == o.number {
		return // nobody connects with itself
	}
	errN := n.core.Admit(o.core.Hello(), n.core.Seen()[o.number], n.hasOther(o), true)
	if errN == nil {
		n.peers[o.number], n.lives[o.number] = o.place, o.life
	}
	errO := o.core.Admit(n.core.Hello(), o.core.Seen()[n.number], o.hasOther(n), true)
	if errO == nil {
		o.peers[n.number], o.lives[n.number] = n.place, n.life
	}
	for _, x := range []struct {
		err  error
		node *simNode
	}{{errN, o}, {errO, n}} {
		if x.err != nil {
			x.node.core.Refuse(x.err)
			if x.node.core.Refused() != nil {
				w.logf("%s (%d at %d) is refused: %v", x.node.name, x.node.number, x.node.place, x.err)
				w.refusals++
				if !x.node.outdated {
					w.fail("refused", "%s is refused: %v", x.node.name, x.err)
				}
			}
		}
	}
}

// hasOther says whether a node is connected with another machine of the same number.
func (n *simNode) hasOther(o *simNode) bool {
	for _, x := range n.w.nodes {
		if x != o && x.number == o.number && x.core != nil && n.connected(x) && n.reaches(x) {
			return true
		}
	}
	return false
}

// simClient changes records, one at a time.
type simClient struct {
	w    *world
	name int
}

func (c *simClient) think() {
	if c.w.idle {
		c.w.after(5*time.Second, c.act)
		return
	}
	c.w.after(c.w.between(5*time.Millisecond, 150*time.Millisecond), c.act)
}

// up is a node that runs, and is to be relied on.
func (w *world) up() *simNode {
	var up []*simNode
	for _, n := range w.nodes {
		if n.core != nil && !n.outdated && n.core.state.member(n.number) != nil {
			up = append(up, n)
		}
	}
	if len(up) == 0 {
		return nil
	}
	return up[w.r.IntN(len(up))]
}

// act reads a record at some node, and then changes it there; sometimes it believes what it sees.
func (c *simClient) act() {
	w := c.w
	n := w.up()
	if n == nil {
		c.think()
		return
	}
	key := Key{KindUnit, fmt.Sprintf("unit%d", w.r.IntN(3))}
	if w.oneIn(3) {
		c.put(n, key)
		return
	}
	life, floor, done := n.life, w.floor[key.Name], false
	n.do(func() {
		r, err := n.core.Read()
		if err != nil {
			return
		}
		n.reads[r] = func() {
			if done || n.life != life {
				return
			}
			done = true
			w.reads++
			if v := versionOf(n.core.state, key); v < floor {
				w.fail("linearizable", "%s reads version %d of %s after somebody was told of %d", n.name, v, key.Name, floor)
			} else {
				w.floor[key.Name] = max(w.floor[key.Name], v)
			}
			c.put(n, key)
		}
	})
	c.patience(&done)
}

func versionOf(s *State, k Key) uint64 {
	if r := s.Newest(k); r != nil {
		return r.Version
	}
	return 0
}

// patience ends after a while.
func (c *simClient) patience(done *bool) {
	c.w.after(2*time.Second, func() {
		if !*done {
			*done = true
			c.think()
		}
	})
}

func (c *simClient) put(n *simNode, key Key) {
	w := c.w
	life, floor, done := n.life, w.floor[key.Name], false
	w.values++
	value := fmt.Sprintf("value %d", w.values)
	if w.oneIn(3) {
		value += strings.Repeat(".", w.r.IntN(4*sector)) // a batch that can be torn
	}
	n.do(func() {
		version := versionOf(n.core.state, key)
		id, err := n.core.Put(key, version, []byte(value))
		if err != nil {
			return
		}
		n.ended[id] = func(r Result) {
			if done || n.life != life {
				return
			}
			done = true
			c.putEnded(n, key, value, version, floor, r)
			c.think()
		}
	})
	c.patience(&done)
}

func (c *simClient) putEnded(n *simNode, key Key, value string, version, floor uint64, r Result) {
	w := c.w
	switch r.Err {
	case nil:
		w.puts++
		if r.Record.Version != version+1 || string(r.Record.Value) != value || r.Record.Version <= floor {
			w.fail("linearizable", "%s made version %d of %s from %d, and somebody was told of %d before", n.name, r.Record.Version, key.Name, version, floor)
		}
		w.floor[key.Name] = max(w.floor[key.Name], r.Record.Version)
		w.check(r.Record)
	case ErrConflict:
		w.conflicts++
		if r.Record != nil && string(r.Record.Value) == value {
			w.fail("once", "the change of %s to %q ended in a conflict with itself", key.Name, value)
		}
		if v := versionOf(n.core.state, key); v < floor {
			w.fail("linearizable", "%s conflicts with version %d of %s after somebody was told of %d", n.name, v, key.Name, floor)
		}
	case ErrUnknown:
	default:
		w.fail("change", "%v", r.Err)
	}
}

// ask lets some node do a change until it is done. nil: it is to be asked again.
func (w *world) ask(what string, do func(c *Core) (uint64, error), then func(Result)) {
	done := false
	try := func() {}
	try = func() {
		if done {
			return
		}
		if n := w.up(); n != nil {
			life := n.life
			n.do(func() {
				id, err := do(n.core)
				if err != nil {
					w.fail("administrator", "%s: %v", what, err)
					return
				}
				n.ended[id] = func(r Result) {
					if done || n.life != life || r.Err == ErrUnknown {
						return
					}
					done = true
					w.logf("%s: %v", what, r.Err)
					then(r)
				}
			})
		}
		w.after(time.Second, try)
	}
	try()
}

// invite makes a token, with which a new machine joins.
func (w *world) invite(name string, then func(*simNode)) {
	w.values++
	token := fmt.Appendf(nil, "token %d", w.values)
	w.ask("token", func(c *Core) (uint64, error) { return c.AddToken(token) }, func(Result) { w.join(name, token, then) })
}

// join makes a member of a new machine.
func (w *world) join(name string, token []byte, then func(*simNode)) {
	n := w.host(name, 0, newDisk())
	w.ask("join "+name, func(c *Core) (uint64, error) { return c.Join(name, name == w.witness, keyOf(n), token) }, func(r Result) {
		if r.Err != nil {
			w.fail("administrator", "join %s: %v", name, r.Err)
			return
		}
		w.joins++
		n.number = r.Member.Number
		n.create(false)
		if n.core == nil { // the power was cut before the log was there
			n.disk = newDisk()
			n.create(false)
		}
		then(n)
	})
}

// setUp makes a cluster of three.
func (w *world) setUp() {
	a := w.host("a", 1, newDisk())
	a.create(true)
	w.connectAll()
	for _, name := range []string{"b", "c"} {
		w.invite(name, func(*simNode) {})
	}
	for i := range 3 {
		c := &simClient{w, i}
		w.clients = append(w.clients, c)
		c.think()
	}
	w.after(3*time.Second, w.fault)
}

// some returns a node that runs.
func (w *world) some() *simNode { return w.up() }

// fault does something bad, and after a while the next.
func (w *world) fault() {
	if w.quiet {
		return
	}
	w.after(w.between(50*time.Millisecond, 1500*time.Millisecond), w.fault)
	n := w.some()
	if n == nil {
		return
	}
	switch w.r.IntN(9) {
	case 0:
		w.cuts++
		n.power()
	case 1:
		w.kills++
		n.kill()
	case 2, 3: // the power is cut soon, between any two steps of a write
		n.disk.steps = w.r.IntN(12)
	case 4, 5:
		w.isolate(n)
	case 6:
		w.fulls++
		n.disk.full = true
		d := n.disk
		w.logf("%s: the disk is full", n.name)
		w.after(w.between(100*time.Millisecond, 3*time.Second), func() { d.full, n.disk.full = false, false })
	case 7:
		n.sick = !n.sick
		soon := func() {
			w.after(w.between(10*time.Millisecond, 300*time.Millisecond), func() {
				if n.core != nil {
					n.power()
				}
			})
		}
		if n.disk.fail = errSync; w.oneIn(2) {
			n.disk.fail, n.disk.lost, n.disk.onLost = nil, errSync, soon
		} else if w.oneIn(2) {
			soon()
		}
	case 8:
		for _, o := range w.nodes { // all at once
			if w.oneIn(4) && o.core != nil {
				o.power()
			}
		}
	}
}

// isolate cuts some links of a node, one way or both, for a while.
func (w *world) isolate(n *simNode) {
	var ends [][2]uint64
	for _, o := range w.nodes {
		if o == n || w.oneIn(2) {
			continue
		}
		w.logf("%s and %s are cut", n.name, o.name)
		ends = append(ends, [2]uint64{n.place, o.place})
		for _, x := range [][2]*simNode{{n, o}, {o, n}} {
			if x[0].peers != nil && x[0].peers[x[1].number] == x[1].place {
				delete(x[0].peers, x[1].number)
				x[0].unreachable(x[1].number)
			}
		}
	}
	for _, e := range ends {
		w.cut[e] = true
	}
	w.after(w.between(50*time.Millisecond, 4*time.Second), func() {
		for _, e := range ends {
			delete(w.cut, e)
		}
	})
}

// mend ends all faults.
func (w *world) mend() {
	w.quiet = true
	clear(w.cut)
	for _, n := range w.nodes {
		n.disk.full, n.disk.fail, n.disk.lost, n.disk.steps, n.sick = false, nil, nil, -1, false
	}
}

// run goes on until a time, or until something holds.
func (w *world) run(until time.Duration, holds func() bool) bool {
	for w.bad == "" && len(w.queue) > 0 && w.queue[0].at <= until {
		e := heap.Pop(&w.queue).(simEvent)
		w.now = e.at
		e.do()
		if holds != nil && holds() {
			return true
		}
	}
	w.now = max(w.now, until)
	return false
}

// settle mends everything: then changes have to succeed, and all members to have the same.
func (w *world) settle() {
	w.mend()
	w.logf("everything is mended")
	puts := w.puts
	if !w.run(w.now+15*time.Second, func() bool { return w.puts > puts+20 && w.level() }) {
		w.fail("progress", "15 s after everything was mended %d changes have succeeded, and members are level: %v", w.puts-puts, w.level())
	}
}

// level says whether all that are not outdated run, and are members with the same state, as voters if there are three.
func (w *world) level() bool {
	var first *simNode
	votes := 0
	for _, n := range w.nodes {
		if n.outdated || n.number == 0 {
			continue
		}
		if n.core == nil || n.core.state.member(n.number) == nil {
			return false
		}
		if first == nil {
			first = n
		}
		voters, _ := n.core.Voters()
		if !slices.Equal(voters, first.core.conf.GetVoters()) || len(n.core.state.members) != len(first.core.state.members) {
			return false
		}
		votes += len(voters)
		for _, v := range voters {
			if m := n.core.state.member(v); m == nil || m.Leaving != Stays {
				return false
			}
		}
		if len(n.core.state.members) >= 3 && len(voters) < 3 || n.core.applied+200 < first.core.applied {
			return false
		}
	}
	return votes > 0
}

// simulate runs a world. plan changes members, or brings in nodes that are not what they say.
func simulate(t *testing.T, seed uint64, length time.Duration, log io.Writer, plan func(w *world)) (w *world) {
	cryptotest.SetGlobalRandom(t, seed)
	w = newWorld(seed, log)
	defer func() {
		if e := recover(); e != nil {
			w.fail("panic", "%v\n%s", e, debug.Stack())
		}
	}()
	w.setUp()
	if plan != nil {
		plan(w)
	}
	w.run(length, nil)
	if w.bad == "" {
		w.settle()
	}
	return w
}

// changes of members: replace one, which is gone or not; add two; remove one.
func changeMembers(w *world) {
	w.after(w.between(3*time.Second, 6*time.Second), func() {
		victim := w.nodes[w.r.IntN(3)]
		w.logf("%s is replaced", victim.name)
		victim.outdated = true
		w.ask("replace "+victim.name, func(c *Core) (uint64, error) { return c.Leave(victim.number, Replaced) }, func(Result) {
			if w.oneIn(2) {
				victim.kill()
			}
			w.invite(victim.name, func(*simNode) {
				w.after(w.between(0, 3*time.Second), w.addTwo)
			})
		})
	})
}

func (w *world) addTwo() {
	names := []string{"d", "e"}
	for _, name := range names {
		w.invite(name, func(n *simNode) {
			if name == "e" && w.oneIn(2) {
				w.after(w.between(0, 2*time.Second), func() {
					n.outdated = true
					w.ask("remove", func(c *Core) (uint64, error) { return c.Leave(n.number, Removed) }, func(Result) {})
				})
			}
		})
	}
}

// impostors: while all is well, a clone of a node begins beside it, or a node is set back to what its disk held some
// seconds ago. Then it is replaced.
func impostors(w *world) {
	w.quiet = true
	var copied *disk
	victim := w.nodes[0]
	w.after(w.between(4*time.Second, 5*time.Second), func() {
		victim = w.up()
		copied = victim.disk.cut(w.r, 1)
	})
	w.after(7*time.Second, func() {
		if w.oneIn(2) {
			w.logf("%s is cloned", victim.name)
			if w.oneIn(2) {
				copied = victim.disk.cut(w.r, 1)
			}
			clone := w.host(victim.name, victim.number, copied)
			clone.outdated = true
			clone.start()
			w.after(4*time.Second, func() {
				if clone.core.Refused() == nil {
					w.fail("refused", "a clone of %s runs", victim.name)
				}
				if victim.core.Refused() != nil {
					w.fail("refused", "%s is refused because of its clone", victim.name)
				}
			})
			return
		}
		w.logf("%s is set back", victim.name)
		victim.kill()
		victim.disk = copied
		victim.outdated = true
		w.after(5*time.Second, func() {
			if victim.core.Refused() == nil {
				w.fail("refused", "%s runs though it was set back", victim.name)
			}
			w.ask("replace", func(c *Core) (uint64, error) { return c.Leave(victim.number, Replaced) }, func(Result) {
				w.invite(victim.name, func(*simNode) {})
			})
		})
	})
}

// number reads one from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

var plans = map[string]func(*world){"": nil, "members": changeMembers, "impostors": impostors}

// TestSimulation runs ONESHOT_SIM_RUNS worlds, of each kind, from the seed ONESHOT_SEED on. ONESHOT_SIM_LOG prints all
// that happens.
func TestSimulation(t *testing.T) {
	runs := uint64(rounds.Of(10, 1)) // in one goroutine
	first, n := number("ONESHOT_SEED", 1), number("ONESHOT_SIM_RUNS", runs)
	var all simStats
	for seed := first; seed < first+n; seed++ {
		for _, name := range slices.Sorted(maps.Keys(plans)) {
			var log io.Writer
			if os.Getenv("ONESHOT_SIM_LOG") != "" {
				log = t.Output()
			}
			w := simulate(t, seed, 20*time.Second, log, plans[name])
			if w.bad != "" {
				t.Fatalf("ONESHOT_SEED=%d ONESHOT_SIM_RUNS=1, %s: violation of %s", seed, cmp.Or(name, "faults"), w.bad)
			}
			all.add(&w.simStats)
		}
	}
	t.Logf("%d runs of each kind: %+v", n, all)
	if n >= 10 && (all.puts == 0 || all.conflicts == 0 || all.reads == 0 || all.elections < 5 || all.torn == 0 || all.fulls == 0 || all.refusals == 0 || all.joins == 0 || all.snapshots == 0 || all.moves == 0) {
		t.Errorf("the runs did not meet what they are for: %+v", all)
	}
}

func (s *simStats) add(o *simStats) {
	s.puts += o.puts
	s.conflicts += o.conflicts
	s.reads += o.reads
	s.elections += o.elections
	s.cuts += o.cuts
	s.kills += o.kills
	s.torn += o.torn
	s.fulls += o.fulls
	s.refusals += o.refusals
	s.joins += o.joins
	s.snapshots += o.snapshots
	s.moves += o.moves
}

// TestRepeat: the same number is the same run.
func TestRepeat(t *testing.T) {
	a, b, c := simulate(t, 1, 8*time.Second, nil, nil), simulate(t, 1, 8*time.Second, nil, nil), simulate(t, 2, 8*time.Second, nil, nil)
	if a.trace != b.trace || a.trace == c.trace {
		t.Errorf("seed 1 gives %x and %x, seed 2 gives %x", a.trace, b.trace, c.trace)
	}
}

// TestLeaderLostAtOnce: three vote, and the leader does not come back. As soon as it has known that the others can do without it, they can.
func TestLeaderLostAtOnce(t *testing.T) {
	first := number("ONESHOT_SEED", 1)
	for seed := first; seed < first+uint64(rounds.Of(30, 10)); seed++ {
		cryptotest.SetGlobalRandom(t, seed)
		w := newWorld(seed, nil)
		w.setUp()
		w.quiet = true
		var leader *simNode
		found := w.run(10*time.Second, func() bool {
			for _, n := range w.nodes {
				if n.core == nil {
					continue
				}
				number, _ := n.core.Leader()
				if voters, _ := n.core.Voters(); len(voters) == 3 && number == n.number && !n.core.Settling() {
					leader = n
				}
			}
			return leader != nil
		})
		if !found {
			t.Fatalf("ONESHOT_SEED=%d: no leader is sure that three vote: %s", seed, w.bad)
		}
		leader.outdated = true // nobody asks it any more
		for _, n := range w.nodes {
			w.cut[[2]uint64{leader.place, n.place}] = true
		}
		leader.kill()
		puts := w.puts
		if !w.run(w.now+15*time.Second, func() bool { return w.puts > puts+20 }) {
			t.Fatalf("ONESHOT_SEED=%d: without %s, which is lost, %d changes have succeeded in 15 s: %s", seed, leader.name, w.puts-puts, w.bad)
		}
	}
}
