package remote_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/nic/card"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
	"oneshot/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is another machine: a service with one partition, called disk/log, on a volume.
type far struct {
	t    testing.TB
	s    backend.Store
	v    *volume.Volume
	pool *mem.Pool
	// direct lets clients reach the store's memory without requests, if it is memory.
	direct bool

	mu     sync.Mutex
	told   []func(error)
	wait   chan struct{}        // if not nil, nobody attaches before it is closed
	change func(*rdma.Endpoint) // what is said of the partition; nil: as it is

	dev  rdma.Device
	svc  *service.Service
	l    rdma.Listener
	work sync.WaitGroup
}

// Open implements service.Opener.
func (f *far) Open(_ context.Context, q service.Request) (service.Endpoint, error) {
	if q.Name != "disk/log" {
		return nil, rdma.ErrNoEndpoint
	}
	if q.Want == 0 {
		q.Want = rdma.AllRights
	}
	f.mu.Lock()
	wait := f.wait
	f.mu.Unlock()
	if wait != nil {
		<-wait
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, q.Gone)
	return &handle{f.v.Open(func() {}), f, q.Want}, nil
}

// List implements service.Opener.
func (f *far) List(partition.Identity) []rdma.Endpoint {
	return nil
}

type handle struct {
	*volume.Handle
	f    *far
	want rdma.Rights
}

func (h *handle) Describe() rdma.Endpoint {
	e := rdma.Endpoint{Name: "disk/log", Rights: h.want, Durability: rdma.DurabilityMedium}
	if h.f.direct {
		e.Durability = rdma.DurabilityNone
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if h.f.change != nil {
		h.f.change(&e)
	}
	return e
}
func (h *handle) Lends() bool     { return h.f.direct && h.f.v.Lends() }
func (h *handle) Lineage() uint64 { return 0 }

// set changes what is said of the partition.
func (f *far) set(change func(*rdma.Endpoint)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change = change
}

// restart ends the service and its volume, and starts both again at the same address. The store stays.
func (f *far) restart(addr string) {
	f.t.Helper()
	f.stop()
	check(f.t, f.v.Close())
	var err error
	f.v, err = volume.New(volume.Config{Store: f.s})
	check(f.t, err)
	f.start(service.Config{}, addr)
}

// forget returns what ends the service, and starts another one at the same address. Volume and store stay.
func (f *far) forget(c service.Config) func(rdma.QueuePair) {
	return func(qp rdma.QueuePair) {
		f.hang(qp)
		addr := f.l.Addr().String()
		f.stop()
		f.start(c, addr)
	}
}

// hang ends the connection of qp, which does not come back before goOn.
func (f *far) hang(qp rdma.QueuePair) {
	f.mu.Lock()
	f.wait = make(chan struct{})
	f.mu.Unlock()
	remote.Cut(qp)
}

func (f *far) goOn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wait != nil {
		close(f.wait)
		f.wait = nil
	}
}

func (f *far) revoke(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, told := range f.told {
		told(err)
	}
	f.told = nil
}

// newFar serves s on dev.
func newFar(t testing.TB, s backend.Store, dev rdma.Device, listen string, c service.Config) *far {
	t.Helper()
	f := &far{t: t, pool: mem.NewPool(256 << 20), dev: dev, s: s}
	var err error
	f.v, err = volume.New(volume.Config{Store: s})
	check(t, err)
	t.Cleanup(func() {
		check(t, f.v.Close())
		f.pool.Close()
	})
	f.start(c, listen)
	t.Cleanup(func() { f.stop() })
	return f
}

// start has the service run.
func (f *far) start(c service.Config, listen string) {
	f.t.Helper()
	c.Device, c.Pool, c.Opener = f.dev, f.pool, f
	var err error
	f.svc, err = service.New(c)
	check(f.t, err)
	f.l, err = f.dev.Listen(listen)
	check(f.t, err)
	f.work.Go(func() { _ = f.svc.Serve(f.l) })
}

// stop ends it, and its connections.
func (f *far) stop() {
	f.t.Helper()
	f.goOn() // of a test that has failed meanwhile
	f.hideAway()
	f.end()
}

// hideAway makes all further connects fail.
func (f *far) hideAway() {
	f.t.Helper()
	check(f.t, f.l.Close())
	f.work.Wait()
}

