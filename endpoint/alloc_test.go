//go:build !race

package endpoint_test

import (
	"testing"

	"oneshot/backend/memory"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
)

// Nothing is allocated per operation.
func TestAllocations(t *testing.T) {
	s, err := memory.New(size)
	must(t, err)
	h := endpointtest.New(t, s)
	e := h.Use(endpoint.Options{})
	buf := alloc(t, e, 4096)
	sge, err := e.SGE(buf)
	must(t, err)
	ws := []rdma.Work{{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}}
	cs := make([]rdma.Completion, 1)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.Post(ws); err != nil {
			t.Error(err)
		}
		for e.Poll(cs) == 0 {
		}
	}); n != 0 {
		t.Errorf("Post and Poll: %v allocations", n)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if e.WriteAt(ctx, buf, 0) != nil || e.ReadAt(ctx, buf, 0) != nil || e.Flush(ctx) != nil {
			t.Error("failed")
		}
	}); n != 0 {
		t.Errorf("WriteAt, ReadAt and Flush: %v allocations", n)
	}
}
