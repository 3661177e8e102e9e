package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

const mib = 1 << 20

// fixture is a registry with one store, "disk", which has the partitions a and b, one after the other.
type fixture struct {
	*Registry
	t     *testing.T
	s     *Store
	below *faulty.Store
	left  bool // the test closes the store
}

func newFixture(t *testing.T, access ...string) *fixture {
	t.Helper()
	inner, err := memory.New(16 * mib)
	if err != nil {
		t.Fatal(err)
	}
	below := faulty.New(inner, faulty.Seed(t))
	f := newFixtureOn(t, below, access...)
	f.below = below
	return f
}

// newFixtureOn is newFixture on a store that does not fail.
func newFixtureOn(t *testing.T, whole backend.Store, access ...string) *fixture {
	t.Helper()
	set, err := partition.Init(whole, false)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{New(), t, nil, nil, false}
	_, err = set.Create(partition.Any, partition.New{Name: "a", Size: 2 * mib, Access: lines(t, access...)}, partition.New{Name: "b", Size: 2 * mib, Access: lines(t, "any rw")})
	if err != nil {
		t.Fatal(err)
	}
	f.s = f.New(Config{
		Name: "disk", Store: whole, Set: set, Durability: rdma.DurabilityNone,
		NewVolume: func(view backend.Store, _ *partition.Partition) (*volume.Volume, error) {
			return volume.New(volume.Config{Store: view, Logger: slog.New(slog.DiscardHandler)})
		},
	})
	f.s.Publish("disk", false)
	t.Cleanup(func() {
		if f.left {
			return
		}
		if err := f.s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// lines reads access lines, each "WHO RIGHTS".
func lines(t *testing.T, text ...string) (list []partition.Access) {
	t.Helper()
	for _, l := range text {
		var who, rights string
		if _, err := fmt.Sscan(l, &who, &rights); err != nil {
			t.Fatal(err)
		}
		w, err := partition.ParseWho(who)
		r, err2 := partition.ParseRights(rights)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		list = append(list, partition.Access{Who: w, Rights: r})
	}
	return list
}

func (f *fixture) alter(name string, c partition.Change, force bool) error {
	return f.s.Alter(f.t.Context(), partition.Any, name, c, force)
}

// open opens an endpoint that nobody serves: it is closed as soon as Gone is called.
func (f *fixture) open(name string, id partition.Identity, want rdma.Rights) (*Endpoint, <-chan error, error) {
	gone, ready := make(chan error, 1), make(chan struct{})
	var e *Endpoint
	e, err := f.Open(f.t.Context(), Request{Name: name, Identity: id, Want: want, Gone: func(err error) {
		go func() {
			<-ready
			e.Close()
			gone <- err
		}()
	}})
	close(ready)
	return e, gone, err
}

func (f *fixture) mustOpen(name string, id partition.Identity, want rdma.Rights) (*Endpoint, <-chan error) {
	f.t.Helper()
	e, gone, err := f.open(name, id, want)
	if err != nil {
		f.t.Fatal(err)
	}
	return e, gone
}

// device serves endpoints of f to id.
func (f *fixture) device(id partition.Identity) *local.Device {
	d := local.Open(local.Config{Open: f.opens(id, 0)})
	f.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return d
}

// opens is the Opener of a device for id, who goes on where the user of an endpoint of that lineage was; 0: for anybody.
func (f *fixture) opens(id partition.Identity, follows uint64) local.Opener {
	return func(ctx context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
		e, err := f.Open(ctx, Request{Name: name, Identity: id, Want: want, Follows: follows, Gone: gone})
		if err != nil {
			return local.Opened{}, err
		}
		return local.Opened{Medium: e, Info: e.Describe(), Memory: e.Lends(), Again: f.opens(id, e.Lineage()), Close: e.Close}, nil
	}
}

// user is a queue pair to an endpoint.
type user struct {
	qp  rdma.QueuePair
	cq  rdma.CompletionQueue
	mem rdma.Region
	buf []byte
	end chan struct{}
}

func (f *fixture) use(d *local.Device, name string) *user {
	t := f.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	u := &user{end: make(chan struct{})}
	dom, err := d.NewDomain()
	must(err)
	u.cq, err = d.NewCompletionQueue(64, nil)
	must(err)
	u.qp, err = d.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: u.cq, RecvCQ: u.cq, MaxWork: 64, Order: rdma.FreeStart | rdma.FreeFinish,
		Disconnected: func(error) { close(u.end) },
	})
	must(err)
	must(d.Connect(t.Context(), u.qp, name, rdma.ConnParams{}))
	lease := mem.NewPool(4 * mib).Lease(mib)
	u.buf = lease.Bytes()
	u.mem, err = dom.Register(u.buf, rdma.AccessLocalWrite)
	must(err)
	t.Cleanup(func() {
		must(u.qp.Close())
		must(u.cq.Close())
		must(u.mem.Deregister())
		must(dom.Close())
		lease.Release()
	})
	return u
}

// write posts a Write of 4096 octets and returns the status of its completion.
func (u *user) write(t *testing.T, off int64, fill byte) rdma.Status {
	t.Helper()
	if err := u.post(off, fill, 0); err != nil {
		return rdma.StatusFlushed
	}
	return u.ended()
}

func (u *user) post(off int64, fill byte, flags rdma.Flags) error {
	e := u.qp.Endpoint()
	copy(u.buf, bytes.Repeat([]byte{fill}, 4096))
	w := rdma.Work{
		Op: rdma.OpWrite, Flags: rdma.Signaled | flags, RemoteSTag: e.STag, RemoteOffset: e.Base + uint64(off),
		SGL: []rdma.SGE{{Bytes: u.buf[:4096], Region: u.mem}},
	}
	_, err := u.qp.Post([]rdma.Work{w})
	return err
}

func (u *user) ended() rdma.Status {
	var c [1]rdma.Completion
	for u.cq.Poll(c[:]) == 0 {
	}
	return c[0].Status
}

// octets reads from the whole store, without volumes and endpoints.
func (f *fixture) octets(off, n int64) []byte {
	f.t.Helper()
	b := make([]byte, n)
	op := backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: [][]byte{b}}
	if !f.below.Submit(&op) || op.Err != nil {
		f.t.Fatal("cannot read the store", op.Err)
	}
	return b
}

