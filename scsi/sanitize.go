package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume"
)

// SANITIZE, SBC-3 §4.11 and §5.34.
//
//	         SANITIZE                  all is written
//	ready ─────────────► sanitizing ───────────────────► ready
//	                         │ the store fails             ▲
//	                         ▼                             │ EXIT FAILURE MODE, if that was
//	                      failed ──────────────────────────┘ allowed; or another SANITIZE
//
// The work belongs to the logical unit, not to the command: neither an abort nor a reset nor
// the end of the session ends it, and with a ReservationStore it begins anew after a restart.
// It starts when the commands that were under way have ended; none can start after it.

// Service actions.
const (
	sanitizeOverwrite  = 0x01
	sanitizeBlockErase = 0x02
	sanitizeExit       = 0x1f
)

// sanitizer is guarded by reservations.mu.
type sanitizer struct {
	job    atomic.Pointer[sanitizeJob] // nil: none is under way; may be read without the lock
	failed bool
	order  sanitizeOrder // of the operation that failed
	last   *sanitizeJob  // job, or the one before; its goroutine is waited for
}

// sanitizeOrder is what to do. It is kept over restarts.
type sanitizeOrder struct {
	Action       byte
	Pattern      []byte `json:",omitempty"` // overwrite: at the start of each block, and again
	Count        int    `json:",omitempty"` // overwrite: passes
	Invert       bool   `json:",omitempty"` // overwrite: every second pass writes the complement
	Unrestricted bool   `json:",omitempty"` // AUSE
	Failed       bool   `json:",omitempty"`
}

// valid reports whether o is what a SANITIZE command can have asked for.
func (o *sanitizeOrder) valid(blockSize int) bool {
	switch o.Action {
	case sanitizeBlockErase:
		return true
	case sanitizeOverwrite:
		return o.Count >= 1 && o.Count <= 31 && len(o.Pattern) >= 1 && len(o.Pattern) <= blockSize
	}
	return false
}

// sanitizeJob is a sanitize operation under way.
type sanitizeJob struct {
	lu      *LogicalUnit
	order   sanitizeOrder
	total   int64         // bytes of all passes
	done    atomic.Int64  // bytes
	drained chan struct{} // closed when the commands before it have ended
	stop    chan struct{} // closed by Close
	opDone  chan struct{}
	ended   chan struct{} // closed when the goroutine ends
	waiter  *Task         // SANITIZE without IMMED; guarded by reservations.mu
	waits   atomic.Bool   // there is a waiter; cleared before it is released
}

// ---- the commands ----

const (
	sanitizeIMMED = 0x80
	sanitizeAUSE  = 0x20
)

// sanitizeReserved is the first byte of the CDB in which a reserved bit is set, or 0. The mistake
// of a command that destroys everything is not overlooked.
func (t *Task) sanitizeReserved() int {
	for i := 1; i < 7; i++ {
		if b := t.CDB[i]; i == 1 && b&0x40 != 0 || i > 1 && b != 0 {
			return i
		}
	}
	return 0
}

func (t *Task) sanitizeBlockErase() Next {
	if t.CDB[7]|t.CDB[8] != 0 {
		return t.check(invalidField(7))
	}
	return t.sanitize(sanitizeOrder{Action: sanitizeBlockErase})
}

func (t *Task) sanitizeOverwrite() Next {
	n := int64(binary.BigEndian.Uint16(t.CDB[7:]))
	if n <= 4 || n > 4+t.lu.blockSize {
		return t.check(invalidField(7))
	}
	return t.takeParameters(n, (*Task).sanitizeParse)
}

func (t *Task) sanitizeParse() Next {
	order, s, ok := parseOverwrite(t.parameters(), int(t.lu.blockSize))
	if !ok {
		return t.check(s)
	}
	return t.sanitize(order)
}

// parseOverwrite reads the parameter list of an overwrite, SBC-3 §5.34.2.2.
func parseOverwrite(list []byte, blockSize int) (order sanitizeOrder, s Sense, ok bool) {
	c := cursor{b: list}
	flags := c.u8()
	c.skip(1)
	n := int(c.u16())
	switch {
	case flags&0x60 != 0: // TEST
		c.fail(invalidParameter(0))
	case flags&0x1f == 0:
		c.fail(invalidParameter(0))
	case n == 0 || n > blockSize:
		c.fail(invalidParameter(2))
	}
	if c.err != (Sense{}) {
		return order, c.err, false
	}
	order = sanitizeOrder{Action: sanitizeOverwrite, Count: int(flags & 0x1f), Invert: flags&0x80 != 0}
	order.Pattern = append(order.Pattern, c.bytes(n)...)
	return order, c.err, c.err == Sense{}
}

