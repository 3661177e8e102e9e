package manager

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"oneshot/transport/rdma"
)

// region is registered memory that nobody serves.
type region struct {
	rdma.Region
	b []byte
}

// shape is a transfer out of a test's memory.
type shape struct {
	limits  Limits
	locals  []rdma.SGE
	remotes []Remote
}

// drawShape draws a transfer between parts of local, which may touch one another, and of a
// remote memory of the same size, whose tagged offsets begin at base.
func drawShape(t *rapid.T, local []byte, base uint64) shape {
	regions := []rdma.Region{&region{b: local}, &region{b: local}}
	s := shape{limits: Limits{
		Bytes:    rapid.Int64Range(1, 40).Draw(t, "bytes"),
		Elements: rapid.IntRange(1, 4).Draw(t, "elements"),
	}}
	total, at := 0, 0
	for range rapid.IntRange(0, 8).Draw(t, "locals") {
		at += rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "gap")
		n := rapid.IntRange(0, 20).Draw(t, "n")
		s.locals = append(s.locals, rdma.SGE{
			Bytes:  local[at : at+n : at+n],
			Region: regions[rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "region")],
		})
		at, total = at+n, total+n
	}
	to := base
	for left := total; left > 0; {
		to += rapid.SampledFrom([]uint64{0, 0, 1, 9}).Draw(t, "remote gap")
		n := rapid.IntRange(0, left).Draw(t, "remote n")
		if len(s.remotes) == 6 {
			n = left
		}
		s.remotes = append(s.remotes, Remote{
			STag: rapid.SampledFrom([]rdma.STag{1, 1, 2}).Draw(t, "stag"), Offset: to, Len: uint64(n),
		})
		to, left = to+uint64(n), left-n
	}
	return s
}

// fewest is the smallest number of descriptors that transfer s, found by trying all.
func fewest(s shape) int {
	type octet struct {
		addr   uintptr
		region rdma.Region
		stag   rdma.STag
		to     uint64
	}
	var all []octet
	for _, e := range s.locals {
		for i := range e.Bytes {
			all = append(all, octet{addr: uintptr(unsafe.Pointer(&e.Bytes[i])), region: e.Region})
		}
	}
	k := 0
	for _, r := range s.remotes {
		for i := range r.Len {
			all[k].stag, all[k].to = r.STag, r.Offset+i
			k++
		}
	}
	best := make([]int, len(all)+1) // to transfer the first i octets
	for end := 1; end <= len(all); end++ {
		best[end] = math.MaxInt
		elements := 1
		for begin := end - 1; begin >= 0; begin-- {
			if begin < end-1 {
				a, b := all[begin], all[begin+1]
				if a.stag != b.stag || a.to+1 != b.to {
					break
				}
				if a.region != b.region || a.addr+1 != b.addr {
					elements++
				}
			}
			if elements > s.limits.Elements || int64(end-begin) > s.limits.Bytes {
				break
			}
			best[end] = min(best[end], best[begin]+1)
		}
	}
	return best[len(all)]
}

// remoteMemory does what work requests ask for.
type remoteMemory struct {
	base  uint64
	bytes []byte
	times []int // each octet was moved
}

func (m *remoteMemory) do(t *rapid.T, w *rdma.Work, l Limits) {
	if len(w.SGL) == 0 || len(w.SGL) > l.Elements {
		t.Fatalf("%d elements", len(w.SGL))
	}
	at := w.RemoteOffset - m.base
	total := 0
	for _, e := range w.SGL {
		if w.Op == rdma.OpWrite {
			copy(m.bytes[at:], e.Bytes)
		} else {
			copy(e.Bytes, m.bytes[at:])
		}
		for i := range e.Bytes {
			m.times[int(at)+i]++
		}
		at += uint64(len(e.Bytes))
		total += len(e.Bytes)
	}
	if int64(total) > l.Bytes || total == 0 {
		t.Fatalf("%d bytes", total)
	}
}