func TestRights(t *testing.T) {
	for letters, r := range map[string]rdma.Rights{"r": rdma.RightRead, "w": rdma.RightWrite, "f": rdma.RightFlush, "a": rdma.RightAtomics, "d": rdma.RightDiscard, "m": rdma.RightManage} {
		if p, err := partition.ParseRights(letters); err != nil || rdma.Rights(p) != r {
			t.Fatalf("the letter %s means other bits in the table than to a queue pair", letters)
		}
	}
	f := newFixture(t, "any r", "uid:7 w", "gid:9 f", "name:app rwfad")
	for _, c := range []struct {
		id   partition.Identity
		want rdma.Rights
		got  string
	}{
		{partition.Identity{}, 0, "r"},
		{partition.Identity{Local: true, UID: 7, GIDs: []uint32{8, 9}}, 0, "rwf"},
		{partition.Identity{UID: 7}, 0, "r"}, // who is not of this machine has no uid
		{partition.Identity{Name: "app"}, 0, "rwfad"},
		{partition.Identity{Name: "app"}, rdma.RightRead | rdma.RightManage, "r"},
		{partition.Identity{}, rdma.RightWrite, ""},
	} {
		e, _, err := f.open("disk/a", c.id, c.want)
		if c.got == "" {
			if !errors.Is(err, rdma.ErrNoEndpoint) {
				t.Errorf("%+v may not open it: %v", c.id, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := e.Describe(); d.Rights.String() != c.got || d.Name != "disk/a" || d.Size != 2*mib {
			t.Errorf("%+v has %+v, want the rights %s", c.id, d, c.got)
		}
		e.Close()
	}
	for _, name := range []string{"disk/c", "disc/a", "disk", "", "uuid:0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15"} {
		if _, _, err := f.open(name, partition.Identity{}, 0); !errors.Is(err, rdma.ErrNoEndpoint) {
			t.Errorf("%q: %v", name, err)
		}
	}
	e, _ := f.mustOpen("disk/b", partition.Identity{}, 0)
	same, _ := f.mustOpen("uuid:"+e.Describe().UUID, partition.Identity{}, 0)
	if same.Describe().Name != "disk/b" {
		t.Error("by its UUID another partition is found")
	}
	same.Close()
	e.Close()
	if err := f.alter("a", partition.Change{Revoke: []partition.Who{{}}}, false); err != nil {
		t.Fatal(err)
	}
	list := f.List(partition.Identity{})
	if len(list) != 1 || list[0].Name != "disk/b" {
		t.Errorf("somebody without a right of disk/a is told of it: %+v", list)
	}
}

// A client whose right is revoked while it writes changes nothing afterwards, and keeps its rights to other
// partitions.
func TestRevokedUnderLoad(t *testing.T) {
	f := newFixture(t, "any rw")
	d := f.device(partition.Identity{})
	a, b := f.use(d, "disk/a"), f.use(d, "disk/b")
	if s := b.write(t, 0, 7); s != rdma.StatusOK {
		t.Fatal(s)
	}
	started, last := make(chan struct{}), make(chan rdma.Status)
	go func() {
		s := rdma.StatusOK
		for n := 0; s == rdma.StatusOK; n++ {
			if s = a.write(t, int64(n%512)*4096, byte(n)|1); n == 100 {
				close(started)
			}
		}
		last <- s
	}()
	<-started
	if err := f.alter("a", partition.Change{Grant: lines(t, "any r")}, false); err != nil {
		t.Fatal(err)
	}
	if s := <-last; s != rdma.StatusRemoteAccess && s != rdma.StatusFlushed {
		t.Errorf("the work after the right was gone: %v", s)
	}
	<-a.end
	before := f.octets(mib, 2*mib)
	again := f.use(d, "disk/a")
	if r := again.qp.Endpoint().Rights; r != rdma.RightRead {
		t.Errorf("who connects again has the rights %v", r)
	}
	if s := again.write(t, 0, 99); s != rdma.StatusRemoteAccess {
		t.Errorf("a write without the right: %v", s)
	}
	if !bytes.Equal(before, f.octets(mib, 2*mib)) {
		t.Error("octets have changed after the right was gone")
	}
	if s := b.write(t, 4096, 8); s != rdma.StatusOK {
		t.Errorf("a write to the other partition: %v", s)
	}
}

// A partition in use is deleted only by force. Nothing is written to its place afterwards, and never to that of its
// neighbour.
func TestDeleteUnderLoad(t *testing.T) {
	f := newFixture(t, "any rw")
	d := f.device(partition.Identity{})
	a := f.use(d, "disk/a")
	neighbour := f.octets(3*mib, 2*mib)
	started, last := make(chan struct{}), make(chan rdma.Status)
	go func() {
		s := rdma.StatusOK
		for n := 0; s == rdma.StatusOK; n++ {
			if s = a.write(t, int64(n%512)*4096, byte(n)|1); n == 600 {
				close(started)
			}
		}
		last <- s
	}()
	<-started
	var use *UseError
	if err := f.s.Delete(t.Context(), partition.Any, "a", false, false); !errors.As(err, &use) || use.Endpoints != 1 {
		t.Fatalf("a partition in use: %v", err)
	}
	if err := f.s.Delete(t.Context(), partition.Any, "a", true, true); err != nil {
		t.Fatal(err)
	}
	after := f.octets(mib, 2*mib)
	if !bytes.Equal(after, make([]byte, 2*mib)) {
		t.Error("what was erased is not zeroes: somebody wrote afterwards")
	}
	if s := <-last; s != rdma.StatusRemoteAccess && s != rdma.StatusFlushed {
		t.Errorf("the work after the partition was gone: %v", s)
	}
	if !bytes.Equal(neighbour, f.octets(3*mib, 2*mib)) {
		t.Error("the neighbour has other octets")
	}
	if _, _, err := f.open("disk/a", partition.Identity{}, 0); !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Errorf("it is opened again: %v", err)
	}
}

func TestSizeAndName(t *testing.T) {
	f := newFixture(t, "any rw")
	first, _ := f.mustOpen("disk/a", partition.Identity{}, 0)
	seq := first.Sequence()
	seq.Written()
	first.Close()
	e, gone := f.mustOpen("disk/a", partition.Identity{}, 0)
	if e.Sequence() != seq {
		t.Error("the numbers of writes begin again with each endpoint")
	}
	size, name := int64(mib), "log"
	var use *UseError
	for _, c := range []partition.Change{{Size: &size}, {Name: &name}} {
		if err := f.alter("a", c, false); !errors.As(err, &use) {
			t.Fatalf("a change of a partition in use: %v", err)
		}
	}
	if err := f.alter("a", partition.Change{Size: &size}, true); err != nil {
		t.Fatal(err)
	}
	if <-gone == nil {
		t.Error("the endpoint is not told why")
	}
	e, gone = f.mustOpen("disk/a", partition.Identity{}, 0)
	if e.Sequence() == seq || e.Describe().Size != mib {
		t.Error("a smaller partition has the volume of the larger one")
	}
	size = 2 * mib
	if err := f.alter("a", partition.Change{Size: &size}, false); err != nil {
		t.Fatal(err)
	}
	if e.Describe().Size != mib || e.Info().Size != 2*mib {
		t.Errorf("%d and %d bytes: the endpoint keeps its size, and the volume follows", e.Describe().Size, e.Info().Size)
	}
	e.Close()
	if len(gone) != 0 {
		t.Error("a partition that grows ends its endpoints")
	}
	if err := f.alter("a", partition.Change{Name: &name}, false); err != nil {
		t.Fatal(err)
	}
	e, _ = f.mustOpen("disk/log", partition.Identity{}, 0)
	e.Close()
}

func TestLUNs(t *testing.T) {
	f := newFixture(t, "any rw")
	shown, err := f.s.Show("a")
	if err != nil {
		t.Fatal(err)
	}
	e, _ := f.mustOpen("disk/a", partition.Identity{}, 0)
	if e.Sequence() != shown.Volume().Sequence() {
		t.Error("a LUN and an endpoint have two volumes")
	}
	var use *UseError
	if err := f.s.Delete(t.Context(), partition.Any, "a", false, true); !errors.As(err, &use) || use.LUNs != 1 {
		t.Errorf("force takes a partition from under a LUN: %v", err)
	}
	e.Close()
	shown.Release()
	shown.Release() // is once
	if err := f.s.Delete(t.Context(), partition.Any, "a", false, false); err != nil {
		t.Error(err)
	}
	if _, err := f.s.Show("a"); err == nil {
		t.Error("a deleted partition is shown")
	}
}

// cached is a store whose writes a power cut loses.
type cached struct{ backend.Store }

func (c cached) Info() backend.Info {
	i := c.Store.Info()
	i.VolatileCache = true
	return i
}

// A change of the table that comes while a partition is being opened holds for it.
func TestAlteredWhileOpening(t *testing.T) {
	whole, err := memory.New(16 * mib)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixtureOn(t, cached{whole}, "any rwfm")
	inner := f.s.cfg.NewVolume
	through, size := partition.Cache{Through: true}, int64(1*mib+2*mib)
	f.s.cfg.NewVolume = func(view backend.Store, p *partition.Partition) (*volume.Volume, error) {
		v, err := inner(view, p)
		if p.Name == "b" { // it has room behind it
			if err := f.alter("b", partition.Change{Cache: &through, Size: &size}, false); err != nil {
				t.Error(err)
			}
		}
		return v, err
	}
	e, _ := f.mustOpen("disk/b", partition.Identity{}, 0)
	if !e.part.age.Through() || e.Handle.Info().Size != size {
		t.Errorf("the table says that writes are durable at once, and %d bytes; of the open partition that is %v, and it has %d", size, e.part.age.Through(), e.Handle.Info().Size)
	}
	e.Close()
}

// A store is not closed while somebody still shows its volume.
func TestCloseInUse(t *testing.T) {
	f := newFixture(t, "any rw")
	f.left = true
	shown, err := f.s.Show("a")
	if err != nil {
		t.Fatal(err)
	}
	gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes})
	v := shown.Volume()
	h, done := v.Open(nil), make(signal, 1)
	op := backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: done}
	if h.Submit(&op) {
		t.Fatal("the operation did not wait")
	}
	shown.Release()
	if err := f.s.Close(t.Context()); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("closed while an operation is under way: %v", err)
	}
	if len(f.List(partition.Identity{})) != 0 {
		t.Error("it is still found")
	}
	gate.Release()
	if <-done; op.Err != nil {
		t.Errorf("the operation that was under way: %v", op.Err)
	}
	h.Close()
	if err := errors.Join(v.Close(), f.below.Close()); err != nil {
		t.Error(err)
	}
}

