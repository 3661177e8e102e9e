package nvmf

import (
	"testing"

	"oneshot/nvme"
)

// An event comes while an Asynchronous Event Request is being aborted: the next request tells it. An aborted one cannot, and the event would
// stay masked until the host reads a log that it has not been told of.
func TestEventBesideAbort(t *testing.T) {
	x := newTarget(t, nil, false)
	h, _ := x.admin(0)
	h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESNamespace}}, 0, nil, false)
	request := nvme.Command{Opcode: nvme.AdminAsyncEvent}
	h.start(request, 0, nil, false)
	h.q.Lock() // the Abort and the event wait for whoever has the queue
	parked := h.q.ctrl.events.parked[0]
	h.q.post(func() { parked.abortWith(nvme.Aborted) })
	x.sub.changed(1)
	x.tell()
	h.q.Unlock()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Aborted || got[0].DW0 != 0 {
		t.Fatalf("the request that is aborted: %v", got)
	}
	h.start(request, 0, nil, false)
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success || got[0].DW0 != nvme.EventNamespaces {
		t.Errorf("the next request: %v", got)
	}
}
