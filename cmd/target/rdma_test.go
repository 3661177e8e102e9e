package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"oneshot/mgmt"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
)

func TestWriteDevices(t *testing.T) {
	for _, c := range []struct {
		name    string
		devices []verbs.Info
		want    string
	}{
		{"none", nil, "There is no RDMA device. `rdma link add rxe0 type rxe netdev eth0` makes one of the network interface eth0.\n"},
		{"two", []verbs.Info{
			{
				Name: "rxe0", Transport: "RoCE", Ports: []verbs.Port{{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)", NetDev: "eth0"}},
				Limits: rdma.Limits{
					MaxQueuePair: 1000, MaxWork: 100, MaxSGE: 16, MaxReadSGE: 8, MaxReads: 128, MaxMessage: 8 << 20, MaxInline: 256,
					Windows: true, SendInvalidate: true, ReceiveWait: true,
				},
			},
			{Name: "mlx5_0", Transport: "InfiniBand", Ports: []verbs.Port{{Number: 1}}, Problems: []string{"plug the cable in"}},
		}, `DEVICE  PORT  KIND        STATE   LINK      RATE                 INTERFACE  USABLE
rxe0    1     RoCE        ACTIVE  Ethernet  2.5 Gb/sec (1X SDR)  eth0       yes
mlx5_0  1     InfiniBand  -       -         -                    -          no

rxe0: 1000 connections, 100 requests each, 16 elements in a list (8 of a Read), 128 Reads at a time, 8.0MiB a message, 256 bytes inline
rxe0: memory windows yes, Send with Invalidate yes, senders wait for receives yes

mlx5_0: plug the cable in
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := writeDevices(&b, c.devices); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, b.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

// The output shows what a daemon has done with its devices, polling included.
func TestWriteUse(t *testing.T) {
	var b bytes.Buffer
	counts := map[string]uint64{"messages_in": 5, "messages_out": 6, "sleeps": 1, "polling_found": 2, "polling_in_vain": 3}
	if err := writeUse(&b, []mgmt.Device{{Transport: "verbs", Name: "rxe0", Counters: counts}}); err != nil {
		t.Fatal(err)
	}
	const want = "\nThe daemon, since it started:\nverbs rxe0: 5 messages in, 6 out; slept 1 times, polled 2 times with success and 3 in vain\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if err := writeUse(&b, nil); err != nil || b.Len() > 0 {
		t.Errorf("no device: %q, %v", b.String(), err)
	}
}
