//go:build !(verbs && cgo && linux)

package verbs

import (
	"errors"

	"oneshot/transport/rdma"
)

// Built says whether the package can drive devices, for it was built with the tag verbs.
const Built = false

var errNotBuilt = errors.New("verbs: this program was built without kernel RDMA: build it with -tags verbs, where a C compiler, libibverbs-dev and librdmacm-dev are installed")

// Open fails.
func Open(Config) (rdma.Device, error) { return nil, errNotBuilt }

// ListenAll fails.
func ListenAll([]rdma.Device, string) ([]rdma.Listener, error) { return nil, errNotBuilt }

// SetPolling has nothing to set.
func SetPolling(rdma.Device, bool) {}

// examine has nothing to ask.
func examine(i *Info) {
	i.Problems = append(i.Problems, "this program was built without kernel RDMA (tag verbs)")
}