// A partition whose volume could not be closed for a change keeps its store open.
func TestCloseBehindBarred(t *testing.T) {
	f := newFixture(t, "any rw")
	f.left = true
	shown, err := f.s.Show("a")
	if err != nil {
		t.Fatal(err)
	}
	v := shown.Volume()
	h := v.Open(nil) // of something that uses the volume, and of which the registry does not know
	shown.Release()
	for _, err := range []error{f.s.Delete(t.Context(), partition.Any, "a", false, false), f.s.Close(t.Context())} {
		if !errors.Is(err, volume.ErrInUse) {
			t.Errorf("while the volume is in use: %v", err)
		}
	}
	h.Close()
	if err := errors.Join(v.Close(), f.below.Close()); err != nil {
		t.Error(err)
	}
}

// Endpoints that may write to a store that becomes read-only are ended, and its table stays as it is.
func TestReadOnly(t *testing.T) {
	f := newFixture(t, "any r", "name:app rwadm")
	_, ended := f.mustOpen("disk/a", partition.Identity{Name: "app"}, 0)
	reader, still := f.mustOpen("disk/a", partition.Identity{}, 0)
	f.s.Publish("golden", true)
	<-ended
	e, _ := f.mustOpen("golden/a", partition.Identity{Name: "app"}, 0)
	if r := e.Describe().Rights; r != rdma.RightRead {
		t.Errorf("rights %v of a read-only store", r)
	}
	e.Close()
	reader.Close()
	if len(still) != 0 {
		t.Error("a reader was ended")
	}
	_, err := f.s.Create(partition.Any, partition.New{Name: "c", Size: mib})
	for _, err := range []error{err, f.alter("a", partition.Change{}, false), f.s.Delete(t.Context(), partition.Any, "a", false, false), f.s.Init(t.Context(), true)} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("a change: %v", err)
		}
	}
}

