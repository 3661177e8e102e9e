// Package volume is what all views of a disk have in common: a store, and the state that belongs to
// its bytes, whatever protocol asks for them. There is one volume for each store.
//
//	scsi.LogicalUnit ──┐
//	scsi.LogicalUnit ──┼─► Volume ──► backend.Store
//	Handle ────────────┘     ranges, journal, tokens
//
// A Request is a transfer on its way through a volume. This package knows bytes and offsets only;
// blocks, commands and statuses belong to the views.
package volume

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/volume/access"
)

// Config says what a volume is made of.
type Config struct {
	Store backend.Store // owned by the volume from now on
	// Journal, if set, makes atomic writes possible on a store that does not lend its memory.
	Journal Journal
	// Keeper, if set, keeps persistent reservations, access states and sanitize operations over restarts.
	Keeper Keeper
	// Unsure, if not empty, says that nothing names the store for good: it may be another one than Keeper and Journal tell of. It is the file that
	// the administrator removes if it is. A sanitize operation is not taken up then, and counts as failed; and an atomic write is completed only
	// where the store has a part of it.
	Unsure string
	// Former is what earlier versions have kept, and is taken over.
	Former []Former
	Logger *slog.Logger // nil: slog.Default()
}

// Volume is a store and what belongs to its bytes. Its methods may be called from any goroutine.
type Volume struct {
	store   backend.Store
	lender  backend.Lender       // the store, if it lends its memory
	batcher backend.Batcher      // the store, if it takes operations in batches
	awaiter backend.Awaiter      // the store, if its completions can be waited for
	termed  backend.Termed       // the store, if others show its bytes, too
	whole   backend.AtomicWriter // the store, if it keeps atomic writes whole itself
	info    backend.Info
	size    atomic.Int64 // bytes
	log     *slog.Logger

	ranges     rangeLock
	tokens     tokens
	journal    Journal              // nil: there is none
	journaling sync.Mutex           // held by an atomic write that uses the journal
	half       atomic.Pointer[half] // the atomic write that went wrong; set with journaling held

	sequence  backend.Sequence // of writes through handles
	numbering sync.Once        // begins the sequence
	unobserve func()           // nil: the store does not flush by itself

	access     *access.Table
	sanitizing sync.Mutex // taken before the table's lock
	sanitizer  sanitizer  // guarded by sanitizing
	keeper     Keeper     // nil: nothing outlives a loss of power
	unsure     string     // as in Config
	keeping    sync.Mutex // held while the state is kept; taken before sanitizing
	kept       document   // guarded by keeping

	mu       sync.Mutex    // taken before the locks of views; not held over store calls
	views    []View        // guarded by mu
	pins     int           // copies that read or write here; guarded by mu
	closing  bool          // no copy may pin it any more; guarded by mu
	unpinned chan struct{} // closed when pins is zero; nil: nobody waits; guarded by mu
}

// View is what shows a volume: a logical unit, say.
type View interface {
	// Drain calls drained when the requests that are under way have ended. It may do that at once.
	Drain(drained func())
	// SizeChanged says that Size has changed. It is called from any goroutine, and may call nothing of
	// the volume but Size.
	SizeChanged()
}

// New returns the volume that cfg describes. It completes an atomic write that a power cut
// interrupted.
func New(cfg Config) (*Volume, error) {
	v := &Volume{store: cfg.Store, info: cfg.Store.Info(), journal: cfg.Journal, log: cfg.Logger}
	if v.log == nil {
		v.log = slog.Default()
	}
	v.lender, _ = backend.As[backend.Lender](cfg.Store)
	v.batcher, _ = backend.As[backend.Batcher](cfg.Store)
	v.awaiter, _ = backend.As[backend.Awaiter](cfg.Store)
	v.termed, _ = backend.As[backend.Termed](cfg.Store)
	v.whole, _ = backend.As[backend.AtomicWriter](cfg.Store)
	v.size.Store(v.info.Size)
	v.keeper, v.unsure = cfg.Keeper, cfg.Unsure
	if err := v.restore(cfg.Former); err != nil {
		return nil, err
	}
	for _, f := range cfg.Former {
		if err := v.replay(f.Journal); err != nil {
			return nil, err
		}
	}
	if err := v.replay(v.journal); err != nil {
		return nil, err
	}
	var keep func(access.State) error
	if v.keeper != nil {
		keep = func(s access.State) error { return v.keep(func(d *document) { d.Access = s }) }
	}
	v.access = access.NewTable(v.kept.Access, keep)
	if a, ok := backend.As[backend.Ager](cfg.Store); ok {
		v.unobserve = a.Observe(func() backend.FlushObserver { return &ageing{sequence: &v.sequence} })
	}
	v.sanitizer.erased = v.kept.Sanitized
	if v.kept.Sanitize != nil {
		v.resumeSanitize(v.kept.Sanitize)
	}
	return v, nil
}

