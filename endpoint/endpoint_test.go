package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/memory"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

const size = 1 << 20

func alloc(t testing.TB, e *endpoint.Endpoint, n int) []byte {
	t.Helper()
	b, err := e.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// Everybody reads what was written; what was flushed outlives a power cut, and nothing else has to.
func TestReadWriteFlush(t *testing.T) {
	disk := backendtest.NewDisk(size, 512)
	h := endpointtest.New(t, disk)
	far := h.Listen()
	for _, o := range []endpoint.Options{{}, {Free: true}, {Durable: true}} {
		o.Device = h.Device
		url := endpointtest.URL
		if o.Durable {
			url = far
		}
		e, other := h.UseURL(url, o), h.Use(endpoint.Options{})
		if i := e.Info(); i.Name != "disk/log" || i.Size != size || i.Unit != 512 {
			t.Errorf("%+v", i)
		}
		buf, back := alloc(t, e, 8192), alloc(t, other, 4096)
		fill(buf, 1)
		must(t, e.WriteAt(t.Context(), buf[:4096], 8192))
		must(t, other.ReadAt(t.Context(), back, 8192))
		if !bytes.Equal(back, buf[:4096]) {
			t.Error("another one reads something else")
		}
		fill(buf, 2)
		must(t, e.WriteAt(t.Context(), buf[4096:], 0))
		if disk.Crash(nil, 0)[0] == 2 {
			t.Error("it is durable by itself: the test shows nothing")
		}
		must(t, e.Flush(t.Context()))
		if b := disk.Crash(nil, 0); !bytes.Equal(b[:4096], buf[:4096]) || b[8192] != 1 {
			t.Error("what was flushed is lost")
		}
		fill(buf, 0)
		must(t, e.WriteAt(t.Context(), buf, 0))
		must(t, e.Flush(t.Context()))
	}
}

// What cannot be done is refused in words, and the connection stays.
func TestRefused(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	e := h.Use(endpoint.Options{Rights: rdma.RightRead | rdma.RightFlush})
	buf := alloc(t, e, 4096)
	if err := e.WriteAt(t.Context(), buf, 0); err == nil || !strings.Contains(err.Error(), `"w" is needed`) {
		t.Errorf("without the right: %v", err)
	}
	for what, err := range map[string]error{
		"foreign memory":   e.ReadAt(t.Context(), make([]byte, 512), 0),
		"beyond Alloc":     e.ReadAt(t.Context(), append(buf[4000:4096:4096], make([]byte, 512)...), 0),
		"odd":              e.ReadAt(t.Context(), buf[:100], 0),
		"outside":          e.ReadAt(t.Context(), buf, size),
		"negative":         e.ReadAt(t.Context(), buf, -4096),
		"an ID of its own": func() error { _, err := e.Post([]rdma.Work{{ID: 1 << 63}}); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	must(t, e.ReadAt(t.Context(), buf, 0))
	if h.Opened() != 1 {
		t.Errorf("%d connections", h.Opened())
	}
	if _, err := e.Alloc(0); err == nil {
		t.Error("no memory is some")
	}
	must(t, e.Free(alloc(t, e, 8192)))
	if e.Free(buf[512:]) == nil || e.Free(make([]byte, 512)) == nil {
		t.Error("memory is given back that was not from Alloc")
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		_ = e.ReadAt(done, buf, 0)
	}
	must(t, e.ReadAt(t.Context(), buf, 0))
}

func TestOpenRefused(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	h.Info.Durability, h.Info.Rights = rdma.DurabilityNone, rdma.RightRead
	for what, o := range map[string]endpoint.Options{
		"volatile":  {Device: h.Device, Durable: true},
		"read-only": {Device: h.Device, Rights: rdma.RightWrite},
		"no device": {},
	} {
		if _, err := endpoint.Open(t.Context(), endpointtest.URL, o); err == nil {
			t.Errorf("%s: opened", what)
		} else if _, ok := errors.AsType[*endpoint.VolatileError](err); ok != (what == "volatile") {
			t.Errorf("%s: %v", what, err)
		}
	}
	h.Refuse(rdma.ErrNoEndpoint)
	if _, err := endpoint.Open(t.Context(), endpointtest.URL, endpoint.Options{Device: h.Device}); !errors.Is(err, rdma.ErrNoEndpoint) {
		t.Errorf("%v", err)
	}
}

// A connection that ends is made again, and what was under way is repeated.
func TestAgain(t *testing.T) {
	v := rdmatest.NewVolatile(size, 1)
	h := endpointtest.New(t, v)
	e := h.Use(endpoint.Options{})
	const users = 4
	var wg sync.WaitGroup
	for i := range users {
		buf := alloc(t, e, 4096)
		fill(buf, byte(i+1))
		wg.Go(func() {
			for k := range 20 {
				if i == 0 && k%4 == 2 {
					h.End()
				}
				if err := e.WriteAt(t.Context(), buf, int64(i)*65536+int64(k)*512); err != nil {
					t.Error(err)
				}
				if err := e.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	image := v.Crash(size)
	for i := range users {
		if !bytes.Equal(image[i*65536:][:19*512+4096], bytes.Repeat([]byte{byte(i + 1)}, 19*512+4096)) {
			t.Errorf("user %d: something is lost", i)
		}
	}
	if h.Opened() < 3 {
		t.Errorf("%d connections: the test shows nothing", h.Opened())
	}
	h.Refuse(rdma.ErrNoEndpoint)
	h.End()
	buf := alloc(t, e, 512)
	for range 2 {
		if err := e.ReadAt(t.Context(), buf, 0); !errors.Is(err, rdma.ErrNoEndpoint) {
			t.Errorf("of a partition that is gone: %v", err)
		}
	}
}

// changing is a device whose connections are told when they are there, before anything is posted to them.
type changing struct {
	rdma.Device
	connected func()
}

func (d *changing) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	err := d.Device.Connect(ctx, qp, addr, p)
	if d.connected != nil {
		d.connected()
	}
	return err
}

// A call outlives as many changes of its partition as there are. One whose context ends between two tries says so.
func TestChangesAgain(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	d := &changing{Device: h.Device}
	e := h.UseURL(endpointtest.URL, endpoint.Options{Device: d})
	buf := alloc(t, e, 512)
	for changes := range 4 {
		left := changes
		d.connected = func() {
			if left > 0 {
				left--
				h.End()
			}
		}
		h.End()
		if err := e.WriteAt(t.Context(), buf, 0); err != nil {
			t.Errorf("%d changes more: %v", changes, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := 3
	d.connected = func() {
		h.End()
		if left--; left == 0 {
			cancel()
		}
	}
	h.End()
	if err := e.WriteAt(ctx, buf, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that nobody waits for any more: %v", err)
	}
}

// After a connection has ended, Post refuses more work until Reconnect. What was posted before completes first.
func TestReconnect(t *testing.T) {
	v := rdmatest.NewVolatile(size, 1)
	h := endpointtest.New(t, v)
	e := h.Use(endpoint.Options{Free: true})
	buf := alloc(t, e, 4096)
	sge, err := e.SGE(buf[:512])
	must(t, err)
	work := func(id uint64, f rdma.Flags) []rdma.Work {
		return []rdma.Work{{ID: id, Op: rdma.OpWrite, Flags: f | rdma.Signaled, SGL: []rdma.SGE{sge}, RemoteOffset: 512 * id}}
	}
	cs := make([]rdma.Completion, 8)
	next := func() rdma.Completion {
		t.Helper()
		must(t, e.Wait(t.Context()))
		if n := e.Poll(cs[:1]); n != 1 {
			t.Fatalf("%d completions", n)
		}
		return cs[0]
	}
	_, err = e.Post(work(1, 0))
	must(t, err)
	if c := next(); c.ID != 1 || c.Status != rdma.StatusOK || c.Seq == 0 {
		t.Errorf("%+v", c)
	}
	h.End()
	_, err = e.Post(work(2, 0))
	must(t, err)
	must(t, e.ReadAt(t.Context(), buf[512:1024], 0)) // connects again
	if _, err = e.Post(work(3, rdma.Fence)); !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("Post behind what is lost: %v", err)
	}
	if c := next(); c.ID != 2 || c.Status != rdma.StatusRemoteAccess {
		t.Errorf("%+v", c)
	}
	must(t, e.Reconnect(t.Context()))
	_, err = e.Post(work(3, rdma.Fence))
	must(t, err)
	if c := next(); c.ID != 3 || c.Status != rdma.StatusOK {
		t.Errorf("%+v", c)
	}
	if n := e.Poll(cs); n != 0 {
		t.Errorf("%d completions more", n)
	}
}

// After Reconnect calls go on, also if one of them had connected again before another user took the place of that connection.
func TestReconnectAfterReplaced(t *testing.T) {
	h := endpointtest.New(t, backendtest.NewDisk(size, 512))
	e := h.Use(endpoint.Options{Sole: true})
	buf := alloc(t, e, 512)
	h.End()
	must(t, e.ReadAt(t.Context(), buf, 0)) // connects again
	h.Use(endpoint.Options{Sole: true})
	if err := e.ReadAt(t.Context(), buf, 0); !errors.Is(err, rdma.ErrReplaced) {
		t.Fatal(err)
	}
	must(t, e.Reconnect(t.Context()))
	must(t, e.ReadAt(t.Context(), buf, 0))
}

// A store that was opened again is noticed by those who have not flushed, and by nobody else.
func TestRestarted(t *testing.T) {
	for _, over := range []string{"local", "wire"} {
		t.Run(over, func(t *testing.T) { testRestarted(t, over == "wire") })
	}
}

func testRestarted(t *testing.T, wire bool) {
	disk := backendtest.NewDisk(size, 512)
	h := endpointtest.New(t, disk)
	url := endpointtest.URL
	if wire {
		url = h.Listen()
	}
	o := endpoint.Options{Device: h.Device}
	e, calm := h.UseURL(url, o), h.UseURL(url, o)
	buf, other := alloc(t, e, 512), alloc(t, calm, 512)
	must(t, calm.WriteAt(t.Context(), other, 4096))
	must(t, calm.Flush(t.Context()))
	must(t, e.WriteAt(t.Context(), buf, 0))
	must(t, e.Flush(t.Context()))
	fill(buf, 7)
	must(t, e.WriteAt(t.Context(), buf, 0))
	h.Restart(backendtest.DiskOf(disk.Crash(nil, 0), 512))
	must(t, e.WriteAt(t.Context(), buf, 512)) // by itself this shows nothing
	err := e.Flush(t.Context())
	if r, ok := errors.AsType[*endpoint.RestartedError](err); !ok || rdma.Generation(r.Durable) != 1 || r.Durable&0xffff != 2 {
		t.Errorf("Flush after a restart: %v", err)
	}
	must(t, e.WriteAt(t.Context(), buf, 0))
	must(t, e.Flush(t.Context()))
	must(t, calm.WriteAt(t.Context(), other, 4096))
	must(t, calm.Flush(t.Context()))
}

// Flush answers for what was posted, too: if its completion was polled, and the store was opened again without it, Flush says so. Not if it was durable,
// by itself or because of a flush that was posted.
func TestRestartedPosted(t *testing.T) {
	for _, over := range []string{"local", "wire"} {
		t.Run(over, func(t *testing.T) {
			disk := backendtest.NewDisk(size, 512)
			h := endpointtest.New(t, disk)
			url := endpointtest.URL
			if over == "wire" {
				url = h.Listen()
			}
			e := h.UseURL(url, endpoint.Options{Device: h.Device})
			sge, err := e.SGE(alloc(t, e, 512))
			must(t, err)
			write := rdma.Work{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}
			durable := write
			durable.Flags |= rdma.Durable
			add := rdma.Work{Op: rdma.OpFetchAdd, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: sge.Bytes[:8], Region: sge.Region}}}
			for _, c := range []struct {
				works []rdma.Work
				lost  bool
			}{
				{[]rdma.Work{durable}, false},
				{[]rdma.Work{write}, true},
				{[]rdma.Work{write, {Op: rdma.OpFlush, Flags: rdma.Signaled}}, false},
				{[]rdma.Work{add}, true},
				{[]rdma.Work{{Op: rdma.OpDiscard, Flags: rdma.Signaled, Length: 512}}, true},
				{[]rdma.Work{{Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}}, false},
			} {
				_, err := e.Post(c.works)
				must(t, err)
				for range c.works {
					var cs [1]rdma.Completion
					must(t, e.Wait(t.Context()))
					if n := e.Poll(cs[:]); n != 1 || cs[0].Status != rdma.StatusOK {
						t.Fatalf("%d: %+v", n, cs[0])
					}
				}
				disk = backendtest.DiskOf(disk.Crash(nil, 0), 512)
				h.Restart(disk)
				if _, lost := errors.AsType[*endpoint.RestartedError](e.Flush(t.Context())); lost != c.lost {
					t.Errorf("%v, and a restart: Flush tells of a loss: %v", c.works[0].Op, lost)
				}
				must(t, e.Flush(t.Context()))
				must(t, e.Reconnect(t.Context()))
			}
		})
	}
}

// A name that stands for another partition, after the one that was opened is deleted or renamed, is not gone on with: what was written is
// not there, and what would be is no business of that one. A partition of memory is another one after each restart.
func TestAnother(t *testing.T) {
	for _, over := range []string{"local", "wire"} {
		h := endpointtest.New(t, backendtest.NewDisk(size, 512))
		url := endpointtest.URL
		if over == "wire" {
			url = h.Listen()
		}
		e := h.UseURL(url, endpoint.Options{Device: h.Device})
		buf := alloc(t, e, 512)
		fill(buf, 1)
		must(t, e.WriteAt(t.Context(), buf, 0))
		was := e.Info().UUID
		another := func(i *rdma.Endpoint) { i.UUID = "6f1c2b9e-8a54-4d07-9b61-2f0e5d7a1c33" }
		h.Change(another)
		for what, err := range map[string]error{
			"WriteAt": e.WriteAt(t.Context(), buf, 512), "Flush": e.Flush(t.Context()), "Reconnect": e.Reconnect(t.Context()),
		} {
			if a, ok := errors.AsType[*endpoint.AnotherError](err); !ok || a.Was != was {
				t.Errorf("%s, %s: %v", over, what, err)
			}
		}
		now := h.UseURL(url, endpoint.Options{Device: h.Device})
		back := alloc(t, now, 1024)
		must(t, now.ReadAt(t.Context(), back, 0))
		if back[512] != 0 {
			t.Errorf("%s: it is written to the other one", over)
		}
		h.Change(func(i *rdma.Endpoint) { i.UUID = was })
		must(t, e.WriteAt(t.Context(), buf, 512)) // the former one is back

		h.Change(func(i *rdma.Endpoint) { i.Durability = rdma.DurabilityNone })
		e = h.UseURL(url, endpoint.Options{Device: h.Device})
		buf = alloc(t, e, 512)
		h.Change(another)
		must(t, e.WriteAt(t.Context(), buf, 0))
	}
}

// An error of the medium is told to the one whose operation it was, and to nobody else.
func TestMediumError(t *testing.T) {
	broken := errors.New("broken on purpose")
	disk := backendtest.NewDisk(size, 512)
	disk.Fault = func(op *backend.Op) error {
		if op.Kind == backend.Write && op.Off == 0 {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: broken}
		}
		return nil
	}
	h := endpointtest.New(t, disk)
	e := h.Use(endpoint.Options{})
	buf := alloc(t, e, 512)
	err := e.WriteAt(t.Context(), buf, 0)
	if f, ok := errors.AsType[*endpoint.Error](err); !ok || f.Status != rdma.StatusMedium || !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	must(t, e.WriteAt(t.Context(), buf, 512))
	must(t, e.Flush(t.Context()))
}

// Who waits reads the answers from the wire himself: no event has to wake him, but now and then. So it is with several.
func TestWhoWaitsReads(t *testing.T) {
	s, err := memory.New(size)
	must(t, err)
	h := endpointtest.New(t, s)
	e := h.UseURL(h.Listen(), endpoint.Options{})
	const times = 200
	buf := alloc(t, e, 4096)
	before := e.Counters().Events
	for range times {
		must(t, e.ReadAt(t.Context(), buf[:512], 0))
	}
	if n := e.Counters().Events - before; n > times/2 {
		t.Errorf("%d events for %d reads", n, times)
	}
	sge, err := e.SGE(buf[:512])
	must(t, err)
	before = e.Counters().Events
	var c [1]rdma.Completion
	for range times {
		if _, err := e.Post([]rdma.Work{{Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}}); err != nil {
			t.Fatal(err)
		}
		for e.Poll(c[:]) == 0 {
			must(t, e.Wait(t.Context()))
		}
	}
	if n := e.Counters().Events - before; n > times/2 {
		t.Errorf("%d events for %d works", n, times)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range times {
				if err := e.ReadAt(t.Context(), buf[i*1024:][:512], 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