func TestLimits(t *testing.T) {
	f := newFixture(t, "any rw")
	var all []*Endpoint
	app, other := partition.Identity{Name: "app"}, partition.Identity{Local: true, UID: 7}
	full := func(part string, id partition.Identity, share bool) {
		t.Helper()
		_, _, err := f.open(part, id, 0)
		limit, ok := errors.AsType[*LimitError](err)
		if !ok || limit.Store != "disk" || limit.Err != nil != share {
			t.Errorf("one too many: %v", err)
		}
	}
	for _, id := range []partition.Identity{app, other} {
		for range maxPerStore / 2 {
			e, _ := f.mustOpen("disk/a", id, 0)
			all = append(all, e)
		}
		if len(all) < maxPerStore {
			full("disk/a", id, true) // others find places
		}
	}
	full("disk/b", partition.Identity{}, false)
	all[0].Close()
	full("disk/b", other, true)
	e, _ := f.mustOpen("disk/b", app, 0)
	e.Close()
	for _, e := range all[1:] {
		e.Close()
	}
	if f.count() != 0 {
		t.Error("closed endpoints are counted")
	}
	for _, id := range []partition.Identity{app, other, {}} {
		if err := errors.Join(f.s.shares.Take(2, id.Shares()), f.shares.Take(2, id.Shares())); err != nil {
			t.Errorf("closed endpoints: %v", err)
		}
	}
}