// end ends the service and its connections.
func (f *far) end() {
	f.t.Helper()
	check(f.t, f.svc.Close())
	if st := f.pool.Stats(); st.Leases != 0 {
		f.t.Errorf("%d leases are left of the service", st.Leases)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newIWARP(t testing.TB) rdma.Device {
	t.Helper()
	d, err := iwarp.Open(iwarp.Config{})
	check(t, err)
	t.Cleanup(func() { check(t, d.Close()) })
	return d
}

// newCard returns a device whose queue pairs run in a card (package nic), to which a socket leads.
func newCard(t testing.TB) rdma.Device {
	t.Helper()
	d, _ := newCardOf(t)
	return d
}

// newCardOf is newCard, with what ends the card.
func newCardOf(t testing.TB) (_ *nic.Device, stop func()) {
	t.Helper()
	return newCardWith(t, card.Config{})
}

// newProgram returns a device of a program of this host: a card whose queue pairs reach the service within the process that serves both.
func (f *far) newProgram(t testing.TB) rdma.Device {
	t.Helper()
	d, _ := newCardWith(t, card.Config{Open: func(card.Peer) (rdma.Device, error) { return local.OpenNarrow(local.Config{}, f.l), nil }})
	return d
}

func newCardWith(t testing.TB, c card.Config) (_ *nic.Device, stop func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nic")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.New(c).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		check(t, <-done)
	})
	t.Cleanup(stop)
	d, err := nic.Open(nic.Config{Socket: socket})
	check(t, err)
	t.Cleanup(func() { check(t, d.Close()) })
	return d, stop
}

func newLocal(t testing.TB) rdma.Device {
	d := local.Open(local.Config{})
	t.Cleanup(func() { check(t, d.Close()) })
	return d
}

func open(t testing.TB, c remote.Config) rdma.Device {
	pool := mem.NewPool(8 << 20)
	c.Pool = pool
	d := remote.Open(c)
	t.Cleanup(func() {
		check(t, d.Close())
		if st := pool.Stats(); st.Leases != 0 {
			t.Errorf("%d leases are left of the device", st.Leases)
		}
		pool.Close()
	})
	return d
}

// below is what the device is tried over: the wire and one-shot; pairs inside of the process, with memory that is registered; a
// card, which shares the memory.
var below = []struct {
	name       string
	here, away func(testing.TB) rdma.Device
	listen     string
}{
	{"iwarp", newIWARP, newIWARP, "127.0.0.1:0"}, {"pairs", newLocal, newLocal, "pair:0"}, {"nic", newCard, newIWARP, "127.0.0.1:0"},
}

func TestEndpoints(t *testing.T) {
	for _, c := range below {
		t.Run(c.name, func(t *testing.T) {
			rdmatest.RunEndpoint(t, suite(c.here, c.away, c.listen, service.Config{}))
		})
	}
	t.Run("program", func(t *testing.T) { rdmatest.RunEndpoint(t, programSuite(service.Config{})) })
	// Works take several requests, which wait for memory and credits.
	t.Run("little memory", func(t *testing.T) {
		rdmatest.RunEndpointModel(t, suite(newLocal, newLocal, "pair:0", service.Config{Memory: mem.PageSize, Credits: 5}))
	})
}

// suite returns what opens the endpoint of a test of the suite.
func suite(here, away func(testing.TB) rdma.Device, listen string, c service.Config) func(*testing.T, *rdmatest.Volatile) rdmatest.Endpoint {
	return func(t *testing.T, s *rdmatest.Volatile) rdmatest.Endpoint {
		f := newFar(t, s, away(t), listen, c)
		d := open(t, remote.Config{Device: here(t)})
		e := rdmatest.Endpoint{
			Device: d, Address: f.l.Addr().String() + "/disk/log", Store: s, Revoke: f.revoke, Wire: true, Quick: true, Cut: remote.Cut,
		}
		if listen == "pair:0" { // once: what is below is the same to it
			e.Forget = f.forget(c)
		}
		return e
	}
}

// programSuite is suite for a program of the host that serves.
func programSuite(c service.Config) func(*testing.T, *rdmatest.Volatile) rdmatest.Endpoint {
	return func(t *testing.T, s *rdmatest.Volatile) rdmatest.Endpoint {
		f := newFar(t, s, newLocal(t), "pair:0", c)
		d := open(t, remote.Config{Device: f.newProgram(t)})
		return rdmatest.Endpoint{Device: d, Address: "here/disk/log", Store: s, Revoke: f.revoke, Wire: true, Quick: true, Cut: remote.Cut}
	}
}

var errBroken = errors.New("broken on purpose")
