package mirror

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/ha/fabric"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
)

// worker is a host that has some blocks to itself. It knows what each may hold: what was acknowledged or read last,
// and what has come to a bad end since.
type worker struct {
	l      *lab
	r      *rand.Rand
	blocks []int64 // offsets
	may    [][]uint64
	values *counter
	at     int // the node that it uses
	done   int
}

// counter draws values that nobody has written before.
type counter struct {
	mu sync.Mutex
	n  uint64
}

func (c *counter) next() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

const workBlock = 4096

func (w *worker) block(v uint64) []byte {
	b := make([]byte, workBlock)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], v)
	}
	return b
}

// do has some node do an operation, and returns the first end that is not that of a node which does not serve.
// uncertain is called for each attempt that may have taken effect.
func (w *worker) do(op backend.Op, uncertain func()) error {
	for {
		m := w.l.mirrorOf(w.at)
		if m != nil {
			o := op
			err := backendtest.Do(m, &o)
			if !isMoved(err) {
				return err
			}
			uncertain()
		}
		w.at = (w.at + 1) % len(w.l.nodes)
		time.Sleep(20 * time.Millisecond)
	}
}

// step does one operation of some block, and checks what it reads.
func (w *worker) step() error {
	i := w.r.IntN(len(w.blocks))
	off := w.blocks[i]
	w.done++
	switch w.r.IntN(10) {
	case 0:
		return w.do(backend.Op{Kind: backend.Flush}, func() {})
	case 1:
		if err := w.do(backend.Op{Kind: backend.Discard, Off: off, Len: workBlock}, func() { w.may[i] = append(w.may[i], 0) }); err != nil {
			return err
		}
		w.may[i] = []uint64{0}
	case 2, 3, 4:
		return w.look(i)
	default:
		v := w.values.next()
		b := w.block(v)
		op := backend.Op{Kind: backend.Write, Off: off, Len: workBlock, Segs: [][]byte{b[:1000], b[1000:]}}
		if err := w.do(op, func() { w.may[i] = append(w.may[i], v) }); err != nil {
			return err
		}
		w.may[i] = []uint64{v}
	}
	return nil
}

func (w *worker) look(i int) error {
	b := make([]byte, workBlock)
	if err := w.do(backend.Op{Kind: backend.Read, Off: w.blocks[i], Len: workBlock, Segs: [][]byte{b}}, func() {}); err != nil {
		return err
	}
	v := binary.LittleEndian.Uint64(b)
	if string(b) != string(w.block(v)) {
		return fmt.Errorf("the block at %d is of several writes", w.blocks[i])
	}
	if !slices.Contains(w.may[i], v) {
		return fmt.Errorf("the block at %d has %d, and should have one of %d", w.blocks[i], v, w.may[i])
	}
	w.may[i] = []uint64{v}
	return nil
}

// TestModel: hosts write and read while nodes are killed, lose their power, hand over, and links are cut. One copy
// at a time is away, so nothing that was acknowledged may be lost, and at the end the copies are equal.
func TestModel(t *testing.T) {
	seed := faulty.Seed(t)
	for _, nodes := range []int{2, 3} {
		for name, device := range movers {
			t.Run(fmt.Sprint(nodes, " over ", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runModel(t, nodes, device, rand.New(rand.NewPCG(seed, uint64(nodes)))) })
			})
		}
	}
}

func runModel(t *testing.T, nodes int, device func() (rdma.Device, string), r *rand.Rand) {
	l := newLab(t, nodes)
	l.device = device
	l.flips = r.IntN(2) == 0
	l.seed = r.Uint64()
	l.begin()
	workers, _, end := l.hosts(r, time.Duration(rounds.Of(5, 20))*time.Millisecond, func(i int) (blocks []int64) {
		for b := range int64(6) {
			blocks = append(blocks, b*64<<10+int64(i)*workBlock)
		}
		return blocks
	})
	faults := rounds.Of(5, 2)
	for range faults {
		l.fault(r)
	}
	end()
	l.mu.Lock()
	l.flips = false
	l.mu.Unlock()
	l.steady()
	for _, w := range workers {
		for i := range w.blocks {
			if err := w.look(i); err != nil {
				t.Error(err)
			}
		}
		if w.done < 4*faults {
			t.Errorf("a host has done %d operations: the model does not look at much", w.done)
		}
	}
	l.steady()
	l.end()
	first := l.nodes[0].disk.Crash(nil, 1)
	for _, n := range l.nodes[1:] {
		disk := n.disk.Crash(nil, 1)
		if string(disk) == string(first) {
			continue
		}
		for i, b := range disk {
			if b != first[i] {
				t.Errorf("the disks of nodes 0 and %d differ at %d: %x, %x", n.id, i, first[i:i+16], disk[i:i+16])
				break
			}
		}
	}
}

