package nvmerdma

import (
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// fakePair is a queue pair whose peer is the test.
type fakePair struct {
	*rdmatest.FakePair
	t testing.TB
}

// fetch is the end of Reads that brought data.
func (p *fakePair) fetch(ws []rdma.Work, data []byte) {
	p.t.Helper()
	for i := range ws {
		if ws[i].Op != rdma.OpRead {
			p.t.Fatalf("a %v instead of a Read", ws[i].Op)
		}
		for _, s := range ws[i].SGL {
			data = data[copy(s.Bytes, data):]
		}
	}
	p.Finish(ws, rdma.StatusOK)
}

// answer expects RDMA Writes and a completion, in one post, which it ends.
func (p *fakePair) answer() (data []byte, e nvme.CQE, send rdma.Work) {
	p.t.Helper()
	ws := p.Next()
	if len(ws) == 0 {
		p.t.Fatal("no answer")
	}
	for i := range ws[:len(ws)-1] {
		if ws[i].Op != rdma.OpWrite {
			p.t.Fatalf("a %v before the answer", ws[i].Op)
		}
		for _, s := range ws[i].SGL {
			data = append(data, s.Bytes...)
		}
	}
	send = ws[len(ws)-1]
	if send.Op != rdma.OpSend || len(send.SGL[0].Bytes) != nvme.CQELen {
		p.t.Fatalf("%+v instead of an answer", send)
	}
	e = nvme.ParseCQE(send.SGL[0].Bytes)
	p.Finish(ws, rdma.StatusOK)
	return data, e, send
}

// bench is a node behind a fake device.
type bench struct {
	*nvmf.Node
	t      testing.TB
	d      *rdmatest.Fake
	target *Target
	sub    *nvmf.Subsystem
	rig    *rig
	cid    uint16
	ctrl   uint16 // of queues
	pairs  []*fakePair
}

func newBench(t testing.TB, d *rdmatest.Fake) *bench {
	t.Helper()
	return newBenchOf(t, d, nil)
}

// newBenchOf is newBench with a place for the node's log.
func newBenchOf(t testing.TB, d *rdmatest.Fake, log io.Writer) *bench {
	t.Helper()
	store := newStore(t)
	node, pool, sub, end := newNode(t, rigConfig{store: store, connections: 1000, log: log})
	b := &bench{sub: sub, Node: node, t: t, d: d, rig: &rig{t: t, store: store, pool: pool}}
	var err error
	b.target, err = NewTarget(Config{Node: node, Device: d, Pool: pool, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() {
		for _, p := range b.pairs {
			p.End()
		}
		check(t, b.target.Close()) // when all connections are gone
		if n, w := d.Registered(); n != 0 || w != 0 {
			t.Errorf("%d regions and %d domains are left", n, w)
		}
		end()
	})
	return b
}

// dial makes a connection.
func (b *bench) dial(private []byte) *fakePair {
	b.t.Helper()
	r := &rdmatest.FakeRequest{Data: private}
	check(b.t, b.target.accept(r, 1))
	p := &fakePair{r.Pair, b.t}
	b.pairs = append(b.pairs, p)
	return p
}

// memoryKey and memoryAt name the memory of every command.
const (
	memoryKey = 0x4711
	memoryAt  = 0x10000
)

// command makes a capsule with a keyed descriptor of n bytes.
func (b *bench) command(c nvme.Command, n int) []byte {
	b.cid++
	c.CID, c.SGL = b.cid, nvme.SGL{Address: memoryAt, Length: uint32(n), Key: memoryKey, Type: nvme.SGLKeyedInvalidate}
	return c.AppendTo(nil)
}

// run has a command with data, or without, run to its end, which has to be good.
func (b *bench) run(p *fakePair, c nvme.Command, out []byte, in int) []byte {
	b.t.Helper()
	p.Say(b.command(c, max(len(out), in)))
	if len(out) > 0 {
		p.fetch(p.Next(), out)
	}
	data, e, _ := p.answer()
	if e.Status != nvme.Success {
		b.t.Fatalf("%+v: %v", c, e.Status)
	}
	return data
}

// queue connects an I/O queue, and an admin queue before.
func (b *bench) queue() *fakePair {
	b.t.Helper()
	_, io := b.queues()
	return io
}

func (b *bench) queues() (admin, io *fakePair) {
	b.t.Helper()
	admin = b.dial(request(0, 32))
	admin.Say(b.command(connect(0, 31), nvme.ConnectDataLen))
	admin.fetch(admin.Next(), connectData(nvme.DynamicController))
	_, e, _ := admin.answer()
	b.ctrl = uint16(e.DW0)
	b.run(admin, propertySet(nvme.PropCC, 0x460001), nil, 0)
	io = b.dial(request(1, depth))
	b.run(io, connect(1, depth-1), connectData(b.ctrl), 0)
	io.Posts = nil
	return admin, io
}

// until looks again and again until what is awaited holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() { // only a hang reaches it
		if time.Now().After(deadline) {
			t.Fatalf("awaited in vain: %s", what)
		}
	}
}
