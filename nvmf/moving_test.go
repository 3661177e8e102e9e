package nvmf

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/nvme"
	"oneshot/volume/access"
)

// moving is a store that others serve, too.
type moving struct {
	backend.Store
	term atomic.Uint64
	next uint64 // unless it is 0, the term after the next read: others have served the bytes meanwhile
	asks func() // called by Term
}

func (m *moving) Term() uint64 {
	if m.asks != nil {
		m.asks()
	}
	return m.term.Load()
}

func (m *moving) Submit(op *backend.Op) bool {
	if m.term.Load() == 0 || op.Term != 0 && op.Term != m.term.Load() {
		op.Err = &backend.MovedError{Name: "the test's"}
		return true
	}
	done := m.Store.Submit(op)
	if op.Kind == backend.Read && m.next != 0 {
		m.term.Store(m.next)
		m.next = 0
	}
	return done
}

// A copy does not write in a later term than that in which it began: others may have done it then, and written its destination again.
func TestCopyInOneTerm(t *testing.T) {
	var store *moving
	_, h, _, model := bigTarget(t, func(s backend.Store) backend.Store {
		store = &moving{Store: s}
		store.term.Store(5)
		return store
	})
	for to, want := range map[uint64]nvme.Status{64: nvme.PathInTransition, 4: nvme.InternalError | nvme.DNR} {
		c, list := copyOf(to, [2]uint64{0, 8})
		store.next = store.Term() + 2
		if a := h.do(c, len(list), list, true); a.Status != want {
			t.Errorf("to block %d, over a change of the term: %v", to, a.Status)
		}
		h.wantBytes(model)
		h.must(c, len(list), list, true)
		copy(model[to*512:], model[:8*512])
		h.wantBytes(model)
	}
}

// A command is for the term in which it is looked at what its host may do: one that has been let through, and is not under way yet, is not done in a later
// one, in which that was forbidden by way of another node.
func TestDeniedInTerm(t *testing.T) {
	s, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	store := &moving{Store: s}
	store.term.Store(5)
	x := newTarget(t, store, false)
	h := x.party(1, 1).io
	write := rw(nvme.Write, 1)
	h.must(write, 512, make([]byte, 512), false)
	store.asks = func() {
		store.asks = nil
		x.ns.v.Access().SetCondition(access.Writes, access.Writes)
		store.term.Store(7)
	}
	if a := h.do(write, 512, make([]byte, 512), false); a.Status != nvme.ReservationConflict|nvme.DNR {
		t.Errorf("a write that is forbidden in term 7: %v", a.Status)
	}
}

// Commands for a volume that another node serves end with the status of a path in transition, which hosts take elsewhere, and are no errors.
// What each node would have to remember is not there: Sanitize.
func TestMoving(t *testing.T) {
	s, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	store := &moving{Store: s}
	store.term.Store(1)
	x := newTarget(t, store, false)
	p := x.party(1, 1)
	write := rw(nvme.Write, 1)
	p.io.must(write, 512, make([]byte, 512), false)
	store.term.Store(0)
	if a := p.io.do(write, 512, make([]byte, 512), false); a.Status != nvme.PathInTransition {
		t.Errorf("a write for another node: %v", a.Status)
	}
	if log := x.log.String(); strings.Contains(log, "level=ERROR") {
		t.Error(log)
	}
	if a := p.admin.do(nvme.Command{Opcode: nvme.AdminSanitize, DWords: [6]uint32{uint32(nvme.BlockErase)}}, 0, nil, false); a.Status != nvme.InvalidOpcode|nvme.DNR {
		t.Errorf("Sanitize: %v", a.Status)
	}
	id := p.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
	if c := id[328:332]; [4]byte(c) != [4]byte{} {
		t.Errorf("SANICAP % x", c)
	}
	log := p.admin.must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogEffects) | 1023<<16}}, 4096, nil, false).data
	if e := log[4*int(nvme.AdminSanitize):][:4]; [4]byte(e) != [4]byte{} {
		t.Errorf("effects of Sanitize % x", e)
	}
}