// hosts lets four hosts work on blocks of their own, with pauses of up to most, and returns what tells of their steps whoever waits for one, and what ends them.
func (l *lab) hosts(r *rand.Rand, most time.Duration, blocksOf func(host int) []int64) (workers []*worker, steps <-chan struct{}, end func()) {
	stop, did := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	values := &counter{}
	for i := range 4 {
		w := &worker{l: l, r: rand.New(rand.NewPCG(r.Uint64(), 0)), values: values, blocks: blocksOf(i)}
		for range w.blocks {
			w.may = append(w.may, []uint64{0})
		}
		workers = append(workers, w)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(w.r.Int64N(int64(most)))):
				}
				if err := w.step(); err != nil {
					l.t.Errorf("%v", err)
					return
				}
				select {
				case did <- struct{}{}:
				default:
				}
			}
		})
	}
	return workers, did, func() {
		close(stop)
		wg.Wait()
	}
}

// steady waits until a primary has had all copies in sync for some time, and returns it.
func (l *lab) steady() *node {
	l.t.Helper()
	for range 100 {
		p := l.primary()
		before := p.mirror.State().View
		time.Sleep(time.Second)
		s := p.mirror.State()
		if s.Role == replica.Primary && s.View == before && s.View.InSync.Len() == len(l.nodes) {
			return p
		}
	}
	for _, n := range l.nodes {
		l.t.Logf("node %d: %+v", n.id, n.mirror.State())
	}
	l.t.Fatal("there is no primary of all copies that lasts")
	return nil
}

// fault does something to a node or a link, mends it, and waits until all copies are level.
func (l *lab) fault(r *rand.Rand) {
	for range r.IntN(4) {
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
	}
	p := l.steady()
	other := l.nodes[(int(p.id)+1+r.IntN(len(l.nodes)-1))%len(l.nodes)]
	victim := other
	if r.IntN(2) == 0 {
		victim = p
	}
	away := time.Duration(r.IntN(1500)) * time.Millisecond
	switch r.IntN(4) {
	case 0:
		victim.kill()
		time.Sleep(away)
		victim.start()
	case 1:
		victim.cutPower(r, r.Float64())
		time.Sleep(away)
		victim.start()
	case 2:
		l.setCut(p.id, other.id, true)
		time.Sleep(away)
		l.setCut(p.id, other.id, false)
	default:
		if m := p.current(); m != nil {
			m.push(item{event: replica.Switch{ID: isOrder, To: other.id}})
		}
	}
}

// primary waits for one.
func (l *lab) primary() *node {
	for range 10000 {
		for _, n := range l.nodes {
			if m := n.current(); m != nil && m.State().Role == replica.Primary {
				return n
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.t.Fatal("no node becomes primary")
	return nil
}

func (l *lab) mirrorOf(i int) *Mirror { return l.nodes[i].current() }

// TestAllPowerCut: what was flushed is there after all nodes have lost their power, whoever comes back first.
func TestAllPowerCut(t *testing.T) {
	for _, late := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			l.begin()
			defer l.end()
			a := l.nodes[0]
			want := bytesOf(256<<10, 7)
			l.write(a, 64<<10, want)
			l.flush(a)
			for _, n := range l.nodes {
				n.cutPower(nil, 0)
			}
			l.nodes[1-late].start()
			time.Sleep(time.Second)
			l.nodes[late].start()
			p := l.primary()
			l.expect(p, 64<<10, want)
			l.level(l.primary())
		})
	}
}

