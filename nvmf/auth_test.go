package nvmf

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
	"oneshot/nvme/auth"
)

// secretOf parses a secret of a test.
func secretOf(t testing.TB, text string) *auth.Secret {
	t.Helper()
	s, err := auth.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// Secrets of nvme gen-dhchap-key.
const (
	hostSecret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	ctrlSecret = "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:"
)

// guarded has the subsystem of x ask hosts for the secret, and returns what a host needs to know.
func (x *target) guarded(mutual bool) auth.Rules {
	r := auth.Rules{Host: secretOf(x.t, hostSecret), Groups: []auth.Group{auth.FFDHE2048}}
	if mutual {
		r.Controller = secretOf(x.t, ctrlSecret)
	}
	x.sub.SetAccess(nil, func(string) *auth.Rules { return &r })
	return r
}

// authCommand is Authentication Send or Receive of n bytes.
func authCommand(ft nvme.FCType, n int) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(ft), DWords: [6]uint32{nvme.AuthDWord10, uint32(n)}}
}

// say sends a message of authentication.
func (h *host) say(m []byte) answer { return h.await(authCommand(nvme.AuthSend, len(m)), len(m), m) }

// hear fetches one.
func (h *host) hear() answer {
	const room = 2048
	return h.do(authCommand(nvme.AuthReceive, room), room, nil, false)
}

// authenticate has the host prove itself by the rules, as far as the controller plays along.
func (h *host) authenticate(r auth.Rules) error {
	h.x.t.Helper()
	side, m := auth.NewHost(auth.Names{Host: testHost, Subsystem: testNQN}, r, 5)
	for m != nil {
		if a := h.say(m); a.Status != nvme.Success {
			h.x.t.Fatalf("Authentication Send: %v", a.Status)
		}
		if side.Done() {
			return nil
		}
		a := h.hear()
		if a.Status != nvme.Success {
			h.x.t.Fatalf("Authentication Receive: %v", a.Status)
		}
		var err error
		if m, err = side.Next(a.data); err != nil {
			if m != nil {
				h.say(m)
			}
			return err
		}
	}
	return nil
}

var propertyGet = nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertyGet), DWords: [6]uint32{0, uint32(nvme.PropVS)}}

// Before a host has proved itself, it can do nothing else on any queue; afterwards it can, and is known as one that has
// (Base 2.0 §6.3, §8.13.5).
func TestAuthentication(t *testing.T) {
	for _, mutual := range []bool{false, true} {
		x := newTarget(t, nil, false)
		r := x.guarded(mutual)
		admin := x.dial()
		a := admin.connect(testHost, 0, nvme.DynamicController, 0)
		if a.Status != nvme.Success || a.DW0>>16 != nvme.ConnectATR>>16 {
			t.Fatalf("Connect: %v %#x", a.Status, a.DW0)
		}
		id := uint16(a.DW0)
		x.logged()
		again := nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}
		for _, c := range []nvme.Command{propertyGet, {Opcode: nvme.AdminIdentify}, {Opcode: nvme.AdminKeepAlive}, {Opcode: nvme.AdminAsyncEvent}, again} {
			if a := admin.do(c, 0, nil, false); a.Status != nvme.AuthenticationRequired|nvme.DNR {
				t.Errorf("%#x before authentication: %v", c.Opcode, a.Status)
			}
		}
		if x.ControllerCount() != 0 {
			t.Error("a host that has proved nothing takes the place of a controller")
		}
		if admin.params.Proved {
			t.Error("the mover was told that a host has proved itself that has not")
		}
		if err := admin.authenticate(r); err != nil {
			t.Fatal(err)
		}
		x.wantLog("host authenticated", "sha512 ffdhe2048", "host="+testHost)
		if x.ControllerCount() != 1 {
			t.Error("the controller is not counted")
		}
		if !admin.params.Proved {
			t.Error("the mover was not told that the host has proved itself")
		}
		admin.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), 0x460001}}, 0, nil, false)
		h := x.dial()
		if a := h.connect(testHost, 1, id, 0); a.Status != nvme.Success || a.DW0&nvme.ConnectATR == 0 {
			t.Fatalf("Connect of an I/O queue: %v %#x", a.Status, a.DW0)
		}
		if a := h.do(rw(nvme.Read, 1), 512, nil, false); a.Status != nvme.AuthenticationRequired|nvme.DNR {
			t.Errorf("Read before authentication: %v", a.Status)
		}
		if err := h.authenticate(r); err != nil {
			t.Fatal(err)
		}
		h.must(rw(nvme.Read, 1), 512, nil, false)
		want := HostAuthenticated
		if mutual {
			want = MutualAuthenticated
		}
		if list := x.Controllers(); len(list) != 1 || list[0].Proved != want || len(list[0].Queues) != 2 {
			t.Errorf("%+v", list)
		}
		// Again, while commands run.
		for _, q := range []*host{admin, h} {
			if err := q.authenticate(r); err != nil {
				t.Fatal(err)
			}
		}
		h.must(rw(nvme.Read, 1), 512, nil, false)
		if len(h.ended)+len(admin.ended) != 0 {
			t.Error("a connection was ended")
		}
		admin.lose()
		h.lose()
		if x.ControllerCount() != 0 {
			t.Error("the controller is still counted")
		}
	}
}

