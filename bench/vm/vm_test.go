package main

import (
	"slices"
	"strings"
	"testing"

	"oneshot/bench/harness"
	"oneshot/bench/harness/harnesstest"
)

// someResults has this target between the peers over rxe, and faster than both over TCP.
func someResults() []result {
	iops := map[string]map[string]float64{
		overRXE: {ours: 1600, "LIO": 2000, "tgt": 1000},
		overTCP: {ours: 3000, "LIO": 1500, "tgt": 2000}, overAttached: {ours: 2400},
		overNVMeRXE: {ours: 1700, nvmet: 2000}, overNVMeTCP: {ours: 1700, nvmet: 2000}, overNothing: {harness.RawEcho: 1800},
	}
	var all []result
	for _, p := range points {
		r := result{point: p}
		for _, c := range contenders {
			n := iops[c.transport][c.target]
			samples := []sample{
				{IOPS: n + 10, P99: 3, Host: 2e6 / n, Others: 0.01},
				{IOPS: n - 10, P99: 1, Host: 2e6 / n, Others: 0.5},
				{IOPS: n, P99: 2, Host: 2e6 / n, CPU: map[string]float64{byFio: 42}},
			}
			for i := range samples {
				samples[i].Device = map[string]float64{"doorbells": float64(i), "receive_posts": 7}
			}
			r.rows = append(r.rows, summarize(c, samples))
		}
		all = append(all, r)
	}
	return all
}

