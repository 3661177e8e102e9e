package mirror

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
)

var (
	_ backend.Termed  = (*Mirror)(nil)
	_ backend.Batcher = (*Mirror)(nil)
)

// moved is the error of what this node does not serve, because another one is the primary, or none.
func (m *Mirror) moved() error { return &backend.MovedError{Name: "mirror " + m.opts.Name} }

// Term implements backend.Termed.
func (m *Mirror) Term() uint64 {
	return m.term.Load()
}

// isOver says whether an operation has to take place in a term that is over, or has not begun.
func (m *Mirror) isOver(term uint64) bool {
	s := m.core.State()
	return !s.Serves(term)
}

// Info describes the mirror as a host sees it. Blocks are those of this node's copy.
func (m *Mirror) Info() backend.Info {
	info := m.info
	info.Size = m.size.Load()
	return info
}

// Submit starts op. What is begun with backend.More is done by Kick, unless readNow has done it, and the rest here, if nobody else owns the core.
func (m *Mirror) Submit(op *backend.Op) bool {
	if op.Err = op.Check(m.size.Load()); op.Err != nil {
		return true
	}
	if op.Flags&backend.Atomic != 0 && op.Len > m.MaxAtomic() {
		op.Err = fmt.Errorf("mirror %s: an atomic write of %d bytes, and %d are the most", m.opts.Name, op.Len, m.MaxAtomic())
		return true
	}
	if !m.seq.Enter(op) {
		return false
	}
	if op.Kind == backend.Read && m.readNow(op) {
		m.seq.Leave(op.Private)
		return true
	}
	if !m.enqueue(item{op: op}) { // a node that ends refuses what still comes
		op.Err = m.moved()
		m.seq.Leave(op.Private)
		return true
	}
	if op.Flags&backend.More != 0 || !m.drive(op, false) {
		return false
	}
	m.seq.Leave(op.Private)
	return true
}

// Kick implements backend.Batcher.
func (m *Mirror) Kick() { m.drive(nil, false) }

// hand starts an operation that had to wait.
func (m *Mirror) hand(op *backend.Op) {
	if !m.push(item{op: op}) {
		op.Err = m.moved()
		go m.finish(op)
	}
}

// asks says whether the answer to an operation needs proof that this node is the primary.
func asks(op *backend.Op) bool {
	return op.Kind == backend.Read || op.Kind == backend.Flush || op.Flags&(backend.FUA|backend.Barrier) != 0
}

// finish tells the host that an operation has ended.
func (m *Mirror) finish(op *backend.Op) {
	m.seq.Leave(op.Private)
	op.Done.OpDone(op)
}

// task is an operation of a host. It is one request to the core after the other.
type task struct {
	place    int
	op       *backend.Op // nil: it is to be used again
	id       uint64      // of the request; 0: the core has none
	stage    stage
	off      int64 // of what a write or a zero has not done yet
	n        int64 // bytes of the request
	reserves bool  // memory is asked for
	reading  *work // the copy is reading into the host's memory
	failure  error // of the copy
	over     bool
	since    time.Duration // when it came; if it is over, since when
}

// tasks are those that have not ended. They are used again: the ID of a request has the place of its task, and a number.
type tasks struct {
	all    []*task // by place
	vacant []*task
	count  uint64
}

const placeBits = 20

func (l *tasks) add(op *backend.Op, now time.Duration) *task {
	if len(l.vacant) == 0 {
		t := &task{place: len(l.all)}
		l.all, l.vacant = append(l.all, t), append(l.vacant, t)
	}
	t := l.vacant[len(l.vacant)-1]
	l.vacant = l.vacant[:len(l.vacant)-1]
	*t = task{place: t.place, op: op, off: op.Off, since: now}
	return t
}

// newRequest gives a task an ID.
func (l *tasks) newRequest(t *task) {
	l.count++
	t.id = l.count<<placeBits | uint64(t.place)
}

// find returns the task with a request, or nil.
func (l *tasks) find(id uint64) *task {
	if n := int(id & (1<<placeBits - 1)); n < len(l.all) && l.all[n].id == id {
		return l.all[n]
	}
	return nil
}

func (l *tasks) remove(t *task) {
	t.op, t.id = nil, 0
	l.vacant = append(l.vacant, t)
}

func (l *tasks) len() int { return len(l.all) - len(l.vacant) }

type stage uint8

const (
	stageBefore stage = iota // a flush, if one is asked for
	stageMain
	stageAfter // the same
)

