package nvmf

import (
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/mem"
	"oneshot/nvme"
)

// A connection without a Connect command ends when its time is over, and one with it does not.
func TestConnectTimeout(t *testing.T) {
	x := newTarget(t, nil, false)
	late, good := x.dial(), x.dial()
	good.connect(testHost, 0, nvme.DynamicController, 0)
	x.logged()
	x.pass(15)
	if len(late.ended)+len(good.ended) != 0 {
		t.Fatal("a connection ends before its time")
	}
	x.pass(1)
	if !slices.Equal(late.ended, []Termination{AtOnce}) || len(good.ended) != 0 {
		t.Errorf("%v, %v", late.ended, good.ended)
	}
	x.wantLog("connection dropped", "no Connect command within 15s", "host_address=192.0.2.1:5")
	x.pass(1)
	if len(late.ended) != 1 || x.logged() != "" {
		t.Error("a connection ends twice")
	}
}

// A controller whose host is silent for its keep-alive timeout, and the second that ticks are apart, ends with its I/O queues; any
// input of any of its queues counts (Base 2.0 §3.9, TBKAS).
func TestKeepAlive(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(5000)
	io := x.queue(id)
	forever, _ := x.admin(0)
	for _, h := range []*host{admin, io} {
		x.pass(6)
		h.q.Heard()
	}
	x.pass(1)
	admin.must(nvme.Command{Opcode: nvme.AdminKeepAlive}, 0, nil, false)
	x.logged()
	x.pass(7)
	if len(admin.ended) != 0 {
		t.Fatal("a controller ends whose host was heard")
	}
	x.pass(1)
	if !slices.Equal(admin.ended, []Termination{AtOnce}) || !slices.Equal(io.ended, []Termination{AtOnce}) {
		t.Fatalf("%v, %v", admin.ended, io.ended)
	}
	x.wantLog("connection dropped", "nothing was heard of the host for 7 s", "5000 ms")
	admin.lose()
	x.wantLog("host disconnected", "host="+testHost, "subsystem="+testNQN, "controller=1")
	x.pass(1000)
	if len(forever.ended) != 0 {
		t.Error("a controller without a timeout ends")
	}
	for v, want := range map[uint32]uint32{1: 1000, 1000: 1000, 1001: 2000, 1<<32 - 297: 1<<32 - 296, 1<<32 - 1: 1<<32 - 296} { // rounded up, to the most that there is
		forever.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureKeepAlive), v}}, 0, nil, false)
		if a := forever.must(nvme.Command{Opcode: nvme.AdminGetFeatures, DWords: [6]uint32{uint32(nvme.FeatureKeepAlive)}}, 0, nil, false); a.DW0 != want {
			t.Errorf("a timeout of %d is %d", v, a.DW0)
		}
	}
}

// A connection ends when its host has answered no RDMA Read for a time, however alive it is otherwise.
func TestReadTimeout(t *testing.T) {
	x := newTarget(t, nil, false)
	_, id := x.admin(0)
	h := x.queue(id)
	tell := func(n int) {
		h.q.Lock()
		h.q.Fetching(n)
		h.q.Unlock()
	}
	tell(2)
	x.pass(15)
	tell(1) // one is answered
	x.pass(20)
	tell(0)
	x.pass(1000)
	tell(1)
	x.pass(15)
	tell(2) // one more is no answer
	x.pass(5)
	x.logged()
	if len(h.ended) != 0 {
		t.Fatal("a connection ends before its time")
	}
	x.pass(1)
	if !slices.Equal(h.ended, []Termination{AtOnce}) {
		t.Errorf("%v", h.ended)
	}
	x.wantLog("connection dropped", "has not answered an RDMA Read for 21 s")
}

// The log names who comes and goes, and who may not come.
func TestLog(t *testing.T) {
	x := newTarget(t, nil, false)
	h := x.dial()
	if a := h.connect("nqn.2026-11.com.example:stranger", 0, nvme.DynamicController, 0); a.Status != nvme.ConnectInvalidHost|nvme.DNR {
		t.Errorf("a stranger: %v", a.Status)
	}
	x.wantLog("level=INFO", "connection refused: the subsystem does not admit the host (hosts)", "host=nqn.2026-11.com.example:stranger", "subsystem="+testNQN, "host_address=192.0.2.1:5")
	h.connect(testHost, 0, nvme.DynamicController, 0)
	x.wantLog("level=INFO", "host connected", "host="+testHost, "subsystem="+testNQN, "controller=1")
	h.lose()
	x.wantLog("level=INFO", "host disconnected", "controller=1")
}

// A host that comes back is let in when the commands that it has left in stores are over: it sends them again, and what it writes then must
// not be written over by them. Others do not wait, and no connection waits for longer than it may.
func TestReconnectWaits(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	p := x.party(1, 1)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	p.io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
	gate.Await(1)
	p.io.lose()
	p.admin.lose()
	x.logged()

	back := func() *host {
		h := x.dial()
		c, b := h.connectCommand(testHost, 0, nvme.DynamicController, 0)
		h.start(c, len(b), b, true)
		if got := h.take(); len(got) != 0 {
			t.Fatalf("the host is let in while its former command is in the store: %v", got)
		}
		return h
	}
	lost, slow := back(), back()
	if _, id := x.adminThrough(1, 2, 0); id == 0 {
		t.Error("another host has no controller")
	}
	lost.lose()
	if lost.free != 1 {
		t.Error("a connection that is lost waits still")
	}
	x.logged()
	x.pass(16)
	x.wantLog("former controller of the host")
	if len(slow.ended) != 1 {
		t.Errorf("it waits for as long as it likes: %v", slow.ended)
	}
	slow.lose()
	h := back()
	for len(h.heard) > 0 {
		<-h.heard
	}
	gate.Release()
	<-h.heard
	h.q.Lock()
	got := h.take()
	h.q.Unlock()
	if len(got) != 1 || got[0].Status != nvme.Success {
		t.Errorf("when the command is over: %v", got)
	}
}

