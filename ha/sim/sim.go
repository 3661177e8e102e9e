// Package sim runs the core of package replica in a simulated world: nodes that are killed, lose their power and
// stop; disks that tear, are slow and refuse; links that cut, delay and, for datagrams, lose, double and reorder;
// clocks with rates of their own; initiators with timers; and somebody who switches. Everything is drawn from one
// number, so a run that fails can be repeated. After each step the invariants of docs/architecture/ha.md are checked.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"oneshot/ha/replica"
)

// The store is small, so that operations meet.
const (
	blockSize   = 512
	blocks      = 96
	hot         = 16 // half of the operations are here
	inFirst     = 64 // blocks of the first store
	granuleSize = 4 * blockSize
	regionSize  = 16 * blockSize
	heapSize    = 64 * blockSize

	tickEvery = 20 * time.Millisecond
)

// Options of a run.
type Options struct {
	Seed   uint64
	Theme  string        // one of themes; empty: one is drawn
	Length time.Duration // virtual
	Log    io.Writer     // what happens; nil: nothing is written
	Quorum bool          // consensus is that of package ha/quorum, not the model

	Without []int   // numbers of faults that are left out; the others happen when and where they do without that
	plan    []Fault // what happens in the whole world; nil: it is drawn, or Run finds out
}

// Result says what a run has seen.
type Result struct {
	Violation *Violation
	Trace     uint64 // equal in each run with the same options
	Steps     int
	Commands  int // sent by initiators
	Completed int
	AtOnce    int // reads that needed no request
	Flushes   int
	Takeovers int // including orderly ones
	Switched  int // orders to hand over that were carried out
	Returns   int // copies that came back into S
	Forced    int // copies that were made go on without the others
	GivenUp   int // copies that came back after that and were brought level only where they may differ
	Losses    int // blocks that a power cut of W members has set back
	Verified  int // times that all was compared
	Found     int // ranges that differed, or could not be read
	Lost      int // blocks that a copy got in sync without, because nobody could read them
	Corrupted int // messages and fetched ranges whose bytes have changed on their way
	Fences    int // PERSISTENT RESERVE OUT that were done
	Conflicts int // writes that reservations have forbidden
	SwapsKept int // COMPARE AND WRITE that were found done after a takeover
	Yielded   int // times that a primary with a copy to bring level gave way to hosts
	Setup     string
	Happened  []Fault // but for those at moments of weight; those that were left out, too
}

// run is one simulated world.
type run struct {
	world
	Options
	consensus
	group      *group // nil: the model
	cfg        replica.Config
	nodes      []*node
	links      [16][16]link
	cut        [16][16]bool
	witnessUp  bool
	mute       [16]bool // whose datagrams are lost
	atBest     bool     // no datagram is lost or late
	faults     *faults
	pacing     pacing
	fencing    *fencing // nil: there are no reservations
	addresses  *addresses
	corrupting *corrupting // nil: no bytes change on their way
	order      *order      // nil: all happens by the clock

	initiators []*initiator
	open       map[uint64]*attempt // at nodes
	attempts   uint64
	values     uint64
	stopped    bool // no new commands

	worn      replica.ID // whose disk gets bad blocks
	verifying *attempt
	switches  map[uint64]*switching // orders to hand over that have no answer yet
	drained   replica.Nodes         // by the administrator
	gone      map[int]pos           // by block: the newest of it when a copy went without it
	rotten    map[int]replica.ID    // by granule: whose copy is, or was, not what was written
	lineage   int                   // how often a copy was forced
	asked     int64                 // the largest size that was asked for
	rotAt     uint64                // version of the view when they changed
	healed    bool
	size      int64 // of the second store, as the hosts know it
	atomics   []atomic
	floors    []floor
	primaries map[uint64]reign
	swapped   map[uint64]pos
	violation *Violation
	Result
}

// Run simulates a world.
func Run(o Options) (res Result) {
	if len(o.Without) > 0 && o.plan == nil {
		whole := o
		whole.Without, whole.Log = nil, nil
		o.plan = append([]Fault{}, Run(whole).Happened...)
	}
	r := newRun(o)
	defer func() { // an assertion of the core
		if e := recover(); e != nil {
			r.fail(0, "%v\n%s", e, debug.Stack())
			r.Result.Violation = r.violation
			res = r.Result
		}
	}()
	r.setUp()
	for r.violation == nil && r.world.step(o.Length) {
		r.Steps++
	}
	r.settle()
	r.Result.Violation, r.Result.Trace = r.violation, r.trace
	return r.Result
}

func newRun(o Options) *run {
	r := &run{Options: o, open: map[uint64]*attempt{}, switches: map[uint64]*switching{}, primaries: map[uint64]reign{}, swapped: map[uint64]pos{}, gone: map[int]pos{}, witnessUp: true}
	r.world = world{r: rand.New(rand.NewPCG(o.Seed, 0)), log: o.Log, trace: 14695981039346656037}
	r.pacing = drawPacing(o.Seed)
	return r
}

