package stag

import (
	"bytes"
	"maps"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// tagModel is one STag as one-shot.md §4 describes it, without indexes and atomic words.
type tagModel struct {
	state   State
	oneShot bool
	domain  *Domain
	stream  *Stream // nil: all of the domain
	base    uint64
	memory  []byte // concatenated
	access  Access
	refs    int
}

type refModel struct {
	ref  Ref
	tag  STag
	want []byte
}

type machine struct {
	table   *Table
	domains []*Domain
	streams []*Stream
	ended   map[*Stream]bool
	tags    map[STag]*tagModel // in use
	stale   []STag             // of earlier uses
	refs    []*refModel
	fill    byte // first octet of the next region: memories differ
}

const modelWindow = 5

func newMachine() *machine {
	m := &machine{table: NewTable(40), ended: map[*Stream]bool{}, tags: map[STag]*tagModel{}}
	for range 2 {
		d := m.table.NewDomain()
		m.domains = append(m.domains, d)
		m.streams = append(m.streams, m.table.NewStream(d, modelWindow), m.table.NewStream(d, modelWindow))
	}
	return m
}

func (m *machine) tag(t *rapid.T) STag {
	all := slices.Sorted(maps.Keys(m.tags)) // in a fixed order, for rapid to shrink
	all = append(all, m.stale...)
	if len(all) == 0 || rapid.IntRange(0, 19).Draw(t, "forged") == 0 {
		return STag(rapid.Uint32().Draw(t, "forged STag"))
	}
	return rapid.SampledFrom(all).Draw(t, "STag")
}

func (m *machine) stream(t *rapid.T) *Stream {
	return m.streams[rapid.IntRange(0, len(m.streams)-1).Draw(t, "stream")]
}

func (m *machine) region(t *rapid.T) (Region, []byte) {
	sizes := rapid.SliceOfN(rapid.IntRange(0, 9), 0, 4).Draw(t, "sizes")
	m.fill += 37
	r := Region{
		Segments: segs(m.fill, sizes...),
		Base:     rapid.SampledFrom([]uint64{0, 4096, 1<<64 - 40}).Draw(t, "base"),
		Access:   Access(rapid.IntRange(0, 15).Draw(t, "access")),
	}
	return r, bytes.Join(r.Segments, nil)
}

func (m *machine) outstanding(st *Stream) (n int) {
	for _, g := range m.tags {
		if g.oneShot && g.stream == st && (g.state == Reserved || g.state == Bound || g.state == Advertised) {
			n++
		}
	}
	return n
}

// fresh checks that a new STag is not in use and was not given out recently.
func (m *machine) fresh(t *rapid.T, s STag, g *tagModel) {
	if s == 0 || m.tags[s] != nil {
		t.Fatalf("STag %08x was given out twice", s)
	}
	for _, old := range m.stale {
		if old == s {
			t.Fatalf("STag %08x came back at once", s)
		}
	}
	m.tags[s] = g
}

func (m *machine) drop(s STag) {
	delete(m.tags, s)
	if m.stale = append(m.stale, s); len(m.stale) > 30 {
		m.stale = m.stale[1:]
	}
}

func (g *tagModel) belongs(st *Stream) bool {
	return g.stream == st || g.stream == nil && g.domain == st.domain
}

func (g *tagModel) accessible() bool {
	return g.state == Valid || g.state == Bound || g.state == Advertised
}

// wantAccess does the checks of RFC 5041 §8 in their order, and returns the Terminate code of the first one that fails.
func (m *machine) wantAccess(st *Stream, op Op, s STag, to, n uint64) int {
	code := map[Op][5]int{
		RemoteWrite:  {0x1100, 0x1102, 0x1100, 0x1103, 0x1101},
		ReadResponse: {0x1100, 0x1102, 0x1100, 0x1103, 0x1101},
		RemoteRead:   {0x0100, 0x0103, 0x0102, 0x0104, 0x0101},
	}[op]
	need := map[Op]Access{RemoteWrite: AccessRemoteWrite, ReadResponse: AccessLocalWrite, RemoteRead: AccessRemoteRead}[op]
	g := m.tags[s]
	end := new(big.Int).Add(new(big.Int).SetUint64(to), new(big.Int).SetUint64(n))
	switch {
	case n == 0:
		return 0xffff
	case g == nil || !g.accessible():
		return code[0]
	case !g.belongs(st):
		return code[1]
	case g.access&need == 0:
		return code[2]
	case end.Cmp(new(big.Int).Lsh(big.NewInt(1), 64)) > 0:
		return code[3]
	case to < g.base, end.Cmp(new(big.Int).Add(new(big.Int).SetUint64(g.base), big.NewInt(int64(len(g.memory))))) > 0:
		return code[4]
	}
	return 0xffff
}

func (m *machine) acquire(t *rapid.T) {
	st, s := m.stream(t), m.tag(t)
	op := rapid.SampledFrom([]Op{RemoteWrite, ReadResponse, RemoteRead}).Draw(t, "op")
	base := uint64(0)
	if g := m.tags[s]; g != nil {
		base = g.base
	}
	to := base + uint64(rapid.IntRange(-1, 20).Draw(t, "offset"))
	n := rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64()).Draw(t, "length")
	want := m.wantAccess(st, op, s, to, n)
	r, err := st.Acquire(op, s, to, n)
	if lecOf(err) != want {
		t.Fatalf("%v of STag %08x, %d octets at %x: %v, want %04x", op, s, n, to, err, want)
	}
	if err != nil || n == 0 {
		return
	}
	g := m.tags[s]
	g.refs++
	off := to - g.base
	m.refs = append(m.refs, &refModel{r, s, g.memory[off : off+n]})
}

