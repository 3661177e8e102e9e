package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"oneshot/mgmt"
)

func TestWriteSessions(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(sec int, reads, bytes uint64) *mgmt.Sessions {
		return &mgmt.Sessions{
			Time: start.Add(time.Duration(sec) * time.Second), BoundsNS: []int64{10_000, 1_000_000},
			Sessions: []mgmt.Session{
				{ID: 3, Initiator: "iqn.c:1", Target: "iqn.t:t", Connection: mgmt.Connection{Peer: "10.0.0.1:5", Transport: "tcp"}, Since: start, IO: mgmt.IO{
					Read: mgmt.Class{Bytes: bytes, SumNS: reads * 5000, Latency: []uint64{reads, 0, 0}}, InFlight: 7,
					Failed: map[string]uint64{"medium_error": reads}, Attentions: 1,
				}},
				{ID: 4, Initiator: "iqn.c:2", Connection: mgmt.Connection{Peer: "10.0.0.2:5", Transport: "iwarp"}, Since: start.Add(time.Duration(sec) * time.Second)},
			},
		}
	}
	for _, c := range []struct {
		now, before *mgmt.Sessions
		want        string
	}{
		{at(90, 100, 1<<20), nil, `
ID  INITIATOR  TARGET       FROM        BY     AGE    READS  BYTES   MEAN   P99     WRITES  BYTES  MEAN  P99  OTHERS  BUSY  FAILED
3   iqn.c:1    iqn.t:t      10.0.0.1:5  tcp    1m30s  100    1.0MiB  5.0µs  10.0µs  0       0B     -     -    0       7     medium_error:100
4   iqn.c:2    (discovery)  10.0.0.2:5  iwarp  0s     0      0B      -      -       0       0B     -     -    0       0     -
`},
		{at(92, 120, 3<<20), at(90, 100, 1<<20), `
ID  INITIATOR  TARGET       FROM        BY     AGE    READ/S  B/S     MEAN   P99     WRITE/S  B/S  MEAN  P99  OTHER/S  BUSY  FAILED
3   iqn.c:1    iqn.t:t      10.0.0.1:5  tcp    1m32s  10      1.0MiB  5.0µs  10.0µs  0        0B   -     -    0        7     medium_error:20
4   iqn.c:2    (discovery)  10.0.0.2:5  iwarp  0s     0       0B      -      -       0        0B   -     -    0        0     -
`},
	} {
		var b strings.Builder
		if err := writeSessions(&b, c.now, c.before); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, "\n"+b.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[float64]string{0: "0B", 999: "999B", 1000: "1.0KiB", 1024: "1.0KiB", 150 << 10: "150KiB", 1 << 30: "1.0GiB", 5 << 50: "5.0PiB"} {
		if got := size(n); got != want {
			t.Errorf("%v bytes are %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "-", 1500: "1.5µs", 150_000: "150µs", 2_500_000: "2.5ms", 3 * time.Second: "3.0s"} {
		if got := latency(d); got != want {
			t.Errorf("%d ns are %s, want %s", d, got, want)
		}
	}
	now := time.Unix(1e6, 0)
	for d, want := range map[time.Duration]string{-1: "0s", 61 * time.Second: "1m1s", 3*time.Hour + time.Minute: "3h1m", 49 * time.Hour: "2d1h"} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// TestWriteStatusDevices: status says for each RDMA device how often polling found something.
func TestWriteStatusDevices(t *testing.T) {
	var b strings.Builder
	counts := map[string]uint64{"messages_in": 5, "messages_out": 6, "sleeps": 1, "polling_found": 2, "polling_in_vain": 3, "reads": 9}
	if err := writeStatus(&b, &mgmt.Status{Devices: []mgmt.Device{{Transport: "verbs", Name: "rxe0", Counters: counts}}}, nil); err != nil {
		t.Fatal(err)
	}
	const want = "RDMA           verbs rxe0: 5 messages in, 6 out; slept 1 times, polled 2 times with success and 3 in vain\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("there is no %q in\n%s", want, b.String())
	}
}
