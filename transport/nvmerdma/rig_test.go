package nvmerdma

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/rdma/cm"
	"oneshot/nvmf"
	"oneshot/nvmf/movertest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

const (
	subNQN  = movertest.NQN
	hostNQN = "nqn.2026-11.com.example:host"
	size    = 8 << 20
	depth   = movertest.Depth

	readTimeout = time.Minute
)

// rig is a node that serves one namespace over a device.
type rig struct {
	*nvmf.Node
	t      testing.TB
	device rdma.Device
	target *Target
	sub    *nvmf.Subsystem
	addr   string
	store  backend.Store
	pool   *mem.Pool
}

// rigConfig says what differs from the usual rig.
type rigConfig struct {
	store       backend.Store // nil: one of memory
	connections int           // most of them
	memory      int64
	log         io.Writer // nil: nobody reads the node's log
}

// devices are those that tests run over: without a wire, over sockets, and (verbs_test.go) those of the kernel, as far as they can be
// imitated.
var devices = map[string]deviceKind{
	"local": {"pair:0", func(testing.TB) rdma.Device { return local.Open(local.Config{}) }},
	"iwarp": {"127.0.0.1:0", func(t testing.TB) rdma.Device {
		d, err := iwarp.Open(iwarp.Config{})
		check(t, err)
		return d
	}},
}

type deviceKind struct {
	addr string
	open func(t testing.TB) rdma.Device
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overAll runs a test over each of devices.
func overAll(t *testing.T, f func(t *testing.T, r *rig)) {
	for name, d := range devices {
		t.Run(name, func(t *testing.T) { f(t, newRig(t, d.open(t), d.addr, rigConfig{})) })
	}
}

// newLocal returns a rig over a device without a wire.
func newLocal(t testing.TB, cfg rigConfig) *rig {
	return newRig(t, local.Open(local.Config{}), "pair:0", cfg)
}

func newNode(t testing.TB, cfg rigConfig) (node *nvmf.Node, pool *mem.Pool, sub *nvmf.Subsystem, end func()) {
	t.Helper()
	if cfg.connections == 0 {
		cfg.connections = 100
	}
	if cfg.memory == 0 {
		cfg.memory = 64 << 20
	}
	log := slog.New(slog.DiscardHandler)
	if cfg.log != nil {
		log = slog.New(slog.NewTextHandler(cfg.log, nil))
	}
	v, err := volume.New(volume.Config{Store: cfg.store, Logger: log})
	check(t, err)
	ns, err := nvmf.NewNamespace(nvmf.NamespaceConfig{Volume: v, UUID: [16]byte{7}, NGUID: [16]byte{8}, Logger: log})
	check(t, err)
	pool = mem.NewPool(cfg.memory)
	node = nvmf.NewNode(nvmf.Config{
		Pool: pool, Door: door.NewDoor(cfg.connections), Logger: log, MemoryPerConnection: 4 << 20, Depth: depth, Firmware: "1",
		Limits: nvmf.Limits{Controllers: 100, ConnectTimeout: time.Minute, ReadTimeout: readTimeout},
	})
	sub = node.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN, Serial: "S", Namespaces: []nvmf.Shown{{NSID: 1, Namespace: ns}}})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) })
	return node, pool, sub, func() {
		stop()
		wg.Wait()
		node.RemoveSubsystem(sub)
		sub.SetNamespaces([]nvmf.Shown{{NSID: 1}})
		ns.Close()
		check(t, v.Settled())
		check(t, v.Close())
		if n := pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		pool.Close()
	}
}

func newStore(t testing.TB) backend.Store {
	s, err := memory.New(size)
	check(t, err)
	return s
}

func newRig(t testing.TB, device rdma.Device, addr string, cfg rigConfig) *rig {
	t.Helper()
	if cfg.store == nil {
		cfg.store = newStore(t)
	}
	node, pool, sub, end := newNode(t, cfg)
	r := &rig{Node: node, t: t, sub: sub, device: device, store: cfg.store, pool: pool}
	stop := r.listen(addr)
	t.Cleanup(func() {
		patience, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		check(t, r.Shutdown(patience))
		stop()
		end()
	})
	return r
}

// listen has a target serve the node, through the device, until stop is called, when no connection is left.
func (r *rig) listen(addr string) (stop func()) {
	r.t.Helper()
	var err error
	r.target, err = NewTarget(Config{Node: r.Node, Device: r.device, Pool: r.pool, Logger: slog.New(slog.DiscardHandler)})
	check(r.t, err)
	l, err := r.device.Listen(addr)
	check(r.t, err)
	r.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.target.Serve(l, 1); err != nil {
			r.t.Error(err)
		}
	})
	return func() {
		check(r.t, l.Close())
		wg.Wait()
		check(r.t, r.target.Close())
		check(r.t, r.device.Close())
	}
}

// contents reads what the medium has, past the node.
func (r *rig) contents(off, n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	op := &backend.Op{Kind: backend.Read, Off: int64(off), Len: int64(n), Segs: [][]byte{b}}
	if !r.store.Submit(op) || op.Err != nil {
		r.t.Fatal("the store of the test does not answer at once", op.Err)
	}
	return b
}