// sanitize begins the operation, and waits for its end unless IMMED is set.
func (t *Task) sanitize(order sanitizeOrder) Next {
	if at := t.sanitizeReserved(); at != 0 {
		return t.check(invalidField(at))
	}
	order.Unrestricted = t.CDB[1]&sanitizeAUSE != 0
	lu := t.lu
	r := &lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if lu.sanitizer.job.Load() != nil { // of a command that came at the same time
		return t.check(lu.conditionOf(denySanitizing))
	}
	job := lu.newSanitizeJob(order)
	if t.CDB[1]&sanitizeIMMED == 0 {
		job.waiter = t
		job.waits.Store(true)
		t.r.Park(withdrawSanitize, t.before((*Task).sanitizeEnded))
	}
	job.start()
	if job.waiter == nil {
		return t.good()
	}
	return Wait
}

func (t *Task) sanitizeEnded() Next {
	r := &t.lu.reservations
	r.mu.Lock()
	failed := t.lu.sanitizer.failed
	r.mu.Unlock()
	if failed {
		return t.check(t.lu.conditionOf(denySanitizeFailed))
	}
	return t.good()
}

func withdrawSanitize(r *volume.Request) bool {
	t := r.Client().(*Task)
	return t.lu.withdrawSanitize(t)
}

// withdrawSanitize: t does not wait any more. False: its TaskReady is on its way.
func (lu *LogicalUnit) withdrawSanitize(t *Task) bool {
	r := &lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if job := lu.sanitizer.job.Load(); job != nil && job.waiter == t {
		job.waiter = nil
		job.waits.Store(false)
		return true
	}
	return false
}

// sanitizeExit is EXIT FAILURE MODE, SBC-3 §5.34.2.5.
func (t *Task) sanitizeExit() Next {
	if t.CDB[7]|t.CDB[8] != 0 {
		return t.check(invalidField(7))
	}
	lu := t.lu
	r := &lu.reservations
	r.mu.Lock()
	s := &lu.sanitizer
	if s.failed && !s.order.Unrestricted {
		r.mu.Unlock()
		return t.check(invalidField(1))
	}
	was := s.failed
	s.failed = false
	r.changed()
	r.mu.Unlock()
	if !was || r.store == nil {
		return t.good()
	}
	return t.finishSaved(true, nil)
}

// ---- the operation ----