func (m *machine) release(t *rapid.T) {
	if len(m.refs) == 0 {
		t.Skip("no references")
	}
	i := rapid.IntRange(0, len(m.refs)-1).Draw(t, "reference")
	r := m.refs[i]
	m.refs = append(m.refs[:i], m.refs[i+1:]...)
	g := m.tags[r.tag]
	g.refs--
	want := g.refs == 0 && !g.accessible()
	if got := r.ref.Release(); got != want {
		t.Fatalf("release of %08x in %v: last %v, want %v", r.tag, g.state, got, want)
	}
	if want && g.state == Closing {
		g.state = Released
	}
}

func (m *machine) register(t *rapid.T) {
	d, own := m.domains[rapid.IntRange(0, 1).Draw(t, "domain")], (*Stream)(nil)
	if rapid.Bool().Draw(t, "own") {
		own = m.stream(t)
		d = own.domain
	}
	r, memory := m.region(t)
	s, err := m.table.Register(d, own, r)
	switch {
	case own != nil && m.ended[own]:
		if err != ErrEnded {
			t.Fatalf("register for an ended stream: %v", err)
		}
		return
	case err != nil:
		t.Fatalf("register: %v", err)
	}
	m.fresh(t, s, &tagModel{state: Valid, domain: d, stream: own, base: r.Base, memory: memory, access: r.Access})
}

func (m *machine) deregister(t *rapid.T) {
	s := m.tag(t)
	g := m.tags[s]
	if g != nil && g.refs > 0 {
		t.Skip("would block")
	}
	err := m.table.Deregister(s)
	if ok := g != nil && !g.oneShot; ok != (err == nil) {
		t.Fatalf("deregister %08x: %v", s, err)
	}
	if err == nil {
		m.drop(s)
	}
}

func (m *machine) invalidateLocally(t *rapid.T) {
	s := m.tag(t)
	g := m.tags[s]
	quiet, err := m.table.Invalidate(s)
	if g == nil || g.oneShot {
		if err != ErrState {
			t.Fatalf("local invalidate %08x: %v", s, err)
		}
		return
	}
	if err != nil || quiet != (g.refs == 0) {
		t.Fatalf("local invalidate %08x: %v, %v", s, quiet, err)
	}
	g.state = Invalid
}

func (m *machine) reserve(t *rapid.T) {
	st := m.stream(t)
	s, err := st.Reserve()
	want := error(nil)
	switch {
	case m.ended[st]:
		want = ErrEnded
	case m.outstanding(st) >= modelWindow:
		want = ErrWindow
	}
	if err != want {
		t.Fatalf("reserve: %v, want %v", err, want)
	}
	if err == nil {
		m.fresh(t, s, &tagModel{state: Reserved, oneShot: true, domain: st.domain, stream: st})
	}
}

// step moves a one-shot STag on, as its driver and NIC 1 do.
func (m *machine) step(t *rapid.T) {
	st, s := m.stream(t), m.tag(t)
	g := m.tags[s]
	own := g != nil && g.oneShot && g.stream == st
	if g != nil && g.oneShot {
		st, own = g.stream, true // in most cases the right stream
	}
	check := func(what string, err error, ok bool) bool {
		if (err == nil) != ok {
			t.Fatalf("%s %08x: %v", what, s, err)
		}
		return ok
	}
	switch rapid.SampledFrom([]string{"bind", "advertised", "consume"}).Draw(t, "step") {
	case "bind":
		r, memory := m.region(t)
		if check("bind", st.Bind(s, r), own && g.state == Reserved) {
			g.state, g.base, g.memory, g.access = Bound, r.Base, memory, r.Access
		}
	case "advertised":
		if check("advertised", st.Advertised(s), own && g.state == Bound) {
			g.state = Advertised
		}
	case "consume":
		if check("consume", st.Consume(s), own && (g.state == Released || g.state == Revoked) && g.refs == 0) {
			m.drop(s)
		}
	}
}

