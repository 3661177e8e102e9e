package nvmf

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/volume"
)

const (
	testNQN  = "nqn.2026-11.com.example:disk"
	testHost = "nqn.2026-11.com.example:host"
	diskSize = 1 << 20
)

// target is a node with one namespace, without a clock: the test calls Tick.
type target struct {
	*Node
	t    *testing.T
	log  bytes.Buffer
	pool *mem.Pool
	sub  *Subsystem
	ns   *Namespace
	v    *volume.Volume
	over *Transport // by which hosts come
}

// newTarget serves store; nil: one in memory.
func newTarget(t *testing.T, store backend.Store, readOnly bool) *target {
	t.Helper()
	return newKeepingTarget(t, store, readOnly, nil)
}

// newKeepingTarget is newTarget, of a volume whose state keeper keeps.
func newKeepingTarget(t *testing.T, store backend.Store, readOnly bool, keeper volume.Keeper) *target {
	t.Helper()
	if store == nil {
		s, err := memory.New(diskSize)
		if err != nil {
			t.Fatal(err)
		}
		store = s
	}
	x := &target{t: t, pool: mem.NewPool(16 << 20), over: &transport}
	log := slog.New(slog.NewTextHandler(&x.log, nil))
	v, err := volume.New(volume.Config{Store: store, Keeper: keeper, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	x.v = v
	if x.ns, err = NewNamespace(NamespaceConfig{Volume: v, UUID: [16]byte{7}, ReadOnly: readOnly, Logger: log}); err != nil {
		t.Fatal(err)
	}
	x.Node = NewNode(Config{
		Pool: x.pool, Door: door.NewDoor(10), Logger: log, MemoryPerConnection: 4 << 20, Depth: 128, Firmware: "1",
		Limits: Limits{Controllers: 10, ConnectTimeout: 15 * time.Second, ReadTimeout: 20 * time.Second},
	})
	x.sub = x.AddSubsystem(SubsystemConfig{
		NQN: testNQN, Serial: "S", Namespaces: []Shown{{NSID: 1, Namespace: x.ns}},
		Admit: func(host string) bool { return host != "nqn.2026-11.com.example:stranger" },
	})
	t.Cleanup(func() {
		x.RemoveSubsystem(x.sub)
		x.sub.SetNamespaces([]Shown{{NSID: 1}})
		x.ns.Close()
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if n := x.pool.Stats().Leases; n != 0 {
			t.Errorf("%d leases are left", n)
		}
		x.pool.Close()
	})
	return x
}

// pass lets seconds pass.
func (x *target) pass(seconds int) {
	for range seconds {
		x.Tick()
	}
}

// logged returns what was logged since the last call.
func (x *target) logged() string {
	defer x.log.Reset()
	return x.log.String()
}

// wantLog wants one line with all of these words since the last look.
func (x *target) wantLog(words ...string) {
	x.t.Helper()
	got := x.logged()
	for _, w := range words {
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, w) {
			x.t.Errorf("the log says\n%swant one line with %q", got, w)
			return
		}
	}
}

// host is a queue, and the mover of it: data are there at once, and answers have left at once.
type host struct {
	q      *Queue
	x      *target
	id     byte // begins the host identifier
	cid    uint16
	out    map[uint16][]byte // data of commands
	late   map[uint16]*Task  // commands whose data are to come
	over   *Transport
	free   int // tasks that were given back
	pool   []*Task
	copies bool   // no memory of a store is sent or received into
	reads  bool   // RDMA Reads place bytes: Forget does not end that
	held   *Task  // whose data wait for memory
	sent   uint64 // bytes, of which read were read
	read   uint64
	left   bool // it has closed the connection
	deaf   bool // answers do not leave; they are in kept
	kept   []*Task

	answers []answer
	heard   chan struct{} // an answer has come
	params  Params
	ended   []Termination
}

type answer struct {
	nvme.CQE
	data []byte
}

var _ Mover = (*host)(nil)

// dial makes a connection, which is lost at the latest when the test ends.
func (x *target) dial() *host { return x.dialThrough(1, 1) }

// dialThrough is dial for a host with that identifier, through a portal of that group.
func (x *target) dialThrough(group uint16, id byte) *host {
	x.t.Helper()
	if !x.Admit() {
		x.t.Fatal("no room for a connection")
	}
	h := &host{x: x, id: id, heard: make(chan struct{}, 1000), out: make(map[uint16][]byte), late: make(map[uint16]*Task), over: x.over}
	h.q = x.NewQueue(h, group)
	x.t.Cleanup(h.lose)
	return h
}

// lose ends the connection.
func (h *host) lose() {
	h.q.Lock()
	h.q.Lost(nil)
	h.q.Unlock()
}

func (h *host) FreeTask(t *Task) {
	h.free++
	h.pool = append(h.pool, t)
}

func (h *host) Forget(t *Task) bool {
	delete(h.late, t.CQE.CID)
	h.goOn(t)
	return !h.reads
}

func (h *host) Hold(t *Task) bool {
	if h.over.Holds {
		h.held = t
	}
	return h.over.Holds
}
func (h *host) Arrived() (sent, read uint64, open bool) { return h.sent, h.read, !h.left }
func (h *host) Connected(p Params)                      { h.params = p }
func (h *host) Flush()                                  {}
func (h *host) Terminate(how Termination) {
	h.ended = append(h.ended, how)
}
func (h *host) Peer() string  { return "192.0.2.1:5" }
func (h *host) Local() string { return "192.0.2.2:4420" }
func (h *host) Transport() *Transport {
	return h.over
}

var transport = Transport{Name: "test", Type: nvme.TransportTCP, Capsule: 16 << 10, AdminCapsule: 8 << 10, SGLS: nvme.SGLSTransport}

func (h *host) Digests() (header, data bool) {
	return true, false
}

// goOn ends what Hold begins.
func (h *host) goOn(t *Task) {
	if h.held == t {
		h.held = nil
	}
}

func (h *host) GetData(t *Task) {
	h.goOn(t)
	b, there := h.out[t.CQE.CID]
	if !there {
		h.late[t.CQE.CID] = t
		return
	}
	delete(h.out, t.CQE.CID)
	if t.PlaceUnit != 0 {
		t.Place(0, b[:t.OutLen])
	} else {
		for _, o := range t.Out {
			b = b[copy(o, b):]
		}
	}
	h.q.GotData(t)
}

func (h *host) Answer(t *Task) {
	var data []byte
	for _, s := range t.In {
		data = append(data, s...)
	}
	h.answers = append(h.answers, answer{t.CQE, data})
	h.heard <- struct{}{}
	if h.deaf {
		h.kept = append(h.kept, t)
		return
	}
	h.q.Sent(t)
}

// start begins a command about n bytes; out, unless it is nil, are its data, in its capsule or not.
func (h *host) start(c nvme.Command, n int, out []byte, inCapsule bool) uint16 {
	h.x.t.Helper()
	h.cid++
	c.CID, c.SGL = h.cid, nvme.SGL{Length: uint32(n), Type: nvme.SGLTransport}
	if inCapsule {
		c.SGL.Type = nvme.SGLInCapsule
	}
	if out != nil {
		h.out[c.CID] = out
	}
	h.q.Lock()
	defer h.q.Unlock()
	t := &Task{Queue: h.q}
	if n := len(h.pool); n > 0 {
		t = h.pool[n-1]
		h.pool = h.pool[:n-1]
	}
	t.Mover, t.NoLend = t, h.copies
	h.q.times.Arrive()
	if !h.q.Command(t, nvme.SQE(c.AppendTo(nil))) {
		h.x.t.Fatal("the queue takes no command")
	}
	return c.CID
}

// take returns the answers since the last call.
func (h *host) take() []answer {
	got := h.answers
	h.answers = nil
	return got
}

// do is start for a command that ends at once.
func (h *host) do(c nvme.Command, n int, out []byte, inCapsule bool) answer {
	h.x.t.Helper()
	cid := h.start(c, n, out, inCapsule)
	got := h.take()
	if len(got) != 1 || got[0].CID != cid {
		h.x.t.Fatalf("%v instead of the answer of command %d", got, cid)
	}
	return got[0]
}

// await is do for a command that ends when something else has happened.
func (h *host) await(c nvme.Command, n int, out []byte) answer {
	h.x.t.Helper()
	return h.answersAfter(1, func() { h.start(c, n, out, out != nil) })[0]
}

// answersAfter returns the answers since the last call of take, when n have come since what do does.
func (h *host) answersAfter(n int, do func()) []answer {
	for len(h.heard) > 0 {
		<-h.heard
	}
	do()
	for range n {
		<-h.heard
	}
	h.q.Lock()
	defer h.q.Unlock()
	return h.take()
}

// must is do for a command that succeeds.
func (h *host) must(c nvme.Command, n int, out []byte, inCapsule bool) answer {
	h.x.t.Helper()
	a := h.do(c, n, out, inCapsule)
	if a.Status != nvme.Success {
		h.x.t.Fatalf("%+v: %v", c, a.Status)
	}
	return a
}

// connect connects the queue. Of an I/O queue, id is that of the controller.
func (h *host) connect(host string, qid, id uint16, kato uint32) answer {
	h.x.t.Helper()
	c, b := h.connectCommand(host, qid, id, kato)
	return h.do(c, len(b), b, true)
}

// connectCommand is Connect with its data.
func (h *host) connectCommand(host string, qid, id uint16, kato uint32) (nvme.Command, []byte) {
	f := nvme.ConnectFields{HostID: [16]byte{h.id}, CNTLID: id, SubNQN: testNQN, HostNQN: host}
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect), DWords: [6]uint32{uint32(qid) << 16, 31, kato}}, f.AppendTo(nil)
}

