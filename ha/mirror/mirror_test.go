package mirror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ha/fabric"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
)

// register stands for consensus: a view with compare-and-swap.
type register struct {
	mu       sync.Mutex
	view     replica.View
	watchers map[*watcher]bool
}

type watcher struct {
	node replica.ID
	f    func(replica.View)
}

// voter is the register as a node sees it.
type voter struct {
	*register
	node replica.ID
}

func (v voter) Watch(f func(replica.View)) (stop func(), err error) {
	w := &watcher{node: v.node, f: f}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watchers[w] = true
	if v.view.Version > 0 {
		f(v.view)
	}
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.watchers, w)
	}, nil
}

func (v voter) Propose(view replica.View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if view.Version != v.view.Version+1 {
		return
	}
	v.view = view
	for w := range v.watchers {
		w.f(view)
	}
}

// files is a directory in memory. A power cut takes what was not synced.
type files struct {
	mu      sync.Mutex
	m       map[string]*file
	durable map[string]*file // names, as of the last SyncDir
	full    bool             // no file can be made, nor written to
	hang    chan struct{}    // the disk answers when it is closed; nil: it answers
}

type file struct {
	fs *files
	b  []byte
	ok []byte // synced
}

func newFiles() *files { return &files{m: map[string]*file{}, durable: map[string]*file{}} }

func (f *files) ReadFile(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.m[name]; c != nil {
		return slices.Clone(c.b), nil
	}
	return nil, fs.ErrNotExist
}

func (f *files) Create(name string) (quorum.File, error) {
	f.answer()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return nil, errors.New("no space left")
	}
	f.m[name] = &file{fs: f}
	return f.m[name], nil
}

func (f *files) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[to] = f.m[from]
	delete(f.m, from)
	return nil
}

func (f *files) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, name)
	return nil
}

func (f *files) SyncDir() error {
	f.answer()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable = maps.Clone(f.m)
	return nil
}

// stall has the disk answer nothing until the function that it returns is called.
func (f *files) stall() (goOn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hang := make(chan struct{})
	f.hang = hang
	return sync.OnceFunc(func() { close(hang) })
}

// answer waits until the disk answers.
func (f *files) answer() {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
}

func (f *files) cutPower() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m = maps.Clone(f.durable)
	for _, c := range f.m {
		c.b = slices.Clone(c.ok)
	}
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	f.fs.answer()
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.full {
		return 0, errors.New("no space left")
	}
	f.b = append(f.b, make([]byte, max(0, int(off)+len(b)-len(f.b)))...)
	return copy(f.b[off:], b), nil
}

func (f *file) Sync() error {
	f.fs.answer()
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.ok = slices.Clone(f.b)
	return nil
}

func (f *file) Close() error { return nil }

// lab is a mirror on nodes of one process.
type lab struct {
	t        testing.TB
	register *register
	size     int64
	real     bool                                  // sockets and clocks are; else a bubble's
	device   func() (d rdma.Device, listen string) // of the fabric of each node; nil: there is none
	members  *members                              // with it, connections are streams of this cluster; nil: they are as they are
	nodes    []*node
	tune     func(*replica.Config)             // what else than tuned a test wants; nil: nothing
	room     func(*node) int64                 // of a node's copy for the mirror, bytes; nil: all of its disk
	pace     replica.Pace                      // of lives that begin
	resized  func(*node)                       // hosts of a node see another size
	allFound bool                              // all nodes would begin the mirror
	accepted func(net.Conn) net.Conn           // wraps the other end of a connection in memory; nil: it is as it is
	flips    bool                              // bits change on their way, now and then; guarded by mu
	seed     uint64                            // of that
	views    func(n *node) Views               // nil: the register
	wrap     func(backend.Store) backend.Store // of the copies; nil: as they are
	log      *slog.Logger                      // nil: none

	mu        sync.Mutex
	listeners map[replica.ID]*pipes
	cut       map[[2]replica.ID]bool
	conns     map[net.Conn][2]replica.ID
}

