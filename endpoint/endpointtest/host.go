// Package endpointtest serves a store as an endpoint to tests of what uses package endpoint.
package endpointtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/endpoint"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

var errGone = errors.New("the partition has changed")

// Host serves one partition, and can be restarted with another store.
type Host struct {
	t      testing.TB
	Device rdma.Device
	// Info is what endpoints say of themselves; its Rights are the most that are granted.
	Info rdma.Endpoint
	// Listed is what List of a service shows to users who have a name.
	Listed []rdma.Endpoint

	mu     sync.Mutex
	volume *volume.Volume
	kept   []byte
	uses   []*use
	told   func()
	refuse error // Connect fails with it
	opened int
	secret map[string]string // by user
}

// New returns a host that serves s.
func New(t testing.TB, s backend.Store) *Host {
	h := &Host{t: t, Info: rdma.Endpoint{UUID: "0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15", Rights: rdma.AllRights, Durability: rdma.DurabilityMedium}}
	d := local.Open(local.Config{Open: h.open})
	h.Device = d
	h.serve(s)
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), h.volume.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *Host) serve(s backend.Store) {
	v, err := volume.New(volume.Config{Store: s, Keeper: h})
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.volume = v
	h.mu.Unlock()
}

// use is one connection.
type use struct {
	gone   func(error)
	closed chan struct{}
}

func (h *Host) open(ctx context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
	o, before, err := h.enter(name, want, gone)
	if err != nil {
		return o, err
	}
	for _, u := range before {
		u.gone(rdma.ErrReplaced)
	}
	h.mu.Lock()
	told := h.told
	if len(before) > 0 {
		h.told = nil
	}
	h.mu.Unlock()
	if told != nil && len(before) > 0 {
		told()
	}
	for _, u := range before {
		select {
		case <-u.closed:
		case <-ctx.Done():
			o.Close()
			return local.Opened{}, ctx.Err()
		}
	}
	return o, nil
}

// Told has f called, once, when a connection ends because its user has come on another one.
func (h *Host) Told(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = f
}

// enter makes a connection. If its user is to be the only one, it returns those that were there before.
func (h *Host) enter(name string, want rdma.Rights, gone func(error)) (o local.Opened, before []*use, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return o, nil, h.refuse
	}
	h.opened++
	i, v := h.Info, h.volume
	i.Name = name
	if w := want &^ rdma.RightSole; w != 0 {
		i.Rights &= w
	}
	if want&rdma.RightSole != 0 {
		i.Rights |= rdma.RightSole
		before = slices.Clone(h.uses)
	}
	handle, u := v.Open(nil), &use{gone, make(chan struct{})}
	h.uses = append(h.uses, u)
	return local.Opened{Medium: handle, Info: i, Memory: v.Lends(), Close: func() {
		handle.Close()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.uses = slices.DeleteFunc(h.uses, func(o *use) bool { return o == u })
		close(u.closed)
	}}, before, nil
}

// End ends all connections, as a change of the partition does.
func (h *Host) End() {
	h.mu.Lock()
	uses := slices.Clone(h.uses)
	h.mu.Unlock()
	for _, u := range uses {
		u.gone(errGone)
	}
}

// Change changes what connections are told from now on, and ends those that there are.
func (h *Host) Change(f func(*rdma.Endpoint)) {
	h.mu.Lock()
	f(&h.Info)
	h.mu.Unlock()
	h.End()
}

// Restart ends all connections and goes on with another store. The old one is closed when the test ends.
func (h *Host) Restart(s backend.Store) {
	h.Refuse(errors.New("starting"))
	old := h.volume
	h.End()
	h.serve(s)
	h.Refuse(nil)
	h.t.Cleanup(func() { _ = old.Close() })
}

// Refuse has connections fail with err from now on; nil: they do not.
func (h *Host) Refuse(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

// Secret makes a user known, who proves himself by a secret.
func (h *Host) Secret(user, secret string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.secret == nil {
		h.secret = make(map[string]string)
	}
	h.secret[user] = secret
}

func (h *Host) secretOf(user string) ([]byte, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.secret[user]
	return []byte(s), ok
}

// Opened returns how many connections there were.
func (h *Host) Opened() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened
}

// URL is that of the partition.
const URL = "rdma+local:///disk/log"

// Use opens the endpoint until the test ends.
func (h *Host) Use(o endpoint.Options) *endpoint.Endpoint {
	h.t.Helper()
	o.Device = h.Device
	return h.UseURL(URL, o)
}

// UseURL opens the endpoint of a URL until the test ends.
func (h *Host) UseURL(url string, o endpoint.Options) *endpoint.Endpoint {
	h.t.Helper()
	e, err := endpoint.Open(h.t.Context(), url, o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := e.Close(); err != nil {
			h.t.Error(err)
		}
	})
	return e
}

// Listen serves the partition over iWARP on loopback, and returns its URL.
func (h *Host) Listen() string {
	h.t.Helper()
	d, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		h.t.Fatal(err)
	}
	pool := mem.NewPool(256 << 20)
	s, err := service.New(service.Config{Device: d, Pool: pool, Opener: remotes{h}, Secret: h.secretOf, Penalty: time.Millisecond})
	if err != nil {
		h.t.Fatal(err)
	}
	l, err := d.Listen("127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(l) })
	h.t.Cleanup(func() {
		err := l.Close()
		work.Wait()
		if err := errors.Join(err, s.Close(), d.Close()); err != nil {
			h.t.Error(err)
		}
		pool.Close()
	})
	return "oneshot+iwarp://" + l.Addr().String() + "/disk/log"
}

// remotes opens the partition for the service.
type remotes struct{ h *Host }

func (r remotes) Open(ctx context.Context, q service.Request) (service.Endpoint, error) {
	o, err := r.h.open(ctx, q.Name, q.Want, q.Gone)
	if err != nil {
		return nil, err
	}
	return &far{o.Medium.(*volume.Handle), o}, nil
}

func (r remotes) List(id partition.Identity) []rdma.Endpoint {
	if id.Name == "" {
		return nil
	}
	return r.h.Listed
}

// far is the endpoint of one user of the service.
type far struct {
	*volume.Handle
	o local.Opened
}

func (f *far) Describe() rdma.Endpoint { return f.o.Info }
func (f *far) Lends() bool             { return f.o.Memory }
func (f *far) Lineage() uint64         { return 0 }
func (f *far) Close()                  { f.o.Close() }

// Load and Save keep the state of the volume.
func (h *Host) Load() ([]byte, error)   { return h.kept, nil }
func (h *Host) Save(state []byte) error { h.kept = state; return nil }
