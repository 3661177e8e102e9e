package mirror

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/ha/fabric"
	"oneshot/transport/rdma/local"
)

// TestSendNowDoesNotWait: the owner of the core leaves to another goroutine what the link has no room for, also when it is many short
// frames, each behind the data of its records.
func TestSendNowDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, here, end := linked(t)
		defer end()
		const frames = 20
		for here.HasRoom(frames+1, 1, 1) { // the other node reads nothing
			if err := here.Say([]byte{1}, time.Second); err != nil {
				t.Fatal(err)
			}
			if err := here.Commit(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int64(frames) {
			c.parcel.put(fabric.Run{Addr: i * 4096, Len: 512, Grant: 1})
			c.parcel.frames = append(c.parcel.frames, 1)
			c.parcel.bytes++
		}
		began := time.Now()
		if c.sendNow() {
			t.Error("more is sent than the link has room for")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the owner of the core waits for %v", took)
		}
	})
}

// linked is a connection with a node that reads nothing, over a link. end frees all.
func linked(t *testing.T) (c *conn, link *fabric.Link, end func()) {
	const size = 1 << 20
	var fabrics [2]*fabric.Fabric
	var arenas [2]*fabric.Arena
	for i := range fabrics {
		d := local.Open(local.Config{})
		l, err := d.Listen("pair:0")
		if err == nil {
			fabrics[i], err = fabric.New(fabric.Config{Device: d, Listener: l, Address: l.Addr().String()})
		}
		if err == nil {
			arenas[i], err = fabrics[i].NewArena(size, "disk")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var there *fabric.Link
	var wg sync.WaitGroup
	offer, invitation := fabrics[0].Offer(arenas[0])
	wg.Go(func() { there, _ = offer.Accept(context.Background()) })
	here, err := fabrics[1].Connect(context.Background(), arenas[1], invitation)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := arenas[0].Grant(there, 1); err != nil {
		t.Fatal(err)
	}
	m := &Mirror{cfg: Usual(size)}
	mine, theirs := net.Pipe()
	c = newConn(m, 0, mine)
	c.use(here)
	return c, here, func() {
		c.close()
		_ = theirs.Close()
		arenas[0].Cut()
		for _, l := range []*fabric.Link{there, here} {
			if l == here && c.unlinked {
				continue
			}
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}
		for i := range fabrics {
			if err := arenas[i].Free(); err != nil {
				t.Error(err)
			}
			if err := fabrics[i].Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSendAfterEnd: the core learns of the end of a connection when its link is freed already, and may have something for it until then.
func TestSendAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, end := linked(t)
		c.close()
		if err := c.unlink(); err != nil {
			t.Fatal(err)
		}
		c.send(frameIdle, nil, 0, nil)
		if !c.writeNow() {
			t.Error("somebody else is to send it")
		}
		if c.fetch(fabric.Run{Len: 4096, Grant: 1}, func() {}) == nil {
			t.Error("something is fetched")
		}
		end()
	})
}