// ErrInUse is the error of closing a volume that is shown.
var ErrInUse = errors.New("the volume is shown by something")

// Close makes the contents durable and closes the store. Copies that use the volume are waited
// for. No view may show it any more.
func (v *Volume) Close() error {
	v.mu.Lock()
	if len(v.views) != 0 {
		v.mu.Unlock()
		return ErrInUse
	}
	v.closing = true
	v.mu.Unlock()
	<-v.Unpinned()
	v.RevokeAll()
	if err := v.stopSanitize(); err != nil {
		return err
	}
	if v.unobserve != nil {
		v.unobserve()
	}
	v.endMending()
	return v.store.Close()
}

// Attach adds a view.
func (v *Volume) Attach(w View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.views = append(v.views, w)
}

// Detach takes a view away. Its last request has ended.
func (v *Volume) Detach(w View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.views, w); i >= 0 {
		v.views = slices.Delete(v.views, i, i+1)
	}
}

// Access is who may do what with the volume.
func (v *Volume) Access() *access.Table { return v.access }

// Store returns the store, for what is asked of it beyond reading and writing.
func (v *Volume) Store() backend.Store { return v.store }

// Sequence numbers what is written through the handles of the volume.
func (v *Volume) Sequence() *backend.Sequence { return &v.sequence }

// Info describes the store. The size in it is that of the start.
func (v *Volume) Info() backend.Info { return v.info }

// Size is the number of bytes. It may change between two calls.
func (v *Volume) Size() int64 { return v.size.Load() }

// Lends reports whether the store lends its memory.
func (v *Volume) Lends() bool { return v.lender != nil }

// Thin reports whether discarding gives space back.
func (v *Volume) Thin() bool { return v.info.DiscardGranularity > 0 }

// Moves reports whether several processes show the bytes, of which one at a time serves them. Nothing may rely then on
// what this one alone remembers.
func (v *Volume) Moves() bool { return v.termed != nil }

// Term numbers the time in which this process serves a volume that Moves; 0: it does not serve it now, or the volume never moves. It
// may be called from any goroutine.
func (v *Volume) Term() uint64 {
	if v.termed == nil {
		return 0
	}
	return v.termed.Term()
}

// Kick starts the operations that requests have submitted in batches.
func (v *Volume) Kick() { v.batcher.Kick() }

// Resize makes the store size bytes long, or as long as its medium has become, with 0. False: the
// store keeps its size while it is open. The views hear of it from SizeChanged.
func (v *Volume) Resize(size int64) (bool, error) {
	r, ok := backend.As[backend.Resizer](v.store)
	if !ok {
		return false, nil
	}
	return true, r.Resize(size)
}

// SizeChanged looks at the size of the store again, and tells the views. A store that shrinks has to
// answer with errors for what lies beyond its end: requests that were checked against the former
// size are still under way.
func (v *Volume) SizeChanged() {
	v.mu.Lock()
	defer v.mu.Unlock()
	size := v.store.Info().Size
	if v.size.Swap(size) == size {
		return
	}
	for _, w := range v.views {
		w.SizeChanged()
	}
}

// Pin keeps the volume from being closed; false: it is being closed.
func (v *Volume) Pin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing {
		return false
	}
	v.pins++
	return true
}

// Unpin undoes Pin.
func (v *Volume) Unpin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pins--; v.pins < 0 {
		panic(fmt.Sprintf("volume: %d pins", v.pins))
	}
	if v.pins == 0 && v.unpinned != nil {
		close(v.unpinned)
		v.unpinned = nil
	}
}

// Idle reports whether nothing pins the volume.
func (v *Volume) Idle() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pins == 0
}

// Unpinned returns a channel that is closed when nothing pins the volume, if only for a moment.
func (v *Volume) Unpinned() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pins == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if v.unpinned == nil {
		v.unpinned = make(chan struct{})
	}
	return v.unpinned
}

// Settled returns nil if no request holds anything of the volume, or what is held.
func (v *Volume) Settled() error {
	v.mu.Lock()
	pins := v.pins
	v.mu.Unlock()
	if pins != 0 {
		return fmt.Errorf("volume: %d pins are left", pins)
	}
	for i := range v.ranges.stripes {
		if w := v.ranges.stripes[i].word.Load(); w&^stripeSticky != 0 {
			return fmt.Errorf("volume: stripe %d is %#x", i, w)
		}
	}
	return nil
}
