package endpoint_test

import (
	"errors"
	"testing"

	"oneshot/backend/backendtest"
	"oneshot/backend/memory"
	"oneshot/endpoint"
	"oneshot/endpoint/endpointtest"
	"oneshot/transport/rdma"
)

// A partition in memory is mapped, beside ReadAt and WriteAt; one that is elsewhere is not.
func TestMap(t *testing.T) {
	s, err := memory.New(size)
	must(t, err)
	h := endpointtest.New(t, s)
	e := h.Use(endpoint.Options{})
	m, err := e.Map(t.Context(), 4096, 8192, true)
	must(t, err)
	buf := alloc(t, e, 4096)
	fill(buf, 3)
	must(t, e.WriteAt(t.Context(), buf, 4096))
	if len(m.Bytes) != 8192 || m.Bytes[4095] != 3 || m.Bytes[4096] != 0 {
		t.Error("the mapping does not show what was written")
	}
	m.Bytes[0] = 4
	must(t, e.ReadAt(t.Context(), buf, 4096))
	if buf[0] != 4 || buf[1] != 3 {
		t.Error("what is written to the mapping is not read")
	}

	// A mapping outlives its connection, and the library makes another one for the next.
	h.End()
	<-m.Recalled
	m.Bytes[0] = 5
	other, err := e.Map(t.Context(), 4096, 512, false)
	must(t, err)
	if other.Bytes[0] != 5 {
		t.Error("another mapping shows other bytes")
	}
	m.Unmap()
	for range 2 {
		other.Unmap()
	}
	var work *rdma.WorkError
	if _, err := e.Map(t.Context(), size, 512, false); !errors.As(err, &work) {
		t.Errorf("outside: %v", err)
	}
	if _, err := e.Map(t.Context(), -512, 512, false); !errors.As(err, &work) {
		t.Errorf("before the start: %v", err)
	}
	var rights *endpoint.RightsError
	if _, err := h.Use(endpoint.Options{Rights: rdma.RightRead}).Map(t.Context(), 0, 512, true); !errors.As(err, &rights) {
		t.Errorf("without the right: %v", err)
	}
	if _, err := h.UseURL(h.Listen(), endpoint.Options{}).Map(t.Context(), 0, 512, false); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("over a wire: %v", err)
	}
	disk := endpointtest.New(t, backendtest.NewDisk(size, 512))
	if _, err := disk.Use(endpoint.Options{}).Map(t.Context(), 0, 512, false); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a disk: %v", err)
	}

	// Close gives back what is left: otherwise the device of the host could not be closed.
	_, err = e.Map(t.Context(), 0, 512, true)
	must(t, err)
}
