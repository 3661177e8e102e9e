package rdmatest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// endpointWork is a work of the model test, with what is known of it.
type endpointWork struct {
	op       rdma.Opcode
	fence    bool // starts when all before it are complete
	chained  bool // is not executed if one since the last such work has failed
	barrier  bool
	durable  bool // the flag
	relaxed  bool
	at, n    int // units
	value    byte
	behind   int // all works before that one were complete, and that polled, when it was posted
	complete bool
	status   rdma.Status
	sink     int // of a Read: unit of own memory

	// Of an atomic operation.
	word    int
	compare uint64
	operand uint64
	old     uint64 // what was there, when it is complete
	// atomic is the last one before it that keeps what is behind it from starting; -1: none.
	atomic int
}

const modelWorks = 120

// RunEndpointModel is the part of RunEndpoint that needs no more memory and credits than one work takes. Random works, with random fences, leave and read what the rules allow. For each unit it
// knows which writes may be the last before a Read, the end, or a power cut: those that nothing is certain to
// have replaced. After each completion it looks at what a crash would leave. Of atomic operations it knows more (modelUnits).
//
// In some rounds the store fails one of many operations. A Write or Discard that has failed is done in any of its units, or in none, and
// those are durable, or not; what a fence keeps behind it is not executed at all (O6).
func RunEndpointModel(t *testing.T, open func(*testing.T, *Volatile) Endpoint) {
	seed := seedOf(t)
	p := open(t, NewVolatile(endpointSize, seed))
	r := rand.New(rand.NewPCG(seed, 7))
	all := rounds.Of(24, 8)
	if p.Quick {
		all = len(everyOrder)
	}
	other := attach(t, p, rdma.OrderStrict, 1, rdma.RightRead)
	run := func(n int, cuts, faults, forgets bool) {
		for round := range n {
			m := &endpointModel{t: t, p: p, r: r, order: everyOrder[round%len(everyOrder)], cuts: cuts, faults: faults, forgets: forgets, other: other}
			m.e = attach(t, p, m.order, modelWorks, 0)
			m.run()
		}
	}
	for _, faults := range []bool{false, true} {
		if faults && p.Store == nil {
			return
		}
		run(all, false, faults, false)
		if p.Cut != nil {
			run(len(everyOrder), true, faults, false)
		}
		if p.Forget != nil {
			run(len(everyOrder), true, faults, true)
		}
	}
}

type endpointModel struct {
	t     *testing.T
	p     Endpoint
	r     *rand.Rand
	e     *end
	order rdma.Order
	cuts  bool // the connection is lost now and then
	// forgets: sometimes nobody knows what was done on it. What changes something may end without its being known whether it was done, and what
	// does not may be done again on top of what is behind it (O9).
	forgets bool
	works   []*endpointWork
	done    int

	faults bool // the store fails now and then
	failed atomic.Int64

	other *end // of another queue pair, which only reads
	blind bool // it has failed to
	looks []*look
	left  [words][]*look // of the medium
	seen  int            // looks
	guess [words]uint64  // what each word is if all that is posted is done in its turn
}

// fault says which operations of the store fail. A flush does not: after that nothing is promised any more.
func (m *endpointModel) fault(seed uint64) func(*backend.Op) error {
	r := rand.New(rand.NewPCG(seed, 3))
	return func(op *backend.Op) error {
		if op.Kind == backend.Flush || r.IntN(20) > 0 {
			return nil
		}
		m.failed.Add(1)
		if op.Kind == backend.Write && r.IntN(3) == 0 {
			return &backend.SpaceError{Off: op.Off, Err: errBroken}
		}
		return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
	}
}

// chain returns the works since the fence before f, with it.
func (m *endpointModel) chain(f int) []*endpointWork {
	from := f
	for from > 0 {
		if from--; m.works[from].chained {
			break
		}
	}
	return m.works[from:f]
}

// hasFailed reports whether x is known to have failed.
func (x *endpointWork) hasFailed() bool {
	return x.complete && x.status != rdma.StatusOK && x.status != rdma.StatusFenced
}

// mayRepeat reports whether x may have been done more than once, with another end each time, and not have been before a fence behind it the
// last time.
func (m *endpointModel) mayRepeat(x *endpointWork) bool { return m.cuts && x.op == rdma.OpRead }