// Identifiers of controllers come from the subsystem's range only, each in its turn.
func TestRangeOfControllers(t *testing.T) {
	x := newTarget(t, nil, false)
	sub := x.AddSubsystem(SubsystemConfig{NQN: testNQN + ":range", CNTLIDs: [2]uint16{300, 302}})
	var ids []uint16
	var last *Controller
	for range 3 {
		last = &Controller{sub: sub}
		if !sub.add(last) {
			t.Fatalf("no identifier after %d", ids)
		}
		ids = append(ids, last.id)
	}
	if ids[0] != 300 || ids[1] != 301 || ids[2] != 302 {
		t.Errorf("%d", ids)
	}
	if sub.add(&Controller{sub: sub}) {
		t.Error("there is a fourth of three")
	}
	delete(sub.controllers, 301)
	if c := (&Controller{sub: sub}); !sub.add(c) || c.id != 301 {
		t.Errorf("%d instead of the one that is free", c.id)
	}
	clear(sub.controllers) // none of them is one
}

// A command that finds no namespace any more because its subsystem was removed may be sent again: its queue has not ended yet.
func TestRemovedUnderLoad(t *testing.T) {
	x := newTarget(t, nil, false)
	h := x.party(1, 1).io
	h.q.Lock() // whoever ends the queue waits for it
	x.RemoveSubsystem(x.sub)
	x.sub.SetNamespaces([]Shown{{NSID: 1}})
	c := rw(nvme.Read, 1)
	c.SGL = nvme.SGL{Length: 512, Type: nvme.SGLTransport}
	task := &Task{Queue: h.q}
	task.Mover = task
	h.q.times.Arrive()
	h.q.Command(task, nvme.SQE(c.AppendTo(nil)))
	h.q.Unlock()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.AbortedByQueue {
		t.Errorf("%v", got)
	}
}

// A host that is not admitted any more does not reach a namespace that comes afterwards, on none of its queues, though these have not
// ended yet: it may be for others.
func TestHostIsOutAtOnce(t *testing.T) {
	x := newTarget(t, nil, false)
	p := x.party(1, 1)
	p.admin.q.Lock() // whoever ends the controller waits for it
	x.sub.SetAccess(func(string) bool { return false }, nil)
	other, err := NewNamespace(NamespaceConfig{Volume: x.v, UUID: [16]byte{8}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: other}})
	h := p.io
	c := rw(nvme.Read, 1)
	c.SGL = nvme.SGL{Length: 512, Type: nvme.SGLTransport}
	task := &Task{Queue: h.q}
	task.Mover = task
	h.q.Lock()
	h.q.times.Arrive()
	h.q.Command(task, nvme.SQE(c.AppendTo(nil)))
	h.q.Unlock()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.AbortedByQueue {
		t.Errorf("%v", got)
	}
	p.admin.q.Unlock()
	x.sub.SetNamespaces([]Shown{{NSID: 1}})
	p.io.lose()
	p.admin.lose()
	other.Close()
}

// A host whose namespace is replaced by another disk, or by one with other blocks, reaches that when it has asked what it is: what was on its way to
// the former one does not come to other bytes, nor does a Flush say that it has. The same disk it reaches as before.
func TestReplacedUnderHost(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 1}}) })
	space := func(c NamespaceConfig) *Namespace {
		n, err := NewNamespace(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n
	}
	other := space(NamespaceConfig{Volume: y.v, UUID: [16]byte{8}})
	p, q := x.party(1, 1), x.party(1, 2)
	gone := nvme.InvalidNamespace | nvme.DNR
	for name, change := range map[string][]Shown{
		"another disk":             {{1, other}},
		"other blocks":             {{1, space(NamespaceConfig{Volume: x.v, UUID: x.ns.uuid, BlockSize: 4096})}},
		"one after the other":      {{1, nil}, {1, other}},
		"another, and another one": {{1, other}, {1, space(NamespaceConfig{Volume: y.v, UUID: [16]byte{9}})}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range change {
				x.sub.SetNamespaces([]Shown{c})
			}
			for _, op := range []nvme.Opcode{nvme.Flush, nvme.Read, nvme.Write} {
				if a := p.io.do(rw(op, 1), 512, nil, false); a.Status != gone {
					t.Errorf("%#x: %v", op, a.Status)
				}
			}
			p.admin.identify(1)
			p.io.must(rw(nvme.Flush, 1), 0, nil, false)
			if a := q.io.do(rw(nvme.Flush, 1), 0, nil, false); a.Status != gone {
				t.Errorf("another host, which has not asked: %v", a.Status)
			}
			x.sub.SetNamespaces([]Shown{{1, x.ns}})
			if a := p.io.do(rw(nvme.Flush, 1), 0, nil, false); a.Status != gone {
				t.Errorf("back again: %v", a.Status)
			}
			q.admin.identify(1)
			p.admin.identify(1)
		})
	}
	x.sub.SetNamespaces([]Shown{{1, space(NamespaceConfig{Volume: x.v, UUID: x.ns.uuid, ReadOnly: true})}})
	p.io.must(rw(nvme.Read, 1), 512, nil, false)
	x.sub.SetNamespaces([]Shown{{1, other}})
	x.sub.SetNamespaces([]Shown{{1, x.ns}})
	p.io.must(rw(nvme.Read, 1), 512, nil, false)
}

