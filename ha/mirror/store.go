package mirror

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

var _ backend.Termed = (*Mirror)(nil)

// moved is the error of what this node does not serve, because another one is the primary, or none.
func (m *Mirror) moved() error { return &backend.MovedError{Name: "mirror " + m.opts.Name} }

// Term implements backend.Termed.
func (m *Mirror) Term() uint64 {
	if s := m.State(); s.Role == replica.Primary {
		return s.View.Term
	}
	return 0
}

// isOver says whether an operation has to take place in a term that is over, or has not begun.
func (m *Mirror) isOver(term uint64) bool {
	s := m.core.State()
	return s.Role != replica.Primary || s.View.Term != term
}

// Info describes the mirror as a host sees it. Blocks are those of this node's copy.
func (m *Mirror) Info() backend.Info { return m.info }

// Submit starts op. It always ends later.
func (m *Mirror) Submit(op *backend.Op) bool {
	if op.Err = op.Check(m.size); op.Err != nil {
		return true
	}
	if m.seq.Enter(op) {
		m.hand(op)
	}
	return false
}

// hand gives an operation to the goroutine of the core.
func (m *Mirror) hand(op *backend.Op) {
	if !m.push(item{op: op}) { // a node that ends refuses what still comes
		op.Err = m.moved()
		go m.finish(op)
	}
}

// finish tells the host that an operation has ended.
func (m *Mirror) finish(op *backend.Op) {
	m.seq.Leave(op.Private)
	op.Done.OpDone(op)
}

// task is an operation of a host. It is one request to the core after the other.
type task struct {
	op       *backend.Op
	id       uint64 // of the request
	stage    stage
	off      int64 // of what a write or a zero has not done yet
	n        int64 // bytes of the request
	reserves bool  // memory is asked for
	reads    int   // the copy is reading into the host's memory
	failure  error // of the copy
	over     bool
	since    time.Duration
}

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
	t := &task{op: op, off: op.Off, since: m.opts.Clock()}
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
	m.ids++
	t.id = m.ids
	t.n = min(op.Off+op.Len-t.off, maxPiece, m.cfg.Heap/8)
	switch {
	case t.stage != stageMain || op.Kind == backend.Flush:
		m.ask(t, replica.Flush{ID: t.id})
	case op.Len == 0 && op.Kind != backend.Status:
		m.onward(t)
	case op.Kind == backend.Read:
		m.ask(t, replica.Read{ID: t.id, Off: op.Off, Len: op.Len})
	case op.Kind == backend.Status:
		op.Mapped, op.Extent = true, max(op.Len, int64(m.info.BlockSize)) // see Info.StatusUnknown
		m.onward(t)
	case op.Kind == backend.Write:
		t.reserves = true
		m.ask(t, replica.Reserve{ID: t.id, Len: t.n})
	default:
		t.n = min(op.Off+op.Len-t.off, 16*maxPiece)
		m.ask(t, replica.Zero{ID: t.id, Off: t.off, Len: t.n})
	}
}