// good reports whether x is certain to have been done. In rounds without faults, and in which nothing is forgotten, that is so of all.
func (m *endpointModel) good(w int) bool {
	x := m.works[w]
	return !m.faults && !m.forgets || x.complete && x.status == rdma.StatusOK
}

// judge looks at the status of a work.
func (m *endpointModel) judge(i int) {
	x := m.works[i]
	broken, perhaps := false, false
	if x.chained {
		for _, w := range m.chain(i) {
			broken = broken || w.hasFailed() && !m.mayRepeat(w)
			perhaps = perhaps || (m.faults || m.forgets) && m.mayRepeat(w)
		}
	}
	ok := false
	switch x.status {
	case rdma.StatusOK:
		ok = !broken
	case rdma.StatusFenced:
		ok = broken || perhaps
	case rdma.StatusMedium:
		ok = m.faults && !broken && x.op != rdma.OpFlush
	case rdma.StatusSpace:
		ok = m.faults && !broken && (x.op == rdma.OpWrite || x.isAtomic())
	case rdma.StatusTransport:
		ok = m.cuts && x.op == rdma.OpRead || m.mayBeUnknown(i)
	}
	if !ok {
		for _, w := range m.chain(i) {
			m.t.Logf("before it: %+v", *w)
		}
		m.t.Fatalf("order %d: work %d, %+v, ends with %q; the chain before it is broken: %v", m.order, i, *x, x.status, broken)
	}
}

// mayBeUnknown reports whether it need not be known of work i whether it was done: it is an atomic operation with a fence, and what failed before it may be a
// Read that went well the first time; or it has a fence behind such a one; or it was forgotten.
func (m *endpointModel) mayBeUnknown(i int) bool {
	x := m.works[i]
	if m.forgets && (x.changes() || x.chained) {
		return true
	}
	return m.cuts && m.faults && x.chained && slices.ContainsFunc(m.chain(i), func(w *endpointWork) bool {
		return x.isAtomic() && (w.op == rdma.OpRead || w.hasFailed()) || w.chained && w.status == rdma.StatusTransport
	})
}

// before reports whether the effect of u is certain to come before that of w.
func (m *endpointModel) before(u, w int) bool {
	if u >= w {
		return false
	}
	x := m.works[w]
	if u < x.behind || x.fence { // O9, O5
		return true
	}
	if m.order&rdma.FreeStart != 0 || x.relaxed {
		return false // O2, O10
	}
	if x.isAtomic() || u < x.atomic {
		return true // O1
	}
	return !m.works[u].relaxed && (m.works[u].op != rdma.OpRead || x.op != rdma.OpWrite) // O10, O1
}

func (m *endpointModel) run() {
	// The store begins with a byte in each unit that no work writes.
	fill(m.e.bytes(0, modelUnits*unit), 1)
	for i := range modelUnits {
		for k := range unit {
			m.e.bytes(i*unit, unit)[k] = 255
		}
	}
	m.e.post(m.e.work(rdma.OpWrite, 1<<20, rdma.Signaled|rdma.Barrier, 0, modelUnits*unit, 0))
	m.e.sends.want(rdma.OpWrite, 1<<20)
	for j := range words {
		m.guess[j] = noWord
	}
	if m.faults {
		m.p.Store.FailTorn(m.fault(m.r.Uint64()))
	}
	for len(m.works) < modelWorks {
		var batch []rdma.Work
		behind := 0
		if m.done == len(m.works) {
			behind = m.done
		}
		for n := 1 + m.r.IntN(12); n > 0 && len(m.works) < modelWorks; n-- {
			batch = append(batch, m.draw(behind))
		}
		m.e.post(batch...)
		switch {
		case m.forgets && m.r.IntN(8) == 0:
			m.p.Forget(m.e.qp)
		case m.cuts && m.r.IntN(3) == 0:
			m.p.Cut(m.e.qp)
		}
		if m.r.IntN(3) == 0 {
			m.observe()
		}
		for m.done < len(m.works) && m.r.IntN(4) > 0 {
			m.completion()
		}
	}
	for m.done < len(m.works) {
		m.completion()
	}
	if m.faults {
		m.p.Store.Fail(nil)
		if failed := m.blind || slices.ContainsFunc(m.works, (*endpointWork).hasFailed); !m.cuts && failed != (m.failed.Load() > 0) {
			m.t.Fatalf("order %d: %d operations of the store have failed, and one of the works: %v", m.order, m.failed.Load(), failed)
		}
	}
	last := m.image()
	m.check("at the end", last, m.good, func(int) bool { return true })
	m.checkWords(last)
}