func fill(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

// TestEveryByteOnce: whatever the limits and however often it has to stop, every octet moves
// once, to its place, in as few descriptors as can be, and Count has said how many.
func TestEveryByteOnce(t *testing.T) {
	const size, base = 300, 1 << 40
	rapid.Check(t, func(t *rapid.T) {
		local := fill(make([]byte, size), 1)
		s := drawShape(t, local, base)
		op := rapid.SampledFrom([]rdma.Opcode{rdma.OpRead, rdma.OpWrite}).Draw(t, "op")
		there := &remoteMemory{base: base, bytes: fill(make([]byte, 2*size), 99), times: make([]int, 2*size)}
		var here, sent []byte
		gather := func() (b []byte) {
			for _, e := range s.locals {
				b = append(b, e.Bytes...)
			}
			return b
		}
		collect := func() (b []byte) {
			for _, r := range s.remotes {
				b = append(b, there.bytes[r.Offset-base:r.Offset-base+r.Len]...)
			}
			return b
		}
		untouched := slices.Clone(local)
		sent = gather()
		if op == rdma.OpRead {
			sent = collect()
		}

		var r Request
		if err := r.Init(op, s.limits, s.locals, s.remotes); err != nil {
			t.Fatal(err)
		}
		want := fewest(s)
		if r.Count() != want {
			t.Fatalf("%d descriptors, %d would do: %+v", r.Count(), want, s)
		}
		done := 0
		for r.Left() > 0 {
			ws := make([]rdma.Work, rapid.IntRange(0, 3).Draw(t, "works"))
			sgl := make([]rdma.SGE, s.limits.Elements+rapid.IntRange(0, 5).Draw(t, "room"))
			n, used := r.Fill(ws, sgl)
			if n == 0 && len(ws) > 0 || used > len(sgl) {
				t.Fatalf("%d works, %d elements used of %d", n, used, len(sgl))
			}
			for i := range ws[:n] {
				if ws[i].Op != op {
					t.Fatal(ws[i].Op)
				}
				there.do(t, &ws[i], s.limits)
			}
			done += n
		}
		if done != want {
			t.Fatalf("%d descriptors were filled of %d", done, want)
		}
		here = gather()
		if op == rdma.OpWrite {
			here = collect()
		}
		if !bytes.Equal(here, sent) {
			t.Fatalf("arrived % x, sent % x", here, sent)
		}
		moved := make([]int, len(there.times))
		for _, x := range s.remotes {
			for i := range x.Len {
				moved[x.Offset-base+i]++
			}
		}
		if !slices.Equal(moved, there.times) {
			t.Fatal("octets were moved more than once, or others than were asked for")
		}
		for _, e := range s.locals { // what is not of the transfer stays
			copy(untouched[uintptr(unsafe.Pointer(unsafe.SliceData(e.Bytes)))-uintptr(unsafe.Pointer(&local[0])):], e.Bytes)
		}
		if !bytes.Equal(local, untouched) {
			t.Fatal("bytes beside the transfer have changed")
		}
	})
}

// A transfer above 4 GiB, of address space that is never touched.
func TestLarge(t *testing.T) {
	const size = 5<<30 + 3
	b, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	reg := &region{b: b}
	locals := []rdma.SGE{{Bytes: b[:3<<30], Region: reg}, {Bytes: b[3<<30:], Region: reg}}
	var r Request
	if err := r.Init(rdma.OpWrite, Limits{Bytes: 1 << 31, Elements: 1}, locals, []Remote{{STag: 1, Offset: 7, Len: size}}); err != nil {
		t.Fatal(err)
	}
	var ws [4]rdma.Work
	n, _ := r.Fill(ws[:], make([]rdma.SGE, 4))
	if r.Count() != 3 || n != 3 || len(ws[2].SGL[0].Bytes) != size-2<<31 || ws[2].RemoteOffset != 7+2<<31 {
		t.Errorf("%d descriptors, %d filled, the last of %d bytes at %#x", r.Count(), n, len(ws[2].SGL[0].Bytes), ws[2].RemoteOffset)
	}
}

func TestInitRefuses(t *testing.T) {
	b := make([]byte, 10)
	one := []rdma.SGE{{Bytes: b}}
	l := Limits{Bytes: 4, Elements: 2}
	for name, err := range map[string]error{
		"lengths differ": new(Request).Init(rdma.OpRead, l, one, []Remote{{1, 0, 9}}),
		"offset wraps":   new(Request).Init(rdma.OpRead, l, one, []Remote{{1, math.MaxUint64 - 8, 10}}),
		"no bytes":       new(Request).Init(rdma.OpRead, Limits{0, 2}, one, []Remote{{1, 0, 10}}),
		"no elements":    new(Request).Init(rdma.OpRead, Limits{4, 0}, one, []Remote{{1, 0, 10}}),
		"a Send":         new(Request).Init(rdma.OpSend, l, one, []Remote{{1, 0, 10}}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var r Request
	if err := r.Init(rdma.OpRead, l, one, []Remote{{1, 0, 10}}); err != nil {
		t.Fatal(err)
	}
	if n, used := r.Fill(make([]rdma.Work, 3), nil); n != 0 || used != 0 || r.Left() != 3 {
		t.Errorf("without room for elements %d descriptors are filled, %d are left", n, r.Left())
	}
	if err := new(Request).Init(rdma.OpRead, l, one, []Remote{{1, math.MaxUint64 - 9, 10}}); err != nil {
		t.Errorf("the last ten octets there are: %v", err)
	}
}

// step is a part of what a queue posts: an octet, or a message.
type step struct {
	stag    rdma.STag
	at      uint64
	local   uintptr
	message uint64
}

// steps appends those of works.
func steps(list []step, ws []rdma.Work) []step {
	for _, w := range ws {
		if w.Op == rdma.OpSend {
			list = append(list, step{message: uint64(w.STag)})
			continue
		}
		at := w.RemoteOffset
		for _, e := range w.SGL {
			for i := range e.Bytes {
				list = append(list, step{w.RemoteSTag, at, uintptr(unsafe.Pointer(&e.Bytes[i])), 0})
				at++
			}
		}
	}
	return list
}

// TestQueue drives random items through a queue pair of random room, and looks at the order
// of what is posted, at the room, and that everything ends. Items often continue each other.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 12).Draw(t, "room")
		var q Queue
		q.Init(room)
		const size = 300
		type posted struct {
			it     *Item
			signal bool
		}
		var inFlight []posted
		var want, got []step
		left, pushed := 0, 0
		memory, base := make([]byte, 20*size), uint64(0)
		limits := map[*Item]Limits{}
		push := func(t *rapid.T) {
			pushed++
			it := &Item{ID: uint64(pushed)}
			s := drawShape(t, memory[:size], base)
			if rapid.Bool().Draw(t, "continues") && len(s.locals) > 0 {
				n := uint64(0)
				for _, e := range s.locals {
					n += uint64(len(e.Bytes))
				}
				s.remotes = []Remote{{STag: 1, Offset: base, Len: n}}
				base += n
				if len(memory) > 2*size && rapid.Bool().Draw(t, "there") {
					last := s.locals[len(s.locals)-1].Bytes
					memory = memory[address(last)-address(memory)+uintptr(len(last)):]
				}
			}
			if err := it.Init(rdma.OpWrite, s.limits, s.locals, s.remotes); err != nil {
				t.Fatal(err)
			}
			it.HasMessage = it.Count() == 0 || rapid.Bool().Draw(t, "message")
			it.Message = rdma.Work{Op: rdma.OpSend, STag: rdma.STag(it.ID)}
			if rapid.Bool().Draw(t, "inline") {
				it.Message.Flags = rdma.Inline
			}
			it.Counted = rapid.Bool().Draw(t, "counted")
			ws := make([]rdma.Work, it.Count())
			twin := it.Request
			n, _ := twin.Fill(ws, make([]rdma.SGE, s.limits.Elements*(it.Count()+1)))
			want = steps(want, ws[:n])
			if it.HasMessage {
				want = steps(want, []rdma.Work{it.Message})
			}
			items[it.ID], limits[it] = it, s.limits
			q.Push(it)
			left++
		}
		ended := map[*Item]bool{}
		end := func(t *rapid.T, it *Item) {
			for ; it != nil; it = it.Joined() {
				if ended[it] {
					t.Fatalf("item %d ends twice", it.ID)
				}
				ended[it] = true
				left--
			}
		}
		unsignalled := func() (n int) { // behind the last one that is signalled
			for i := len(inFlight); i > 0 && !inFlight[i-1].signal; i-- {
				n++
			}
			return n
		}
		clear(items)
		t.Repeat(map[string]func(*rapid.T){
			"push": push,
			"post": func(t *rapid.T) {
				ws := make([]rdma.Work, rapid.IntRange(1, 8).Draw(t, "works"))
				n := q.Fill(ws, make([]rdma.SGE, 4+rapid.IntRange(0, 9).Draw(t, "elements")))
				got = steps(got, ws[:n])
				for _, w := range ws[:n] {
					if (w.ID == Unsignaled) != (w.Flags&rdma.Signaled == 0) {
						t.Fatalf("ID %#x, flags %v", w.ID, w.Flags)
					}
					inFlight = append(inFlight, posted{items[w.ID], w.Flags&rdma.Signaled != 0})
					if w.ID == Unsignaled || w.Op == rdma.OpSend {
						continue
					}
					bytes := 0
					for _, e := range w.SGL {
						bytes += len(e.Bytes)
					}
					if l := limits[items[w.ID]]; len(w.SGL) > l.Elements || int64(bytes) > l.Bytes {
						t.Fatalf("a descriptor of %d bytes in %d elements, %+v are allowed", bytes, len(w.SGL), l)
					}
				}
				brief := 0
				for it := q.Over(); it != nil; it = q.Over() {
					brief++
					if it.Count() > 0 || it.Message.Flags&rdma.Inline == 0 || it.Counted {
						t.Fatalf("item %d is over before its end", it.ID)
					}
					end(t, it)
				}
				if n > 0 && brief == 0 && !inFlight[len(inFlight)-1].signal {
					t.Fatal("the last work request of a batch is not signalled")
				}
				if len(inFlight) > room {
					t.Fatalf("%d work requests posted in a queue of %d", len(inFlight), room)
				}
				if silent := unsignalled(); silent == room {
					t.Fatalf("all %d work requests that there is room for are posted, and none is signalled", room)
				}
			},
			"complete": func(t *rapid.T) {
				for i, p := range inFlight {
					if p.signal {
						inFlight = inFlight[i+1:]
						if q.Completed(p.it) {
							end(t, p.it)
						}
						return
					}
				}
				t.Skip("nothing is in flight")
			},
			"": func(t *rapid.T) {
				if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
					t.Fatalf("posted %x, want %x", got, want)
				}
				if q.Empty() && len(got) != len(want) {
					t.Fatalf("empty after %d of %d", len(got), len(want))
				}
				if q.Empty() && len(inFlight) == unsignalled() && left != 0 {
					t.Fatalf("%d items are left", left)
				}
			},
		})
		waiting := map[*Item]bool{}
		for _, p := range inFlight {
			if p.signal {
				waiting[p.it] = true
			}
		}
		q.Abandon(func(it *Item) { end(t, it) })
		for _, p := range inFlight {
			if p.signal && q.Completed(p.it) {
				delete(waiting, p.it)
				end(t, p.it)
			}
		}
		if left != 0 || len(waiting) != 0 || !q.Empty() {
			t.Fatalf("%d items are left, %d wait", left, len(waiting))
		}
	})
}

