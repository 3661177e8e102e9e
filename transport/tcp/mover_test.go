package tcp_test

import (
	"net"
	"sync"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi"
	"oneshot/mem"
	"oneshot/transport/movertest"
	"oneshot/transport/tcp"
)

// TestMover runs the suite of all movers, with and without digests.
func TestMover(t *testing.T) {
	for name, digests := range map[string]bool{"plain": false, "digests": true} {
		t.Run(name, func(t *testing.T) {
			movertest.Run(t, func(t testing.TB, node *iscsi.Node, pool *mem.Pool) movertest.Service {
				l, err := net.Listen("tcp4", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				cfg := tcp.Config{Node: node, Pool: pool}
				var all sync.WaitGroup
				all.Go(func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						if !node.Admit() {
							_ = c.Close()
							continue
						}
						all.Go(func() { _ = cfg.Serve(c.(*net.TCPConn)) })
					}
				})
				return movertest.Service{
					URL:  initiator.URL{Address: l.Addr().String(), HeaderDigest: digests, DataDigest: digests},
					Stop: func() { _ = l.Close(); all.Wait() },
				}
			})
		})
	}
}