// admin returns the admin queue of a controller that is ready, and its ID.
func (x *target) admin(kato uint32) (*host, uint16) {
	x.t.Helper()
	return x.adminThrough(1, 1, kato)
}

// adminThrough is admin of a host with that identifier, through a portal of that group.
func (x *target) adminThrough(group uint16, id byte, kato uint32) (*host, uint16) {
	x.t.Helper()
	h := x.dialThrough(group, id)
	a := h.connect(testHost, 0, nvme.DynamicController, kato)
	if a.Status != nvme.Success {
		x.t.Fatal(a.Status)
	}
	h.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), 0x460001}}, 0, nil, false)
	return h, uint16(a.DW0)
}

// identify asks what a namespace is, as hosts do of one that has come.
func (h *host) identify(nsid uint32) {
	h.x.t.Helper()
	h.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid}, nvme.IdentifyLen, nil, false)
}

// queue returns an I/O queue of a controller.
func (x *target) queue(id uint16) *host {
	x.t.Helper()
	h := x.dial()
	if a := h.connect(testHost, 1, id, 0); a.Status != nvme.Success {
		x.t.Fatal(a.Status)
	}
	return h
}

// rw is a command about blocks from the first on.
func rw(op nvme.Opcode, blocks uint32) nvme.Command {
	return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{0, 0, blocks - 1}}
}