// An inline message by itself is over when it is posted. One in so many is signalled, and gives the room of those before it back.
func TestInlineMessages(t *testing.T) {
	const room, messages = 16, 160
	var q Queue
	q.Init(room)
	signalled := 0
	for i := range messages {
		it := &Item{ID: uint64(i), HasMessage: true, Message: rdma.Work{Op: rdma.OpSend, Flags: rdma.Inline}}
		q.Push(it)
		var ws [1]rdma.Work
		if n := q.Fill(ws[:], nil); n != 1 {
			t.Fatalf("message %d does not go", i)
		}
		if ws[0].Flags&rdma.Signaled == 0 {
			if over := q.Over(); over != it || q.Over() != nil {
				t.Fatalf("message %d is posted, %v is over", i, over)
			}
			continue
		}
		signalled++
		if q.Over() != nil || !q.Completed(it) {
			t.Fatalf("message %d is not over with its completion", i)
		}
	}
	if want := messages / (room/4 + 1); signalled != want {
		t.Errorf("%d of %d messages are signalled, want %d", signalled, messages, want)
	}
}

// Transfers that continue each other at the peer share a descriptor; others do not, nor do those
// that have a message, or more than the limits allow.
func TestJoin(t *testing.T) {
	const size = 64
	memory := make([]byte, 20*size)
	reg, other := &region{b: memory}, &region{b: memory}
	item := func(stag rdma.STag, at uint64, place int) *Item {
		return pull(t, Limits{6 * size, 3}, rdma.SGE{Bytes: memory[place*size:][:size:size], Region: reg}, stag, at)
	}
	pair := func(at uint64, place int) *Item { // of two pieces, with a gap between them
		it := item(1, at, place)
		it.locals = append(it.locals, rdma.SGE{Bytes: memory[(place+2)*size:][:size:size], Region: reg})
		it.remotes[0].Len = 2 * size
		return it
	}
	end := uint64(math.MaxUint64 - 2*size + 1)
	elsewhere := item(1, size, 1)
	elsewhere.locals[0].Region = other
	message := item(1, size, 2)
	message.HasMessage = true
	long := item(1, size, 2)
	long.limits.Bytes = size / 2 // two descriptors
	check := func(name string, list []*Item, works, elements int) {
		t.Helper()
		var q Queue
		q.Init(100)
		for i, it := range list {
			it.ID = uint64(i)
			if err := it.Init(rdma.OpRead, it.limits, it.locals, it.remotes); err != nil {
				t.Fatal(err)
			}
			q.Push(it)
		}
		ws := make([]rdma.Work, 20)
		n := q.Fill(ws, make([]rdma.SGE, 20))
		sum := 0
		for _, w := range ws[:n] {
			sum += len(w.SGL)
		}
		if n != works || sum != elements || !q.Empty() {
			t.Errorf("%s: %d descriptors with %d elements, want %d with %d", name, n, sum, works, elements)
		}
	}
	check("apart here", []*Item{item(1, 0, 0), item(1, size, 2), item(1, 2*size, 4)}, 1, 3)
	check("together here", []*Item{item(1, 0, 0), item(1, size, 1), item(1, 2*size, 2), item(1, 3*size, 3)}, 1, 1)
	check("other regions here", []*Item{item(1, 0, 0), elsewhere}, 1, 2)
	check("too many elements", []*Item{item(1, 0, 0), item(1, size, 2), item(1, 2*size, 4), item(1, 3*size, 6)}, 2, 4)
	var seven []*Item
	for i := range 7 {
		seven = append(seven, item(1, uint64(i)*size, i))
	}
	check("too many bytes", seven, 2, 2)
	check("the limit, of which one is together", []*Item{item(1, 0, 0), item(1, size, 2), pair(2*size, 3)}, 1, 3)
	check("one beyond the limit", []*Item{item(1, 0, 0), item(1, size, 2), item(1, 2*size, 4), pair(3*size, 5)}, 2, 5)
	check("other STags", []*Item{item(1, 0, 0), item(2, size, 1)}, 2, 2)
	check("a gap", []*Item{item(1, 0, 0), item(1, size+1, 1)}, 2, 2)
	check("the reverse", []*Item{item(1, size, 0), item(1, 0, 1)}, 2, 2)
	check("with a message", []*Item{item(1, 0, 0), message, item(1, 2*size, 4)}, 4, 3)
	check("divided", []*Item{item(1, 0, 0), long}, 3, 3)
	check("around the end of all offsets", []*Item{item(1, end, 0), item(1, end+size, 1), item(1, 0, 2)}, 2, 2)
}

