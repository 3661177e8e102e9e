package nvmf

import (
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
)

// setCC has the host write the property CC.
func (h *host) setCC(v uint32) {
	h.x.t.Helper()
	h.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), v}}, 0, nil, false)
}

// status is the property CSTS.
func (h *host) status() uint32 {
	h.x.t.Helper()
	return h.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertyGet), DWords: [6]uint32{0, uint32(nvme.PropCSTS)}}, 0, nil, false).DW0
}

const enabled, shutDown = 0x460001, 0x464001 // values of CC

// A host shuts its controller down, and goes while the flush is in the store: the namespace is not idle, so the store is not closed, and its
// queue is there for Node.Shutdown. The host may come back meanwhile: a flush writes nothing over what comes later.
func TestShutdownFlushOutlivesHost(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	h, _ := x.admin(0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
	h.setCC(shutDown)
	gate.Await(1)
	waits := x.dial()
	h.q.Lock() // Connect finds that the controller has ended before its queue has settled
	h.q.Lost(nil)
	c, b := waits.connectCommand(testHost, 0, nvme.DynamicController, 0)
	waits.start(c, len(b), b, true)
	if got := waits.take(); len(got) != 0 {
		t.Errorf("before: %v", got)
	}
	h.q.Unlock()
	if got := waits.take(); len(got) != 1 || got[0].Status != nvme.Success {
		t.Errorf("a host that comes back: %v", got)
	}
	back, _ := x.admin(0)
	if x.ns.Idle() || x.Connections() != 3 {
		t.Errorf("with a flush in the store: idle %v, %d connections", x.ns.Idle(), x.Connections())
	}
	waits.lose()
	back.lose()
	gate.Release()
	if err := x.Shutdown(t.Context()); err != nil || !x.ns.Idle() || x.sub.ControllerCount() != 0 {
		t.Errorf("in the end: %v, idle %v, %d controllers", err, x.ns.Idle(), x.sub.ControllerCount())
	}
}

// A reset does not wait for the flushes of the shutdown before it, which may never end. The next shutdown waits for a flush of its own, which begins
// after what the host has written in between.
func TestResetBesideShutdownFlush(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	h, id := x.admin(0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
	h.setCC(shutDown)
	gate.Await(1)
	h.setCC(enabled &^ nvme.CCEnable)
	if s := h.status(); s != 0 {
		t.Errorf("the reset waits for a flush that is in the store: CSTS is %#x", s)
	}
	h.setCC(enabled)
	over := make(chan struct{})
	x.ns.Drain(func() { close(over) })
	gate.Release()
	<-over
	if s := h.status(); s != nvme.CSTSReady {
		t.Errorf("when it is not: CSTS is %#x", s)
	}

	io := x.queue(id)
	io.must(rw(nvme.Write, 1), 512, fill(512, 1), true)
	io.lose()
	gate = store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
	h.setCC(shutDown)
	gate.Await(1)
	if s := h.status(); s != nvme.CSTSReady|nvme.CSTSShutdownUnderWay {
		t.Errorf("with the next flush in the store: CSTS is %#x", s)
	}
	over = make(chan struct{})
	x.ns.Drain(func() { close(over) })
	gate.Release()
	<-over
	if s := h.status(); s != nvme.CSTSReady|nvme.CSTSShutdownDone {
		t.Errorf("in the end: CSTS is %#x", s)
	}
}

// A host that shuts its controller down is not told that this is complete if a flush has failed; a reset ends that. It is if another process serves
// the bytes.
func TestShutdownFlushFails(t *testing.T) {
	for _, c := range []struct {
		err  error
		want uint32
	}{
		{errors.New("the medium is gone"), nvme.CSTSReady | nvme.CSTSShutdownUnderWay | nvme.CSTSFatal},
		{&backend.MovedError{Name: "mirror"}, nvme.CSTSReady | nvme.CSTSShutdownDone},
	} {
		store := later(t)
		x := newTarget(t, store, false)
		h, _ := x.admin(0)
		stop := store.Fail(faulty.Match{Kinds: []backend.Kind{backend.Flush}}, c.err)
		for range 2 {
			h.setCC(shutDown)
			if s := h.status(); s != c.want {
				t.Errorf("%v: CSTS is %#x", c.err, s)
			}
			h.setCC(enabled &^ nvme.CCEnable)
			if s := h.status(); s != 0 {
				t.Errorf("%v: after a reset CSTS is %#x", c.err, s)
			}
			h.setCC(enabled)
		}
		stop()
		h.setCC(shutDown)
		if s := h.status(); s != nvme.CSTSReady|nvme.CSTSShutdownDone {
			t.Errorf("when flushes are good again: CSTS is %#x", s)
		}
	}
}

// A host that does not wait for the end of its reset shuts down a second time while a flush of the first shutdown is in the store. What it has
// written in between is flushed before it is told that the shutdown is over.
func TestSecondShutdownFlushesAgain(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	h, id := x.admin(0)
	first := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}, Times: 1})
	h.setCC(shutDown)
	first.Await(1)
	h.setCC(enabled &^ nvme.CCEnable)
	h.setCC(enabled)
	io := x.queue(id)
	io.must(rw(nvme.Write, 1), 512, fill(512, 1), true)
	io.lose()
	h.setCC(shutDown)
	second := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
	first.Release()
	second.Await(1)
	over := make(chan struct{})
	x.ns.Drain(func() { close(over) })
	if s := h.status(); s != nvme.CSTSReady|nvme.CSTSShutdownUnderWay {
		t.Errorf("with the flush of the second shutdown in the store: CSTS is %#x", s)
	}
	second.Release()
	<-over
	if s := h.status(); s != nvme.CSTSReady|nvme.CSTSShutdownDone {
		t.Errorf("in the end: CSTS is %#x", s)
	}
}