func TestTable(t *testing.T) {
	got := table(circumstances(options{Options: harness.Options{Rounds: 3, Seconds: 1}}, "6.1", someResults()), someResults())
	for _, want := range []string{
		"up to 50 % of the host",
		"## Over rxe",
		"| 4 KiB random read, depth 1 | **1600** 1590 – 1610 | **2000** 1990 – 2010 | **1000** 990 – 1010 | 0.80 missed | 1.60 met | 2 | 2 | 2 |",
		"| 256 KiB sequential write, depth 8 | **419** 417 – 422 |",
		"| 1.50 met | 2.00 met |",
		"| 4 KiB random write, depth 32 | oneshot | 1250 | 0.80 |",
		"| 4 KiB random write, depth 32 | tgt | 2000 |  |",
		"scheduler none, max_sectors_kb 256",
		"| 4 KiB random read, depth 1 | **2400** 2390 – 2410 | **3000** 2990 – 3010 | 0.80 | |",
		"| 4 KiB random read, depth 32 | **2400** 2390 – 2410 | **3000** 2990 – 3010 | 0.80 met | 0.7 |",
		"| 0.80 met | 0.8 |",
		"| 4 KiB random read, depth 32 | NVMe, rxe | **1700** 1690 – 1710 | **2000** 1990 – 2010 | 0.85 missed of 0.9 | – | 2 | 2 | 1176 | 1000 |",
		"| 4 KiB random read, depth 1 | NVMe, rxe | **1700** 1690 – 1710 | **2000** 1990 – 2010 | 0.85 | ",
		"| 4 KiB random read, depth 1 | NVMe, TCP | **1700** 1690 – 1710 | **2000** 1990 – 2010 | 0.85 met of 0.85 | **1800** 1790 – 1810 | 2 |",
		"| 256 KiB sequential read, depth 8 | NVMe, TCP | **446** 443 – 448 | **524** 522 – 527 | 0.85 missed of 1 | ",
		"| 4 KiB random read, depth 1 | NVMe, rxe | 1.00 | 0.00 | 7.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}

// Contenders that were not measured are left out, and nothing is compared with them.
func TestIncomplete(t *testing.T) {
	r := result{point: points[0], rows: someResults()[0].rows[:2]}
	if _, ok := r.standing(overRXE); ok {
		t.Error("a standing without tgt")
	}
	if got := table("", []result{r}); !strings.Contains(got, "| – | – | – |") {
		t.Errorf("the table:\n%s", got)
	}
	if got := picture([]result{r}); strings.Contains(got, "TCP, ") {
		t.Errorf("the picture has bars of TCP:\n%s", got)
	}
}

func TestPictureIsXML(t *testing.T) {
	bars := harnesstest.Rects(t, picture(someResults()))
	// The background, the legend, and a bar for each target over each transport of iSCSI at each point.
	if want := 1 + len(targets) + len(targets)*len(transports)*len(points); bars != want {
		t.Errorf("%d rectangles, want %d", bars, want)
	}
}

// What crosses the device is in the metrics, for each transport that uses it.
func TestCrossed(t *testing.T) {
	got, err := parseCrossed(`# TYPE oneshot_rdma_total counter
oneshot_rdma_total{device="rxe0",kind="posts",transport="nvme-rdma"} 12
oneshot_rdma_total{device="rxe0",kind="posts",transport="verbs"} 1.5e+06
oneshot_rdma_total{device="rxe0",kind="sleeps",transport="verbs"} 3
`)
	if err != nil || got["posts"] != 1.5e6+12 || got["sleeps"] != 3 || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseCrossed("nothing\n"); err == nil {
		t.Error("nothing is something")
	}
}

// mirrorResults has this target at three quarters of DRBD's IOPS everywhere.
func mirrorResults() (all []result) {
	for _, p := range mirrorPoints {
		r := result{point: p}
		for _, c := range mirrored {
			n := 1000.0
			if c.target == ours {
				n = 750
			}
			r.rows = append(r.rows, summarize(c, []sample{{IOPS: n, P50: 1, P99: 2, Host: 1e6 / n}}))
		}
		all = append(all, r)
	}
	return all
}

func TestMirrorTable(t *testing.T) {
	got := mirrorTable(circumstances(options{Options: harness.Options{Rounds: 3, Seconds: 1}, mirror: true}, "6.1", mirrorResults()), mirrorResults())
	for _, want := range []string{
		"3 rounds of 1 s",
		"| 4 KiB random write, depth 1 | **750** 750 – 750 | **1000** 1000 – 1000 | 0.75 met of 0.67 | **1000** 1000 – 1000 | 1 | 1 | 2 | 2 | 1333 | 1000 |",
		"| 4 KiB random write, depth 32 | **750** 750 – 750 | **1000** 1000 – 1000 | 0.75 missed of 1 |",
		"| 256 KiB sequential write, depth 8 | **197** 197 – 197 | **262** 262 – 262 | 0.75 missed of 0.9 |",
		"| 4 KiB random write + flush, depth 1 | **750** 750 – 750 | **1000** 1000 – 1000 | 0.75 missed of 1 |",
		"| 4 KiB random read, depth 32 | **750** 750 – 750 | **1000** 1000 – 1000 | 0.75 | – | 1 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	// The background, the legend, and two bars at each point.
	if bars, want := harnesstest.Rects(t, mirrorPicture(mirrorResults())), 1+2+2*len(mirrorPoints); bars != want {
		t.Errorf("%d rectangles, want %d", bars, want)
	}
}

func TestFailoverTable(t *testing.T) {
	samples := [][]failover{{{0.5, 4}, {0.25, 2}, {1, 3}}, {{7, 130}, {6, 132}, {30, 131}}}
	got := failoverTable(options{Options: harness.Options{Rounds: 3}, failover: true}, "6.1", samples)
	for _, want := range []string{
		"3 rounds, each on machines", "| pause, s | **0.50** 0.25 – 1.00 | **7.00** 6.00 – 30.00 | 0.071 met of 0.5 |",
		"| copied, MiB | **3.00** 2.00 – 4.00 | **131.00** 130.00 – 132.00 | 0.023 met of 0.05 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	samples[0] = []failover{{4, 8}}
	if got := failoverTable(options{}, "6.1", samples); strings.Count(got, "missed of") != 2 {
		t.Error(got)
	}
	if bars := harnesstest.Rects(t, failoverPicture(samples)); bars < 2 {
		t.Errorf("%d rectangles", bars)
	}
}

// A flush goes behind each write where the point says so.
func TestArgs(t *testing.T) {
	for _, p := range mirrorPoints {
		if a := args(p); slices.Contains(a, "--fsync=1") != p.FUA || slices.Contains(a, "--rw=randwrite") != (p.Write && p.Order == harness.Random) {
			t.Errorf("%s: %q", p, a)
		}
	}
}

// The time of a thread counts for the share that the table names.
func TestThreads(t *testing.T) {
	stat := func(id, name, user, system string) string {
		return id + " (" + name + ") S 1 1 1 0 -1 0 0 0 0 0 " + user + " " + system + " 0 0 20 0\n"
	}
	before, err := parseThreads(stat("7", "target", "10", "20") + stat("8", "kworker/0:0", "90", "90"))
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseThreads(stat("7", "target", "11", "22") + stat("9", "target", "0", "1") + stat("10", "iscsi_trx", "0", "4") +
		stat("11", "kworker/0:1H-ib) x", "0", "5") + stat("1", "guest", "3", "3"))
	if err != nil {
		t.Fatal(err)
	}
	per := after.perIO(before, job{User: 1, System: 2}, side{IOPS: 20, TotalIOs: 10})
	for name, want := range map[string]float64{
		byTargetUser: 1000, byTargetSystem: 7000, byKworkers: 5000, byFio: 1500, bySoftirqd: 0, byRest: 100_000 - 14_500,
	} {
		if per[name] != want {
			t.Errorf("%s: %v µs per I/O, want %v", name, per[name], want)
		}
	}
	if _, err := parseThreads("nothing\n"); err == nil {
		t.Error("nothing is something")
	}
}
