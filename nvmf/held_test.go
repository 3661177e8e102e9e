package nvmf

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/nvme"
)

// holding is a transport whose movers take no more input while data in a capsule wait for memory.
var holding = Transport{Name: "test", Type: nvme.TransportTCP, Capsule: 256 << 10, AdminCapsule: 8 << 10, Holds: true, SGLS: nvme.SGLSTransport}

// newHolding is a target over that, whose store lends no memory, and an I/O queue to it.
func newHolding(t *testing.T) (*target, *host, *faulty.Store) {
	inner, err := memory.New(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	s := faulty.New(inner, faulty.Seed(t))
	x := newTarget(t, s, false)
	x.over = &holding
	_, id := x.admin(0)
	return x, x.queue(id), s
}

const longCapsule = 256 << 10

// at is c from that block on.
func at(c nvme.Command, block uint32) nvme.Command {
	c.DWords[0] = block
	return c
}

// long is command i about as many bytes as the longest capsule has.
func long(op nvme.Opcode, i int) nvme.Command {
	return at(rw(op, longCapsule/512), uint32(i)*longCapsule/512)
}

// startLong begins such a Write, with its data in its capsule.
func startLong(h *host, i int) uint16 {
	return h.start(long(nvme.Write, i), longCapsule, fill(longCapsule, byte(i+1)), true)
}

// megabyte is a Write of one, whose data are fetched.
func megabyte(i int) nvme.Command { return at(rw(nvme.Write, 2048), uint32(i)*2048) }

// bring brings the data that a command waits for.
func (h *host) bring(cid uint16, data []byte) {
	h.q.Lock()
	defer h.q.Unlock()
	h.out[cid] = data
	h.GetData(h.late[cid])
}

// Data that have come in a capsule wait for memory, and what is behind them waits, too: for that of others, or of the queue.
func TestHeld(t *testing.T) {
	x, h, s := newHolding(t)
	if n := h.params.CapsuleData; n != longCapsule {
		t.Fatalf("capsules have %d bytes", n)
	}
	feed := x.starve()
	startLong(h, 0)
	if got := h.take(); len(got) != 0 || h.held == nil {
		t.Fatalf("without memory: %v, held %v", got, h.held != nil)
	}
	feed()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success || h.held != nil {
		t.Fatalf("when there is memory: %v, held %v", got, h.held != nil)
	}

	// Two Writes whose data are behind all others have half of the share. The others do not wait for them.
	late := []uint16{h.start(megabyte(4), 1<<20, nil, false), h.start(megabyte(5), 1<<20, nil, false)}
	gate := s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	for i := range 8 {
		if startLong(h, i); h.held != nil {
			t.Fatalf("long capsule %d is held", i)
		}
	}
	last := startLong(h, 8)
	if h.held == nil || h.held.CQE.CID != last {
		t.Fatalf("beyond the share: %v", h.take())
	}
	x.pass(60)
	for _, a := range h.answersAfter(9, gate.Release) {
		if a.Status != nvme.Success {
			t.Error(a)
		}
	}
	if h.held != nil || len(h.ended) != 0 {
		t.Errorf("held %v, ended %v", h.held != nil, h.ended)
	}
	for _, cid := range late {
		h.bring(cid, fill(1<<20, 9))
	}
	if got := h.take(); len(got) != 2 || got[0].Status|got[1].Status != nvme.Success {
		t.Fatal(got)
	}
	for i := range 9 {
		if a := h.must(long(nvme.Read, i), longCapsule, nil, false); !bytes.Equal(a.data, fill(longCapsule, byte(i+1))) {
			t.Errorf("long capsule %d: other bytes come back", i)
		}
	}
}

// What would be held for ever is to be repeated: behind it are the data for which all the memory is, or others keep it.
func TestNotHeldForEver(t *testing.T) {
	x, h, _ := newHolding(t)
	first := h.start(megabyte(4), 1<<20, nil, false)
	feed := x.starve()
	startLong(h, 0)
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.NamespaceNotReady || h.held != nil {
		t.Errorf("before data that have memory: %v, held %v", got, h.held != nil)
	}
	h.bring(first, fill(1<<20, 9))
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success {
		t.Fatal(got)
	}
	feed()

	feed = x.starve()
	startLong(h, 0)
	x.pass(backend.OverdueTicks)
	if got := h.take(); len(got) != 0 || h.held == nil {
		t.Errorf("for a while: %v", got)
	}
	x.pass(1)
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.NamespaceNotReady || h.held != nil {
		t.Errorf("for long: %v, held %v", got, h.held != nil)
	}
	startLong(h, 0)
	h.lose() // and with it what is held
	feed()
	if h.held != nil || h.q.live != 0 {
		t.Errorf("%d commands are left behind the connection", h.q.live)
	}
}

// goesOn begins long capsules one after the other, as others end, and wants command cid to end meanwhile.
func (h *host) goesOn(cid uint16, gate *faulty.Gate) {
	h.x.t.Helper()
	for i := range 100 {
		for _, a := range h.answersAfter(1, gate.Next) {
			if a.Status != nvme.Success {
				h.x.t.Fatal(a.Status)
			}
			if a.CID == cid {
				return
			}
		}
		if h.held == nil {
			startLong(h, i%16)
		}
	}
	h.x.t.Fatalf("command %d waits for memory, and %d bytes are for data that have come after it", cid, h.q.came)
}

// A Read, and a Write whose data are fetched, do not wait for ever beside long capsules that come one after the other.
func TestOthersBesideLongCapsules(t *testing.T) {
	_, h, s := newHolding(t)
	gate := s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	defer gate.Release()
	for i := range 16 { // all of the share
		startLong(h, i)
	}
	h.goesOn(h.start(rw(nvme.Read, 2048), 1<<20, nil, false), gate)
	h.goesOn(h.start(megabyte(5), 1<<20, fill(1<<20, 9), false), gate)
}

// Nor does a Read of a queue that has no memory, beside queues whose long capsules could have all there is.
func TestOtherQueuesBesideLongCapsules(t *testing.T) {
	x, h, s := newHolding(t)
	gate := s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	defer gate.Release()
	_, id := x.adminThrough(1, 2, 0)
	r := x.dialThrough(1, 2)
	if a := r.connect(testHost, 1, id, 0); a.Status != nvme.Success {
		t.Fatal(a.Status)
	}
	all := []*host{h}
	for qid := range uint16(3) {
		q := x.dial()
		if a := q.connect(testHost, 2+qid, h.q.ctrl.id, 0); a.Status != nvme.Success {
			t.Fatal(a.Status)
		}
		all = append(all, q)
	}
	send := func(i int) {
		for _, q := range all {
			q.q.Lock()
			held := q.held != nil
			q.q.Unlock()
			if !held {
				startLong(q, i%16)
			}
		}
	}
	for i := range 16 { // all of the share of each, and these are the whole pool
		send(i)
	}
	read := func() bool {
		r.q.Lock()
		defer r.q.Unlock()
		return len(r.take()) == 1
	}
	r.start(long(nvme.Read, 0), longCapsule, nil, false)
	for i := range 200 {
		if read() {
			return
		}
		gate.Await(1)
		gate.Next()
		send(i)
	}
	t.Errorf("a Read waits for memory, of which %d bytes are free, while 200 Writes of others that have come later had some", x.pool.Free())
}

// Data that have come and cannot wait have the last quarter of the memory, too: those before data that have memory, and those over a transport that
// does not hold.
func TestDataThatCannotWait(t *testing.T) {
	t.Run("data behind them", func(t *testing.T) {
		x, h, _ := newHolding(t)
		late := h.start(megabyte(5), 1<<20, nil, false)
		defer x.leave(1 << 20)()
		startLong(h, 0)
		if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success {
			t.Errorf("%v, held %v", got, h.held != nil)
		}
		h.bring(late, fill(1<<20, 9))
	})
	t.Run("no Hold", func(t *testing.T) {
		store := later(t)
		x := newTarget(t, store, false)
		_, id := x.admin(0)
		h := x.queue(id)
		gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
		h.start(rw(nvme.Write, 8), 4096, fill(4096, 1), true)
		defer x.leave(1 << 20)()
		h.start(rw(nvme.Write, 8), 4096, fill(4096, 2), true)
		if got := h.take(); len(got) != 0 {
			gate.Release()
			t.Fatal(got)
		}
		h.answersAfter(2, gate.Release)
	})
}

// lateWrites are Writes of a host with a keep-alive timeout of 5 s: of long capsules that the store has and the last of which is held, and one whose data
// are to come. A Copy waits for the memory of that.
type lateWrites struct {
	*target
	admin, h *host
	gate     *faulty.Gate
	fetched  uint16
	inStore  int
}

func newLateWrites(t *testing.T) *lateWrites {
	x, h, s := newHolding(t)
	w := &lateWrites{target: x, admin: h.q.ctrl.admin.mover.(*host), h: h}
	w.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureKeepAlive), 5000}}, 0, nil, false)
	w.pass(1)
	w.fetched = h.start(at(rw(nvme.Write, 4096), 5*2048), 2<<20, nil, false)
	c, list := copyOf(7*2048, [2]uint64{0, 2048})
	h.start(c, len(list), list, false)
	w.gate = s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	t.Cleanup(w.gate.Release)
	for ; h.held == nil; w.inStore++ {
		startLong(h, w.inStore)
	}
	w.inStore--
	w.gate.Await(w.inStore)
	w.logged()
	return w
}