// node is a machine: its disk and its files outlive the mirror's life.
type node struct {
	lab    *lab
	id     replica.ID
	disk   *backendtest.Disk
	files  *files
	mirror *Mirror // guarded by lab.mu for those who do not start and kill
	fabric *fabric.Fabric
	addr   string
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

const testSize = 4 << 20

// testHeap is the smallest one in which pieces are as long as in the usual one, of which tests would clear 64 MiB for each life of a node.
const testHeap = 8 * maxPiece

// tuned sets how a node works. Benchmarks measure the usual heap.
func (l *lab) tuned(c *replica.Config) {
	if _, measures := l.t.(*testing.B); !measures {
		c.Heap = testHeap
	}
	if l.tune != nil {
		l.tune(c)
	}
}

func newLab(t testing.TB, n int) *lab {
	l := &lab{
		t: t, register: &register{watchers: map[*watcher]bool{}}, size: testSize, listeners: map[replica.ID]*pipes{},
		cut: map[[2]replica.ID]bool{}, conns: map[net.Conn][2]replica.ID{},
	}
	for id := range replica.ID(n) {
		l.nodes = append(l.nodes, &node{lab: l, id: id, disk: backendtest.NewDisk(l.size, 512), files: newFiles()})
	}
	return l
}

func (l *lab) dial(ctx context.Context, from, to replica.ID) (net.Conn, error) {
	if l.real {
		l.mu.Lock()
		addr := l.nodes[to].addr
		l.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	l.mu.Lock()
	p, cut := l.listeners[to], l.cut[[2]replica.ID{from, to}]
	l.mu.Unlock()
	if p == nil || cut {
		return nil, errors.New("nobody answers")
	}
	a, b := net.Pipe()
	if l.accepted != nil {
		b = l.accepted(b)
	}
	select {
	case p.conns <- b:
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[a] = [2]replica.ID{from, to}
	l.seed++
	return &flipping{a, l, rand.New(rand.NewPCG(l.seed, 0))}, nil
}

// flipping is a connection that changes a bit of what is written once in a while.
type flipping struct {
	net.Conn
	l *lab
	r *rand.Rand
}

func (f *flipping) Write(b []byte) (int, error) {
	f.l.mu.Lock()
	flips := f.l.flips
	f.l.mu.Unlock()
	if flips && f.r.IntN(3000) == 0 {
		b = slices.Clone(b)
		b[f.r.IntN(len(b))] ^= 1 << f.r.IntN(8)
	}
	return f.Conn.Write(b)
}

// setCut cuts a link, or mends it.
func (l *lab) setCut(a, b replica.ID, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ends := range [][2]replica.ID{{a, b}, {b, a}} {
		l.cut[ends] = cut
		for c, e := range l.conns {
			if cut && e == ends {
				_ = c.Close()
				delete(l.conns, c)
			}
		}
	}
}

// start begins a life.
func (n *node) start() {
	n.lab.t.Helper()
	if _, err := n.open(); err != nil {
		n.lab.t.Fatal(err)
	}
}

func (n *node) open() (*Mirror, error) {
	l := n.lab
	o := Options{
		Name: "lab", Node: n.id, Found: n.id == 0 || l.allFound, Copy: n.disk, FS: n.files, Views: voter{l.register, n.id}, Tune: l.tuned,
		Dial: func(ctx context.Context, to replica.ID) (net.Conn, error) { return l.dial(ctx, n.id, to) },
		Log:  slog.New(slog.DiscardHandler),
	}
	if l.log != nil {
		o.Log = l.log
	}
	if os.Getenv("ONESHOT_MIRROR_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(l.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", n.id)
	}
	if l.views != nil {
		o.Views = l.views(n)
	}
	if l.wrap != nil {
		o.Copy = l.wrap(n.disk)
	}
	o.Pace = l.pace
	if l.room != nil {
		o.Size, o.Began = l.room(n), testSize/2
		o.Resized = func() { l.resized(n) }
	}
	for id := range replica.ID(len(l.nodes)) {
		o.Nodes = o.Nodes.With(id)
	}
	switch {
	case l.members != nil:
		at := l.members.nodes[memberNames[n.id]]
		listener, err := at.Listen("mirror")
		if err != nil {
			l.t.Fatal(err)
		}
		o.Listener = listener
		o.Dial = func(ctx context.Context, to replica.ID) (net.Conn, error) {
			return at.Dial(ctx, memberNames[to], "mirror")
		}
	case l.real:
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			l.t.Fatal(err)
		}
		l.mu.Lock()
		n.addr = listener.Addr().String()
		l.mu.Unlock()
		o.Listener = listener
	default:
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		l.mu.Lock()
		l.listeners[n.id] = p
		l.mu.Unlock()
		o.Listener = p
	}
	if !l.real {
		o.Clock = func() time.Duration { return time.Duration(time.Now().UnixNano()) }
	}
	if l.device != nil {
		n.fabric = n.newFabric()
		o.Fabric = n.fabric
	}
	m, err := Open(o)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	n.mirror = m
	l.mu.Unlock()
	return m, nil
}

// onLocal has data go over queue pairs without a wire, which work in a bubble; onIWARP over those of the daemon.
func onLocal() (rdma.Device, string) {
	return local.Open(local.Config{}), "pair:0"
}

func onIWARP() (rdma.Device, string) {
	d, err := iwarp.Open(iwarp.Config{LingerTime: 100 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	return d, "127.0.0.1:0"
}

// onChooser is onLocal, but for a device that chooses STags itself, as those of the kernel do.
func onChooser() (rdma.Device, string) {
	d, at := onLocal()
	return chooser{d}, at
}

// chooser is a device whose domains are no rdma.Granters.
type chooser struct{ rdma.Device }

type choosing struct{ rdma.Domain }

func (c chooser) NewDomain() (rdma.Domain, error) {
	d, err := c.Device.NewDomain()
	return choosing{d}, err
}

func (c chooser) NewQueuePair(q rdma.QueuePairConfig) (rdma.QueuePair, error) {
	q.Domain = q.Domain.(choosing).Domain
	return c.Device.NewQueuePair(q)
}

// movers are what data go over in a bubble, by name.
var movers = map[string]func() (rdma.Device, string){"streams": nil, "queue pairs": onLocal, "queue pairs, keys are told": onChooser}

func (n *node) newFabric() *fabric.Fabric {
	d, at := n.lab.device()
	listener, err := d.Listen(at)
	if err != nil {
		n.lab.t.Fatal(err)
	}
	f, err := fabric.New(fabric.Config{Device: d, Listener: listener, Address: listener.Addr().String()})
	if err != nil {
		n.lab.t.Fatal(err)
	}
	return f
}

// closeFabric ends the node's, whose mirror has ended: nothing may be left of it.
func (n *node) closeFabric() {
	if n.fabric == nil {
		return
	}
	if err := n.fabric.Close(); err != nil {
		n.lab.t.Error(err)
	}
	n.fabric = nil
}

// kill ends the process; the disk keeps what it was given.
func (n *node) kill() {
	m := n.mirror
	n.lab.mu.Lock()
	n.mirror = nil
	n.lab.mu.Unlock()
	m.stop()
	n.closeFabric()
}

// current returns the mirror, nil while the node is down.
func (n *node) current() *Mirror {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	return n.mirror
}

// cutPower ends everything: of what was not flushed the disk keeps each sector with a chance.
func (n *node) cutPower(r *rand.Rand, chance float64) {
	n.kill()
	n.disk = backendtest.DiskOf(n.disk.Crash(r, chance), 512)
	n.files.cutPower()
}

// await waits until a node's state holds.
func (l *lab) await(n *node, what string, holds func(replica.State) bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.mirror.Await(ctx, holds); err != nil {
		l.t.Fatalf("node %d: %s: not within a minute; %+v", n.id, what, n.mirror.State())
	}
}

// level waits until node n is the primary, and all copies are in sync.
func (l *lab) level(n *node) {
	l.t.Helper()
	l.await(n, "primary of all copies", func(s replica.State) bool {
		return s.Role == replica.Primary && s.View.InSync.Len() == len(l.nodes)
	})
}

// serves waits until node n is the primary.
func (l *lab) serves(n *node) {
	l.t.Helper()
	l.await(n, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
}

// alone waits until node n is the primary, and only its copy is in sync.
func (l *lab) alone(n *node) {
	l.t.Helper()
	l.await(n, "primary of no other copy", func(s replica.State) bool {
		return s.Role == replica.Primary && s.View.InSync == replica.NodesOf(n.id)
	})
}

func (l *lab) begin() {
	l.t.Helper()
	for _, n := range l.nodes {
		n.start()
	}
	l.level(l.nodes[0])
}

// TestVerifyLosesACopy: a copy leaves while it is compared. Nobody is told that the copies are equal, and what is left is compared no more.
func TestVerifyLosesACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.write(a, 0, bytesOf(128<<10, 1))
		a.mirror.SetPace(replica.Pace{Rate: 64 << 10, Min: 64 << 10}) // a granule each second
		ended := make(chan error, 1)
		go func() {
			_, err := a.mirror.Verify(t.Context(), false, 0)
			ended <- err
		}()
		synctest.Wait() // until it waits for the time of the next granule
		b.kill()
		l.alone(a)
		if err := <-ended; !isLeft(err) {
			t.Errorf("the comparison has ended with %v", err)
		}
		if v := a.mirror.Verification(); v.Ended.IsZero() || v.Done >= v.Total/2 {
			t.Errorf("%+v", v)
		}
		a.mirror.SetPace(replica.Pace{})
		b.start()
		l.level(a)
	})
}

// end closes all, and compares the copies.
func (l *lab) end() {
	l.t.Helper()
	for _, n := range l.nodes {
		if n.mirror == nil {
			continue
		}
		if s := n.mirror.State(); s.Role == replica.Primary {
			v, err := n.mirror.Verify(context.Background(), false, 0)
			for isLeft(err) {
				v, err = n.mirror.Verify(context.Background(), false, 0)
			}
			if isMoved(err) { // State may be a moment behind
				l.await(n, "another one is", func(s replica.State) bool { return s.Role != replica.Primary })
			}
			if err != nil && n.mirror.State().Role != replica.Primary {
				continue // it has learned meanwhile that another one is
			}
			if err != nil || len(v.Found) > 0 {
				l.t.Errorf("the copies are compared: %v, %+v", err, v)
			}
		}
	}
	for _, n := range l.nodes {
		if n.mirror == nil {
			continue
		}
		if err := n.mirror.Close(); err != nil {
			l.t.Error(err)
		}
		n.closeFabric()
	}
}

func (l *lab) do(n *node, op backend.Op) error {
	return backendtest.Do(n.mirror, &op)
}

func (l *lab) write(n *node, off int64, b []byte) {
	l.t.Helper()
	if err := l.do(n, backend.Op{Kind: backend.Write, Off: off, Len: int64(len(b)), Segs: [][]byte{b}}); err != nil {
		l.t.Fatalf("write of %d bytes at %d to node %d: %v", len(b), off, n.id, err)
	}
}

// flush expects that what node n has answered becomes durable.
func (l *lab) flush(n *node) {
	l.t.Helper()
	if err := l.do(n, backend.Op{Kind: backend.Flush}); err != nil {
		l.t.Fatalf("flush of node %d: %v", n.id, err)
	}
}

func (l *lab) expect(n *node, off int64, want []byte) {
	l.t.Helper()
	got := make([]byte, len(want))
	if err := l.do(n, backend.Op{Kind: backend.Read, Off: off, Len: int64(len(got)), Segs: [][]byte{got}}); err != nil {
		l.t.Fatalf("read of %d bytes at %d from node %d: %v", len(want), off, n.id, err)
	}
	if string(got) != string(want) {
		l.t.Fatalf("%d bytes at %d of node %d are not what was written", len(want), off, n.id)
	}
}

func bytesOf(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i/512) ^ seed
	}
	return b
}

