package volume

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/volume/access"
)

// Sanitizing destroys what a volume holds.
//
//	         Sanitize                 all is written
//	ready ─────────────► sanitizing ───────────────────► ready
//	                         │ the store fails             ▲
//	                         ▼                             │ LeaveSanitize, if that was
//	                      failed ──────────────────────────┘ allowed; or another Sanitize
//
// The work belongs to the volume: neither an abort nor a reset nor the end of the session ends it, nor
// that a view goes or changes, and with a Keeper it begins anew after a restart. It starts when the
// requests that were under way have ended; the views start none after it.

// Actions of an Order, numbered as in SBC-3 §5.34.
const (
	Overwrite  = 1
	BlockErase = 2
)

// sanitizer is guarded by Volume.sanitizing, except for what may be read without.
type sanitizer struct {
	job    atomic.Pointer[sanitizeJob] // nil: none is under way; may be read without the lock
	failed bool
	order  Order        // of the operation that failed
	erased *Order       // of the last operation, if it succeeded
	last   *sanitizeJob // job, or the one before; its goroutine is waited for
}

// Order is what to do. It is kept over restarts.
type Order struct {
	Action       byte
	Block        int    `json:",omitempty"` // overwrite: bytes of a block, in which the pattern begins anew
	Pattern      []byte `json:",omitempty"` // overwrite: at the start of each block, and again
	Count        int    `json:",omitempty"` // overwrite: passes
	Invert       bool   `json:",omitempty"` // overwrite: every second pass, and not the last one, writes the complement
	Unrestricted bool   `json:",omitempty"` // who knows that it has failed may go on without
	Failed       bool   `json:",omitempty"`
}

// valid reports whether o is what somebody can have asked for.
func (o *Order) valid() bool {
	switch o.Action {
	case BlockErase:
		return true
	case Overwrite:
		return o.Count >= 1 && o.Count <= 31 && o.Block >= 512 && o.Block <= sanitizeBytes && o.Block&(o.Block-1) == 0 &&
			len(o.Pattern) >= 1 && len(o.Pattern) <= o.Block
	}
	return false
}

// sanitizeJob is a sanitize operation under way.
type sanitizeJob struct {
	v       *Volume
	order   Order
	resumed bool         // by a restart
	total   int64        // bytes of all passes
	done    atomic.Int64 // bytes
	begun   func(error)  // may be nil
	over    func(error)  // may be nil
	stop    chan struct{}
	opDone  chan struct{}
	ended   chan struct{} // closed when the goroutine ends
}

// ErrNotKept: a sanitize operation has not begun, for a restart would not know of it.
var ErrNotKept = errors.New("the state of the sanitize operation cannot be kept")

// errStopped: the work goes on after a restart.
var errStopped = errors.New("the volume is being closed")

// Why Sanitize does not begin, or LeaveSanitize does not leave.
var (
	ErrSanitizing = errors.New("a sanitize operation is under way")
	ErrRestricted = errors.New("a sanitize operation has failed that may be followed by another restricted one only")
)

// Sanitize begins the operation, unless one is under way, or another has failed that order would let others go on without. From now on
// nobody starts a request. begun is called when it is kept that it is to be done, which is before anything
// is destroyed, or with ErrNotKept; then all is as before, unless a restart may do it nevertheless: then it has failed. over is called at the end. Either may be nil; they
// are called from another goroutine, and must not block.
func (v *Volume) Sanitize(order Order, begun, over func(error)) error {
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	switch s := &v.sanitizer; {
	case s.job.Load() != nil:
		return ErrSanitizing
	case order.Unrestricted && !s.mayLeave(): // SBC-4 §4.11.1: else EXIT FAILURE MODE were one failure away
		return ErrRestricted
	}
	v.startSanitize(v.newSanitizeJob(order, begun, over))
	return nil
}

// mayLeave reports whether no operation has failed that has to be repeated. v.sanitizing is held.
func (s *sanitizer) mayLeave() bool { return !s.failed || s.order.Unrestricted }

