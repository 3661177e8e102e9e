package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"oneshot/backend/faulty"
	"oneshot/endpoint"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/test/targettest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/remote"
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

// there leads a device of package remote to the partitions of one service.
type there struct {
	rdma.Device
	host string
}

func (d there) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp, d.host+"/"+addr, p)
}

// deaf relays connections to addr. When lose is called a client sees his end, and the service does not; ended is closed when the service
// has ended the first connection itself.
func deaf(t *testing.T, addr string) (relay string, lose func(), ended <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	first, over := make(chan net.Conn, 1), make(chan struct{})
	var far []net.Conn
	work.Go(func() {
		for n := 0; ; n++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			far = append(far, c)
			work.Go(func() { _, _ = io.Copy(c, near) })
			work.Go(func() {
				_, _ = io.Copy(near, c)
				if n == 0 {
					close(over)
				}
				_ = near.Close()
			})
			if n == 0 {
				first <- near
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		for _, c := range far {
			_ = c.Close()
		}
		work.Wait()
	})
	return l.Addr().String(), func() { _ = (<-first).Close() }, over
}

// Reconnect returns when nothing is under way any more of the connection that it replaces, though the service does not know that this has
// ended: or what the user writes then could be overwritten by what he has written before.
func TestReconnectWaits(t *testing.T) {
	f := newFixture(t, "any rwf")
	addr, _ := f.serve("127.0.0.1:0")
	relay, lose, ended := deaf(t, addr)
	below, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := remote.Open(remote.Config{Device: below, Patience: -1})
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), below.Close()); err != nil {
			t.Error(err)
		}
	})
	e, err := endpoint.Open(t.Context(), "rdma+local:///disk/a", endpoint.Options{Device: there{d, relay}})
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
	sge, err := e.SGE(b)
	if err != nil {
		t.Fatal(err)
	}
	gate := f.below.Hold(faulty.Match{Kinds: faulty.Writes, Off: mib, Len: mib})
	if _, err := e.Post([]rdma.Work{{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}}); err != nil {
		t.Fatal(err)
	}
	gate.Await(1)
	lose()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := make(chan error, 1)
	go func() { again <- e.Reconnect(t.Context()) }()
	select {
	case err = <-again:
		gate.Release()
	case <-ended:
		gate.Release()
		err = <-again
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Endpoints()); n != 1 {
		t.Errorf("after Reconnect %d endpoints are open, want 1", n)
	}
}
