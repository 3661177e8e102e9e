package volume

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume/access"
)

// heldStore completes each operation when it is told to.
type heldStore struct {
	*sliceStore
	grown int64
	held  []*backend.Op
}

func (s *heldStore) Info() backend.Info {
	info := s.sliceStore.Info()
	info.Size += s.grown
	return info
}

func (s *heldStore) Submit(op *backend.Op) bool {
	switch op.Done.(type) {
	case *Request, *handleOp:
	default:
		return s.sliceStore.Submit(op) // a sanitize operation's
	}
	s.held = append(s.held, op)
	return false
}

// complete does the operations that are held.
func (s *heldStore) complete() {
	held := s.held
	s.held = nil
	for _, op := range held {
		s.sliceStore.Submit(op)
		op.Done.OpDone(op)
	}
}

// show is a view of a volume that is no logical unit: a namespace, say, or an endpoint. It has blocks
// of its own size, and one request at a time.
type show struct {
	v      *Volume
	block  int64
	holder access.Holder
	pool   *mem.Pool

	r      *Request
	data   []byte      // what the request pulls
	ready  int         // how often the request was told to go on
	ended  bool        // the request is Done
	drains chan func() // what Drain was given while there was a request
	sizes  []int64
	denied access.Denial
	told   access.Event
}

var (
	_ View              = (*show)(nil)
	_ access.Subscriber = (*show)(nil)
	_ Client            = (*show)(nil)
)

func (s *show) Drain(drained func()) {
	if s.r == nil {
		drained()
		return
	}
	s.drains <- drained
}
func (s *show) SizeChanged()                 { s.sizes = append(s.sizes, s.v.Size()/s.block) }
func (s *show) Holder() access.Holder        { return s.holder }
func (s *show) Session() any                 { return s }
func (s *show) Deny(mask, got access.Denial) { s.denied = s.denied&^mask | got }
func (s *show) Tell(e access.Event)          { s.told |= e }
func (s *show) Abort(done func())            { done() }
func (s *show) Signal(flag *atomic.Bool)     { flag.Store(true); s.ready++ }
func (s *show) Lease(n int) *mem.Lease       { return s.pool.Lease(n) }
func (s *show) Begun()                       {}
func (s *show) Cork() backend.Uncorker       { return nil }

func newShow(v *Volume, block int64, holder access.Holder) *show {
	s := &show{v: v, block: block, holder: holder, pool: mem.NewPool(16 << 20), drains: make(chan func(), 1)}
	v.Attach(s)
	v.Access().Subscribe(s)
	return s
}

var errDenied = errors.New("denied")

// begin begins a request of n blocks, of those that change bytes if writes is set.
func (s *show) begin(writes bool, data []byte, step func(r *Request, then Step) Next) error {
	d := access.Reads
	if writes {
		d = access.Writes
	}
	if s.denied&(d|access.Sanitizing|access.SanitizeFailed|access.OfGroups) != 0 {
		return errDenied
	}
	s.r, s.data, s.ended, s.ready = new(Request), data, false, 0
	s.r.Begin(s, s.v, int(s.block), mem.MaxLease, false, false)
	s.drive(step(s.r, func(*Request) Next { return Done }))
	return nil
}

// drive does what the request asks for until it waits or ends.
func (s *show) drive(next Next) {
	for due := true; due; {
		switch next {
		case Pull:
			s.r.Place(0, s.data)
			next, due = s.r.Pulled()
		case Done:
			s.ended = true
			return
		default:
			next, due = s.r.Resume(false)
		}
	}
}

// end gives the request back and returns what it has read, how it has ended, and where it differs.
func (s *show) end(t *testing.T) (got []byte, mismatch int64, err error) {
	t.Helper()
	if !s.ended {
		s.drive(Wait)
	}
	if !s.ended {
		t.Fatal("the request has not ended")
	}
	for _, seg := range s.r.In {
		got = append(got, seg...)
	}
	mismatch, err = s.r.Mismatch, s.r.Err
	s.r.Settle()
	s.r.Release()
	s.r = nil
	return got, mismatch, err
}

func (s *show) write(t *testing.T, lba, blocks int64, data []byte) error {
	t.Helper()
	return s.begin(true, data, func(r *Request, then Step) Next { return r.Write(lba*s.block, blocks*s.block, false, then) })
}

func (s *show) read(t *testing.T, lba, blocks int64) error {
	t.Helper()
	return s.begin(false, nil, func(r *Request, then Step) Next {
		return r.Read(lba*s.block, blocks*s.block, blocks*s.block, false, then)
	})
}

// twoShows has a volume that two protocols show: one with blocks of 512 bytes and holders for each
// port, and one with blocks of 4096 bytes, whose host holds through whatever port it comes.
func twoShows(t *testing.T) (store *heldStore, v *Volume, unit, namespace, other *show) {
	t.Helper()
	store = &heldStore{sliceStore: newSliceStore(1 << 20)}
	v = open(t, Config{Store: store})
	const protocol access.Protocol = 0xf0 // not SCSI's
	host := access.Initiator{Protocol: protocol, Name: "0123456789abcdef0123456789abcdef"}
	unit = newShow(v, 512, access.Holder{Initiator: access.Initiator{Protocol: access.ISCSI, Name: "iqn.i", Port: "400000000001"}, Port: access.Port{Target: "iqn.t", Group: 1}})
	namespace = newShow(v, 4096, access.Holder{Initiator: host, Port: access.Port{Target: "nqn.s", Group: 2}})
	other = newShow(v, 4096, access.Holder{Initiator: host, Port: access.Port{Target: "nqn.s", Group: 3}})
	return
}

