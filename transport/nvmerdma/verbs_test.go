//go:build verbs && !guest && cgo && linux

package nvmerdma

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
	verbsfake "oneshot/transport/rdma/verbs/fake"
)

func init() {
	verbsfake.Install()
	for name, c := range map[string]verbsfake.Config{
		"InfiniBand": {}, "InfiniBand, cleans": {Clean: true}, "iWARP card": {IWARP: true}, "siw": {IWARP: true, Siw: true},
	} {
		devices[name] = deviceKind{"127.0.0.1:0", func(t testing.TB) rdma.Device {
			c.Node = filepath.Join(t.TempDir(), "node")
			check(t, os.Mkdir(c.Node, 0o700))
			verbsfake.Begin(c)
			d, err := verbs.Open(verbs.Config{Name: verbsfake.Name, LingerTime: 50 * time.Millisecond})
			check(t, err)
			return d
		}}
	}
}