// TestAloneThenPowerCut: what one node wrote alone reaches the other one, though both have lost their power since.
func TestAloneThenPowerCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.write(a, 0, bytesOf(128<<10, 1))
		b.kill()
		l.alone(a)
		want := bytesOf(64<<10, 2)
		l.write(a, 1<<20, want)
		l.flush(a)
		a.cutPower(nil, 0)
		b.start()
		time.Sleep(5 * time.Second)
		if s := b.mirror.State(); s.Role == replica.Primary {
			t.Fatalf("a copy that is not in sync was promoted: %+v", s)
		}
		a.start()
		l.level(a)
		a.kill()
		l.serves(b)
		l.expect(b, 1<<20, want)
		a.start()
		l.level(b)
	})
}

// TestLostMetadata: a copy in sync whose metadata are gone takes no part, so nothing comes from it. When the others
// have dropped it, it is brought level in whole.
func TestLostMetadata(t *testing.T) {
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			l.begin()
			defer l.end()
			a, b := l.nodes[0], l.nodes[1]
			want := bytesOf(128<<10, 1)
			l.write(a, 0, want)
			l.flush(a)
			if alone {
				a.kill()
			}
			b.cutPower(nil, 0)
			b.files = newFiles()
			b.disk = backendtest.NewDisk(l.size, 512) // another disk
			b.start()
			time.Sleep(5 * time.Second)
			if alone {
				if s := b.mirror.State(); s.Role != replica.Waiting || s.View.Version != 0 {
					t.Fatalf("a node that has lost everything takes part: %+v", s)
				}
				return
			}
			l.level(a)
			a.mirror.push(item{event: replica.Switch{ID: isOrder, To: 1}})
			l.level(b)
			l.expect(b, 0, want)
		})
	}
}

// TestFullAtFirst: a node that cannot make its metadata takes part when it can, though nothing else happens. The first one would serve
// nobody else.
func TestFullAtFirst(t *testing.T) {
	for who := range 2 {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			f := l.nodes[who].files
			f.full = true
			for _, n := range l.nodes {
				n.start()
			}
			defer l.end()
			time.Sleep(5 * time.Second)
			if s := l.nodes[who].mirror.State(); s.Role != replica.Waiting {
				t.Fatalf("a node without metadata takes part: %+v", s)
			}
			f.mu.Lock()
			f.full = false
			f.mu.Unlock()
			l.level(l.nodes[0])
		})
	}
}

// TestFoundTwice: of two nodes that found the same mirror one begins it, and the other one gets its bytes.
func TestFoundTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.allFound = true
		for _, n := range l.nodes {
			b := bytesOf(4096, byte(n.id)+1)
			if err := backendtest.Do(n.disk, &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{b}}); err != nil {
				t.Fatal(err)
			}
			n.start()
		}
		defer l.end()
		p := l.primary()
		l.level(p)
		l.expect(p, 0, bytesOf(4096, byte(p.id)+1))
	})
}

// TestReadKeepsBuffers: an operation ends when the copy has let go of the host's memory, not before.
func TestReadKeepsBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1)
		store := faulty.New(l.nodes[0].disk, 1)
		l.wrap = func(backend.Store) backend.Store { return store }
		l.begin()
		gate := store.Hold(faulty.Match{Kinds: faulty.Reads})
		w := make(waiter, 1)
		op := &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: w}
		m := l.nodes[0].mirror
		if m.Submit(op) {
			t.Fatalf("the read ends at once: %v", op.Err)
		}
		gate.Await(1)
		m.push(item{call: m.refuseAll})
		synctest.Wait()
		select {
		case <-w:
			t.Error("the read has ended, and the copy still reads into its memory")
		default:
		}
		gate.Release()
		<-w
		if !isMoved(op.Err) {
			t.Errorf("the read ends with %v", op.Err)
		}
		l.end()
	})
}