func (f *fixture) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Registry.open
}

// Operations are counted, and the counts of a partition outlive its endpoints.
func TestCounts(t *testing.T) {
	f := newFixture(t, "any rwf")
	e, gone := f.mustOpen("disk/a", partition.Identity{Name: "app"}, 0)
	buf := make([]byte, 8192)
	do := func(e *Endpoint, op backend.Op) {
		t.Helper()
		c := make(signal, 1)
		op.Done = c
		if !e.Submit(&op) {
			<-c
		}
		if op.Done != backend.Completer(c) {
			t.Fatal("the operation comes back with another Completer")
		}
	}
	do(e, backend.Op{Kind: backend.Write, Len: 8192, Segs: [][]byte{buf}})
	do(e, backend.Op{Kind: backend.Flush})
	f.below.Fail(faulty.Match{Kinds: faulty.Reads}, &backend.MediumError{Err: errors.New("worn")})
	do(e, backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{buf[:4096]}})
	do(e, backend.Op{Kind: backend.Read, Off: 2 * mib, Len: 4096, Segs: [][]byte{buf[:4096]}})
	gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes})
	done := make(signal, 1)
	late := backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{buf[:4096]}, Done: done}
	if e.Submit(&late) {
		t.Fatal("the operation did not wait")
	}
	if n := f.Endpoints()[0]; n.Counts.InFlight != 1 || n.Identity != "name:app" || n.Store != "disk" || n.Partition != "a" {
		t.Errorf("%+v", n)
	}
	gate.Release()
	<-done
	check := func(c *Counts) {
		t.Helper()
		var ops [classes]uint64
		for i := range ops {
			for _, n := range c.Buckets[i] {
				ops[i] += n
			}
		}
		if ops != [classes]uint64{2, 2, 1} || c.Bytes != [classes]uint64{0, 8192 + 4096, 0} ||
			c.Failed != [failures]uint64{FailedMedium: 1, FailedRange: 1} || c.InFlight != 0 {
			t.Errorf("%d operations, %d bytes, %d failed, %d in flight", ops, c.Bytes, c.Failed, c.InFlight)
		}
	}
	check(&f.Endpoints()[0].Counts)
	if f.Drop(e.number+1) || !f.Drop(e.number) {
		t.Error("Drop takes another number for it")
	}
	<-gone
	for _, u := range f.s.Snapshot().Use {
		check(&u.Counts)
	}
	if len(f.Endpoints()) != 0 {
		t.Error("a closed endpoint is listed")
	}
}