// Likewise if the subsystem is another one of the same name meanwhile, or its rules have shut the host out and let it in again.
func TestReconnectWaitsAfterChange(t *testing.T) {
	for what, change := range map[string]func(*target){
		"another subsystem": func(x *target) {
			x.RemoveSubsystem(x.sub)
			x.sub.SetNamespaces([]Shown{{NSID: 1}})
			x.sub = x.AddSubsystem(SubsystemConfig{NQN: testNQN, Serial: "other", Namespaces: []Shown{{NSID: 1, Namespace: x.ns}}})
		},
		"other rules": func(x *target) {
			x.sub.SetAccess(func(string) bool { return false }, nil)
			x.sub.SetAccess(nil, nil)
		},
	} {
		store := later(t)
		x := newTarget(t, store, false)
		p := x.party(1, 1)
		gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
		p.io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
		gate.Await(1)
		p.admin.q.Lock() // whoever ends the controller waits for it
		change(x)
		h := x.dial()
		c, b := h.connectCommand(testHost, 0, nvme.DynamicController, 0)
		h.start(c, len(b), b, true)
		if got := h.take(); len(got) != 0 {
			t.Fatalf("%s: the host is let in before its controller has ended: %v", what, got)
		}
		p.admin.q.Unlock()
		p.admin.lose()
		p.io.lose()
		if got := h.take(); len(got) != 0 {
			t.Fatalf("%s: the host is let in while its former command is in the store: %v", what, got)
		}
		gate.Release()
		<-h.heard
		h.q.Lock()
		got := h.take()
		h.q.Unlock()
		if len(got) != 1 || got[0].Status != nvme.Success {
			t.Errorf("%s: %v", what, got)
		}
		h.lose()
		if n := len(x.formerly(testNQN)); n != 0 {
			t.Errorf("%s: %d former subsystems are remembered", what, n)
		}
	}
}

// A connection ends when its host has sent none of the data of a command for a time, however alive it is otherwise; nor of what it was asked for before,
// which comes first over a slow link.
func TestDataThatDoNotCome(t *testing.T) {
	x := newTarget(t, nil, false)
	_, id := x.admin(0)
	h := x.queue(id)
	pair := rw(nvme.Compare, 1)
	pair.Fuse = nvme.FusedFirst
	w := pair
	w.Opcode, w.Fuse = nvme.Write, nvme.FusedSecond
	for _, s := range []struct {
		seconds int
		want    []nvme.Status
	}{{20, []nvme.Status{nvme.Success, nvme.Success}}, {21, []nvme.Status{nvme.FusedMissing | nvme.DNR, nvme.FusedMissing | nvme.DNR}}} {
		h.start(pair, 512, fill(512, 0), true) // it waits for its second
		x.pass(s.seconds)
		h.start(w, 512, fill(512, 0), true)
		var got []nvme.Status
		for _, a := range h.take() {
			got = append(got, a.Status)
		}
		if !slices.Equal(got, s.want) {
			t.Fatalf("a pair whose second comes %d s later: %v", s.seconds, got)
		}
	}
	first := h.late[h.start(rw(nvme.Write, 1), 512, nil, false)]
	second := h.late[h.start(rw(nvme.Write, 1), 512, nil, false)]
	came := func(task *Task) {
		h.q.Lock()
		h.q.DataCame(task)
		h.q.Unlock()
	}
	x.pass(15)
	came(first)
	x.pass(21)
	x.logged()
	if len(h.ended) != 0 {
		t.Fatal("a connection ends before its time")
	}
	came(second)
	x.pass(1)
	if !slices.Equal(h.ended, []Termination{AtOnce}) {
		t.Errorf("%v", h.ended)
	}
	x.wantLog("connection dropped", "namespace 1 (opcode 0x01)", "in 21 s", "limits.read_timeout")
}

// What waits for memory does not wait for a command whose store does not return it.
func TestMemoryBehindOneThatHangs(t *testing.T) {
	x, p, gate, written := withHungWrite(t, false)
	var others []*mem.Lease // which are other connections'
	for range 3 {
		others = append(others, x.pool.Lease(mem.MaxLease))
	}
	got := p.io.start(rw(nvme.Read, 8), 4096, nil, false)
	if a := p.io.take(); len(a) != 0 {
		t.Errorf("with %d bytes free: %v", x.pool.Free(), a)
	}
	a := p.io.answersAfter(2, func() {
		for _, l := range others {
			l.Release()
		}
		x.pass(1)
		p.io.q.Lock()
		waits := len(p.io.q.hungry)
		p.io.q.Unlock()
		if waits != 0 {
			t.Errorf("a second after others have given memory back %d commands wait for it", waits)
		}
		gate.Release()
	})
	if len(a) != 2 || a[0].CID != got && a[1].CID != got || a[0].CID != written && a[1].CID != written {
		t.Errorf("in the end: %v", a)
	}
}