// host is one queue of a host: it sends what it is told, right or wrong.
type host struct {
	t      testing.TB
	r      *rig
	domain rdma.Domain
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	wake   chan struct{}
	hang   *time.Timer   // what takes longer never ends
	ended  chan struct{} // closed when the connection is over
	region rdma.Region
	data   []byte // of commands
	keyed  rdma.Region
	sends  int
	cid    uint16
	id     uint16 // of the controller
	cs     [1]rdma.Completion
	ws     [1]rdma.Work
	rs     [1]rdma.Receive
	sgl    [1]rdma.SGE
	inval  bool // ask for the invalidation of the key
	// invalidated is what the last completion has invalidated.
	invalidated rdma.STag
}

const (
	hostReceives = 80
	answerLen    = 64 // longer than any answer, so that one of another length is seen
	sendSlots    = 80
	sendLen      = 8 << 10
	sendOff      = hostReceives * answerLen
	dataOff      = 1 << 20
	dataLen      = 8 << 20
)

// dial asks for a connection, with that private data.
func (r *rig) dial(private []byte) (*host, error) {
	r.t.Helper()
	h := &host{t: r.t, r: r, wake: make(chan struct{}, 1), hang: time.NewTimer(5 * time.Minute), ended: make(chan struct{})}
	memory, free, err := rdma.Alloc(r.device, dataOff+dataLen)
	check(r.t, err)
	h.domain, err = r.device.NewDomain()
	check(r.t, err)
	h.cq, err = r.device.NewCompletionQueue(1024, func() {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	})
	check(r.t, err)
	h.region, err = h.domain.Register(memory[:dataOff], rdma.AccessLocalWrite)
	check(r.t, err)
	h.data = memory[dataOff:]
	h.qp, err = r.device.NewQueuePair(rdma.QueuePairConfig{
		Domain: h.domain, SendCQ: h.cq, RecvCQ: h.cq, MaxWork: 256, MaxRecv: hostReceives, Disconnected: func(error) { close(h.ended) },
	})
	check(r.t, err)
	h.register()
	for i := range hostReceives {
		h.receive(i)
	}
	if err := r.device.Connect(r.t.Context(), h.qp, r.addr, rdma.ConnParams{PrivateData: private}); err != nil {
		_ = h.qp.Close()
		h.close(free, memory)
		return nil, err
	}
	r.t.Cleanup(func() {
		_ = h.qp.Close()
		h.close(free, memory)
	})
	return h, nil
}

func (h *host) close(free func([]byte) error, memory []byte) {
	h.hang.Stop()
	_ = h.region.Deregister()
	_ = h.keyed.Deregister()
	_ = h.cq.Close()
	_ = h.domain.Close()
	_ = free(memory)
}

// register gives data a new key.
func (h *host) register() {
	h.t.Helper()
	if h.keyed != nil {
		check(h.t, h.keyed.Deregister())
	}
	var err error
	access := rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	if h.canInvalidate() {
		access |= rdma.AccessRemoteInvalidate
	}
	h.keyed, err = h.domain.Register(h.data, access)
	check(h.t, err)
}

// canInvalidate reports whether the device lets a peer invalidate a key of memory.
func (h *host) canInvalidate() bool {
	l := h.r.device.Limits()
	return l.RegionInvalidate && l.SendInvalidate
}

// receive posts a receive.
func (h *host) receive(i int) {
	h.t.Helper()
	check(h.t, h.tryReceive(i))
}

// tryReceive is receive; it fails when the connection is over.
func (h *host) tryReceive(i int) error {
	h.sgl[0] = rdma.SGE{Bytes: h.region.Bytes()[i*answerLen:][:answerLen], Region: h.region}
	h.rs[0] = rdma.Receive{ID: uint64(i), SGL: h.sgl[:]}
	_, err := h.qp.PostReceive(h.rs[:])
	return err
}

// request is what a host says of a queue.
func request(qid uint16, entries int) []byte {
	return cm.Request{QID: qid, HRQ: uint16(entries), HSQ: uint16(entries - 1)}.AppendTo(nil)
}

func (r *rig) mustDial(private []byte) *host {
	r.t.Helper()
	h, err := r.dial(private)
	check(r.t, err)
	return h
}

// admin connects an admin queue, and has the controller ready.
func (r *rig) admin() *host {
	r.t.Helper()
	h := r.mustDial(request(0, 32))
	e := h.must(connect(0, 31), connectData(nvme.DynamicController), 0)
	h.id = uint16(e.DW0)
	h.must(propertySet(nvme.PropCC, 0x460001), nil, 0)
	return h
}

// queue connects an I/O queue of the controller whose admin queue h is.
func (h *host) queue(qid uint16) *host {
	h.t.Helper()
	q := h.r.mustDial(request(qid, depth))
	q.must(connect(qid, depth-1), connectData(h.id), 0)
	return q
}

