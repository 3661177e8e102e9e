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

// A controller of a host of NVMe has a number of its own; with --watch, what it did meanwhile is shown.
func TestWriteControllers(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(sec int, reads uint64) *mgmt.Sessions {
		queue := mgmt.Queue{Peer: "10.0.0.1:5", Transport: "nvme-tcp", HeaderDigest: true, DataDigest: true}
		return &mgmt.Sessions{
			Time: start.Add(time.Duration(sec) * time.Second), BoundsNS: []int64{10_000, 1_000_000},
			Controllers: []mgmt.Controller{
				{ID: 7, CNTLID: 2, Host: "nqn.h:1", Subsystem: "nqn.s", Authentication: "mutual", Queues: []mgmt.Queue{queue, queue, queue}, Since: start, IO: mgmt.IO{
					Read: mgmt.Class{Bytes: reads << 12, SumNS: reads * 5000, Latency: []uint64{reads, 0, 0}}, InFlight: 3,
				}},
				{ID: 8, CNTLID: 1, Host: "nqn.h:2", Authentication: "none", Queues: []mgmt.Queue{{Peer: "10.0.0.2:5", Transport: "nvme-tcp"}}, Since: start},
				{ID: 9, CNTLID: 3, Host: "nqn.h:gone"},
			},
		}
	}
	var b strings.Builder
	if err := writeSessions(&b, at(92, 120), at(90, 100)); err != nil {
		t.Fatal(err)
	}
	const want = `
ID  HOST     SUBSYSTEM    CNTLID  FROM        BY        QUEUES  DIGESTS      AUTH    AGE    READ/S  B/S      MEAN   P99     WRITE/S  B/S  MEAN  P99  OTHER/S  BUSY  FAILED
c7  nqn.h:1  nqn.s        2       10.0.0.1:5  nvme-tcp  3       header,data  mutual  1m32s  10      40.0KiB  5.0µs  10.0µs  0        0B   -     -    0        3     -
c8  nqn.h:2  (discovery)  1       10.0.0.2:5  nvme-tcp  1       -            -       1m32s  0       0B       -      -       0        0B   -     -    0        0     -
`
	if diff := cmp.Diff(want, "\n"+b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The status of a daemon that serves NVMe only has a table of namespaces, and none of LUNs.
func TestWriteStatusSubsystems(t *testing.T) {
	at := func(bytes uint64) *mgmt.Status {
		return &mgmt.Status{BoundsNS: []int64{10_000}, NVMe: &mgmt.NVMe{
			Connected: 2, Counters: mgmt.NVMeCounters{Connections: 9, Refused: 1, Connects: 4, ConnectFailures: 3, AuthFailures: 7, ProtocolErrors: 5, DigestErrors: 6},
			Subsystems: []mgmt.Subsystem{{NQN: "nqn.s", Namespaces: []mgmt.Namespace{{NSID: 3, Store: "d", Bytes: 1 << 30, IO: mgmt.IO{Write: mgmt.Class{Bytes: bytes, Latency: []uint64{1, 0}}}}}}, {NQN: "nqn.empty"}},
		}}
	}
	var b strings.Builder
	now := at(3 << 20)
	now.Time = now.Time.Add(time.Second)
	if err := writeStatus(&b, now, at(1<<20)); err != nil {
		t.Fatal(err)
	}
	const line, table = "NVMe           2 controllers; 4 made, 3 refused, 7 authentications failed; 9 connections, 1 refused; 5 errors of the protocol, 6 of digests\n", `
SUBSYSTEM  NSID  STORE  SIZE    READ/S  B/S  MEAN  P99  WRITE/S  B/S     MEAN  P99  OTHER/S  BUSY  FAILED
nqn.s      3     d      1.0GiB  0       0B   -     -    0        2.0MiB  -     -    0        0     -
nqn.empty  -
`
	if !strings.Contains(b.String(), line) || !strings.HasSuffix(b.String(), table) || strings.Contains(b.String(), "TARGET") {
		t.Error(b.String())
	}
}

func TestWriteStatusObjects(t *testing.T) {
	var b strings.Builder
	if err := writeStatus(&b, &mgmt.Status{Objects: []mgmt.Objects{
		{
			Store: "heap", Served: true, Objects: 3, Bytes: 4096, Memory: 2 << 20, Free: 1 << 20, Connections: 2,
			Requests: []mgmt.ObjectRequests{{Op: "insert", End: "good", Count: 3}, {Op: "read", End: "good", Count: 4}, {Op: "read", End: "stale", Count: 1}},
		},
		{Store: "other", Connections: 1},
	}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"objects        heap: 3 with 4.0KiB; 1.0MiB of 2.0MiB are free; 2 connections; 7 requests done, 1 not\n",
		"objects        other: not served by this node; 1 connections\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("there is no %q in\n%s", line, b.String())
		}
	}
}

func TestWriteStatusPrograms(t *testing.T) {
	at := func(bytes uint64) *mgmt.Status {
		return &mgmt.Status{NVMe: new(mgmt.NVMe), BoundsNS: []int64{10_000}, Programs: []mgmt.Programs{{
			Portal: "/p", Connected: 3, Refused: 4, Silent: 5, MemoryRefused: 6, Connections: 7, ConnectionsRefused: 8,
			Users: []mgmt.ProgramUser{
				{UID: 9, Programs: 1, QueuePairs: 2, Shared: 1 << 20},
				{UID: 998, Programs: 2, QueuePairs: 5, Shared: 3 << 20, IO: mgmt.IO{Write: mgmt.Class{Bytes: bytes, Latency: []uint64{1, 0}}}},
			},
		}, {Portal: "/idle"}}}
	}
	var b strings.Builder
	now := at(3 << 20)
	now.Time = now.Time.Add(time.Second)
	if err := writeStatus(&b, now, at(1<<20)); err != nil {
		t.Fatal(err)
	}
	const table = `
PORTAL  USER     PROGRAMS  QUEUE PAIRS  SHARED  READ/S  B/S  MEAN  P99  WRITE/S  B/S     MEAN  P99  OTHER/S  BUSY  FAILED
/p      uid:9    1         2            1.0MiB  0       0B   -     -    0        0B      -     -    0        0     -
/p      uid:998  2         5            3.0MiB  0       0B   -     -    0        2.0MiB  -     -    0        0     -
`
	for _, text := range []string{
		"programs       /p: 3 programs, 4 refused, 5 without a hello; 7 connections, 8 refused; memory refused 6 times\n",
		"programs       /idle: 0 programs, 0 refused, 0 without a hello; 0 connections, 0 refused; memory refused 0 times\n", table,
	} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("there is no %q in\n%s", text, b.String())
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
// TestWriteStatusCounters: each figure stands where its words are; pauses are spoken of only where there were any.
func TestWriteStatusCounters(t *testing.T) {
	now := mgmt.Status{Connected: 1, Counters: mgmt.Counters{
		Connections: 2, Refused: 3, Logins: 4, LoginFailures: 5, Redirects: 6, ProtocolErrors: 7, Rejects: 8, IgnoredCommands: 9, DigestErrors: 10,
		Moderation: mgmt.Moderation{Censuses: 11, Pauses: 12, PausedNS: 13e6},
	}}
	var b strings.Builder
	if err := writeStatus(&b, &now, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"sessions       1; 4 logins, 5 refused, 6 redirected; 2 connections, 3 refused\n",
		"errors         7 of the protocol, 10 of digests, 8 rejects, 9 commands out of order\n",
		"moderation     12 pauses, 13ms in all; outstanding commands were counted 11 times\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("there is no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	now.Counters.Moderation = mgmt.Moderation{}
	if err := writeStatus(&b, &now, nil); err != nil || strings.Contains(b.String(), "moderation") {
		t.Errorf("%v, without pauses:\n%s", err, b.String())
	}
}

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
	b.Reset()
	user := mgmt.Device{Transport: "iwarp", Name: "127.0.0.1:3261", Counters: map[string]uint64{"messages_in": 5, "messages_out": 6}}
	if err := writeStatus(&b, &mgmt.Status{Devices: []mgmt.Device{user}}, nil); err != nil {
		t.Fatal(err)
	}
	if want := "iwarp 127.0.0.1:3261: 5 messages in, 6 out\n"; !strings.Contains(b.String(), want) {
		t.Errorf("there is no %q in\n%s", want, b.String())
	}
}

// The pace of copies is told while it matters.
func TestPaceText(t *testing.T) {
	busy := []mgmt.Copy{{State: mgmt.CopyInSync}, {State: mgmt.CopyResync}}
	compared := &mgmt.Verification{}
	over := &mgmt.Verification{Ended: time.Unix(7, 0)}
	for _, x := range []struct {
		m    mgmt.Mirror
		want string
	}{
		{mgmt.Mirror{Copies: busy}, ""},
		{mgmt.Mirror{Resync: &mgmt.Resync{Min: 1 << 20, Yields: true}, Verify: over, Copies: busy[:1]}, ""},
		{mgmt.Mirror{Resync: &mgmt.Resync{Min: 1 << 20}, Copies: busy}, "as fast as can be"},
		{mgmt.Mirror{Resync: &mgmt.Resync{Rate: 3 << 20, Min: 1 << 20}, Verify: compared}, "at up to 3MiB/s (resync.rate)"},
		{mgmt.Mirror{Resync: &mgmt.Resync{Rate: 3 << 20, Min: 1 << 20, Yields: true}, Verify: over, Copies: busy}, "at 1MiB/s (resync.min)"},
	} {
		got := paceText(&x.m)
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%+v: %q, and should say %q", x.m, got, x.want)
		}
	}
}
