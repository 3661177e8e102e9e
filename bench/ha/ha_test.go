package main

import (
	"strings"
	"testing"

	"oneshot/bench/harness"
)

// The report has a row for each store and point, compared with the one that is no mirror.
func TestReport(t *testing.T) {
	r := result{point: harness.Point{Write: true, FUA: true, Size: 4096, Depth: 32}}
	for i, c := range contenders {
		w := row{contender: c.name, sample: sample{IOPS: float64(1000 * (2 - i)), P50: 7, P99: 9}, low: 900, high: 5000}
		w.Initiator.CPU = 3
		w.nodes = [3]spent{{10, 0.25, 4}, {5, 0.5, -1}, {1, 0, 0}}
		r.rows = append(r.rows, w)
	}
	text := table(harness.Options{Rounds: 5, Seconds: 1}, []result{r})
	for _, want := range []string{
		"## 4 KiB write + flush, depth 32\n", "| file | 2000 | 900 – 5000 | 8 | 1.00 | 7 | 9 | 3.0 | 10.0 | 5.0 | 1.0 | 0.25 | 0.50 | 4.00 | – |",
		"| mirror of two files | 1000 | 900 – 5000 | 4 | 0.50 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if svg := picture([]result{r}); strings.Count(svg, "<rect") != 1+2*len(contenders) {
		t.Errorf("the picture: %s", svg)
	}
}

// Perf says how many system calls there were, or that it could not count them.
func TestParseCalls(t *testing.T) {
	n, err := parseCalls("# started on Mon\n\n1234,,raw_syscalls:sys_enter,5000,100.00,,\n")
	if err != nil || n != 1234 {
		t.Errorf("%v, %v", n, err)
	}
	for _, text := range []string{"", "<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"} {
		if _, err := parseCalls(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// Points of one run are told apart by what -points matches.
func TestPoints(t *testing.T) {
	names := map[string]bool{}
	for _, p := range points() {
		names[p.String()] = true
	}
	for _, want := range []string{"4 KiB write, depth 1", "4 KiB write, depth 32", "256 KiB write, depth 1", "4 KiB write + flush, depth 1", "4 KiB read, depth 1"} {
		if !names[want] {
			t.Errorf("there is no %s in %v", want, names)
		}
	}
}
