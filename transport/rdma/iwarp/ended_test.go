package iwarp

import (
	"net"
	"runtime"
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// PeerEnded knows that the peer has ended the connection before the goroutine of the connection has noticed it.
func TestPeerEnded(t *testing.T) {
	dev, err := Open(Config{})
	check(t, err)
	dom, err := dev.NewDomain()
	check(t, err)
	inside, leave := make(chan struct{}), make(chan struct{})
	cq, err := dev.NewCompletionQueue(16, func() {
		close(inside)
		<-leave // as long as this takes, nothing is read
	})
	check(t, err)
	qp, err := dev.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 4, MaxRecv: 4})
	check(t, err)
	mem, err := dom.Register(make([]byte, 100), rdma.AccessLocalWrite)
	check(t, err)
	_, err = qp.PostReceive([]rdma.Receive{{SGL: []rdma.SGE{{Bytes: mem.Bytes(), Region: mem}}}})
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	theirs, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	ours, err := l.Accept()
	check(t, err)
	q := qp.(*queuePair)
	check(t, q.claim())
	check(t, q.start(ours.(*net.TCPConn), &agreed{crc: true, ird: 1, ord: 1}))
	cq.Arm()
	p := &peer{t: t, c: theirs}
	p.write(p.send(ddp.Send, 0, 1, "hello"))
	<-inside
	if q.PeerEnded() {
		t.Error("the peer has ended, with the connection open")
	}
	p.write(p.send(ddp.Send, 0, 2, "nobody reads this"))
	check(t, theirs.Close())
	for !q.PeerEnded() {
		runtime.Gosched()
	}
	close(leave)
	check(t, qp.Close())
	if !q.PeerEnded() {
		t.Error("the peer is there, with the connection closed")
	}
	check(t, cq.Close())
	check(t, mem.Deregister())
	check(t, l.Close())
	check(t, dev.Close())
}
