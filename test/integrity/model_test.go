package integrity

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// sectorSize is the unit of the model in bytes: the smallest block of any view.
const sectorSize = 512

// value identifies the content of a sector: zeroes, or what the change with this number wrote. A
// sector of a change repeats two words of 8 bytes, little-endian: the value, and the number of the
// sector with the position of the pair in it. So the model recognizes a sector in the wrong place, and
// a sector with bytes of two changes.
type value uint64

const (
	zeroes  value = 0
	pairLen       = 16
	pairs         = sectorSize / pairLen
)

// fill writes sectors of v to b, the first of which has the number first.
func (v value) fill(b []byte, first int) {
	if v == zeroes {
		clear(b)
		return
	}
	for i := 0; i < len(b); i += pairLen {
		binary.LittleEndian.PutUint64(b[i:], uint64(v))
		binary.LittleEndian.PutUint64(b[i+8:], uint64(first*pairs+i/pairLen))
	}
}

// parse reads the sector with that number. values has the value of each pair; half is set if a part
// of a pair is zeroes. An error means that nobody ever wrote these bytes there.
func parse(b []byte, number int) (values [pairs]value, half bool, err error) {
	for i := range pairs {
		v, at := value(binary.LittleEndian.Uint64(b[i*pairLen:])), binary.LittleEndian.Uint64(b[i*pairLen+8:])
		values[i] = v
		switch want := uint64(number*pairs + i); {
		case v == zeroes && at == 0, v != zeroes && at == want:
		case v == zeroes && at == want, v != zeroes && at == 0:
			half = true
		default:
			return values, half, fmt.Errorf("sector %d, octet %d is misplaced: it is of change %d, for sector %d", number, i*pairLen, v, at/pairs)
		}
	}
	return values, half, nil
}

// change is a command that writes a new value to sectors. It takes effect at one moment between start
// and end, or, if maybe is set, perhaps never. Times are those of model.clock.
type change struct {
	value      value
	what       string
	start, end int64
	maybe      bool // it did not end with GOOD
	void       bool // it was refused before it began
	fua        bool // GOOD means that it is durable
	durable    bool // it survives a power cut
	doubtful   bool // the medium lost bytes while it was under way
}

const never = math.MaxInt64

// entry is the effect of a change on one sector. Each sector may change at a time of its own; only
// atomic writes promise more.
type entry struct {
	*change
	seen int64 // when a read that found it ended; never: none has
}

// certain returns the time by which the sector has changed.
func (e *entry) certain() int64 {
	if e.maybe {
		return e.seen
	}
	return min(e.end, e.seen)
}

// model holds, for each sector of a disk, the changes that a read may find.
type model struct {
	mu      sync.Mutex
	clock   int64
	sectors [][]*entry
	reads   map[int64]int // reads under way, by start; guarded by mu
	changes uint64
	wrong   []string // impossible results of reads

	// volatile says that data that is not flushed may be lost. It is set before the load begins.
	volatile bool
	pending  []*change // done, and not known to be durable; guarded by mu
	lostAt   int64     // when bytes were lost last; guarded by mu
	failed   bool      // the medium has reported an error, and no later flush may succeed; guarded by mu
}

func newModel(sectors int) *model {
	m := &model{sectors: make([][]*entry, sectors), reads: map[int64]int{}}
	empty := &change{what: "what the disk held at first", durable: true}
	for i := range m.sectors {
		m.sectors[i] = []*entry{{empty, never}}
	}
	return m
}

// tick returns the time, which no two events share. mu is held.
func (m *model) tick() int64 { m.clock++; return m.clock }

// begin registers a change of n sectors before its command is sent. blank: it writes zeroes.
func (m *model) begin(what string, at, n int, blank bool) *change {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes++
	c := &change{what: what, start: m.tick(), end: never, value: value(m.changes)}
	if blank {
		c.value = zeroes
	}
	for i := at; i < at+n; i++ {
		m.sectors[i] = append(m.prune(m.sectors[i]), &entry{c, never})
	}
	return c
}

// outcome says what is known of a change when its command has ended.
type outcome int

const (
	done    outcome = iota // GOOD: it has taken effect
	unknown                // it may have taken effect, but will not do so from now on
	refused                // it has not taken effect, and will not
)

func (m *model) finish(c *change, o outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.end, c.maybe, c.void = m.tick(), o == unknown, o == refused
	switch {
	case !m.volatile || o != done:
	case c.fua:
		c.durable = true
	default:
		c.maybe = c.doubtful
		m.pending = append(m.pending, c)
	}
}

// flushed notes that a flush which began at start has ended with GOOD: changes that were done by then
// are durable.
func (m *model) flushed(start int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed && start > m.lostAt {
		m.complain("a flush at %d says GOOD; the medium lost acknowledged bytes at %d", start, m.lostAt)
	}
	m.pending = slices.DeleteFunc(m.pending, func(c *change) bool {
		c.durable = c.durable || c.end < start && !c.maybe
		return c.durable
	})
}