type signal chan struct{}

func (c signal) OpDone(*backend.Op) { c <- struct{}{} }

// While an operation hangs, its partition cannot be deleted; later it can be used again.
func TestHangs(t *testing.T) {
	f := newFixture(t, "any rw")
	d := f.device(partition.Identity{})
	a := f.use(d, "disk/a")
	gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes})
	ended := make(chan rdma.Status)
	go func() { ended <- a.write(t, 0, 1) }()
	gate.Await(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.s.Delete(ctx, partition.Any, "a", false, true); !errors.Is(err, ErrHangs) {
		t.Errorf("a partition whose operation hangs: %v", err)
	}
	gate.Release()
	if s := <-ended; s != rdma.StatusOK {
		t.Errorf("the operation that was under way: %v", s)
	}
	b := f.use(d, "disk/a")
	if s := b.write(t, 0, 2); s != rdma.StatusOK {
		t.Error(s)
	}
}

// What hangs in the store for somebody who was ended, or has gone, does not come on top of what another one is told is done. Nor
// does what he has still to write.
func TestHangsForOneWhoIsGone(t *testing.T) {
	for what, end := range map[string]func(f *fixture, u *user){
		"he is dropped":   func(f *fixture, _ *user) { f.Drop(f.Endpoints()[0].Number) },
		"he has vanished": func(_ *fixture, u *user) { u.qp.Abort(nil) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, "any rwf", "name:next rw")
			a := f.use(f.device(partition.Identity{}), "disk/a")
			gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes, Off: mib, Len: mib})
			if err := a.post(0, 1, 0); err != nil {
				t.Fatal(err)
			}
			gate.Await(1)
			end(f, a)
			b := f.use(f.device(partition.Identity{Name: "next"}), "disk/a")
			if err := b.post(0, 2, 0); err != nil {
				t.Fatal(err)
			}
			if gate.Held() != 1 {
				t.Error("a write goes to the store beside one that hangs there for somebody who is gone")
			}
			gate.Release()
			if s := b.ended(); s != rdma.StatusOK {
				t.Error(s)
			}
			if f.octets(mib, 1)[0] != 2 {
				t.Error("what hung for somebody who is gone is over what was written after him")
			}
		})
	}
}