// Who does not know the secret is told so, and loses the connection when that has been sent.
func TestAuthenticationFails(t *testing.T) {
	wrong := "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"
	for name, x := range map[string]struct {
		change func(*auth.Rules)
		log    string
	}{
		"the host":       {func(r *auth.Rules) { r.Host = secretOf(t, wrong) }, "the host has not proved who it is"},
		"the controller": {func(r *auth.Rules) { r.Controller = secretOf(t, wrong) }, "the host refuses the controller"},
		"no group":       {func(r *auth.Rules) { r.Groups = []auth.Group{auth.Null} }, "no DH group"},
	} {
		tg := newTarget(t, nil, false)
		r := tg.guarded(true)
		x.change(&r)
		h := tg.dial()
		h.connect(testHost, 0, nvme.DynamicController, 0)
		tg.logged()
		if err := h.authenticate(r); err == nil {
			t.Errorf("%s: success", name)
		}
		h.q.Lock() // what was posted is done
		ended := slices.Clone(h.ended)
		h.q.Unlock()
		if len(ended) != 1 || ended[0] != WhenSent {
			t.Errorf("%s: the connection ends %v", name, ended)
		}
		tg.wantLog("authentication failed", x.log, "host="+testHost)
		if n := tg.Counters().AuthFailures.Load(); n != 1 {
			t.Errorf("%s: %d failures are counted", name, n)
		}
		if a := h.do(propertyGet, 0, nil, false); a.Status == nvme.Success {
			t.Errorf("%s: it can go on", name)
		}
	}
}

// A queue that is in use ends when its host proves itself again, and fails.
func TestAuthenticationFailsLater(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	h := x.dial()
	h.connect(testHost, 0, nvme.DynamicController, 0)
	if err := h.authenticate(r); err != nil {
		t.Fatal(err)
	}
	r.Host = secretOf(t, ctrlSecret)
	if err := h.authenticate(r); err == nil || len(h.ended) != 1 {
		t.Errorf("%v, %v", err, h.ended)
	}
}

