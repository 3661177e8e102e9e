package nvmf

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/iostat"
	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// NamespaceConfig says what a namespace is made of.
type NamespaceConfig struct {
	// Volume is what is shown. Namespaces of several subsystems, and logical units, may show one.
	Volume    *volume.Volume
	BlockSize int // bytes, a power of two, 512 to 4096; 0: 512 or the store's, whichever is larger
	ReadOnly  bool
	// UUID and NGUID name the bytes: they are the same wherever these are shown, and on every node.
	UUID, NGUID [16]byte
	Logger      *slog.Logger // nil: slog.Default()
}

// maxCompareBytes is the largest Compare and Write: it compares under an exclusive lock.
const maxCompareBytes = 128 << 10

// Namespace is a view of a volume. Its methods may be called from any goroutine.
type Namespace struct {
	v          *volume.Volume
	info       backend.Info
	blockShift uint
	readOnly   bool
	uuid, guid [16]byte
	log        *slog.Logger
	blocks     atomic.Uint64

	drains atomic.Bool // somebody waits until no command runs
	closed atomic.Bool

	mu       sync.Mutex  // taken after Subsystem.mu; a leaf but for what Drain calls
	subs     []shown     // where it is shown; guarded by mu
	attached []*attached // guarded by mu
	paths    []*path     // guarded by mu
	drained  []func()    // guarded by mu
}

// shown is a place where a namespace is shown.
type shown struct {
	sub  *Subsystem
	nsid uint32
}

var _ volume.View = (*Namespace)(nil)

// path is a namespace as one queue reaches it. Only commands of the queue write to it.
type path struct {
	ns    *Namespace
	at    *attached
	queue *Queue
	nsid  uint32
	// commands run until their status is final; see Task.over.
	commands volume.Commands
	begun    bool        // operations wait for Kick; it is in Queue.begun; guarded by Queue.mu
	counts   iostat.Lazy // of its commands
}

// NewNamespace returns the namespace that cfg describes, or an error that says which part of cfg cannot be.
func NewNamespace(cfg NamespaceConfig) (*Namespace, error) {
	n := &Namespace{v: cfg.Volume, info: cfg.Volume.Info(), readOnly: cfg.ReadOnly, uuid: cfg.UUID, guid: cfg.NGUID, log: cfg.Logger}
	if n.log == nil {
		n.log = slog.Default()
	}
	size := cfg.BlockSize
	if size == 0 {
		size = max(512, n.info.BlockSize)
	}
	switch {
	case size < 512 || size > 4096 || size&(size-1) != 0:
		return nil, fmt.Errorf("block size %d is not a power of two from 512 to 4096", size)
	case size < n.info.BlockSize:
		return nil, fmt.Errorf("block size %d is smaller than the %d bytes that the store can address", size, n.info.BlockSize)
	case n.v.Size() < int64(size):
		return nil, fmt.Errorf("a store of %d bytes does not hold one block of %d", n.v.Size(), size)
	case n.uuid == [16]byte{}:
		return nil, errors.New("a namespace has no UUID")
	}
	n.blockShift = uint(bits.TrailingZeros(uint(size)))
	n.v.Attach(n)
	n.SizeChanged() // it may have, before
	return n, nil
}

// Close ends the view; the volume stays open. No subsystem shows the namespace any more, and no command runs.
func (n *Namespace) Close() {
	if !n.Idle() {
		panic("nvmf: a namespace is closed with commands in it")
	}
	n.mu.Lock()
	attached := n.attached // to controllers that do not show it any more
	n.attached = nil
	n.mu.Unlock()
	for _, a := range attached {
		n.v.Access().Unsubscribe(a)
	}
	n.v.Detach(n)
	n.closed.Store(true)
}

// Idle reports whether no command is in the namespace.
func (n *Namespace) Idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, all := n.commands()
	return all == 0
}

// commands returns how many commands run, and how many there are between start and release. mu is held.
func (n *Namespace) commands() (running, all int64) {
	for _, p := range n.paths {
		r, a := p.commands.Count()
		running += r
		all += a
	}
	return running, all
}

// join makes a path for a queue.
func (n *Namespace) join(q *Queue, a *attached) *path {
	p := &path{ns: n, at: a, queue: q, nsid: a.nsid}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths = append(n.paths, p)
	return p
}

// part takes away a path that has no command any more.
func (n *Namespace) part(p *path) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths = slices.DeleteFunc(n.paths, func(o *path) bool { return o == p })
}

// over counts a command out that runs, and also its release if released is 1.
func (p *path) over(t volume.Turn, released uint64) {
	if p.commands.End(t, released) && p.ns.drains.Load() {
		p.ns.tellDrained()
	}
}

// heldPath keeps a namespace from being closed.
type heldPath struct {
	*path
	turn volume.Turn
}

func (p *path) hold() heldPath { return heldPath{p, p.commands.Enter()} }

// letGo undoes it.
func (h heldPath) letGo() { h.over(h.turn, 1) }

