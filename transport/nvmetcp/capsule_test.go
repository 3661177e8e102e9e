package nvmetcp

import (
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

// Commands of fabrics have up to 8 KiB in their capsules on every queue, also where those of others have none, for there is no memory for as many
// as the queue may have: Linux authenticates so.
func TestFabricsInCapsule(t *testing.T) {
	r := newRig(t, rigConfig{memory: 64 << 20, share: 2 << 20, depth: 1024})
	if n := r.Capsule(Transport); n != 0 {
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
	h.Start(nvmetest.RW(nvme.Write, 0, 1), pattern(512, 1), 0)
	if b, _ := h.PDU(); pdu.Header(b).Type() != pdu.C2HTermReq {
		t.Errorf("a Write in its capsule: % x", b)
	} else if why, _ := pdu.ParseTerm(b); why != pdu.LimitExceeded {
		t.Errorf("a Write in its capsule: %v", why)
	}
}