// TestSuite: a mirror is a store as any other, over sockets.
func TestSuite(t *testing.T) {
	for _, copies := range []int{3, 2, 1}[:rounds.Of(3, 1)] {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, func(t *testing.T) backend.Store {
				l := newLab(t, copies)
				l.real = true
				l.tune = func(c *replica.Config) { // the machine may be busy, and nobody is lost here
					c.Lease, c.Grace, c.SlowCopy = time.Minute, 2*time.Minute, time.Minute
				}
				for _, n := range l.nodes {
					n.start()
				}
				l.level(l.nodes[0])
				t.Cleanup(func() {
					for _, n := range l.nodes[1:] {
						if err := n.mirror.Close(); err != nil {
							t.Error(err)
						}
					}
				})
				return l.nodes[0].mirror
			}, "NoAllocation")
		})
	}
}

// overEach runs a test of two nodes over all movers.
func overEach(t *testing.T, f func(t *testing.T, l *lab)) {
	for name, device := range movers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 2)
				l.device = device
				f(t, l)
			})
		})
	}
}

// TestPeerKilled: writes go on without a copy, which gets what it lacks when it is back.
func TestPeerKilled(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.write(a, 0, bytesOf(100<<10, 1))
		b.kill()
		l.write(a, 50<<10, bytesOf(100<<10, 2))
		l.alone(a)
		l.write(a, 2<<20, bytesOf(64<<10, 3))
		b.start()
		l.level(a)
		before := a.mirror.State().View
		time.Sleep(2 * time.Second)
		if now := a.mirror.State().View; now != before {
			t.Errorf("the view was %+v when the copy was back, and is %+v: nobody has asked for that", before, now)
		}
		l.expect(a, 0, bytesOf(50<<10, 1))
		l.expect(a, 50<<10, bytesOf(100<<10, 2))
		l.expect(a, 2<<20, bytesOf(64<<10, 3))
	})
}