// draw makes a work.
func (m *endpointModel) draw(behind int) rdma.Work {
	i := len(m.works)
	most, units := 4, wordsFrom
	if m.r.IntN(4) == 0 {
		most = modelUnits // more than one request of some services
	}
	if m.r.IntN(4) == 0 {
		units = modelUnits
	}
	x := &endpointWork{behind: behind, at: m.r.IntN(units), value: byte(i) + 1, sink: modelUnits * (1 + i), atomic: -1}
	x.n = 1 + m.r.IntN(min(most, units-x.at))
	flags := rdma.Signaled
	switch m.r.IntN(13) {
	case 0:
		x.op = rdma.OpFlush
		x.fence = m.order&rdma.FreeStart == 0 // O8
	case 1:
		x.op, x.value = rdma.OpDiscard, 0
	case 2, 3, 4:
		x.op = rdma.OpRead
	case 5, 6, 7:
		m.drawAtomic(x)
	default:
		x.op = rdma.OpWrite
	}
	switch m.r.IntN(8) {
	case 0:
		flags, x.fence, x.chained = flags|rdma.Fence, true, true
	case 1:
		flags, x.fence, x.chained, x.barrier = flags|rdma.Barrier, true, true, true
	case 2:
		flags, x.relaxed = flags|rdma.RelaxedOrder, true
	}
	if (x.op == rdma.OpWrite || x.isAtomic()) && m.r.IntN(6) == 0 {
		flags, x.durable = flags|rdma.Durable, true
	}
	off := x.sink * unit
	if x.op == rdma.OpWrite {
		for k := range x.n * unit {
			m.e.bytes(off, x.n*unit)[k] = x.value
		}
	}
	if i > 0 {
		if x.atomic = m.works[i-1].atomic; m.works[i-1].isAtomic() && !m.works[i-1].relaxed {
			x.atomic = i - 1
		}
	}
	if m.works = append(m.works, x); m.needsFence(i) {
		flags, x.fence, x.chained = flags|rdma.Fence, true, true
	}
	m.foresee(i)
	if !x.isAtomic() {
		return m.e.work(x.op, uint64(i), flags, off, x.n*unit, x.at*unit)
	}
	w := m.e.work(x.op, uint64(i), flags, off, 8, x.at*unit+wordIn(x.word))
	w.Compare, w.Operand = x.compare, x.operand
	return w
}

// completion takes one, and looks at what it says and at what a crash would leave. A Read may end without octets when the connection was
// lost, for what had to come behind it may have been done: then it promises nothing.
func (m *endpointModel) completion() {
	c := m.e.sends.next()
	if c.ID >= uint64(len(m.works)) || m.works[c.ID].complete {
		m.t.Fatalf("%+v", c)
	}
	i := int(c.ID)
	if m.order&rdma.FreeFinish == 0 && i != m.done {
		m.t.Fatalf("work %d completes, %d is due", i, m.done)
	}
	x := m.works[i]
	x.complete, x.status = true, c.Status
	m.judge(i)
	m.done++
	if x.op == rdma.OpRead && x.status == rdma.StatusOK {
		got := make([][]byte, modelUnits)
		for k := range x.n {
			got[x.at+k] = m.e.bytes((x.sink+k)*unit, unit)
		}
		m.check("read", got, func(w int) bool { return m.before(w, i) && m.good(w) }, func(w int) bool { return !m.before(i, w) })
	}
	if x.isAtomic() && x.status == rdma.StatusOK {
		x.old = binary.NativeEndian.Uint64(m.e.bytes(x.sink*unit, 8))
	}
	m.crash()
}

