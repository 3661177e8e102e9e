package local_test

import (
	"context"
	"sync"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/rdmatest"
)

func TestEndpoints(t *testing.T) {
	rdmatest.RunEndpoint(t, func(t *testing.T, s *rdmatest.Volatile) rdmatest.Endpoint {
		v := newVolume(t, s)
		inner := opener(v, rdma.DurabilityMedium)
		var mu sync.Mutex
		var told []func(error)
		d := open(t, local.Config{Open: func(ctx context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
			mu.Lock()
			told = append(told, gone)
			mu.Unlock()
			return inner(ctx, name, want, gone)
		}})
		return rdmatest.Endpoint{Device: d, Address: "disk/log", Store: s, Revoke: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			for _, f := range told {
				f(err)
			}
			told = nil
		}}
	})
}
