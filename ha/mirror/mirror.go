package mirror

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/ha/fabric"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/internal/loglimit"
)

// Options of a mirror on one node.
type Options struct {
	Name  string        // of the mirror, the same on all nodes
	Node  replica.ID    // this one
	Nodes replica.Nodes // those that have a copy
	Size  int64         // bytes; 0: as many as the copy here has. See Grow
	Began int64         // bytes with which the mirror began, the same on all nodes; 0: Size

	// Found lets a mirror that has no view yet begin with the copy of this node. The others get all of it.
	Found bool

	Copy  backend.Store // of this node; the mirror owns it
	Short bool          // the copy has lost its end, and got another one when it was opened
	FS    quorum.FS     // of this mirror alone, for the metadata
	Views Views

	Listener net.Listener // for nodes with lower numbers; the mirror owns it
	// Dial connects with a node. It ends with ctx.
	Dial func(ctx context.Context, to replica.ID) (net.Conn, error)
	// Fabric takes what nodes tell each other, and the data, to nodes that have one, too; the connections of Dial and Listener prove then
	// who they are. nil: all goes over those connections.
	Fabric *fabric.Fabric

	// Info is what the mirror is like to a host, the same on all nodes, but for its size and cache; nil: as the copy is.
	Info *backend.Info
	// Resized is called when Info tells another size, by a goroutine that Close waits for; nil: nobody wants to know.
	Resized func()
	// Hold is how long an operation may wait for other nodes; 0: 20 s, for hosts give up after 30 s.
	Hold time.Duration
	// Pace is how fast copies are brought level, and compared; see SetPace.
	Pace replica.Pace

	Tune  func(c *replica.Config) // changes what Usual has chosen; nil: nothing
	Clock func() time.Duration    // does not stand still, or Confirm is set; nil: CLOCK_BOOTTIME
	Log   *slog.Logger            // nil: the default
}

// Views are what the nodes of a mirror agree on: one value, which is replaced by compare-and-swap on its version. In a
// new life of a node it tells no view before a majority has confirmed that it is the newest.
type Views interface {
	// Watch calls f with the newest view, when there is one, and with those that follow, until stop has returned. f
	// does not block.
	Watch(f func(replica.View)) (stop func(), err error)
	// Propose asks for a view, of the version that follows the newest. It returns at once, and the proposal may be
	// lost: whether it was accepted Watch tells.
	Propose(v replica.View)
}

// Usual returns how a mirror of size bytes works if nobody asks for anything else.
func Usual(size int64) replica.Config {
	return replica.Config{
		Quorum: 2, MinCopies: 1,
		Stores:  []replica.Store{{Size: size}},
		Granule: 64 << 10, Region: 16 << 20,
		Heap: 64 << 20, Unit: 4096, Ring: 64 << 10,
		Heartbeat: 50 * time.Millisecond, Lease: 250 * time.Millisecond, Grace: 350 * time.Millisecond,
		Confirm: true, SlowCopy: 5 * time.Second, FlushEvery: 5 * time.Second, SaveEvery: 5 * time.Second, Copying: 16,
	}
}