func (lu *LogicalUnit) newSanitizeJob(order sanitizeOrder) *sanitizeJob {
	size := int64(lu.blocks()) << lu.blockShift
	return &sanitizeJob{
		lu: lu, order: order, total: max(size*int64(order.Count), size),
		drained: make(chan struct{}), stop: make(chan struct{}), opDone: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// start makes j the job of the logical unit. reservations.mu is held.
func (j *sanitizeJob) start() {
	s := &j.lu.sanitizer
	s.job.Store(j)
	j.lu.v.RevokeAll()
	s.failed, s.last = false, j
	j.lu.reservations.changed()
	j.lu.drain(j)
	go j.run() // stopSanitize waits for it
}

// drain closes j.drained when all tasks have ended but the one that waits for j. Those that
// start from now on see the condition; they end at once.
func (lu *LogicalUnit) drain(j *sanitizeJob) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	lu.draining = j
	lu.gate.Add(gateDraining)
	lu.checkDrained()
}

// checkDrained ends draining if that is so. mu is held.
func (lu *LogicalUnit) checkDrained() {
	j := lu.draining
	if j == nil || lu.running() > j.waiting() {
		return
	}
	lu.draining = nil
	lu.gate.Add(-gateDraining)
	close(j.drained)
}

// waiting is the number of tasks that run only because they wait for j.
func (j *sanitizeJob) waiting() int64 {
	if j.waits.Load() {
		return 1
	}
	return 0
}

func (j *sanitizeJob) run() {
	defer close(j.ended)
	lu := j.lu
	for _, ended := range []func() <-chan struct{}{func() <-chan struct{} { return j.drained }, lu.v.Unpinned} {
		select {
		case <-ended():
		case <-j.stop:
			return
		}
	}
	j.save()
	err := j.work()
	if err == errStopped {
		return // the state that was kept says that it is to be done again
	}
	if err != nil {
		lu.log.sanitizeFailed(lu, err)
	}
	lu.reservations.mu.Lock()
	s := &lu.sanitizer
	s.job.Store(nil)
	s.failed, s.order = err != nil, j.order
	waiter := j.waiter
	j.waiter = nil
	lu.reservations.changed()
	lu.reservations.mu.Unlock()
	j.save()
	if waiter != nil {
		waiter.r.Grant()
	}
}

// save keeps what is to be done, or that nothing is.
func (j *sanitizeJob) save() {
	r := &j.lu.reservations
	if r.store == nil {
		return
	}
	if err := r.save(); err != nil {
		j.lu.log.stateNotSaved(err)
	}
}

func (j *sanitizeJob) work() error {
	if err := j.lu.v.Whole(); err != nil { // a restart would write over the result
		return err
	}
	size := int64(j.lu.blocks()) << j.lu.blockShift
	if j.order.Action == sanitizeBlockErase {
		if err := j.pass(backend.Discard, size, sanitizeErase, nil); err != nil {
			return err
		}
		return j.do(&backend.Op{Kind: backend.Flush})
	}
	data := alignedBytes(sanitizeBytes)
	j.order.fill(data, int(j.lu.blockSize))
	for pass := range j.order.Count {
		if pass > 0 && j.order.Invert {
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

const (
	sanitizeBytes = 1 << 20 // written in one piece
	sanitizeErase = 8 << 20 // discarded in one piece
)

var errStopped = errors.New("the logical unit is being closed")

// do gives op to the store and waits for it.
func (j *sanitizeJob) do(op *backend.Op) error {
	op.Done = j
	if !j.lu.v.Store().Submit(op) {
		<-j.opDone
	}
	return op.Err
}

// OpDone is for the store.
func (j *sanitizeJob) OpDone(*backend.Op) { j.opDone <- struct{}{} }

// progress is in 65,536ths.
func (j *sanitizeJob) progress() uint16 {
	return uint16(min(float64(j.done.Load())/float64(j.total)*65536, 0xffff))
}

// fill puts the pattern into data, block by block.
func (o *sanitizeOrder) fill(data []byte, blockSize int) {
	block := data[:blockSize]
	for n := copy(block, o.Pattern); n < blockSize; {
		n += copy(block[n:], o.Pattern)
	}
	for n := blockSize; n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
}

// alignedBytes returns n bytes that direct I/O can be done with.
func alignedBytes(n int) []byte {
	b := make([]byte, n+mem.PageSize)
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (mem.PageSize - 1))
	return b[head : head+n : head+n]
}

// stopSanitize ends the work; it goes on after a restart if its state is kept. It fails if the
// store hangs.
func (lu *LogicalUnit) stopSanitize() error {
	lu.reservations.mu.Lock()
	j := lu.sanitizer.last
	if lu.sanitizer.job.Load() != nil {
		close(j.stop)
	}
	lu.reservations.mu.Unlock()
	if j == nil {
		return nil
	}
	select {
	case <-j.ended:
		return nil
	case <-time.After(sanitizeStop):
		return fmt.Errorf("scsi: a sanitize operation of logical unit %s hangs in the store, which stays open", lu.serial)
	}
}

// sanitizeStop is how long one piece of the work may take when the target is to stop.
const sanitizeStop = 5 * time.Second

// keep is what a restart has to know, or nil. reservations.mu is held.
func (s *sanitizer) keep() *sanitizeOrder {
	job := s.job.Load()
	switch {
	case job != nil:
		return &job.order
	case s.failed:
		order := s.order
		order.Failed = true
		return &order
	}
	return nil
}

// restore takes up what keep has kept, when the logical unit is made.
func (s *sanitizer) restore(lu *LogicalUnit, order *sanitizeOrder) {
	if order.Failed {
		s.failed, s.order = true, *order
		return
	}
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	lu.newSanitizeJob(*order).start()
}
