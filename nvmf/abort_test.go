package nvmf

import (
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
)

// An Abort says that a command was aborted only if nothing of it comes later (Base 2.1 §5.1.1.1). One that the store still has is aborted
// when it comes back, and the Abort does not wait for that.
func TestAbortSaysWhatIsOver(t *testing.T) {
	store := later(t)
	x := newTarget(t, store, false)
	p := x.party(1, 1)
	abort := func(cid uint16) uint32 {
		t.Helper()
		return p.admin.must(nvme.Command{Opcode: nvme.AdminAbort, DWords: [6]uint32{uint32(cid)<<16 | 1}}, 0, nil, false).DW0
	}
	waits := p.io.start(rw(nvme.Write, 8), 4096, nil, false) // for its data
	if dw0 := abort(waits); dw0 != 0 {
		t.Errorf("a command that waits for its data: dword 0 is %d", dw0)
	}
	if got := p.io.take(); len(got) != 1 || got[0].CID != waits || got[0].Status != nvme.Aborted {
		t.Errorf("it ends with %v", got)
	}

	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	written := p.io.start(rw(nvme.Write, 8), 4096, fill(4096, 1), true)
	gate.Await(1)
	if dw0 := abort(written); dw0 != 1 {
		t.Errorf("a write that is in the store: dword 0 is %d", dw0)
	}
	if got := p.io.take(); len(got) != 0 {
		t.Errorf("it is answered before it is over: %v", got)
	}
	got := p.io.answersAfter(1, gate.Release)
	if len(got) != 1 || got[0].CID != written || got[0].Status != nvme.Aborted {
		t.Errorf("in the end: %v", got)
	}
	if dw0 := abort(written); dw0 != 1 {
		t.Errorf("a command that is over: dword 0 is %d", dw0)
	}
}