// writes reports whether work w may write unit k.
func (m *endpointModel) writes(w, k int) bool {
	x := m.works[w]
	return x.status != rdma.StatusFenced && (x.op == rdma.OpWrite || x.op == rdma.OpDiscard) && k >= x.at && k < x.at+x.n
}

// check looks whether each unit of got that is there has bytes of a write that may have been the last.
// certain says of which writes it is sure that they came before, and possible of which it is not sure that
// they did not.
func (m *endpointModel) check(what string, got [][]byte, certain, possible func(int) bool) {
	m.t.Helper()
	for k, b := range got {
		if b == nil {
			continue
		}
		b = plain(k, b)
		var allowed [256]bool
		allowed[255] = true
		var writers, sure []int
		for w := range m.works {
			if !m.writes(w, k) {
				continue
			}
			writers = append(writers, w)
			if certain(w) {
				sure = append(sure, w)
				allowed[255] = false
			}
		}
		for _, w := range writers {
			if !possible(w) {
				continue
			}
			replaced := slices.ContainsFunc(sure, func(v int) bool { return m.before(w, v) })
			allowed[m.works[w].value] = allowed[m.works[w].value] || !replaced
		}
		if allowed[b[0]] && bytes.Count(b, b[:1]) == len(b) {
			continue
		}
		for at, v := range b {
			if !allowed[v] {
				m.t.Fatalf("order %d, %s: octet %d of unit %d is %d, which the rules do not allow (works %d)", m.order, what, at, k, v, len(m.works))
			}
		}
	}
}

// image reads all units of what a power cut would leave after a flush of all.
func (m *endpointModel) image() [][]byte {
	w := m.e.work(rdma.OpFlush, 1<<20, rdma.Signaled|rdma.Fence, 0, 0, 0)
	m.e.post(w)
	if c := m.e.sends.next(); c.Status == rdma.StatusFenced && (m.faults || m.forgets) {
		m.e.post(w) // the one before counts as seen
		m.e.sends.want(rdma.OpFlush, 1<<20)
	} else if c.Status != rdma.StatusOK {
		m.t.Fatalf("%+v", c)
	}
	if m.p.Store == nil {
		m.e.post(m.e.work(rdma.OpRead, 1<<20, rdma.Signaled, 0, modelUnits*unit, 0))
		m.e.sends.want(rdma.OpRead, 1<<20)
		return m.units(m.e.bytes(0, modelUnits*unit))
	}
	return m.units(m.p.Store.Crash(modelUnits * unit))
}

func (m *endpointModel) units(image []byte) (got [][]byte) {
	for k := range modelUnits {
		got = append(got, image[k*unit:(k+1)*unit])
	}
	return got
}

// crash looks at what a power cut would leave now. Durable are works that completed and say so, those that a
// completed flush or barrier covers, and those before a barrier whose own bytes are there.
func (m *endpointModel) crash() {
	if m.p.Store == nil {
		return
	}
	image := m.units(m.p.Store.Crash(modelUnits * unit))
	durable, done := make([]bool, len(m.works)), make([]bool, len(m.works))
	for w := range m.works {
		done[w] = m.good(w)
	}
	covers := func(f int) {
		for w := range f {
			durable[w] = durable[w] || m.before(w, f) && done[w]
		}
	}
	for f, x := range m.works {
		there := false
		if x.barrier && x.op == rdma.OpWrite {
			for k := x.at; k < x.at+x.n; k++ {
				there = there || image[k][0] == x.value
			}
		}
		if there { // O6: nothing of its chain has failed, whether we know it already or not
			chain := m.chain(f)
			for k, y := range chain {
				w := f - len(chain) + k
				done[w] = done[w] || !y.chained
				if y.hasFailed() && !m.mayRepeat(y) && !(y.status == rdma.StatusTransport && m.mayBeUnknown(w)) {
					m.t.Fatalf("order %d: work %d is on the medium, though work %d before it has failed", m.order, f, w)
				}
			}
		}
		ok := x.complete && x.status == rdma.StatusOK
		if ok && (x.op == rdma.OpFlush || x.barrier) || there {
			covers(f)
		}
		if ok && (x.durable || x.barrier) {
			durable[f] = true
		}
	}
	m.check("after a crash", image, func(w int) bool { return durable[w] }, func(int) bool { return true })
	m.medium(image, durable)
}