func (r *run) setUp() {
	theme := r.drawTheme()
	if theme != nil {
		r.Options.Theme = theme.name
	}
	n := 2 + b2i(r.oneIn(3) || theme != nil && theme.three)
	r.cfg = replica.Config{
		Quorum: 2, MinCopies: 1 + b2i(r.oneIn(6)), Granule: granuleSize, Region: regionSize, Heap: heapSize, Unit: blockSize, Ring: 48,
		Heartbeat: 50 * time.Millisecond, Lease: 250 * time.Millisecond, Grace: 350 * time.Millisecond,
		Confirm: r.oneIn(2), SlowCopy: 5 * time.Second, FlushEvery: 2 * time.Second, SaveEvery: time.Second, Copying: 3,
	}
	if r.Options.Theme == "lease" {
		r.cfg.Confirm = false
	}
	r.cfg.Stores = []replica.Store{
		{Size: inFirst * blockSize, Through: r.oneIn(6)},
		{Off: secondOff, Size: (blocks - inFirst - regionSize/blockSize/2) * blockSize, Through: r.oneIn(3)},
	}
	r.size = r.cfg.Stores[1].Size
	r.worn = replica.ID(r.r.IntN(n))
	r.floors = make([]floor, blocks)
	r.view = replica.View{Version: 1, Term: 1, First: 1}
	for id := range replica.ID(n) {
		r.view.InSync = r.view.InSync.With(id)
		r.nodes = append(r.nodes, &node{
			run: r, id: id, heap: make([]cell, heapSize/blockSize), disk: newDisk(), rate: 1 + (r.r.Float64()-0.5)/50,
			left: &replica.Memory{}, sizes: [2]int64{r.cfg.Stores[0].Size, r.size},
		})
	}
	for _, n := range r.nodes {
		for b := inFirst + int(r.size/blockSize); b < blocks; b++ {
			c := cell{val: 1<<63 + uint64(n.id)} // what a disk has before it is the store's
			n.disk.cache[b], n.disk.medium[b] = c, c
		}
	}
	r.cfg.Copies = r.view.InSync
	r.views, r.viewsAt = []replica.View{r.view}, []time.Duration{0}
	r.faults = r.drawFaults(theme)
	r.Setup = fmt.Sprintf("%d copies, at least %d, reads confirmed: %v, through: %v %v, paced: %v, faults: %v",
		n, r.cfg.MinCopies, r.cfg.Confirm, r.cfg.Stores[0].Through, r.cfg.Stores[1].Through, r.pacing.chance != nil, r.faults)
	r.logf("seed %d: %s", r.Seed, r.Setup)
	r.addresses, r.corrupting = r.drawAddresses(), r.drawCorrupting()
	if r.fencing = r.drawFencing(); r.fencing != nil {
		r.fencing.agreed(&r.view)
	}
	for _, x := range r.nodes {
		x.start()
	}
	for a := range replica.ID(n) {
		for b := a + 1; b < replica.ID(n); b++ {
			r.connect(a, b)
		}
	}
	if r.Quorum {
		r.foundGroup()
	}
	r.newsOn()
	r.repace()
	pace := r.between(20*time.Millisecond, 200*time.Millisecond)
	for port := range initiators {
		i := &initiator{run: r, port: port, pace: pace, timer: r.between(300*time.Millisecond, 5*time.Second)}
		r.initiators = append(r.initiators, i)
		i.think()
	}
	r.watch()
	r.faults.next(r)
}

// The second store lies far behind the first one, and grows.
const secondOff = 4096 * blockSize

// offOf returns where a block is in the set, and blockOf which one is there.
func offOf(block int) int64 {
	if block >= inFirst {
		return secondOff + int64(block-inFirst)*blockSize
	}
	return int64(block) * blockSize
}

func blockOf(off int64) int {
	if off >= secondOff {
		return inFirst + int((off-secondOff)/blockSize)
	}
	return int(off / blockSize)
}

// isInside says whether a block is one that the hosts know.
func (r *run) isInside(block int) bool { return block < inFirst+int(r.size/blockSize) }

// watch compares copies now and then.
func (r *run) watch() {
	v := r.view
	r.checkDifferences(&v)
	if r.givesWay() {
		r.Yielded++
	}
	r.addresses.check()
	r.after(50*time.Millisecond, r.watch)
}