// TestPrimaryKilled: the other one takes over, with all that was acknowledged.
func TestPrimaryKilled(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		for i := range 64 {
			l.write(a, int64(i)*4096, bytesOf(4096, byte(i)))
		}
		if err := l.do(b, backend.Op{Kind: backend.Flush}); !isMoved(err) {
			t.Errorf("a flush at a node that is not the primary: %v", err)
		}
		a.kill()
		l.serves(b)
		for i := range 64 {
			l.expect(b, int64(i)*4096, bytesOf(4096, byte(i)))
		}
		l.write(b, 0, bytesOf(4096, 200))
		a.start()
		l.level(b)
		b.mirror.push(item{event: replica.Switch{ID: isOrder, To: 0}})
		l.level(a)
		l.expect(a, 0, bytesOf(4096, 200))
		l.expect(a, 4096, bytesOf(4096, 1))
	})
}

// TestDrainedAndRestarted: the process of the only node that is to serve begins anew. The one that is drained serves until its copy is level.
func TestDrainedAndRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 2)
		l.written(a, want)
		b.mirror.Drain(replica.NodesOf(b.id))
		a.kill()
		a.start()
		a.mirror.Drain(replica.NodesOf(b.id))
		l.level(a) // b has brought it level, and handed over
		l.expect(a, 64<<10, want)
		if s := a.mirror.State(); s.View.Term < 4 {
			t.Errorf("%+v", s)
		}
	})
}
