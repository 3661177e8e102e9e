package nvmf

import (
	"testing"
	"testing/synctest"
	"time"

	"oneshot/internal/iostat"
	"oneshot/nvme"
)

// What the commands of a namespace have done is counted once, by kind, and outlives the queue and the controller.
func TestStats(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(4000)
	h := x.queue(id)
	h.must(rw(nvme.Read, 8), 4096, nil, false)
	h.must(rw(nvme.Write, 2), 1024, fill(1024, 1), true)
	h.must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, 0, nil, false)
	beyond := rw(nvme.Read, 1)
	beyond.DWords[1] = 1
	h.do(beyond, 512, nil, false)
	h.do(rw(nvme.Compare, 1), 512, fill(512, 9), true)
	first, second := rw(nvme.Compare, 1), rw(nvme.Write, 1)
	first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
	h.start(first, 512, fill(512, 1), true)
	h.start(second, 512, fill(512, 1), true) // a pair is one command
	h.take()
	h.start(rw(nvme.Write, 1), 512, nil, false) // whose data never come
	h.must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, 0, nil, false)

	check := func(what string, s *iostat.Stats, inFlight int64, lost uint64) {
		t.Helper()
		reads, writes, others := s.Commands[iostat.Read].Count(), s.Commands[iostat.Write].Count(), s.Commands[iostat.Other].Count()
		if reads != 2 || writes != 1 || others != 4 || s.ReadBytes != 4096 || s.WriteBytes != 1024 || s.InFlight != inFlight {
			t.Errorf("%s: %d reads of %d bytes, %d writes of %d, %d others, %d in flight", what, reads, s.ReadBytes, writes, s.WriteBytes, others, s.InFlight)
		}
		var want [iostat.Failures]uint64
		want[iostat.IllegalRequest], want[iostat.Miscompare], want[iostat.AbortedCommand] = 1, 1, lost
		if s.Failed != want {
			t.Errorf("%s: failures %v", what, s.Failed)
		}
	}
	list := x.Controllers()
	if len(list) != 1 || len(list[0].Queues) != 2 {
		t.Fatalf("%+v", list)
	}
	c := &list[0]
	check("controller", &c.Stats, 1, 0)
	if c.HostNQN != testHost || c.HostID != [16]byte{1} || c.Subsystem != testNQN || c.CNTLID != id || c.KeepAlive != 4*time.Second {
		t.Errorf("%+v", c)
	}
	if q := c.Queues[1]; q != (QueueInfo{QID: 1, Entries: 32, Peer: "192.0.2.1:5", Local: "192.0.2.2:4420", Transport: "test", HeaderDigest: true}) || c.Queues[0].QID != 0 {
		t.Errorf("%+v", c.Queues)
	}
	check("namespace", &x.sub.Stats()[0].Stats, 1, 0)
	h.lose()
	check("controller without its queue", &x.Controllers()[0].Stats, 0, 1)
	check("namespace without the queue", &x.sub.Stats()[0].Stats, 0, 1)
	admin.lose()
	check("namespace without the controller", &x.sub.Stats()[0].Stats, 0, 1)
	if len(x.Controllers()) != 0 || x.ControllerCount() != 0 || x.sub.ControllerCount() != 0 {
		t.Error("a controller is left")
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1}})
	x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: x.ns}})
	check("a namespace of that number that has come again", &x.sub.Stats()[0].Stats, 0, 1)

	n := x.Counters()
	if n.Connects.Load() != 1 || n.Connections.Load() != 2 || n.ConnectFailures.Load() != 0 || n.ProtocolErrors.Load() != 0 {
		t.Errorf("%d controllers, %d connections, %d failures, %d errors", n.Connects.Load(), n.Connections.Load(), n.ConnectFailures.Load(), n.ProtocolErrors.Load())
	}
	x.dial().connect("nqn.2026-11.com.example:stranger", 0, nvme.DynamicController, 0)
	if n.ConnectFailures.Load() != 1 {
		t.Error("a Connect that is refused does not count")
	}
}