// Mirror is a copy of a mirrored store on one node, and what the node's hosts see of it. Its methods may be called
// from any goroutine.
type Mirror struct {
	opts     Options
	cfg      replica.Config
	limit    atomic.Int64 // bytes that the copy has room for, and may become
	size     atomic.Int64 // bytes that hosts see
	sameness uint64
	alike    []uint64 // that others may have in place of it
	info     backend.Info
	seq      *backend.Sequencer
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // goroutines that end with ctx
	syncer   sync.WaitGroup // the goroutines that save, and that have the journal
	looped   chan struct{}  // closed: the goroutine of the core has ended
	refusals loglimit.Gate  // of connections
	mixed    loglimit.Gate  // connections with nodes that have another transport
	ends     loglimit.Gate
	absences loglimit.Gate
	unkept   loglimit.Gate // of metadata that cannot be saved
	losses   losses
	unwatch  func()
	term     atomic.Uint64 // in which this node is the primary; 0: it is not
	wake     chan struct{} // a token: run has something to do
	ticker   *time.Timer   // brings the next tick

	mu       sync.Mutex // taken last; not held over anything
	inbox    []item
	owned    bool // somebody owns the core
	over     bool // nothing more is taken
	idle     bool // nothing waits for what the copy writes
	state    replica.State
	watchers []chan struct{} // tokens: the state has changed

	// What follows belongs to who owns the core.
	taken      []item // memory of the inbox before
	clock      clock
	asking     int           // operations under way whose answer needs proof
	ticked     bool          // a tick was taken since the last time that publish was called
	due        time.Duration // when the next tick comes; 0: it was not asked for
	stale      bool          // the watchers have not heard of the newest state
	unflushed  bool          // peers, or what publish tells of, may have something new since the last time
	meta       *metadata     // nil: this node takes no part yet; while it saves it is saveOn's
	doubt      *Doubt        // of the disk of this node's copy; nil: none
	failed     error         // see Status.Failed
	unsaved    error         // of the save under way, if it was tried in vain
	saveBegan  time.Duration // when that has begun; 0: none is under way
	core       *replica.Core // nil, too
	viewed     replica.View  // the newest that was told
	arena      []byte
	shared     *fabric.Arena // arena, for nodes of the fabric; nil: there is none
	conns      [16]*conn
	pulses     [16]*conn     // of beats, beside conns; nil: those take them
	next       [16]*conn     // connections that take the place of others when these have ended
	grants     [16]uint64    // who may write into the arena, as which stream
	granted    replica.ID    // whose queue pair may
	told       bool          // the core has something to settle
	pending    []next        // what follows from actions
	following  []next        // the same, while it is done
	now        time.Duration // for what is taken now
	begun      []*work       // given to the copy when peers and hosts have been told
	submitting []*work       // the same, while that is done
	spare      []*work       // to be used again
	tasks      tasks
	orders     uint64        // of the administrator so far: switches, verifications
	reached    int64         // bytes that the core has
	wanted     int64         // that the nodes have agreed on
	growing    uint64        // the order to grow; 0: none
	early      []earlyGrowth // of the core, before this node was told that the nodes have agreed
	ended      []*backend.Op // not told yet
	corks      []backend.Uncorker
	batcher    backend.Batcher // the copy, if it is one; nil: it is none
	prompt     backend.Prompt  // the same
	thin       bool            // the copy can have holes, as a sparse file: where others read as zeroes it takes no space when it is brought level
	works      int             // that the copy or the metadata are busy with
	kept       []span          // of the journal: what is done there goes through it
	journaling journaling
	journal    journal
	pulls      map[uint64]pulling
	verifying  *verification                  // nil: none is under way
	verified   *Verification                  // the last one
	switches   map[uint64]chan replica.Status // orders to hand over
	beside     []chan<- bool                  // wait until one of them has ended
	drained    replica.Nodes
	pace       replica.Pace
	office     office
	copied     int64 // bytes that were sent to copies that are brought level
	lost       int64 // bytes that they go without
	leaving    bool  // it has handed over, and is about to end
	closing    bool
	retired    bool          // for good: the node takes no part, and serves nothing
	again      time.Duration // when founding is proposed again
	absent     bool          // the metadata could not be made
	tries      time.Duration // when that is tried again, if absent
	held       time.Duration // when it is looked next who waits for too long
	saves      chan *saving
	wrote      []int64 // by region: where a granule was last written in this life, plus 1
}

// item is something for the goroutine of the core. One of the fields says what.
type item struct {
	event    replica.Event
	op       *backend.Op
	work     *work
	conn     *conn
	up, down bool
	frame    *received
	call     func()
}

// next is what follows from an action, when the actions of its step are done: an event, or a part of a task.
type next struct {
	event replica.Event
	task  *task
	fills bool // with the host's bytes, the memory at addr
	addr  int64
	id    uint64 // of the task's request then
}