// maxPiece bounds a record: one that takes long holds up what overlaps it.
const maxPiece = 1 << 20

// start begins an operation.
func (m *Mirror) start(op *backend.Op) {
	t := m.tasks.add(op, m.now)
	if asks(op) {
		m.asking++
	}
	if op.Flags&backend.Barrier == 0 && (op.Kind != backend.Read || op.Flags&backend.FUA == 0) || op.Kind == backend.Flush {
		t.stage = stageMain
	}
	m.request(t)
}

// request asks the core for what is next.
func (m *Mirror) request(t *task) {
	op := t.op
	if m.core == nil || m.closing || op.Term != 0 && m.isOver(op.Term) {
		m.end(t, m.moved())
		return
	}
	t.n = min(op.Off+op.Len-t.off, maxPiece, m.cfg.Heap/8)
	m.tasks.newRequest(t)
	switch {
	case t.stage != stageMain || op.Kind == backend.Flush:
		m.tell(replica.Flush{ID: t.id})
	case op.Len == 0 && op.Kind != backend.Status:
		m.onward(t)
	case op.Kind == backend.Read:
		m.tell(replica.Read{ID: t.id, Off: op.Off, Len: op.Len})
	case op.Kind == backend.Status:
		op.Mapped, op.Extent = true, max(op.Len, int64(m.info.BlockSize)) // see Info.StatusUnknown
		m.onward(t)
	case op.Kind == backend.Write:
		t.reserves = true
		m.tell(replica.Reserve{ID: t.id, Len: t.n})
	default:
		t.n = min(op.Off+op.Len-t.off, 16*maxPiece)
		m.tell(replica.Zero{ID: t.id, Off: t.off, Len: t.n, Durable: t.isFlushedNext()})
	}
}

// isFlushedNext says whether a flush follows the request, which is a write or a zero.
func (t *task) isFlushedNext() bool {
	return t.op.Flags&(backend.FUA|backend.Barrier) != 0 && t.off+t.n == t.op.Off+t.op.Len
}

// onward goes to the next stage.
func (m *Mirror) onward(t *task) {
	op := t.op
	t.stage++
	changes := op.Kind == backend.Write || op.Kind == backend.Discard || op.Kind == backend.WriteZeroes
	if t.stage > stageAfter || t.stage == stageAfter && (!changes || op.Flags&(backend.FUA|backend.Barrier) == 0) {
		m.end(t, nil)
		return
	}
	m.request(t)
}

// answered takes an answer of the core.
func (m *Mirror) answered(a *replica.Answer) {
	if a.ID&isOrder != 0 {
		m.ordered(a)
		return
	}
	t := m.tasks.find(a.ID)
	if t == nil { // it has ended
		return
	}
	if t.reserves && a.Status == replica.Good {
		t.reserves = false
		m.pending = append(m.pending, next{task: t, fills: true, addr: a.Addr, id: t.id})
		return
	}
	t.id = 0
	t.op.Did = a.Status == replica.Good && t.op.Kind == backend.Read && m.core.Did(t.op.Key, t.op.Off, t.op.Len)
	switch a.Status {
	case replica.Good:
		m.pending = append(m.pending, next{task: t})
	case replica.Failed:
		if t.failure == nil {
			t.failure = &backend.MediumError{Kind: t.op.Kind, Off: t.op.Off, Err: errors.New("no copy can read it")}
		}
		m.end(t, t.failure)
	default:
		m.end(t, m.moved())
	}
}

// fill brings the host's bytes into the memory that they have got, and gives the write its place in the order.
func (m *Mirror) fill(t *task, id uint64, addr int64) {
	if t.id != id {
		return // the memory was taken back
	}
	at := m.arena[addr : addr+t.n]
	c := iov.At(t.op.Segs, int(t.off-t.op.Off))
	c.CopyOut(at)
	m.tell(replica.Write{ID: t.id, Off: t.off, Len: t.n, Addr: addr, Sum: sumOf(at), Key: t.key(), Atomic: t.op.Flags&backend.Atomic != 0, Durable: t.isFlushedNext()})
}

// key is that of the operation, if it is one record.
func (t *task) key() uint64 {
	if t.n < t.op.Len {
		return 0
	}
	return t.op.Key
}

