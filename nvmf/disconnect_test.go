package nvmf

import (
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
)

// withHungWrite makes a party of which a write is in the store until the gate is released; inside: its data came in the capsule.
func withHungWrite(t *testing.T, inside bool) (x *target, p *party, gate *faulty.Gate, written uint16) {
	store := later(t)
	x = newTarget(t, store, false)
	p = x.party(1, 1)
	gate = store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	written = p.io.start(rw(nvme.Write, 8), 4096, fill(4096, 1), inside)
	gate.Await(1)
	return x, p, gate, written
}

// Disconnect is answered last, when no other command of its queue is under way (Base 2.0 §6.4).
func TestDisconnectIsAnsweredLast(t *testing.T) {
	_, p, gate, written := withHungWrite(t, true)
	waits := p.io.start(rw(nvme.Write, 8), 4096, nil, false) // for its data
	last := p.io.start(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}, 0, nil, false)
	late := p.io.start(rw(nvme.Read, 8), 4096, nil, false) // which hosts do not send
	if got := p.io.take(); len(got) != 1 || got[0].CID != waits || got[0].Status != nvme.AbortedByQueue || len(p.io.ended) != 0 {
		t.Errorf("with a write in the store: %v, ended %v", got, p.io.ended)
	}
	got := p.io.answersAfter(2, gate.Release)
	if len(got) != 2 || got[0].CID != written || got[0].Status != nvme.AbortedByQueue || got[1].CID != last || got[1].Status != nvme.Success {
		t.Errorf("in the end %d answers, the first of command %d; the commands are %d, %d, and late %d", len(got), got[0].CID, written, last, late)
	}
	if len(p.io.ended) != 1 || p.io.ended[0] != WhenSent {
		t.Errorf("ended %v", p.io.ended)
	}
}

// A connection that is lost while Disconnect waits ends as others do.
func TestLostWhileDisconnectWaits(t *testing.T) {
	x, p, gate, _ := withHungWrite(t, true)
	p.io.start(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}, 0, nil, false)
	p.io.lose()
	gone := make(chan struct{})
	x.ns.Drain(func() { close(gone) })
	gate.Release()
	<-gone
	x.Quiesce()
	if got := p.io.take(); len(got) != 0 || p.io.q.state != queueGone {
		t.Errorf("%v, state %d", got, p.io.q.state)
	}
}

// An Abort does not end a Disconnect that waits: it is answered once, and last.
func TestAbortOfDisconnect(t *testing.T) {
	_, p, gate, written := withHungWrite(t, true)
	last := p.io.start(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}, 0, nil, false)
	if dw0 := p.admin.must(nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(last)<<16 | 1}}, 0, nil, false).DW0; dw0 != 1 {
		t.Errorf("an Abort of Disconnect: dword 0 is %d", dw0)
	}
	if got := p.io.take(); len(got) != 0 {
		t.Errorf("with a write in the store: %v", got)
	}
	got := p.io.answersAfter(2, gate.Release)
	if len(got) != 2 || got[0].CID != written || got[1].CID != last || got[1].Status != nvme.Success {
		t.Errorf("in the end %v; the commands are %d and %d", got, written, last)
	}
	p.io.q.Lock()
	live := p.io.q.live
	p.io.q.Unlock()
	if live != 0 {
		t.Errorf("%d commands are left", live)
	}
}
