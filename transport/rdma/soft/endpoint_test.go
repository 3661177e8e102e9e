package soft

import (
	"testing"

	"oneshot/transport/rdma"
)

// A service can say that an endpoint has fewer octets than an atomic operation changes. Then no place is inside of it.
func TestAtomicOutside(t *testing.T) {
	for _, size := range []int64{0, 7, 8, 4096} {
		for _, at := range []uint64{0, 8, 4088, 4096, 1 << 63, 1<<64 - 8} {
			_, what := EndpointAtomic(&rdma.Endpoint{Size: size}, &rdma.Work{RemoteOffset: at}, 8, 1)
			if inside := uint64(size) >= 8 && at <= uint64(size)-8; inside != (what == "") {
				t.Errorf("8 octets at %d of %d: %q", at, size, what)
			}
		}
	}
}