// fill is n bytes of one value.
func fill(n int, v byte) []byte { return bytes.Repeat([]byte{v}, n) }

// All queues of a controller come over one transport: what Identify says of capsules depends on it.
func TestOneTransport(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(0)
	h := x.dial()
	other := transport
	h.over = &other
	if a := h.connect(testHost, 1, id, 0); a.Status != nvme.ConnectInvalid || a.DW0 != nvme.InvalidParameter(true, nvme.OffCNTLID) {
		t.Errorf("a queue over another transport: %v, %#x", a.Status, a.DW0)
	}
	if info := admin.q.ctrl.info(); len(info.Queues) != 1 || info.Queues[0].Transport != "test" {
		t.Errorf("%+v", info.Queues)
	}
	x.queue(id)
}

// A host makes a queue anew whose former connection is lost, and has a command in the store still: it may come again until there is room.
func TestQueueMadeAnew(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	_, id := x.admin(0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	io := x.queue(id)
	io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
	gate.Await(1)
	io.lose()
	if a := x.dial().connect(testHost, 1, id, 0); a.Status != nvme.CommandSequence {
		t.Errorf("while its command is in the store: %v %#x", a.Status, a.DW0)
	}
	over := make(chan struct{})
	x.ns.Drain(func() { close(over) })
	gate.Release()
	<-over
	io.q.Lock() // whoever has told that settles the queue first
	if io.q.state != queueGone {
		t.Errorf("the queue without a connection and commands is in state %d", io.q.state)
	}
	io.q.Unlock()
	x.queue(id).must(rw(nvme.Read, 1), 512, nil, false)
}

// A queue that comes beside a reset, or a shutdown, which has told those that it has found to end, is not let in: it would stay.
func TestQueueBesideReset(t *testing.T) {
	for _, cc := range []uint32{enabled &^ nvme.CCEnable, shutDown} {
		store := later(t)
		x := newTarget(t, store, false)
		admin, id := x.admin(0)
		gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
		io := x.queue(id)
		io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
		gate.Await(1)
		admin.setCC(cc)
		late := x.dial()
		late.q.Lock()
		if late.q.joins(admin.q.ctrl, 2) { // Connect has looked before
			t.Errorf("CC %#x: it is let in", cc)
		}
		late.q.Unlock()
		io.lose()
		gate.Release()
	}
}

// An I/O queue that comes when its controller has just ended, whose end the host may not have heard of: the host is not told to stay away for
// good (DNR). Linux would give the subsystem up, and not come again.
func TestQueueOfEndedController(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	h, id := x.admin(0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	io := x.queue(id)
	io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
	gate.Await(1)
	h.lose()
	if a := x.dial().connect(testHost, 2, id, 0); a.Status != nvme.ConnectBusy {
		t.Errorf("while its commands are in stores: %v", a.Status)
	}
	io.lose()
	gate.Release()
	again := x.dial()
	c, b := again.connectCommand(testHost, 0, nvme.DynamicController, 0)
	if a := again.await(c, len(b), b); a.Status != nvme.Success { // the former controller is gone then
		t.Fatal(a.Status)
	}
	if a := x.dial().connect(testHost, 2, id, 0); a.Status != nvme.ConnectInvalid || a.DW0 != nvme.InvalidParameter(true, nvme.OffCNTLID) {
		t.Errorf("afterwards: %v, %#x", a.Status, a.DW0)
	}
	_, id = x.adminThrough(1, 2, 0) // as after a restart
	if a := x.dial().connect(testHost, 1, id, 0); a.Status != nvme.ConnectInvalid || a.DW0 != nvme.InvalidParameter(true, nvme.OffHostID) {
		t.Errorf("when another host has its number: %v %#x", a.Status, a.DW0)
	}
}