// The first command of a pair keeps no daemon from its end: the second may never come. If it does, neither is done.
func TestNodeShutdownBesidePair(t *testing.T) {
	for _, inCapsule := range []bool{false, true} {
		for _, second := range []bool{false, true} {
			store := later(t)
			x := newTarget(t, store, false)
			admin, id := x.admin(0)
			io := x.queue(id)
			compare, write := rw(nvme.Compare, 1), rw(nvme.Write, 1)
			compare.Fuse, write.Fuse = nvme.FusedFirst, nvme.FusedSecond
			var data []byte
			if inCapsule {
				data = fill(512, 0)
			}
			first := io.late[io.start(compare, 512, data, inCapsule)]
			x.guests.Each((*Queue).leave)
			if len(io.ended) != 1 || len(admin.ended) != 1 {
				t.Fatalf("the pair keeps the daemon: %v, %v", io.ended, admin.ended)
			}
			if first != nil {
				io.q.Lock()
				io.q.GotData(first)
				io.q.Unlock()
			}
			if second {
				io.start(write, 512, fill(512, 1), true)
			}
			if got := io.take(); len(got) != 0 {
				t.Errorf("answers: %v", got)
			}
			io.lose()
			admin.lose()
			if err := x.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if n := io.q.live; n != 0 {
				t.Errorf("%d commands are left", n)
			}
			b := make([]byte, 512)
			if store.Submit(&backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{b}, Done: unheard{}}); b[0] != 0 {
				t.Error("the pair is done")
			}
		}
	}
}

// unheard is of an operation that ends at once.
type unheard struct{}

func (unheard) OpDone(*backend.Op) {}

// A daemon that ends answers what is in stores before it ends the connections of a controller, all at once: a host that loses one gives up all.
// What comes meanwhile is neither done nor answered, so the host sends it again elsewhere or later.
func TestNodeShutdownAnswers(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	admin, id := x.admin(0)
	io := x.queue(id)
	idle := x.dial()
	if a := idle.connect(testHost, 2, id, 0); a.Status != nvme.Success {
		t.Fatal(a.Status)
	}
	all := []*host{admin, io, idle}
	admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	cid := io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
	gate.Await(1)
	fresh := x.dial()
	x.guests.Each((*Queue).leave)
	if len(fresh.ended) != 1 {
		t.Error("a connection without a controller does not end")
	}
	for _, h := range []*host{io, idle} {
		h.start(rw(nvme.Read, 1), 512, nil, false)
	}
	for i, h := range all {
		if len(h.ended) != 0 {
			t.Errorf("queue %d ends with a command in the store", i)
		}
	}
	for len(io.heard) > 0 {
		<-io.heard
	}
	gate.Release()
	<-io.heard
	io.q.Lock()
	got := io.take()
	io.q.Unlock()
	if len(got) != 1 || got[0].CID != cid || got[0].Status != nvme.Success {
		t.Errorf("answers: %+v", got)
	}
	for i, h := range all {
		if len(h.ended) != 1 || h.ended[0] != WhenSent || len(h.take()) != 0 {
			t.Errorf("queue %d: ended %v", i, h.ended)
		}
	}
	for _, h := range append(all, fresh) {
		h.lose()
	}
	if err := x.Shutdown(t.Context()); err != nil || io.free != 3 || idle.free != 2 {
		t.Errorf("%v, %d and %d tasks came back", err, io.free, idle.free)
	}
}

// A controller that is not enabled is shut down, too (Base 2.0 §3.6): the host waits for the end of that. It can be enabled afterwards.
func TestShutdownWhileDisabled(t *testing.T) {
	x := newTarget(t, nil, false)
	h := x.dial()
	h.connect(testHost, 0, nvme.DynamicController, 0)
	for range 2 {
		h.setCC(shutDown &^ nvme.CCEnable)
		if s := h.status(); s != nvme.CSTSShutdownDone {
			t.Errorf("CSTS is %#x", s)
		}
		h.setCC(enabled)
		if s := h.status(); s != nvme.CSTSReady {
			t.Errorf("when it is enabled CSTS is %#x", s)
		}
		h.setCC(enabled &^ nvme.CCEnable)
		if s := h.status(); s != 0 {
			t.Errorf("when it is reset CSTS is %#x", s)
		}
	}
}
