package registry

import (
	"context"
	"errors"
	"testing"

	"oneshot/endpoint"
	"oneshot/partition"
	"oneshot/transport/rdma"
)

var app = partition.Identity{Name: "app"}

// held is an endpoint whose user takes his time to close it.
type held struct {
	*Endpoint
	told chan error
}

func (f *fixture) hold(id partition.Identity, want rdma.Rights, follows uint64) (*held, error) {
	h := &held{told: make(chan error, 1)}
	var err error
	h.Endpoint, err = f.Open(f.t.Context(), Request{Name: "disk/a", Identity: id, Want: want, Follows: follows, Gone: func(err error) { h.told <- err }})
	return h, err
}

func (f *fixture) mustHold(id partition.Identity, want rdma.Rights, follows uint64) *held {
	f.t.Helper()
	h, err := f.hold(id, want, follows)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// stays checks that nobody has ended h, and closes it.
func (h *held) stays(t *testing.T, what string) {
	t.Helper()
	select {
	case err := <-h.told:
		t.Errorf("%s has ended: %v", what, err)
	default:
	}
	h.Close()
}

// Who wants to be the only one ends what he has had before that may write, and has his endpoint when that is closed, and so
// nothing of it is under way.
func TestSole(t *testing.T) {
	f := newFixture(t, "any rwf", "name:app rwfad")
	old := f.mustHold(app, 0, 0)
	reader := f.mustHold(app, rdma.RightRead|rdma.RightFlush, 0)
	other := f.mustHold(partition.Identity{}, 0, 0)
	closed := make(chan struct{})
	go func() {
		if err := <-old.told; !errors.Is(err, rdma.ErrReplaced) {
			t.Errorf("the old endpoint is told: %v", err)
		}
		close(closed)
		old.Close()
	}()
	sole := f.mustHold(app, rdma.RightRead|rdma.RightWrite|rdma.RightSole, 0)
	select {
	case <-closed:
	default:
		t.Error("there are two at a time")
		<-closed
	}
	if got := sole.Describe().Rights; got != rdma.RightRead|rdma.RightWrite|rdma.RightSole {
		t.Errorf("rights %#x", got)
	}
	later := f.mustHold(app, 0, 0) // is not kept out
	if later.Describe().Rights&rdma.RightSole != 0 {
		t.Error("nobody has asked to be the only one")
	}
	later.stays(t, "a later one")
	sole.stays(t, "the sole one")
	reader.stays(t, "one who reads")
	other.stays(t, "somebody else's")
	if e := f.mustHold(partition.Identity{}, rdma.RightRead|rdma.RightSole, 0); e.Describe().Rights != rdma.RightRead {
		t.Errorf("one who reads is granted %#x", e.Describe().Rights)
	} else {
		e.Close()
	}
	all := f.mustHold(app, rdma.RightSole, 0)
	if got := all.Describe().Rights.String(); got != "rwfad" {
		t.Errorf("granted are %q", got)
	}
	all.Close()
}

// Works of a connection that is lost are repeated only if nobody has come meanwhile who is to be the only one; and who goes on with a
// connection takes the place of his own ones, and of no later ones.
func TestFollows(t *testing.T) {
	f := newFixture(t, "any rwf")
	id := partition.Identity{}
	first := f.mustHold(id, rdma.RightSole, 0)
	first.Close() // its connection is lost
	later := f.mustHold(id, 0, 0)
	done, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		select {
		case err := <-later.told:
			t.Errorf("a later one has ended: %v", err)
		case <-done:
		}
		later.Close()
	}()
	again := f.mustHold(id, rdma.RightSole, first.Lineage())
	if again.Lineage() != first.Lineage() {
		t.Errorf("lineage %d, of the first %d", again.Lineage(), first.Lineage())
	}
	close(done)
	<-left
	go func() {
		<-again.told
		again.Close()
	}()
	twice := f.mustHold(id, rdma.RightSole, first.Lineage()) // the client did not get the answer
	go func() {
		<-twice.told
		twice.Close()
	}()
	sole := f.mustHold(id, rdma.RightSole, 0)
	for _, want := range []rdma.Rights{0, rdma.RightSole} {
		if h, err := f.hold(id, want, first.Lineage()); !errors.Is(err, rdma.ErrReplaced) {
			t.Errorf("the first goes on, though another one has come: %v", err)
			h.Close()
		}
	}
	if h, err := f.hold(id, rdma.RightRead, first.Lineage()); err != nil {
		t.Errorf("one who reads cannot go on: %v", err)
	} else {
		h.Close()
	}
	if h, err := f.hold(id, 0, later.Lineage()); !errors.Is(err, rdma.ErrReplaced) {
		t.Errorf("one who was not alone goes on: %v", err)
		h.Close()
	}
	sole.stays(t, "the sole one")
}

// An operation that hangs in the store keeps the next one out, as long as he waits.
func TestSoleHangs(t *testing.T) {
	f := newFixture(t, "any rwf")
	old := f.mustHold(partition.Identity{}, 0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-old.told
		cancel()
	}()
	e, err := f.Open(ctx, Request{Name: "disk/a", Want: rdma.RightSole, Gone: func(error) {}})
	if !errors.Is(err, ErrHangs) {
		t.Errorf("%v", err)
		e.Close()
	}
	old.Close()
}

// Near, too, what a user has asked for on a connection that has ended is not done when he has come meanwhile from elsewhere as the only one who
// writes, whatever has ended the connection.
func TestRepeatedTooLateNear(t *testing.T) {
	for _, sole := range []bool{false, true} {
		f := newFixture(t, "any rwf")
		d := f.device(partition.Identity{})
		open := func(o endpoint.Options) (*endpoint.Endpoint, []byte) {
			t.Helper()
			o.Device = d
			e, err := endpoint.Open(t.Context(), "rdma+local:///disk/a", o)
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
		former, late := open(endpoint.Options{Sole: sole})
		for _, i := range f.Endpoints() {
			f.Drop(i.Number)
		}
		now, b := open(endpoint.Options{Sole: true})
		b[0] = 2
		if err := now.WriteAt(t.Context(), b, 0); err != nil {
			t.Fatal(err)
		}
		late[0] = 1
		if err := former.WriteAt(t.Context(), late, 0); !errors.Is(err, rdma.ErrReplaced) {
			t.Errorf("sole %v: the Write ends with %v", sole, err)
		}
		if err := now.ReadAt(t.Context(), b, 0); err != nil || b[0] != 2 {
			t.Errorf("sole %v: %v, %d", sole, err, b[0])
		}
		if err := former.Reconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := former.WriteAt(t.Context(), late, 0); err != nil {
			t.Error(err)
		}
	}
}