func connect(qid, sqsize uint16) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect), DWords: [6]uint32{uint32(qid) << 16, uint32(sqsize)}}
}

func connectData(cntlid uint16) []byte {
	f := nvme.ConnectFields{HostID: [16]byte{1}, CNTLID: cntlid, SubNQN: subNQN, HostNQN: hostNQN}
	return f.AppendTo(nil)
}

func propertySet(p nvme.Property, v uint32) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(p), v}}
}

func rw(op nvme.Opcode, lba uint64, n int) nvme.Command {
	return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{uint32(lba), uint32(lba >> 32), uint32(n/512) - 1}}
}

// send sends a message.
func (h *host) send(message []byte) {
	h.t.Helper()
	check(h.t, h.trySend(message))
}

// trySend is send; it fails when the connection is over.
func (h *host) trySend(message []byte) error {
	b := h.region.Bytes()[sendOff+h.sends%sendSlots*sendLen:][:len(message)]
	h.sends++
	copy(b, message)
	h.sgl[0] = rdma.SGE{Bytes: b, Region: h.region}
	h.ws[0] = rdma.Work{ID: 1 << 32, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: h.sgl[:]}
	_, err := h.qp.Post(h.ws[:])
	return err
}

// key names the first n bytes of data.
func (h *host) key(n int) nvme.SGL {
	s := nvme.SGL{Address: h.keyed.Base(), Length: uint32(n), Key: uint32(h.keyed.STag()), Type: nvme.SGLKeyed}
	if h.inval {
		s.Type = nvme.SGLKeyedInvalidate
	}
	return s
}

// capsule is a command with that descriptor, and data in the capsule.
func (h *host) capsule(c nvme.Command, s nvme.SGL, data []byte) []byte {
	h.cid++
	c.CID, c.SGL = h.cid, s
	return append(c.AppendTo(nil), data...)
}

// completion waits for one. False: the connection is over.
func (h *host) completion() (nvme.CQE, bool) {
	h.t.Helper()
	for {
		if h.cq.Poll(h.cs[:]) == 0 {
			if h.cq.Arm() {
				select {
				case <-h.wake:
				case <-h.hang.C:
					h.t.Fatal("nothing comes")
				}
			}
			continue
		}
		switch c := &h.cs[0]; {
		case c.Status != rdma.StatusOK:
			return nvme.CQE{}, false
		case c.Op == rdma.OpReceive:
			if c.Bytes != nvme.CQELen {
				h.t.Fatalf("a completion of %d bytes", c.Bytes)
			}
			h.invalidated = 0
			if c.Flags&rdma.Invalidated != 0 {
				h.invalidated = c.STag
			}
			e := nvme.ParseCQE(h.region.Bytes()[int(c.ID)*answerLen:])
			h.receive(int(c.ID))
			return e, true
		}
	}
}

// do runs a command, the only one that is under way, with out in data, or room for in bytes.
func (h *host) do(c nvme.Command, out []byte, in int) nvme.CQE {
	h.t.Helper()
	copy(h.data, out)
	s := h.key(max(len(out), in))
	if s.Length == 0 {
		s = nvme.SGL{Type: nvme.SGLKeyed}
	}
	h.send(h.capsule(c, s, nil))
	return h.mustComplete()
}

func (h *host) mustComplete() nvme.CQE {
	h.t.Helper()
	e, ok := h.completion()
	if !ok {
		h.t.Fatal("the connection is over")
	}
	if e.CID != h.cid {
		h.t.Fatalf("%+v, want CID %d", e, h.cid)
	}
	return e
}

func (h *host) must(c nvme.Command, out []byte, in int) nvme.CQE {
	h.t.Helper()
	e := h.do(c, out, in)
	if e.Status != nvme.Success {
		h.t.Fatalf("%+v: %v", c, e.Status)
	}
	return e
}

// over waits until the target has ended the connection.
func (h *host) over() {
	h.t.Helper()
	select {
	case <-h.ended:
	case <-time.After(time.Minute): // only a hang reaches it
		h.t.Fatal("the connection does not end")
	}
}

// works has an I/O queue write and read.
func (h *host) works(seed int) {
	h.t.Helper()
	want := pattern(64<<10, seed)
	h.must(rw(nvme.Write, 1024, len(want)), want, 0)
	clear(h.data)
	h.must(rw(nvme.Read, 1024, len(want)), nil, len(want))
	if !bytes.Equal(h.data[:len(want)], want) {
		h.t.Fatal("other bytes come back")
	}
}

// pattern is n bytes that differ from those of other seeds.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9 + i + seed)
	}
	return b
}

// refusal returns why a connection with that private data is refused; 0: it is not.
func (r *rig) refusal(private []byte) cm.Status {
	r.t.Helper()
	_, err := r.dial(private)
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*rdma.RejectedError](err)
	if !ok {
		r.t.Fatal(err)
	}
	s, ok := cm.ParseReject(e.PrivateData)
	if !ok {
		r.t.Fatalf("refused with % x", e.PrivateData)
	}
	return s
}