// next has the oldest Write end, so that there is memory for the one that is held.
func (w *lateWrites) next() {
	w.h.answersAfter(1, w.gate.Next)
	w.inStore--
}

// nothingBegins wants no other Write in the store when there is memory, and when data come.
func (w *lateWrites) nothingBegins() {
	w.t.Helper()
	free := func() int {
		w.h.q.Lock()
		defer w.h.q.Unlock()
		return w.h.free
	}
	before := free()
	w.gate.Next()
	w.inStore--
	for free() == before {
		runtime.Gosched()
	}
	w.h.bring(w.fetched, fill(2<<20, 9))
	if n := w.gate.Held(); n != w.inStore {
		w.t.Errorf("%d Writes have begun after the end", n-w.inStore)
	}
}

// While a command is held whoever sends something is alive, and when that is read says nothing: it may have come long ago. No command begins when
// the keep-alive timeout is over.
func TestKeepAliveOfHeld(t *testing.T) {
	w := newLateWrites(t)
	for range 20 {
		w.h.sent += 1000
		w.pass(1)
	}
	if len(w.admin.ended) != 0 {
		t.Fatal("a controller ends whose host sends commands behind one that is held")
	}
	w.pass(4)
	w.next()
	w.gate.Await(w.inStore + 1) // what was held
	w.inStore++
	startLong(w.h, 0)
	for range 4 {
		w.h.q.Heard()
		w.h.read += 5000
		w.pass(1)
	}
	if !slices.Equal(w.admin.ended, []Termination{AtOnce}) || !slices.Equal(w.h.ended, []Termination{AtOnce}) {
		t.Fatalf("the host was silent for 7 s: %v, %v", w.admin.ended, w.h.ended)
	}
	w.wantLog("connection dropped", "nothing was heard of the host for 7 s")
	w.nothingBegins()
}

// When all that has come meanwhile is read, what is read has just come.
func TestKeepAliveAfterHeld(t *testing.T) {
	w := newLateWrites(t)
	w.h.sent = 5000
	w.next()
	w.gate.Await(w.inStore + 1)
	w.h.read = 5000
	for range 20 {
		w.pass(1)
		w.h.q.Heard()
	}
	if len(w.admin.ended) != 0 {
		t.Error("a controller ends whose host was heard")
	}
}

// A host that closes the connection while a command is held has nothing done any more that is not begun.
func TestHeldAndClosed(t *testing.T) {
	for what, notice := range map[string]func(*lateWrites){"in time": func(w *lateWrites) { w.pass(1) }, "when there is memory": func(*lateWrites) {}} {
		w := newLateWrites(t)
		w.h.left = true
		notice(w)
		w.nothingBegins()
		if !slices.Equal(w.h.ended, []Termination{AtOnce}) {
			t.Errorf("%s: %v", what, w.h.ended)
		}
		w.wantLog("connection ended", "the host has closed it")
	}
}
