package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/internal/rounds"
)

// A host changes one range after the other, and sends a command again by another path when it has waited for long, or when its connection has ended.
// Whatever becomes of the copies that it has given up, what it was told to be written stays: behind ORDERED tasks, without memory, with data that come
// late, in a store that takes its time, and whether or not a path is found to be dead.
func TestRepeatedWritesStay(t *testing.T) {
	for seed := range uint64(rounds.Of(100, 10)) {
		for _, lends := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, lent %v", seed, lends), func(t *testing.T) { newRepeats(t, seed, lends).run() })
		}
	}
}

const repeatBlocks = 24

// copyOf is a command of the host on its way, or of another initiator.
type copyOf struct {
	task    *Task
	nexus   int
	data    []byte
	placed  int
	pulling bool
	age     int  // ticks
	given   bool // the host hears of it no more
	alive   bool // nobody here notices that it was given up
	slow    bool // its data come slowly, and its connection is busy
	keeps   bool // the store keeps what it does for it
}

type repeats struct {
	*bench
	r       *rand.Rand
	nexuses []*Nexus // the last is the other initiator's
	live    []*copyOf
	want    []byte               // of each block
	stuck   map[*backend.Op]bool // in the store
	most    int                  // blocks of a transfer

	// The write that the host waits for; n 0: none.
	lba, n  int
	next    []byte // of each block of its
	cdb     []byte
	data    []byte
	again   bool    // it was given up before
	current *copyOf // nil: it has to be sent
}

func newRepeats(t *testing.T, seed uint64, lends bool) *repeats {
	x := &repeats{
		bench: newBench(t, lends, nil), r: rand.New(rand.NewPCG(seed, 7)), want: make([]byte, repeatBlocks), stuck: make(map[*backend.Op]bool),
	}
	x.most = []int{2, 8}[x.r.IntN(2)]
	for range 4 {
		n := x.newNexus()
		n.BoundMemory(512 * x.most)
		x.nexuses = append(x.nexuses, n)
	}
	hold := x.r.IntN(4)
	x.store.hold = func(op *backend.Op) bool {
		if lends && op.Kind != backend.Flush {
			return false
		}
		if i := slices.IndexFunc(x.live, func(c *copyOf) bool { return op.Done == &c.task.r }); i >= 0 && x.live[i].keeps {
			x.stuck[op] = true
			return true
		}
		return x.r.IntN(4) < hold
	}
	return x
}

func (x *repeats) run() {
	for range 6000 {
		x.event()
		x.check()
	}
	x.owner.empty, x.store.hold = false, nil
	for len(x.live) > 0 || len(x.store.held) > 0 {
		x.complete(-1)
		for _, c := range slices.Clone(x.live) {
			x.deliver(c, len(c.data))
		}
		x.resume(func(*copyOf) bool { return true })
		x.check()
	}
	if err := x.lu.v.Settled(); err != nil {
		x.t.Error(err)
	}
}

// check compares what is on the medium with what the host was told, except where a write of its is on its way.
func (x *repeats) check() {
	for b := range x.want {
		if b >= x.lba && b < x.lba+x.n {
			continue
		}
		if got := x.onMedium(b, 1); got[0] != x.want[b] {
			x.t.Fatalf("block %d is %d, and the host was told that %d is there", b, got[0], x.want[b])
		}
	}
}

// onMedium is what n blocks are, each of which has one value.
func (x *repeats) onMedium(lba, n int) (all []byte) {
	for b := lba; b < lba+n; b++ {
		got := x.store.data[b*512:][:512]
		if !bytes.Equal(got, bytes.Repeat(got[:1], 512)) {
			x.t.Fatalf("block %d is torn", b)
		}
		all = append(all, got[0])
	}
	return all
}