func (m *Mirror) ask(t *task, e replica.Event) {
	m.tasks[t.id] = t
	m.step(e)
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
	if v := m.found[a.ID]; v != nil {
		delete(m.found, a.ID)
		v.end <- a.Status
		return
	}
	t := m.tasks[a.ID]
	if t == nil { // it has ended
		if m.gone[a.ID] {
			delete(m.gone, a.ID)
			m.later(replica.Cancel{ID: a.ID})
		}
		return
	}
	if t.reserves && a.Status == replica.Good {
		t.reserves = false
		addr := a.Addr
		m.pending = append(m.pending, func() { m.fill(t, addr) })
		return
	}
	delete(m.tasks, a.ID)
	switch a.Status {
	case replica.Good:
		m.pending = append(m.pending, func() { m.progress(t) })
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
func (m *Mirror) fill(t *task, addr int64) {
	if m.tasks[t.id] != t {
		return // the memory was taken back
	}
	at := m.arena[addr : addr+t.n]
	gather(at, t.op.Segs, t.off-t.op.Off)
	m.step(replica.Write{ID: t.id, Off: t.off, Len: t.n, Addr: addr, Sum: sumOf(at)})
}

// gather copies what is from skip on in segs.
func gather(to []byte, segs [][]byte, skip int64) {
	for _, s := range segs {
		if skip >= int64(len(s)) {
			skip -= int64(len(s))
			continue
		}
		to = to[copy(to, s[skip:]):]
		skip = 0
	}
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
	t.over = true
	t.op.Err = err
	if t.reads == 0 {
		m.ended = append(m.ended, t.op)
	}
}

const (
	usualHold = 20 * time.Second
	holdLook  = time.Second // between two looks at who waits for too long
)

// letGo ends operations that wait for longer than a host would: nothing that they need is there. What they ask of the
// core stays: it may be done later, before all that comes after it.
func (m *Mirror) letGo() {
	now := m.opts.Clock()
	if now < m.held+holdLook {
		return
	}
	m.held = now
	for id, t := range m.tasks {
		if now-t.since < m.opts.Hold {
			continue
		}
		delete(m.tasks, id)
		if t.reserves {
			m.gone[id] = true
		}
		m.end(t, m.moved())
	}
}

// refuseAll ends what is under way.
func (m *Mirror) refuseAll() {
	for id, t := range m.tasks {
		delete(m.tasks, id)
		m.end(t, m.moved())
	}
	for id, v := range m.found {
		delete(m.found, id)
		v.end <- replica.Moved
	}
}

// work is something that the copy does for the core.
type work struct {
	op     backend.Op
	m      *Mirror
	action replica.Action
	id     uint64
	task   *task
	buf    []byte
}

func (w *work) OpDone(*backend.Op) { w.m.push(item{work: w}) }

// work gives the copy, or the metadata, something to do.
func (m *Mirror) work(a replica.Action) {
	w := &work{m: m, action: a}
	op := &w.op
	op.Done = w
	switch a := a.(type) {
	case replica.Apply:
		w.id = a.ID
		op.Off, op.Len = a.Rec.Off, a.Rec.Len
		m.wrotePlace(op.Off, op.Len)
		op.Kind = backend.Discard
		if a.Rec.Kind != replica.KindZero {
			op.Kind = backend.Write
			op.Segs = [][]byte{m.arena[a.Rec.Addr : a.Rec.Addr+a.Rec.Len]}
		}
	case replica.ReadFor:
		w.id, w.task = a.ID, m.tasks[a.Req]
		if w.task == nil { // nobody wants it any more
			m.later(replica.Done{ID: a.ID})
			return
		}
		op.Kind, op.Off, op.Len, op.Segs = backend.Read, a.Off, a.Len, w.task.op.Segs
		w.task.reads++
	case replica.Load:
		w.id, w.buf = a.ID, m.arena[a.Addr:a.Addr+a.Len]
		op.Kind, op.Off, op.Len, op.Segs = backend.Read, a.Off, a.Len, [][]byte{w.buf}
	case replica.Hash:
		w.id, w.buf = a.ID, make([]byte, a.Len)
		op.Kind, op.Off, op.Len, op.Segs = backend.Read, a.Off, a.Len, [][]byte{w.buf}
	case replica.Sync:
		w.id = a.ID
		op.Kind = backend.Flush
	case replica.Save:
		m.works++
		m.saves <- m.sampled(a) // there is one at a time
		return
	case replica.Pull:
		c := m.conns[a.From]
		if c == nil {
			m.later(replica.Done{ID: a.ID, Failed: true})
			return
		}
		m.pulls[a.ID] = pulling{a.From, a.Addr, a.Len}
		p := pull{id: a.ID, addr: a.Addr, len: a.Len}
		c.send(appendFrame(nil, framePull, 0, func(c *coder) { c.pull(&p) }), false)
		return
	default:
		panic(fmt.Sprintf("mirror: the core asks for %T", a))
	}
	m.works++
	if m.opts.Copy.Submit(op) {
		m.pending = append(m.pending, func() { m.workDone(w) })
	}
}

// workDone tells the core that the copy has done something.
func (m *Mirror) workDone(w *work) {
	m.works--
	e := replica.Done{ID: w.id, Failed: w.op.Err != nil}
	if w.op.Err != nil {
		m.opts.Log.Warn("the copy of a mirror has failed", "operation", w.op.Kind, "why", w.op.Err)
	}
	switch w.action.(type) {
	case replica.Load:
		e.Sum = sumOf(w.buf)
	case replica.Hash:
		sum := sha256.Sum256(w.buf)
		copy(e.Digest[:], sum[:])
	case replica.ReadFor:
		w.task.reads--
		w.task.failure = w.op.Err
		if w.task.over && w.task.reads == 0 {
			m.ended = append(m.ended, w.task.op)
		}
	}
	m.step(e)
}
