package nvmerdma

import (
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/transport/rdma/rdmatest"
)

// rules has hosts prove themselves.
func rules(t testing.TB) *auth.Rules {
	s, err := auth.ParseSecret("DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:")
	check(t, err)
	return &auth.Rules{Host: &s, Groups: []auth.Group{auth.FFDHE2048}}
}

func authCommand(ft nvme.FCType, n int) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(ft), DWords: [6]uint32{nvme.AuthDWord10, uint32(n)}}
}

// Messages of authentication are made in memory that the device does not know. They go both ways, and connections whose hosts have
// proved themselves give way to nobody.
func TestAuthentication(t *testing.T) {
	overAll(t, func(t *testing.T, r *rig) {
		want := rules(t)
		r.sub.SetAccess(nil, func(string) *auth.Rules { return want })
		h := r.mustDial(request(0, 32))
		if e := h.must(connect(0, 31), connectData(nvme.DynamicController), 0); e.DW0&nvme.ConnectATR == 0 {
			t.Fatalf("Connect says %#x", e.DW0)
		}
		const room = 2048
		side, m := auth.NewHost(auth.Names{Host: hostNQN, Subsystem: subNQN}, *want, 5)
		for m != nil {
			h.must(authCommand(nvme.AuthSend, len(m)), m, 0)
			if side.Done() {
				break
			}
			clear(h.data[:room])
			h.must(authCommand(nvme.AuthReceive, room), nil, room)
			var err error
			m, err = side.Next(h.data[:room])
			check(t, err)
		}
		h.must(propertySet(nvme.PropCC, 0x460001), nil, 0)
	})
}

// A Connect whose host has yet to prove itself is no proof.
func TestUnprovenGivesWay(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.ReceiveWait = false
	b := newBench(t, d)
	want := rules(t)
	b.sub.SetAccess(nil, func(string) *auth.Rules { return want })
	var first *fakePair
	for range 100 {
		r := &rdmatest.FakeRequest{Data: request(0, 32)}
		if b.target.accept(r, 1) != nil {
			break // too many are giving way
		}
		p := &fakePair{r.Pair, t}
		b.pairs = append(b.pairs, p)
		b.run(p, connect(0, 31), connectData(nvme.DynamicController), 0)
		if first == nil {
			first = p
		}
	}
	<-first.Over
}
