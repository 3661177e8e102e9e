package rdmatest

import (
	"encoding/binary"
	"slices"

	"oneshot/transport/rdma"
)

// The last units of the model have words, which atomic operations change. Whether one of these comes before a Write or Discard of its unit is
// always certain, and so is the order of those: draw gives a fence to what needs one. So there is one order, for each word, of all that was done to
// it and seen of it, in which each atomic operation is there once. The numbers are random ones, so they say whose they are.
const (
	modelUnits = 28
	wordsFrom  = 24
	words      = 2 * (modelUnits - wordsFrom)
	noWord     = 1<<64 - 1 // what each is at first
)

// wordIn is where a word is in its unit, which is wordUnit. Octet 0 is no word's.
func wordIn(j int) int { return [...]int{256, 504}[j%2] }

func wordUnit(j int) int { return wordsFrom + j/2 }

// wordOf returns a word of a unit.
func wordOf(j int, unit []byte) uint64 { return binary.NativeEndian.Uint64(unit[wordIn(j):]) }

// plain returns the octets of unit k that no atomic operation changes.
func plain(k int, b []byte) []byte {
	if k < wordsFrom {
		return b
	}
	return slices.Concat(b[:wordIn(0)], b[wordIn(0)+8:wordIn(1)])
}

func (x *endpointWork) isAtomic() bool {
	return x.op == rdma.OpCompareSwap || x.op == rdma.OpFetchAdd
}

// changes reports whether x may change a word, and covers whether it reaches its unit.
func (x *endpointWork) changes() bool { return x.op != rdma.OpRead && x.op != rdma.OpFlush }

func (x *endpointWork) covers(k int) bool {
	return x.op != rdma.OpFlush && k >= x.at && k < x.at+x.n
}

// drawAtomic makes x an atomic operation. The one that compares mostly finds what it looks for, if all goes on as it is posted.
func (m *endpointModel) drawAtomic(x *endpointWork) {
	x.word, x.operand = m.r.IntN(words), m.r.Uint64()
	x.at, x.n = wordUnit(x.word), 1
	if x.op = rdma.OpFetchAdd; m.r.IntN(3) == 0 {
		x.op, x.compare = rdma.OpCompareSwap, m.guess[x.word]
		if m.r.IntN(4) == 0 {
			x.compare++
		}
	}
}

// foresee notes what work i does to the words, if it is done in its turn.
func (m *endpointModel) foresee(i int) {
	x := m.works[i]
	for j := range words {
		switch g := &m.guess[j]; {
		case x.isAtomic() && x.word == j && x.op == rdma.OpFetchAdd:
			*g += x.operand
		case x.isAtomic() && x.word == j && *g == x.compare:
			*g = x.operand
		case !x.isAtomic() && m.writes(i, wordUnit(j)):
			*g = x.filled()
		}
	}
}

// filled is a word of what x writes.
func (x *endpointWork) filled() uint64 { return uint64(x.value) * 0x0101010101010101 }

// needsFence reports whether it would not be certain otherwise that work i comes behind what was posted before.
func (m *endpointModel) needsFence(i int) bool {
	x := m.works[i]
	for u, y := range m.works[:i] {
		if !x.changes() || !y.changes() || x.isAtomic() && y.isAtomic() || m.before(u, i) {
			continue
		}
		for k := wordsFrom; k < modelUnits; k++ {
			if x.covers(k) && y.covers(k) {
				return true
			}
		}
	}
	return false
}

// look is what another queue pair has seen, or what a power cut would have left.
type look struct {
	at     int  // one after the other
	medium bool // it is what a power cut would have left
	posted int  // works that were posted then
	units  [][]byte
	behind map[int]bool // works that come before it

	// first and second are two Reads of one queue pair, one after the other. What is certain of the first one's atomic operations from what is there of
	// the Writes: those from notBefore on had not been done, and had the ones before done, the second one sees them.
	first     bool
	notBefore int
	done      int
}

const (
	maxLooks = 16
	never    = 1 << 20
)

func (m *endpointModel) newLook() *look {
	m.seen++
	return &look{at: m.seen, posted: len(m.works), behind: make(map[int]bool), notBefore: never}
}

