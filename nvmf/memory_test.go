package nvmf

import (
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/nvme"
)

// A host that takes no answers keeps their memory for as long as there is enough for others. When it is scarce, the host loses its queue;
// one that takes an answer now and then, and one that holds nothing, do not.
func TestHogsAreDropped(t *testing.T) {
	x := newTarget(t, later(t), false)
	hog := func(id byte) *host {
		_, ctrl := x.adminThrough(1, id, 0)
		h := x.dialThrough(1, id)
		if a := h.connect(testHost, 1, ctrl, 0); a.Status != nvme.Success {
			t.Fatal(a.Status)
		}
		return h
	}
	deaf, slow, idle := hog(2), hog(3), hog(4)
	const n = 256 << 10
	for _, h := range []*host{deaf, slow} {
		h.deaf = true
		for range 3 {
			h.start(rw(nvme.Read, n/512), n, nil, false)
		}
		if h.q.unsent != 3*n {
			t.Fatalf("%d bytes wait for a host that takes nothing, want %d", h.q.unsent, 3*n)
		}
	}
	takes := func(h *host) { // one answer
		h.q.Lock()
		h.q.Sent(h.kept[0])
		h.q.Unlock()
		h.kept = h.kept[1:]
	}
	x.pass(10 * hogTime)
	if len(deaf.ended) != 0 {
		t.Fatal("a host is dropped though there is memory for all")
	}
	for _, h := range []*host{deaf, slow} {
		takes(h)
	}
	feed := x.starve()
	x.logged()
	x.pass(hogTime)
	if len(deaf.ended) != 0 {
		t.Error("a host is dropped too early")
	}
	takes(slow)
	x.pass(1)
	if !slices.Equal(deaf.ended, []Termination{AtOnce}) || len(slow.ended) != 0 || len(idle.ended) != 0 {
		t.Errorf("the host that takes nothing: %v, the one that takes something: %v, the idle one: %v", deaf.ended, slow.ended, idle.ended)
	}
	x.wantLog("connection dropped", "has taken no answers for 6 s", "limits.memory")
	feed()
	for _, h := range []*host{deaf, slow} {
		h.lose()
		h.q.Lock()
		for _, a := range h.kept {
			h.q.AnswerLost(a)
		}
		h.q.Unlock()
	}
}

// A command that waits for much memory does not wait for ever beside others that come later and take less.
func TestFirstComeFirstServed(t *testing.T) {
	_, h, s := newHolding(t)
	gate := s.Hold(faulty.Match{Kinds: []backend.Kind{backend.Read}})
	defer gate.Release()
	small := func() { h.start(rw(nvme.Read, 128), 64<<10, nil, false) }
	for range 30 { // all but a bit of what Reads may have
		small()
	}
	large := h.start(rw(nvme.Read, 2048), 1<<20, nil, false)
	for range 200 {
		for _, a := range h.answersAfter(1, gate.Next) {
			if a.CID == large {
				return
			}
		}
		small()
	}
	t.Errorf("a Read waits for memory while 200 that have come later had some")
}
