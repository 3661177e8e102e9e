package local_test

import (
	"errors"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

// A narrow device leads to its listener, whatever address is said, and nobody reaches it.
func TestNarrow(t *testing.T) {
	d := open(t, local.Config{})
	own, err1 := d.Listen("pair:0")
	other, err2 := d.Listen("pair:0")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	narrow := local.OpenNarrow(local.Config{Name: "a program"}, own)
	defer func() {
		if err := narrow.Close(); err != nil {
			t.Error(err)
		}
	}()
	if l := narrow.Limits(); l.Windows || l.OneShot || l.Endpoints {
		t.Errorf("%+v", l)
	}
	if _, err := narrow.Listen("pair:0"); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("Listen: %v", err)
	}
	for _, addr := range []string{other.Addr().String(), "disk/log", "", "pair:x"} {
		dom, err1 := narrow.NewDomain()
		cq, err2 := narrow.NewCompletionQueue(4, nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		qp, err := narrow.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 1})
		if err != nil {
			t.Fatal(err)
		}
		connected := make(chan error, 1)
		go func() { connected <- narrow.Connect(t.Context(), qp, addr, rdma.ConnParams{}) }()
		r, err := own.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if local.Origin(r) != narrow.Device || r.RemoteAddr().String() != "a program" {
			t.Errorf("%s: the request is from %v", addr, r.RemoteAddr())
		}
		if err := r.Reject(nil); err != nil {
			t.Error(err)
		}
		if _, rejected := errors.AsType[*rdma.RejectedError](<-connected); !rejected {
			t.Errorf("%q: not the one listener has answered", addr)
		}
		if err := errors.Join(qp.Close(), cq.Close(), dom.Close()); err != nil {
			t.Error(err)
		}
	}
	if err := own.Close(); err != nil {
		t.Error(err)
	}
}