// pull is a transfer of one element.
func pull(t testing.TB, l Limits, e rdma.SGE, stag rdma.STag, at uint64) *Item {
	t.Helper()
	it := new(Item)
	if err := it.Init(rdma.OpRead, l, []rdma.SGE{e}, []Remote{{stag, at, uint64(len(e.Bytes))}}); err != nil {
		t.Fatal(err)
	}
	return it
}

// items finds an item by its ID, as an owner would.
var items = map[uint64]*Item{}

func TestAllocations(t *testing.T) {
	b := make([]byte, 1<<20)
	reg := &region{b: b}
	locals := []rdma.SGE{{Bytes: b[:4096], Region: reg}, {Bytes: b[8192:], Region: reg}}
	remotes := []Remote{{1, 0, 1<<20 - 4096}}
	var (
		q   Queue
		it  Item
		ws  [8]rdma.Work
		sgl [32]rdma.SGE
	)
	q.Init(100)
	n := testing.AllocsPerRun(100, func() {
		it.HasMessage = true
		if it.Init(rdma.OpWrite, Limits{1 << 18, 4}, locals, remotes) != nil {
			panic("refused")
		}
		q.Push(&it)
		if q.Fill(ws[:], sgl[:]) != 5 || !q.Completed(&it) {
			panic("not posted")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