func (v *Volume) newSanitizeJob(order Order, begun, over func(error)) *sanitizeJob {
	size := v.Size()
	return &sanitizeJob{
		v: v, order: order, total: max(size*int64(order.Count), size), begun: begun, over: over,
		stop: make(chan struct{}), opDone: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// startSanitize makes j the job of the volume. v.sanitizing is held.
func (v *Volume) startSanitize(j *sanitizeJob) {
	v.sanitizer.last = j
	v.setSanitizer(j, v.sanitizer.failed)
	go j.run() // stopSanitize waits for it
}

// setSanitizer changes the state of the drawing above, and tells everybody what that refuses.
// v.sanitizing is held.
func (v *Volume) setSanitizer(job *sanitizeJob, failed bool) {
	v.sanitizer.job.Store(job)
	v.sanitizer.failed = failed
	condition := access.Denial(0)
	switch {
	case job != nil:
		condition = access.Sanitizing
	case failed:
		condition = access.SanitizeFailed
	}
	v.access.SetCondition(access.Sanitizing|access.SanitizeFailed, condition)
}

// Progress is how far a sanitize operation is, in 65,536ths; false: none is under way.
func (v *Volume) Progress() (progress uint16, ok bool) {
	j := v.sanitizer.job.Load()
	if j == nil {
		return 0, false
	}
	return uint16(min(float64(j.done.Load())/float64(j.total)*65536, 0xffff)), true
}

// SanitizeStatus is how the last sanitize operation went.
type SanitizeStatus uint8

// Values of SanitizeStatus. Of several volumes the later one counts.
const (
	NeverSanitized SanitizeStatus = iota
	SanitizeDone
	SanitizeHasFailed // and nobody has left it
	SanitizeUnderWay
)

// SanitizeState says how the last sanitize operation went, what it was, and how far it is, in 65,536ths.
func (v *Volume) SanitizeState() (SanitizeStatus, Order, uint16) {
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	s := &v.sanitizer
	if progress, ok := v.Progress(); ok {
		return SanitizeUnderWay, s.job.Load().order, progress
	}
	switch {
	case s.failed:
		return SanitizeHasFailed, s.order, 0
	case s.erased != nil:
		return SanitizeDone, *s.erased, 0
	}
	return NeverSanitized, Order{}, 0
}

// Sanitized returns a channel that is closed at the end of the sanitize operation that is under way, or
// was the last one.
func (v *Volume) Sanitized() <-chan struct{} {
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	if j := v.sanitizer.last; j != nil {
		return j.ended
	}
	none := make(chan struct{})
	close(none)
	return none
}

// MayLeaveSanitize reports whether somebody may go on after a sanitize operation that has failed without another one, and whether
// one has: then LeaveSanitize does so.
func (v *Volume) MayLeaveSanitize() (allowed, failed bool) {
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	s := &v.sanitizer
	return s.mayLeave(), s.failed
}

// LeaveSanitize goes on after a sanitize operation that has failed, when that is kept. If it cannot be kept nothing changes: what
// is written from then on would be refused after a restart, or destroyed if the failure was not kept either. It may take its time.
// ErrSanitizing and ErrRestricted: another operation has begun since somebody found that this may be, and has failed, too.
func (v *Volume) LeaveSanitize() error {
	s := &v.sanitizer
	v.sanitizing.Lock()
	failed := s.last // nil: it was found by a restart
	v.sanitizing.Unlock()
	mayLeave := func() error {
		switch {
		case s.job.Load() != nil:
			return ErrSanitizing
		case !s.mayLeave() || s.last != failed:
			return ErrRestricted
		}
		return nil
	}
	var refused error
	err := v.keepSanitize(func(d *document) {
		if refused = mayLeave(); refused == nil {
			d.Sanitize = nil
		}
	})
	if err = cmp.Or(refused, err); err != nil {
		return err
	}
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	if err := mayLeave(); err != nil {
		return err
	}
	v.setSanitizer(nil, false)
	return nil
}

// keepSanitize keeps what change, which is called with v.sanitizing held, makes of the sanitize operations of the document.
func (v *Volume) keepSanitize(change func(*document)) error {
	if v.keeper == nil {
		return nil
	}
	return v.keep(func(d *document) {
		v.sanitizing.Lock()
		defer v.sanitizing.Unlock()
		change(d)
	})
}

func (j *sanitizeJob) run() {
	defer close(j.ended)
	v := j.v
	if err := j.keep(); err != nil {
		v.log.Error("the state of a sanitize operation cannot be saved, so it is not begun", "reason", err)
		j.notBegun(errors.Is(err, errInDoubt))
		j.tell(ErrNotKept, ErrNotKept)
		return
	}
	v.sanitizing.Lock()
	v.sanitizer.erased = nil
	v.setSanitizer(j, false)
	v.sanitizing.Unlock()
	j.tell(nil, errStopped)
	for _, ended := range []func() <-chan struct{}{v.drained, v.Unpinned} {
		select {
		case <-ended():
		case <-j.stop:
			return
		}
	}
	v.RevokeAll()
	err := j.work()
	if err == errStopped {
		return // what is kept says that it is to be done again
	}
	if err != nil {
		v.log.Error("the store failed a sanitize operation; the volume refuses commands until another one succeeds, or an initiator sends EXIT FAILURE MODE", "reason", err)
	}
	// Before that is durable a restart would do the operation again, and destroy what was written meanwhile.
	if unsaved := v.keepSanitize(func(d *document) { d.Sanitize, d.Sanitized = j.outcome(err) }); unsaved != nil {
		v.log.Error("the end of a sanitize operation cannot be saved, and a restart of the target would do it again: so it counts as failed", "reason", unsaved)
		err = cmp.Or(err, unsaved)
	}
	v.sanitizing.Lock()
	if v.sanitizer.order = j.order; err == nil {
		v.sanitizer.erased = &j.order
	}
	v.setSanitizer(nil, err != nil)
	v.sanitizing.Unlock()
	if j.over != nil {
		j.over(err)
	}
}

// notBegun is the end of an operation that could not be kept. If a restart may begin it all the same, it counts as failed: what others
// wrote meanwhile would be destroyed. Nothing is yet, so that whoever knows may go on without, when that is kept.
func (j *sanitizeJob) notBegun(inDoubt bool) {
	v := j.v
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	if inDoubt && !v.sanitizer.failed {
		v.sanitizer.order = j.order
		v.sanitizer.order.Unrestricted = true
	}
	v.setSanitizer(nil, v.sanitizer.failed || inDoubt)
}

// keep keeps that the operation is to be done, unless a restart has found that.
func (j *sanitizeJob) keep() error {
	if j.resumed {
		return nil
	}
	return j.v.keepSanitize(func(d *document) { d.Sanitize, d.Sanitized = &j.order, nil })
}

// outcome is what is kept of an operation that has ended.
func (j *sanitizeJob) outcome(err error) (failed, succeeded *Order) {
	if err == nil {
		return nil, &j.order
	}
	order := j.order
	order.Failed = true
	return &order, nil
}

// tell tells who waits for the beginning, and, unless err is errStopped, who waits for the end.
func (j *sanitizeJob) tell(begun, over error) {
	if j.begun != nil {
		j.begun(begun)
	}
	if over != errStopped && j.over != nil {
		j.over(over)
	}
}

// drained is closed when the requests that are under way have ended, in all views.
func (v *Volume) drained() <-chan struct{} {
	v.mu.Lock()
	views := append([]View{}, v.views...)
	v.mu.Unlock()
	all := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(len(views)) + 1)
	one := func() {
		if left.Add(-1) == 0 {
			close(all)
		}
	}
	for _, w := range views {
		w.Drain(one)
	}
	one()
	return all
}

func (j *sanitizeJob) work() error {
	if err := j.v.Whole(); err != nil { // a restart would write over the result
		return err
	}
	size := j.v.Size()
	if j.order.Action == BlockErase {
		if err := j.pass(backend.Discard, size, sanitizeErase, nil); err != nil {
			return err
		}
		return j.do(&backend.Op{Kind: backend.Flush})
	}
	data := alignedBytes(sanitizeBytes)
	j.order.fill(data)
	for pass := range j.order.Count {
		if j.order.Invert && (pass > 0 || j.order.Count%2 == 0) { // the last one writes the pattern itself (SBC-4 OVERWRITE; NVMe Base 2.0 §8.20, Overwrite Mechanism)
			for i := range data {
				data[i] = ^data[i]
			}
		}
		if err := j.pass(backend.Write, size, sanitizeBytes, data); err != nil {
			return err
		}
		if err := j.do(&backend.Op{Kind: backend.Flush}); err != nil {
			return err
		}
	}
	return nil
}

const (
	sanitizeBytes = 1 << 20 // written in one piece
	sanitizeErase = 8 << 20 // discarded in one piece
)

// pass does kind to the whole store, in pieces.
func (j *sanitizeJob) pass(kind backend.Kind, size, piece int64, data []byte) error {
	for off := int64(0); off < size; off += piece {
		op := &backend.Op{Kind: kind, Off: off, Len: min(piece, size-off)}
		if data != nil {
			op.Segs = [][]byte{data[:op.Len]}
		}
		if err := j.do(op); err != nil {
			return err
		}
		j.done.Add(op.Len)
		select {
		case <-j.stop:
			return errStopped
		default:
		}
	}
	return nil
}

// do gives op to the store and waits for it.
func (j *sanitizeJob) do(op *backend.Op) error {
	op.Done = j
	if !j.v.store.Submit(op) {
		<-j.opDone
	}
	return op.Err
}

// OpDone is for the store.
func (j *sanitizeJob) OpDone(*backend.Op) { j.opDone <- struct{}{} }

// fill puts the pattern into data, block by block.
func (o *Order) fill(data []byte) {
	block := data[:o.Block]
	for n := copy(block, o.Pattern); n < len(block); {
		n += copy(block[n:], o.Pattern)
	}
	for n := len(block); n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
}

// stopSanitize ends the work; it goes on after a restart if its state is kept. It fails if the
// store hangs.
func (v *Volume) stopSanitize() error {
	v.sanitizing.Lock()
	j := v.sanitizer.last
	if v.sanitizer.job.Load() != nil {
		select {
		case <-j.stop: // by an earlier Close, which did not wait any longer
		default:
			close(j.stop)
		}
	}
	v.sanitizing.Unlock()
	if j == nil {
		return nil
	}
	select {
	case <-j.ended:
		return nil
	case <-time.After(sanitizeStop):
		return ErrHangs
	}
}

// ErrHangs is the error of closing a volume whose SANITIZE operation hangs: the store stays open.
var ErrHangs = errors.New("volume: a sanitize operation hangs in the store, which stays open")

// sanitizeStop is how long one piece of the work may take when the target is to stop.
const sanitizeStop = 5 * time.Second

// resumeSanitize takes up what was kept, when the volume is made. What may have been ordered for another disk does not destroy this one.
func (v *Volume) resumeSanitize(order *Order) {
	v.sanitizing.Lock()
	defer v.sanitizing.Unlock()
	if !order.Failed && v.unsure != "" {
		v.log.Error("a sanitize operation was under way, and nothing names the disk for good, so this may be another one: the operation counts as failed; order another one, or, if this is another disk, end the target and remove the file",
			"file", v.unsure)
	}
	if order.Failed || v.unsure != "" {
		v.sanitizer.order = *order
		v.setSanitizer(nil, true)
		return
	}
	j := v.newSanitizeJob(*order, nil, nil)
	j.resumed = true
	v.startSanitize(j)
}