// over says that the status of the command is final, or that it does nothing any more but to wait for what its host still places. Its answer may still be on its way, which does not matter to anybody else: the host may take
// none. But where it may be in the store's own memory it would tell what is written there next.
func (t *Task) over() {
	if t.path != nil && !t.ended && (t.In == nil || t.NoLend || !t.path.ns.v.Lends()) {
		t.path.over(t.turn, 0)
		t.ended = true
	}
}

// leavePath is the release of the command.
func (t *Task) leavePath() {
	if t.ended {
		t.path.commands.Release()
	} else {
		t.path.over(t.turn, 1)
	}
	t.path, t.ended = nil, false
}

// Drain implements volume.View.
func (n *Namespace) Drain(drained func()) {
	n.mu.Lock()
	n.drained = append(n.drained, drained)
	n.drains.Store(true)
	n.mu.Unlock()
	n.tellDrained()
}

func (n *Namespace) tellDrained() {
	n.mu.Lock()
	var tell []func()
	if running, _ := n.commands(); running == 0 {
		tell, n.drained = n.drained, nil
		n.drains.Store(false)
	}
	n.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// setSize notes the size of the volume, and reports whether it is another one.
func (n *Namespace) setSize(size int64) bool {
	blocks := uint64(size) >> n.blockShift
	return n.blocks.Swap(blocks) != blocks
}

// SizeChanged implements volume.View: controllers tell their hosts.
func (n *Namespace) SizeChanged() {
	size := n.v.Size()
	changed := n.setSize(size)
	for n.v.Size() != size { // another call may have been faster with the size of later
		size = n.v.Size()
		changed = n.setSize(size) || changed
	}
	if !changed {
		return
	}
	n.mu.Lock()
	subs := slices.Clone(n.subs)
	n.mu.Unlock()
	for _, s := range subs {
		s.sub.changed([]uint32{s.nsid})
	}
}

// refusal is the status of a command that denied keeps from running; Success: it may run. reads and writes say what
// it does with the medium.
func refusal(denied access.Denial, reads, writes bool) nvme.Status {
	switch {
	case denied == 0:
		return nvme.Success
	case denied&unknown != 0:
		return nvme.InvalidNamespace | nvme.DNR
	case denied&access.InTransition != 0:
		return nvme.PathInTransition
	case denied&access.IsOffline != 0:
		return nvme.PersistentLoss
	case denied&(access.IsUnavailable|access.InStandby) != 0:
		return nvme.Inaccessible
	case denied&access.Sanitizing != 0:
		return nvme.SanitizeInProgress
	case denied&access.SanitizeFailed != 0:
		return nvme.SanitizeFailed | nvme.DNR
	case denied&access.Most != 0, denied&access.Reads != 0 && reads, denied&access.Writes != 0 && writes:
		return nvme.ReservationConflict | nvme.DNR
	}
	return nvme.Success
}

// statusOf translates an error of the store.
func (n *Namespace) statusOf(err error) nvme.Status {
	if m, ok := errors.AsType[*backend.MediumError](err); ok {
		if m.Kind == backend.Read {
			return nvme.UnrecoveredRead | nvme.DNR
		}
		return nvme.WriteFault | nvme.DNR
	}
	if _, ok := errors.AsType[*backend.SpaceError](err); ok {
		return nvme.CapacityExceeded | nvme.DNR
	}
	if moved(err) {
		return nvme.PathInTransition
	}
	return nvme.InternalError
}

// moved reports whether nothing has failed: another process serves the bytes.
func moved(err error) bool {
	_, ok := errors.AsType[*backend.MovedError](err)
	return ok
}

// blockSize is the number of bytes of a block.
func (n *Namespace) blockSize() int64 { return 1 << n.blockShift }

// identify returns the Identify Namespace data structure of the namespace with that number.
func (n *Namespace) identify(nsid uint32) nvme.Namespace {
	blocks := n.blocks.Load()
	count := func(bytes int64) uint16 { return uint16(min(max(1, bytes>>n.blockShift), 1<<16) - 1) }
	physical, grain := int64(n.info.PhysicalBlockSize), n.info.DiscardGranularity
	d := nvme.Namespace{
		Blocks: blocks, Used: blocks, Bytes: blocks << n.blockShift, BlockShift: uint8(n.blockShift),
		NSFEAT: nvme.NSFEATAtomic | nvme.NSFEATOptimal, NMIC: nvme.NMICShared, NACWU: count(maxCompareBytes),
		DLFEAT: nvme.DLFEATZeroes | nvme.DLFEATWriteZeros,
		NPWG:   count(physical), NPWA: count(physical), NPDG: count(grain), NPDA: count(grain), NOWS: count(n.info.OptimalIO),
		MSSRL: uint16(int64(maxCopyRange) >> n.blockShift), MCL: maxCopyBytes >> n.blockShift, MSRC: maxCopyRanges - 1,
		ReadOnly: n.readOnly, NGUID: n.guid, ANAGroup: nsid, RESCAP: nvme.RESCAPTypes | nvme.RESCAPIgnore,
	}
	if n.v.Access().Keeps() {
		d.RESCAP |= nvme.RESCAPPersist
	}
	return d
}
