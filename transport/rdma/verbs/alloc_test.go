//go:build verbs && guest && !race

package verbs_test

import (
	"context"
	"os"
	"testing"

	"oneshot/transport/rdma"
)

// TestNoAllocations: a message in each direction, with a Write before it, allocates nothing.
func TestNoAllocations(t *testing.T) {
	d := open(t)
	dom, err := d.NewDomain()
	check(t, err)
	defer func() { check(t, dom.Close()) }()
	mem, err := dom.Register(make([]byte, 4096), rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	check(t, err)
	defer func() { check(t, mem.Deregister()) }()
	cq, err := d.NewCompletionQueue(256, nil)
	check(t, err)
	defer func() { check(t, cq.Close()) }()
	var qps [2]rdma.QueuePair
	for i := range qps {
		qps[i], err = d.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 32, MaxRecv: 32})
		check(t, err)
		defer func() { check(t, qps[i].Close()) }()
	}
	l, err := d.Listen(os.Getenv(envListen))
	check(t, err)
	defer func() { check(t, l.Close()) }()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(qps[1], rdma.ConnParams{})
		}
		done <- err
	}()
	check(t, d.Connect(context.Background(), qps[0], l.Addr().String(), rdma.ConnParams{}))
	check(t, <-done)

	sgl := []rdma.SGE{{Bytes: mem.Bytes()[:64], Region: mem}}
	rs := []rdma.Receive{{SGL: sgl}}
	ws := []rdma.Work{
		{Op: rdma.OpWrite, SGL: sgl, RemoteSTag: mem.STag(), RemoteOffset: mem.Base() + 1024},
		{Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, SGL: sgl},
	}
	cs := make([]rdma.Completion, 8)
	round := func() {
		for i, q := range qps {
			_, err1 := qps[1-i].PostReceive(rs)
			_, err2 := q.Post(ws)
			check(t, err1)
			check(t, err2)
			for left := 2; left > 0; {
				n := cq.Poll(cs)
				for _, c := range cs[:n] {
					if c.Status != rdma.StatusOK {
						t.Fatalf("%+v", c)
					}
				}
				left -= n
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
