package volume

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet   = slog.New(slog.DiscardHandler)
	errTest = errors.New("broken")
)

// sliceStore keeps its bytes in a slice and answers at once.
type sliceStore struct {
	data   []byte
	closed bool
}

func newSliceStore(n int) *sliceStore { return &sliceStore{data: make([]byte, n)} }

func (s *sliceStore) Info() backend.Info {
	return backend.Info{Size: int64(len(s.data)), BlockSize: 512, DiscardGranularity: 4096}
}
func (s *sliceStore) Close() error { s.closed = true; return nil }
func (s *sliceStore) Submit(op *backend.Op) bool {
	if op.Err = op.Check(int64(len(s.data))); op.Err != nil {
		return true
	}
	at := s.data[op.Off : op.Off+op.Len]
	switch op.Kind {
	case backend.Read:
		for _, seg := range op.Segs {
			at = at[copy(seg, at):]
		}
	case backend.Write:
		for _, seg := range op.Segs {
			at = at[copy(at, seg):]
		}
	case backend.Discard, backend.WriteZeroes:
		clear(at)
	}
	return true
}

// gatedStore does one operation per token.
type gatedStore struct {
	*sliceStore
	tokens chan error
	seen   chan struct{}
}

func newGatedStore(n int) *gatedStore {
	return &gatedStore{newSliceStore(n), make(chan error), make(chan struct{}, 16)}
}

func (s *gatedStore) Submit(op *backend.Op) bool {
	s.seen <- struct{}{}
	if op.Err = <-s.tokens; op.Err != nil {
		return true
	}
	return s.sliceStore.Submit(op)
}

// later completes no operation within Submit.
type later struct{ *gatedStore }

func (s later) Submit(op *backend.Op) bool {
	go func() {
		s.gatedStore.Submit(op)
		op.Done.OpDone(op)
	}()
	return false
}

// keeper keeps a state in memory.
type keeper struct{ state atomic.Pointer[[]byte] }

func keeps(state string) *keeper {
	k := new(keeper)
	_ = k.Save([]byte(state))
	return k
}

func (k *keeper) Load() ([]byte, error) {
	if p := k.state.Load(); p != nil {
		return *p, nil
	}
	return nil, nil
}

func (k *keeper) Save(state []byte) error {
	state = bytes.Clone(state)
	k.state.Store(&state)
	return nil
}

