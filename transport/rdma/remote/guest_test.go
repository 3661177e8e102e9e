//go:build verbs && guest

package remote_test

import (
	"os"
	"testing"

	"oneshot/partition/service"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
	"oneshot/transport/rdma/verbs"
)

// The suite, over a device of the kernel. test/vm builds it with the tag guest, and runs it in a virtual machine.
func TestEndpointsOverVerbs(t *testing.T) {
	rdmatest.RunEndpoint(t, func(t *testing.T, s *rdmatest.Volatile) rdmatest.Endpoint {
		dev, err := verbs.Open(verbs.Config{Name: os.Getenv("ONESHOT_RDMA_DEVICE")})
		check(t, err)
		t.Cleanup(func() { check(t, dev.Close()) })
		f := newFar(t, s, dev, os.Getenv("ONESHOT_RDMA_LISTEN"), service.Config{})
		d := open(t, remote.Config{Device: dev})
		return rdmatest.Endpoint{Device: d, Address: f.l.Addr().String() + "/disk/log", Store: s, Revoke: f.revoke, Wire: true, Quick: true}
	})
}
