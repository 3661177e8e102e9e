package registry

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"oneshot/endpoint"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/test/targettest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// opener opens partitions for a service.
type opener struct{ *Registry }

func (o opener) Open(ctx context.Context, q service.Request) (service.Endpoint, error) {
	e, err := o.Registry.Open(ctx, Request(q))
	if err != nil {
		return nil, err
	}
	return e, nil
}

// serve serves the partitions of f on loopback until stop is called.
func (f *fixture) serve(listen string) (addr string, stop func()) {
	t := f.t
	t.Helper()
	d, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pool := mem.NewPool(64 * mib)
	s, err := service.New(service.Config{Device: d, Pool: pool, Opener: opener{f.Registry}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Listen(listen)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(l) })
	stop = sync.OnceFunc(func() {
		err := l.Close()
		work.Wait()
		if err := errors.Join(err, s.Close(), d.Close()); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// What a user has asked for while his link was down is not done when the link is up again, if he has come from elsewhere meanwhile
// as the only one who writes.
func TestRepeatedTooLate(t *testing.T) {
	for name, c := range map[string]struct{ sole, restart bool }{
		"one of several": {}, "sole": {sole: true}, "the service does not know": {true, true},
		"one of several, and the service does not know": {restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "any rwf")
			addr, stop := f.serve("127.0.0.1:0")
			relay := targettest.NewRelay(t, addr)
			open := func(addr string, o endpoint.Options) (*endpoint.Endpoint, []byte) {
				t.Helper()
				e, err := endpoint.Open(t.Context(), "oneshot+iwarp://"+addr+"/disk/a", o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				})
				b, err := e.Alloc(4096)
				if err != nil {
					t.Fatal(err)
				}
				return e, b
			}
			far, late := open(relay.Addr(), endpoint.Options{Sole: c.sole})
			copy(late, bytes.Repeat([]byte{'a'}, 4096))
			if err := far.WriteAt(t.Context(), late, 0); err != nil {
				t.Fatal(err)
			}
			relay.Cut(true)
			ended := make(chan error, 1)
			go func() { ended <- far.WriteAt(t.Context(), late, 0) }()
			if c.restart {
				stop()
				f.serve(addr)
			}
			near, b := open(addr, endpoint.Options{Sole: true})
			copy(b, bytes.Repeat([]byte{'b'}, 4096))
			if err := near.WriteAt(t.Context(), b, 0); err != nil {
				t.Fatal(err)
			}
			relay.Cut(false)
			if err := <-ended; !errors.Is(err, rdma.ErrReplaced) {
				t.Errorf("the Write ends with %v", err)
			}
			if err := far.WriteAt(t.Context(), late, 0); !errors.Is(err, rdma.ErrReplaced) {
				t.Errorf("the next one ends with %v", err)
			}
			if err := near.ReadAt(t.Context(), b, 0); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{'b'}, 4096)) {
				t.Errorf("%v, %.8q", err, b)
			}
			if err := far.Reconnect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := far.WriteAt(t.Context(), late, 0); err != nil {
				t.Error(err)
			}
		})
	}
}