func (x *repeats) event() {
	switch x.r.IntN(9) {
	case 0:
		x.host()
	case 1:
		x.tick()
	case 2:
		x.complete(1)
	case 3:
		for _, c := range slices.Clone(x.live) {
			if x.r.IntN(2) == 0 && (!c.slow || x.r.IntN(20) == 0) {
				x.deliver(c, 512*(1+x.r.IntN(8)))
			}
		}
	case 4:
		if x.r.IntN(20) == 0 {
			x.other()
		}
	case 5:
		if x.r.IntN(4) == 0 {
			x.owner.empty = !x.owner.empty && x.r.IntN(2) == 0
		}
	case 6:
		if i := slices.IndexFunc(x.live, func(c *copyOf) bool { return c.given && !c.alive }); i >= 0 && x.r.IntN(6) == 0 {
			x.live[i].task.Abort()
		} else if x.current != nil && x.r.IntN(40) == 0 { // its connection ends, as both know
			x.current.task.Abort()
			x.giveUp()
		}
	default:
		x.resume(func(c *copyOf) bool { return x.r.IntN(3) == 0 && (!c.slow || x.r.IntN(10) == 0) })
	}
}

// host sends a write, or sends one again, or does nothing for a while.
func (x *repeats) host() {
	switch {
	case x.n == 0 && x.r.IntN(3) == 0:
		x.write()
	case x.n == 0:
		return
	case x.current != nil && x.current.age < OverdueTicks+2:
		return
	case x.current != nil:
		x.giveUp()
	}
	x.current = &copyOf{nexus: x.r.IntN(3), data: x.data, alive: x.r.IntN(2) == 0, slow: !x.again && x.r.IntN(3) == 0, keeps: !x.again && x.r.IntN(3) == 0}
	x.send(x.current, x.cdb, []Attr{Simple, HeadOfQueue, Ordered}[max(0, x.r.IntN(12)-9)])
}

// giveUp has the host wait no longer for the current copy of its write.
func (x *repeats) giveUp() {
	x.current.given, x.again = true, true
	x.current = nil
}

// write makes the next write of the host.
func (x *repeats) write() {
	x.lba, x.n, x.again = x.r.IntN(repeatBlocks-8), 1+x.r.IntN(8), false
	was := x.want[x.lba:][:x.n]
	fill := func(v ...byte) (data []byte) {
		for i := range x.n {
			data = append(data, bytes.Repeat(v[i%len(v):][:1], 512)...)
		}
		return data
	}
	long := func(op, flags byte) []byte {
		return []byte{op, flags, 0, 0, 0, 0, 0, 0, 0, byte(x.lba), 0, 0, 0, byte(x.n), 0, 0}
	}
	short := func(op byte) []byte { return rw10(op, uint32(x.lba), uint16(x.n)) }
	kind := x.r.IntN(10)
	switch kind {
	case 0, 1, 2, 6:
		x.n = min(x.n, x.most)
	case 7:
		x.n = min(x.n, x.most/2)
	}
	was = was[:x.n]
	v := byte(1 + x.r.IntN(255))
	x.next, x.data = bytes.Repeat([]byte{v}, x.n), fill(v)
	switch kind {
	case 0:
		x.cdb = short(0x2a)
	case 1:
		x.cdb = long(0x8a, bitFUA)
	case 2:
		x.cdb = short(0x2e) // WRITE AND VERIFY
	case 3:
		x.cdb, x.data = short(0x41), x.data[:512] // WRITE SAME
	case 4:
		x.cdb, x.data, x.next = long(0x93, bitNDOB), nil, make([]byte, x.n)
	case 5: // UNMAP
		x.data = binary.BigEndian.AppendUint32(unhex(x.t, "00 16 00 10 00 00 00 00  00 00 00 00"), uint32(x.lba))
		x.data, x.next = append(binary.BigEndian.AppendUint32(x.data, uint32(x.n)), 0, 0, 0, 0), make([]byte, x.n)
		x.cdb = []byte{0x42, 0, 0, 0, 0, 0, 0, 0, byte(len(x.data)), 0}
	case 6: // ORWRITE
		x.cdb = long(0x8b, 0)
		for i := range x.next {
			x.next[i] |= was[i]
		}
	case 7: // COMPARE AND WRITE
		x.cdb, x.data = long(0x89, 0), append(fill(was...), x.data...)
	default: // EXTENDED COPY, of two segments
		from, first := x.lba+8, x.r.IntN(x.n+1)
		if from > repeatBlocks-8 {
			from = x.lba - 8
		}
		x.next = bytes.Clone(x.want[from:][:x.n])
		x.data = copyParameters(7, 0, [][]byte{identify(x.lu)}, [][]byte{
			blockSegment(0, 0, uint16(first), uint64(from), uint64(x.lba)),
			blockSegment(0, 0, uint16(x.n-first), uint64(from+first), uint64(x.lba+first)),
		})
		x.cdb = thirdPartyCDB(0x83, 0, 0, len(x.data))
	}
}