// progress: a request has ended well.
func (m *Mirror) progress(t *task) {
	if t.stage == stageMain && (t.op.Kind == backend.Write || t.op.Kind == backend.Discard || t.op.Kind == backend.WriteZeroes) {
		if t.off += t.n; t.off < t.op.Off+t.op.Len {
			m.request(t)
			return
		}
	}
	m.onward(t)
}

// end ends an operation, when the copy does not use the host's memory any more.
func (m *Mirror) end(t *task, err error) {
	t.over, t.id = true, 0
	t.op.Err = err
	if t.reading == nil {
		m.tellOf(t)
		return
	}
	t.since = m.now
}

// leave ends an operation that is over although the copy reads into its memory, for the disk hangs: the host takes another path. Who owns the
// memory leaves it to the work, so that nobody gets it as long as the disk may write there.
func (m *Mirror) leave(t *task) {
	w := t.reading
	free, ok := backend.Leave(t.op.Done)
	if !ok {
		return // it ends when the disk has let go of it
	}
	w.task, w.free, t.reading = nil, free, nil
	m.tellOf(t)
}

// tellOf: nothing uses the task and the host's memory any more.
func (m *Mirror) tellOf(t *task) {
	if asks(t.op) {
		m.asking--
	}
	m.ended = append(m.ended, t.op)
	m.tasks.remove(t)
}

const (
	usualHold = 20 * time.Second
	holdLook  = time.Second // between two looks at who waits for too long, and how long what is over waits for its disk
)

// letGo ends operations that wait for longer than a host would: nothing that they need is there. What has its
// place in the order of the core stays: it may be done later, before all that comes after it.
func (m *Mirror) letGo() {
	now := m.now
	if now < m.held+holdLook {
		return
	}
	m.held = now
	for _, t := range m.tasks.all {
		if t.op != nil && t.over {
			// While this node serves, hosts ask again here, and would have memory left again and again.
			if (m.core == nil || t.op.Term != 0 && m.isOver(t.op.Term)) && now-t.since >= holdLook {
				m.leave(t)
			}
			continue
		}
		if t.id == 0 || now-t.since < m.opts.Hold {
			continue
		}
		m.tell(replica.Cancel{ID: t.id}) // or what waits would be more and more, for hosts ask again
		m.end(t, m.moved())
	}
}

// refuseAll ends what is under way.
func (m *Mirror) refuseAll() {
	for _, t := range m.tasks.all {
		if t.id != 0 {
			m.end(t, m.moved())
		}
	}
	m.endVerify(m.moved())
	for id := range m.switches {
		m.endSwitch(id, replica.Moved)
	}
}

// work is something that the copy does for the core. It is used again.
type work struct {
	op   backend.Op
	m    *Mirror
	kind workKind
	id   uint64
	task *task     // of a read for a host; nil: that was ended
	free func()    // in the place of task: what was its memory is not used any more
	segs [1][]byte // where there is one piece of memory

	journaled bool   // kept tells what the journal has
	kept      []span // shared with others; nobody changes it
}

type workKind uint8

const (
	workApply workKind = iota
	workSync
	workRead // for a host
	workLoad
	workHash
)

// OpDone implements backend.Completer. That a record was applied is taken with what comes next, or with the next tick, if nothing
// waits for it: most often nothing does.
func (w *work) OpDone(*backend.Op) {
	m := w.m
	m.mu.Lock()
	m.inbox = append(m.inbox, item{work: w}) // m is not over while a work is under way
	waits := m.owned || m.idle && w.kind == workApply && w.op.Err == nil && len(m.inbox) < maxWaiting
	m.mu.Unlock()
	if !waits {
		signal(m.wake)
	}
}

// maxWaiting is how many ends of the copy's work wait for something else to come.
const maxWaiting = 16

// newWork returns one of which the caller says what it is.
func (m *Mirror) newWork(id uint64, kind workKind, op backend.Op, buf []byte) *work {
	if len(m.spare) == 0 {
		m.spare = append(m.spare, &work{m: m})
	}
	w := m.spare[len(m.spare)-1]
	m.spare = m.spare[:len(m.spare)-1]
	w.op, w.kind, w.id = op, kind, id
	w.op.Done = w
	if buf != nil {
		w.segs[0] = buf
		w.op.Segs = w.segs[:]
	}
	m.works++
	m.begun = append(m.begun, w)
	return w
}

