package iser

import (
	"bytes"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/ddp"
	"oneshot/internal/iostat"
	"oneshot/iser/isertest"
	"oneshot/mem"
	"oneshot/transport/rdma/iwarp"
)

// rawPeer is an initiator made of octets: it answers Read Requests or not, as the test wants.
type rawPeer struct{ *isertest.Peer }

// raw connects a rawPeer, and logs in.
func (b *bench) raw(direct bool, isid byte) *rawPeer {
	b.t.Helper()
	offer := ddp.OneShotFlags(0)
	if direct {
		offer = isertest.EveryOffer
	}
	p := isertest.Connect(b.t, b.l.Addr().String(), direct, offer)
	p.ISID = isid
	p.LogIn(iqn)
	return &rawPeer{p}
}

// wait returns when cond holds, which the target's goroutines see to.
func wait(cond func() bool) {
	for !cond() {
		time.Sleep(50 * time.Microsecond) // those have to run whom cond waits for
	}
}

// endings are the ways in which a connection ends while a Read Request waits for its Response.
var endings = []struct {
	name string
	end  func(b *bench, p *rawPeer, r ddp.RDMARead)
}{
	{"FIN", func(_ *bench, p *rawPeer, _ ddp.RDMARead) { _ = p.Conn.Close() }},
	{"RST", func(_ *bench, p *rawPeer, _ ddp.RDMARead) {
		_ = p.Conn.SetLinger(0)
		_ = p.Conn.Close()
	}},
	{"half-close", func(_ *bench, p *rawPeer, _ ddp.RDMARead) { _ = p.Conn.CloseWrite() }},
	{"half a Response, then FIN", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		p.Write(p.Response(r, make([]byte, min(r.Size/2, 32<<10)), false))
		_ = p.Conn.Close()
	}},
	{"half an FPDU, then FIN", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		f := ddp.AppendFPDUTrailer(p.Response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10), 0)
		_, err := p.Conn.Write(f[:len(f)-4])
		check(p.T, err)
		_ = p.Conn.Close()
	}},
	{"bad CRC", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		f := ddp.AppendFPDUTrailer(p.Response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10), 0)
		f[len(f)-1] ^= 1
		_, err := p.Conn.Write(f)
		check(p.T, err)
	}},
	{"Response to another STag", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		r.SinkSTag ^= 0x100
		p.Write(p.Response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10))
	}},
	{"Response too long", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		p.Write(p.Response(r, make([]byte, min(r.Size, 32<<10)+4), true))
	}},
	{"Terminate: no access", terminated(ddp.MakeCause(0, 1, 2))},
	{"Terminate: catastrophic", terminated(ddp.OpCatastrophicStream)},
	{"Terminate: local catastrophic", terminated(ddp.LocalCatastrophic)},
	{"Terminate: tagged", terminated(ddp.TaggedInvalidSTag)},
	{"Terminate: untagged", terminated(ddp.UntaggedNoBuffer)},
	{"Terminate: CRC", terminated(ddp.MakeCause(2, 0, 2))},
	{"the target drops the session", func(b *bench, _ *rawPeer, _ ddp.RDMARead) {
		for _, s := range b.node.Sessions() {
			b.node.DropSession(s.TSIH, "for a test")
		}
	}},
}

func terminated(c ddp.Cause) func(*bench, *rawPeer, ddp.RDMARead) {
	return func(_ *bench, p *rawPeer, _ ddp.RDMARead) {
		p.Write(ddp.AppendTerminate(nil, &ddp.TerminateMessage{Cause: c}))
	}
}

// poison fills the free memory of the pool that serves leases of n octets with what would do
// harm, as another session may have left it there.
func (b *bench) poison(data []byte, n int) {
	harm := bytes.Repeat(data, (n+len(data)-1)/len(data))
	var leases []*mem.Lease
	for {
		l := b.pool.Lease(n)
		if l == nil {
			break
		}
		copy(l.Bytes(), harm)
		leases = append(leases, l)
	}
	for _, l := range leases {
		l.Release()
	}
}

// contents reads all of the store.
func (b *bench) contents() []byte {
	all := make([]byte, storeSize)
	op := backend.Op{Kind: backend.Read, Len: storeSize, Segs: [][]byte{all}}
	if !b.store.Submit(&op) { // memory is at hand
		b.t.Fatal("the store reads later")
	}
	check(b.t, op.Err)
	return all
}

// counted returns how many commands were answered, and how many ended without.
func (b *bench) counted() (answered, aborted uint64) {
	for _, s := range b.disk.Stats() {
		for i := range s.Commands {
			answered += s.Commands[i].Count()
		}
		aborted += s.Failed[iostat.AbortedCommand]
	}
	return answered, aborted
}

// A command whose data-out could not be fetched is not executed, whatever ended the connection:
// the memory for it holds what another session has left there.
func TestLostConnectionExecutesNothing(t *testing.T) {
	for framing, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(framing, func(t *testing.T) {
			b := newBenchOf(t, 22<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
			want := b.contents()
			sessions := uint64(0)
			for _, c := range fetched {
				b.poison(c.data, c.n)
				for _, e := range endings {
					p := b.raw(direct, 1)
					sessions++
					p.Command(c.cdb, nil, 0x4711, 0, c.n)
					seg, ok := p.Read()
					if !ok || seg.Message != ddp.ReadRequest {
						t.Fatalf("%s: %v, % x; want a Read Request", c.name, seg.Message, p.In)
					}
					r := ddp.ParseReadRequest(p.Payload(seg))
					e.end(b, p, r)
					wait(func() bool { return b.node.Connections() == 0 })
					_ = p.Conn.Close()
					if answered, aborted := b.counted(); answered != 2*sessions || aborted != sessions {
						t.Fatalf("%s, %s: %d commands answered, %d aborted; want %d and %d", c.name, e.name, answered, aborted, 2*sessions, sessions)
					}
				}
			}
			if !bytes.Equal(b.contents(), want) {
				t.Error("the disk has changed")
			}
		})
	}
}
