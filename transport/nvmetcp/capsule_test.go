package nvmetcp

import (
	"bytes"
	"testing"

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