// Two views with blocks of different sizes see the same bytes, and what must be atomic in one waits for
// what is under way in the other.
func TestTwoProtocolsOneSetOfBytes(t *testing.T) {
	store, v, unit, namespace, _ := twoShows(t)
	ones, twos := bytes.Repeat([]byte{1}, 4096), bytes.Repeat([]byte{2}, 4096)
	if err := namespace.write(t, 1, 1, ones); err != nil {
		t.Fatal(err)
	}
	if err := unit.begin(true, slices.Concat(ones[:512], twos[:512]), func(r *Request, then Step) Next {
		return r.CompareAndWrite(15*512, 512, false, "", then)
	}); err != nil {
		t.Fatal(err)
	}
	if len(store.held) != 1 {
		t.Errorf("%d operations are in the store: the comparison does not wait for the write", len(store.held))
	}
	store.complete()
	if _, _, err := namespace.end(t); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it reads, then writes
		unit.drive(Wait)
		store.complete()
	}
	if _, mismatch, err := unit.end(t); err != nil || mismatch >= 0 {
		t.Errorf("compared: %d, %v", mismatch, err)
	}
	if err := namespace.read(t, 1, 1); err != nil {
		t.Fatal(err)
	}
	store.complete()
	if got, _, err := namespace.end(t); err != nil || !bytes.Equal(got, slices.Concat(ones[:7*512], twos[:512])) {
		t.Errorf("read: %v", err)
	}
	closeShows(t, v, unit, namespace)
}

// A reservation of either holds against the other. A host that registers without a port is registered
// through all of them; who is preempted is told.
func TestTwoProtocolsOneReservation(t *testing.T) {
	_, v, unit, namespace, other := twoShows(t)
	do := func(s *show, c access.Change, port access.Port) {
		t.Helper()
		c.By, c.Ports, c.Kind, c.Whole = s, []access.PortOf{{Port: port}}, access.ExclusiveAccess, true
		if over := v.Access().Do(&c, nil); !over || c.Result != access.Done {
			t.Fatalf("%+v", c)
		}
	}
	denied := func(want ...access.Denial) {
		t.Helper()
		if got := []access.Denial{unit.denied, namespace.denied, other.denied}; !slices.Equal(got, want) {
			t.Errorf("denied: %x, want %x", got, want)
		}
	}
	do(namespace, access.Change{Op: access.Register, NewKey: 2}, access.Port{})
	do(other, access.Change{Op: access.Reserve, Key: 2}, access.Port{})
	denied(access.Reads|access.Writes, 0, 0)
	if err := unit.read(t, 0, 1); err != errDenied {
		t.Errorf("read: %v", err)
	}
	do(unit, access.Change{Op: access.Register, NewKey: 1}, unit.holder.Port)
	do(unit, access.Change{Op: access.Preempt, Key: 1, NewKey: 2}, access.Port{})
	denied(0, access.Reads|access.Writes, access.Reads|access.Writes)
	if namespace.told != access.RegistrationsPreempted || other.told != access.RegistrationsPreempted || unit.told != 0 {
		t.Errorf("told: %x, %x and %x", namespace.told, other.told, unit.told)
	}
	if err := other.write(t, 0, 1, make([]byte, 4096)); err != errDenied {
		t.Errorf("write: %v", err)
	}
	closeShows(t, v)
}

// A sanitize operation waits for what is under way in any view, and keeps all of them from beginning
// more. All hear of a new size.
func TestTwoProtocolsOneVolume(t *testing.T) {
	store, v, unit, namespace, other := twoShows(t)
	if err := namespace.write(t, 0, 1, bytes.Repeat([]byte{1}, 4096)); err != nil {
		t.Fatal(err)
	}
	begun := make(chan error, 1)
	if v.Sanitize(Order{Action: Overwrite, Block: 512, Pattern: []byte{0xaa}, Count: 1}, func(err error) { begun <- err }, nil) != nil {
		t.Fatal("it does not begin")
	}
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	for _, s := range []*show{unit, namespace, other} {
		if s.denied != access.Sanitizing {
			t.Errorf("denied: %x", s.denied)
		}
	}
	var drained func()
	select {
	case drained = <-namespace.drains:
	case <-v.Sanitized():
		t.Fatal("it does not wait for the write")
	}
	if n, _ := v.Progress(); n != 0 || store.data[1<<19] == 0xaa {
		t.Error("it has begun before the write has ended")
	}
	store.complete()
	if _, _, err := namespace.end(t); err != nil {
		t.Fatal(err)
	}
	drained()
	<-v.Sanitized()
	if unit.denied|namespace.denied|other.denied != 0 || !bytes.Equal(store.data, bytes.Repeat([]byte{0xaa}, 1<<20)) {
		t.Errorf("denied at the end: %x, %x and %x", unit.denied, namespace.denied, other.denied)
	}
	store.grown = 1 << 20
	v.SizeChanged()
	if !slices.Equal(unit.sizes, []int64{4096}) || !slices.Equal(namespace.sizes, []int64{512}) || !slices.Equal(other.sizes, []int64{512}) {
		t.Errorf("blocks: %d, %d and %d", unit.sizes, namespace.sizes, other.sizes)
	}
	closeShows(t, v, unit, namespace, other)
}

// closeShows closes the volume, which holds nothing any more, and has no view if views are all that
// it had.
func closeShows(t *testing.T, v *Volume, views ...*show) {
	t.Helper()
	if err := v.Settled(); err != nil {
		t.Error(err)
	}
	for _, s := range views {
		v.Access().Unsubscribe(s)
		v.Detach(s)
		if n := s.pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
	}
	v.mu.Lock()
	left := slices.Clone(v.views)
	v.mu.Unlock()
	if len(left) == 0 {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if err := v.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("closed under %d views: %v", len(left), err)
	}
}