// observe reads all twice, through another queue pair.
func (m *endpointModel) observe() {
	if m.p.Store == nil || m.forgets || len(m.looks) >= maxLooks {
		return
	}
	var two []*look
	for range 2 {
		l := m.newLook()
		for w, x := range m.works {
			l.behind[w] = x.complete // O9
		}
		m.other.post(m.other.work(rdma.OpRead, 1, rdma.Signaled, 0, modelUnits*unit, 0))
		c := m.other.sends.next()
		if c.Status == rdma.StatusMedium && m.faults {
			m.blind = true
			return
		}
		if c.Status != rdma.StatusOK {
			m.t.Fatalf("%+v", c)
		}
		l.units = m.units(slices.Clone(m.other.bytes(0, modelUnits*unit)))
		two = append(two, l)
	}
	two[0].first = true
	m.looks = append(m.looks, two...)
	if m.done == len(m.works) {
		for j := range words {
			m.guess[j] = wordOf(j, two[1].units[wordUnit(j)])
		}
	}
}

// compareLooks finds out what the Writes say about the atomic operations (O1). Which of the Writes were done is known by now.
func (m *endpointModel) compareLooks(a, b *look) {
	if m.order&rdma.FreeStart != 0 {
		return
	}
	writer := func(b []byte) (w int, known bool) { return int(b[0]) - 1, b[0] != 0 } // a Discard does not say which it is
	for k := range modelUnits {
		if w, known := writer(a.units[k]); known && w < len(m.works) && !m.works[w].relaxed {
			a.done = max(a.done, w)
		}
		v, known := writer(b.units[k])
		if !known {
			continue
		}
		for w, x := range m.works[:a.posted] {
			if m.writes(w, k) && x.status == rdma.StatusOK && (v >= len(m.works) || m.before(v, w)) {
				a.notBefore = min(a.notBefore, w)
				break
			}
		}
	}
	b.done = a.done
}

// medium notes what a power cut would leave of the words; durable says which works are there for certain.
func (m *endpointModel) medium(image [][]byte, durable []bool) {
	if m.forgets {
		return
	}
	for j := range words {
		l := m.newLook()
		l.medium, l.units = true, image
		for w := range m.works {
			l.behind[w] = durable[w]
		}
		if n := len(m.left[j]); n > 0 && wordOf(j, m.left[j][n-1].units[wordUnit(j)]) == wordOf(j, image[wordUnit(j)]) {
			m.left[j][n-1] = l // it is the stricter one
		} else {
			m.left[j] = append(m.left[j], l)
		}
	}
}

// wordOp is something that is done to a word, or seen of it.
type wordOp struct {
	work    int // -1: none
	look    *look
	op      rdma.Opcode // Read: it only sees
	value   uint64      // what is written, or added, or seen
	compare uint64
	old     uint64 // what was there, if it is certain that it was done
	perhaps bool   // it is not
}

// checkWords looks for the order of what was done to each word.
func (m *endpointModel) checkWords(last [][]byte) {
	for i := 0; i+1 < len(m.looks); i++ {
		if m.looks[i].first {
			m.compareLooks(m.looks[i], m.looks[i+1])
		}
	}
	for j := range words {
		s := &wordSearch{m: m, failed: make(map[wordState]bool)}
		k := wordUnit(j)
		for w, x := range m.works {
			if x.status == rdma.StatusFenced || !x.covers(k) {
				continue
			}
			o := wordOp{work: w, op: x.op, value: x.operand, compare: x.compare, old: x.old, perhaps: x.status != rdma.StatusOK}
			switch {
			case x.isAtomic():
				if x.word != j {
					continue
				}
				if x.op == rdma.OpCompareSwap && !o.perhaps && x.old != x.compare { // it has seen another value, and done nothing
					o.op, o.value = rdma.OpRead, x.old
				}
			case x.op == rdma.OpRead:
				if o.perhaps || m.p.Store == nil && !m.isApart(w, k) {
					continue
				}
				o.value = wordOf(j, m.e.bytes((x.sink+k-x.at)*unit, unit))
			default:
				o.op, o.value = rdma.OpWrite, x.filled()
			}
			s.ops = append(s.ops, o)
		}
		for _, l := range slices.Concat(m.looks, m.left[j]) {
			s.ops = append(s.ops, wordOp{work: -1, look: l, op: rdma.OpRead, value: wordOf(j, l.units[k])})
		}
		end := m.newLook()
		for w := range m.works {
			end.behind[w] = true
		}
		s.ops = append(s.ops, wordOp{work: -1, look: end, op: rdma.OpRead, value: wordOf(j, last[k])})
		s.begin()
		if !s.search(wordState{value: noWord}) {
			m.t.Errorf("order %d: for word %d there is no order in which all is as it was seen. The longest one leaves it as %#x, and what is left is:", m.order, j, s.furthest.value)
			for i, o := range s.ops {
				switch {
				case s.furthest.done.has(i):
				case o.look == nil:
					m.t.Logf("%d: %+v; it is behind %b", i, *m.works[o.work], s.behind[i][0])
				default:
					m.t.Logf("%d: a look at %#x when %d works were posted, not before %d, behind %d; it is behind %b", i, o.value, o.look.posted, o.look.notBefore, o.look.done, s.behind[i][0])
				}
			}
			m.t.FailNow()
		}
	}
}

// isApart reports whether it is certain of all that changes unit k whether it comes before the Read r: if the store is memory, a Read sees of what is beside it
// octet by octet old or new.
func (m *endpointModel) isApart(r, k int) bool {
	for w, x := range m.works {
		if w != r && x.changes() && x.covers(k) && !m.before(w, r) && !m.before(r, w) {
			return false
		}
	}
	return true
}

// wordSearch looks for an order.
type wordSearch struct {
	m      *endpointModel
	ops    []wordOp
	behind []wordSet // what each comes behind
	failed map[wordState]bool

	furthest wordState
	most     int // done there
}

type wordSet [4]uint64

func (s *wordSet) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *wordSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// holds reports whether all of o is in s.
func (s *wordSet) holds(o *wordSet) bool {
	for i := range s {
		if o[i]&^s[i] != 0 {
			return false
		}
	}
	return true
}

type wordState struct {
	done  wordSet
	value uint64
}

func (s *wordSearch) begin() {
	s.behind = make([]wordSet, len(s.ops))
	for i := range s.ops {
		for k := range s.ops {
			if i != k && s.before(&s.ops[k], &s.ops[i]) {
				s.behind[i].add(k)
			}
		}
	}
}

// before reports whether it is certain that a comes before b.
func (s *wordSearch) before(a, b *wordOp) bool {
	m := s.m
	strict := func(w int) bool { return m.works[w].isAtomic() && !m.works[w].relaxed }
	switch {
	case a.work >= 0 && b.work >= 0:
		return m.before(a.work, b.work)
	case a.work >= 0 && a.op == rdma.OpRead && b.look.medium: // it has changed nothing, and what it has seen need not be durable
		return false
	case a.work >= 0: // and the other one only looks
		return b.look.behind[a.work] || !b.look.first && strict(a.work) && a.work < b.look.done
	case b.work >= 0:
		return b.work >= a.look.posted || a.look.first && strict(b.work) && b.work > a.look.notBefore
	}
	return a.look.at < b.look.at && (a.look.medium || !b.look.medium) // what is on the medium may be old
}

// search reports whether the rest can be put in order.
func (s *wordSearch) search(at wordState) bool {
	left := 0
	var may []int
	for i := range s.ops {
		if at.done.has(i) {
			continue
		}
		left++
		if !at.done.holds(&s.behind[i]) {
			continue
		}
		if o := &s.ops[i]; o.op == rdma.OpRead {
			if o.value == at.value { // it may as well be the next one
				at.done.add(i)
				return s.search(at)
			}
			continue
		}
		may = append(may, i)
	}
	if left == 0 {
		return true
	}
	if s.failed[at] {
		return false
	}
	if n := len(s.ops) - left; n > s.most {
		s.furthest, s.most = at, n
	}
	for _, i := range may {
		o, next := &s.ops[i], at
		next.done.add(i)
		if o.perhaps && s.search(next) {
			return true
		}
		switch {
		case o.op == rdma.OpWrite:
			next.value = o.value
		case !o.perhaps && o.old != at.value || o.op == rdma.OpCompareSwap && o.compare != at.value:
			continue
		case o.op == rdma.OpFetchAdd:
			next.value += o.value
		default:
			next.value = o.value
		}
		if s.search(next) {
			return true
		}
	}
	s.failed[at] = true
	return false
}