// lose notes that the disk may have lost everything that is not durable: its power was cut, or the
// medium has reported an error (failed).
func (m *model) lose(failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lostAt, m.failed = m.tick(), failed
	m.pending = nil
	oldest := m.oldest()
	for i, cs := range m.sectors {
		m.sectors[i] = remaining(cs, oldest, true)
		for _, e := range m.sectors[i] {
			if e.durable {
				continue
			}
			e.seen = never
			if e.doubtful = true; e.end != never {
				e.maybe = true
			}
		}
	}
}

// look registers a read before its command is sent, and returns its start.
func (m *model) look() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tick()
	m.reads[t]++
	return t
}

// blink ends a read that failed.
func (m *model) blink(start int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leave(start)
}

func (m *model) leave(start int64) {
	if m.reads[start]--; m.reads[start] == 0 {
		delete(m.reads, start)
	}
}

// found ends the read that began at start, with the bytes b of the sectors from at on. together:
// all of them must be of one change.
func (m *model) found(start int64, at int, b []byte, together bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.tick()
	defer m.leave(start)
	var first value
	for i := 0; i < len(b)/sectorSize; i++ {
		values, half, err := parse(b[i*sectorSize:][:sectorSize], at+i)
		if err != nil {
			m.complain("%v\n%s", err, m.history(at+i))
			return
		}
		if i == 0 {
			first = values[0]
		}
		if wrong := m.sector(at+i, values, half, start, end); wrong != "" {
			m.complain("a read of %d..%d found in sector %d %s\n%s", start, end, at+i, wrong, m.history(at+i))
			return
		}
		if together && values[0] != first {
			m.complain("an atomic write is torn: sector %d is of change %d, sector %d of change %d\n%s", at, first, at+i, values[0], m.history(at+i))
			return
		}
	}
}

// sector returns what is wrong with the content that a read found in a sector. It has to be that of one
// change, unless another change was under way during the read.
func (m *model) sector(number int, values [pairs]value, half bool, start, end int64) string {
	cs := m.sectors[number]
	torn := half
	for _, v := range values {
		torn = torn || v != values[0]
	}
	if torn && !slices.ContainsFunc(cs, func(c *entry) bool { return !c.void && c.start < end && start < c.end }) {
		return fmt.Sprintf("parts of several changes: %d", values)
	}
	for i, v := range values {
		if i > 0 && v == values[i-1] {
			continue
		}
		who := m.explain(cs, v, start, end)
		if who == nil {
			return fmt.Sprintf("change %d, which cannot be", v)
		}
		if !torn && len(who) == 1 && start > m.lostAt {
			who[0].seen = min(who[0].seen, end)
		}
	}
	return ""
}

// explain returns the changes that may have left v where a read found it.
func (m *model) explain(cs []*entry, v value, start, end int64) (who []*entry) {
	for _, c := range cs {
		if c.value == v && c.start < end && !c.void && !superseded(cs, c, start, false) {
			who = append(who, c)
		}
	}
	return who
}

// superseded reports whether another change has certainly come after c by the time t; with durably, a
// change that survives a power cut.
func superseded(cs []*entry, c *entry, t int64, durably bool) bool {
	over := min(c.end, c.seen) // by then it has taken effect, if it ever does
	if over == never {
		return false
	}
	for _, d := range cs {
		if d != c && !d.void && d.start > over && d.certain() < t && (d.durable || !durably) {
			return true
		}
	}
	return false
}

// oldest is when the oldest read under way began; now, if there is none. mu is held.
func (m *model) oldest() int64 {
	t := m.clock
	for start := range m.reads {
		t = min(t, start)
	}
	return t
}

// remaining returns the changes that a read which began at t or later may find.
func remaining(cs []*entry, t int64, durably bool) []*entry {
	kept := make([]*entry, 0, len(cs))
	for _, c := range cs {
		if !c.void && !superseded(cs, c, t, durably) {
			kept = append(kept, c)
		}
	}
	return kept
}

// prune forgets the changes that no read will find any more. mu is held.
func (m *model) prune(cs []*entry) []*entry {
	if len(cs) < 4 {
		return cs
	}
	return remaining(cs, m.oldest(), m.volatile)
}

func (m *model) history(sector int) string {
	var s strings.Builder
	for _, c := range m.sectors[sector] {
		fmt.Fprintf(&s, "\t%d: %s, %d..%s", c.value, c.what, c.start, moment(c.end))
		if c.maybe {
			s.WriteString(", outcome unknown")
		}
		if c.void {
			s.WriteString(", refused")
		}
		if c.durable && m.volatile {
			s.WriteString(", durable")
		}
		if c.seen != never {
			fmt.Fprintf(&s, ", seen by %d", c.seen)
		}
		s.WriteString("\n")
	}
	return s.String()
}

func moment(t int64) string {
	if t == never {
		return "?"
	}
	return fmt.Sprint(t)
}

// complain records a finding, unless there are many already. mu is held.
func (m *model) complain(format string, args ...any) {
	if len(m.wrong) < 10 {
		m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
	}
}

// blame is complain for callers that do not hold mu.
func (m *model) blame(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.complain(format, args...)
}

// findings returns what was wrong so far.
func (m *model) findings() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wrong
}