// close is the peer's Close or Send with Invalidate.
func (m *machine) close(t *rapid.T) {
	st, s := m.stream(t), m.tag(t)
	g := m.tags[s]
	remote := rapid.Bool().Draw(t, "invalidate")
	unknown, cannot, call := 0x0100, 0x0209, st.Close
	if remote {
		unknown, call = 0x0209, st.Invalidate
	}
	want, next := 0xffff, Free
	switch {
	case g == nil, g.state == Closing, g.state == Released, g.state == Revoked, g.state == Invalid && !remote:
		want = unknown
	case !g.belongs(st):
		want = 0x0109
	case g.state == Advertised && g.refs > 0:
		next = Closing
	case g.state == Advertised:
		next = Released
	case g.oneShot || !remote:
		want = cannot
	case g.access&AccessRemoteInvalidate == 0:
		want = 0x0109
	default:
		next = Invalid
	}
	quiet, err := call(s)
	if lecOf(err) != want {
		t.Fatalf("close %08x, invalidate %v: %v, want %04x", s, remote, err, want)
	}
	if err != nil {
		return
	}
	if g.state = next; quiet != (g.refs == 0) {
		t.Fatalf("close %08x: released %v with %d references", s, quiet, g.refs)
	}
}

func (m *machine) revoke(t *rapid.T) {
	st, s := m.stream(t), m.tag(t)
	g := m.tags[s]
	quiet, err := st.Revoke(s)
	ok := g != nil && g.oneShot && g.stream == st && g.state != Closing && g.state != Released
	if ok != (err == nil) || ok && quiet != (g.refs == 0) {
		t.Fatalf("revoke %08x: %v, %v", s, quiet, err)
	}
	if ok {
		g.state = Revoked
	}
}

// end ends a stream, or frees what an ended one has left. It does so rarely, because a stream cannot be used after that.
func (m *machine) end(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "end") != 0 {
		t.Skip("another time")
	}
	st := m.stream(t)
	refs := 0
	for _, g := range m.tags {
		if g.stream != st {
			continue
		}
		refs += g.refs
		switch {
		case !g.oneShot:
			g.state = Invalid
		case g.state != Released:
			g.state = Revoked
		}
	}
	if quiet := st.End(); quiet != (refs == 0) {
		t.Fatalf("end: quiet %v with %d references", quiet, refs)
	}
	m.ended[st] = true
	if rapid.Bool().Draw(t, "free") {
		m.free(t, st)
	}
}

func (m *machine) free(t *rapid.T, st *Stream) {
	want := error(nil)
	for s, g := range m.tags {
		switch {
		case g.stream != st:
		case g.refs > 0:
			want = ErrBusy
		default:
			m.drop(s)
		}
	}
	if err := st.Free(); err != want {
		t.Fatalf("free: %v, want %v", err, want)
	}
}

// check checks what must hold after every step: states, windows, and the memory of references.
func (m *machine) check(t *rapid.T) {
	for s, g := range m.tags {
		if got := m.table.State(s); got != g.state {
			t.Fatalf("STag %08x is %v, want %v", s, got, g.state)
		}
	}
	for _, s := range m.stale {
		if got := m.table.State(s); got != Free {
			t.Fatalf("stale STag %08x is %v", s, got)
		}
	}
	for _, st := range m.streams {
		if got, want := st.Outstanding(), m.outstanding(st); got != want {
			t.Fatalf("%d outstanding, want %d", got, want)
		}
	}
	for _, r := range m.refs {
		if got := read(&r.ref, 0, r.ref.Len()); !bytes.Equal(got, r.want) {
			t.Fatalf("reference to %08x sees %v, want %v", r.tag, got, r.want)
		}
	}
}

// TestModel drives random lives of STags against the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		t.Repeat(map[string]func(*rapid.T){
			"":           m.check,
			"acquire":    m.acquire,
			"acquire 2":  m.acquire,
			"acquire 3":  m.acquire,
			"release":    m.release,
			"register":   m.register,
			"deregister": m.deregister,
			"invalidate": m.invalidateLocally,
			"reserve":    m.reserve,
			"reserve 2":  m.reserve,
			"step":       m.step,
			"step 2":     m.step,
			"step 3":     m.step,
			"close":      m.close,
			"close 2":    m.close,
			"revoke":     m.revoke,
			"end":        m.end,
		})
	})
}