// work gives the copy, or the metadata, something to do.
func (m *Mirror) work(a replica.Action) {
	switch a := a.(type) {
	case *replica.Apply:
		if k := a.Rec.Kind; k == replica.KindGrow || k == replica.KindFit {
			m.enlarge(a.ID, a.Rec.Off+a.Rec.Len)
			return
		}
		m.wrotePlace(a.Rec.Off, a.Rec.Len)
		op := backend.Op{Kind: backend.Discard, Off: a.Rec.Off, Len: a.Rec.Len}
		var buf []byte
		if a.Rec.Kind != replica.KindZero {
			buf = m.arena[a.Rec.Addr : a.Rec.Addr+a.Rec.Len]
		}
		if m.thin && a.Rec.Kind == replica.KindResync && isZero(buf) {
			buf = nil
		}
		if buf != nil {
			op.Kind = backend.Write
			if a.Rec.Atomic {
				op.Flags = backend.Atomic
			}
		}
		m.newWork(a.ID, workApply, op, buf)
	case *replica.ReadFor:
		t := m.tasks.find(a.Req)
		if t == nil { // nobody wants it any more
			m.later(replica.Done{ID: a.ID})
			return
		}
		w := m.newWork(a.ID, workRead, backend.Op{Kind: backend.Read, Off: a.Off, Len: a.Len}, nil)
		invariant.Check(t.reading == nil, "mirror: a request reads twice")
		w.task, t.reading = t, w
		w.op.Segs = append(w.segs[:0], t.op.Segs...) // a list of its own: see leave
	case replica.Load:
		to, has := m.arena[a.Addr:a.Addr+a.Len], a.Len-a.Behind
		clear(to[has:])
		if has == 0 {
			m.later(replica.Done{ID: a.ID, Sum: sumOf(to)})
			return
		}
		w := m.newWork(a.ID, workLoad, backend.Op{Kind: backend.Read, Off: a.Off, Len: has}, to)
		if a.Behind > 0 {
			w.op.Segs = [][]byte{to[:has]}
		}
	case replica.Hash:
		m.newWork(a.ID, workHash, backend.Op{Kind: backend.Read, Off: a.Off, Len: a.Len}, make([]byte, a.Len))
	case replica.Sync:
		m.newWork(a.ID, workSync, backend.Op{Kind: backend.Flush}, nil)
	case replica.Save:
		m.works++
		m.saveBegan = max(m.now, 1)
		m.saves <- m.sampled(a) // there is one at a time
	case replica.Pull:
		m.pull(&a)
	default:
		panic(fmt.Sprintf("mirror: the core asks for %T", a))
	}
}

// submit gives the copy what was begun: peers and hosts do not wait for a copy that does it at once.
func (m *Mirror) submit() {
	if len(m.begun) == 0 {
		return
	}
	m.begun, m.submitting = m.submitting[:0], m.begun
	batch := m.batcher != nil && len(m.submitting) > 1
	for i, w := range m.submitting {
		m.submitting[i] = nil
		if m.needsJournal(w) {
			m.journalLater(w)
			continue
		}
		if batch {
			w.op.Flags |= backend.More
		}
		if m.opts.Copy.Submit(&w.op) {
			m.unflushed = true
			m.workDone(w)
		}
	}
	if batch {
		m.batcher.Kick()
	}
	m.goOn()
}

// workDone tells the core that the copy has done something.
func (m *Mirror) workDone(w *work) {
	m.works--
	if w.journaled {
		m.kept = w.kept
	}
	e := replica.Done{ID: w.id, Failed: w.op.Err != nil}
	if w.op.Err != nil {
		m.opts.Log.Warn("the copy of a mirror has failed", "operation", w.op.Kind, "reason", w.op.Err)
	}
	switch w.kind {
	case workApply:
		if e.Failed {
			m.failed = w.op.Err
		}
	case workSync: // of a copy that is not in sync one that goes well may be beside writes that fail
		if e.Failed {
			m.failed = w.op.Err
		} else if m.viewed.InSync.Has(m.cfg.Self) {
			m.failed = nil
		}
	case workLoad:
		e.Sum = sumOf(w.segs[0])
	case workHash:
		sum := sha256.Sum256(w.segs[0])
		copy(e.Digest[:], sum[:])
	case workRead:
		t := w.task
		if t == nil {
			w.free()
			break
		}
		t.reading, t.failure = nil, w.op.Err
		if t.over {
			m.tellOf(t)
		}
	}
	*w = work{m: m}
	m.spare = append(m.spare, w)
	m.tell(e)
}

// isZero reports whether b, which is not empty, holds zeroes only.
func isZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }
