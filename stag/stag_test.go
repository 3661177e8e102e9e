package stag

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"testing"
)

// segs cuts memory of consecutive octets, from first on, into segments.
func segs(first byte, sizes ...int) [][]byte {
	var out [][]byte
	for _, n := range sizes {
		seg := make([]byte, n)
		for i := range seg {
			seg[i] = first
			first++
		}
		out = append(out, seg)
	}
	return out
}

// lecOf returns layer, error type and code of a violation as one number, or 0xffff if err is none.
func lecOf(err error) int {
	var e *Error
	if !errors.As(err, &e) {
		return 0xffff
	}
	l, t, c := e.Terminate()
	return int(l)<<12 | int(t)<<8 | int(c)
}

func read(r *Ref, off, n uint64) []byte { return bytes.Join(r.Append(nil, off, n), nil) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func advertise(st *Stream, r Region) STag {
	s := must(st.Reserve())
	if err := errors.Join(st.Bind(s, r), st.Advertised(s)); err != nil {
		panic(err)
	}
	return s
}

const all = AccessRemoteRead | AccessRemoteWrite | AccessLocalWrite | AccessRemoteInvalidate

// TestAccessOrder: iwarp.md §6 rows 11 to 14 and 18, in the order of RFC 5041 §8.
func TestAccessOrder(t *testing.T) {
	table := NewTable(100)
	d, foreign := table.NewDomain(), table.NewDomain()
	st, sibling, stranger := table.NewStream(d, 4), table.NewStream(d, 4), table.NewStream(foreign, 4)
	const base = 0x7f0000001000
	shared := must(table.Register(d, nil, Region{Segments: segs(0, 64), Base: base, Access: all}))
	own := must(table.Register(d, st, Region{Segments: segs(0, 64), Base: base, Access: all}))
	readOnly := must(table.Register(d, nil, Region{Segments: segs(0, 64), Base: base, Access: AccessRemoteRead}))
	writeOnly := must(table.Register(d, nil, Region{Segments: segs(0, 64), Base: base, Access: AccessRemoteWrite}))
	top := must(table.Register(d, nil, Region{Segments: segs(0, 64), Base: math.MaxUint64 - 63, Access: all}))
	gone := must(table.Register(d, nil, Region{Segments: segs(0, 64), Base: base, Access: all}))
	must(table.Invalidate(gone))
	for _, c := range []struct {
		name        string
		st          *Stream
		tag         STag
		to, n       uint64
		write, read int
	}{
		{"whole region", st, shared, base, 64, 0xffff, 0xffff},
		{"sibling, whole region", sibling, shared, base, 64, 0xffff, 0xffff},
		{"own region", st, own, base + 63, 1, 0xffff, 0xffff},
		{"up to 2^64", st, top, math.MaxUint64 - 63, 64, 0xffff, 0xffff},
		{"STag 0", st, 0, base, 1, 0x1100, 0x0100},
		{"index beyond the table", st, 0xffffff00, base, 1, 0x1100, 0x0100},
		{"index never used", st, 99 << 8, base, 1, 0x1100, 0x0100},
		{"key", st, shared ^ 1, base, 1, 0x1100, 0x0100},
		{"invalidated", st, gone, base, 1, 0x1100, 0x0100},
		{"invalidated before foreign", stranger, gone, base, 1, 0x1100, 0x0100},
		{"foreign domain", stranger, shared, base, 64, 0x1102, 0x0103},
		{"other stream", sibling, own, base, 64, 0x1102, 0x0103},
		{"foreign before rights", stranger, writeOnly, base, 64, 0x1102, 0x0103},
		{"rights to write", st, readOnly, base, 64, 0x1100, 0xffff},
		{"rights to read", st, writeOnly, base, 64, 0xffff, 0x0102},
		{"rights before bounds", st, writeOnly, base, 65, 0x1101, 0x0102},
		{"one too long", st, shared, base, 65, 0x1101, 0x0101},
		{"one too early", st, shared, base - 1, 1, 0x1101, 0x0101},
		{"one too late", st, shared, base + 64, 1, 0x1101, 0x0101},
		{"far too long", st, shared, base, math.MaxUint64 - base, 0x1101, 0x0101},
		{"TO wraps", st, shared, math.MaxUint64 - 4095, 8192, 0x1103, 0x0104},
		{"TO wraps into the region", st, shared, math.MaxUint64, base + 2, 0x1103, 0x0104},
		{"TO wraps at the top", st, top, math.MaxUint64 - 63, 65, 0x1103, 0x0104},
		{"zero length checks nothing", stranger, gone ^ 1, math.MaxUint64, 0, 0xffff, 0xffff},
	} {
		for op, want := range map[Op]int{RemoteWrite: c.write, RemoteRead: c.read} {
			r, err := c.st.Acquire(op, c.tag, c.to, c.n)
			if lecOf(err) != want {
				t.Errorf("%s, %v: %v, want %04x", c.name, op, err, want)
			}
			if err == nil && r.Len() != c.n {
				t.Errorf("%s, %v: %d octets", c.name, op, r.Len())
			}
			r.Release()
		}
	}
	if _, err := st.Acquire(ReadResponse, readOnly, base, 1); lecOf(err) != 0x1100 {
		t.Errorf("Read Response without local write: %v", err)
	}
}

func TestMemoryOfSegments(t *testing.T) {
	table := NewTable(10)
	d := table.NewDomain()
	st := table.NewStream(d, 1)
	for _, sizes := range [][]int{{40}, {10, 30}, {0, 10, 0, 0, 5, 25, 0}, {1, 1, 38}} {
		s := must(table.Register(d, nil, Region{Segments: segs(100, sizes...), Base: 1 << 32, Access: all}))
		for to := range uint64(40) {
			for n := uint64(1); n <= 40-to; n++ {
				r := must(st.Acquire(RemoteRead, s, 1<<32+to, n))
				want := segs(100+byte(to), int(n))[0]
				if got := read(&r, 0, n); !bytes.Equal(got, want) {
					t.Fatalf("%v: %d octets at %d: %v", sizes, n, to, got)
				}
				if half := n / 2; !bytes.Equal(read(&r, half, n-half), want[half:]) || len(r.Append(nil, n, 0)) != 0 {
					t.Fatalf("%v: second half of %d octets at %d", sizes, n, to)
				}
				for _, seg := range r.Append(nil, 0, n) {
					if len(seg) == 0 || cap(seg) > 40 {
						t.Fatalf("segment of %d octets", len(seg))
					}
				}
				r.Release()
			}
		}
	}
}

// TestOneShotLife: one-shot.md §4 and §5.1, and X1, X2 of §6.
func TestOneShotLife(t *testing.T) {
	table := NewTable(10)
	st := table.NewStream(table.NewDomain(), 1)
	region := Region{Segments: segs(0, 8, 8), Access: AccessRemoteRead}
	s := must(st.Reserve())
	expect := func(want State, access bool) {
		t.Helper()
		if got := table.State(s); got != want {
			t.Fatalf("state %v, want %v", got, want)
		}
		r, err := st.Acquire(RemoteRead, s, 0, 16)
		if (err == nil) != access || err != nil && lecOf(err) != 0x0100 {
			t.Fatalf("%v: access %v", want, err)
		}
		r.Release()
	}
	expect(Reserved, false)
	if err := st.Advertised(s); err != ErrState {
		t.Errorf("advertised before bound: %v", err)
	}
	if err := st.Bind(s, region); err != nil {
		t.Fatal(err)
	}
	expect(Bound, true)
	if err := st.Bind(s, region); err != ErrState {
		t.Errorf("bound twice: %v", err)
	}
	if err := st.Advertised(s); err != nil {
		t.Fatal(err)
	}
	expect(Advertised, true)
	if _, err := st.Reserve(); err != ErrWindow {
		t.Errorf("window of 1: %v", err)
	}
	r1 := must(st.Acquire(RemoteRead, s, 0, 8))
	r2 := must(st.Acquire(RemoteRead, s, 8, 8))
	if released, err := st.Close(s); released || err != nil {
		t.Fatalf("close with two Responses queued: %v, %v", released, err)
	}
	expect(Closing, false)
	if st.Outstanding() != 0 {
		t.Error("a closing STag counts against the window")
	}
	if r1.Release() {
		t.Error("first of two references was the last")
	}
	if err := st.Consume(s); err != ErrState {
		t.Errorf("consumed while closing: %v", err)
	}
	if got := read(&r2, 0, 8); !bytes.Equal(got, segs(8, 8)[0]) {
		t.Errorf("memory of a closing STag: %v", got)
	}
	if !r2.Release() {
		t.Error("last reference was not the last")
	}
	expect(Released, false)
	if err := st.Consume(s); err != nil {
		t.Fatal(err)
	}
	expect(Free, false)
	if err := st.Consume(s); err != ErrState {
		t.Errorf("consumed twice: %v", err)
	}
}

// TestCloseErrors: C1 to C5 of one-shot.md §6, and the invalidations of iwarp.md §6.
func TestCloseErrors(t *testing.T) {
	table := NewTable(100)
	d := table.NewDomain()
	st, sibling, stranger := table.NewStream(d, 8), table.NewStream(d, 8), table.NewStream(table.NewDomain(), 8)
	region := Region{Segments: segs(0, 16), Access: all}
	advertised := advertise(st, region)
	reserved := must(st.Reserve())
	bound := must(st.Reserve())
	st.Bind(bound, region)
	closing := advertise(st, region)
	held := must(st.Acquire(RemoteRead, closing, 0, 1))
	st.Close(closing)
	released := advertise(st, region)
	st.Close(released)
	free := advertise(st, region)
	st.Close(free)
	st.Consume(free)
	revoked := advertise(st, region)
	st.Revoke(revoked)
	conventional := must(table.Register(d, nil, region))
	foreign := must(table.Register(stranger.Domain(), nil, region))
	protected := must(table.Register(d, nil, Region{Segments: segs(0, 16), Base: 0, Access: all &^ AccessRemoteInvalidate}))
	invalid := must(table.Register(d, nil, region))
	table.Invalidate(invalid)
	for _, c := range []struct {
		name              string
		st                *Stream
		tag               STag
		close, invalidate int
	}{
		{"C1 STag 0", st, 0, 0x0100, 0x0209},
		{"C1 index unknown", st, 99 << 8, 0x0100, 0x0209},
		{"C1 index beyond the table", st, 0xffffff01, 0x0100, 0x0209},
		{"C1 key", st, advertised ^ 1, 0x0100, 0x0209},
		{"C2 CLOSING", st, closing, 0x0100, 0x0209},
		{"C2 RELEASED", st, released, 0x0100, 0x0209},
		{"C2 FREE", st, free, 0x0100, 0x0209},
		{"REVOKED", st, revoked, 0x0100, 0x0209},
		{"C3 other stream", sibling, advertised, 0x0109, 0x0109},
		{"C3 other domain", stranger, advertised, 0x0109, 0x0109},
		{"C3 other domain, conventional", st, foreign, 0x0109, 0x0109},
		{"C4 conventional", st, conventional, 0x0209, 0xffff},
		{"C4 conventional, not to be invalidated", st, protected, 0x0209, 0x0109},
		{"conventional, invalid", st, invalid, 0x0100, 0xffff},
		{"C5 RESERVED", st, reserved, 0x0209, 0x0209},
		{"C5 BOUND", st, bound, 0x0209, 0x0209},
		{"ADVERTISED by Invalidate", st, advertised, 0xfffe, 0xffff},
	} {
		if c.close != 0xfffe {
			if _, err := c.st.Close(c.tag); lecOf(err) != c.close {
				t.Errorf("%s: close: %v, want %04x", c.name, err, c.close)
			}
		}
		if _, err := c.st.Invalidate(c.tag); lecOf(err) != c.invalidate {
			t.Errorf("%s: invalidate: %v, want %04x", c.name, err, c.invalidate)
		}
	}
	if got := table.State(advertised); got != Released {
		t.Errorf("invalidated one-shot STag is %v", got)
	}
	if got := table.State(conventional); got != Invalid {
		t.Errorf("invalidated region is %v", got)
	}
	held.Release()
}

// TestDeregisterWaits: Deregister returns when the last of several references is released, not before.
func TestDeregisterWaits(t *testing.T) {
	table := NewTable(10)
	d := table.NewDomain()
	st := table.NewStream(d, 1)
	for _, own := range []*Stream{nil, st} {
		s := must(table.Register(d, own, Region{Segments: segs(0, 16), Base: 0, Access: all}))
		r1 := must(st.Acquire(RemoteWrite, s, 0, 16))
		r2 := must(st.Acquire(RemoteRead, s, 0, 16))
		done := make(chan error)
		go func() { done <- table.Deregister(s) }()
		for table.State(s) != deregistering { // the call has begun to wait
			runtime.Gosched()
		}
		if err := table.Deregister(s); err != ErrState {
			t.Errorf("second Deregister: %v", err)
		}
		r1.Release()
		select {
		case <-done:
			t.Error("did not wait for the last reference")
		default:
		}
		if !r2.Release() {
			t.Error("last reference was not the last")
		}
		if err := <-done; err != nil || table.State(s) != Free {
			t.Errorf("%v, %v", err, table.State(s))
		}
	}
}

// TestStreamEnd: R5 of one-shot.md §5.4.
func TestStreamEnd(t *testing.T) {
	table := NewTable(1000)
	d := table.NewDomain()
	st := table.NewStream(d, 8)
	region := Region{Segments: segs(0, 16), Access: all}
	tags := map[State]STag{}
	tags[Reserved] = must(st.Reserve())
	tags[Bound] = must(st.Reserve())
	st.Bind(tags[Bound], region)
	tags[Advertised] = advertise(st, region)
	tags[Closing] = advertise(st, region)
	r := must(st.Acquire(RemoteRead, tags[Closing], 0, 1))
	st.Close(tags[Closing])
	tags[Released] = advertise(st, region)
	st.Close(tags[Released])
	tags[Valid] = must(table.Register(d, st, region))
	shared := must(table.Register(d, nil, region))
	if err := st.Free(); err != ErrState {
		t.Errorf("freed before the end: %v", err)
	}
	if st.End() {
		t.Error("quiet with a reference")
	}
	for from, tag := range tags {
		want := map[State]State{Released: Released, Valid: Invalid}[from]
		if want == Free {
			want = Revoked
		}
		if got := table.State(tag); got != want {
			t.Errorf("%v became %v", from, got)
		}
	}
	if st.Outstanding() != 0 {
		t.Errorf("%d outstanding", st.Outstanding())
	}
	if table.State(shared) != Valid {
		t.Error("region of the domain ended with a stream")
	}
	if _, err := st.Reserve(); err != ErrEnded {
		t.Errorf("Reserve: %v", err)
	}
	if _, err := table.Register(d, st, region); err != ErrEnded {
		t.Errorf("Register: %v", err)
	}
	if err := st.Free(); err != ErrBusy {
		t.Errorf("freed under a reference: %v", err)
	}
	if !r.Release() || !st.End() {
		t.Error("not quiet after the last reference")
	}
	if err := st.Free(); err != nil {
		t.Error(err)
	}
	for from, tag := range tags {
		if got := table.State(tag); got != Free {
			t.Errorf("%v is %v after Free", from, got)
		}
	}
}

func TestRevoke(t *testing.T) {
	table := NewTable(10)
	st, other := table.NewStream(table.NewDomain(), 2), table.NewStream(table.NewDomain(), 2)
	s := advertise(st, Region{Segments: segs(0, 16), Access: all})
	r := must(st.Acquire(RemoteRead, s, 0, 1))
	if _, err := other.Revoke(s); err != ErrState {
		t.Errorf("by another stream: %v", err)
	}
	for range 2 {
		if quiet, err := st.Revoke(s); quiet || err != nil {
			t.Errorf("under a reference: %v, %v", quiet, err)
		}
	}
	if err := st.Consume(s); err != ErrBusy {
		t.Errorf("consumed under a reference: %v", err)
	}
	if !r.Release() {
		t.Error("last reference was not the last")
	}
	if err := st.Consume(s); err != nil {
		t.Error(err)
	}
	s = advertise(st, Region{Segments: segs(0, 16), Access: all})
	st.Close(s)
	if _, err := st.Revoke(s); err != ErrState {
		t.Errorf("after the close: %v", err)
	}
}

// TestTableFull: all slots are used, none twice, and index 0 is not one of them.
func TestTableFull(t *testing.T) {
	table := NewTable(chunkSlots + 10) // two chunks
	d := table.NewDomain()
	st := table.NewStream(d, math.MaxInt)
	seen := map[STag]bool{}
	for {
		s, err := st.Reserve()
		if err != nil {
			if err != ErrTableFull {
				t.Fatal(err)
			}
			break
		}
		if s.index() == 0 || seen[s] {
			t.Fatalf("STag %08x", s)
		}
		seen[s] = true
	}
	if len(seen) != 2*chunkSlots-1 {
		t.Errorf("%d STags", len(seen))
	}
	for _, own := range []*Stream{nil, st} {
		if _, err := table.Register(d, own, Region{}); err != ErrTableFull {
			t.Errorf("Register: %v", err)
		}
	}
	for s := range seen {
		st.Revoke(s)
		if err := st.Consume(s); err != nil {
			t.Fatal(err)
		}
	}
	st.End()
	if err := st.Free(); err != nil || len(table.free) != len(seen) {
		t.Errorf("%v, %d slots came back", err, len(table.free))
	}
}

// TestKeyWrap: an index is used 256 times before an STag of it comes again, and a stream uses
// others in between.
func TestKeyWrap(t *testing.T) {
	table := NewTable(1000)
	st := table.NewStream(table.NewDomain(), 1)
	first := STag(0)
	for i := 0; ; i++ {
		s := must(st.Reserve())
		if first == 0 {
			first = s
		} else if s == first {
			if i != 256*stockBatch {
				t.Errorf("STag came again after %d", i)
			}
			return
		}
		st.Revoke(s)
		st.Consume(s)
	}
}

func TestRefMisuse(t *testing.T) {
	table := NewTable(10)
	d := table.NewDomain()
	st := table.NewStream(d, 1)
	s := must(table.Register(d, nil, Region{Segments: segs(0, 16), Base: 0, Access: all}))
	r := must(st.Acquire(RemoteRead, s, 0, 16))
	twice := r
	r.Release()
	for name, f := range map[string]func(){
		"released twice":          func() { r.Release() },
		"copy released":           func() { twice.Release() },
		"octets outside":          func() { twice.Append(nil, 8, 9) },
		"octets outside, wrapped": func() { twice.Append(nil, 8, math.MaxUint64) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestNoAllocations(t *testing.T) {
	table := NewTable(1000)
	st := table.NewStream(table.NewDomain(), 64)
	peer := NewPeer(64)
	region := Region{Segments: segs(0, 16, 16, 16), Access: all}
	pieces := make([][]byte, 0, 8)
	life := func() {
		s, _ := st.Reserve()
		st.Bind(s, region)
		st.Advertised(s)
		r, _ := st.Acquire(RemoteRead, s, 8, 32)
		pieces = r.Append(pieces[:0], 0, 32)
		st.Close(s)
		r.Release()
		st.Consume(s)
		peer.Advertise(s)
		at, _ := peer.PostRead(s)
		peer.ReadDone(at, s)
		peer.PostClose(s)
		peer.Closed(at, s)
	}
	for range 2 * stockMax { // every slot of the stock has its list of segment ends
		life()
	}
	if n := testing.AllocsPerRun(200, life); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A region without memory has a length, rights and an end like other regions.
func TestRegionWithoutMemory(t *testing.T) {
	table := NewTable(16)
	d := table.NewDomain()
	st := table.NewStream(d, 0)
	s, err := table.Register(d, st, Region{Length: 1000, Base: 24, Access: AccessRemoteRead})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		op    Op
		to, n uint64
		ok    bool
	}{
		{RemoteRead, 24, 1000, true},
		{RemoteRead, 1023, 1, true},
		{RemoteRead, 24, 1001, false},
		{RemoteRead, 23, 1, false},
		{RemoteRead, 1024, 1, false},
		{RemoteWrite, 24, 1, false},
	} {
		r, err := st.Acquire(c.op, s, c.to, c.n)
		if (err == nil) != c.ok || r.Len() != c.n && c.ok {
			t.Errorf("%v of %d octets at %d: %d, %v", c.op, c.n, c.to, r.Len(), err)
		}
		r.Release()
	}
	if _, err := table.Register(d, st, Region{Length: 1000, Base: 1<<64 - 100}); err != ErrRegion {
		t.Errorf("a region that wraps: %v", err)
	}
	st.End()
	if _, err := st.Acquire(RemoteRead, s, 24, 1); err == nil {
		t.Error("access after the end of the stream")
	}
	if err := st.Free(); err != nil {
		t.Error(err)
	}
}

// TestOwner: the owner of an STag is the one of its current use, only its own stream knows it, and Disown returns it once.
func TestOwner(t *testing.T) {
	table := NewTable(300)
	d := table.NewDomain()
	st, other := table.NewStream(d, 2), table.NewStream(d, 2)
	one, two, three := new(int), new(int), new(int)
	s := must(st.Grant(Region{Segments: segs(0, 16), Access: all, Owner: one}))
	w := must(table.Register(d, st, Region{Segments: segs(0, 16), Access: all, Owner: two}))
	if st.Owner(s) != one || st.Owner(w) != two || other.Owner(s) != nil || st.Owner(s+1) != nil || st.Owner(0) != nil || st.Owner(0xffffff00) != nil {
		t.Errorf("owners %v and %v; of others %v, %v", st.Owner(s), st.Owner(w), other.Owner(s), st.Owner(s+1))
	}
	if other.Disown(w) != nil || st.Disown(w) != two || st.Disown(w) != nil || st.Owner(w) != nil {
		t.Error("an owner is given to another stream, or twice")
	}
	if _, err := st.Revoke(s); err != nil {
		t.Fatal(err)
	}
	if err := st.Consume(s); err != nil || st.Owner(s) != nil {
		t.Errorf("after the end of the STag its owner is %v, %v", st.Owner(s), err)
	}
	for range 2 * stockMax { // every free slot has its turn
		r := must(st.Reserve())
		if st.Owner(r) != nil {
			t.Fatalf("a new STag has the owner %v", st.Owner(r))
		}
		if _, err := st.Revoke(r); err != nil {
			t.Fatal(err)
		}
		if err := st.Consume(r); err != nil {
			t.Fatal(err)
		}
	}
	s = must(st.Grant(Region{Segments: segs(0, 16), Access: all, Owner: three}))
	taken := map[STag]any{}
	take := func(s STag, o any) { taken[s] = o }
	st.TakeOwners(take)
	if len(taken) != 1 || taken[s] != three {
		t.Errorf("taken: %v", taken)
	}
	clear(taken)
	if st.TakeOwners(take); len(taken) != 0 {
		t.Errorf("taken twice: %v", taken)
	}
}

// Grant is Reserve and Bind: the memory is accessible, and the STag counts against the window.
func TestGrant(t *testing.T) {
	table := NewTable(300)
	d := table.NewDomain()
	st, other := table.NewStream(d, 1), table.NewStream(d, 1)
	if _, err := st.Grant(Region{Segments: segs(0, 2), Base: math.MaxUint64, Access: all}); err != ErrRegion {
		t.Errorf("a region that wraps: %v", err)
	}
	s := must(st.Grant(Region{Segments: segs(5, 16), Access: AccessRemoteRead}))
	if table.State(s) != Bound || st.Outstanding() != 1 {
		t.Errorf("%v, %d outstanding", table.State(s), st.Outstanding())
	}
	if _, err := st.Grant(Region{Segments: segs(0, 16), Access: all}); err != ErrWindow {
		t.Errorf("beyond the window: %v", err)
	}
	r, err := st.Acquire(RemoteRead, s, 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Append(nil, 0, 4); len(got) != 1 || !bytes.Equal(got[0], segs(5, 16)[0][2:6]) {
		t.Errorf("%v", got)
	}
	r.Release()
	if _, err := st.Acquire(RemoteWrite, s, 2, 4); lecOf(err) == 0xffff {
		t.Error("a right that was not given")
	}
	if _, err := other.Acquire(RemoteRead, s, 2, 4); err == nil {
		t.Error("another stream of the domain has access")
	}
	for seen := map[STag]bool{}; len(seen) < 4*chunkSlots; { // every slot is used several times
		if seen[s] {
			t.Fatalf("%#x is granted again", s)
		}
		seen[s] = true
		if _, err := st.Revoke(s); err != nil {
			t.Fatal(err)
		}
		if err := st.Consume(s); err != nil {
			t.Fatal(err)
		}
		s = must(st.Grant(Region{Segments: segs(5, 16), Access: AccessRemoteRead}))
	}
	st.End()
	if got := table.State(s); got != Revoked {
		t.Errorf("after the end of its stream: %v", got)
	}
	if _, err := st.Grant(Region{Segments: segs(0, 16), Access: all}); err != ErrEnded {
		t.Errorf("after the end: %v", err)
	}
	if err := st.Free(); err != nil || table.State(s) != Free {
		t.Errorf("when the stream is freed: %v, %v", table.State(s), err)
	}
}