// The commands themselves are checked, and taken in turn.
func TestAuthenticationCommands(t *testing.T) {
	x := newTarget(t, nil, false)
	fresh := x.dial()
	if a := fresh.do(authCommand(nvme.AuthSend, 8), 8, make([]byte, 8), true); a.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("before Connect: %v", a.Status)
	}
	if a := fresh.connect(testHost, 0, nvme.DynamicController, 0); a.DW0>>16 != 0 {
		t.Errorf("Connect asks for authentication: %#x", a.DW0)
	}
	if a := fresh.do(authCommand(nvme.AuthSend, 8), 8, make([]byte, 8), true); a.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("where nobody asks for it: %v", a.Status)
	}
	r := x.guarded(false)
	h := x.dial()
	h.connect(testHost, 0, nvme.DynamicController, 0)
	other := authCommand(nvme.AuthSend, 8)
	other.DWords[0] = 0xea010100
	for name, c := range map[string]struct {
		nvme.Command
		n    int
		want nvme.Status
	}{
		"another protocol":   {other, 8, nvme.InvalidField},
		"no message":         {authCommand(nvme.AuthSend, 0), 0, nvme.InvalidField},
		"a huge message":     {authCommand(nvme.AuthSend, auth.MaxMessage+4), auth.MaxMessage + 4, nvme.InvalidField},
		"another length":     {authCommand(nvme.AuthSend, 8), 12, nvme.DataSGLLength},
		"receive at once":    {authCommand(nvme.AuthReceive, 64), 64, nvme.CommandSequence},
		"receive too much":   {authCommand(nvme.AuthReceive, 8192), 8192, nvme.InvalidField},
		"receive in capsule": {authCommand(nvme.AuthReceive, 64), 64, nvme.DataSGLLength},
	} {
		if a := h.do(c.Command, c.n, make([]byte, c.n), name != "receive at once" && name != "receive too much"); a.Status != c.want|nvme.DNR {
			t.Errorf("%s: %v", name, a.Status)
		}
	}
	_, m := auth.NewHost(auth.Names{Host: testHost, Subsystem: testNQN}, r, 5)
	h.say(m)
	if a := h.do(authCommand(nvme.AuthReceive, 64), 64, nil, false); a.Status != nvme.InvalidField|nvme.DNR {
		t.Errorf("a challenge in 64 bytes: %v", a.Status)
	}
	if a := h.hear(); a.Status != nvme.Success || len(bytes.TrimRight(a.data, "\x00")) < 300 {
		t.Errorf("the challenge, later: %v, %d bytes", a.Status, len(a.data))
	}
	if a := h.hear(); a.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("twice: %v", a.Status)
	}
	// Whoever asks too early does not disturb the worker.
	early := x.dial()
	early.connect(testHost, 0, nvme.DynamicController, 0)
	early.take()
	early.start(authCommand(nvme.AuthSend, len(m)), len(m), m, true)
	for fetched := false; !fetched; {
		early.start(authCommand(nvme.AuthReceive, 2048), 2048, nil, false)
		early.q.Lock()
		for _, a := range early.take() {
			<-early.heard
			if fetched = fetched || len(a.data) > 0; a.Status != nvme.Success && a.Status != nvme.CommandSequence|nvme.DNR {
				t.Fatal(a.Status)
			}
		}
		early.q.Unlock()
	}
	// A message whose data are to come is the only one of its queue: each has memory.
	slow := x.dial()
	slow.connect(testHost, 0, nvme.DynamicController, 0)
	slow.take()
	first := slow.late[slow.start(authCommand(nvme.AuthSend, auth.MaxMessage), auth.MaxMessage, nil, false)]
	if a := slow.do(authCommand(nvme.AuthSend, auth.MaxMessage), auth.MaxMessage, nil, false); a.Status != nvme.CommandSequence|nvme.DNR || len(slow.late) != 1 {
		t.Errorf("the second of two whose data are to come: %v", a.Status)
	}
	slow.q.Lock()
	slow.q.DataFailed(first, NotFetched)
	slow.q.Unlock()
	slow.take()
	if slow.say(m).Status != nvme.Success {
		t.Error("when the first has failed, there is no other")
	}

	// Two messages at once: the second has to wait for the answer.
	q := x.dial()
	q.connect(testHost, 0, nvme.DynamicController, 0)
	for len(q.heard) > 0 {
		<-q.heard
	}
	x.Node.authWork = make(chan struct{}) // nobody works
	q.start(authCommand(nvme.AuthSend, len(m)), len(m), m, true)
	q.start(authCommand(nvme.AuthSend, len(m)), len(m), m, true)
	if got := q.take(); len(got) != 1 || got[0].Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("the second of two: %v", got)
	}
	if a := q.do(authCommand(nvme.AuthReceive, 64), 64, nil, false); a.Status != nvme.CommandSequence|nvme.DNR {
		t.Errorf("receive meanwhile: %v", a.Status)
	}
	<-x.Node.authWork
	q.lose() // while a worker has it
	x.Node.authWork <- struct{}{}
}

