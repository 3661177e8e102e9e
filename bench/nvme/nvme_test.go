package main

import (
	"strings"
	"testing"
	"time"

	"oneshot/bench/harness"
)

// The report has a row for each protocol and point, compared with iSCSI that has the same digest.
func TestReport(t *testing.T) {
	r := result{Point: harness.Point{Size: 4096, Depth: 32, Sessions: 4}}
	for i, c := range contenders {
		w := row{Contender: c.name, Sample: sample{targetCPU: 2, allocs: 0.25}, Low: 900, High: 5000}
		w.Sample.IOPS = float64(1000 * (i + 1))
		w.Sample.Initiator.CPU, w.Sample.Initiator.Crossings = 3, 0.5
		r.Rows = append(r.Rows, w)
	}
	text := table(harness.Options{Rounds: 5, Seconds: 1}, []result{r})
	for _, want := range []string{
		"## 4 KiB read, depth 32, 4 sessions\n", "| raw echo | 1000 | 900 – 5000 | 4 | 0.50 | 1.00 | 0 | 0 | 3.00 | 2.00 | – | – |",
		"| iSCSI | 2000 | 900 – 5000 | 8 | 1.00 | 2.00 | 0 | 0 | 3.00 | 2.00 | 0.50 | 0.250 |",
		"| NVMe/TCP | 3000 | 900 – 5000 | 12 | 1.50 | 3.00 |", "| NVMe/TCP, data digest | 5000 | 900 – 5000 | 20 | 1.25 | 5.00 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if svg := picture([]result{r}); strings.Count(svg, "<rect") != 1+2*len(contenders) {
		t.Errorf("the picture: %s", svg)
	}
}

// By default a run takes four minutes at most.
func TestMost(t *testing.T) {
	b := &bench{}
	if b.Rounds, b.Seconds = 3, 0.7; b.most() > 4*time.Minute {
		t.Errorf("%v", b.most())
	}
	if b.Seconds = 1.9; b.most() != 7*time.Minute {
		t.Errorf("%v with twice the time of each", b.most())
	}
}

// The points are those of the comparison: each load in both directions.
func TestPoints(t *testing.T) {
	var names []string
	for _, p := range points() {
		names = append(names, p.String())
	}
	for _, want := range []string{"4 KiB read, depth 1", "4 KiB write, depth 32", "4 KiB read, depth 32, 4 sessions", "256 KiB write, depth 1"} {
		if !strings.Contains(strings.Join(names, "\n"), want) {
			t.Errorf("there is no %s", want)
		}
	}
}
