package iser_test

import (
	"log/slog"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi"
	"oneshot/iser"
	"oneshot/mem"
	"oneshot/transport/movertest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// TestMover runs the suite of all movers over user-space iWARP, in both framings.
func TestMover(t *testing.T) {
	for name, transport := range map[string]initiator.Transport{"iSER": initiator.ISER, "one-shot": initiator.OneShot} {
		t.Run(name, func(t *testing.T) {
			movertest.Run(t, func(t testing.TB, node *iscsi.Node, pool *mem.Pool) movertest.Service {
				check := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				log := slog.New(slog.NewTextHandler(t.Output(), nil))
				device, err := iwarp.Open(iwarp.Config{Logger: log})
				check(err)
				target, err := iser.NewTarget(iser.Config{Node: node, Device: device, Pool: pool, Commands: 32, Logger: log})
				check(err)
				l, err := device.Listen("127.0.0.1:0")
				check(err)
				served := make(chan error, 1)
				offer := &rdma.OneShotOffer{Flags: true, Opcodes: true, Validated: true, Advertise: true, Close: true, Window: 32}
				go func() { served <- target.Serve(l, offer, nil) }()
				return movertest.Service{
					URL:    initiator.URL{Transport: transport, Address: l.Addr().String()},
					Leases: pool.Stats().Leases,
					Stop: func() {
						check(l.Close())
						check(<-served)
						check(target.Close())
						check(device.Close())
					},
				}
			})
		})
	}
}
