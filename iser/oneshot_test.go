package iser

import (
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/iser/isertest"
	"oneshot/transport/rdma/iwarp"
)

// TestOffences: what peers of one connection do, by mistake or to do harm, has the answer that one-shot.md and iSER want.
func TestOffences(t *testing.T) {
	for _, o := range isertest.Offences(iqn) {
		t.Run(o.Name, func(t *testing.T) {
			b := newBenchOf(t, 64<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
			isid := byte(0)
			o.Do(t, func(direct bool, offer ddp.OneShotFlags) *isertest.Peer {
				isid++
				p := isertest.Connect(t, b.l.Addr().String(), direct, offer)
				p.ISID = isid
				return p
			})
		})
	}
}
