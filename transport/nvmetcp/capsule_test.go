package nvmetcp

import (
	"bytes"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

// Commands of fabrics have up to 8 KiB in their capsules on every queue, also where those of others have none, for there is no memory for as many
// as the queue may have: Linux authenticates so.
func TestFabricsInCapsule(t *testing.T) {
	r := newRig(t, rigConfig{memory: 64 << 20, share: 2 * mem.PageSize, depth: 1024})
	if n := r.Capsule(Transport); n != mem.PageSize {
		t.Fatalf("capsules have %d bytes", n)
	}
	admin := r.admin(pdu.IC{}, subNQN)
	secret, err := auth.ParseSecret("DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:")
	if err != nil {
		t.Fatal(err)
	}
	r.sub.SetAccess(nil, func(string) *auth.Rules { return &auth.Rules{Host: &secret, Groups: []auth.Group{auth.FFDHE2048}} })
	h := admin.Queue(1, 0)
	message := make([]byte, auth.MaxMessage)
	e, _ := h.Do(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.AuthSend), DWords: [6]uint32{nvme.AuthDWord10, uint32(len(message))}}, message, 0)
	if e.Status != nvme.Success {
		t.Errorf("a message of authentication: %v", e.Status)
	}
	h.Start(nvmetest.RW(nvme.Write, 0, 16), pattern(8192, 1), 0)
	if b, _ := h.PDU(); pdu.Header(b).Type() != pdu.C2HTermReq {
		t.Errorf("a Write in its capsule: % x", b)
	} else if why, _ := pdu.ParseTerm(b); why != pdu.LimitExceeded {
		t.Errorf("a Write in its capsule: %v", why)
	}
}

// Data in long capsules for which there is no memory wait, and so does what is behind them: with digests or without, in one piece or not. When there
// is memory all go on, though nothing more comes; and a connection that ends meanwhile leaves nothing.
func TestHeld(t *testing.T) {
	for name, ic := range map[string]pdu.IC{"plain": {}, "digests": {HeaderDigest: true, DataDigest: true}} {
		t.Run(name, func(t *testing.T) {
			inner, err := memory.New(size)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, rigConfig{store: faulty.New(inner, faulty.Seed(t)), still: true}) // it lends no memory
			admin := r.admin(ic, subNQN)
			dial := func(qid uint16) *nvmetest.Host {
				h := admin.Queue(qid, 0)
				h.Cap = Transport.Capsule
				return h
			}
			h, other := dial(1), dial(2)
			n := h.Cap
			starve := func() (feed func()) {
				var all []*mem.Lease
				for l := r.pool.Lease(mem.PageSize); l != nil; l = r.pool.Lease(mem.PageSize) {
					all = append(all, l)
				}
				return func() {
					for _, l := range all {
						l.Release()
					}
				}
			}
			feed := starve()
			var sent bytes.Buffer
			const commands = 24 // more than the share of the connection, and than sockets keep
			for i := range commands {
				c := nvmetest.RW(nvme.Write, uint64(i)*uint64(n)/512, uint32(n/512))
				c.CID, c.SGL = uint16(i), nvme.SGL{Length: uint32(n), Type: nvme.SGLInCapsule}
				sent.Write(h.Capsule(&c, pattern(n, i)))
			}
			done := make(chan error, 1)
			go func() {
				_, err := sent.WriteTo(h.C)
				done <- err
			}()
			// The other one is held, too, and goes away.
			other.Start(nvmetest.RW(nvme.Write, size/512-uint64(n/512), uint32(n/512)), pattern(n, 99), 0)
			r.awaitHeld(h)
			r.awaitHeld(other)
			_ = other.C.Close()
			feed()
			for range commands {
				b, _ := h.PDU()
				if e := nvme.ParseCQE(b[pdu.CommonLen:]); pdu.Header(b).Type() != pdu.CapsuleResp || e.Status != nvme.Success {
					t.Fatalf("%#x, %+v", b[0], e)
				}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			for i := range commands {
				if _, got := h.Must(nvmetest.RW(nvme.Read, uint64(i)*uint64(n)/512, uint32(n/512)), nil, n); !bytes.Equal(got, pattern(n, i)) {
					t.Errorf("capsule %d: other bytes come back", i)
				}
			}
		})
	}
}

// heldWrite returns a queue whose Writes hang in the store until gate opens, but for the last, of one page in its capsule, which is held: those have
// all memory that the queue may have. The keep-alive timeout is 5 s.
func heldWrite(t *testing.T) (r *rig, admin, h *nvmetest.Host, gate *faulty.Gate) {
	inner, err := memory.New(size)
	if err != nil {
		t.Fatal(err)
	}
	s := faulty.New(inner, faulty.Seed(t))
	r = newRig(t, rigConfig{store: s, still: true})
	gate = s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	t.Cleanup(gate.Release)
	admin = r.admin(pdu.IC{}, subNQN)
	admin.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureKeepAlive), 5000}}, nil, 0)
	h = admin.Queue(1, 0)
	h.Cap = Transport.Capsule
	const all = 4 << 20 / (256 << 10) // of the share
	for i := range all {
		h.Start(nvmetest.RW(nvme.Write, uint64(i)*512, 512), pattern(h.Cap, i), 0)
	}
	gate.Await(all)
	h.Start(nvmetest.RW(nvme.Write, heldBlock, 8), pattern(mem.PageSize, 1), 0)
	r.awaitHeld(h)
	return r, admin, h, gate
}

// heldBlock is the first that the Write is about which is held.
const heldBlock = 10_000

// What a host has sent behind a command that is held shows that it is alive when it comes, and not when it is read: the host may have gone
// without a word.
func TestKeepAliveOfHeld(t *testing.T) {
	r, admin, h, gate := heldWrite(t)
	before, _, _ := r.arrived(h)
	for range 3 {
		h.Start(nvmetest.RW(nvme.Write, heldBlock+8, 8), pattern(mem.PageSize, 2), 0)
	}
	const behind = 3 * (pdu.CapsuleCmdLen + mem.PageSize)
	r.until("all has come", func() bool {
		sent, _, _ := r.arrived(h)
		return sent == before+behind
	})
	for range 5 {
		r.Tick()
	}
	if _, read, _ := r.arrived(h); read != before {
		t.Fatalf("%d bytes behind a command that is held were read", read-before)
	}
	gate.Next()
	r.until("what is behind is read", func() bool {
		_, read, _ := r.arrived(h)
		return read == before+behind
	})
	m := r.mover(admin)
	over := func() bool {
		m.queue.Lock()
		defer m.queue.Unlock()
		return m.Shut()
	}
	if over() {
		t.Fatal("the controller ends before its time")
	}
	for range 4 {
		r.Tick()
	}
	if !over() {
		t.Error("nothing came of the host for 8 s, and its controller, with a keep-alive timeout of 5 s, is there still")
	}
}

// A host that has closed a connection with a command that is held has that not done any more: it may do it by another path.
func TestHeldAndClosed(t *testing.T) {
	r, admin, h, gate := heldWrite(t)
	_ = h.C.Close()
	r.until("the connection is closed", func() bool {
		_, _, open := r.arrived(h)
		return !open
	})
	gate.Next()
	gate.Release()
	r.until("the queue is gone", func() bool { return r.Connections() == 1 })
	if _, got := admin.Queue(1, 0).Must(nvmetest.RW(nvme.Read, heldBlock, 8), nil, mem.PageSize); !bytes.Equal(got, make([]byte, mem.PageSize)) {
		t.Error("the command that was held is done")
	}
}