// A host has so long to prove itself, whatever it does meanwhile, and to prove itself again.
func TestAuthenticationTime(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	silent, good := x.dial(), x.dial()
	for _, h := range []*host{silent, good} {
		h.connect(testHost, 0, nvme.DynamicController, 0)
	}
	if err := good.authenticate(r); err != nil {
		t.Fatal(err)
	}
	x.pass(8)
	_, m := auth.NewHost(auth.Names{Host: testHost, Subsystem: testNQN}, r, 5)
	good.say(m)
	x.pass(7)
	if len(silent.ended)+len(good.ended) > 0 {
		t.Error("a connection has ended early")
	}
	x.logged()
	x.pass(1)
	x.wantLog("connection dropped", "not authenticated itself within 15s")
	if len(silent.ended) != 1 || len(good.ended) != 0 {
		t.Errorf("%v %v", silent.ended, good.ended)
	}
	x.pass(8)
	if got := x.logged(); !strings.Contains(got, "not ended its authentication within 15s") || len(good.ended) != 1 {
		t.Errorf("%v, %s", good.ended, got)
	}
}

// Hosts that have proved nothing give way to others, as connections without a controller do.
func TestUnauthenticatedGiveWay(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	var all []*host
	for i := range 11 {
		h := x.dial()
		h.connect(testHost, 0, nvme.DynamicController, 0)
		if i == 0 {
			if err := h.authenticate(r); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, h)
	}
	x.Quiesce()
	if len(all[0].ended) != 0 || len(all[1].ended) == 0 {
		t.Errorf("one that has proved itself: %v; the oldest of the others: %v", all[0].ended, all[1].ended)
	}
}

// A reload changes what the next queue has to prove.
func TestAuthenticationChanges(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(0)
	r := x.guarded(false)
	h := x.dial()
	if a := h.connect(testHost, 1, id, 0); a.DW0&nvme.ConnectATR == 0 {
		t.Fatalf("%v %#x", a.Status, a.DW0)
	}
	if err := h.authenticate(r); err != nil {
		t.Fatal(err)
	}
	h.must(rw(nvme.Read, 1), 512, nil, false)
	x.sub.SetAccess(nil, nil)
	if len(admin.ended) > 0 {
		t.Error("the controller has ended")
	}
	if a := x.dial().connect(testHost, 2, id, 0); a.Status != nvme.Success || a.DW0>>16 != 0 {
		t.Errorf("%v %#x", a.Status, a.DW0)
	}
}

// Whoever connects, begins to prove himself and goes takes no place until a worker would have had time for him: he has proved nothing, and
// others may be refused for want of places.
func TestLostDoesNotWaitForWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTarget(t, nil, false)
		r := x.guarded(false)
		for range cap(x.authWork) {
			x.authWork <- struct{}{}
		}
		h := x.dial()
		h.connect(testHost, 0, nvme.DynamicController, 0)
		_, m := auth.NewHost(auth.Names{Host: testHost, Subsystem: testNQN}, r, 5)
		h.start(authCommand(nvme.AuthSend, len(m)), len(m), m, true)
		synctest.Wait()
		h.lose()
		synctest.Wait()
		if x.Connections() != 0 || h.free != 2 {
			t.Errorf("%d connections are left, %d commands came back", x.Connections(), h.free)
		}
		for range cap(x.authWork) {
			<-x.authWork
		}
	})
}