// settle mends everything. Then all commands have to end, and all copies to come back while writes go on.
func (r *run) settle() {
	if r.violation != nil {
		return
	}
	r.logf("everything is mended")
	r.mend()
	began := r.now
	all := func() bool { return r.view.InSync == r.cfg.Copies && r.isServed() }
	for r.violation == nil && !all() && r.world.step(began+15*time.Second) {
		r.Steps++
	}
	if !all() && r.isHeld() {
		return
	}
	if !all() {
		r.fail(15, "15 s after everything was mended the copies are %b of %b, served: %v", r.view.InSync, r.cfg.Copies, r.isServed())
	}
	began = r.now
	steady, version := r.now, r.view.Version
	for r.violation == nil && (r.verifying != nil || !all() || r.now-steady < time.Second) && r.world.step(began+10*time.Second) {
		r.Steps++
		if r.view.Version != version {
			steady, version = r.now, r.view.Version
		}
	}
	r.calm(steady)
	r.rotOn()
	began = r.now
	for r.violation == nil && r.verifying != nil && r.world.step(began+10*time.Second) {
		r.Steps++
	}
	if r.verifying != nil {
		r.fail(19, "the copies are compared, and it does not end")
	}
	r.drainOn()
	r.hangOn()
	r.stopped = true
	began = r.now
	for r.violation == nil && r.pending() && r.world.step(began+12*time.Second) {
		r.Steps++
	}
	if r.pending() {
		r.fail(14, "12 s after everything was mended a command has not ended")
	}
	if len(r.switches) > 0 {
		r.fail(21, "12 s after everything was mended an order to hand over has no answer")
	}
	began = r.now
	for r.violation == nil && !r.equal() && r.world.step(began+5*time.Second) {
		r.Steps++
	}
	if !r.equal() {
		r.fail(6, "the copies differ when nothing is under way")
	}
}

// isHeld says whether the only copy in S had its disk set back, and has proposed to be the only one in a life before that. Then nobody
// knows what was written, and the set waits for the administrator.
func (r *run) isHeld() bool {
	n := r.nodes[r.view.Primary]
	return r.view.InSync == replica.NodesOf(n.id) && n.disk.saved.Unknown && r.view.Life <= n.backIn
}

// promptly is how long a command may take when nothing is wrong. What waits for something that happens by itself, as the primary's flush
// now and then, takes longer.
const promptly = 1500 * time.Millisecond

// calm: all copies are members, and nothing fails. Commands end promptly.
func (r *run) calm(since time.Duration) {
	for began := r.now; r.violation == nil && r.view.InSync == r.cfg.Copies && r.world.step(began+2*promptly); {
		r.Steps++
		for _, i := range r.initiators {
			if c := i.command; c != nil && c.change == nil && r.now-max(c.began, since) > promptly {
				r.fail(14, "nothing is wrong, and attempt %d at node %d of a command has not ended after %v", c.attempt.id, c.attempt.node.id, promptly)
			}
		}
	}
}

// isServed says whether the primary of the newest view is in its office.
func (r *run) isServed() bool {
	p := r.nodes[r.view.Primary]
	if p.core == nil {
		return false
	}
	s := p.core.State()
	return s.Role == replica.Primary && s.View.Version == r.view.Version
}

// hangOn lets the primary's disk hang. All commands have to end even so. Nothing else is wrong: if some beats in a row were lost the primary
// would drop the other members, and be alone with a disk from which it cannot bring them level.
func (r *run) hangOn() {
	if r.violation != nil || !slices.Contains(r.faults.kinds, faultHang) || r.cfg.MinCopies >= len(r.nodes) || r.view.InSync != r.cfg.Copies {
		return
	}
	x, began := r.nodes[r.view.Primary], r.now
	r.logf("the disk of node %d hangs", x.id)
	x.disk.hang()
	r.atBest = true
	var open []*command
	for _, i := range r.initiators {
		open = append(open, i.command)
	}
	ended := func() bool {
		for k, i := range r.initiators {
			if i.command != nil && i.command == open[k] {
				return false
			}
		}
		return r.now-began > 100*time.Millisecond
	}
	for r.violation == nil && !ended() && r.world.step(began+30*time.Second) {
		r.Steps++
	}
	if !ended() {
		r.fail(14, "30 s after a disk has begun to hang a command has not ended")
	}
	x.disk.goOn(r.now)
	r.atBest = false
	for began = r.now; r.violation == nil && r.view.InSync != r.cfg.Copies && r.world.step(began+15*time.Second); {
		r.Steps++
	}
}

func (r *run) pending() bool {
	for _, i := range r.initiators {
		if i.command != nil {
			return true
		}
	}
	return false
}

// equal says whether all disks have the same, and everything that was acknowledged.
func (r *run) equal() bool {
	for b := range r.floors {
		for _, n := range r.nodes {
			c := n.disk.cache[b]
			if !r.isInside(b) || n.misses(b) {
				continue
			}
			if c.isRotten() && !r.healed {
				return false
			}
			if c.healed() != r.nodes[0].disk.cache[b].healed() && !r.nodes[0].misses(b) || c.pos.less(r.floors[b].pos) {
				return false
			}
		}
	}
	return true
}
