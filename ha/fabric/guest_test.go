//go:build verbs && guest

package fabric

import (
	"log/slog"
	"os"
	"testing"

	"oneshot/transport/rdma/verbs"
)

// These tests need a device: test/vm runs them in a virtual machine, with its name, and an address of it with port 0.
func init() {
	name, at := os.Getenv("ONESHOT_RDMA_DEVICE"), os.Getenv("ONESHOT_RDMA_LISTEN")
	providers[name] = func(t *testing.T) *node {
		t.Helper()
		d, err := verbs.Open(verbs.Config{Name: name, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))})
		check(t, err)
		return newNode(t, d, at)
	}
}