// Open begins a life of this node's copy. Close ends it. After an error the copy and the listener are the caller's.
func Open(o Options) (*Mirror, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = o.Log.With("mirror", o.Name)
	if o.Hold == 0 {
		o.Hold = usualHold
	}
	info := o.Copy.Info()
	if o.Info != nil {
		if o.Info.BlockSize < info.BlockSize {
			return nil, fmt.Errorf("mirror %s: the copy of node %d has blocks of %d bytes, and the mirror's are of %d: use a copy with blocks no larger", o.Name, o.Node, info.BlockSize, o.Info.BlockSize)
		}
		info.BlockSize, info.PhysicalBlockSize = o.Info.BlockSize, o.Info.PhysicalBlockSize
		info.DiscardGranularity, info.OptimalIO = o.Info.DiscardGranularity, o.Info.OptimalIO
	}
	if o.Size == 0 {
		o.Size = info.Size
	}
	if o.Size > info.Size || o.Size%int64(info.BlockSize) != 0 {
		return nil, fmt.Errorf("mirror %s: the copy of node %d has %d bytes in blocks of %d, and the mirror has %d", o.Name, o.Node, info.Size, info.BlockSize, o.Size)
	}
	if !o.Nodes.Has(o.Node) {
		return nil, fmt.Errorf("mirror %s: node %d has no copy", o.Name, o.Node)
	}
	m := &Mirror{
		opts: o, pace: o.Pace, clock: newClock(o.Clock), cfg: Usual(o.Size), reached: o.Size, wanted: o.Size, wake: make(chan struct{}, 1), looped: make(chan struct{}),
		pulls: map[uint64]pulling{}, switches: map[uint64]chan replica.Status{}, saves: make(chan *saving, 1),
	}
	m.limit.Store(o.Size)
	m.size.Store(o.Size)
	m.owned = true // here, until run may take what came in the meantime: connections begin before that
	if o.Tune != nil {
		o.Tune(&m.cfg)
	}
	m.cfg.Self, m.cfg.Copies = o.Node, o.Nodes
	m.sameness, m.alike = m.hash(m.cfg), m.likeness()
	m.wrote = make([]int64, (m.cfg.Stores[0].Size+m.cfg.Region-1)/m.cfg.Region)
	m.info = backend.Info{
		Size: o.Size, BlockSize: info.BlockSize, PhysicalBlockSize: info.PhysicalBlockSize, DiscardGranularity: info.DiscardGranularity,
		StatusUnknown: true, OptimalIO: info.OptimalIO, VolatileCache: !m.cfg.Stores[0].Through,
	}
	m.seq = backend.NewSequencer(m.hand)
	if err := m.makeArena(); err != nil {
		return nil, fmt.Errorf("mirror %s: %w", o.Name, err)
	}
	if i := o.Copy.Info(); i.DiscardGranularity > 0 && !i.StatusUnknown { // a device may discard slowly, and has its space anyway
		m.thin = true
	}
	m.batcher, _ = backend.As[backend.Batcher](o.Copy)
	m.prompt, _ = backend.As[backend.Prompt](o.Copy)
	m.ctx, m.cancel = context.WithCancel(context.Background())

	m.journal = journal{fsys: o.FS, disk: string(backend.IdentityOf(o.Copy))}
	if err := m.journal.complete(o.Copy); err != nil {
		m.journal.close()
		return nil, fmt.Errorf("mirror %s: %w", o.Name, errors.Join(err, m.freeArena()))
	}
	// What a former life has given to the copy may be in a cache of this machine. Here it is what the copy has, and flushes are answered for it.
	if err := do(o.Copy, backend.Op{Kind: backend.Flush}); err != nil {
		m.journal.close()
		return nil, fmt.Errorf("mirror %s: what is on its copy cannot be made durable: %w", o.Name, errors.Join(err, m.freeArena()))
	}
	meta, err := openMetadata(o.FS)
	switch {
	case errors.Is(err, errNoMetadata):
	case err != nil:
		m.journal.close()
		return nil, fmt.Errorf("mirror %s: %w", o.Name, errors.Join(err, m.freeArena()))
	default:
		if err := m.recognize(meta); err != nil {
			m.journal.close()
			return nil, fmt.Errorf("mirror %s: %w", o.Name, errors.Join(err, meta.close(), m.freeArena()))
		}
		m.begin(meta, nil)
	}
	if m.unwatch, err = o.Views.Watch(func(v replica.View) { m.push(item{event: replica.Agreed{View: v}}) }); err != nil {
		err = fmt.Errorf("mirror %s: it cannot be known who is primary: %w", o.Name, err)
		m.cancel()
		m.wg.Wait()
		m.journal.close()
		if m.meta != nil {
			err = errors.Join(err, m.meta.close())
		}
		return nil, errors.Join(err, m.freeArena())
	}
	m.publish()
	m.tickOn()
	m.mu.Lock()
	m.owned = false
	m.mu.Unlock()
	m.wg.Go(m.acceptOn)
	m.syncer.Go(m.saveOn)
	go m.run() // Close waits for looped
	return m, nil
}

// likeness returns the hashes of other nodes that have the same mirror as this one. Only a primary looks at MinCopies, and at its own, so nodes may
// have it changed one after the other. It is in the hash all the same, for those of older versions want it there.
func (m *Mirror) likeness() (hashes []uint64) {
	c := m.cfg
	for c.MinCopies = 1; c.MinCopies <= c.Copies.Len(); c.MinCopies++ {
		hashes = append(hashes, m.hash(c))
	}
	return hashes
}

