package rdmatest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// endpointWork is a work of the model test, with what is known of it.
type endpointWork struct {
	op       rdma.Opcode
	fence    bool // starts when all before it are complete
	barrier  bool
	durable  bool // the flag
	relaxed  bool
	at, n    int // units
	value    byte
	behind   int // all works before that one were complete, and that polled, when it was posted
	complete bool
	sink     int // of a Read: unit of own memory
}

const (
	modelUnits = 24
	modelWorks = 120
)

// RunEndpointModel is the part of RunEndpoint that needs no more memory and credits than one work takes. Random works, with random fences, leave and read what the rules allow. For each unit it
// knows which writes may be the last before a Read, the end, or a power cut: those that nothing is certain to
// have replaced. After each completion it looks at what a crash would leave.
func RunEndpointModel(t *testing.T, open func(*testing.T, *Volatile) Endpoint) {
	seed := seedOf(t)
	p := open(t, NewVolatile(endpointSize, seed))
	r := rand.New(rand.NewPCG(seed, 7))
	all := rounds.Of(24, 8)
	if p.Quick {
		all = len(everyOrder)
	}
	if p.Cut != nil {
		all += len(everyOrder)
	}
	for round := range all {
		m := &endpointModel{t: t, p: p, r: r, order: everyOrder[round%len(everyOrder)], cuts: p.Cut != nil && round >= len(everyOrder)}
		m.e = attach(t, p, m.order, modelWorks, 0)
		m.run()
	}
}

type endpointModel struct {
	t     *testing.T
	p     Endpoint
	r     *rand.Rand
	e     *end
	order rdma.Order
	cuts  bool // the connection is lost now and then
	works []*endpointWork
	done  int
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
	if m.order&rdma.FreeStart != 0 || x.relaxed || m.works[u].relaxed {
		return false // O2, O10
	}
	return m.works[u].op != rdma.OpRead // O1
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
		if m.cuts && m.r.IntN(3) == 0 {
			m.p.Cut(m.e.qp)
		}
		for m.done < len(m.works) && m.r.IntN(4) > 0 {
			m.completion()
		}
	}
	for m.done < len(m.works) {
		m.completion()
	}
	m.check("at the end", m.image(), func(int) bool { return true }, func(int) bool { return true })
}

// draw makes a work.
func (m *endpointModel) draw(behind int) rdma.Work {
	i := len(m.works)
	x := &endpointWork{behind: behind, at: m.r.IntN(modelUnits), value: byte(i) + 1, sink: modelUnits * (1 + i)}
	most := 4
	if m.r.IntN(4) == 0 {
		most = modelUnits // more than one request of some services
	}
	x.n = 1 + m.r.IntN(min(most, modelUnits-x.at))
	flags := rdma.Signaled
	switch m.r.IntN(10) {
	case 0:
		x.op = rdma.OpFlush
		x.fence = m.order&rdma.FreeStart == 0 // O8
	case 1:
		x.op, x.value = rdma.OpDiscard, 0
	case 2, 3, 4:
		x.op = rdma.OpRead
	default:
		x.op = rdma.OpWrite
	}
	switch m.r.IntN(8) {
	case 0:
		flags, x.fence = flags|rdma.Fence, true
	case 1:
		flags, x.fence, x.barrier = flags|rdma.Barrier, true, true
	case 2:
		flags, x.relaxed = flags|rdma.RelaxedOrder, true
	}
	if x.op == rdma.OpWrite && m.r.IntN(6) == 0 {
		flags, x.durable = flags|rdma.Durable, true
	}
	off := x.sink * unit
	if x.op == rdma.OpWrite {
		for k := range x.n * unit {
			m.e.bytes(off, x.n*unit)[k] = x.value
		}
	}
	m.works = append(m.works, x)
	return m.e.work(x.op, uint64(i), flags, off, x.n*unit, x.at*unit)
}

// completion takes one, and looks at what it says and at what a crash would leave. A Read may end without octets when the connection was
// lost, for what a fence has kept behind it may have been done: then it promises nothing.
func (m *endpointModel) completion() {
	c := m.e.sends.next()
	if c.ID >= uint64(len(m.works)) || m.works[c.ID].complete {
		m.t.Fatalf("%+v", c)
	}
	i := int(c.ID)
	overtaken := m.cuts && c.Status == rdma.StatusTransport && m.works[i].op == rdma.OpRead
	if c.Status != rdma.StatusOK && !overtaken {
		m.t.Fatalf("%+v", c)
	}
	if m.order&rdma.FreeFinish == 0 && i != m.done {
		m.t.Fatalf("work %d completes, %d is due", i, m.done)
	}
	x := m.works[i]
	x.complete = true
	x.barrier = x.barrier && !overtaken
	m.done++
	if x.op == rdma.OpRead && !overtaken {
		got := make([][]byte, modelUnits)
		for k := range x.n {
			got[x.at+k] = m.e.bytes((x.sink+k)*unit, unit)
		}
		m.check("read", got, func(w int) bool { return m.before(w, i) }, func(w int) bool { return !m.before(i, w) })
	}
	m.crash()
}

// writes reports whether work w writes unit k.
func (m *endpointModel) writes(w, k int) bool {
	x := m.works[w]
	return (x.op == rdma.OpWrite || x.op == rdma.OpDiscard) && k >= x.at && k < x.at+x.n
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
	m.e.post(m.e.work(rdma.OpFlush, 1<<20, rdma.Signaled|rdma.Fence, 0, 0, 0))
	m.e.sends.want(rdma.OpFlush, 1<<20)
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
	durable := make([]bool, len(m.works))
	covers := func(f int) {
		for w := range f {
			durable[w] = durable[w] || m.before(w, f)
		}
	}
	for f, x := range m.works {
		there := false
		if x.barrier && x.op == rdma.OpWrite {
			for k := x.at; k < x.at+x.n; k++ {
				there = there || image[k][0] == x.value
			}
		}
		if x.complete && (x.op == rdma.OpFlush || x.barrier) || there {
			covers(f)
		}
		if x.complete && (x.durable || x.barrier) {
			durable[f] = true
		}
	}
	m.check("after a crash", image, func(w int) bool { return durable[w] }, func(int) bool { return true })
}