func open(t testing.TB, cfg Config) *Volume {
	t.Helper()
	cfg.Logger = quiet
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// denied is what a subscriber of no name may not do.
func denied(v *Volume) access.Denial {
	s := new(subscriber)
	v.Access().Subscribe(s)
	v.Access().Unsubscribe(s)
	return s.denied
}

type subscriber struct{ denied access.Denial }

func (s *subscriber) Holder() access.Holder        { return access.Holder{} }
func (s *subscriber) Session() any                 { return s }
func (s *subscriber) Deny(mask, got access.Denial) { s.denied = s.denied&^mask | got }
func (s *subscriber) Tell(access.Event)            {}
func (s *subscriber) Abort(done func())            { done() }

// With a Keeper a restart goes on with a sanitize operation, and knows that one has failed.
func TestSanitizeOverRestart(t *testing.T) {
	kept := new(keeper)
	gate := newGatedStore(4 << 20)
	v := open(t, Config{Store: gate, Keeper: kept})
	order := Order{Action: Overwrite, Block: 512, Pattern: []byte{0xaa}, Count: 1}
	begun := make(chan error, 1)
	if v.Sanitize(order, func(err error) { begun <- err }, nil) != nil || v.Sanitize(order, nil, nil) != ErrSanitizing {
		t.Fatal("there are two sanitize operations, or none")
	}
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	<-gate.seen
	// The target is stopped in the middle of it.
	closed := make(chan error)
	job := v.sanitizer.last
	go func() { closed <- v.Close() }()
	<-job.stop
	gate.tokens <- nil
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	gate = newGatedStore(4 << 20)
	v = open(t, Config{Store: gate, Keeper: kept})
	<-gate.seen
	if d := denied(v); d != access.Sanitizing {
		t.Errorf("after the restart %x is denied", d)
	}
	gate.tokens <- errTest
	<-v.Sanitized()
	for range 2 { // and it stays so
		if d := denied(v); d != access.SanitizeFailed {
			t.Errorf("after the failure %x is denied", d)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		gate = newGatedStore(4 << 20)
		v = open(t, Config{Store: gate, Keeper: kept})
	}
	if allowed, _ := v.MayLeaveSanitize(); allowed {
		t.Error("the failure may be left, though nobody has allowed that")
	}
	// Who has looked before it failed does not get away with it.
	if err := v.LeaveSanitize(); err != ErrRestricted || denied(v) != access.SanitizeFailed {
		t.Errorf("leaving it: %v, and %x is denied", err, denied(v))
	}
	easy := order
	easy.Unrestricted = true
	if err := v.Sanitize(easy, nil, nil); err != ErrRestricted || denied(v) != access.SanitizeFailed {
		t.Errorf("an unrestricted one after it: %v, and %x is denied", err, denied(v))
	}
	over := make(chan error, 1)
	if v.Sanitize(order, nil, func(err error) { over <- err }) != nil {
		t.Fatal("none can begin after the failure")
	}
	for range 5 {
		<-gate.seen
		gate.tokens <- nil
	}
	if err := <-over; err != nil || denied(v) != 0 || !bytes.Equal(gate.data, bytes.Repeat([]byte{0xaa}, 4<<20)) {
		t.Errorf("in the end %v, %x is denied", err, denied(v))
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, Config{Store: newGatedStore(4 << 20), Keeper: kept})
	if state, was, _ := v.SanitizeState(); state != SanitizeDone || was.Action != Overwrite || denied(v) != 0 {
		t.Errorf("in the end it is known as %d, %+v, and %x is denied", state, was, denied(v))
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

// A store that hangs does not keep the target from stopping.
func TestSanitizeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGatedStore(4 << 20)
		v := open(t, Config{Store: gate})
		if v.Sanitize(Order{Action: BlockErase}, nil, nil) != nil {
			t.Fatal("it does not begin")
		}
		<-gate.seen
		if err := v.Close(); err == nil || !strings.Contains(err.Error(), "hangs") || gate.closed {
			t.Errorf("Close: %v, store closed %v", err, gate.closed)
		}
		gate.tokens <- nil
		<-v.Sanitized()
		if err := v.Close(); err != nil || !gate.closed { // it hangs no more
			t.Errorf("Close: %v, store closed %v", err, gate.closed)
		}
	})
}

// trialKeeper is a keeper with a say in how Save ends. What is saved is there even if that fails.
type trialKeeper struct {
	keeper
	save func(state []byte) error // nil: well
}

func (k *trialKeeper) Save(state []byte) error {
	_ = k.keeper.Save(state)
	if k.save == nil {
		return nil
	}
	return k.save(state)
}

// A sanitize operation that a restart finds goes on whether or not anything can be kept then: it was answered when it was kept.
func TestSanitizeGoesOnThoughNothingIsKept(t *testing.T) {
	k := new(trialKeeper)
	_ = k.keeper.Save([]byte(`{"Format":2,"Access":{"Holder":-1},"Sanitize":{"Action":2}}`))
	k.save = func([]byte) error { return errTest }
	store := newSliceStore(1 << 20)
	store.data[512] = 1
	v := open(t, Config{Store: store, Keeper: k})
	<-v.Sanitized()
	if d := denied(v); d != access.SanitizeFailed || store.data[512] != 0 {
		t.Errorf("denied %v, and the byte is %d", d, store.data[512])
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// A sanitize operation that was not begun, because it could not be kept, is not begun by a restart either, though the state was there.
func TestSanitizeNotKept(t *testing.T) {
	k := new(trialKeeper)
	k.save = func([]byte) error { k.save = nil; return errTest }
	v := open(t, Config{Store: newSliceStore(1 << 20), Keeper: k})
	begun := make(chan error, 1)
	_ = v.Sanitize(Order{Action: BlockErase}, func(err error) { begun <- err }, nil)
	if err := <-begun; err != ErrNotKept {
		t.Fatal(err)
	}
	<-v.Sanitized()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	s := newSliceStore(1 << 20)
	s.data[0] = 7 // was written meanwhile
	v = open(t, Config{Store: s, Keeper: k})
	<-v.Sanitized()
	if d := denied(v); d != 0 || s.data[0] != 7 {
		t.Errorf("after the restart %x is denied, and the first byte is %d", d, s.data[0])
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

// mayBeKeptError is that of a Save whose state is there all the same.
type mayBeKeptError struct{}

func (mayBeKeptError) Error() string { return "kept, perhaps" }
func (mayBeKeptError) MayBeKept()    {}

// A sanitize operation that was not begun, and that a restart may begin, because what was there before cannot be kept either, would destroy
// what is written meanwhile. So nothing is, until it is kept that it is not to be done.
func TestSanitizeInDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		first error
		want  access.Denial
	}{
		"it may be there": {mayBeKeptError{}, access.SanitizeFailed},
		"it is not":       {errTest, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := new(trialKeeper)
			k.save = func([]byte) error { k.save = func([]byte) error { return errTest }; return c.first }
			v := open(t, Config{Store: newSliceStore(1 << 20), Keeper: k})
			begun := make(chan error, 1)
			_ = v.Sanitize(Order{Action: BlockErase}, func(err error) { begun <- err }, nil)
			if err := <-begun; err != ErrNotKept || denied(v) != c.want {
				t.Errorf("%v, and %x is denied", err, denied(v))
			}
			<-v.Sanitized()
			if c.want != 0 {
				if err := v.LeaveSanitize(); err == nil || denied(v) != c.want {
					t.Errorf("leaving it while nothing can be kept: %v, and %x is denied", err, denied(v))
				}
				k.save = nil
				if err := v.LeaveSanitize(); err != nil || denied(v) != 0 {
					t.Errorf("leaving it: %v, and %x is denied", err, denied(v))
				}
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Nobody writes to the volume before it is kept that a sanitize operation is over, or that its failure is left: a restart would do it
// again, and destroy what was written.
func TestSanitizeEndsWhenKept(t *testing.T) {
	k := new(trialKeeper)
	v := open(t, Config{Store: newSliceStore(1 << 20), Keeper: k})
	saves := 0
	k.save = func([]byte) error {
		if saves++; saves == 1 {
			return nil // it has begun
		}
		if d := denied(v); d != access.Sanitizing && saves == 2 || d == 0 {
			t.Errorf("save %d: only %x is denied", saves, d)
		}
		return errTest
	}
	over := make(chan error, 1)
	_ = v.Sanitize(Order{Action: BlockErase, Unrestricted: true}, nil, func(err error) { over <- err })
	if err := <-over; err == nil || denied(v) != access.SanitizeFailed {
		t.Errorf("the end cannot be kept: %v, and %x is denied", err, denied(v))
	}
	if allowed, failed := v.MayLeaveSanitize(); !allowed || !failed {
		t.Errorf("it may be left: %v, it has failed: %v", allowed, failed)
	}
	if err := v.LeaveSanitize(); err == nil || denied(v) != access.SanitizeFailed {
		t.Errorf("that it is left cannot be kept: %v, and %x is denied", err, denied(v))
	}
	k.save = func([]byte) error {
		if denied(v) == 0 {
			t.Error("nothing is denied before it is kept that the failure is left")
		}
		return nil
	}
	if err := v.LeaveSanitize(); err != nil || denied(v) != 0 {
		t.Errorf("%v, and %x is denied", err, denied(v))
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, Config{Store: newSliceStore(1 << 20), Keeper: k})
	if d := denied(v); d != 0 {
		t.Errorf("after the restart %x is denied", d)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFill(t *testing.T) {
	for _, pattern := range []string{"a", "abc", strings.Repeat("x", 511) + "y"} {
		o := Order{Block: 512, Pattern: []byte(pattern)}
		data := make([]byte, 2048)
		o.fill(data)
		for i, x := range data {
			if x != pattern[i%512%len(pattern)] {
				t.Fatalf("%d bytes of pattern: byte %d is %02x", len(pattern), i, x)
			}
		}
	}
}

// client is a command that is not SCSI's.
type client struct {
	ready chan *atomic.Bool
	pool  *mem.Pool
}

func (c *client) Signal(flag *atomic.Bool) { flag.Store(true); c.ready <- flag }
func (c *client) Lease(n int) *mem.Lease   { return c.pool.Lease(n) }
func (c *client) Begun()                   {}
func (c *client) Cork() backend.Uncorker   { return nil }

// TestRequest drives requests without a CDB.
func TestRequest(t *testing.T) {
	store := newSliceStore(1 << 20)
	v := open(t, Config{Store: store})
	c := &client{make(chan *atomic.Bool, 16), mem.NewPool(16 << 20)}
	do := func(data []byte, begin func(r *Request, then Step) Next) (got []byte, r *Request) {
		t.Helper()
		r = new(Request)
		r.Begin(c, v, 512, mem.MaxLease, false, false)
		next := begin(r, func(*Request) Next { return Done })
		for next != Done {
			var due bool
			if next == Pull {
				r.Place(0, data)
				next, due = r.Pulled()
			} else {
				<-c.ready
				next, due = r.Resume(false)
			}
			if !due {
				t.Fatal("a step that is not due")
			}
		}
		for _, seg := range r.In {
			got = append(got, seg...)
		}
		r.Settle()
		if err := v.Settled(); err != nil {
			t.Error(err)
		}
		defer func() {
			mismatch, err := r.Mismatch, r.Err
			r.Release()
			r.Mismatch, r.Err = mismatch, err
		}()
		return got, r
	}
	ones, twos := bytes.Repeat([]byte{1}, 1024), bytes.Repeat([]byte{2}, 1024)
	do(ones, func(r *Request, then Step) Next { return r.Write(512, 1024, true, then) })
	if got, _ := do(nil, func(r *Request, then Step) Next { return r.Read(512, 1024, 1000, false, then) }); !bytes.Equal(got, ones[:1000]) {
		t.Errorf("read %d bytes", len(got))
	}
	if _, r := do(append(bytes.Clone(twos), ones...), func(r *Request, then Step) Next { return r.CompareAndWrite(512, 1024, false, "", then) }); r.Mismatch != 0 {
		t.Errorf("compared with other bytes: %d, %v", r.Mismatch, r.Err)
	}
	if _, r := do(append(bytes.Clone(ones), twos...), func(r *Request, then Step) Next { return r.CompareAndWrite(512, 1024, false, "", then) }); r.Mismatch >= 0 || !bytes.Equal(store.data[512:1536], twos) {
		t.Errorf("compared with what is there: %d, %v", r.Mismatch, r.Err)
	}
	if _, r := do(nil, func(r *Request, then Step) Next { return r.Erase([]Range{{Off: 512, N: 512}}, true, then) }); r.Err != nil || store.data[512] != 0 || store.data[1024] != 2 {
		t.Errorf("erased: %v", r.Err)
	}
	if _, r := do(nil, func(r *Request, then Step) Next { return r.Read(1<<20, 512, 512, false, then) }); r.Err == nil {
		t.Error("read beyond the end")
	}
	if n := c.pool.Stats().Leases; n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if err := v.Close(); err != nil || !store.closed {
		t.Errorf("Close: %v", err)
	}
}

// A token that was made while something was under way that changes its bytes ends with that: it would stand for other bytes than those
// that its owner has read since.
func TestTokenDuringChange(t *testing.T) {
	pool := mem.NewPool(16 << 20)
	run := func(v *Volume, aborted bool, begin func(r *Request, then Step) Next) {
		c := &client{make(chan *atomic.Bool, 16), pool}
		r := new(Request)
		r.Begin(c, v, 512, mem.MaxLease, false, false)
		for next := begin(r, func(*Request) Next { return Done }); next != Done && next != Aborted; {
			if next == Pull {
				next, _ = r.Pulled()
			} else {
				<-c.ready
				next, _ = r.Resume(aborted)
			}
		}
		r.Settle()
		r.Release()
	}
	request := func(begin func(r *Request, then Step) Next) func(*Volume) {
		return func(v *Volume) { run(v, false, begin) }
	}
	aborted := func(begin func(r *Request, then Step) Next) func(*Volume) {
		return func(v *Volume) { run(v, true, begin) }
	}
	for what, change := range map[string]func(v *Volume){
		"a write":                    request(func(r *Request, then Step) Next { return r.Write(4096, 512, false, then) }),
		"an erasure":                 request(func(r *Request, then Step) Next { return r.Erase([]Range{{4096, 512}}, true, then) }),
		"a copy":                     request(func(r *Request, then Step) Next { return r.CopyWrite(r.v, 0, 4096, 512, true, then) }),
		"a write that is aborted":    aborted(func(r *Request, then Step) Next { return r.Write(4096, 512, false, then) }),
		"an erasure that is aborted": aborted(func(r *Request, then Step) Next { return r.Erase([]Range{{4096, 512}}, true, then) }),
		"a copy that is aborted":     aborted(func(r *Request, then Step) Next { return r.CopyWrite(r.v, 0, 4096, 512, true, then) }),
		"an endpoint's write": func(v *Volume) {
			h := v.Open(nil)
			h.Submit(&backend.Op{Kind: backend.Write, Off: 4096, Len: 512, Segs: [][]byte{make([]byte, 512)}})
			h.Close()
		},
	} {
		gate := newGatedStore(1 << 20)
		store := backend.Store(gate)
		if strings.HasSuffix(what, "is aborted") {
			store = later{gate}
		}
		v := open(t, Config{Store: store})
		done := make(chan struct{})
		go func() { defer close(done); change(v) }()
		<-gate.seen
		same, beside := v.NewToken(0, []Range{{0, 1 << 20}}), v.NewToken(0, []Range{{0, 4096}})
		gate.tokens <- nil
		<-done
		if same.Valid() || !beside.Valid() {
			t.Errorf("%s: the token of its bytes is valid: %v, that of others: %v", what, same.Valid(), beside.Valid())
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