// Latency is the time from the arrival of a command to the departure of its answer.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTarget(t, nil, false)
		_, id := x.admin(0)
		h := x.queue(id)
		cid := h.start(rw(nvme.Write, 1), 512, nil, false)
		time.Sleep(3 * time.Second)
		h.q.Lock()
		h.out[cid] = fill(512, 1)
		h.GetData(h.late[cid])
		h.q.Unlock()
		if got := x.sub.Stats()[0].Commands[iostat.Write]; got.Count() != 1 || got.Sum != 3*time.Second {
			t.Errorf("%d writes took %v", got.Count(), got.Sum)
		}
	})
}

// A command that a host has sent to a namespace that is taken away counts for the number that it had.
func TestStatsOfRetiredNamespace(t *testing.T) {
	x := newTarget(t, nil, false)
	_, id := x.admin(0)
	h := x.queue(id)
	h.must(rw(nvme.Read, 1), 512, nil, false)
	x.sub.SetNamespaces([]Shown{{NSID: 1}, {NSID: 2, Namespace: x.ns}})
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 2}}) })
	if s := x.sub.Stats(); len(s) != 1 || s[0].NSID != 2 || s[0].Commands[iostat.Read].Count() != 0 {
		t.Errorf("%+v", s)
	}
	if got := x.Controllers()[0].Commands[iostat.Read].Count(); got != 1 {
		t.Errorf("the controller has read %d times", got)
	}
	if got := x.sub.smart(nvme.AllNamespaces).Reads; got != 0 {
		t.Errorf("SMART of what is there counts %d reads of what is not", got)
	}
}

// The administrator ends a controller by its number, and that is no error of the host.
func TestDropController(t *testing.T) {
	x := newTarget(t, nil, false)
	one, _ := x.admin(0)
	other, _ := x.admin(0)
	list := x.Controllers()
	x.logged()
	if x.DropController(list[1].Number+1, "") || !x.DropController(list[0].Number, "the administrator asks for it") {
		t.Error("the wrong controllers are there")
	}
	if len(one.ended) != 1 || len(other.ended) != 0 {
		t.Errorf("%v, %v", one.ended, other.ended)
	}
	x.wantLog("controller ends", "the administrator asks for it", "level=INFO")
	if x.Counters().ProtocolErrors.Load() != 0 {
		t.Error("it counts as an error of the host")
	}
}

// Each status has its kind of failure.
func TestFailures(t *testing.T) {
	for s, want := range map[nvme.Status]iostat.Failure{
		nvme.WriteFault | nvme.DNR | nvme.More: iostat.MediumError, nvme.InternalError: iostat.HardwareError, nvme.WriteProtected | nvme.DNR: iostat.DataProtect,
		nvme.ReservationConflict | nvme.DNR: iostat.ReservationConflict, nvme.Interrupted | nvme.RetryDelay1: iostat.TaskSetFull, nvme.NamespaceNotReady: iostat.TaskSetFull,
		nvme.Inaccessible: iostat.OtherSense, nvme.TransientTransport: iostat.AbortedCommand, nvme.LBAOutOfRange: iostat.IllegalRequest,
	} {
		if got := failure(s); got != want {
			t.Errorf("%v is %v, want %v", s, got, want)
		}
	}
}

// Namespaces that come and go while a controller stays leave nothing behind but what was counted.
func TestManyRetiredNamespaces(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(0)
	h := x.queue(id)
	ns := x.ns
	const times = 10
	for i := range times {
		admin.identify(1)
		h.must(rw(nvme.Read, 1), 512, nil, false)
		next, err := NewNamespace(NamespaceConfig{Volume: x.v, UUID: [16]byte{9, byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: next}})
		if ns != x.ns { // which the target closes
			ns.Close()
		}
		ns = next
	}
	c := h.q.ctrl
	// That of the target, which is not closed, and the last.
	if len(c.detached) != 2 || len(h.q.retired) != 2 {
		t.Errorf("the controller keeps %d, its queue %d", len(c.detached), len(h.q.retired))
	}
	if got := x.Controllers()[0].Commands[iostat.Read].Count(); got != times {
		t.Errorf("%d reads are counted, and %d were done", got, times)
	}
	if got := x.sub.Stats()[0].Commands[iostat.Read].Count(); got != times {
		t.Errorf("%d reads of the number are counted, and %d were done", got, times)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1}})
	ns.Close()
}