// The time in which a host has to prove itself begins when it may: Connect may have waited for what the host had left in a store.
func TestAuthenticationTimeAfterWait(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	p := x.party(1, 1)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	p.io.start(rw(nvme.Write, 1), 512, fill(512, 1), true)
	gate.Await(1)
	p.io.lose()
	p.admin.lose()
	r := x.guarded(false)
	h := x.dial()
	c, b := h.connectCommand(testHost, 0, nvme.DynamicController, 0)
	h.start(c, len(b), b, true)
	x.pass(14)
	gate.Release()
	<-h.heard
	h.q.Lock()
	h.take()
	h.q.Unlock()
	x.pass(14)
	if len(h.ended) != 0 {
		t.Fatal("the host is cut off before its time is over")
	}
	if err := h.authenticate(r); err != nil {
		t.Fatal(err)
	}
	x.pass(100)
	if len(h.ended) != 0 {
		t.Error("a host that has proved itself is cut off")
	}
}

// Who has not proved himself keeps no number of a queue from who does: the first that proves himself has it. A reset waits for both.
func TestImpostorKeepsNoQueue(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	admin := x.dial()
	id := uint16(admin.connect(testHost, 0, nvme.DynamicController, 0).DW0)
	if err := admin.authenticate(r); err != nil {
		t.Fatal(err)
	}
	admin.setCC(enabled)
	dial := func() *host {
		t.Helper()
		h := x.dial()
		if a := h.connect(testHost, 1, id, 0); a.Status != nvme.Success || a.DW0&nvme.ConnectATR == 0 {
			t.Fatalf("Connect: %v %#x", a.Status, a.DW0)
		}
		return h
	}
	impostor, good, late := dial(), dial(), dial()
	if err := good.authenticate(r); err != nil {
		t.Fatal(err)
	}
	good.must(rw(nvme.Read, 1), 512, nil, false)
	if a := x.dial().connect(testHost, 1, id, 0); a.Status != nvme.CommandSequence {
		t.Errorf("Connect to a number that somebody has: %v %#x", a.Status, a.DW0)
	}
	if err := late.authenticate(r); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(late.ended, []Termination{WhenSent}) || len(good.ended) != 0 {
		t.Errorf("the second that proves himself: %v, the first: %v", late.ended, good.ended)
	}
	late.lose()
	good.must(rw(nvme.Read, 1), 512, nil, false)

	admin.setCC(enabled &^ nvme.CCEnable)
	good.lose()
	if s := admin.status(); s&nvme.CSTSReady == 0 || !slices.Equal(impostor.ended, []Termination{AtOnce}) {
		t.Errorf("CSTS is %#x, the impostor's queue: %v", s, impostor.ended)
	}
	impostor.lose()
	if s := admin.status(); s != 0 {
		t.Errorf("in the end CSTS is %#x", s)
	}
	admin.lose()
	if n := x.sub.ControllerCount(); n != 0 {
		t.Errorf("%d controllers are left", n)
	}
}

// A host that has proved nothing costs a connection, whatever namespaces there are, and those that come; hosts do not hear of its controller.
func TestUnprovenReachesNothing(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	h := x.dial()
	h.connect(testHost, 0, nvme.DynamicController, 0)
	x.sub.SetNamespaces([]Shown{{NSID: 2, Namespace: x.ns}})
	if len(x.ns.attached)+len(x.ns.paths) != 0 || len(x.sub.controllerIDs(0)) != 0 {
		t.Errorf("before: %d controllers reach it, by %d paths; listed: %v", len(x.ns.attached), len(x.ns.paths), x.sub.controllerIDs(0))
	}
	if err := h.authenticate(r); err != nil {
		t.Fatal(err)
	}
	if len(x.ns.attached) != 2 || len(x.ns.paths) != 2 || len(x.sub.controllerIDs(0)) != 1 {
		t.Errorf("after: %d controllers reach it, by %d paths; listed: %v", len(x.ns.attached), len(x.ns.paths), x.sub.controllerIDs(0))
	}
	h.lose()
	x.sub.SetNamespaces([]Shown{{NSID: 2}})
	if len(x.ns.attached)+len(x.ns.paths) != 0 {
		t.Errorf("in the end: %d, %d", len(x.ns.attached), len(x.ns.paths))
	}
}