// hash is of what has to be the same on all nodes. Store.Through is: whoever takes the place of a primary relies on what that one did before its records
// were committed (replica/kept.go). The size of blocks is not in it, but in its place 0, as in all versions: the record of consensus has it, and Open refuses
// a copy with larger ones.
func (m *Mirror) hash(c replica.Config) uint64 {
	c.Self, c.Incarnation, c.Confirm = 0, 0, false // clocks are each node's own
	if m.opts.Began != 0 {
		c.Stores = slices.Clone(c.Stores)
		c.Stores[0].Size = m.opts.Began // copies grow one after the other
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q 0 %+v", m.opts.Name, c)
	return h.Sum64()
}

// comparePatience is how many granules of a copy that comes back may be read twice in vain: see replica.Core.CompareFirst.
const comparePatience = 64

// begin starts the core, and what it needs of the others.
func (m *Mirror) begin(meta *metadata, memory *replica.Memory) {
	cfg := m.cfg
	cfg.Incarnation = meta.life
	saved := meta.saved
	saved.Unknown = saved.Unknown || meta.isOther()
	m.meta, m.core = meta, replica.New(cfg, m.clock.exact(), memory, saved)
	m.core.Blocks(int64(m.info.BlockSize))
	m.core.CompareFirst(comparePatience)
	m.tell(m.pace)
	if n := m.core.Missing(); n > 0 {
		m.opts.Log.Warn("the copy of this node goes without what no copy could read when it was brought level: reads there fail until it is written, unless another copy has it", "bytes", n)
	}
	for id := range m.cfg.Copies.All() { // the connections that are for this node to make
		if id > m.cfg.Self {
			m.wg.Go(func() { m.dialOn(m.ctx, id, false) })
		}
	}
}

// silence is how long a connection may bring nothing. Its other end sends something more often.
func (m *Mirror) silence() time.Duration { return 40 * m.cfg.Heartbeat }

// maxQueue is how much may wait for a peer that reads nothing: all that the memory can hold, and bitmaps.
func (m *Mirror) maxQueue() int64 { return 2*m.cfg.Heap + m.maxHead() }

// maxHead bounds a head: the longest have the bitmaps of all copies, or all records of a log.
func (m *Mirror) maxHead() int64 {
	granules := m.limit.Load()/m.cfg.Granule + 1
	return 20*(granules/4+1<<10) + 1<<18 + 128*int64(m.cfg.Ring)
}

// foundOn asks for the first view, until there is one.
func (m *Mirror) foundOn() {
	if now := m.now; m.opts.Found && m.viewed.Version == 0 && now >= m.again && !m.closing {
		m.again = now + time.Second
		m.opts.Views.Propose(replica.View{Version: 1, Term: 1, First: 1, Primary: m.cfg.Self, InSync: replica.NodesOf(m.cfg.Self)})
	}
}

// enter lets a node that has no metadata take part, when the others do not count on it. Everything on its copy is
// suspect, but for the one that the mirror begins with.
func (m *Mirror) enter(v replica.View) {
	if m.core != nil || m.closing || m.retired {
		return
	}
	var saved replica.Saved
	var memory *replica.Memory
	switch {
	case v.Version == 1 && v.Primary == m.cfg.Self: // nothing was written yet, for its primary takes the office by another one
		memory = new(replica.Memory)
	case v.InSync.Has(m.cfg.Self):
		m.opts.Log.Error("this node has lost the metadata of its copy, and the copy is in sync: the node takes no part before another one has dropped it")
		return
	default:
		saved.Regions = replica.AllRegions(&m.cfg)
	}
	meta, err := createMetadata(m.opts.FS, string(backend.IdentityOf(m.opts.Copy)), saved)
	m.absent, m.tries = err != nil, m.now+time.Second
	if err != nil {
		m.logSome(&m.absences, slog.LevelError, "this node takes no part in its mirror, until its metadata can be made", slog.Any("reason", err))
		return
	}
	m.begin(meta, memory)
	m.step(replica.Drained{Nodes: m.excused()})
}

// enterOn is enter once more, when the metadata could not be made: the disk was full, say.
func (m *Mirror) enterOn() {
	if !m.absent || m.now < m.tries {
		return
	}
	m.absent = false
	m.enter(m.viewed)
	m.step(replica.Agreed{View: m.viewed})
}

// saveOn makes changes of the metadata durable, one after the other. The core waits for each, and hands over if that
// takes too long.
func (m *Mirror) saveOn() {
	for s := range m.saves {
		m.fillSamples(s)
		for {
			err := m.meta.save(s)
			if err == nil || m.ctx.Err() != nil {
				break
			}
			m.logSome(&m.unkept, slog.LevelError, "the metadata of a mirror's copy cannot be saved; the copy waits until they can", slog.Any("reason", err))
			m.push(item{call: func() { m.unsaved = err }})
			select {
			case <-m.ctx.Done():
			case <-time.After(saveAgain):
			}
		}
		m.push(item{call: func() {
			m.works--
			m.unsaved, m.saveBegan = nil, 0
			if m.doubt != nil && s.Known {
				m.doubt.Taken = true
			}
			m.step(replica.Done{ID: s.ID})
		}})
	}
}

const saveAgain = 200 * time.Millisecond

// notSaved says why the metadata are not saved; nil: they are, or may be soon.
func (m *Mirror) notSaved() error {
	took := m.now - m.saveBegan
	switch {
	case m.saveBegan == 0 || m.unsaved == nil && took < m.cfg.SlowCopy:
		return nil
	case m.unsaved != nil:
		return m.unsaved
	}
	return fmt.Errorf("the disk has not answered for %v", took.Truncate(time.Second))
}

// lookAtSave writes into the log that the disk does not answer.
func (m *Mirror) lookAtSave() {
	if err := m.notSaved(); err != nil && m.unsaved == nil {
		m.logSome(&m.unkept, slog.LevelError, "the metadata of a mirror's copy cannot be saved; the copy waits until they can", slog.Any("reason", err))
	}
}

// Close ends the life of the copy: a primary makes durable what was written, on W copies, and the others see this node
// go. No operation is outstanding. An error says what was not made durable.
func (m *Mirror) Close() error {
	var err error
	if m.State().Role == replica.Primary {
		w := make(waiter, 1)
		op := &backend.Op{Kind: backend.Flush, Done: w}
		timer := time.AfterFunc(flushWithin, func() { m.push(item{call: m.refuseAll}) })
		if !m.Submit(op) {
			<-w
		}
		timer.Stop()
		if err = op.Err; err != nil && m.State().Role != replica.Primary {
			err = nil // another node serves it by now, and has all of it
		}
		if err != nil {
			err = fmt.Errorf("mirror %s: what was written may not be durable on as many copies as it should be: %w", m.opts.Name, err)
		}
	}
	m.stop()
	return errors.Join(err, m.opts.Copy.Close())
}

type waiter chan struct{}

func (w waiter) OpDone(*backend.Op) { w <- struct{}{} }

// Retire ends the part of this node: it serves nothing from now on, and follows nobody. What is under way is refused.
func (m *Mirror) Retire() {
	m.push(item{call: func() {
		m.retired = true
		m.refuseAll()
		m.core = nil
		m.closeConns()
	}})
}

// stop ends everything but the copy, as the end of the process does.
func (m *Mirror) stop() {
	m.unwatch()
	stopped := make(chan struct{})
	m.push(item{call: func() {
		m.closing = true
		m.refuseAll()
		m.closeConns()
		close(stopped)
	}})
	<-stopped
	m.cancel()
	_ = m.opts.Listener.Close()
	m.wg.Wait()
	<-m.looped
	m.ticker.Stop()
	close(m.saves)
	m.syncer.Wait()
	m.journal.close()
	if m.meta != nil {
		_ = m.meta.close() // all of it is durable
	}
	if err := m.freeArena(); err != nil {
		m.opts.Log.Error("memory of a mirror stays with its device", "reason", err)
	}
}

func (m *Mirror) closeConns() {
	for _, list := range [...]*[16]*conn{&m.conns, &m.pulses} {
		for _, c := range list {
			if c != nil {
				c.close()
			}
		}
	}
}

// makeArena gets memory for the log's data.
func (m *Mirror) makeArena() (err error) {
	if m.opts.Fabric == nil {
		m.arena = make([]byte, m.cfg.Heap)
		return nil
	}
	if m.shared, err = m.opts.Fabric.NewArena(m.cfg.Heap, m.opts.Name); err != nil {
		return err
	}
	m.arena = m.shared.Bytes()
	return nil
}

// freeArena gives it back, when nobody uses it any more.
func (m *Mirror) freeArena() error {
	if m.shared == nil {
		return nil
	}
	return m.shared.Free()
}