// A host that comes again goes on with its commands before it asks: those reach no disk that has come under the number meanwhile, whether its former
// controller has ended or not.
func TestReplacedBetweenControllers(t *testing.T) {
	for _, ended := range []bool{true, false} {
		x, y := newTarget(t, nil, false), newTarget(t, nil, false)
		y.ns.uuid[0]++
		t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 1}}) })
		p := x.party(1, 1)
		if ended {
			p.io.lose()
			p.admin.lose()
		}
		x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: y.ns}})
		p = x.party(1, 1)
		if a := p.io.do(rw(nvme.Read, 1), 512, nil, false); a.Status != nvme.InvalidNamespace|nvme.DNR {
			t.Errorf("ended %v: %v", ended, a.Status)
		}
		p.admin.identify(1)
		p.io.must(rw(nvme.Read, 1), 512, nil, false)
		x.party(1, 2).io.must(rw(nvme.Read, 1), 512, nil, false) // of this one nothing is known
		p.io.lose()
		p.admin.lose()
		if ended {
			x.party(1, 1).io.must(rw(nvme.Read, 1), 512, nil, false)
		}
	}
}

// Of so many hosts and no more it is remembered what they took numbers for.
func TestManyHostsRemembered(t *testing.T) {
	x := newTarget(t, nil, false)
	c := &Controller{sub: x.sub}
	c.attached.Store(&[]*attached{{ns: x.ns, nsid: 1}})
	x.sub.mu.Lock()
	defer x.sub.mu.Unlock()
	for i := range 2 * maxTaken {
		c.hostID = [16]byte{byte(i), byte(i >> 8)}
		x.sub.keepTaken(c)
		x.sub.keepTaken(c)
	}
	if len(x.sub.taken) != maxTaken || x.sub.taken[maxTaken-1].hostID != c.hostID {
		t.Errorf("%d are", len(x.sub.taken))
	}
}

// A Connect that has found a subsystem which is removed, or admits the host no more, before there is a controller makes none: nobody would
// end it.
func TestConnectMeetsChange(t *testing.T) {
	for what, change := range map[string]func(*target, *Subsystem){
		"removed": func(x *target, s *Subsystem) { x.RemoveSubsystem(s) },
		"closed":  func(_ *target, s *Subsystem) { s.SetAccess(func(string) bool { return false }, nil) },
	} {
		x := newTarget(t, nil, false)
		x.RemoveSubsystem(x.sub)
		x.sub.SetNamespaces([]Shown{{NSID: 1}})
		var once sync.Once
		x.sub = x.AddSubsystem(SubsystemConfig{
			NQN: testNQN, Serial: "S", Namespaces: []Shown{{NSID: 1, Namespace: x.ns}},
			Admit: func(string) bool {
				once.Do(func() { change(x, x.sub) })
				return true
			},
		})
		h := x.dial()
		if a := h.connect(testHost, 0, nvme.DynamicController, 0); a.Status == nvme.Success || x.sub.ControllerCount() != 0 {
			t.Errorf("%s: Connect ends with %v, and there are %d controllers", what, a.Status, x.sub.ControllerCount())
		}
		h.lose()
	}
}
