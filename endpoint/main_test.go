package endpoint_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/endpoint"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errGone = errors.New("the partition has changed")

// host serves one partition, and can be restarted with another store.
type host struct {
	t      testing.TB
	Device rdma.Device
	// Info is what endpoints say; Rights are all there are.
	Info rdma.Endpoint

	mu     sync.Mutex
	volume *volume.Volume
	kept   []byte
	gone   []func(error)
	refuse error // Connect fails with it
	opened int
}

func newHost(t testing.TB, s backend.Store) *host {
	h := &host{t: t, Info: rdma.Endpoint{UUID: "0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15", Rights: rdma.AllRights, Durability: rdma.DurabilityMedium}}
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

func (h *host) serve(s backend.Store) {
	v, err := volume.New(volume.Config{Store: s, Keeper: h})
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.volume = v
	h.mu.Unlock()
}

func (h *host) open(_ context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return local.Opened{}, h.refuse
	}
	h.opened++
	h.gone = append(h.gone, gone)
	i, v := h.Info, h.volume
	i.Name = name
	if want != 0 {
		i.Rights &= want
	}
	handle := v.Open(nil)
	return local.Opened{Medium: handle, Info: i, Memory: v.Lends(), Close: handle.Close}, nil
}

// end ends all connections.
func (h *host) end() {
	h.mu.Lock()
	gone := h.gone
	h.gone = nil
	h.mu.Unlock()
	for _, f := range gone {
		f(errGone)
	}
}

// restart ends all connections and goes on with another store. Who is told by ends has closed the old one.
func (h *host) restart(s backend.Store) {
	h.mu.Lock()
	h.refuse = errors.New("starting")
	old := h.volume
	h.mu.Unlock()
	h.end()
	h.serve(s)
	h.mu.Lock()
	h.refuse = nil
	h.mu.Unlock()
	h.t.Cleanup(func() { _ = old.Close() })
}

func (h *host) use(o endpoint.Options) *endpoint.Endpoint {
	h.t.Helper()
	o.Device = h.Device
	e, err := endpoint.Open(h.t.Context(), "rdma+local:///disk/log", o)
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

// Load and Save keep the state of the volume.
func (h *host) Load() ([]byte, error)   { return h.kept, nil }
func (h *host) Save(state []byte) error { h.kept = state; return nil }