// TestStaleGrant: who has lost the right to write into a node's memory places nothing there, though it goes on sending.
func TestStaleGrant(t *testing.T) {
	for _, device := range []func() (rdma.Device, string){onLocal, onIWARP} {
		l := newLab(t, 2)
		l.device, l.real = device, true
		l.tune = func(c *replica.Config) { // the machine may be busy, and nobody is to be lost but by the test
			c.Lease, c.Grace, c.SlowCopy = time.Minute, 2*time.Minute, time.Minute
		}
		l.begin()
		a, b := l.nodes[0].mirror, l.nodes[1].mirror
		c := connOf(a, 1)
		write := func(seed byte) {
			within(a, func() bool {
				copy(a.arena[1<<20:], bytesOf(4096, seed))
				a.post(&replica.Post{To: 1, Stream: c.theirs, Recs: []replica.Record{
					{Seq: 1 << 40, Kind: replica.KindWrite, Len: 4096, Addr: 1 << 20, Sum: sumOf(bytesOf(4096, seed))},
				}})
				return true
			})
		}
		is := func(seed byte) bool {
			return within(b, func() bool { return string(b.arena[1<<20:][:4096]) == string(bytesOf(4096, seed)) })
		}
		for write(1); !is(1); {
			runtime.Gosched()
		}
		within(b, func() bool { b.do(replica.Cut{To: 0}); return true })
		write(2)
		<-c.ended // it was told
		if !is(1) {
			t.Error("a Write was placed without a grant")
		}
		for _, n := range l.nodes {
			n.kill()
		}
	}
	overStreams(t)
}

// TestBeatsOvertake: data that are posted at once are few, and a beat goes before the rest.
func TestBeatsOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.device = onLocal
		l.begin()
		defer l.end()
		a := l.nodes[0].mirror
		c := connOf(a, 1)
		synctest.Wait()
		c.mu.Lock() // nobody else sends
		defer c.mu.Unlock()
		var p parcel
		for i := range int64(4) {
			p.put(fabric.Run{Addr: i << 20, Len: 1 << 20, Grant: c.theirs})
		}
		idle := appendFrame(nil, new(coder), frameIdle, 0, nil)
		p.frames = append(p.frames, idle...)
		beats := 0
		if err := p.sendOn(c.link, func() []byte { beats++; return idle }, time.Minute); err != nil {
			t.Fatal(err)
		}
		if beats < 4<<20/maxPosted {
			t.Errorf("beats were sent %d times in the midst of 4 MiB", beats)
		}
		if len(p.runs)+len(p.frames) > 0 {
			t.Errorf("%d runs and %d bytes are left", len(p.runs), len(p.frames))
		}
	})
}

// TestParcel: data go before the frame that tells of them, and what lies together is one Write.
func TestParcel(t *testing.T) {
	var p parcel
	run := func(addr int64) fabric.Run { return fabric.Run{Addr: addr, Len: 4096, Grant: 7} }
	p.frames = append(p.frames, "ack"...)
	p.put(run(0))
	p.put(run(4096))
	p.put(run(16384))
	p.frames = append(p.frames, "post"...)
	p.put(run(20480)) // continues what another frame tells of
	p.frames = append(p.frames, "post"...)
	want := []fabric.Run{{Addr: 0, Len: 8192, Grant: 7}, run(16384), run(20480)}
	if !slices.Equal(p.runs, want) || !slices.Equal(p.marks, []mark{{3, 2}, {7, 3}}) {
		t.Errorf("%+v", p)
	}
}

// connOf returns the connection with a node, and within does something as the owner of the core.
func connOf(m *Mirror, peer replica.ID) (c *conn) {
	within(m, func() bool { c = m.conns[peer]; return true })
	return c
}

func within(m *Mirror, f func() bool) bool {
	done := make(chan bool)
	m.push(item{call: func() { done <- f() }})
	return <-done
}

func overStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		b := l.nodes[1].mirror
		done := make(chan bool)
		b.push(item{call: func() {
			c, stream := b.conns[0], b.grants[0]
			p := func(fill byte) *received {
				data := make([]byte, 4096)
				data[0] = fill
				return &received{kind: framePost, data: data, post: post{stream: stream, recs: []replica.Record{
					{Seq: 1 << 40, Kind: replica.KindWrite, Len: 4096, Addr: 1 << 20, Sum: sumOf(data)},
				}}}
			}
			b.arrived(c, p(1))
			granted := b.arena[1<<20] == 1
			b.do(replica.Cut{To: 0})
			b.arrived(c, p(2))
			done <- granted && b.arena[1<<20] == 1
		}})
		if !<-done {
			t.Error("a post was placed without a grant, or not with one")
		}
		l.nodes[1].kill()
		l.nodes[1].start()
		l.level(l.nodes[0])
	})
}