// other sends a command of another initiator, which has others wait.
func (x *repeats) other() {
	c := &copyOf{nexus: 3}
	cdb := unhex(x.t, "35 00 00 00 00 00 00 00 00 00")
	if x.r.IntN(2) == 0 {
		cdb = rw10(0x28, 0, 2)
	}
	x.send(c, cdb, []Attr{Simple, Ordered, Ordered, HeadOfQueue}[x.r.IntN(4)])
}

func (x *repeats) send(c *copyOf, cdb []byte, attr Attr) {
	c.task = x.task(cdb, c.data, 8*512)
	c.task.Nexus, c.task.Attr = x.nexuses[c.nexus], attr
	x.live = append(x.live, c)
	x.step(c, c.task.Start())
}

func (x *repeats) step(c *copyOf, next Next) {
	switch next {
	case Pull:
		c.pulling = true
	case Done, Aborted:
		good := next == Done && c.task.Status == Good
		missed := next == Done && c.task.Status == CheckCondition && c.task.Sense[2]&0xf == 0xe // MISCOMPARE
		if missed && c == x.current && !x.again {
			x.t.Fatalf("blocks %d…%d are not what the host was told", x.lba, x.lba+x.n-1)
		}
		c.task.Release()
		x.live = slices.DeleteFunc(x.live, func(o *copyOf) bool { return o == c })
		if c != x.current {
			return
		}
		x.current = nil
		if good || x.again && missed && bytes.Equal(x.onMedium(x.lba, x.n), x.next) { // an earlier copy was done
			copy(x.want[x.lba:], x.next)
			x.n = 0
		}
	}
}

// deliver has n bytes of the data of a command arrive.
func (x *repeats) deliver(c *copyOf, n int) {
	if !c.pulling {
		return
	}
	n = min(n, c.task.OutLen-c.placed)
	c.task.Place(c.placed, c.data[c.placed:c.placed+n])
	if c.placed += n; c.placed == c.task.OutLen {
		c.pulling = false
		x.step(c, c.task.Pulled())
	}
}

// complete ends operations of the store, n at most.
func (x *repeats) complete(n int) {
	for ; n != 0 && len(x.store.held) > 0; n-- {
		i := x.r.IntN(len(x.store.held))
		op := x.store.held[i]
		if n > 0 && x.stuck[op] && x.r.IntN(60) != 0 {
			continue
		}
		delete(x.stuck, op)
		x.store.held = slices.Delete(x.store.held, i, i+1)
		x.store.do(op)
		op.Done.OpDone(op)
	}
}

func (x *repeats) tick() {
	if x.r.IntN(3) != 0 {
		return
	}
	for _, c := range x.live {
		if c.age++; c.age > OverdueTicks {
			c.task.Overdue()
		}
	}
}

// resume has commands go on that are ready, or may be for there is memory.
func (x *repeats) resume(one func(c *copyOf) bool) {
	for _, i := range x.r.Perm(len(x.live)) {
		if i >= len(x.live) || !one(x.live[i]) {
			continue
		}
		c := x.live[i]
		if next := c.task.Resume(); next != Wait {
			c.pulling = false
			x.step(c, next)
		}
	}
	for len(x.owner.ready) > 0 { // who is ready is found without
		<-x.owner.ready
	}
}