// Nor is what waits for such a write, if its own user is ended, or goes, meanwhile; and he is told that.
func TestGoneWhileWaiting(t *testing.T) {
	for want, end := range map[rdma.Status]func(f *fixture, u *user){
		rdma.StatusRemoteAccess: func(f *fixture, _ *user) { f.Drop(f.Endpoints()[1].Number) },
		rdma.StatusFlushed:      func(_ *fixture, u *user) { u.qp.Abort(nil) },
	} {
		f := newFixture(t, "any rwf")
		d := f.device(partition.Identity{})
		a, b := f.use(d, "disk/a"), f.use(d, "disk/a")
		gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes, Off: mib, Len: mib})
		if err := a.post(0, 1, 0); err != nil {
			t.Fatal(err)
		}
		gate.Await(1)
		a.qp.Abort(nil)
		if err := b.post(0, 2, 0); err != nil {
			t.Fatal(err)
		}
		end(f, b)
		gate.Release()
		if s := b.ended(); s != want {
			t.Errorf("%v, want %v", s, want)
		}
		if f.octets(mib, 1)[0] != 1 {
			t.Error("what waited is done")
		}
	}
}

// A Write with a barrier is not done if its endpoint was ended while the flush before it was under way.
func TestDroppedBeforeBarrier(t *testing.T) {
	f := newFixture(t, "any rwf")
	a := f.use(f.device(partition.Identity{}), "disk/a")
	gate := f.below.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
	if err := a.post(0, 1, rdma.Barrier); err != nil {
		t.Fatal(err)
	}
	gate.Await(1)
	f.Drop(f.Endpoints()[0].Number)
	gate.Release()
	if s := a.ended(); s != rdma.StatusRemoteAccess {
		t.Error(s)
	}
	if f.octets(mib, 1)[0] != 0 {
		t.Error("an endpoint that was ended writes")
	}
}

// A change that is for another table, or makes no sense, is refused before it ends any endpoint.
func TestStaleChangesDisturbNobody(t *testing.T) {
	f := newFixture(t, "any rw")
	_, gone := f.mustOpen("disk/a", partition.Identity{}, 0)
	var stale *partition.GenerationError
	if err := f.s.Delete(t.Context(), 1, "a", false, true); !errors.As(err, &stale) {
		t.Errorf("a change for another generation: %v", err)
	}
	b, odd := "b", int64(1000)
	for _, c := range []partition.Change{{Name: &b}, {Size: &odd}, {Name: new(string)}} {
		if err := f.alter("a", c, true); err == nil {
			t.Errorf("%+v is possible", c)
		}
	}
	if len(gone) != 0 || len(f.Endpoints()) != 1 {
		t.Error("what cannot be done has ended an endpoint")
	}
	if !slices.ContainsFunc(f.Endpoints(), func(i Info) bool { return f.Drop(i.Number) }) {
		t.Error("nothing to drop")
	}
	<-gone
}

