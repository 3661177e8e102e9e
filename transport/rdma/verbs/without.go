//go:build !(verbs && cgo && linux)

package verbs

import (
	"errors"

	"oneshot/transport/rdma"
)

// Built says whether this build, which lacks the tag verbs, can use devices.
const Built = false

var errNotBuilt = errors.New("verbs: this program was built without kernel RDMA: build it with -tags verbs, where a C compiler, libibverbs-dev and librdmacm-dev are installed")

// Open fails in this build.
func Open(Config) (rdma.Device, error) { return nil, errNotBuilt }

// ListenAll fails in this build.
func ListenAll([]rdma.Device, string) ([]rdma.Listener, error) { return nil, errNotBuilt }

// SetPolling does nothing in this build.
func SetPolling(rdma.Device, bool) {}

// examine notes that this build cannot use the device.
func examine(i *Info) {
	i.Problems = append(i.Problems, "this program was built without kernel RDMA (tag verbs)")
}
