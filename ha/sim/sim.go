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
	"time"

	"oneshot/ha/replica"
)

// The store is small, so that operations meet.
const (
	blockSize   = 512
	blocks      = 96
	hot         = 16 // half of the operations are here
	granuleSize = 4 * blockSize
	regionSize  = 16 * blockSize
	heapSize    = 64 * blockSize

	tickEvery = 20 * time.Millisecond
)

// Options of a run.
type Options struct {
	Seed   uint64
	Length time.Duration // virtual
	Log    io.Writer     // what happens; nil: nothing is written
}

// Result says what a run has seen.
type Result struct {
	Violation *Violation
	Trace     uint64 // equal in each run with the same options
	Steps     int
	Commands  int // sent by initiators
	Completed int
	Flushes   int
	Takeovers int // including orderly ones
	Returns   int // copies that came back into S
	Losses    int // blocks that a power cut of W members has set back
	SwapsKept int // COMPARE AND WRITE that were found done after a takeover
	Setup     string
}

// run is one simulated world.
type run struct {
	world
	Options
	consensus
	cfg       replica.Config
	nodes     []*node
	links     [16][16]link
	cut       [16][16]bool
	witnessUp bool
	faults    *faults

	initiators []*initiator
	open       map[uint64]*attempt // at nodes
	attempts   uint64
	values     uint64
	stopped    bool // no new commands

	floors    []floor
	primaries map[uint64]reign
	swapped   map[uint64]pos
	violation *Violation
	Result
}

// Run simulates a world.
func Run(o Options) (res Result) {
	r := &run{Options: o, open: map[uint64]*attempt{}, primaries: map[uint64]reign{}, swapped: map[uint64]pos{}, witnessUp: true}
	r.world = world{r: rand.New(rand.NewPCG(o.Seed, 0)), log: o.Log, trace: 14695981039346656037}
	defer func() { // an assertion of the core
		if e := recover(); e != nil {
			r.fail(0, "%v\n%s", e, debug.Stack())
			res.Violation = r.violation
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

func (r *run) setUp() {
	n := 2 + b2i(r.oneIn(3))
	r.cfg = replica.Config{
		Quorum: 2, Size: blocks * blockSize, Granule: granuleSize, Region: regionSize, Heap: heapSize, Unit: blockSize, Ring: 48,
		Heartbeat: 50 * time.Millisecond, Lease: 250 * time.Millisecond, Grace: 350 * time.Millisecond,
		Confirm: r.oneIn(2), SlowCopy: 5 * time.Second, FlushEvery: 2 * time.Second, SaveEvery: time.Second, Copying: 3,
	}
	r.floors = make([]floor, blocks)
	r.view = replica.View{Version: 1, Term: 1, First: 1}
	for id := range replica.ID(n) {
		r.view.InSync = r.view.InSync.With(id)
		r.nodes = append(r.nodes, &node{
			run: r, id: id, heap: make([]cell, heapSize/blockSize), disk: newDisk(), rate: 1 + (r.r.Float64()-0.5)/50,
			left: &replica.Memory{},
		})
	}
	r.cfg.Copies = r.view.InSync
	r.views, r.viewsAt = []replica.View{r.view}, []time.Duration{0}
	r.faults = r.drawFaults()
	r.Setup = fmt.Sprintf("%d copies, reads confirmed: %v, faults: %v", n, r.cfg.Confirm, r.faults)
	r.logf("seed %d: %s", r.Seed, r.Setup)
	for _, x := range r.nodes {
		x.start()
	}
	for a := range replica.ID(n) {
		for b := a + 1; b < replica.ID(n); b++ {
			r.connect(a, b)
		}
	}
	r.newsOn()
	pace := r.between(20*time.Millisecond, 200*time.Millisecond)
	for port := range 4 {
		i := &initiator{run: r, port: port, pace: pace, timer: r.between(300*time.Millisecond, 5*time.Second)}
		r.initiators = append(r.initiators, i)
		i.think()
	}
	r.watch()
	r.faults.next(r)
}

// watch compares copies now and then.
func (r *run) watch() {
	v := r.view
	r.checkDifferences(&v)
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
	all := func() bool { return r.view.InSync == r.cfg.Copies }
	for r.violation == nil && !all() && r.world.step(began+15*time.Second) {
		r.Steps++
	}
	if !all() {
		r.fail(15, "15 s after everything was mended the copies are %b of %b", r.view.InSync, r.cfg.Copies)
	}
	r.stopped = true
	began = r.now
	for r.violation == nil && r.pending() && r.world.step(began+12*time.Second) {
		r.Steps++
	}
	if r.pending() {
		r.fail(14, "12 s after everything was mended a command has not ended")
	}
	began = r.now
	for r.violation == nil && !r.equal() && r.world.step(began+5*time.Second) {
		r.Steps++
	}
	if !r.equal() {
		r.fail(6, "the copies differ when nothing is under way")
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
			if c != r.nodes[0].disk.cache[b] || c.pos.less(r.floors[b].pos) {
				return false
			}
		}
	}
	return true
}