func TestInit(t *testing.T) {
	f := newFixture(t, "any rw")
	if err := f.s.Init(t.Context(), false); err == nil {
		t.Error("a table is replaced without force")
	}
	e, _ := f.mustOpen("disk/a", partition.Identity{}, 0)
	var use *UseError
	if err := f.s.Init(t.Context(), true); !errors.As(err, &use) {
		t.Errorf("a table in use is replaced: %v", err)
	}
	e.Close()
	if err := f.s.Init(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if n := f.s.Snapshot(); len(n.Table.Partitions) != 0 || len(n.Use) != 0 {
		t.Errorf("%+v", n)
	}
}

// A table that is in force, though not all that stood beside it could be overwritten, is the one that is used: a restart finds it, too.
func TestInitHalf(t *testing.T) {
	for what, off := range map[string]int64{"the other slot": 0, "behind the slots": mib - 4096} {
		f := newFixture(t, "any rw")
		was := f.s.Snapshot().Table // in both slots: the first one counts, so the second is written first
		stop := f.below.Fail(faulty.Match{Kinds: faulty.Writes, Off: off, Len: 4096}, errors.New("broken"))
		err := f.s.Init(t.Context(), true)
		stop()
		if err == nil {
			t.Fatal("Init ends well")
		}
		tables, err := partition.Open(f.below)
		if err != nil {
			t.Fatal(err)
		}
		n := f.s.Snapshot()
		if disk := tables.Table(); n.Table.UUID != disk.UUID || n.Table.Generation != disk.Generation || len(n.Table.Partitions) != len(disk.Partitions) {
			t.Errorf("%s: in force is generation %d, a restart finds %d (it was %d)", what, n.Table.Generation, disk.Generation, was.Generation)
		}
		if (n.Other != nil) != (what == "the other slot") {
			t.Errorf("%s: of the other slot is said: %v", what, n.Other)
		}
	}
}

// Only some operations are timed, but all are counted, and nobody ever reads a count that is lower than before.
func TestSampling(t *testing.T) {
	f := newFixture(t, "any rw")
	e, _ := f.mustOpen("disk/a", partition.Identity{}, 0)
	defer e.Close()
	op := &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: make(signal, 1)}
	was := new(Counts)
	for n := uint64(1); n <= 3*sampled; n++ {
		e.Submit(op)
		if n%7 != 0 {
			continue
		}
		now, sum := e.Counts(), uint64(0)
		for i, b := range now.Buckets[Write] {
			sum += b
			if b < was.Buckets[Write][i] {
				t.Fatalf("after %d operations bucket %d has fewer than before", n, i)
			}
		}
		if sum != n || now.SumNS[Write] < was.SumNS[Write] || now.Bytes[Write] != n*4096 {
			t.Fatalf("after %d operations %d are counted, with %d bytes", n, sum, now.Bytes[Write])
		}
		was = now
	}
	if n := e.n[Write].begun.Load(); n != 3*sampled {
		t.Errorf("%d begun", n)
	}
}

// Counting costs no allocation.
func TestAllocations(t *testing.T) {
	f := newFixture(t, "any rw")
	e, _ := f.mustOpen("disk/a", partition.Identity{}, 0)
	defer e.Close()
	op := &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: make(signal, 1)}
	if n := testing.AllocsPerRun(200, func() { e.Submit(op) }); n >= 1 {
		t.Errorf("%v allocations for an operation", n)
	}
}

// shrinking is a store that becomes smaller while something is erased.
type shrinking struct {
	backend.Store
	to atomic.Int64 // 0: it has not yet
}

func (s *shrinking) Info() backend.Info {
	i := s.Store.Info()
	if to := s.to.Load(); to != 0 {
		i.Size = to
	}
	return i
}

func (s *shrinking) Submit(op *backend.Op) bool {
	if op.Kind == backend.Discard || op.Kind == backend.WriteZeroes {
		s.to.Store(6 * mib)
	}
	return s.Store.Submit(op)
}

// A change that is in force, and has failed nevertheless, ends the endpoints that lose a right by it.
func TestFailedChangeRevokes(t *testing.T) {
	inner, err := memory.New(16 * mib)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixtureOn(t, &shrinking{Store: inner}, "any r")
	var told error
	e, err := f.Open(t.Context(), Request{Name: "disk/b", Gone: func(err error) { told = err }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	size := int64(8 * mib)
	if err := f.alter("b", partition.Change{Size: &size, Revoke: []partition.Who{{}}}, false); err == nil {
		t.Fatal("a partition grows over the end of its store")
	}
	if list := f.List(partition.Identity{}); len(list) != 1 || list[0].Name != "disk/a" {
		t.Fatalf("the change is not in force: %+v", list)
	}
	if told == nil {
		t.Error("an endpoint whose right was revoked goes on")
	}
}
