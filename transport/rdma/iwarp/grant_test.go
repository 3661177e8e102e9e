package iwarp

import (
	"bytes"
	"runtime"
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

const (
	grantTag  = rdma.STag(0xfff1a307)
	grantBase = 0x5000_0000_0000
)

// granted has a peer write to n octets of the end's memory.
func granted(t *testing.T, e *end, n int) ([]byte, rdma.Grant) {
	t.Helper()
	b := make([]byte, n)
	g, err := e.dom.(rdma.Granter).Grant(b, bothWays, grantTag, grantBase)
	check(t, err)
	return b, g
}

// placing waits until the reader has begun to place an FPDU, and waits for the rest of it.
func (e *end) placing() {
	q := e.qp.(*queuePair)
	for begun := false; !begun; runtime.Gosched() {
		q.mu.Lock()
		begun = !q.batching && q.rx.partial // the reader has let go of rx, and needs the lock to go on
		q.mu.Unlock()
	}
}

// Memory is taken back in the middle of a Write, by the end of the connection: what still comes of it is not placed, though the
// peer goes on as if nothing were.
func TestGrantTakenInTheMiddle(t *testing.T) {
	const n = 48 << 10
	e, p := withPeer(t, setup{}, 0, false)
	b, g := granted(t, e, n)
	fpdu := p.tagged(grantTag, grantBase, bytes.Repeat([]byte{1}, n))
	half := len(fpdu) / 2
	_, err := p.c.Write(fpdu[:half])
	check(t, err)
	e.placing()
	if g.Revoke() {
		t.Fatal("a Write is under way, and the memory is quiet")
	}
	e.qp.Abort(nil)
	check(t, g.Free())
	for i := range b { // whatever has come is over by now
		b[i] = 2
	}
	_, _ = p.c.Write(fpdu[half:])
	<-e.gone
	if !bytes.Equal(b, bytes.Repeat([]byte{2}, n)) {
		t.Error("octets came after the grant had gone")
	}
}

// Who has broken the protocol in the middle of a Write holds no memory up: it is free while the peer does not take its Terminate.
func TestGrantFreeOfOffender(t *testing.T) {
	const n = 48 << 10
	e, p := withPeer(t, setup{device: Config{LingerTime: 1 << 40}}, 0, false)
	_, g := granted(t, e, n)
	fpdu := p.tagged(grantTag, grantBase, bytes.Repeat([]byte{1}, n))
	_, err := p.c.Write(fpdu[:n/2])
	check(t, err)
	e.placing()
	fpdu[n-1]++ // its CRC is wrong
	_, err = p.c.Write(fpdu[n/2:])
	check(t, err)
	if m := p.read().Message; m != ddp.Terminate {
		t.Fatalf("%v, want a Terminate", m)
	}
	check(t, g.Free())
}
