package iwarp

import (
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// A peer may refuse a Read before it has answered earlier Reads. Its Terminate says which Read it refuses.
func TestRefusedReadIsBlamed(t *testing.T) {
	for name, c := range map[string]struct {
		quote  func(second ddp.RDMARead) *ddp.RDMARead
		blamed uint64
	}{
		"quoted":      {func(r ddp.RDMARead) *ddp.RDMARead { return &r }, 2},
		"half-served": {func(r ddp.RDMARead) *ddp.RDMARead { r = r.Advance(40); return &r }, 2},
		"of nobody":   {func(r ddp.RDMARead) *ddp.RDMARead { r.SrcSTag ^= 0x100; return &r }, 1},
		"not quoted":  {func(ddp.RDMARead) *ddp.RDMARead { return nil }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := withPeer(t, setup{}, 0, true)
			for id := range uint64(3) {
				e.post(rdma.Work{
					ID: id + 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: e.sge(int(id)*100, 100), RemoteSTag: 0x5100, RemoteOffset: id * 1000,
				})
			}
			var second ddp.RDMARead
			var seg ddp.Segment
			for i := range 3 {
				seg = p.read()
				if i == 1 {
					second = ddp.ParseReadRequest(p.in[seg.PayloadOffset():])
				}
			}
			m := ddp.TerminateMessage{Cause: ddp.ProtBounds}
			if r := c.quote(second); r != nil {
				m = ddp.TerminateFor(ddp.ProtBounds, seg, r)
			}
			p.write(ddp.AppendTerminate(nil, &m))
			for range 3 {
				done := e.next()
				want := rdma.StatusFlushed
				if done.ID == c.blamed {
					want = rdma.StatusRemoteAccess
				}
				if done.Status != want {
					t.Errorf("Read %d ends with %v, want %v", done.ID, done.Status, want)
				}
			}
		})
	}
}
