package iscsi

import "testing"

// An initiator that takes no answers gets room in the window all the same, for the answers are counted when they are made. Over
// TCP no more is read then; over RDMA messages come as long as there are receives, so such a connection is given up.
func TestAnswersNotTaken(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		n, _, _ := session(t)
		r := new(recorder)
		admit(t, n)
		if r.c = n.NewConn(r); rdma {
			admit(t, n)
			drive(r.c, func() { r.c.Lost(nil) })
			r.c = n.NewRDMAConn(r, &n.cfg.Login)
		}
		c := r.c
		f, text := request(0, 0)
		f.ISID[5] = 7
		drive(c, func() { c.Receive(f.AppendTo(nil), []byte(text)) })
		if got := r.take(); got != "Login Response" || r.last[36] != 0 {
			t.Fatalf("%q, status % x", got, []byte(r.last[36:38]))
		}
		r.keeps = true
		sn := f.CmdSN
		ask := func() {
			command(c, uint32(sn), sn, false, testUnitReady, 0)
			sn++
		}
		most := maxLive * (n.cfg.Commands + maxImmediates)
		for range most {
			ask()
		}
		if c.live != most || c.dropped {
			t.Fatalf("RDMA %v: %d commands are there of %d, dropped: %v", rdma, c.live, most, c.dropped)
		}
		ask()
		if want := most + 1; rdma && c.live != most || !rdma && c.live != want || c.dropped != rdma {
			t.Errorf("RDMA %v, and one more: %d commands, dropped: %v", rdma, c.live, c.dropped)
		}
		r.keeps = false
		drive(c, func() { c.Lost(nil) })
	}
}
